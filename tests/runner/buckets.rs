//! Data, models and copies of runs in a bucket, on moto's S3: fetched, checked, changed, cut, refused; and nothing secret anywhere.

use serde_json::Value;

use crate::harness::moto::{Gate, KEY, Moto, SECRET, holds, with_keys};
use crate::harness::{Folder, Needs, Suite, Tmpfs};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("buckets::{name}"), Needs::Moto, test);
    test("data_is_fetched_once", fetched_once);
    test("objects_that_change_are_noticed", changed);
    test("a_run_keeps_its_objects", pinned);
    test("a_model", model);
    test("a_cut_connection_is_resumed", cut);
    test("a_part_of_an_earlier_process_is_used", killed);
    test("a_content_that_does_not_match_is_refused", corrupt);
    test("what_a_bucket_refuses", refused);
    test("a_bucket_that_does_not_answer", unavailable);
    test("a_run_is_copied_and_comes_back", copied);
    test("old_checkpoints_leave_the_bucket", pruned);
    test("a_bucket_that_goes_away_stops_no_training", vanished);
    test("a_copy_that_cannot_be_made_stops_the_start", not_started);
    test("a_run_has_one_process", held);
    test("damaged_copies_are_not_believed", damaged);
    test("links_of_a_job_are_not_copied", links);
    suite.test("buckets::a_full_disk", Needs::MotoAndRoot, full);
    suite.test("buckets::secrets_stay_out_of_containers", Needs::MotoAndDocker, contained);
    suite.thorough("buckets::thousands_of_objects", Needs::Moto, thousands);
    suite.thorough("buckets::more_than_four_gigabytes", Needs::Moto, more_than_four_gigabytes);
    suite.test("buckets::settings_that_need_a_plain_training", Needs::Nothing, settings);
    suite.test("buckets::without_keys", Needs::Nothing, keyless);
}

const RUN: [&str; 4] = ["run", "job.yaml", "--engine", "process"];
const ROW: &str = "{\"source\": \"a\", \"target\": \"b\"}\n";

fn rows(count: usize) -> String {
    ROW.repeat(count)
}

/// A folder whose training reads `train`, and does what `job` says.
fn reading(train: &str, job: &str, more: &str) -> Folder {
    let folder = job::folder(job, more);
    let data = format!("train: {train}, tokenizer: tokenizer.json");
    folder.write("job.yaml", folder.read("job.yaml").replace("train: train.jsonl", &data));
    folder
}

fn lock(folder: &Folder) -> Value {
    serde_json::from_str(&folder.read_run("lock.json")).unwrap()
}

/// What the first attempt was given as its data.
fn given(folder: &Folder) -> Vec<String> {
    let spec: Value = serde_json::from_str(&folder.read_run("attempts/01/spec.json")).unwrap();
    let paths = match &spec["data"]["train"] {
        Value::Array(many) => many.clone(),
        one => vec![one.clone()],
    };
    paths.iter().map(|path| path.as_str().unwrap().to_owned()).collect()
}

fn forget_runs(folder: &Folder) {
    std::fs::remove_dir_all(folder.path().join("runs")).unwrap();
}

fn fetched_once() {
    let moto = Moto::start();
    for (name, count) in
        [("x/train-0.jsonl", 2), ("x/train-1.jsonl", 3), ("x/notes.md", 1), ("x/deep/a.jsonl", 4), ("x.jsonl", 1)]
    {
        moto.put(name, rows(count));
    }
    let cases: [(&str, &[&str]); 5] = [
        ("s3://data/x/train-*.jsonl", &["train-0.jsonl", "train-1.jsonl"]),
        ("s3://data/x", &["x/train-0.jsonl", "x/train-1.jsonl"]),
        ("s3://data/x/**/*.jsonl", &["deep/a.jsonl", "train-0.jsonl", "train-1.jsonl"]),
        ("s3://data/x.jsonl", &["x.jsonl"]),
        ("[s3://data/x/deep/a.jsonl, s3://data/x.jsonl]", &["a.jsonl", "x.jsonl"]),
    ];
    for (train, want) in cases {
        let gate = Gate::before(moto.port);
        let folder = with_keys(reading(train, "fit 9", ""), &gate.address());
        folder.pipe(&["check", "job.yaml"]).exits(0);
        assert!(gate.requests().iter().all(|request| request.contains("list-type")), "check fetches nothing");
        folder.pipe(&RUN).exits(0).says("fetching s3://data").says("bucket: s3://data");
        let paths = given(&folder);
        assert_eq!(paths.len(), want.len(), "{train}: {paths:?}");
        for (path, want) in paths.iter().zip(want) {
            assert!(path.contains("/cache/buckets/s3--data--") && path.ends_with(&format!("/{want}")), "{path} {want}");
        }
        let locked = lock(&folder)["hub"].clone();
        assert!(locked[0]["name"].as_str().unwrap().starts_with("s3://data"), "{locked}");
        gate.requests();
        folder.pipe(&RUN).exits(0).says_not("fetching");
        assert!(gate.requests().iter().all(|request| request.contains("list-type")), "nothing is fetched twice");
        // The cache alone, without a network.
        gate.close(true);
        folder.env("HF_HUB_OFFLINE", "1").pipe(&RUN).exits(0);
        assert!(gate.requests().is_empty());
    }
}

fn changed() {
    let moto = Moto::start();
    moto.put("train.jsonl", rows(2));
    let folder = moto.known_to(reading("s3://data/train.jsonl", "fit 9", ""));
    folder.pipe(&RUN).exits(0).says_not("has changed");
    let before = lock(&folder);
    forget_runs(&folder);
    moto.put("train.jsonl", rows(3));
    folder.pipe(&RUN).exits(0).says("s3://data/train.jsonl has changed since it was last fetched");
    let after = lock(&folder);
    assert_ne!(before["hub"][0]["commit"], after["hub"][0]["commit"]);
    assert_ne!(before["train"][0]["hash"], after["train"][0]["hash"]);
    // A file of the cache that was damaged since is not what the lock says.
    moto.remove("train.jsonl");
    folder.pipe(&RUN).exits(3).says("there is no object s3://data/train.jsonl");
}

fn pinned() {
    let moto = Moto::start();
    moto.put("train.jsonl", rows(2));
    let folder = moto.known_to(reading("s3://data/train.jsonl", "exit 1", ""));
    folder.pipe(&RUN).exits(6);
    let commit = lock(&folder)["hub"][0]["commit"].clone();
    moto.put("train.jsonl", rows(3));
    // What it began with is in the cache.
    folder.pipe(&["resume"]).exits(6).says_not("changed");
    assert_eq!(lock(&folder)["hub"][0]["commit"], commit);
    std::fs::remove_dir_all(folder.path().join("cache")).unwrap();
    folder.pipe(&["resume"]).exits(3).says("s3://data/train.jsonl has changed since the run started");
    moto.put("train.jsonl", rows(2));
    folder.pipe(&["resume"]).exits(6).says("fetching");
}

fn model() {
    let moto = Moto::start();
    let config = r#"{"vocab_size": 256, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}"#;
    for (name, text) in
        [("config.json", config), ("tokenizer.json", "{}"), ("model.safetensors", "weights"), ("README.md", "x")]
    {
        moto.put(&format!("models/t5/{name}"), text);
    }
    let folder = moto.known_to(job::folder("fit 9", ""));
    let pipeline = folder.read("job.yaml").replace("config: {}", "from: s3://data/models/t5");
    folder.write("job.yaml", &pipeline);
    folder.pipe(&["check", "job.yaml"]).exits(0);
    folder.pipe(&RUN).exits(0).says("fetching s3://data/models/t5");
    let names: Vec<Value> = lock(&folder)["model"].as_array().unwrap().clone();
    assert_eq!(names.len(), 2, "{names:?}");
    folder.write("job.yaml", pipeline.replace("models/t5", "models/none"));
    folder.pipe(&["check", "job.yaml"]).exits(3).says("model.from: s3://data/models/none has no config.json");
    folder.write("job.yaml", pipeline.replace("s3://data/models/t5", "\"s3://${X}/t5\""));
    folder.env("X", "data").pipe(&["check", "job.yaml"]).exits(3).says("allowed: s3://bucket/path");
}

/// Different everywhere, so that a part in a wrong place is noticed.
fn large(bytes: usize) -> Vec<u8> {
    let mut text = String::new();
    for number in 0_u64.. {
        text.push_str(&format!("{{\"source\": \"{number}\", \"target\": \"{}\"}}\n", number * 7919));
        if text.len() >= bytes {
            return text.into_bytes();
        }
    }
    unreachable!()
}

fn cut() {
    let moto = Moto::start();
    let rows = large(3_000_000);
    moto.put("train.jsonl", &rows);
    let gate = Gate::before(moto.port);
    let folder = with_keys(reading("s3://data/train.jsonl", "fit 9", ""), &gate.address());
    gate.cut(1_000_000, 2);
    folder.pipe(&RUN).exits(0);
    let requests = gate.requests();
    assert!(requests.iter().any(|request| request.contains(" bytes=1")), "{requests:?}");
    assert!(std::fs::read(&given(&folder)[0]).unwrap() == rows);
}

/// Where a part lies that was not fetched to its end.
fn incomplete(folder: &Folder) -> Vec<std::path::PathBuf> {
    let repositories = std::fs::read_dir(folder.path().join("cache/buckets")).into_iter().flatten().flatten();
    let blobs =
        repositories.flat_map(|entry| std::fs::read_dir(entry.path().join("blobs")).into_iter().flatten().flatten());
    blobs
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "incomplete"))
        .collect()
}

fn killed() {
    let moto = Moto::start();
    let rows = large(30_000_000);
    moto.put("train.jsonl", &rows);
    let gate = Gate::before(moto.port);
    let folder = with_keys(reading("s3://data/train.jsonl", "fit 9", ""), &gate.address());
    gate.cut(600_000, 1000);
    let running = folder.start(&RUN);
    folder.wait_until("a part", || {
        incomplete(&folder).iter().any(|path| path.metadata().is_ok_and(|meta| meta.len() > 500_000))
    });
    running.kill_alive();
    gate.cut(0, 0);
    gate.requests();
    // A damaged part is found by the ETag, and fetched again.
    let part = incomplete(&folder).remove(0);
    let mut bytes = std::fs::read(&part).unwrap();
    folder.pipe(&["check", "job.yaml"]).exits(0);
    bytes[1000] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    folder.pipe(&RUN).exits(0).says("did not match its hash; fetching it again");
    let requests = gate.requests();
    assert!(requests.iter().any(|request| request.contains(" bytes=")), "it continues: {requests:?}");
    assert!(std::fs::read(&given(&folder)[0]).unwrap() == rows);
    assert_eq!(incomplete(&folder), Vec::<std::path::PathBuf>::new());
}

fn corrupt() {
    let moto = Moto::start();
    moto.put("train.jsonl", rows(10));
    let gate = Gate::before(moto.port);
    let folder = with_keys(reading("s3://data/train.jsonl", "fit 9", ""), &gate.address());
    gate.spoil("train.jsonl", true);
    folder.pipe(&RUN).exits(4).says("train.jsonl of s3://data/train.jsonl does not match the hash of the bucket");
    assert!(!folder.has_runs() && incomplete(&folder).is_empty());
    gate.spoil("train.jsonl", false);
    folder.pipe(&RUN).exits(0);
    let path = given(&folder).remove(0);
    let blob = std::fs::canonicalize(&path).unwrap();
    // A blob that is cut is fetched again; the lock of a run finds one that was changed.
    std::fs::write(&blob, "").unwrap();
    std::fs::remove_file(&path).unwrap();
    forget_runs(&folder);
    folder.pipe(&RUN).exits(0).says("fetching");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), rows(10));
}

fn refused() {
    let strict = Moto::strict();
    let folder = strict.known_to(reading("s3://data/train.jsonl", "fit 9", ""));
    let answer = folder.pipe(&RUN).exits(3).says("data.train: s3://data/train.jsonl: S3 does not know the access key");
    answer.says_not(KEY).says_not(SECRET);
    let moto = Moto::start();
    moto.put("train.jsonl", rows(2));
    let folder = moto.known_to(reading("s3://nothing-here/train.jsonl", "fit 9", ""));
    folder.pipe(&RUN).exits(3).says("there is no bucket s3://nothing-here: check its name, and AWS_REGION");
    assert!(!folder.has_runs());
    let gate = Gate::before(moto.port);
    let folder = with_keys(reading("s3://data/train.jsonl", "fit 9", ""), &gate.address());
    for (status, code, want) in [
        (403, "SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"),
        (403, "AccessDenied", "your keys do not allow this: reading needs s3:ListBucket"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is off"),
        (400, "ExpiredToken", "the keys have expired"),
        (301, "PermanentRedirect", "the bucket is in another region: set AWS_REGION"),
    ] {
        // Every kind of request: who may not list a bucket may still read an object of it.
        gate.refuse(Some(("", status, code)));
        folder.pipe(&["check", "job.yaml"]).exits(3).says(want).says_not(SECRET).says_not("AKIA");
    }
    gate.refuse(None);
    folder.pipe(&["check", "job.yaml"]).exits(0);
}

fn unavailable() {
    let moto = Moto::start();
    moto.put("train.jsonl", rows(2));
    let gate = Gate::before(moto.port);
    let folder = with_keys(reading("s3://data/train.jsonl", "fit 9", ""), &gate.address());
    gate.close(true);
    folder.pipe(&RUN).exits(4).says("error: s3://data/train.jsonl: ").says("hint: try again later");
    gate.close(false);
    gate.refuse(Some(("GET", 503, "SlowDown")));
    folder.pipe(&RUN).exits(4).says("it answered 503 SlowDown");
    gate.refuse(None);
    folder.pipe(&RUN).exits(0);
    let offline = folder.env("HF_HUB_OFFLINE", "1");
    std::fs::remove_dir_all(offline.path().join("cache")).unwrap();
    offline.pipe(&RUN).exits(4).says("s3://data/train.jsonl is not in the hub cache").says("`pipe run`");
}

fn thousands() {
    let moto = Moto::start();
    (0..2500).for_each(|number| moto.put(&format!("many/part-{number:05}.jsonl"), rows(1)));
    let folder = moto.known_to(reading("s3://data/many", "fit 9", ""));
    folder.pipe(&RUN).exits(0).says("2500 files");
    assert_eq!(given(&folder).len(), 2500);
    assert_eq!(lock(&folder)["train"].as_array().unwrap().len(), 2500);
}

fn id(folder: &Folder) -> String {
    folder.show()["id"].as_str().unwrap().to_owned()
}

/// Steps of 30 milliseconds; after each is a checkpoint.
fn walking(steps: u32, more: &str) -> Folder {
    job::folder(&format!("walk {steps} 30 64"), &format!("save: {{to: s3://data/runs}}\n{more}"))
}

fn manifest(moto: &Moto, id: &str) -> Option<Value> {
    serde_json::from_slice(&moto.get(&format!("runs/{id}/manifest.json"))?).ok()
}

fn names(moto: &Moto, id: &str) -> Vec<String> {
    let manifest = manifest(moto, id).unwrap_or_default();
    let files = manifest["files"].as_array().cloned().unwrap_or_default();
    files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

fn copied() {
    let moto = Moto::start();
    let folder = moto.known_to(walking(8, ""));
    folder.pipe(&RUN).exits(0).says("copying the run to s3://data/runs/job-");
    let id = id(&folder);
    let found = names(&moto, &id);
    for name in ["run.json", "resolved.yaml", "lock.json", "events.jsonl", "attempts/01/log.txt"] {
        assert!(found.iter().any(|found| found == name), "{name} in {found:?}");
    }
    assert_eq!(manifest(&moto, &id).unwrap()["holder"], Value::Null);
    assert!(moto.get(&format!("runs/{id}/report.html")).is_some());
    let address = format!("s3://data/runs/{id}");
    folder
        .pipe(&["resume", &address])
        .exits(2)
        .says("is here already")
        .says(&format!("`pipe resume {id}` continues it"));
    let events = folder.read_run("events.jsonl");
    forget_runs(&folder);
    folder.pipe(&["resume", &address]).exits(0).prints(&format!("run {id} has finished"));
    assert_eq!(folder.read_run("events.jsonl"), events);
    assert_eq!(folder.show()["status"], "finished");
    // What another machine is to know is not what this one must hide.
    for place in ["runs", "cache"] {
        assert!(!holds(&folder.path().join(place), SECRET) && !holds(&folder.path().join(place), KEY), "{place}");
    }
    for path in moto.list("runs/") {
        let bytes = moto.get(&path).unwrap();
        assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "{path}");
    }
    folder.pipe(&["resume", "s3://data/runs/nothing"]).exits(2).says("there is no run in s3://data/runs/nothing");
    folder.pipe(&["resume", "s3://data"]).exits(2).says("there is no run in s3://data");
}

fn pruned() {
    let moto = Moto::start();
    let folder = moto.known_to(job::folder("long 200 50 64", "save: {to: s3://data/runs}\n"));
    let running = folder.start(&RUN);
    folder.wait_until("the run", || folder.has_runs() && folder.state().is_some());
    let id = id(&folder);
    // The stand-in says when a checkpoint is there, and does not write any: the test does, as a trainer would.
    let checkpoints = folder.run_folder().join("checkpoints");
    let make = |step: u32, size: usize| {
        let staged = checkpoints.join(".new");
        std::fs::create_dir_all(&staged).unwrap();
        std::fs::write(staged.join("model.safetensors"), vec![step as u8; size]).unwrap();
        std::fs::rename(&staged, checkpoints.join(format!("step-{step:08}"))).unwrap();
    };
    make(1, 40 << 20);
    make(2, 10);
    std::fs::create_dir_all(checkpoints.join(".step-3.tmp")).unwrap();
    std::fs::write(checkpoints.join(".step-3.tmp/model.safetensors"), "half").unwrap();
    folder.wait_until("both checkpoints", || {
        let names = names(&moto, &id);
        names.iter().filter(|name| name.starts_with("checkpoints/step-")).count() == 2
    });
    std::fs::remove_dir_all(checkpoints.join("step-00000001")).unwrap();
    make(4, 20);
    running.end().exits(0);
    let own = moto.list(&format!("runs/{id}/checkpoints/"));
    let want = ["step-00000002", "step-00000004"].map(|name| format!("runs/{id}/checkpoints/{name}/model.safetensors"));
    assert_eq!(own, want);
    // Nothing lies there that the manifest does not name.
    let named = manifest(&moto, &id).unwrap().to_string();
    for path in moto.list(&format!("runs/{id}/pieces/")) {
        assert!(named.contains(path.rsplit('/').next().unwrap()), "{path}");
    }
}

fn vanished() {
    let moto = Moto::start();
    let gate = Gate::before(moto.port);
    let folder = with_keys(job::folder("long 40 100 64", "save: {to: s3://data/runs}\n"), &gate.address());
    let running = folder.start(&RUN);
    folder.wait_until("the run", || folder.has_runs() && folder.state().is_some());
    let id = id(&folder);
    folder.wait_until("a copy", || names(&moto, &id).iter().any(|name| name == "run.json"));
    gate.refuse(Some(("PUT", 404, "NoSuchBucket")));
    let answer = running.end().exits(4);
    let answer = answer.says("warning: the run is not copied: ").says("the training continues, and pipe tries again");
    let answer = answer.says("the run is not wholly in s3://data/runs/job-").says("there is no bucket s3://data");
    answer.says("`pipe resume job-");
    assert_eq!(folder.show()["status"], "finished");
    gate.refuse(None);
    folder.pipe(&["resume", &id]).exits(0);
    assert_eq!(manifest(&moto, &id).unwrap()["holder"], Value::Null);
    assert!(names(&moto, &id).iter().any(|name| name == "events.jsonl"));
}

fn not_started() {
    let moto = Moto::start();
    let folder = moto.known_to(job::folder("fit 9", "save: {to: s3://no-such-bucket/runs}\n"));
    folder.pipe(&["check", "job.yaml"]).exits(3).says("save.to: there is no bucket s3://no-such-bucket");
    let gate = Gate::before(moto.port);
    let folder = with_keys(job::folder("fit 9", "save: {to: s3://data/runs}\n"), &gate.address());
    gate.refuse(Some(("PUT", 403, "AccessDenied")));
    folder.pipe(&RUN).exits(3).says("your keys do not allow this").says("save.to s3:PutObject");
    let left = std::fs::read_dir(folder.path().join("runs")).unwrap().count();
    assert_eq!(left, 0, "nothing is left of it");
    assert_eq!(moto.list("runs/"), Vec::<String>::new());
}

fn held() {
    let moto = Moto::start();
    let folder = moto.known_to(job::folder("long 400 50 64", "save: {to: s3://data/runs}\n"));
    let running = folder.start(&RUN);
    folder.wait_until("the run", || folder.has_runs() && folder.state().is_some());
    let id = id(&folder);
    let address = format!("s3://data/runs/{id}");
    let elsewhere = moto.known_to(Folder::new());
    folder.wait_until("a copy", || names(&moto, &id).iter().any(|name| name == "run.json"));
    elsewhere.pipe(&["resume", &address]).exits(1).says("is still running on the host").says("stop it there");
    // A machine that is silent for long counts as gone; one that was not, and comes back, stops.
    let mut other = manifest(&moto, &id).unwrap();
    other["claim"] = "another".into();
    moto.put(&format!("runs/{id}/manifest.json"), other.to_string());
    let answer = running.end().exits(130);
    drop(answer.says("another pipe continues this run"));
    assert_eq!(folder.show()["status"], "stopped");
    folder.pipe(&["resume", &id]).exits(1).says("was continued on another machine");
}

fn damaged() {
    let moto = Moto::start();
    let folder = moto.known_to(walking(4, ""));
    folder.pipe(&RUN).exits(0);
    let id = id(&folder);
    let address = format!("s3://data/runs/{id}");
    forget_runs(&folder);
    let piece = moto.list(&format!("runs/{id}/pieces/")).remove(0);
    let good = moto.get(&piece).unwrap();
    moto.put(&piece, "other");
    folder.pipe(&["resume", &address]).exits(3).says("a record of the run is not what the manifest says");
    assert!(!folder.path().join("runs").join(&id).exists());
    folder.pipe(&["ls"]).exits(0).says_not(&id);
    moto.put(&piece, good);
    folder.pipe(&["resume", &address]).exits(0).prints("has finished");
    forget_runs(&folder);
    moto.put(&format!("runs/{id}/manifest.json"), "{\"version\": 99}");
    folder.pipe(&["resume", &address]).exits(3).says("manifest.json cannot be read");
}

/// A job is not trusted: what its checkpoints link to is a file of the host.
fn links() {
    let moto = Moto::start();
    let folder = moto.known_to(walking(30, ""));
    folder.write("secret.txt", "of the host alone");
    let running = folder.start(&RUN);
    folder.wait_for_log(1, "step 2");
    let checkpoint = folder.run_folder().join("checkpoints/step-00000009");
    std::fs::create_dir_all(&checkpoint).unwrap();
    std::os::unix::fs::symlink(folder.path().join("secret.txt"), checkpoint.join("model.safetensors")).unwrap();
    std::fs::write(checkpoint.join("state.json"), "{}").unwrap();
    std::os::unix::fs::symlink(folder.path(), folder.run_folder().join("checkpoints/step-00000010")).unwrap();
    running.end().exits(0);
    for path in moto.list("runs/") {
        assert!(!String::from_utf8_lossy(&moto.get(&path).unwrap()).contains("of the host alone"), "{path}");
    }
}

fn full() {
    let moto = Moto::start();
    moto.put("train.jsonl", large(3_000_000));
    let folder = moto.known_to(reading("s3://data/train.jsonl", "fit 9", ""));
    let disk = Tmpfs::mount(folder.path().join("cache"), "1m");
    folder.pipe(&RUN).exits(1).says("have to be fetched into the hub cache").says("free some space").says("PIPE_CACHE");
    disk.resize("16m");
    folder.pipe(&RUN).exits(0);
    // The same for a run that comes back.
    let folder = moto.known_to(walking(4, ""));
    folder.pipe(&RUN).exits(0);
    let address = format!("s3://data/runs/{}", id(&folder));
    let elsewhere = moto.known_to(Folder::new());
    let disk = Tmpfs::mount(elsewhere.path().join("runs"), "4k");
    let answer = elsewhere.pipe(&["resume", &address]).exits(1);
    assert!(["free some space", "No space left"].iter().any(|said| answer.to_string().contains(said)), "{answer}");
    disk.resize("16m");
    elsewhere.pipe(&["resume", &address]).exits(0).prints("has finished");
}

fn contained() {
    let moto = Moto::start();
    moto.put("train.jsonl", rows(2));
    let folder = moto.known_to(reading("s3://data/train.jsonl", "walk 60 30 64", "save: {to: s3://data/runs}\n"));
    let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
    folder.wait_for_log(1, "step 2");
    for container in folder.containers() {
        let inspected = std::process::Command::new("docker").args(["inspect", &container]).output().unwrap();
        let text = String::from_utf8_lossy(&inspected.stdout).into_owned();
        assert!(text.contains("\"NetworkMode\": \"none\""), "{text}");
        assert!(!text.contains(SECRET) && !text.contains(KEY) && !text.contains("AWS_"), "{text}");
    }
    let id = id(&folder);
    running.end().exits(0);
    assert_eq!(manifest(&moto, &id).unwrap()["holder"], Value::Null);
    for place in ["runs", "cache"] {
        assert!(!holds(&folder.path().join(place), SECRET), "{place}");
    }
    // Nor does a trainer without a container get them.
    let folder = moto.known_to(job::folder("env AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_REGION", ""));
    folder.pipe(&RUN).exits(0);
    let log = folder.read_run("attempts/01/log.txt");
    assert!(log.contains("AWS_REGION=us-east-1") && !log.contains(SECRET) && !log.contains(KEY), "{log}");
}

/// An object of more than four gigabytes, uploaded in parts: its ETag is no hash of it.
fn more_than_four_gigabytes() {
    const PART: usize = 64 << 20;
    const PARTS: usize = 66;
    let moto = Moto::start();
    let (_, begun) = moto.request("POST", "/data/big.jsonl?uploads", b"");
    let begun = String::from_utf8(begun).unwrap();
    let upload = begun.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let part = rows(PART / ROW.len());
    let (mut etags, etag) = (String::new(), md5_of(part.as_bytes()));
    for number in 1..=PARTS {
        let path = format!("/data/big.jsonl?partNumber={number}&uploadId={upload}");
        assert_eq!(moto.request("PUT", &path, part.as_bytes()).0, 200);
        etags.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag></Part>"));
    }
    let body = format!("<CompleteMultipartUpload>{etags}</CompleteMultipartUpload>");
    assert_eq!(moto.request("POST", &format!("/data/big.jsonl?uploadId={upload}"), body.as_bytes()).0, 200);
    let folder = moto.known_to(reading("s3://data/big.jsonl", "fit 9", ""));
    let running = folder.start(&RUN);
    let has = |bytes: u64| incomplete(&folder).iter().any(|path| path.metadata().is_ok_and(|meta| meta.len() > bytes));
    folder.wait_until("the first gigabyte", || has(1 << 30));
    running.kill_alive();
    folder.pipe(&RUN).exits(0).says("of them here already");
    assert_eq!(std::fs::metadata(&given(&folder)[0]).unwrap().len(), (part.len() * PARTS) as u64);
}

fn settings() {
    let training = "model: {arch: t5, config: {}}\ndata: {train: train.jsonl}\n";
    let folder = Folder::new();
    let check = |text: String| folder.write("a.yaml", text).pipe(&["check", "a.yaml"]).exits(3);
    check(format!("version: 1\nname: a\n{training}save: {{to: runs}}\n"))
        .says("save.to: found \"runs\"; allowed: s3://bucket/path");
    check("version: 1\nname: a\ncommand: [x]\nsave: {to: s3://data}\n".to_owned()).says("save.to: not for a command");
    let step = "model: {arch: t5, config: {}}, data: {train: train.jsonl}, save: {to: s3://data}";
    check(format!("version: 1\nname: a\nsteps: {{one: {{{step}}}}}\n")).says("save.to: not within `steps`");
    let study = format!(
        "version: 1\ntune: a\npipeline: {{version: 1, {step}}}\nspace: {{train.seed: [1, 2]}}\n\
         objective: {{metric: loss, direction: minimize}}\n"
    );
    check(study).says("save.to is not for a study");
    check(format!("version: 1\nname: a\n{}", training.replace("train.jsonl", "\"s3://a/x\"")))
        .says("allowed: s3://bucket/path");
}

fn keyless() {
    let home = Folder::new();
    let folder = with_keys(reading("s3://data/train.jsonl", "fit 9", ""), "http://127.0.0.1:9")
        .env("AWS_ACCESS_KEY_ID", "")
        .env("AWS_SECRET_ACCESS_KEY", "")
        .env("HOME", home.path().display());
    folder.pipe(&["check", "job.yaml"]).exits(3).says("there are no keys for S3: set AWS_ACCESS_KEY_ID");
    let folder = folder.env("AWS_PROFILE", "nobody");
    folder.pipe(&["check", "job.yaml"]).exits(3).says("AWS_PROFILE is \"nobody\"");
}

/// MD5, as an ETag has it.
fn md5_of(bytes: &[u8]) -> String {
    use std::io::Write;
    let mut child = std::process::Command::new("md5sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..32].to_owned()
}
