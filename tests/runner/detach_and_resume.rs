//! Runs in the background: detached, watched, stopped, resumed. The result is that of an undisturbed run.

use std::time::Duration;

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;
use crate::walk::{STEPS, attempts, expect_undisturbed, expect_walked, expect_weights, walk};

pub fn tests(suite: &mut Suite) {
    suite.each_engine("detach_and_resume::stop_saves_and_resume_continues", stopped_and_resumed);
    suite.other_daemons("detach_and_resume::stop_saves_and_resume_continues", false, || stopped_and_resumed("docker"));
    suite.any_engine("detach_and_resume::detached_and_attached", detached);
    suite.any_engine("detach_and_resume::stop_of_an_orphan", stop_of_an_orphan);
    suite.test("detach_and_resume::ctrl_c_ends_attach_alone", Needs::Nothing, attach_can_be_left);
    suite.test("detach_and_resume::attach_gives_the_exit_code", Needs::Nothing, exit_codes);
    suite.test("detach_and_resume::one_pipe_at_a_time", Needs::Nothing, two_drivers);
    suite.test("detach_and_resume::resume_after_out_of_memory", Needs::Nothing, resume_after_oom);
    suite.test("detach_and_resume::resume_refuses_other_settings", Needs::Nothing, resume_keeps_the_maths);
    suite.test("detach_and_resume::resume_refuses_other_data", Needs::Nothing, resume_keeps_the_data);
    suite.test("detach_and_resume::logs_are_followed", Needs::Nothing, logs_are_followed);
    suite.test("detach_and_resume::a_large_log_in_little_memory", Needs::Nothing, || large_log(150_000));
    suite.thorough("detach_and_resume::a_very_large_log_in_little_memory", Needs::Nothing, || large_log(1_000_000));
    suite.test("detach_and_resume::runs_queue_for_a_card", Needs::Nothing, queue);
    suite.test("detach_and_resume::damaged_folders_are_listed", Needs::Nothing, damaged);
    suite.test("detach_and_resume::many_runs_are_listed", Needs::Nothing, many_runs);
}

fn detached(engine: &str) {
    let folder = walk(100);
    let answer = folder.pipe(&["run", "job.yaml", "--engine", engine, "--detach"]).exits(0).says("pipe attach");
    let id = answer.stdout.trim();
    assert_eq!(folder.show()["id"].as_str(), Some(id));
    assert_eq!(folder.show()["status"], "running");
    let seen = folder.pipe(&["attach", id]).exits(0).says("attempt 2").prints("finished");
    assert!(!seen.stderr.contains('\u{1b}'), "{seen}");
    expect_undisturbed(&folder);
    let events = folder.pipe(&["attach", id, "--json"]).exits(0).json_lines();
    let steps = events.iter().filter(|event| event["type"] == "step").count() as u64;
    assert_eq!((steps, events.last().unwrap()["type"].as_str()), (STEPS, Some("run")));
}

fn stopped_and_resumed(engine: &str) {
    let folder = job::folder(&format!("walk {STEPS} 300 8"), "train: {batch: 8}\n");
    let id = folder.pipe(&["run", "job.yaml", "--engine", engine, "--detach"]).exits(0).stdout.trim().to_owned();
    folder.wait_for_log(1, "step 3");
    folder.pipe(&["stop", &id]).exits(0).prints("stopped");
    folder.pipe(&["stop", &id]).exits(0).prints("is not running: stopped");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["exit_code"].as_u64()), (Some("stopped"), Some(130)));
    // Not the last line for certain: stdout and stderr of a container come side by side.
    assert!(folder.read_run("attempts/01/log.txt").contains("saved\n"));
    folder.pipe(&["attach", &id]).exits(130);
    folder.pipe(&["resume", &id]).exits(0);
    folder.pipe(&["resume", &id]).exits(0).prints("has finished");
    expect_walked(&folder.run_folder());
    let run = folder.show();
    assert_eq!(attempts(&run), [(8, "stopped"), (8, "finished")]);
    assert_eq!(run["attempts"][1]["resumed"], true);
}

fn stop_of_an_orphan(engine: &str) {
    let folder = job::folder(&format!("walk {STEPS} 100 8"), "train: {batch: 8}\n");
    let running = folder.start(&["run", "job.yaml", "--engine", engine]);
    folder.wait_for_log(1, "step 2");
    running.kill_alive();
    folder.pipe(&["stop", "job"]).exits(0).prints("stopped");
    assert!(folder.containers().is_empty());
    assert_eq!(folder.show()["status"], "stopped");
    folder.pipe(&["resume"]).exits(0);
    expect_weights(&folder.run_folder());
}

fn attach_can_be_left() {
    let folder = job::folder("sleep", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process", "-d"]).exits(0);
    folder.wait_for_log(1, "sleeping");
    let mut watching = folder.start(&["attach"]);
    watching.wait_until_it_says("attempt 1");
    watching.signal("INT");
    watching.end().exits(0).says("the run continues");
    assert_eq!(folder.show()["status"], "running");
    folder.pipe(&["stop", "job", "--now"]).exits(0);
    assert_eq!(folder.show()["status"], "stopped");
}

fn exit_codes() {
    for (job, code) in [("exit 1", 6), ("exit 3", 3), ("fit 0", 7)] {
        let folder = job::folder(job, "train: {batch: 2}\n");
        folder.pipe(&["run", "job.yaml", "--engine", "process", "--detach"]).exits(0);
        folder.pipe(&["attach"]).exits(code);
        folder.pipe(&["attach"]).exits(code);
    }
}

fn two_drivers() {
    let folder = job::folder("sleep", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process", "-d"]).exits(0);
    folder.pipe(&["resume"]).exits(1).says("is still running").says("hint: `pipe attach");
    folder.pipe(&["stop", "job"]).exits(0);
    // Two at once: one of them gets the run.
    let folder = walk(100);
    folder.pipe(&["run", "job.yaml", "--engine", "process", "-d"]).exits(0);
    folder.wait_for_log(1, "step 2");
    folder.pipe(&["stop", "job"]).exits(0);
    let (one, two) = (folder.start(&["resume"]), folder.start(&["resume"]));
    let mut codes = [one.end().code, two.end().code];
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(1)]);
    expect_weights(&folder.run_folder());
}

fn resume_after_oom() {
    let folder = job::folder(&format!("walk {STEPS} 1 2"), "train: {batch: 64}\non_oom: {retries: 1}\n");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(7).says("no retry is left (on_oom.retries: 1)");
    // The user resumes: as many retries again, from the batch where it ended.
    folder.pipe(&["resume"]).exits(7).says("attempt 3 of at most 4: batch 16");
    // With a changed setting the same batch is tried once more.
    folder.pipe(&["resume", "--set", "on_oom.retries=5"]).exits(0).says("attempt 5 of at most 10: batch 8");
    let run = folder.show();
    let batches: Vec<u64> = attempts(&run).iter().map(|(batch, _)| *batch).collect();
    assert_eq!(batches, [64, 32, 16, 8, 8, 4, 2], "{run:#}");
    assert_eq!(run["status"], "finished");
    expect_walked(&folder.run_folder());
    assert!(folder.read_run("resolved.yaml").contains("retries: 5"));
}

fn resume_keeps_the_maths() {
    let folder = job::folder("exit 1", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(6);
    for set in ["train.batch=4", "train.seed=2", "data.train=x.jsonl"] {
        folder
            .pipe(&["resume", "--set", set])
            .exits(2)
            .says("cannot change when a run is resumed")
            .says("start a new run");
    }
    // From another folder as well: the paths begin in the folder of the first run.
    let runs = folder.path().join("runs");
    let mut command = folder.command(&["resume"]);
    let output = command.current_dir("/").env("PIPE_RUNS", runs).output().unwrap();
    crate::harness::Answer::new("pipe resume".to_owned(), output).exits(6).says("the job was told to exit");
    assert_eq!(folder.show()["attempts"].as_array().unwrap().len(), 2);
}

fn resume_keeps_the_data() {
    let folder = job::folder("exit 1", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(6);
    let data = folder.read("train.jsonl");
    folder.write("train.jsonl", data.replace('a', "c"));
    folder
        .pipe(&["resume"])
        .exits(3)
        .says("inputs of the run have changed since it started")
        .says("data.train")
        .says("start a new run");
    folder.write("train.jsonl", data);
    folder.pipe(&["resume"]).exits(6).says("the job was told to exit");
}

fn logs_are_followed() {
    let folder = walk(60);
    folder.pipe(&["run", "job.yaml", "--engine", "process", "-d"]).exits(0);
    folder.wait_for_log(1, "step 1");
    let answer = folder.pipe(&["logs", "-f"]).exits(0);
    // Both attempts, to the end.
    let is_text = |line: &&str| line.starts_with("step ") && !line.contains(": loss ");
    let lines: Vec<&str> = answer.stdout.lines().filter(is_text).collect();
    let want: Vec<String> = (1..=STEPS).map(|step| format!("step {step}")).collect();
    assert_eq!(lines, want);
    let events = folder.pipe(&["logs", "--json", "--follow"]).exits(0).json_lines();
    assert_eq!(events.iter().filter(|event| event["type"] == "step").count() as u64, STEPS);
}

/// So many lines of 1 KB through `pipe`, into the log, and out of `pipe logs -f`, each in some dozen megabytes.
fn large_log(lines: u64) {
    let folder = job::folder(&format!("flood {lines}"), "");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "xxx");
    let mut command = folder.command(&["logs", "-f"]);
    let mut follower = command.spawn().unwrap();
    let mut out = follower.stdout.take().unwrap();
    let counted = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()).unwrap());
    let peak = |id: u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0").trim().to_owned();
        line.trim_end_matches(" kB").parse::<u64>().unwrap_or(0)
    };
    let (mut driver, mut reader) = (0, 0);
    while follower.try_wait().unwrap().is_none() {
        driver = driver.max(peak(running.id()));
        reader = reader.max(peak(follower.id()));
        std::thread::sleep(Duration::from_millis(20));
    }
    running.end().exits(0);
    assert!(counted.join().unwrap() > 1000 * lines);
    assert!(driver > 0 && reader > 0 && driver < 100_000 && reader < 60_000, "{driver} and {reader} KiB");
}

fn queue() {
    let folder = job::on_card("walk 12 400 8", "train: {batch: 8}\n", "16384 16000");
    let start = |name: &str| {
        let args = ["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1", "-d", "--name", name];
        folder.pipe(&args).exits(0).stdout.trim().to_owned()
    };
    let shown = |id: &str| folder.pipe(&["show", id, "--json"]).exits(0).json();
    let doing = |id: &str, what: &str| shown(id)["doing"].as_str().unwrap_or_default().contains(what);
    let one = start("one");
    folder.wait_until("the first to have the card", || doing(&one, "training"));
    let two = start("two");
    folder.wait_until("the second to wait", || doing(&two, &format!("waiting for gpu-0: run {one} has it")));
    let three = start("three");
    let want = format!("waiting for gpu-0: run {one} has it, 1 more ahead of this run");
    folder.wait_until("the third to wait", || doing(&three, &want));
    let ids = [one, two, three];
    folder.pipe(&["ls"]).exits(0).prints("waiting for gpu-0");
    // A run that is stopped leaves the queue.
    folder.pipe(&["stop", "two"]).exits(0);
    for id in [&ids[0], &ids[2]] {
        folder.pipe(&["attach", id]).exits(0);
    }
    let began = |id: &str| shown(id)["attempts"][0]["began"].as_f64().unwrap();
    let lasted = shown(&ids[0])["attempts"][0]["seconds"].as_f64().unwrap();
    assert!(began(&ids[2]) >= began(&ids[0]) + lasted, "they ran at the same time");
    assert_eq!(shown(&ids[1])["attempts"], serde_json::json!([]));
    let free = ["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1", "--no-queue"];
    folder.pipe(&free).exits(0);
}

fn damaged() {
    let made = walk(1);
    made.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let original = made.run_folder();
    let files = [
        "run.json",
        "events.jsonl",
        "resolved.yaml",
        "pipeline.yaml",
        "lock.json",
        "report.html",
        "pipe.log",
        ".owner",
        "attempts/01/spec.json",
        "attempts/01/log.txt",
        "attempts/01/outcome.json",
    ];
    for file in files {
        for truncated in [true, false] {
            let folder = Folder::new();
            let run = folder.path().join("runs").join(original.file_name().unwrap());
            std::fs::create_dir_all(run.parent().unwrap()).unwrap();
            let copied = std::process::Command::new("cp").arg("-a").args([&original, &run]).status().unwrap();
            assert!(copied.success());
            let path = run.join(file);
            let length = std::fs::metadata(&path).unwrap().len();
            match truncated {
                true => std::fs::File::options().write(true).open(&path).unwrap().set_len(length / 2).unwrap(),
                false => std::fs::remove_file(&path).unwrap(),
            }
            let id = original.file_name().unwrap().to_str().unwrap();
            let context = format!("{file}, {}", if truncated { "truncated" } else { "removed" });
            let listed = folder.pipe(&["ls"]).exits(0);
            assert!(listed.stdout.contains(id), "{context}\n{listed}");
            let shown = folder.pipe(&["show", id]).exits(0);
            let explained = file != "run.json" || shown.stdout.contains("run.json is");
            assert!(explained && shown.stdout.contains("oom"), "{context}\n{shown}");
            folder.pipe(&["report", id, "--out", "page.html"]).exits(0);
            assert!(folder.read("page.html").contains("</html>"), "{context}");
            let code = folder.pipe(&["resume", id]).code;
            assert_eq!(code, Some(if file == "run.json" { 1 } else { 0 }), "{context}");
            folder.pipe(&["rm", id]).exits(0);
        }
    }
}

/// How long it takes, `make bench` measures.
fn many_runs() {
    let folder = job::folder("fit 4", "train: {batch: 8}\n");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    job::copy_run(&folder.run_folder(), 200);
    assert_eq!(folder.pipe(&["ls", "--json"]).exits(0).json().as_array().unwrap().len(), 201);
}
