//! Parquet and compressed data: which files are prepared, when, and what a failure leaves behind.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite, Tmpfs};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("data_files::{name}"), Needs::Nothing, test);
    test("prepared_once_and_locked_by_its_original", prepared_once);
    test("check_and_dry_run_prepare_nothing", only_looked_at);
    test("check_refuses_bad_files", refused);
    test("a_damaged_file_leaves_nothing", damaged);
    test("folders_and_lists_of_all_kinds", mixed);
    test("ctrl_c", interrupted);
    test("killed_and_run_again", killed);
    test("two_at_once", two_at_once);
    test("init", init);
    test("doctor_knows_the_size", doctor);
    test("a_line_that_is_too_long_is_not_written_out", too_long);
    test("what_was_not_used_for_long_is_pruned", pruned);
    suite.test("data_files::full_disk", Needs::Root, full_disk);
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(repository().join("tests/fixtures/data").join(name)).unwrap()
}

/// A folder whose job does nothing and reads `train`, which is `bytes`; with a cache of its own.
fn folder(train: &str, bytes: &[u8]) -> Folder {
    let folder = job::folder("exit 0", "");
    let fields = "{source: ingredients, target: directions}";
    let data = format!("{{train: {train}, fields: {fields}, tokenizer: tokenizer.json}}");
    folder.write("job.yaml", folder.read("job.yaml").replace("{train: train.jsonl}", &data)).write(train, bytes);
    let cache = folder.path().join("cache");
    folder.env("PIPE_CACHE", cache.display())
}

/// What lies in the cache of prepared data.
fn cached(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path().join("cache/data")).into_iter().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What the job was given to read.
fn read_at(run: &Path) -> PathBuf {
    let spec: Value = serde_json::from_slice(&std::fs::read(run.join("attempts/01/spec.json")).unwrap()).unwrap();
    PathBuf::from(spec["data"]["train"].as_str().unwrap())
}

/// Compressed zeros in lines of the greatest length, far more than a test could write out.
fn endless() -> Vec<u8> {
    let mut line = vec![0; 64 << 20];
    line[(64 << 20) - 1] = b'\n';
    zstd::bulk::compress(&line, 1).unwrap().repeat(400)
}

fn prepared_once() {
    let bytes = fixture("snappy.parquet");
    let folder = folder("train.parquet", &bytes);
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0).says("preparing train.parquet (9.8 KiB), once");
    let run = folder.run_folder();
    let read = read_at(&run);
    assert!(read.starts_with(folder.path().join("cache/data")), "{}", read.display());
    assert_eq!(std::fs::read_to_string(&read).unwrap().lines().count(), 48);
    let lock: Value = serde_json::from_str(&folder.read_run("lock.json")).unwrap();
    let original = folder.path().join("train.parquet");
    assert_eq!(lock["train"][0]["name"], original.display().to_string());
    assert_eq!(lock["train"][0]["hash"], blake3::hash(&bytes).to_hex().as_str());
    // The same content under another name is prepared already.
    std::fs::rename(&original, folder.path().join("other.parquet")).unwrap();
    std::fs::remove_dir_all(run).unwrap();
    folder
        .pipe(&["run", "job.yaml", "--engine", "process", "--set", "data.train=other.parquet"])
        .exits(0)
        .says_not("preparing");
    assert_eq!(read_at(&folder.run_folder()), read);
}

fn only_looked_at() {
    let folder = folder("train.parquet", &fixture("zstd.parquet"));
    folder.pipe(&["check", "job.yaml", "--no-data"]).exits(0);
    let answer = folder.pipe(&["run", "job.yaml", "--engine", "process", "--dry-run"]).exits(0);
    assert!(answer.json()["spec"]["data"]["train"].as_str().unwrap().ends_with("/train.parquet"), "{answer}");
    assert!(cached(&folder).is_empty());
}

fn refused() {
    for (train, bytes, text) in [
        ("a.parquet", fixture("series.parquet"), "no columns \"ingredients\", \"directions\"; it has: time, f0"),
        ("a.parquet", fixture("encrypted.parquet"), "it is encrypted"),
        ("a.parquet", fixture("rows.jsonl"), "by its name a Parquet file, by its first bytes something else"),
        ("a.parquet", b"PAR1rubbishPAR1".to_vec(), "not a Parquet file that can be read"),
        ("a.jsonl.gz", fixture("rows.jsonl"), "by its name a gzip file, by its first bytes something else"),
        ("a.jsonl.gz", fixture("rows.jsonl.zst"), "by its first bytes a zstd file; its name would end in .zst"),
        ("a.jsonl", fixture("rows.jsonl.gz"), "by its name plain text, by its first bytes a gzip file"),
        ("a.txt.gz", fixture("rows.jsonl.gz"), "allowed for text to text: .jsonl, .csv, .tsv, .json, .parquet"),
    ] {
        let folder = folder(train, &bytes);
        for command in [&["check", "job.yaml"][..], &["run", "job.yaml", "--engine", "process"]] {
            folder.pipe(command).exits(3).says("data.train: ").says(text);
        }
        assert!(!folder.has_runs() && cached(&folder).is_empty());
    }
}

fn damaged() {
    let cut = |name: &str, at: usize| fixture(name)[..at].to_vec();
    let mut page = fixture("snappy.parquet");
    page[500..600].fill(0xa5);
    for (train, bytes, text) in [
        ("a.jsonl.gz", cut("rows.jsonl.gz", 1500), "a.jsonl.gz: it ends in the middle of its compressed data"),
        ("a.jsonl.zst", cut("rows.jsonl.zst", 1500), "a.jsonl.zst: it ends in the middle of its compressed data"),
        ("a.parquet", page, "a.parquet: row group 1: "),
        ("a.parquet", fixture("encrypted-columns.parquet"), "it is damaged, or its columns are encrypted"),
    ] {
        let folder = folder(train, &bytes);
        folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(3).says(text).says_not("panicked");
        assert_eq!(folder.show()["status"], "failed");
        assert!(cached(&folder).is_empty(), "{:?}", cached(&folder));
    }
}

fn mixed() {
    let folder = folder("data/b.parquet", &fixture("gzip.parquet"));
    folder.write("data/a.jsonl", fixture("rows.jsonl")).write("data/c.jsonl.zst", fixture("rows.jsonl.zst"));
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "data.train=data"]).exits(0).says("2 data files");
    let spec: Value = serde_json::from_str(&folder.read_run("attempts/01/spec.json")).unwrap();
    let files: Vec<&str> =
        spec["data"]["train"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    assert_eq!(files.len(), 3);
    assert!(files[0].ends_with("/data/a.jsonl") && files[1..].iter().all(|path| path.ends_with("/data.jsonl")));
    let text = |path: &str| std::fs::read_to_string(path).unwrap();
    assert!(text(files[1]).lines().count() == 48 && text(files[2]) == text(files[0]));
    folder.write("data/a.jsonl.gz", fixture("rows.jsonl.gz"));
    folder
        .pipe(&["check", "job.yaml", "--set", "data.train=data"])
        .exits(3)
        .says("a.jsonl.gz and a.jsonl beside it are the same data twice; name one of them");
}

/// Waits until a file is written. Returns its name.
fn wait_for_bytes(folder: &Folder) -> PathBuf {
    let mut found = None;
    folder.wait_until("rows in the cache", || {
        let names = cached(folder);
        found =
            names.iter().find(|name| name.ends_with(".tmp")).map(|name| folder.path().join("cache/data").join(name));
        let rows = found.as_ref().map(|entry| entry.join("data.jsonl"));
        rows.is_some_and(|rows| rows.metadata().is_ok_and(|meta| meta.len() > 0))
    });
    found.unwrap()
}

fn interrupted() {
    let folder = folder("train.jsonl.zst", &endless());
    for signal in ["INT", "TERM"] {
        let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
        wait_for_bytes(&folder);
        running.signal(signal);
        running.end().exits(130);
        assert!(cached(&folder).is_empty(), "{:?}", cached(&folder));
    }
    assert_eq!(folder.show()["status"], "stopped");
}

fn killed() {
    let folder = folder("train.jsonl.zst", &endless());
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    let left = wait_for_bytes(&folder);
    running.kill_alive();
    assert!(left.exists());
    // The next preparation removes it.
    folder.write("train.parquet", fixture("plain.parquet"));
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "data.train=train.parquet"]).exits(0);
    assert!(!left.exists(), "{:?}", cached(&folder));
    assert_eq!(cached(&folder).len(), 2, "{:?}", cached(&folder));
}

fn two_at_once() {
    let folder = folder("train.parquet", &fixture("lz4.parquet"));
    let runs: Vec<_> = (0..4).map(|_| folder.start(&["run", "job.yaml", "--engine", "process"])).collect();
    runs.into_iter().for_each(|running| drop(running.end().exits(0)));
    assert_eq!(cached(&folder).len(), 2, "an entry and its lock: {:?}", cached(&folder));
}

fn init() {
    let folder = Folder::new();
    for (name, want) in [
        ("snappy.parquet", ["arch: t5", "source: ingredients", "target: directions"]),
        ("rows.jsonl.gz", ["arch: t5", "source: ingredients", "target: directions"]),
        ("rows.jsonl.zst", ["arch: t5", "source: ingredients", "target: directions"]),
        ("series.parquet", ["arch: hybrid-cnn-lstm", "input_features: 6", "label: label"]),
        ("series.csv.gz", ["arch: hybrid-cnn-lstm", "input_features: 6", "label: label"]),
        ("pictures.parquet", ["arch: clip", "image: image", "text: text"]),
    ] {
        folder.write(name, fixture(name)).write(&name.replacen(name.split('.').next().unwrap(), "eval", 1), "");
        let text = folder.pipe(&["init", "--data", name, "--yes", "--stdout"]).exits(0).stdout;
        want.iter().for_each(|want| assert!(text.contains(want), "{name}: no {want:?} in\n{text}"));
        let ending = name.split_once('.').unwrap().1;
        assert!(text.contains(&format!("eval: eval.{ending}")), "{name}: {text}");
    }
    folder.write("bomb.jsonl.zst", endless());
    folder.pipe(&["init", "--data", "bomb.jsonl.zst", "--arch", "t5", "--stdout"]).exits(0);
}

fn doctor() {
    let folder = folder("train.parquet", &fixture("polars.parquet"));
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let checks = folder.pipe(&["doctor", "--json"]).json();
    let cache = checks.as_array().unwrap().iter().find(|check| check["name"] == "cache").unwrap().clone();
    assert!(cache["found"].as_str().unwrap().contains("of prepared data (1 file)"), "{cache}");
}

/// A file that fills the disk is stopped in time; one that is known to be too large is not started.
fn full_disk() {
    let folder = folder("train.jsonl.gz", b"");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut zeros = vec![0; 1 << 20];
    zeros[(1 << 20) - 1] = b'\n';
    (0..200).for_each(|_| packed.write_all(&zeros).unwrap());
    folder.write("train.jsonl.gz", packed.finish().unwrap());
    folder.write("train.jsonl.zst", zstd::bulk::compress(&vec![b' '; 200 << 20], 1).unwrap());
    let cache = folder.path().join("cache");
    let _disk = Tmpfs::mount(cache, "48m");
    for (train, text) in [
        ("train.jsonl.gz", "train.jsonl.gz: 48.0 MiB free in"),
        ("train.jsonl.zst", "train.jsonl.zst: it needs 200.0 MiB, 48.0 MiB free in"),
    ] {
        let set = format!("data.train={train}");
        let answer = folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", &set]);
        let left = cached(&folder);
        answer.exits(3).says("not enough disk space to prepare ").says(text).says("PIPE_CACHE");
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A small file whose only line is larger than the limit of a row.
fn too_long() {
    let folder = folder("train.jsonl.zst", &zstd::bulk::compress(&vec![b'a'; 64 << 20], 1).unwrap().repeat(40));
    folder
        .pipe(&["run", "job.yaml", "--engine", "process"])
        .exits(3)
        .says("train.jsonl.zst: line 1: the row has more than 64.0 MiB");
    assert!(cached(&folder).is_empty());
}

fn pruned() {
    let folder = folder("train.parquet", &fixture("snappy.parquet")).env("DOCKER_HOST", "unix:///nowhere");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    folder.write("cache/trainers/0123456789abcdef/opt/pipe/bin/pipe-trainer", "program");
    folder.pipe(&["prune"]).exits(0).prints("nothing to remove").says("images are not looked at");
    let age = |path: &Path| {
        let touched = std::process::Command::new("touch").args(["-d", "40 days ago"]).arg(path).status().unwrap();
        assert!(touched.success());
    };
    let [entry, lock] = &cached(&folder)[..] else { panic!("{:?}", cached(&folder)) };
    assert_eq!(lock, &format!("{entry}.lock"));
    age(&folder.path().join("cache/data").join(entry).join("entry.json"));
    for path in ["opt/pipe/bin/pipe-trainer", "opt/pipe/bin", "opt/pipe", "opt", ""] {
        age(&folder.path().join("cache/trainers/0123456789abcdef").join(path));
    }
    folder.pipe(&["prune", "--older-than", "50d"]).exits(0).prints("nothing to remove");
    folder.pipe(&["prune"]).exits(2).prints("train.parquet").prints("40 days").says("hint: --yes removes");
    let listed = folder.pipe(&["prune", "--dry-run", "--json"]).exits(0).json();
    let what: Vec<&str> =
        listed["entries"].as_array().unwrap().iter().map(|one| one["what"].as_str().unwrap()).collect();
    assert_eq!((listed["removed"].as_bool(), what.len()), (Some(false), 2), "{listed}");
    assert!(what.contains(&"prepared data") && what.contains(&"trainer folder"), "{listed}");
    assert_eq!(cached(&folder).len(), 2);
    folder.pipe(&["prune", "--yes"]).exits(0).prints("removed 2 entries");
    assert!(cached(&folder).is_empty() && !folder.path().join("cache/trainers/0123456789abcdef").exists());
    folder.pipe(&["ls"]).exits(0).prints("finished");
    // It is made again; while a run reads it, it stays.
    folder.write("job.yaml", folder.read("job.yaml").replace("JOB: exit 0", "JOB: sleep"));
    folder.write("cache/buckets/s3--data--0123456789abcdef/snapshots/1/train.jsonl", "rows");
    folder.write("cache/buckets/.locks/s3--data--0123456789abcdef/1.lock", "");
    let lock = folder.path().join("cache/buckets/.locks/s3--data--0123456789abcdef/1.lock");
    let lock = std::fs::File::open(lock).unwrap();
    lock.lock().unwrap();
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "sleeping");
    let kept = "kept files of a bucket s3--data--0123456789abcdef: it is in use";
    folder.pipe(&["prune", "--all", "--yes"]).exits(0).says("kept prepared data").says(kept);
    drop(lock);
    folder.pipe(&["prune", "--all", "--yes"]).exits(0).prints("files of a bucket");
    assert!(!folder.path().join("cache/buckets/s3--data--0123456789abcdef").exists());
    assert_eq!(cached(&folder).len(), 2);
    running.signal("INT");
    running.end();
}
