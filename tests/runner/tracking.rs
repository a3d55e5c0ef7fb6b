//! Where else a run is tracked: TensorBoard's files, and an offline run of Weights & Biases, read back by the real `wandb sync`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Answer, Folder, Needs, Suite, suite};
use crate::stand_ins::job;
use crate::stand_ins::trackers::{offline_run, sync};

pub fn tests(suite: &mut Suite) {
    suite.test("tracking::tensorboard_files_are_whole_records", Needs::Nothing, whole_records);
    suite.test("tracking::tensorboard_reads_them_back", Needs::Mlflow, read_back);
    suite.test("wandb::sync_uploads_a_run_with_a_retry", Needs::Wandb, retried);
    suite.test("wandb::a_killed_run_is_readable_and_goes_on_in_the_same_run", Needs::Wandb, killed);
    let mut test = |name: &str, test: fn()| suite.thorough(&format!("wandb::{name}"), Needs::Wandb, test);
    test("evaluations_join_their_step", evaluated);
    test("a_stopped_run_that_was_synced_is_synced_again", stopped);
    test("long_runs_and_long_records", long);
    suite.test("wandb::a_write_error_fails_no_run", Needs::Nothing, cannot_write);
}

/// A run with a retry; its only event file.
fn run() -> (Folder, PathBuf) {
    let folder = job::folder("fit 5", "train: {batch: 10}\ntrack: {tensorboard: true}\n");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let files: Vec<PathBuf> = std::fs::read_dir(folder.run_folder().join("tensorboard"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let file = files[0].clone();
    (folder, file)
}

fn whole_records() {
    let (_folder, file) = run();
    let bytes = std::fs::read(file).unwrap();
    let (mut rest, mut records) = (bytes.as_slice(), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        records.push(&after[4..4 + length]);
        rest = &after[4 + length + 4..];
    }
    assert!(rest.is_empty(), "{} bytes are left", rest.len());
    assert_eq!(records.len(), 4, "a first one, and one for each step");
    let has = |record: &[u8], text: &str| record.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has(records[0], "brain.Event:2"));
    for record in &records[1..] {
        assert!(has(record, "train/loss") && has(record, "memory/peak_bytes"));
    }
}

fn read_back() {
    let (_folder, file) = run();
    let script = "import sys\n\
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n\
        board = EventAccumulator(sys.argv[1])\nboard.Reload()\n\
        print([(one.step, round(one.value, 3)) for one in board.Scalars('train/loss')])\n";
    let mut python = Command::new("python3");
    let output = python.env("PYTHONPATH", suite::mlflow()).args(["-c", script]).arg(file).output().unwrap();
    Answer::new("tensorboard".to_owned(), output).exits(0).prints("[(1, 10.0), (2, 5.0), (3, 3.333)]");
}

/// A folder that tracks to the project `kitchen`.
fn folder(job: &str, more: &str) -> Folder {
    job::folder(job, &format!("track: {{wandb: kitchen}}\n{more}")).env("WANDB_API_KEY", "s3cret-key")
}

fn upload(folder: &Folder) -> Value {
    sync(&offline_run(&folder.run_folder())).expect("there is something to upload")
}

fn steps(upload: &Value) -> Vec<u64> {
    upload["history"].as_array().unwrap().iter().map(|line| line["_step"].as_u64().unwrap()).collect()
}

/// Whether any file below holds the text.
fn holds(path: &Path, text: &str) -> bool {
    if path.is_dir() {
        return std::fs::read_dir(path).unwrap().any(|entry| holds(&entry.unwrap().path(), text));
    }
    std::fs::read(path).unwrap_or_default().windows(text.len()).any(|window| window == text.as_bytes())
}

fn retried() {
    let folder = folder("fit 5", "train: {batch: 10}\nnotify: [{webhook: \"http://127.0.0.1:9/s3cret-hook\"}]\n")
        .env("WANDB_ENTITY", "cooks")
        .env("WANDB_RUN_GROUP", "soups")
        .env("WANDB_TAGS", "hot, cold")
        .env("WANDB_NOTES", "with salt");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0).says_not("warning: track");
    assert!(holds(&folder.run_folder(), "s3cret-hook"), "the search can find something");
    let offline = offline_run(&folder.run_folder());
    assert!(!holds(&folder.run_folder(), "s3cret-key") && !holds(&offline, "s3cret"));

    let upload = upload(&folder);
    let run = &upload["run"];
    assert_eq!((&run["project"], &run["entity"]), (&json!("kitchen"), &json!("cooks")), "{upload:#}");
    assert_eq!((&run["groupName"], &run["notes"]), (&json!("soups"), &json!("with salt")));
    assert_eq!((&run["tags"], &run["displayName"]), (&json!(["hot", "cold"]), &folder.show()["id"]));
    let losses: Vec<f64> =
        upload["history"].as_array().unwrap().iter().map(|line| line["train/loss"].as_f64().unwrap()).collect();
    assert_eq!((steps(&upload), losses), (vec![1, 2, 3], vec![10.0, 5.0, 10.0 / 3.0]));
    let first = &upload["history"][0];
    for key in ["train/lr", "train/grad_norm", "train/epoch", "speed/tokens_per_second", "memory/peak_bytes"] {
        assert!(first[key].is_number(), "{key} in {first}");
    }
    assert_eq!(first["pipe/attempt"], 2);

    let config = &upload["config"];
    assert_eq!((&config["train"]["batch"], &config["model"]["arch"]), (&json!(10), &json!("t5")));
    assert_eq!((&config["container"]["memory"], &config["container"]["env"]), (&json!("64m"), &Value::Null));
    assert_eq!((&config["notify"], &config["track"]), (&Value::Null, &Value::Null));
    let retry = json!("batch 5 instead of 10: the host's memory ran out");
    assert_eq!((&config["pipe"]["retry"]["1"], &config["pipe"]["device"]), (&retry, &json!("cpu")));
    let summary = &upload["summary"];
    assert_eq!((&summary["_step"], summary["train/loss"].as_f64()), (&json!(3), Some(10.0 / 3.0)));
    let pipe = &summary["pipe"];
    assert_eq!((&pipe["status"], &pipe["attempts"], &pipe["retries"]), (&json!("finished"), &json!(2), &json!(1)));
    assert_eq!((&pipe["retry"]["1"], pipe["peak_memory_bytes"].is_number()), (&retry, true), "{summary:#}");
    assert_eq!(upload["exitcode"], 0);
    let metadata: Value = serde_json::from_str(upload["files"]["wandb-metadata.json"].as_str().unwrap()).unwrap();
    assert_eq!(metadata["program"], "pipe");
}

/// One line for a step and its evaluation; the best evaluation and the last values in the summary.
fn evaluated() {
    let folder = folder("long 8 1 64", "train: {batch: 8}\n");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let upload = upload(&folder);
    assert_eq!(steps(&upload), (1..=8).collect::<Vec<u64>>());
    for line in upload["history"].as_array().unwrap() {
        let is_evaluated = line["_step"].as_u64().unwrap() % 2 == 0;
        assert_eq!((line["eval/loss"] == 1.25, line["eval/accuracy"] == 0.5), (is_evaluated, is_evaluated), "{line}");
        assert!(line["train/loss"].is_number() && line["_runtime"].as_f64() >= Some(0.0), "{line}");
    }
    let summary = &upload["summary"];
    assert_eq!((&summary["best/eval/loss"], &summary["best/step"]), (&json!(1.25), &json!(2)), "{summary:#}");
    assert_eq!((&summary["best/eval/accuracy"], &summary["eval/loss"]), (&json!(0.5), &json!(1.25)));
}

fn killed() {
    let folder = folder("walk 40 30 64", "train: {batch: 8}\n").env("WANDB_ENTITY", "cooks");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "\"step\":20,");
    running.kill_alive();
    let first = upload(&folder);
    let written = steps(&first);
    assert!(written.len() >= 10, "it is written while the run continues: {written:?}");
    assert_eq!(written, (1..=written.len() as u64).collect::<Vec<u64>>());
    assert_eq!(first["exitcode"], 1, "W&B takes a run without an end for a crashed one");

    // Half a record at the end, as a killed machine may leave it.
    let offline = offline_run(&folder.run_folder());
    let file = std::fs::read_dir(&offline).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|name| name == "wandb")).unwrap();
    let length = std::fs::metadata(&file).unwrap().len();
    std::fs::File::options().write(true).open(&file).unwrap().set_len(length - 3).unwrap();

    // From a shell without W&B's variables.
    let mut command = folder.command(&["resume"]);
    let output = command.env_remove("WANDB_ENTITY").output().unwrap();
    Answer::new("pipe resume".to_owned(), output).exits(0).says_not("warning: track");
    assert_eq!(offline_run(&folder.run_folder()), offline, "the same W&B run");
    let whole = upload(&folder);
    assert_eq!(steps(&whole), (1..=40).collect::<Vec<u64>>());
    assert_eq!((&whole["run"]["name"], &whole["run"]["entity"]), (&first["run"]["name"], &json!("cooks")));
    assert_eq!((&whole["exitcode"], &whole["summary"]["pipe"]["status"]), (&json!(0), &json!("finished")));
    assert!(whole["config"]["pipe"]["retry"]["1"].as_str().unwrap().contains("the pipe process of the run was killed"));
}

fn stopped() {
    let folder = folder("walk 40 30 64", "train: {batch: 8}\n");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "\"step\":10,");
    running.signal("INT");
    running.end().exits(130);
    let offline = offline_run(&folder.run_folder());
    let first = upload(&folder);
    assert_eq!((&first["exitcode"], &first["summary"]["pipe"]["status"]), (&json!(1), &json!("stopped")));
    assert!(sync(&offline).is_none(), "what is uploaded is not uploaded again");
    folder.pipe(&["resume"]).exits(0);
    let whole = upload(&folder);
    assert_eq!(steps(&whole), (1..=40).collect::<Vec<u64>>());
    assert_eq!((&whole["exitcode"], &whole["run"]["name"]), (&json!(0), &first["run"]["name"]));
}

/// Records that end in every place of a block, and one that is longer than a block.
fn long() {
    let words = "x".repeat(70_000);
    let more = format!("train: {{batch: 8}}\nmodel: {{arch: t5, config: {{note: {words}}}}}\n");
    let folder = folder("long 4000 0 64", "");
    let text = folder.read("job.yaml").replace("model: {arch: t5, config: {}}\n", "");
    folder.write("job.yaml", text + &more);
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let upload = upload(&folder);
    assert_eq!(steps(&upload), (1..=4000).collect::<Vec<u64>>());
    assert_eq!(upload["config"]["model"]["config"]["note"].as_str().map(str::len), Some(words.len()));
}

/// A file that cannot be written is one warning, and the run is unchanged.
fn cannot_write() {
    let folder = folder("walk 20 20 64", "train: {batch: 8}\n");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "\"step\":5,");
    running.signal("INT");
    running.end().exits(130);
    let place = folder.run_folder().join("wandb");
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::write(&place, "in the way").unwrap();
    let answer = folder.pipe(&["resume"]).exits(0);
    let warnings: Vec<&str> = answer.stderr.lines().filter(|line| line.contains("warning: track.wandb")).collect();
    assert_eq!(warnings.len(), 1, "{answer}");
    assert_eq!(folder.show()["status"], "finished");
}
