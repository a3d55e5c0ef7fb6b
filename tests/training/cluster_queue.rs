//! Steps and trials on a real Slurm: each is a job of its own, submitted when it is its turn, and nothing stays in the queue.

use crate::harness::{Folder, Needs, Suite};
use crate::slurm::{Slurm, on_cluster};

pub fn tests(suite: &mut Suite) {
    on_cluster(suite, "cluster_queue::steps_and_trials", Needs::Slurm, steps_and_trials);
}

const SMALL: &str = "container: {gpus: 0, cpus: 1, memory: 200m, env: {TOKEN: \"a ${TOKEN_OF_TEST}\"}}";

/// It is on no disk, but for that of the cluster.
const SECRET: &str = "value-of-a-variable";

/// Jobs by the name that they have, with their ids, in the order of the ids.
fn jobs(slurm: &Slurm) -> Vec<(String, String)> {
    let text = slurm.call("squeue", &["--noheader", "--array", "--states=all", "--sort=i", "--format=%j %i"]);
    text.lines().filter_map(|line| line.split_once(' ')).map(|(name, id)| (name.to_owned(), id.to_owned())).collect()
}

fn id_of(slurm: &Slurm, end_of_name: &str) -> String {
    let jobs = jobs(slurm);
    let found = jobs.iter().find(|(name, _)| name.ends_with(end_of_name));
    found.unwrap_or_else(|| panic!("no {end_of_name}: {jobs:?}")).1.clone()
}

#[track_caller]
fn holds_no_secret(folder: &Folder) {
    let found = folder.other_command("grep").args(["--recursive", "--files-with-matches", SECRET, "."]).output();
    assert_eq!(String::from_utf8(found.unwrap().stdout).unwrap(), "");
}

fn steps_and_trials(slurm: &Slurm) {
    let with_secret = || slurm.with(Folder::new()).env("TOKEN_OF_TEST", SECRET);
    steps(slurm, &with_secret());
    failed_step(slurm, &with_secret());
    stopped_steps(slurm, &with_secret());
    trials(slurm, &with_secret());
    stopped_trials(slurm, &with_secret());
}

fn write_steps(folder: &Folder, first: &str) {
    folder.write(
        "steps.yaml",
        format!(
            "version: 1\nname: graph\nengine: slurm\nsteps:\n  \
             one:\n    command: [bash, -c, '{first}']\n    outputs: {{a: a}}\n    train: {{batch: 8}}\n    {SMALL}\n  \
             two:\n    needs: [one]\n    command: [bash, -c, 'cat {{steps.one.a}} > {{run}}/b; echo \"$TOKEN\" | wc -c >> {{run}}/b']\n    \
             outputs: {{b: b}}\n    {SMALL}\n  \
             three:\n    needs: [two]\n    command: [bash, -c, 'cat {{steps.two.b}}']\n    {SMALL}\n"
        ),
    );
}

/// The first step runs out of memory once and continues in its next job. Each attempt ends when it is told.
fn steps(slurm: &Slurm, folder: &Folder) {
    let wait = format!("until [ -e {}/go-{{batch}} ]; do sleep 0.1; done", folder.path().display());
    let fails = "[ {batch} -lt 8 ] || { echo \"torch.OutOfMemoryError: CUDA out of memory\"; exit 1; }";
    write_steps(folder, &format!("{wait}; {fails}; echo done > {{run}}/a"));
    let on_oom = "steps.one.on_oom={patterns: [OutOfMemory], accumulates: true}";
    let args = ["run", "steps.yaml", "--set", on_oom];
    let running = folder.start(&args);
    let one = |attempt: u32| jobs(slurm).iter().any(|(name, _)| name.ends_with(&format!(".one:{attempt}")));
    for (attempt, go) in [(1, "go-8"), (2, "go-4")] {
        folder.wait_until("a job", || one(attempt) && slurm.queue().len() == 1);
        folder.write(go, "");
    }
    let answer = running.end().exits(0);
    answer.says("[three] done").says(&format!("[three] {}", SECRET.len() + 3));
    assert_eq!(slurm.queue(), [""; 0]);
    holds_no_secret(folder);
    // Nothing has changed: nothing runs, and nothing waits.
    let before = jobs(slurm);
    folder.pipe(&args).exits(0);
    assert!(jobs(slurm).iter().all(|job| before.contains(job)), "{before:?} and then {:?}", jobs(slurm));
}

/// Where a step fails, no job is left in the queue.
fn failed_step(slurm: &Slurm, folder: &Folder) {
    let wait = format!("until [ -e {}/go ]; do sleep 0.1; done", folder.path().display());
    write_steps(folder, &format!("{wait}; exit 1"));
    let running = folder.start(&["run", "steps.yaml"]);
    folder.wait_until("a job in the queue", || slurm.queue().len() == 1);
    folder.write("go", "");
    running.end().exits(6);
    assert_eq!(slurm.queue(), [""; 0]);
}

fn stopped_steps(slurm: &Slurm, folder: &Folder) {
    write_steps(folder, "sleep 100");
    folder.pipe(&["run", "steps.yaml", "--detach"]).exits(0);
    folder.wait_until("a job in the queue", || slurm.queue().len() == 1);
    folder.pipe(&["stop", "graph"]).exits(0);
    assert_eq!(slurm.queue(), [""; 0]);
    // Who cancels a job of one step stops all of them.
    let running = folder.start(&["resume"]);
    folder.wait_until("a job that runs", || slurm.queue().iter().any(|job| job.contains("RUNNING")));
    slurm.call("scancel", &["--state=RUNNING", "--user=root"]);
    running.end().exits(130).says("error: step one: the job was cancelled, not by pipe");
    assert_eq!(slurm.queue(), [""; 0]);
}

/// Each trial ends when the file `go` is there.
fn write_study(folder: &Folder, trials: u32) {
    let wait = format!("while not os.path.exists('{}/go'): time.sleep(0.1)", folder.path().display());
    let script =
        format!("import json, os, time\\n{wait}\\nprint(json.dumps(dict(step=1, loss=({{vars.x}} - 0.3) ** 2)))");
    folder.write(
        "study.yaml",
        format!(
            "version: 1\ntune: study\npipeline:\n  version: 1\n  name: study\n  engine: slurm\n  command: [python3, -c, \"{script}\"]\n  \
             vars: {{x: 1.0}}\n  {SMALL}\nobjective: {{metric: loss, direction: minimize}}\nspace: {{vars.x: {{low: 0.0, high: 1.0}}}}\n\
             budget: {{trials: {trials}, parallel: 2}}\nprune: {{kind: none}}\n"
        ),
    );
}

fn trials(slurm: &Slurm, folder: &Folder) {
    write_study(folder, 5);
    folder.write("go", "");
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0).prints("trials: 5 complete");
    let ids: Vec<u64> = (0..5).map(|trial| id_of(slurm, &format!(".{trial}:1")).parse().unwrap()).collect();
    // Two trials begin at once, in any order; each other one begins when one before it has ended.
    let first = ids[0].min(ids[1]);
    assert!(ids[2..].iter().all(|id| *id > first), "{ids:?}");
    assert_eq!(slurm.queue(), [""; 0]);
    holds_no_secret(folder);
}

/// A study that is stopped or cancelled leaves nothing behind, and goes on.
fn stopped_trials(slurm: &Slurm, folder: &Folder) {
    write_study(folder, 10);
    folder.pipe(&["tune", "run", "study.yaml", "--detach"]).exits(0);
    folder.wait_until("two jobs in the queue", || slurm.queue().len() == 2);
    folder.pipe(&["stop", "study"]).exits(0);
    assert_eq!(slurm.queue(), [""; 0]);
    let running = folder.start(&["tune", "resume"]);
    folder.wait_until("two jobs in the queue", || slurm.queue().len() == 2);
    slurm.call("scancel", &["--user=root"]);
    running.end().exits(130).says("the job was cancelled, not by pipe");
    assert_eq!(slurm.queue(), [""; 0]);
    folder.write("go", "");
    folder.pipe(&["tune", "resume"]).exits(0).prints("trials: 10 complete");
}
