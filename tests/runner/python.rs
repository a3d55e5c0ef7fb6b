//! Programs in Python with the real torch, for the CPU, and the real Trainer of transformers, in containers whose image was made
//! without a registry.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, body: fn()| suite.thorough(&format!("python::{name}"), Needs::Python, body);
    test("the_message_of_torch", message);
    test("killed_by_the_kernel", killed);
    test("the_trainer_of_transformers", trainer);
    test("the_example", example);
}

/// A folder to build an image from, with this machine's Python, torch and transformers: named by what it is made of and laid out once.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let parts = ["tests/python_root.py", "tests/python.txt", "tests/python-transformers.txt"];
        let mut hasher = DefaultHasher::new();
        parts.iter().for_each(|part| std::fs::read(repository().join(part)).unwrap().hash(&mut hasher));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-root-{:016x}", hasher.finish()));
        if !folder.is_dir() {
            let part = folder.with_extension(std::process::id().to_string());
            let script = repository().join("tests/python_root.py");
            let laid = Command::new("python3").arg(script).arg(&part).arg("--transformers").output().unwrap();
            assert!(laid.status.success(), "{}", String::from_utf8_lossy(&laid.stderr));
            std::fs::rename(&part, &folder).unwrap();
        }
        folder
    })
}

/// An image of it.
pub fn image() -> &'static str {
    static IMAGE: OnceLock<String> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let name = root().file_name().unwrap().to_string_lossy().replace("python-root-", "pipe-test-python:");
        let is_there = Command::new("docker").args(["image", "inspect", &name]).output().unwrap().status.success();
        if !is_there {
            let words = ["build", "-q", "--label", "pipe.test=python", "-t", &name];
            let built = Command::new("docker").args(words).arg(root()).output().unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        name
    })
}

/// A folder with a pipeline that runs a script in that image.
fn folder(script: &str, command: &str, memory: &str, more: &str) -> Folder {
    let folder = Folder::new();
    let yaml = format!(
        "version: 1\nname: python\nengine: docker\ncommand: {command}\n\
         container: {{image: '{}', gpus: 0, memory: {memory}, mounts: [{{host: script.py, container: /script.py}}]}}\n{more}",
        image()
    );
    folder.write("python.yaml", yaml).write("script.py", script);
    folder
}

fn attempts(folder: &Folder) -> Vec<(u64, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let attempt = |one: &Value| (one["batch"].as_u64().unwrap(), text(&one["outcome"]), text(&one["cause"]));
    folder.show()["attempts"].as_array().unwrap().iter().map(attempt).collect()
}

fn expect(folder: &Folder, want: &[(u64, &str, &str)]) {
    let found = attempts(folder);
    let found: Vec<_> = found.iter().map(|(batch, outcome, cause)| (*batch, &**outcome, &**cause)).collect();
    assert_eq!(found, want);
    assert!(folder.containers().is_empty());
}

fn message() {
    let script = "import sys, torch\nbatch = int(sys.argv[1])\nx = torch.empty(batch * 10**14 if batch > 4 else 8, dtype=torch.uint8)\n\
                  torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])\nprint('{\"step\": 1, \"loss\": 0.5}')\n";
    let folder = folder(script, "python3 /script.py {batch} {accum}", "2g", "train: {batch: 8, accum: 2}\n");
    folder.pipe(&["run", "python.yaml"]).exits(0).says("the host's memory ran out").says("batch 4 instead of 8");
    expect(&folder, &[(8, "oom", "host_memory"), (4, "finished", "")]);
    let record: Value = serde_json::from_str(&folder.read_run("attempts/01/oom.json")).unwrap();
    assert_eq!(record["requested"].as_u64(), Some(800_000_000_000_000));
}

fn killed() {
    let script =
        "import sys, torch\nrows = torch.ones(int(sys.argv[1]) * 100_000_000, dtype=torch.uint8)\nprint(len(rows))\n";
    let folder = folder(script, "python3 /script.py {batch} {accum}", "700m", "train: {batch: 8, accum: 1}\n");
    folder.pipe(&["run", "python.yaml"]).exits(0).says("the kernel killed it at its memory limit of 700.0 MiB");
    let batches: Vec<u64> = attempts(&folder).iter().map(|attempt| attempt.0).collect();
    assert!(batches.len() >= 2 && batches[0] == 8 && batches.is_sorted_by(|a, b| a > b), "{batches:?}");
}

/// An unchanged script of the Trainer, killed for its memory in its first step, ends with a smaller batch; its curve is in the
/// report.
fn trainer() {
    let script = std::fs::read_to_string(repository().join("tests/fixtures/run_tiny_lm.py")).unwrap();
    // The step is that of the bar, which is on the other stream.
    let words = "[sh, -c, 'exec python3 /script.py --output_dir {run} --per_device_train_batch_size {batch} --gradient_accumulation_steps {accum} --max_steps 6 \
                 --logging_steps 1 --save_steps 2 --report_to none 2>&1']";
    let more = "train: {batch: 128, effective_batch: 128}\non_oom: {reduce: [16]}\nmetrics: transformers\n";
    let folder = folder(&script, words, "1000m", more);
    folder.pipe(&["run", "python.yaml"]).exits(0).says("the kernel killed it").prints("1-6");
    expect(&folder, &[(128, "oom", "host_memory"), (16, "finished", "")]);
    let events = folder.read_run("events.jsonl");
    let losses = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let losses: Vec<(u64, f64)> =
        losses.filter_map(|event| Some((event["step"].as_u64()?, event["values"]["loss"].as_f64()?))).collect();
    assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6], "{losses:?}");
    // Random words: the logarithm of how many there are, and a little less with each step.
    assert!(losses.iter().all(|(_, loss)| (8.7..9.2).contains(loss)), "{losses:?}");
    assert!(folder.read_run("report.html").contains("Loss"), "no curve");
    assert!(folder.run_folder().join("output/model.safetensors").is_file());
}

/// The script of `pipelines/python-train.yaml`, stopped and resumed.
fn example() {
    let script = std::fs::read_to_string(repository().join("pipelines/python-train/train.py")).unwrap();
    let words = "python3 /script.py --steps 60 --batch-size {batch} --grad-accum {accum} --effective-batch {effective_batch} --save-every 5 --out {run} --resume {resume}";
    let more = "train: {batch: 16, effective_batch: 32}\ncheckpoints: {pattern: checkpoint-*.pt}\n";
    let folder = folder(&script, words, "2g", more);
    let losses = |folder: &Folder, run: &str| -> Vec<(u64, f64)> {
        let text = folder.read(&format!("runs/{run}/events.jsonl"));
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter_map(|event| Some((event["step"].as_u64()?, event["values"]["loss"].as_f64()?))).collect()
    };
    let whole = folder.pipe(&["run", "python.yaml", "--quiet"]).exits(0);
    assert!(whole.stdout.is_empty());
    let whole = losses(&folder, folder.show()["id"].as_str().unwrap());
    let running = folder.start(&["run", "python.yaml", "--set", "train.batch=8"]);
    folder.wait_until("a checkpoint", || {
        let runs = std::fs::read_dir(folder.path().join("runs")).unwrap().flatten();
        runs.filter(|run| run.path().join("output/checkpoint-10.pt").is_file()).count() == 1
            && folder.show()["status"] == "running"
    });
    running.signal("TERM");
    running.end().exits(130);
    folder.pipe(&["resume"]).exits(0);
    let cut = losses(&folder, folder.show()["id"].as_str().unwrap());
    assert_eq!(whole.len(), 60);
    for (step, loss) in &whole {
        let (_, other) = cut.iter().rfind(|(number, _)| number == step).unwrap_or_else(|| panic!("no step {step}"));
        assert!((loss - other).abs() < 1e-4, "step {step}: {loss} and {other}");
    }
}
