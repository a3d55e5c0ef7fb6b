//! The inputs of a run, and what differs between two: `lock.json`, `pipe diff`, `pipe reproduce`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Answer, Folder, Needs, Suite};
use crate::stand_ins::job;
use crate::walk::{expect_undisturbed, walk};

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("reproducing::{name}"), Needs::Nothing, test);
    test("a_lock_holds_everything", everything);
    test("a_lock_holds_the_card", card);
    test("a_run_in_the_background_has_the_same_lock", background);
    test("a_lock_has_no_values_of_variables", no_values);
    test("a_run_is_reproduced", reproduced);
    test("changed_inputs_are_named_and_refused", refused);
    test("inputs_that_change_between_attempts_are_refused", changed_between_attempts);
    test("reproduced_in_spite_of_changes", anyway);
    test("a_different_curve_is_reported", bent);
    test("equal_bits_where_promised", bits);
    test("through_the_same_retries", retries);
    test("with_settings_changed_by_a_resume", resumed);
    test("from_another_folder", elsewhere);
    test("a_lock_of_an_earlier_pipe", earlier);
    test("nothing_to_compare_with", no_steps);
    test("a_failure_is_reproduced_by_a_failure", failure);
    test("two_runs_compared", compared);
    test("a_run_compared_with_itself", itself);
    test("a_damaged_run_is_compared_as_far_as_it_goes", damaged);
    suite.test("reproducing::in_a_container", Needs::Docker, contained);
}

/// A pipeline that names one of everything, with a trainer of its own and losses bent by the variable BEND.
fn whole(more: &str) -> Folder {
    let folder = job::folder("\"bend ${BEND}\"", more);
    let text = folder.read("job.yaml").replace("config: {}", "from: model");
    let text = text.replace("train: train.jsonl", "train: [train.jsonl, more.jsonl], eval: eval.jsonl");
    folder
        .write("job.yaml", text.replace("eval: eval.jsonl", "eval: eval.jsonl, tokenizer: tokenizer.json"))
        .write("more.jsonl", "{}\n")
        .write("eval.jsonl", "{}\n{}\n")
        .write("model/config.json", "{}")
        .write("model/model.safetensors", "weights")
        .write(".env", "BEND=0\n");
    let trainer = folder.path().join("trainer");
    std::fs::copy(job::program(), &trainer).unwrap();
    folder.env("PIPE_TRAINER", trainer.display())
}

const RUN: [&str; 4] = ["run", "job.yaml", "--engine", "process"];

/// Runs it. Returns its id.
fn train(folder: &Folder) -> String {
    folder.pipe(&RUN).exits(0);
    folder.show()["id"].as_str().unwrap().to_owned()
}

fn lock(folder: &Folder, id: &str) -> Value {
    serde_json::from_str(&folder.read(&format!("runs/{id}/lock.json"))).unwrap()
}

fn runs(folder: &Folder) -> usize {
    std::fs::read_dir(folder.path().join("runs")).unwrap().count()
}

/// `pipe` with a variable set.
fn with(folder: &Folder, name: &str, value: &str, args: &[&str]) -> Answer {
    let output = folder.command(args).env(name, value).output().unwrap();
    Answer::new(format!("{name}={value} pipe {}", args.join(" ")), output)
}

fn git(folder: &Path, args: &[&str]) -> bool {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b"];
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(identity).args(args);
    command.output().is_ok_and(|output| output.status.success())
}

fn everything() {
    let folder = whole("train: {seed: 7}\n");
    let has_git = git(folder.path(), &["init", "--quiet"]);
    if has_git {
        assert!(git(folder.path(), &["add", "job.yaml"]) && git(folder.path(), &["commit", "-qm", "a"]));
    }
    let id = train(&folder);
    let found = lock(&folder, &id);
    let hash = |name: &str| blake3::hash(&std::fs::read(folder.path().join(name)).unwrap()).to_hex().to_string();
    let file = |name: &str| {
        let path = folder.path().join(name);
        json!({ "name": path, "hash": hash(name), "size": path.metadata().unwrap().len() })
    };
    assert_eq!(found["train"], json!([file("train.jsonl"), file("more.jsonl")]));
    assert_eq!(found["eval"], json!([file("eval.jsonl")]));
    assert_eq!(found["tokenizer"], file("tokenizer.json"));
    assert_eq!(found["model"], json!([file("model/config.json"), file("model/model.safetensors")]));
    assert_eq!(found["pipeline"], hash("job.yaml"));
    // All but what it is called.
    let settings = folder.read(&format!("runs/{id}/resolved.yaml")).replace("name: job\n", "");
    assert_eq!(found["resolved"], blake3::hash(settings.as_bytes()).to_hex().to_string());
    assert_eq!((&found["on"]["engine"], &found["on"]["trainer"]), (&json!("process"), &json!(hash("trainer"))));
    assert_eq!((&found["seed"], &found["device"], &found["card"]), (&json!(7), &json!("cpu"), &Value::Null));
    assert_eq!(found["libtorch"], "none");
    assert_eq!((&found["pipe"], &found["variables"]), (&json!(env!("CARGO_PKG_VERSION")), &json!(["BEND"])));
    assert!(found["cpu"]["count"].as_u64().unwrap() > 0 && found["cpu"]["model"].is_string(), "{found:#}");
    assert_eq!(found["commit"].is_object(), has_git, "{found:#}");
    if has_git {
        assert_eq!(found["commit"]["dirty"], false, "{found:#}");
        folder.write("job.yaml", folder.read("job.yaml") + "# changed\n");
        assert_eq!(lock(&folder, &train(&folder))["commit"]["dirty"], true);
    }
}

fn card() {
    let folder = job::on_card("card free", "", "16384 16384 121\n");
    folder.pipe(&[&RUN[..], &["--set", "container.gpus=1"]].concat()).exits(0);
    let found = lock(&folder, folder.show()["id"].as_str().unwrap());
    assert_eq!(found["card"], json!({ "name": "Test Card", "driver": "1.2.3", "capability": "12.1" }), "{found:#}");
    assert_eq!(found["device"], "Test Card");
}

fn background() {
    let folder = whole("");
    folder.pipe(&[&RUN[..], &["--detach"]].concat()).exits(0);
    folder.wait_until("its end", || folder.show()["status"] == "finished");
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    assert_eq!(lock(&folder, &id), lock(&folder, &train(&folder)));
}

fn no_values() {
    let folder = whole("");
    let text = folder.read("job.yaml").replace("train: [train.jsonl", "train: [\"${PLACE}/train.jsonl\"");
    folder.write("job.yaml", text).write("hidden-place/train.jsonl", "{}\n");
    folder.write(".env", "BEND=0\nPLACE=hidden-place\n");
    let id = train(&folder);
    let text = folder.read(&format!("runs/{id}/lock.json"));
    assert!(text.contains("${PLACE}/train.jsonl") && !text.contains("hidden-place"), "{text}");
    // The file behind the variable is known by its content.
    folder.write("hidden-place/train.jsonl", "[]\n");
    folder.pipe(&["reproduce", &id]).exits(3).says("data.train: was").says("BEND, PLACE");
}

fn reproduced() {
    let folder = whole("");
    let id = train(&folder);
    let answer = folder.pipe(&["reproduce", &id]).exits(0).prints(&format!("reproduces {id}: the losses of 3 steps"));
    let answer = answer.prints("the same bit for bit").prints("and so is the model: 1 file");
    answer.says("variables have their current values, because a lock does not store them: BEND");
    assert_eq!((runs(&folder), folder.show()["name"].as_str()), (2, Some("job")));
    // The second is no worse than the first.
    let again = folder.pipe(&["reproduce", "latest", "--json"]).exits(0).json();
    assert_eq!(again["verdict"], json!({ "standard": "tolerance", "reproduced": true, "reasons": [] }));
    assert_eq!((&again["curves"]["same_bits"], &again["curves"]["compared"]), (&json!(true), &json!(3)));
    assert_eq!(folder.show()["id"], again["again"]);
}

/// A file, and what its change is called.
const INPUTS: [(&str, &str); 7] = [
    ("train.jsonl", "data.train"),
    ("more.jsonl", "data.train"),
    ("eval.jsonl", "data.eval"),
    ("tokenizer.json", "tokenizer"),
    ("model/config.json", "model"),
    ("model/model.safetensors", "model"),
    ("trainer", "trainer"),
];

fn refused() {
    let folder = whole("");
    let id = train(&folder);
    for (name, what) in INPUTS {
        let path: PathBuf = folder.path().join(name);
        let before = std::fs::read(&path).unwrap();
        // A program can have a byte more at its end, as a text can.
        std::fs::write(&path, [&before[..], b" "].concat()).unwrap();
        let answer = folder.pipe(&["reproduce", &id]).exits(3).says(&format!("the run {id} cannot be reproduced here"));
        let answer = answer.says(&format!("  {what}: was ")).says("--anyway");
        assert_eq!(answer.stderr.matches(": was ").count(), 1, "{answer}");
        std::fs::write(&path, before).unwrap();
    }
    // Two at once are both named.
    let (train, eval) = (folder.read("train.jsonl"), folder.read("eval.jsonl"));
    folder.write("train.jsonl", "[]\n").write("eval.jsonl", "[]\n");
    folder.pipe(&["reproduce", &id]).exits(3).says("data.train: was").says("data.eval: was");
    let report = folder.pipe(&["reproduce", &id, "--json"]).exits(3).json();
    assert_eq!((report["refused"].as_array().unwrap().len(), &report["again"]), (2, &Value::Null));
    folder.write("train.jsonl", train).write("eval.jsonl", eval);
    std::fs::remove_file(folder.path().join("more.jsonl")).unwrap();
    folder.pipe(&["reproduce", &id]).exits(3).says("cannot read more.jsonl");
    folder.write("more.jsonl", "{}\n");
    let resolved = format!("runs/{id}/resolved.yaml");
    let text = folder.read(&resolved);
    folder.write(&resolved, text.replace("seed: 42", "seed: 43"));
    folder.pipe(&["reproduce", &id]).exits(3).says("settings: was").says("seed: was 42, is 43");
    folder.write(&resolved, text);
    assert_eq!(runs(&folder), 1);
    folder.pipe(&["reproduce", &id]).exits(0);
    folder.pipe(&["reproduce", "nope"]).exits(2).says("no run \"nope\"");
}

/// Nor does a retry train on other data than the attempt before.
fn changed_between_attempts() {
    let folder = walk(50);
    let rows = folder.read("train.jsonl");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_until("the first attempt", || {
        folder.has_runs() && folder.run_folder().join("attempts/01/spec.json").is_file()
    });
    folder.write("train.jsonl", rows.replace('a', "c"));
    running.end().exits(3).says("inputs of the run have changed since it started").says("data.train");
    folder.write("train.jsonl", rows);
    folder.pipe(&["resume"]).exits(0);
    expect_undisturbed(&folder);
}

fn anyway() {
    let folder = whole("");
    let id = train(&folder);
    folder.write("train.jsonl", "[]\n");
    let answer = folder.pipe(&["reproduce", &id, "--anyway"]).exits(0).says("continuing although data.train: was");
    answer.prints("reproduces");
    with(&folder, "BEND", "500000", &["reproduce", &id, "--anyway"]).exits(6).says("does not reproduce");
}

fn bent() {
    let folder = whole("");
    let id = train(&folder);
    // A millionth may be rounding, a tenth is not.
    let answer = with(&folder, "BEND", "1", &["reproduce", &id]).exits(0);
    answer.prints("differ by 1.0e-6 at most").prints("model.safetensors");
    let answer = with(&folder, "BEND", "100000", &["reproduce", &id]).exits(6);
    let answer = answer.says("the losses differ by more than rounding at step 1: 10 and 11");
    answer.says(&format!("hint: `pipe diff {id} job-"));
    let report = with(&folder, "BEND", "100000", &["reproduce", &id, "--json"]).exits(6).json();
    assert_eq!((&report["verdict"]["reproduced"], &report["curves"]["beyond"]["step"]), (&json!(false), &json!(1)));
}

fn bits() {
    let folder = whole("train: {deterministic: true}\n");
    let id = train(&folder);
    let same = folder.pipe(&["reproduce", &id, "--json"]).exits(0).json();
    assert_eq!(same["verdict"]["standard"], "bits");
    let answer = with(&folder, "BEND", "1", &["reproduce", &id]).exits(6);
    answer.says("the losses differ from step 1 on: 10 and 10.00001").says("model/model.safetensors differs");
    // What rounds differently is compared as such.
    let path = format!("runs/{id}/lock.json");
    let mut other: Value = serde_json::from_str(&folder.read(&path)).unwrap();
    other["cpu"]["model"] = json!("Abacus");
    folder.write(&path, other.to_string());
    let answer = with(&folder, "BEND", "1", &["reproduce", &id]).exits(0);
    answer.says("x Abacus, is").says("(rounds differently)").prints("required: equal up to rounding");
}

fn retries() {
    let folder = job::folder("fit 5", "train: {batch: 20, effective_batch: 40}\n");
    let id = train(&folder);
    let batches = || {
        let run = folder.show();
        run["attempts"].as_array().unwrap().iter().map(|one| one["batch"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(batches(), [20, 10, 5]);
    folder.pipe(&["reproduce", &id]).exits(0).prints("reproduces");
    assert_eq!(batches(), [20, 10, 5]);
}

/// A resume may not change what is computed, so the run can be reproduced with its settings.
fn resumed() {
    let folder = job::folder("fit 5", "train: {batch: 20, effective_batch: 40}\non_oom: {retries: 0}\n");
    folder.pipe(&RUN).exits(7);
    folder.pipe(&["resume", "latest", "--set", "on_oom.retries=6"]).exits(0);
    let report = folder.pipe(&["reproduce", "latest", "--json"]).exits(0).json();
    assert_eq!((&report["verdict"]["reproduced"], &report["curves"]["same_bits"]), (&json!(true), &json!(true)));
    assert_eq!(runs(&folder), 2);
}

fn elsewhere() {
    let folder = whole("");
    let id = train(&folder);
    folder.write("deep/down/here", "");
    let started = |args: &[&str]| {
        let mut command = folder.command(args);
        command.current_dir(folder.path().join("deep/down")).env("PIPE_RUNS", "../../runs");
        let trainer = "../../trainer";
        Answer::new(format!("pipe {}", args.join(" ")), command.env("PIPE_TRAINER", trainer).output().unwrap())
    };
    started(&["reproduce", &id]).exits(0).prints("reproduces");
    assert_eq!(runs(&folder), 2);
    assert!(!folder.path().join("deep/down/runs").exists());
}

fn earlier() {
    let folder = whole("");
    let id = train(&folder);
    let path = format!("runs/{id}/lock.json");
    let now = lock(&folder, &id);
    folder.write(
        &path,
        json!({ "pipe": "0.1.0", "pipeline": now["pipeline"], "on": { "engine": "process" } }).to_string(),
    );
    folder.pipe(&["reproduce", &id]).exits(0).says("its lock.json was written by an earlier pipe");
    for text in ["", "{\"on\": 3}"] {
        folder.write(&path, text);
        folder.pipe(&["reproduce", &id]).exits(3).says("its lock.json is missing or damaged");
    }
    folder.pipe(&["reproduce", &id, "--anyway"]).exits(0);
}

fn no_steps() {
    let folder = job::folder("exit 1", "");
    folder.pipe(&RUN).exits(6);
    folder.pipe(&["reproduce", "latest"]).exits(3).says("it has no steps to compare with");
    assert_eq!(runs(&folder), 1);
    // A run that is still running is left alone.
    let folder = job::folder("sleep", "");
    let running = folder.start(&RUN);
    folder.wait_for_log(1, "sleeping");
    folder.pipe(&["reproduce", "latest"]).exits(1).says("is still running");
    running.signal("INT");
    running.end().exits(130);
}

fn failure() {
    let folder = whole("");
    folder.write(".env", "BEND=0 1\n");
    folder.pipe(&RUN).exits(6);
    let answer = folder.pipe(&["reproduce", "latest"]).exits(0);
    answer.prints("reproduces");
    folder.write(".env", "BEND=0\n");
    let first = folder.pipe(&["ls", "--json"]).json()[1]["id"].as_str().unwrap().to_owned();
    folder.pipe(&["reproduce", &first]).exits(6).says("it is finished, and the first one was failed");
}

fn compared() {
    let folder = whole("");
    let one = train(&folder);
    folder.write("train.jsonl", "[]\n");
    let args = [&RUN[..], &["--set", "train.batch=4", "--set", "train.effective_batch=8"]].concat();
    with(&folder, "BEND", "100000", &args).exits(0);
    let other = folder.show()["id"].as_str().unwrap().to_owned();
    let answer = folder.pipe(&["diff", &one, &other]).exits(0);
    let answer = answer.prints("setting").prints("train.batch").prints("lock").prints("another computation");
    let answer = answer
        .prints("8 x 1 finished")
        .prints("4 x 2 finished")
        .prints("model: different files: model.safetensors (of 1 file)");
    answer.prints("curves: 3 steps in common; the losses differ from step 1 on, most at step ").prints(": by 1.0e-1\n");
    let report = folder.pipe(&["diff", &one, "latest", "--json"]).exits(0).json();
    assert_eq!(report["runs"], json!([one, other]));
    assert_eq!(report["settings"], json!([{ "path": "train.batch", "first": "8", "second": "4" }]));
    let what: Vec<(&str, &str)> = report["lock"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (found["what"].as_str().unwrap(), found["effect"].as_str().unwrap()))
        .collect();
    assert_eq!(what, [("settings", "forbids"), ("data.train", "forbids")]);
    assert_eq!((&report["results"][0]["loss"], report["results"][1]["steps"].as_u64()), (&json!(10.0 / 3.0), Some(3)));
    assert_eq!(report["curves"]["first_difference"]["losses"], json!([10.0, 11.0]));
    assert_eq!(report["model"], json!({ "count": 1, "differ": ["model.safetensors"] }));
}

fn itself() {
    let folder = whole("");
    let id = train(&folder);
    let answer = folder.pipe(&["diff", &id, &id]).exits(0);
    let want = "settings: the same\n\nlock: the same\n\nresults: the same\n\n\
                curves: the losses of 3 steps are the same bit for bit\nmodel: 1 file, the same bit for bit\n";
    assert_eq!(answer.stdout, want);
    folder.pipe(&["diff", &id, "nope"]).exits(2).says("no run \"nope\"");
    folder.pipe(&["diff", &id]).exits(2);
}

fn damaged() {
    let folder = whole("");
    let (one, other) = (train(&folder), train(&folder));
    for (file, text) in [("resolved.yaml", "settings: unknown"), ("lock.json", "lock: unknown")] {
        folder.write(&format!("runs/{one}/{file}"), "[");
        folder.pipe(&["diff", &one, &other]).exits(0).prints(text);
    }
    std::fs::remove_dir_all(folder.path().join(format!("runs/{one}/model"))).unwrap();
    folder.write(&format!("runs/{one}/events.jsonl"), "nonsense\n");
    let answer = folder.pipe(&["diff", &one, &other]).exits(0);
    answer.prints("curves: no step in common (0 steps and 3)").prints("model: not exported by both");
}

fn contained() {
    let folder = whole("");
    folder.write("image/mark", format!("{:?}", std::time::SystemTime::now()));
    folder.pipe(&["run", "job.yaml", "--engine", "docker"]).exits(0);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    let on = lock(&folder, &id)["on"].clone();
    assert!(on["image"].as_str().unwrap().starts_with("pipe-job:") && on["image_id"].is_string(), "{on:#}");
    assert_eq!(on["trainer"], Value::Null);
    folder.pipe(&["reproduce", &id]).exits(0).prints("reproduces");
    assert_eq!(folder.show()["engine"], "docker");
    folder.write("image/more", "x");
    folder.pipe(&["reproduce", &id]).exits(3).says("image: was pipe-job:");
    std::fs::remove_file(folder.path().join("image/more")).unwrap();
    // The trainer beside pipe has no part in it.
    folder.write("trainer", "x");
    folder.pipe(&["reproduce", &id]).exits(0);
    assert_eq!(runs(&folder), 3);
}
