//! What `pipe` adds to a job, measured beside plain Docker in one run, and a training step beside transformers: `make bench`.

#[path = "bench/data.rs"]
mod data;
#[allow(dead_code, unused_imports)] // A small part of both is used here.
mod harness;
#[allow(dead_code)]
#[path = "runner/stand_ins/job.rs"]
mod job;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::Folder;
use harness::folder::{binaries, repository};
use harness::suite::transformers;

const ROUNDS: usize = 15;

fn main() {
    // cargo bench -p pipe --bench bench -- data
    if std::env::args().any(|word| word == "data") {
        return data::formats();
    }
    println!("median of {ROUNDS} rounds, taken in turn\n");
    println!("{:<58} {:>9}  aim", "", "measured");
    let folder = job::folder("exit 0", "");
    let version = median((0..ROUNDS).map(|_| timed(|| folder.pipe(&["--version"]).exits(0))));
    line("pipe --version", version.as_secs_f64() * 1000.0, 10.0);
    many_runs();
    if Command::new("docker").arg("version").output().is_ok_and(|output| output.status.success()) {
        image_check();
        overhead(&folder);
    } else {
        println!("no Docker daemon answers: the check of an image and the run of a job are not measured");
    }
    training_step();
    data::formats();
}

fn many_runs() {
    let folder = job::folder("fit 4", "train: {batch: 8}\n");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    job::copy_run(&folder.run_folder(), 200);
    let listed = median((0..ROUNDS).map(|_| timed(|| folder.pipe(&["ls", "--json"]).exits(0))));
    line("pipe ls --json of 201 runs", listed.as_secs_f64() * 1000.0, 100.0);
}

/// One training step of T5-small on the CPU, ours and that of transformers, each in a process of its own.
fn training_step() {
    const SHAPE: [&str; 8] = ["--model", "t5-small", "--batch", "4", "--source", "128", "--target", "64"];
    const WHAT: &str = "a training step of T5-small on the CPU, fp32";
    let trainer = binaries().join("pipe-trainer-bench");
    if !trainer.is_file() {
        println!("{WHAT}: not measured, because pipe-trainer-bench is not built");
        return;
    }
    let args = ["--precision", "fp32", "--cpu", "--steps", "5"];
    let ours =
        milliseconds(Command::new(&trainer).arg("steps").args(SHAPE).args(args).env("OMP_WAIT_POLICY", "PASSIVE"));
    if !transformers().args(["-c", "import torch, transformers"]).output().is_ok_and(|output| output.status.success()) {
        let missing = "not compared with transformers, which `make test-transformers` fetches";
        println!("{WHAT:<58} {ours:>6.0} ms  {missing}");
        return;
    }
    let script = repository().join("tests/bench_gpu.py");
    let args = ["--variant", "eager", "--cpu"];
    let reference = milliseconds(transformers().arg(&script).arg("reference").args(SHAPE).args(args));
    let ratio = ours / reference;
    let verdict = if ratio <= 1.0 { "reached" } else { "missed" };
    println!("{WHAT}");
    println!("{:<58} {reference:>6.0} ms", "  transformers");
    println!("{:<58} {ours:>6.0} ms", "  pipe-trainer");
    println!("{:<58} {ratio:>6.2}     at most 1: {verdict}", "  ratio");
}

/// What a benchmark prints as `ms` in its last line, which is JSON.
fn milliseconds(command: &mut Command) -> f64 {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let result: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    result["ms"].as_f64().unwrap()
}

/// The trainer image with libtorch in it, or the stand-in's where no trainer is built.
fn image_check() {
    let real = binaries().join("pipe-trainer").is_file();
    let folder = if real { Folder::new() } else { job::folder("exit 0", "") };
    let args: &[&str] = if real { &["image", "build"] } else { &["image", "build", "image/job.Dockerfile"] };
    folder.pipe(args).exits(0);
    let check = median((0..ROUNDS).map(|_| timed(|| folder.pipe(args).exits(0).says("(unchanged)"))));
    let what = if real { "the trainer image" } else { "a small image" };
    line(&format!("pipe image build, {what} unchanged"), check.as_secs_f64() * 1000.0, 50.0);
}

/// The same job with `pipe run` and with `docker run`, alternating.
fn overhead(folder: &Folder) {
    let image = folder.pipe(&["image", "build", "image/job.Dockerfile"]).exits(0).stdout.trim().to_owned();
    folder.pipe(&["run", "job.yaml"]).exits(0);
    let run = folder.run_folder();
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(timed(|| folder.pipe(&["run", "job.yaml"]).exits(0)));
        plain.push(timed(|| docker_run(&image, &run)));
    }
    let (ours, plain) = (median(ours.into_iter()), median(plain.into_iter()));
    println!("{:<58} {:>6} ms", "docker run of a job that does nothing", plain.as_millis());
    println!("{:<58} {:>6} ms", "pipe run of the same, image unchanged", ours.as_millis());
    let more = (ours.as_secs_f64() - plain.as_secs_f64()) * 1000.0;
    line("  difference", more, 150.0);
}

fn docker_run(image: &str, run: &Path) {
    let mount = format!("type=bind,src={},dst=/run/pipe", run.display());
    let status = Command::new("docker")
        .args(["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "--memory", "64m"])
        .args(["--security-opt", "no-new-privileges", "--env", "JOB=exit 0", "--mount", &mount])
        .args([image, "train", "--spec", "/run/pipe/attempts/01/spec.json"])
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
}

fn timed<T>(what: impl FnOnce() -> T) -> Duration {
    let began = Instant::now();
    what();
    began.elapsed()
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times[times.len() / 2]
}

/// Both in milliseconds.
fn line(what: &str, measured: f64, aim: f64) {
    let verdict = if measured <= aim { "reached" } else { "missed" };
    println!("{what:<58} {measured:>6.1} ms  at most {aim} ms: {verdict}");
}
