//! A ledger that is damaged or cannot be written stops no run.

use std::fs::File;
use std::process::Command;

use crate::harness::{Answer, Folder, Needs, Suite, Tmpfs};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("ledger::{name}"), Needs::Nothing, test);
    test("a_truncated_one_is_set_aside", truncated);
    test("flipped_bits_cost_the_lines_that_they_hit", flipped);
    test("a_file_that_is_no_ledger_is_set_aside", foreign);
    test("an_empty_one_is_empty", empty);
    test("a_folder_in_its_place_stops_no_run", in_its_place);
    test("damage_during_a_run", meanwhile);
    test("a_held_lock_stops_no_run", held);
    test("the_effective_batch_of_a_search_is_no_limit", capped);
    test("an_old_entry_at_its_effective_batch_is_no_limit", capped_before);
    suite.test("ledger::a_full_disk_stops_no_run", Needs::Root, full);
}

const RUN: [&str; 8] =
    ["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1", "--set", "train.batch=8"];

/// A folder with a ledger of several entries, and its content.
fn folder() -> (Folder, Vec<u8>) {
    let folder = job::on_card("card free", "train: {batch: 200, effective_batch: 400}\n", "16384 16384\n");
    for max in ["64", "65", "66", "67"] {
        let set = format!("data.max_source={max}");
        let precision = if max == "64" { "train.precision=fp32" } else { "train.precision=bf16" };
        let checkpointing = if max == "66" { "train.checkpointing=true" } else { "train.checkpointing=false" };
        let more = ["--set", &set, "--set", precision, "--set", checkpointing];
        folder.pipe(&[&RUN[..], &more[..]].concat()).exits(0).says_not("warning");
    }
    let bytes = std::fs::read(folder.path().join("ledger")).unwrap();
    assert!(bytes.len() > 1200 && bytes.iter().filter(|byte| **byte == b'\n').count() >= 6, "{}", bytes.len());
    (folder, bytes)
}

fn damaged(folder: &Folder) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let aside = entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("ledger.damaged-"));
    aside.map(|path| std::fs::read(path).unwrap()).collect()
}

/// Every command that reads it.
fn ask(folder: &Folder, command: usize) -> Answer {
    match command % 5 {
        0 => folder.pipe(&["ledger", "ls"]).exits(0),
        1 => folder.pipe(&["ledger", "export"]).exits(0),
        2 => folder.pipe(&["ledger", "forget", "--all"]).exits(0),
        3 => folder.pipe(&["doctor"]),
        _ => folder.pipe(&RUN).exits(0),
    }
}

fn truncated() {
    let (folder, bytes) = folder();
    for command in 0..5 {
        folder.write("ledger", &bytes[..1000]);
        let answer = ask(&folder, command);
        let said = format!("{}{}", answer.stdout, answer.stderr);
        assert!(said.contains("is damaged: it is kept as") && said.contains("entries went into a new one"), "{answer}");
        assert_eq!(damaged(&folder).len(), command + 1);
        // Only once.
        let again = ask(&folder, 0);
        assert!(!again.stderr.contains("damaged"), "{again}");
    }
    assert!(damaged(&folder).iter().all(|content| content == &bytes[..1000]));
}

fn flipped() {
    let (folder, bytes) = folder();
    let mut seed = 13u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for round in 0..25 {
        let mut content = bytes.clone();
        for _ in 0..4 {
            let at = random(content.len());
            content[at] ^= 1 << random(8);
        }
        folder.write("ledger", &content);
        ask(&folder, round);
        assert!(damaged(&folder).contains(&content), "round {round}");
    }
}

fn foreign() {
    let (folder, _) = folder();
    folder.write("ledger", b"redb\x1a\n\xa9\r\n\x01\0\0\0\0\0\0\0");
    folder.pipe(&RUN).exits(0).says("0 of 3 entries went into a new one");
    assert_eq!(damaged(&folder).len(), 1);
    // The run has added its results.
    assert_eq!(folder.pipe(&["ledger", "export"]).exits(0).json_lines().len(), 1);
}

fn empty() {
    let (folder, _) = folder();
    folder.write("ledger", "");
    assert_eq!(folder.pipe(&["ledger", "ls", "--json"]).exits(0).says_not("warning").json(), serde_json::json!([]));
    folder.pipe(&RUN).exits(0).says_not("warning");
    assert!(damaged(&folder).is_empty());
}

fn in_its_place() {
    let folder = job::on_card("card free", "train: {batch: 8}\n", "16384 16384\n");
    folder.write("ledger/file", "");
    folder.pipe(&RUN).exits(0).says("warning: the ledger").says("it is not a file");
    folder.pipe(&["ledger", "ls"]).exits(1).says("it is not a file").says("hint: move it, choose another");
    folder.pipe(&["doctor"]).prints("it is not a file");
    std::fs::remove_dir_all(folder.path().join("ledger")).unwrap();
    Command::new("mkfifo").arg(folder.path().join("ledger")).status().unwrap();
    folder.pipe(&RUN).exits(0).says("it is not a file");
}

fn meanwhile() {
    let (folder, bytes) = folder();
    let text = folder.read("job.yaml").replace("JOB: card free", "JOB: walk 5 300 8");
    folder.write("job.yaml", text);
    let known = folder.path().join("runs").read_dir().unwrap().count();
    let running = folder.start(&RUN);
    let trains = || {
        let answer = folder.pipe(&["ls", "--json"]).exits(0).json();
        let runs = answer.as_array().unwrap();
        runs.len() > known && runs[0]["doing"] == "training"
    };
    folder.wait_until("the training", trains);
    folder.write("ledger", &bytes[..bytes.len() - 3]);
    running.end().exits(0).says("warning: the ledger").says("is damaged: it is kept as");
    assert_eq!(damaged(&folder), [&bytes[..bytes.len() - 3]]);
}

fn held() {
    let (folder, _) = folder();
    let lock = File::create(folder.path().join(".ledger.lock")).unwrap();
    lock.lock().unwrap();
    folder.pipe(&["ledger", "ls"]).exits(0).says_not("warning");
    folder.pipe(&RUN).exits(0).says("warning: the ledger").says("another process has held");
}

const CAPPED: &str = "8 fits, and it is the whole effective batch; larger was not tried";
const AUTO: [&str; 6] = ["run", "job.yaml", "--engine", "process", "--set", "train.batch=auto"];
const LARGER: [&str; 2] = ["--set", "train.effective_batch=64"];

/// Batches up to 40 fit; the first search is for an effective batch of 8.
fn searched() -> Folder {
    let folder = job::folder("search 40", "train: {batch: 1, effective_batch: 8}\n");
    folder.pipe(&["fit", "job.yaml", "--engine", "process"]).exits(0).prints(CAPPED).says(CAPPED);
    folder.pipe(&["ledger", "ls"]).exits(0).prints("batch 8 fits (peak 1.0 MiB), larger was not tried");
    folder
}

fn capped() {
    let folder = searched();
    let facts = folder.pipe(&["ledger", "ls", "--json"]).exits(0).json()[0]["facts"].clone();
    assert!(facts[0]["largest"] == true && facts[0]["capped"] == true, "{facts:#}");
    searches_for_more(&folder);
}

/// A larger effective batch is searched for again, once.
fn searches_for_more(folder: &Folder) {
    folder.pipe(&AUTO).exits(0).says("batch 8 is known to fit, and it is the whole").says_not("measured batch");
    let found = folder.pipe(&[&AUTO[..], &LARGER].concat()).exits(0);
    found.says("measured batch 40").says("the largest batch that fits is 40 (x accum 2)");
    let known = folder.pipe(&[&AUTO[..], &LARGER].concat()).exits(0);
    known.says("batch 40 was found to be the largest that fits").says_not("measured batch");
}

fn capped_before() {
    let folder = searched();
    let line = |line: &str| {
        let rest = line.replace(",\"capped\":true", "");
        let rest = rest.split_once("\",").unwrap().1;
        format!("{{\"check\":\"{}\",{rest}\n", &blake3::hash(rest.as_bytes()).to_hex()[..16])
    };
    let old: String = folder.read("ledger").lines().map(line).collect();
    assert_ne!(old, folder.read("ledger"));
    folder.write("ledger", old);
    searches_for_more(&folder);
}

fn full() {
    let folder = job::on_card("card free", "train: {batch: 8}\n", "16384 16384\n");
    let disk = folder.path().join("disk");
    let mounted = Tmpfs::mount(disk.clone(), "64k");
    let place = disk.join("ledger");
    let folder = folder.env("PIPE_LEDGER", place.display());
    let fill = || {
        while std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(disk.join("full"))
            .and_then(|mut file| std::io::Write::write_all(&mut file, &[0; 4096]))
            .is_ok()
        {}
    };
    fill();
    // First it cannot be created, then it can be created and not written.
    folder.pipe(&RUN).exits(0).says("warning: the ledger").says("No space left on device");
    folder.pipe(&["ledger", "ls"]).exits(0);
    std::fs::remove_file(disk.join("full")).unwrap();
    folder.pipe(&RUN).exits(0).says_not("warning");
    let bytes = std::fs::read(&place).unwrap();
    std::fs::write(&place, &bytes[..bytes.len() - 3]).unwrap();
    fill();
    folder.pipe(&RUN).exits(0).says("is damaged").says("cannot be set aside");
    assert_eq!(std::fs::read(&place).unwrap(), &bytes[..bytes.len() - 3]);
    assert!(
        !std::fs::read_dir(&disk).unwrap().any(|entry| entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("damaged"))
    );
    drop(mounted);
}
