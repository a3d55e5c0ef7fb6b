//! An out-of-memory retry does not change the training, and a kill does not change a bit of it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, events, folder, make_rows_longer, run_trainer, same_curve, trainer};

const STEPS: usize = 30;

type Curve = Vec<(u64, u64, f64)>;

pub fn tests(suite: &mut Suite) {
    suite.test("exactness::kernel_kills_and_the_curve_is_the_same::docker", Needs::Docker, || {
        falling_batches("docker", "container: {gpus: 0, cpus: 1, memory: 230m}\n");
    });
    suite.thorough("exactness::allocation_fails_and_the_curve_is_the_same::process", Needs::Nothing, || {
        falling_batches("process", "container: {gpus: 0, cpus: 1}\nmemory: {limit: 230m}\n");
    });
    suite.thorough("exactness::in_the_middle_of_a_run::docker", Needs::Docker, || {
        in_the_middle("docker", "container: {gpus: 0, cpus: 1, memory: 280m}\n");
    });
    suite.test("exactness::in_the_middle_of_a_run::process", Needs::Nothing, || {
        in_the_middle("process", "container: {gpus: 0, cpus: 1}\nmemory: {limit: 200m}\n");
    });
    suite.test("exactness::killed_and_resumed_to_the_bit", Needs::Nothing, killed_and_resumed);
    suite.thorough("exactness::killed_more_often_to_the_bit", Needs::Nothing, killed_more_often);
}

fn train(batch: u32) -> String {
    format!(
        "train: {{steps: {STEPS}, batch: {batch}, effective_batch: 48, dropout: 0.1, optimizer: {{lr: 2.0e-3}}}}\n\
         save: {{every: 5}}\n"
    )
}

/// The same training without a disturbance, and with less padding, which makes no difference.
fn undisturbed(pipeline: &str) -> (Folder, Curve) {
    let folder = folder(&format!("{pipeline}container: {{gpus: 0, cpus: 1}}\n"));
    folder.write("t5.yaml", folder.read("t5.yaml").replace("pad: max", "pad: longest"));
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    assert_eq!(folder.show()["attempts"].as_array().unwrap().len(), 1);
    let curve = curve(&folder.run_folder());
    (folder, curve)
}

fn falling_batches(engine: &str, limits: &str) {
    static WANT: OnceLock<Curve> = OnceLock::new();
    let folder = folder(&format!("{}{limits}", train(48)));
    folder.pipe(&["run", "t5.yaml", "--engine", engine]).exits(0);
    let run = folder.show();
    let attempts = run["attempts"].as_array().unwrap();
    assert!(attempts.len() >= 2, "the first batch was to be too large: {run:#}");
    let batches: Vec<u64> = attempts.iter().map(|attempt| attempt["batch"].as_u64().unwrap()).collect();
    assert!(batches.is_sorted_by(|a, b| a > b), "{batches:?}");
    let (last, failed) = attempts.split_last().unwrap();
    assert_eq!(last["outcome"], "finished");
    for attempt in failed {
        assert_eq!((attempt["outcome"].as_str(), attempt["cause"].as_str()), (Some("oom"), Some("host_memory")));
        assert_eq!(attempt["exit_code"], if engine == "docker" { 137 } else { 43 }, "{run:#}");
    }
    if engine == "process" {
        let record = std::fs::read(folder.run_folder().join("attempts/01/oom.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        assert_eq!((record["memory"].as_str(), record["batch"].as_u64()), (Some("host"), Some(48)), "{record:#}");
        assert!(["forward", "backward"].contains(&record["phase"].as_str().unwrap()), "{record:#}");
    } else {
        assert!(folder.containers().is_empty());
    }
    let want = WANT.get_or_init(|| undisturbed(&train(48)).1);
    assert_eq!(want.len(), STEPS);
    same_curve(&curve(&folder.run_folder()), want, 48, 1e-5);
    assert!(want.last().unwrap().2 < want[0].2 * 0.8, "nothing was learned: {want:?}");
}

/// Short recipes, then long ones from the twelfth step on: the batch fits until then. No step is recorded twice. The disturbed
/// run fills its parts, the other has parts of one size.
fn in_the_middle(engine: &str, limits: &str) {
    static WANT: OnceLock<Curve> = OnceLock::new();
    let text = |limits: &str| format!("  shuffle: false\n{}{limits}", train(48));
    // So wide that the first long step alone exceeds the limit, whatever the steps before it left in the heap.
    let prepare = |folder: &Folder| make_rows_longer(folder, "d_ff: 1024");
    let folder = folder(&text(limits));
    prepare(&folder);
    let set = ["--set", "memory.worst_first=false", "--set", "train.split=fill"];
    folder.pipe(&[&["run", "t5.yaml", "--engine", engine], &set[..]].concat()).exits(0);
    let run = folder.show();
    let first = &run["attempts"][0];
    assert_eq!((first["outcome"].as_str(), first["last_step"].as_u64()), (Some("oom"), Some(11)), "{run:#}");
    // A failed allocation leaves the trainer time to save, the kernel does not.
    let resumed = events(&folder.run_folder())
        .iter()
        .find(|event| event["type"] == "started" && event["attempt"] == 2)
        .and_then(|event| event["resumed_from"].as_u64());
    assert_eq!(resumed, Some(if engine == "docker" { 10 } else { 11 }));

    assert!(folder.read_run("report.html").contains("Parts of a step"));

    let want = WANT.get_or_init(|| {
        let reference = self::folder(&text("container: {gpus: 0, cpus: 1}\n"));
        prepare(&reference);
        reference.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
        curve(&reference.run_folder())
    });
    same_curve(&curve(&folder.run_folder()), want, 48, 1e-5);
}

fn killed_and_resumed() {
    let moments = [Moment::BeforeAStep, Moment::AfterStep(2), Moment::InACheckpoint, Moment::AfterStep(23)];
    killed_at_random(&train(16).replace("every: 5", "every: 3"), &moments);
}

fn killed_more_often() {
    let moments = [
        Moment::BeforeAStep,
        Moment::AfterStep(2),
        Moment::InACheckpoint,
        Moment::AfterStep(13),
        Moment::InACheckpoint,
        Moment::AfterStep(26),
    ];
    killed_at_random(&train(16).replace("every: 5", "every: 3"), &moments);
}

/// Where a trainer is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// It has started, and no step of this attempt is done.
    BeforeAStep,
    /// So many steps are done, and not all of them.
    AfterStep(usize),
    /// A checkpoint is half written.
    InACheckpoint,
}

/// The trainer is killed and started again until it is done. Each kill must strike where it was meant to, or is repeated.
fn killed_at_random(pipeline: &str, moments: &[Moment]) {
    let (undisturbed, _) = undisturbed(pipeline);
    let undisturbed = undisturbed.run_folder();
    let disturbed = Folder::new();
    let spec = std::fs::read_to_string(undisturbed.join("attempts/01/spec.json")).unwrap();
    let mut spec: Value = serde_json::from_str(&spec).unwrap();
    spec["run"] = Value::String(disturbed.path().display().to_string());
    disturbed.write("attempts/01/spec.json", spec.to_string());
    for &moment in moments {
        let strikes = (0..20).any(|_| strike(disturbed.path(), moment));
        assert!(strikes, "no kill struck at {moment:?}");
    }
    let spec = disturbed.path().join("attempts/01/spec.json");
    run_trainer(&["train", "--spec", spec.to_str().unwrap()]).exits(0);
    let last = format!("checkpoints/step-{STEPS:08}");
    for file in [
        "model/model.safetensors".to_owned(),
        format!("{last}/model.safetensors"),
        format!("{last}/optimizer.safetensors"),
    ] {
        same_bytes(&undisturbed.join(&file), &disturbed.path().join(&file));
    }
}

/// Starts a trainer and kills it at `moment`. Whether the kill struck there: the trainer was alive, and what it left says so.
fn strike(run: &Path, moment: Moment) -> bool {
    let mut child = Command::new(trainer())
        .args(["train", "--spec", run.join("attempts/01/spec.json").to_str().unwrap()])
        .env("OMP_WAIT_POLICY", "PASSIVE")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let event = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    let mut started = None;
    let mut last_step = None;
    for event in lines.by_ref().map(event) {
        started = started.or(event["type"].as_str().filter(|kind| *kind == "started").map(|_| event.clone()));
        last_step = event["step"].as_u64().filter(|_| event["type"] == "step").or(last_step);
        let is_there = match moment {
            Moment::BeforeAStep => started.is_some(),
            Moment::AfterStep(step) => last_step >= Some(step as u64),
            // The next step is followed by a checkpoint that takes longer to write than this loop to find it.
            Moment::InACheckpoint => started.is_some() && wait_for_half_a_checkpoint(run, &mut child),
        };
        if is_there {
            break;
        }
    }
    child.kill().unwrap();
    let was_alive = child.wait().unwrap().signal() == Some(9);
    // What was written before the kill and not read yet.
    last_step = lines
        .map(event)
        .filter(|event| event["type"] == "step")
        .filter_map(|event| event["step"].as_u64())
        .last()
        .or(last_step);
    let struck = was_alive
        && last_step < Some(STEPS as u64)
        && match moment {
            Moment::BeforeAStep => started.is_some() && last_step.is_none(),
            Moment::AfterStep(step) => last_step >= Some(step as u64),
            Moment::InACheckpoint => half_a_checkpoint(run),
        };
    if let Some(started) = started {
        let newest = started["resumed_from"].as_u64().unwrap_or(0);
        eprintln!("killed at {moment:?}: struck {struck}, resumed from step {newest}, last step {last_step:?}");
    }
    struck
}

/// Whether a checkpoint lies there under its temporary name.
fn half_a_checkpoint(run: &Path) -> bool {
    let entries = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).any(|name| name.ends_with(".tmp"))
}

fn wait_for_half_a_checkpoint(run: &Path, child: &mut Child) -> bool {
    while child.try_wait().unwrap().is_none() {
        if half_a_checkpoint(run) {
            return true;
        }
        // A checkpoint is half written for some milliseconds.
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

#[track_caller]
fn same_bytes(a: &Path, b: &Path) {
    assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{} and {} differ", a.display(), b.display());
}
