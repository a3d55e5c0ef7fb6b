//! `import pipe_train` with the real torch, for the CPU: a user's loop through out-of-memory, kills, stops, resumes and ranks, and the
//! examples of frameworks with its callbacks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};
use crate::python;

pub fn tests(suite: &mut Suite) {
    let mut process =
        |name: &str, body: fn()| suite.thorough(&format!("own_loop::{name}"), Needs::PythonPackages, body);
    process("the_package", package);
    process("two_ranks_through_an_out_of_memory", ranks);
    process("the_trainer_of_transformers_with_one_callback", transformers);
    process("lightning_with_one_callback", lightning);
    process("init_writes_scripts_that_run", init);
    for (engine, needs) in [("process", Needs::PythonPackages), ("docker", Needs::Python)] {
        suite.thorough(&format!("own_loop::out_of_memory_kill_stop_and_resume::{engine}"), needs, move || walk(engine));
    }
}

const STEPS: u64 = 16;

/// Where the packages of the tests lie.
fn packages() -> Vec<PathBuf> {
    let library = python::root().join("root/usr/local/lib");
    let of_python = std::fs::read_dir(&library).unwrap().map(|entry| entry.unwrap().path());
    let site = of_python.map(|path| path.join("site-packages")).find(|path| path.is_dir()).unwrap();
    vec![repository().join("python"), site, repository().join("target/python-package")]
}

fn python_path() -> String {
    std::env::join_paths(packages()).unwrap().into_string().unwrap()
}

/// A script of tests/fixtures under a limit of its memory in KiB, as a command of `pipe`. The long text does not fit with batch 32.
fn folder(engine: &str, batch: u32, words: &[&str], limit: Option<u64>, more: Value) -> Folder {
    let folder = Folder::new();
    let limit = limit.map_or(String::new(), |limit| format!("ulimit -d {limit}; "));
    let shell = format!("{limit}exec \"$0\" \"$@\"");
    let command = [&["sh", "-c", &shell][..], words].concat();
    // By the tag its processes are found.
    let tag = folder.path().display().to_string();
    let mut container = json!({"gpus": 0, "memory": "900m", "stop_timeout": 60});
    container["env"] = json!({"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "TAG": tag, "HF_HUB_OFFLINE": "1"});
    if engine == "docker" {
        container["image"] = python::image().into();
        container["env"]["PYTHONPATH"] = "/python".into();
        let script = words.iter().find(|word| word.ends_with(".py")).unwrap();
        folder.write("script.py", std::fs::read(script).unwrap());
        let package = std::fs::read_dir(repository().join("python/pipe_train")).unwrap();
        for path in package.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            folder.write(&format!("python/pipe_train/{name}"), std::fs::read(&path).unwrap());
        }
        container["mounts"] =
            json!([{"host": "python", "container": "/python"}, {"host": "script.py", "container": script}]);
    }
    let mut pipeline = json!({
        "version": 1, "name": "own", "engine": engine, "command": command, "container": container,
        "train": {"batch": batch, "effective_batch": batch, "seed": 2}, "on_oom": {"accumulates": true}, "checkpoints": {},
    });
    more.as_object().unwrap().iter().for_each(|(key, value)| pipeline[key] = value.clone());
    folder.write("own.yaml", pipeline.to_string());
    folder
}

fn fixture(name: &str) -> String {
    repository().join("tests/fixtures").join(name).display().to_string()
}

/// The metrics of a run's steps, by their names, as they were reported last.
fn metrics(folder: &Folder, name: &str) -> BTreeMap<u64, f64> {
    let run = folder.show()["id"].as_str().unwrap().to_owned();
    let text = folder.read(&format!("runs/{run}/events.jsonl"));
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter_map(|event| Some((event["step"].as_u64()?, event["values"][name].as_f64()?))).collect()
}

fn attempts(folder: &Folder) -> Vec<Value> {
    folder.show()["attempts"].as_array().unwrap().clone()
}

#[track_caller]
fn same_curve(found: &BTreeMap<u64, f64>, whole: &BTreeMap<u64, f64>, tolerance: f64) {
    assert_eq!(found.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());
    for (step, loss) in whole {
        assert!((loss - found[step]).abs() <= tolerance, "step {step}: {loss} and {}", found[step]);
    }
}

/// Runs it undisturbed, with a batch that fits.
fn undisturbed(engine: &str, words: &[&str]) -> (BTreeMap<u64, f64>, BTreeMap<u64, f64>) {
    let folder = folder(engine, 32, words, None, json!({"train": {"batch": 4, "effective_batch": 32, "seed": 2}}));
    folder.pipe(&["run", "own.yaml", "--ignore-ledger"]).exits(0);
    let found = (metrics(&folder, "loss"), metrics(&folder, "eval_loss"));
    assert_eq!((found.0.len() as u64, found.1.len()), (STEPS, 2), "{found:?}");
    found
}

fn walk(engine: &str) {
    let (script, steps) = (fixture("own_loop.py"), STEPS.to_string());
    let words = ["python3", &script, "--steps", &steps, "--hidden", "4096"];
    let (whole, evaluations) = undisturbed(engine, &words);

    // Out of memory: torch says so under the limit, and in the container the kernel kills it.
    let limit = (engine == "process").then_some(1_000_000);
    let short = folder(engine, 32, &words, limit, json!({}));
    let ended = short.pipe(&["run", "own.yaml", "--ignore-ledger"]).exits(0).says("effective batch 32 as before");
    let seen = attempts(&short);
    let outcomes: Vec<&str> = seen.iter().map(|attempt| attempt["outcome"].as_str().unwrap()).collect();
    assert_eq!((outcomes[0], outcomes[outcomes.len() - 1]), ("oom", "finished"), "{seen:#?}");
    same_curve(&metrics(&short, "loss"), &whole, 1e-5);
    same_curve(&metrics(&short, "eval_loss"), &evaluations, 1e-5);
    // The long text comes in step 6, and every 5 steps are saved.
    assert_eq!(seen[seen.len() - 1]["first_step"], 6, "{seen:#?}");
    if engine == "process" {
        let record: Value = serde_json::from_str(&short.read_run("attempts/01/oom.json")).unwrap();
        assert_eq!((seen[0]["exit_code"].as_i64(), &record["memory"]), (Some(43), &"host".into()), "{record:#}");
        assert!(record["requested"].as_u64().is_some_and(|size| size > 1 << 20), "{record:#}");
        assert_eq!(record["step"], 6, "{record:#}");
        ended.says("the host's memory ran out in");
    }

    // A kill, a stop, and the rest.
    let slow = [&words[..], &["--pause", "0.2"]].concat();
    let killed = folder(engine, 4, &slow, None, json!({"train": {"batch": 4, "effective_batch": 32, "seed": 2}}));
    let running = killed.start(&["run", "own.yaml", "--ignore-ledger"]);
    wait_for(&killed, 5);
    kill(&killed.path().display().to_string());
    running.end().exits(6).says("SIGKILL");
    let running = killed.start(&["resume"]);
    wait_for(&killed, 10);
    running.signal("TERM");
    running.end().exits(130);
    killed.pipe(&["resume"]).exits(0);
    let seen = attempts(&killed);
    assert_eq!((seen[0]["outcome"].as_str(), seen[1]["outcome"].as_str()), (Some("failed"), Some("stopped")));
    // The same bits: it was cut in the same way.
    same_curve(&metrics(&killed, "loss"), &whole, 0.0);
    same_curve(&metrics(&killed, "eval_loss"), &evaluations, 0.0);
}

/// The folder of the only run, once there is one.
fn run_folder(folder: &Folder) -> PathBuf {
    folder.wait_until("a run", || folder.state().is_some());
    folder.run_folder()
}

fn wait_for(folder: &Folder, step: u64) {
    let path = run_folder(folder).join(format!("output/checkpoint-{step}.pt"));
    folder.wait_until("a checkpoint", || path.is_file());
}

/// Kills the Python of a job.
fn kill(tag: &str) {
    let is_it = |entry: &Path| {
        let read =
            |name: &str| String::from_utf8_lossy(&std::fs::read(entry.join(name)).unwrap_or_default()).into_owned();
        read("comm").starts_with("python3") && read("environ").split('\0').any(|each| each == format!("TAG={tag}"))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let found: Vec<PathBuf> = entries.filter(|entry| is_it(entry)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let id = found[0].file_name().unwrap().to_str().unwrap();
    assert!(Command::new("kill").args(["-KILL", id]).status().unwrap().success());
}

/// Each rank has its share, and one of them runs out of memory.
fn ranks() {
    let (script, steps) = (fixture("own_loop.py"), STEPS.to_string());
    let words = ["python3", &script, "--steps", &steps, "--hidden", "4096"];
    let (whole, evaluations) = undisturbed("process", &words);
    let launcher = ["python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"];
    let words = [&launcher[..], &words[1..]].concat();
    let folder = folder("process", 32, &words, Some(700_000), json!({}));
    folder.pipe(&["run", "own.yaml", "--ignore-ledger"]).exits(0);
    let seen = attempts(&folder);
    let last = seen.last().unwrap();
    assert_eq!((seen[0]["outcome"].as_str(), last["outcome"].as_str()), (Some("oom"), Some("finished")), "{seen:#?}");
    same_curve(&metrics(&folder, "loss"), &whole, 1e-5);
    same_curve(&metrics(&folder, "eval_loss"), &evaluations, 1e-5);
}

fn transformers() {
    let script = fixture("transformers_docs.py");
    let checkpoints = json!({"checkpoints": {"pattern": "checkpoint-*", "complete": "trainer_state.json"}});
    let folder = folder("process", 16, &["python3", &script], Some(600_000), checkpoints);
    folder.pipe(&["run", "own.yaml", "--ignore-ledger"]).exits(0).says("the host's memory ran out in");
    let seen = attempts(&folder);
    assert_eq!((seen[0]["outcome"].as_str(), seen[0]["exit_code"].as_i64()), (Some("oom"), Some(43)), "{seen:#?}");
    // Batch, accumulation and output folder were those of the attempt: the steps are those that the script asks for.
    assert_eq!(metrics(&folder, "loss").into_keys().collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    assert_eq!(metrics(&folder, "eval_accuracy").into_keys().collect::<Vec<_>>(), [6, 12]);
    assert!(folder.run_folder().join("output/checkpoint-12/model.safetensors").is_file());
    assert!(!folder.path().join("my_awesome_model/checkpoint-6").exists());

    // Stopped in its second epoch and resumed.
    let batch = seen.last().unwrap()["batch"].to_string();
    let set = format!("train.batch={batch}");
    let stopped =
        self::folder("process", 16, &["python3", &script], None, json!({"checkpoints": {"pattern": "checkpoint-*"}}));
    let running = stopped.start(&["run", "own.yaml", "--ignore-ledger", "--set", &set]);
    let checkpoint = run_folder(&stopped).join("output/checkpoint-6/trainer_state.json");
    stopped.wait_until("a checkpoint", || checkpoint.is_file());
    running.signal("TERM");
    running.end().exits(130);
    stopped.pipe(&["resume"]).exits(0);
    assert!(attempts(&stopped)[1]["first_step"].as_u64() > Some(6));
    assert_eq!(metrics(&stopped, "loss").into_keys().collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
}

fn lightning() {
    let folder = folder("process", 128, &["python3", &fixture("lightning_docs.py")], Some(600_000), json!({}));
    folder.pipe(&["run", "own.yaml", "--ignore-ledger"]).exits(0).says("the host's memory ran out in");
    let seen = attempts(&folder);
    assert_eq!((seen[0]["outcome"].as_str(), seen[0]["exit_code"].as_i64()), (Some("oom"), Some(43)), "{seen:#?}");
    assert_eq!(metrics(&folder, "loss").into_keys().collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    assert!(folder.run_folder().join("output/checkpoint-8.ckpt").is_file());
}

/// `pipe init --python` for a table and for texts: the scripts run by themselves and under pipe.
fn init() {
    let rows = |row: &dyn Fn(u64) -> String| (0..200).map(|number| row(number * 7919 % 200)).collect::<String>();
    let table = rows(&|n| {
        format!("{n},{}.5,{},{}\n", n * 3 % 50, ["red", "green"][(n % 2) as usize], if n > 90 { "yes" } else { "no" })
    });
    let words = ["good great fine film", "bad awful poor film"];
    let texts = rows(&|n| {
        format!(
            "{{\"review\": \"the {} number {n}\", \"stars\": \"{}\"}}\n",
            words[(n % 2) as usize],
            ["up", "down"][(n % 2) as usize]
        )
    });
    let folder = Folder::new().env("PYTHONPATH", python_path()).env("OMP_NUM_THREADS", 1);
    folder.write("table.csv", format!("size,width,colour,bought\n{table}")).write("texts.jsonl", texts);
    for (data, fields) in [("table.csv", "label=bought"), ("texts.jsonl", "text=review,label=stars")] {
        let name = data.split('.').next().unwrap();
        let words = ["init", "--python", "--yes", "--data", data, "--fields", fields, "--name", name];
        let (script, pipeline) = (format!("{name}.py"), format!("{name}.yaml"));
        folder.pipe(&words).exits(0).prints(&script).prints(&pipeline).says("the script needs torch and pipe_train");
        folder.pipe(&words).exits(2).says("already exists");
        folder.pipe(&["check", &pipeline]).exits(0);
        folder.pipe(&["run", &pipeline]).exits(0).says("its effective batch stays the same");
        let run = folder.show();
        let output = folder.path().join("runs").join(run["id"].as_str().unwrap()).join("output");
        assert!(output.join("model.pt").is_file());
        assert!(metrics(&folder, "eval_accuracy").into_values().last() > Some(0.8), "{run:#}");
        let alone =
            Command::new("python3").arg(&script).current_dir(folder.path()).env("PYTHONPATH", python_path()).output();
        assert!(alone.unwrap().status.success());
        assert!(folder.path().join("output/model.pt").is_file());
        std::fs::remove_dir_all(folder.path().join("output")).unwrap();
    }
}

/// The tests of the package itself.
fn package() {
    let words = ["-m", "unittest", "discover", "--start-directory", "tests"];
    let mut command = Command::new("python3");
    command
        .args(words)
        .current_dir(repository().join("python"))
        .env("PYTHONPATH", python_path())
        .env("HF_HUB_OFFLINE", "1");
    let bench = crate::harness::folder::pipe().with_file_name("pipe-trainer-bench");
    let ended = command.env("PIPE_TRAINER_BENCH", bench).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}");
    assert!(!said.contains("skipped"), "{said}");
}
