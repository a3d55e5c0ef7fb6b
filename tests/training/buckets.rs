//! A training whose data and model are in a bucket and whose run is copied there, killed and continued elsewhere: the same bits.

use std::path::Path;

use crate::harness::folder::repository;
use crate::harness::moto::Moto;
use crate::harness::{Folder, Needs, Suite};

pub fn tests(suite: &mut Suite) {
    let both = [("process", Needs::Moto), ("docker", Needs::MotoAndDocker)];
    for (engine, needs) in both {
        suite.test(&format!("buckets::a_killed_run_continues_elsewhere::{engine}"), needs, move || elsewhere(engine));
    }
}

const STEPS: u64 = 40;

/// A bucket with rows, evaluation rows and a model.
fn bucket() -> Moto {
    let moto = Moto::start();
    let fixture = repository().join("tests/fixtures/t5-gated");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        moto.put(&format!("models/t5/{name}"), std::fs::read(fixture.join(name)).unwrap());
    }
    let rows = std::fs::read(fixture.join("train.jsonl")).unwrap();
    moto.put("rows/train.jsonl", &rows);
    moto.put("rows/eval.jsonl", &rows);
    moto
}

fn folder(moto: &Moto) -> Folder {
    let pipeline = format!(
        "version: 1\nname: bucket\nmodel: {{arch: t5, from: s3://data/models/t5}}\n\
         data: {{train: s3://data/rows/train.jsonl, eval: s3://data/rows/eval.jsonl, max_source: 48, max_target: 64}}\n\
         train: {{steps: {STEPS}, batch: 4, dropout: 0.1, optimizer: {{lr: 2.0e-3}}}}\n\
         evaluate: {{every: 10}}\nsave: {{every: 5, keep: 2, best: eval.loss, to: s3://data/runs}}\n\
         container: {{gpus: 0, cpus: 1}}\n"
    );
    let folder = moto.known_to(Folder::new());
    folder.write("bucket.yaml", pipeline);
    folder
}

fn model(folder: &Folder) -> Vec<u8> {
    std::fs::read(folder.run_folder().join("model/model.safetensors")).unwrap()
}

fn newest_checkpoint(moto: &Moto, id: &str) -> Option<String> {
    let text = String::from_utf8(moto.get(&format!("runs/{id}/manifest.json"))?).ok()?;
    text.split("checkpoints/step-").skip(1).map(|rest| rest[..8].to_owned()).max()
}

fn elsewhere(engine: &str) {
    let moto = bucket();
    let run = ["run", "bucket.yaml", "--engine", engine];
    let undisturbed = folder(&moto);
    undisturbed.pipe(&run).exits(0);

    let first = folder(&moto);
    let running = first.start(&run);
    first.wait_until("the run", || first.has_runs() && first.state().is_some());
    let id = first.show()["id"].as_str().unwrap().to_owned();
    first.wait_until("a checkpoint in the bucket", || newest_checkpoint(&moto, &id).is_some());
    // As if the machine were gone: process, run folder and cache.
    running.kill_alive();
    for container in first.containers() {
        std::process::Command::new("docker").args(["rm", "-f", &container]).output().unwrap();
    }
    first.wait_until("the end of the job", || !is_running(&first.run_folder()));
    for place in ["runs", "cache"] {
        std::fs::remove_dir_all(first.path().join(place)).unwrap();
    }

    let second = moto.known_to(Folder::new());
    let address = format!("s3://data/runs/{id}");
    second.pipe(&["resume", &address]).exits(0).says(&format!("run {id} is here, from {address}"));
    let state = second.show();
    assert_eq!((state["status"].as_str(), state["id"].as_str()), (Some("finished"), Some(id.as_str())));
    assert!(state["attempts"].as_array().unwrap().len() == 2, "{state:#}");
    assert!(model(&second) == model(&undisturbed), "the same bits");
    // The model is in the bucket too, and a third machine has it.
    let third = moto.known_to(Folder::new());
    third.pipe(&["resume", &address]).exits(0).prints(&format!("run {id} has finished"));
    assert!(model(&third) == model(&undisturbed));
}

/// Whether a process works for the run in this folder.
fn is_running(run: &Path) -> bool {
    let own = run.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(&own))
}
