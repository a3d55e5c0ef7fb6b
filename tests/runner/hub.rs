//! Models and data sets of the hub: fetched, resumed, checked, found again; and what is said where they cannot be had.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::receiver::nobody;
use crate::harness::{Answer, Folder, Needs, Suite, job, suite};
use crate::hub_server::{Hub, What, git_hash, sha256};

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("hub::{name}"), Needs::Nothing, test);
    test("a_model_is_fetched_and_found_again", fetched);
    test("a_model_in_several_files", sharded);
    test("a_model_in_another_format", pickled);
    test("at_a_revision", revision);
    test("from_a_mirror_that_tells_less", terse);
    test("a_break_is_resumed", broken);
    test("a_break_is_resumed_by_the_next_run", broken_for_good);
    test("an_interrupt_keeps_what_came", interrupted);
    test("a_server_without_ranges", no_ranges);
    test("a_wrong_content_is_removed", corrupt);
    test("a_damaged_part_is_fetched_again", damaged);
    test("two_at_once_fetch_once", two_at_once);
    test("config_alone_for_plan_and_check", config_alone);
    test("problems_are_told_before_anything_is_fetched", problems_first);
    test("what_the_hub_refuses", refusals);
    test("a_hub_that_is_busy_or_down", unavailable);
    test("without_a_network", offline);
    test("the_token_stays_with_the_hub", token);
    test("a_run_keeps_its_commit", commit_is_kept);
    test("a_run_is_reproduced_at_its_commit", reproduced);
    test("data_sets", data);
    test("data_sets_that_are_not_there", no_data);
    suite.test("hub::in_a_container", Needs::Docker, contained);
    suite.test("hub::a_cache_that_is_full", Needs::Root, full);
    suite.test("hub::the_hubs_own_tool_finds_what_was_fetched", Needs::Mlflow, tool_finds);
    suite.test("hub::what_the_hubs_own_tool_fetched_is_found", Needs::Mlflow, tool_fetched);
}

const RUN: [&str; 4] = ["run", "job.yaml", "--engine", "process"];
const MODEL: &str = "some-org/tiny";
const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = r#"{"vocab_size": 256, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}"#;

/// Large enough to lie where large files do, and to come in several pieces.
fn weights() -> Vec<u8> {
    (0..1_000_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).take(3_000_000).collect()
}

fn text(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", text("what it is")),
        ("config.json", text(CONFIG)),
        ("tokenizer.json", text("{}")),
        ("tokenizer_config.json", text("{\"a\": 1}")),
        (WEIGHTS, weights()),
        ("pytorch_model.bin", text(&"another format".repeat(100))),
        ("tf_model.h5", text(&"a third".repeat(100))),
    ]
}

/// A folder whose pipeline has `model` as its model, with a hub of its own and an empty cache.
fn folder_with(hub: &Hub, model: &str, job: &str) -> Folder {
    let folder = job::folder(job, "");
    let pipeline = folder.read("job.yaml").replace("config: {}", &format!("from: {model}"));
    folder.write("job.yaml", pipeline);
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let [cache, home, own] = ["hub", "home", "cache"].map(|name| folder.path().join(name));
    folder
        .env("HF_ENDPOINT", hub.address())
        .env("HF_HUB_CACHE", cache.display())
        .env("HF_HOME", home.display())
        .env("PIPE_CACHE", own.display())
        .env("HF_TOKEN", "")
        .env("HF_HUB_OFFLINE", "")
}

fn hub_and_folder(files: &[(&str, Vec<u8>)]) -> (Hub, Folder, String) {
    let hub = Hub::start();
    let commit = hub.push(MODEL, "main", files);
    let folder = folder_with(&hub, MODEL, "fit 9");
    (hub, folder, commit)
}

fn repository(folder: &Folder) -> PathBuf {
    folder.path().join("hub/models--some-org--tiny")
}

fn blob(folder: &Folder, bytes: &[u8]) -> PathBuf {
    repository(folder).join("blobs").join(sha256(bytes))
}

fn incomplete(folder: &Folder) -> PathBuf {
    blob(folder, &weights()).with_extension("incomplete")
}

fn lock(folder: &Folder) -> Value {
    serde_json::from_str(&folder.read_run("lock.json")).unwrap()
}

fn fetched() {
    let (hub, folder, commit) = hub_and_folder(&files());
    folder
        .pipe(&RUN)
        .exits(0)
        .says("fetching some-org/tiny: 3 files, 2.9 MiB")
        .says("fetched some-org/tiny: 2.9 MiB in ");
    assert_eq!(hub.fetched(), ["config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]);
    let repository = repository(&folder);
    assert_eq!(std::fs::read_to_string(repository.join("refs/main")).unwrap(), commit);
    let snapshot = repository.join("snapshots").join(&commit);
    let link = |name: &str| std::fs::read_link(snapshot.join(name)).unwrap();
    assert_eq!(link(WEIGHTS), Path::new("../../blobs").join(sha256(&weights())));
    assert_eq!(link("config.json"), Path::new("../../blobs").join(git_hash(CONFIG.as_bytes())));
    assert_eq!(std::fs::read(snapshot.join(WEIGHTS)).unwrap(), weights());
    let lock = lock(&folder);
    assert_eq!(lock["hub"], serde_json::json!([{ "name": MODEL, "revision": "main", "commit": commit }]));
    assert_eq!(lock["model"].as_array().unwrap().len(), 3, "{lock:#}");
    hub.forget();
    folder.pipe(&RUN).exits(0).says(&format!("hub: some-org/tiny at commit {}", &commit[..12]));
    assert!(hub.requests().is_empty(), "{:?}", hub.requests());
}

fn sharded() {
    let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}"#;
    let mut files = vec![
        ("config.json", text(CONFIG)),
        ("tokenizer.json", text("{}")),
        ("model.safetensors.index.json", text(index)),
        ("one.safetensors", weights()),
        ("two.safetensors", text(&"two".repeat(1000))),
        ("three.safetensors", text("not named")),
    ];
    let (hub, folder, commit) = hub_and_folder(&files);
    folder.pipe(&RUN).exits(0).says("fetching some-org/tiny: 3 files");
    let want = ["config.json", "model.safetensors.index.json", "one.safetensors", "tokenizer.json", "two.safetensors"];
    assert_eq!(hub.fetched(), want);
    assert_eq!(lock(&folder)["model"].as_array().unwrap().len(), 4);
    // A part that is gone is fetched again.
    std::fs::remove_file(repository(&folder).join("snapshots").join(commit).join("two.safetensors")).unwrap();
    hub.forget();
    folder.pipe(&RUN).exits(0);
    assert_eq!(hub.fetched(), Vec::<String>::new(), "its content is still there");

    files.retain(|file| file.0 != "one.safetensors");
    let (_hub, folder, _) = hub_and_folder(&files);
    folder.pipe(&RUN).exits(3).says("names files that the repository does not have");
}

fn pickled() {
    let files: Vec<_> = files().into_iter().filter(|file| file.0 != WEIGHTS).collect();
    let (hub, folder, _) = hub_and_folder(&files);
    folder.pipe(&RUN).exits(0);
    assert_eq!(hub.fetched(), ["config.json", "pytorch_model.bin", "tokenizer.json", "tokenizer_config.json"]);
}

fn revision() {
    let hub = Hub::start();
    let first = hub.push(MODEL, "main", &files());
    let tagged = hub.push(MODEL, "v1.0", &[files(), vec![("added_tokens.json", text("{}"))]].concat());
    let folder = folder_with(&hub, &format!("{MODEL}@v1.0"), "fit 9");
    folder.pipe(&RUN).exits(0);
    assert_eq!(lock(&folder)["hub"][0]["commit"], tagged.as_str());
    assert_eq!(std::fs::read_to_string(repository(&folder).join("refs/v1.0")).unwrap(), tagged);
    let folder = folder_with(&hub, &format!("{MODEL}@{first}"), "fit 9");
    folder.pipe(&RUN).exits(0);
    assert_eq!(lock(&folder)["hub"][0]["commit"], first.as_str());
    assert!(!repository(&folder).join("refs").exists());
}

fn terse() {
    let (hub, folder, _) = hub_and_folder(&files());
    hub.be_terse();
    folder.pipe(&RUN).exits(0);
    assert_eq!(std::fs::read(blob(&folder, &weights())).unwrap(), weights());
    assert!(hub.requests().iter().any(|request| request.line.starts_with("HEAD ")));
}

/// The ranges that the contents were asked for.
fn ranges(hub: &Hub) -> Vec<String> {
    let contents = hub.requests().into_iter().filter(|request| request.is_content);
    contents.map(|request| request.header("range").unwrap_or_default().to_owned()).collect()
}

fn broken() {
    let (hub, folder, _) = hub_and_folder(&files());
    let at = &sha256(&weights());
    hub.fault(at, 1, What::CutAfter(1_000_000)).fault(at, 1, What::CutAfter(500_000));
    folder.pipe(&RUN).exits(0).says("model.safetensors: ").says("; trying again in 0.5 s");
    assert_eq!(ranges(&hub), ["", "bytes=1000000-", "bytes=1500000-"]);
    assert!(!incomplete(&folder).exists());
}

fn broken_for_good() {
    let (hub, folder, commit) = hub_and_folder(&files());
    let at = &sha256(&weights());
    hub.fault(at, 1, What::CutAfter(1_000_000));
    hub.fault(at, 99, What::Answers("503 Service Unavailable\r\nRetry-After: 0"));
    folder.pipe(&RUN).exits(4).says("the Hugging Face hub (127.0.0.1) gives no usable answer: it answered 503");
    assert!(!folder.has_runs());
    assert_eq!(std::fs::metadata(incomplete(&folder)).unwrap().len(), 1_000_000);
    assert!(!repository(&folder).join("snapshots").join(&commit).join(WEIGHTS).exists());
    hub.mend();
    hub.forget();
    folder.pipe(&RUN).exits(0).says("976.6 KiB of them here already");
    assert_eq!(ranges(&hub), ["bytes=1000000-"]);
    assert_eq!(std::fs::read(blob(&folder, &weights())).unwrap(), weights());
}

fn interrupted() {
    let (hub, folder, _) = hub_and_folder(&files());
    hub.fault(&sha256(&weights()), 1, What::SilentAfter(1_000_000));
    let running = folder.start(&RUN);
    let length = || std::fs::metadata(incomplete(&folder)).map_or(0, |meta| meta.len());
    folder.wait_until("the first part", || length() == 1_000_000);
    running.signal("INT");
    running.end().exits(130);
    assert!(!folder.has_runs());
    assert_eq!(length(), 1_000_000);
    hub.forget();
    folder.pipe(&RUN).exits(0);
    assert_eq!(ranges(&hub), ["bytes=1000000-"]);
}

fn no_ranges() {
    let (hub, folder, _) = hub_and_folder(&files());
    let at = &sha256(&weights());
    hub.fault(at, 1, What::CutAfter(1_000_000)).fault(at, 1, What::NoRange);
    folder.pipe(&RUN).exits(0);
    assert_eq!(ranges(&hub), ["", "bytes=1000000-"]);
    assert_eq!(std::fs::read(blob(&folder, &weights())).unwrap(), weights());
}

fn corrupt() {
    let (hub, folder, commit) = hub_and_folder(&files());
    hub.fault(&sha256(&weights()), 1, What::Corrupt);
    folder
        .pipe(&RUN)
        .exits(4)
        .says("model.safetensors of some-org/tiny is not what the hub says it is: its hash should be ")
        .says("it was removed");
    let blob = blob(&folder, &weights());
    let snapshot = repository(&folder).join("snapshots").join(commit);
    assert!(!blob.exists() && !incomplete(&folder).exists() && !snapshot.join(WEIGHTS).exists());
    folder.pipe(&RUN).exits(0);
    // A small file is checked as git would.
    let (hub, folder, _) = hub_and_folder(&files());
    hub.fault("GET /some-org/tiny/resolve/", 1, What::Corrupt);
    folder.pipe(&["plan", "job.yaml"]).exits(4).says("config.json of some-org/tiny is not what the hub says it is");
}

fn damaged() {
    let (hub, folder, _) = hub_and_folder(&files());
    let part = incomplete(&folder);
    std::fs::create_dir_all(part.parent().unwrap()).unwrap();
    std::fs::write(&part, vec![7; 2_000_000]).unwrap();
    folder.pipe(&RUN).exits(0).says("did not match its hash; fetching it again from its beginning");
    assert_eq!(ranges(&hub), ["bytes=2000000-", ""]);
    assert_eq!(std::fs::read(blob(&folder, &weights())).unwrap(), weights());
}

fn two_at_once() {
    let (hub, folder, _) = hub_and_folder(&files());
    let first = folder.start(&RUN);
    let second = folder.start(&RUN);
    first.end().exits(0);
    second.end().exits(0);
    assert_eq!(ranges(&hub).len(), 1);
}

fn config_alone() {
    let (hub, folder, _) = hub_and_folder(&files());
    folder.pipe(&["plan", "job.yaml"]).exits(0).prints("parameters");
    assert_eq!(hub.fetched(), ["config.json"]);
    folder.pipe(&["check", "job.yaml"]).exits(0).prints("job.yaml is valid");
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--dry-run"]).exits(0).prints("tokenizer.json");
    let init =
        ["init", "--arch", "t5", "--data", "train.jsonl", "--model", MODEL, "--gpu-memory", "24g", "--yes", "--stdout"];
    folder.pipe(&init).exits(0).prints("from: some-org/tiny");
    assert_eq!(hub.fetched(), ["config.json"]);
    // What the hub lacks is known without fetching.
    let (hub, folder, _) = hub_and_folder(&files()[1..3]);
    folder
        .pipe(&["check", "job.yaml"])
        .exits(3)
        .says("model.from: some-org/tiny has no weights in a format that is known");
    assert_eq!(hub.fetched(), ["config.json"]);
}

fn problems_first() {
    let (hub, folder, _) = hub_and_folder(&files());
    folder.write("job.yaml", folder.read("job.yaml").replace("train.jsonl", "gone.jsonl"));
    folder.pipe(&RUN).exits(3).says("data.train: cannot read gone.jsonl");
    assert_eq!(hub.fetched(), ["config.json"]);
    // A model without a tokenizer of its own.
    let (hub, folder, _) = hub_and_folder(&[&files()[1..2], &files()[4..5]].concat());
    folder.pipe(&RUN).exits(3).says("data.tokenizer: ");
    assert_eq!(hub.fetched(), ["config.json"]);
}

fn refusals() {
    let hub = Hub::start();
    hub.push(MODEL, "main", &files());
    hub.push("some-org/gated", "main", &files());
    hub.gate("some-org/gated", "good");
    hub.push("some-org/bare", "main", &files()[4..5]);
    let page = |name: &str| format!("{}/{name}", hub.address());
    let cases = [
        (
            "some-org/nope",
            "",
            format!(
                "the hub has no model some-org/nope (looked at {}), or it is private: set HF_TOKEN",
                page("some-org/nope")
            ),
        ),
        ("some-org/nope", "bad", "or it is private and your token (HF_TOKEN) may not read it".to_owned()),
        ("some-org/tiny@v9", "", "the model some-org/tiny has no revision \"v9\"".to_owned()),
        ("some-org/gated", "", format!("is gated: accept its terms at {}, and set HF_TOKEN", page("some-org/gated"))),
        (
            "some-org/gated",
            "bad",
            format!(
                "the account of your token (HF_TOKEN) has no access: accept its terms at {}",
                page("some-org/gated")
            ),
        ),
        ("some-org/bare", "", "some-org/bare has no config.json".to_owned()),
        ("nowhere", "", "no such folder: nowhere; give a folder in Hugging Face layout, or a hub id".to_owned()),
        ("\"${HOME}/x\"", "", "a hub id has no variables in it".to_owned()),
    ];
    for (model, token, want) in cases {
        let folder = folder_with(&hub, model, "fit 9").env("HF_TOKEN", token);
        for command in [&RUN[..], &["check", "job.yaml"]] {
            folder.pipe(command).exits(3).says("job.yaml has 1 problem").says("model.from: ").says(&want);
        }
        folder.pipe(&["plan", "job.yaml"]).exits(3).says(&want);
        assert!(!folder.has_runs());
    }
    let folder = folder_with(&hub, "some-org/gated", "fit 9").env("HF_TOKEN", "good");
    folder.pipe(&RUN).exits(0);
    hub.push("datasets/o/gated", "main", &[("a.jsonl", text(ROW))]);
    hub.gate("datasets/o/gated", "good");
    let folder = data_folder(&hub, "hf://datasets/o/gated/a.jsonl", "train.jsonl", "fit 9");
    folder.pipe(&RUN).exits(3).says("  data: the data set o/gated is gated").says_not("model.from");
}

fn unavailable() {
    let (hub, folder, _) = hub_and_folder(&files());
    hub.fault("GET /api/", 1, What::Answers("429 Too Many Requests\r\nRetry-After: 0"));
    hub.fault("GET /some-org", 2, What::Answers("500 Internal Server Error\r\nRetry-After: 0"));
    folder.pipe(&RUN).exits(0).says("config.json: it answered 500 Internal Server Error; trying again in 0.0 s");
    for status in ["429 Too Many Requests\r\nRetry-After: 0", "502 Bad Gateway\r\nRetry-After: 0"] {
        let (hub, folder, _) = hub_and_folder(&files());
        hub.fault("GET /api/", 99, What::Answers(status));
        let said = format!("it answered {}", status.lines().next().unwrap());
        folder.pipe(&RUN).exits(4).says(&said).says("hint: try again later");
        assert_eq!(hub.requests().len(), 4);
        assert!(!folder.has_runs());
    }
    let folder = folder_with(&hub, MODEL, "fit 9").env("HF_ENDPOINT", nobody());
    folder.pipe(&["check", "job.yaml"]).exits(4).says("the Hugging Face hub (127.0.0.1) gives no usable answer");
}

fn offline() {
    let (hub, folder, _) = hub_and_folder(&files());
    folder.write(".env", "HF_HUB_OFFLINE=1\n");
    // An empty variable of the environment counts as set; the folder has one.
    let folder = folder.env("HF_HUB_OFFLINE", "yes");
    for command in [&RUN[..], &["check", "job.yaml"], &["plan", "job.yaml"]] {
        let cache = folder.path().join("hub").display().to_string();
        folder
            .pipe(command)
            .exits(4)
            .says(&format!(
                "some-org/tiny is not in the hub cache {cache}, or not all of it, and HF_HUB_OFFLINE forbids"
            ))
            .says("hf download some-org/tiny");
    }
    assert!(hub.requests().is_empty());
    let folder = folder.env("HF_HUB_OFFLINE", "0");
    folder.pipe(&RUN).exits(0);
    hub.forget();
    let folder = folder.env("HF_HUB_OFFLINE", "1");
    folder.pipe(&RUN).exits(0);
    assert!(hub.requests().is_empty());
}

fn token() {
    let secret = "hf_secretsecretsecret";
    let (hub, folder, _) = hub_and_folder(&files());
    let folder = folder.env("HF_TOKEN", secret).env("RUST_LOG", "trace");
    let answer = folder.pipe(&RUN).exits(0);
    assert!(!answer.stderr.contains(secret) && !answer.stdout.contains(secret), "{answer}");
    for request in hub.requests() {
        let sent = request.header("authorization");
        let want = format!("bearer {secret}");
        assert_eq!(sent, Some(want.as_str()).filter(|_| !request.is_content), "{request:?}");
    }
    assert!(hub.requests().iter().any(|request| request.is_content));
    let mut search = Command::new("grep");
    search.args(["--recursive", "--files-with-matches", secret, "."]).current_dir(folder.path());
    let output = search.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    // From a file, where the hub's own tools keep it, and from .env.
    for (name, content) in [("home/token", format!("{secret}\n")), (".env", format!("HF_TOKEN={secret}\n"))] {
        let hub = Hub::start();
        hub.push(MODEL, "main", &files());
        let folder = job::folder("fit 9", "");
        let pipeline = folder.read("job.yaml").replace("config: {}", &format!("from: {MODEL}"));
        folder.write("job.yaml", pipeline).write(name, content);
        let (home, own) = (folder.path().join("home"), folder.path().join("cache"));
        let folder =
            folder.env("HF_ENDPOINT", hub.address()).env("HF_HOME", home.display()).env("PIPE_CACHE", own.display());
        let mut command = folder.command(&["plan", "job.yaml"]);
        let output = command.env_remove("HF_TOKEN").env_remove("HF_HUB_CACHE").output().unwrap();
        Answer::new("pipe plan".to_owned(), output).exits(0);
        assert!(hub.requests().iter().all(|request| request.header("authorization").is_some()), "{name}");
        assert!(home.join("hub/models--some-org--tiny/refs/main").is_file());
    }
}

/// Another commit, and a cache that knows it alone.
fn move_on(hub: &Hub, folder: &Folder) -> String {
    let other = [&files()[..1], &[("config.json", text("{\"a\": 2}"))], &files()[2..]].concat();
    let second = hub.push(MODEL, "main", &other);
    std::fs::remove_dir_all(folder.path().join("hub")).unwrap();
    folder.write("hub/models--some-org--tiny/refs/main", &second);
    second
}

fn commit_is_kept() {
    let hub = Hub::start();
    let first = hub.push(MODEL, "main", &files());
    let folder = folder_with(&hub, MODEL, "walk 200 20 99");
    let running = folder.start(&RUN);
    folder.wait_for_log(1, "step 1\n");
    running.signal("INT");
    running.end().exits(130);
    let second = move_on(&hub, &folder);
    hub.forget();
    let resuming = folder.start(&["resume"]);
    folder.wait_for_log(2, "step ");
    resuming.signal("INT");
    resuming.end().exits(130);
    assert_eq!(lock(&folder)["hub"][0]["commit"], first.as_str());
    assert!(hub.requests().iter().all(|request| !request.line.contains(&second)), "{:?}", hub.requests());
    assert!(repository(&folder).join("snapshots").join(&first).join(WEIGHTS).is_file());
    assert_eq!(std::fs::read_to_string(repository(&folder).join("refs/main")).unwrap(), second);
}

fn reproduced() {
    let (hub, folder, first) = hub_and_folder(&files());
    folder.pipe(&RUN).exits(0);
    let second = move_on(&hub, &folder);
    let run = folder.run_folder();
    let id = run.file_name().unwrap().to_str().unwrap();
    folder.pipe(&["reproduce", id]).exits(0).prints("reproduces");
    for run in std::fs::read_dir(folder.path().join("runs")).unwrap() {
        let lock: Value =
            serde_json::from_slice(&std::fs::read(run.unwrap().path().join("lock.json")).unwrap()).unwrap();
        assert_eq!(lock["hub"][0]["commit"], first.as_str());
    }
    // A new run has what main names now, and the difference is told.
    folder.pipe(&RUN).exits(0);
    folder.pipe(&["diff", id, "latest"]).exits(0).prints(MODEL).prints(&second[..12]);
}

const ROW: &str = "{\"source\": \"a\", \"target\": \"b\"}\n";

fn data_hub() -> (Hub, String) {
    let hub = Hub::start();
    let rows = |count: usize| text(&ROW.repeat(count));
    let files = [
        ("README.md", text("rows")),
        ("data/train-00001.jsonl", rows(20)),
        ("data/train-00000.jsonl", rows(2)),
        ("data/notes.md", text("rows")),
        ("data/deep/x.jsonl", rows(4)),
        ("eval set.jsonl", rows(1)),
    ];
    let commit = hub.push("datasets/o/rows", "main", &files);
    hub.push("datasets/o/rows", "v2", &[("train.jsonl", rows(30))]);
    (hub, commit)
}

fn data_folder(hub: &Hub, train: &str, eval: &str, job: &str) -> Folder {
    let folder = folder_with(hub, "unused", job);
    let pipeline = folder.read("job.yaml").replace("from: unused", "config: {}");
    let data = format!("train: {train}, eval: {eval}, tokenizer: tokenizer.json");
    folder.write("job.yaml", pipeline.replace("train: train.jsonl", &data)).write("tokenizer.json", "{}");
    folder
}

/// What the first attempt was given as its data, by the last parts of the paths.
fn given(folder: &Folder, part: &str) -> Vec<String> {
    let spec: Value = serde_json::from_str(&folder.read_run("attempts/01/spec.json")).unwrap();
    let paths = match &spec["data"][part] {
        Value::Array(many) => many.clone(),
        one => vec![one.clone()],
    };
    let last = |path: &Value| path.as_str().unwrap().split("/snapshots/").last().unwrap().to_owned();
    paths.iter().map(last).collect()
}

fn data() {
    let (hub, commit) = data_hub();
    let eval = "\"hf://datasets/o/rows/eval set.jsonl\"";
    let cases = [
        ("hf://datasets/o/rows/data/train-*.jsonl", vec!["data/train-00000.jsonl", "data/train-00001.jsonl"]),
        ("hf://datasets/o/rows/data", vec!["data/train-00000.jsonl", "data/train-00001.jsonl"]),
        ("hf://datasets/o/rows/data/deep/x.jsonl", vec!["data/deep/x.jsonl"]),
        (
            "[hf://datasets/o/rows/data/deep/, hf://datasets/o/rows/data/train-00001.jsonl]",
            vec!["data/deep/x.jsonl", "data/train-00001.jsonl"],
        ),
    ];
    for (train, want) in cases {
        let folder = data_folder(&hub, train, eval, "fit 9");
        hub.forget();
        folder.pipe(&["check", "job.yaml"]).exits(0);
        assert_eq!(hub.fetched(), Vec::<String>::new(), "{train}");
        folder.pipe(&RUN).exits(0);
        let want: Vec<String> = want.iter().map(|name| format!("{commit}/{name}")).collect();
        assert_eq!(given(&folder, "train"), want, "{train}");
        assert_eq!(given(&folder, "eval"), [format!("{commit}/eval set.jsonl")]);
        let lock = lock(&folder);
        let repository = serde_json::json!([{ "name": "datasets/o/rows", "revision": "main", "commit": commit }]);
        assert_eq!(lock["hub"], repository);
        assert!(folder.path().join("hub/datasets--o--rows/snapshots").join(&commit).join("eval set.jsonl").is_file());
        // All of it is in the cache now, the list of a folder too.
        hub.forget();
        folder.env("HF_HUB_OFFLINE", "1").pipe(&RUN).exits(0);
        assert!(hub.requests().is_empty(), "{:?}", hub.requests());
    }
    let folder = data_folder(&hub, "hf://datasets/o/rows@v2/train.jsonl", "hf://datasets/o/rows@v2", "fit 9");
    folder.pipe(&RUN).exits(0);
    assert_eq!(given(&folder, "train"), given(&folder, "eval"));
}

fn no_data() {
    let (hub, _) = data_hub();
    let cases = [
        (
            "hf://datasets/o/rows/gone.jsonl",
            "the data set o/rows has no file, and no folder with data, that is \"gone.jsonl\"",
        ),
        ("hf://datasets/o/rows/*.csv", "that is \"*.csv\""),
        ("hf://datasets/o/rows/README.md", "README.md: allowed for text to text: ."),
        ("hf://datasets/o/none/a.jsonl", "the hub has no data set o/none"),
        ("hf://o/rows/a.jsonl", "found hf://o/rows/a.jsonl; allowed: hf://datasets/owner/name/path"),
        ("\"hf://datasets/o/${HOME}/a.jsonl\"", "without variables"),
    ];
    for (train, want) in cases {
        let folder = data_folder(&hub, train, "hf://datasets/o/rows/data", "fit 9");
        folder.pipe(&RUN).exits(3).says("data.train: ").says(want);
        assert!(!folder.has_runs());
    }
    let folder = data_folder(&hub, "hf://datasets/o/rows/data", "hf://datasets/o/rows/data", "fit 9");
    let pipeline = folder.read("job.yaml").replace("arch: t5", "arch: clip").replace("tokenizer: tokenizer.json", "");
    folder.write("job.yaml", pipeline);
    folder.pipe(&RUN).exits(3).says("pictures that a file names are not fetched from the hub");
}

/// Links of the cache can be followed in a container.
fn contained() {
    let (hub, commit) = data_hub();
    hub.push(MODEL, "main", &files());
    let data = "hf://datasets/o/rows/data/train-*.jsonl";
    let folder = folder_with(&hub, MODEL, "read");
    let pipeline = folder.read("job.yaml").replace("train: train.jsonl", &format!("train: {data}"));
    folder.write("job.yaml", pipeline);
    folder.pipe(&["run", "job.yaml", "--engine", "docker"]).exits(0);
    let log = folder.read_run("attempts/01/log.txt");
    let size = |count: usize| count * ROW.len();
    for (name, bytes) in
        [("data/train-00000.jsonl", size(2)), ("data/train-00001.jsonl", size(20)), (WEIGHTS, 3_000_000)]
    {
        assert!(log.lines().any(|line| line.ends_with(&format!("{name}: {bytes} bytes"))), "{name}\n{log}");
    }
    assert!(log.contains(&commit), "{log}");
    // A content that the hub's own tools share among repositories lies outside of this one.
    let (blob, shared) = (blob(&folder, &weights()), folder.path().join("hub/blobs/aa/shared"));
    std::fs::create_dir_all(shared.parent().unwrap()).unwrap();
    std::fs::rename(&blob, &shared).unwrap();
    std::os::unix::fs::symlink("../../blobs/aa/shared", &blob).unwrap();
    std::fs::remove_dir_all(folder.path().join("runs")).unwrap();
    folder.pipe(&["run", "job.yaml", "--engine", "docker"]).exits(0);
    assert!(folder.read_run("attempts/01/log.txt").contains("model.safetensors: 3000000 bytes"));
}

/// A cache of so many MiB, as long as `test` runs.
fn in_small_cache(folder: &Folder, size: &str, test: impl FnOnce()) {
    let cache = folder.path().join("hub");
    std::fs::create_dir_all(&cache).unwrap();
    let run = |args: &[&str]| assert!(Command::new(args[0]).args(&args[1..]).arg(&cache).status().unwrap().success());
    run(&["mount", "-t", "tmpfs", "-o", size, "tmpfs"]);
    let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
    run(&["umount"]);
    tested.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn full() {
    let (hub, folder, _) = hub_and_folder(&files());
    let folder = &folder;
    in_small_cache(folder, "size=1m", || {
        let said = format!("2.9 MiB are to be fetched into the hub cache {}/hub, and ", folder.path().display());
        folder.pipe(&RUN).exits(1).says(&said).says("HF_HUB_CACHE");
        assert!(!incomplete(folder).exists() && !folder.has_runs());
    });
    // Others write to the same disk in the meantime.
    let at = &sha256(&weights());
    hub.fault(at, 1, What::CutAfter(1_000_000)).fault(at, 1, What::Answers("503 Slow Down\r\nRetry-After: 2"));
    in_small_cache(folder, "size=4m", || {
        let running = folder.start(&RUN);
        let length = || std::fs::metadata(incomplete(folder)).map_or(0, |meta| meta.len());
        folder.wait_until("the first part", || length() == 1_000_000);
        let mut filler = std::fs::File::create(folder.path().join("hub/filler")).unwrap();
        while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
        drop(filler);
        running.end().exits(1).says("are to be fetched into the hub cache ").says("free some space");
        assert!(length() >= 1_000_000 && !folder.has_runs());
        std::fs::remove_file(folder.path().join("hub/filler")).unwrap();
        folder.pipe(&RUN).exits(0);
    });
    let folder = hub_and_folder(&files()).1;
    // Nor can a folder below a file be made by anybody.
    let place = folder.path().join("train.jsonl/hub");
    let folder = folder.env("HF_HUB_CACHE", place.display());
    folder.pipe(&RUN).exits(1).says("of the hub cache: ").says("choose another folder with HF_HUB_CACHE");
}

fn python(folder: &Folder, hub: &Hub, script: &str) -> Answer {
    let output = Command::new("python3")
        .args(["-c", script])
        .env("PYTHONPATH", suite::mlflow())
        .env("HF_ENDPOINT", hub.address())
        .env("HF_HUB_CACHE", folder.path().join("hub"))
        .env("HF_HOME", folder.path().join("home"))
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env_remove("HF_TOKEN")
        .env_remove("HF_HUB_OFFLINE")
        .output()
        .unwrap();
    Answer::new("python3".to_owned(), output)
}

fn tool_finds() {
    let (hub, folder, commit) = hub_and_folder(&files());
    folder.pipe(&RUN).exits(0);
    hub.forget();
    let script = "from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache, scan_cache_dir\n\
        print(hf_hub_download('some-org/tiny', 'model.safetensors', local_files_only=True))\n\
        print(snapshot_download('some-org/tiny', local_files_only=True))\n\
        print(try_to_load_from_cache('some-org/tiny', 'tokenizer.json'))\n\
        scan = scan_cache_dir()\n\
        assert not scan.warnings, scan.warnings\n\
        print([(repo.repo_id, len(repo.revisions), repo.nb_files) for repo in scan.repos])\n\
        print(hf_hub_download('some-org/tiny', 'model.safetensors'))\n";
    let snapshot = repository(&folder).join("snapshots").join(commit).display().to_string();
    python(&folder, &hub, script).exits(0).prints(&format!(
        "{snapshot}/model.safetensors\n{snapshot}\n{snapshot}/tokenizer.json\n[('some-org/tiny', 1, 4)]\n"
    ));
    assert!(hub.requests().iter().all(|request| !request.is_content), "{:?}", hub.requests());
}

fn tool_fetched() {
    let (hub, commit) = data_hub();
    let first = hub.push(MODEL, "main", &files());
    let folder = folder_with(&hub, MODEL, "fit 9");
    let pipeline =
        folder.read("job.yaml").replace("train: train.jsonl", "train: hf://datasets/o/rows/data/deep/x.jsonl");
    folder.write("job.yaml", pipeline);
    let script = "from huggingface_hub import hf_hub_download, snapshot_download\n\
        print(snapshot_download('some-org/tiny', ignore_patterns='tf_*'))\n\
        print(hf_hub_download('o/rows', 'data/deep/x.jsonl', repo_type='dataset'))\n";
    python(&folder, &hub, script).exits(0).prints(&first);
    hub.forget();
    folder.pipe(&RUN).exits(0);
    assert!(hub.requests().is_empty(), "{:?}", hub.requests());
    assert_eq!(given(&folder, "train"), [format!("{commit}/data/deep/x.jsonl")]);
    assert_eq!(lock(&folder)["hub"].as_array().unwrap().len(), 2);
}
