//! Commands of the user, which know nothing of pipe: the right verdict, the right next attempt, nothing left behind.

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.each_engine("commands::checkpoints_are_resumed_from", walk);
    let mut test = |name: &str, body: fn(&str)| suite.any_engine(&format!("commands::{name}"), body);
    test("a_smaller_batch_after_the_message_of_torch", cuda);
    test("a_smaller_batch_after_the_message_of_the_cpu_allocator", cpu);
    test("a_message_that_was_survived_is_none", survived);
    test("exit_codes_and_patterns_of_the_pipeline", own);
    test("a_command_that_ends_with_137_by_itself", exits_137);
    test("exit_codes_are_the_commands_own", exits_3);
    test("a_bar_without_an_end", flood);
    test("children_are_ended_with_it", children);
    test("metrics_are_read", metrics);
    test("the_next_run_starts_where_it_fits", known);
    test("one_that_does_not_stop_is_ended", stubborn);
    suite.test("commands::a_shell_and_what_it_started_are_stopped", Needs::Nothing, shell);
    suite.test("commands::what_moved_away_is_ended_with_it", Needs::Nothing, moved_away);
    suite.test("commands::the_first_process_is_killed::process", Needs::Nothing, first_process_is_killed);
    suite.test("commands::pipe_is_killed::process", Needs::Nothing, pipe_is_killed);
    suite.each_daemon("commands::pipe_is_killed", true, taken_over);
    suite.test("commands::a_stopped_program_is_told_and_hears_a_stop", Needs::Nothing, stopped_by_a_signal);
    suite.test("commands::a_stopped_first_process_is_told_and_hears_a_stop", Needs::Nothing, first_process_is_stopped);
    suite.each_daemon("commands::killed_by_the_kernel", false, killed_by_kernel);
    suite.thorough("commands::every_line_arrives::docker", Needs::Docker, every_line);
    suite.other_daemons("commands::every_line_arrives", false, every_line);
    suite.test("commands::nothing_outside_is_written::docker", Needs::Docker, outside);
    suite.test("commands::an_image_is_needed::docker", Needs::Docker, no_image);
    suite.test("commands::what_it_is_started_with", Needs::Nothing, values);
    suite.test("commands::no_trainer_is_needed::process", Needs::Nothing, without_trainer);
    suite.test("commands::allocators_are_told", Needs::Nothing, allocators);
    suite.test("commands::two_peaks_name_the_next_batch", Needs::Nothing, fitted);
    suite.test("commands::its_own_record_of_an_out_of_memory", Needs::Nothing, own_record);
    suite.test("commands::an_effective_batch_changes_only_where_it_may", Needs::Nothing, effective_batch);
    suite.test("commands::the_ledger_keeps_the_effective_batch", Needs::Nothing, known_effective_batch);
    suite.test("commands::a_start_from_the_beginning_is_explained", Needs::Nothing, beginning);
    suite.test("commands::bytes_of_the_output_are_kept", Needs::Nothing, bytes);
    suite.test("commands::bad_pipelines", Needs::Nothing, bad_pipelines);
    suite.test("commands::other_subcommands", Needs::Nothing, other_subcommands);
}

const ARGS: &str = "--batch {batch} --accum {accum} --out {run} --resume {resume}";

/// A folder with a pipeline that runs the stand-in as `job command WORDS`; `more` is added to the pipeline.
fn folder(engine: &str, words: &str, more: &str) -> Folder {
    let folder = job::folder("", "");
    let program = match engine {
        "docker" => "/job".to_owned(),
        _ => folder.path().join("image/job").display().to_string(),
    };
    let checkpoints = if more.contains("checkpoints") { "" } else { "checkpoints: {}\n" };
    let yaml = format!(
        "version: 1\nname: job\nengine: {engine}\ncommand: {program} command {words} {ARGS}\ntrain: {{batch: 8, accum: 2}}\n\
         container: {{gpus: 0, memory: 64m, image: image/job.Dockerfile, stop_timeout: 2}}\n{checkpoints}{more}"
    );
    folder.write("job.yaml", yaml);
    folder
}

fn attempts(folder: &Folder) -> Vec<(u64, u64, String, String)> {
    let run = folder.show();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let attempt = |attempt: &serde_json::Value| {
        let number = |key: &str| attempt[key].as_u64().unwrap();
        (number("batch"), number("accum"), text(&attempt["outcome"]), text(&attempt["cause"]))
    };
    run["attempts"].as_array().unwrap().iter().map(attempt).collect()
}

fn expect(folder: &Folder, want: &[(u64, u64, &str, &str)]) {
    let found = attempts(folder);
    let found: Vec<_> = found.iter().map(|(batch, accum, out, cause)| (*batch, *accum, &**out, &**cause)).collect();
    assert_eq!(found, want);
    assert!(folder.containers().is_empty());
}

fn cuda(engine: &str) {
    let folder = folder(engine, "cuda 2", "");
    folder
        .pipe(&["run", "job.yaml"])
        .exits(0)
        .says("your own program: its effective batch stays the same after a retry")
        .says("args: cuda 2 --batch 8 --accum 2")
        .says("the card's memory ran out: 2.0 GiB requested with 23.5 GiB of 24.0 GiB in use")
        .says("retrying: batch 4 instead of 8 (accum 4, effective batch 16 as before)");
    expect(&folder, &[(8, 2, "oom", "capacity"), (4, 4, "oom", "capacity"), (2, 8, "finished", "")]);
    let record: serde_json::Value = serde_json::from_str(&folder.read_run("attempts/01/oom.json")).unwrap();
    assert_eq!((record["requested"].as_u64(), record["allocated"].as_u64()), (Some(2 << 30), Some(45 << 29)));
    assert!(folder.read_run("attempts/01/log.txt").contains("CUDA out of memory"));
}

fn cpu(engine: &str) {
    let folder = folder(engine, "cpu 4", "");
    folder.pipe(&["run", "job.yaml"]).exits(0).says("the host's memory ran out: 8.0 GiB requested");
    expect(&folder, &[(8, 2, "oom", "host_memory"), (4, 4, "finished", "")]);
}

fn survived(engine: &str) {
    let folder = folder(engine, "survives", "");
    folder.pipe(&["run", "job.yaml"]).exits(0).says("lowering the resolution");
    expect(&folder, &[(8, 2, "finished", "")]);
}

fn own(engine: &str) {
    let by_code = folder(engine, "own 4", "on_oom: {exit_codes: [9]}\n");
    by_code.pipe(&["run", "job.yaml"]).exits(0).says("exit code 9, which on_oom.exit_codes names");
    expect(&by_code, &[(8, 2, "oom", "host_memory"), (4, 4, "finished", "")]);
    let by_text = folder(engine, "own 4", "on_oom: {patterns: ['heap .* full$']}\n");
    by_text.pipe(&["run", "job.yaml"]).exits(0);
    expect(&by_text, &[(8, 2, "oom", "host_memory"), (4, 4, "finished", "")]);
}

fn exits_137(engine: &str) {
    let folder = folder(engine, "exit 137", "");
    folder
        .pipe(&["run", "job.yaml"])
        .exits(6)
        .says("killed by SIGKILL (exit code 137), not because of memory")
        .says("giving up");
    expect(&folder, &[(8, 2, "failed", "killed")]);
}

/// 3 and 42 mean something of our trainer, and nothing of a command.
fn exits_3(engine: &str) {
    for code in [3, 42, 130] {
        let folder = folder(engine, &format!("exit {code}"), "");
        folder.pipe(&["run", "job.yaml"]).exits(6).says("giving up");
        assert_eq!(attempts(&folder)[0].2, "failed", "{code}");
    }
}

fn flood(engine: &str) {
    let folder = folder(engine, "flood 20", "");
    folder.pipe(&["run", "job.yaml"]).exits(0);
    let want = [(8, 2), (4, 4), (2, 8), (1, 16)];
    let found: Vec<_> = attempts(&folder).iter().map(|(batch, accum, ..)| (*batch, *accum)).collect();
    assert_eq!(found, want);
}

fn walk(engine: &str) {
    let folder = folder(engine, "walk 2", "checkpoints: {pattern: checkpoint-*, complete: step}\n");
    folder.pipe(&["run", "job.yaml"]).exits(0);
    expect(&folder, &[(8, 2, "oom", "capacity"), (4, 4, "oom", "capacity"), (2, 8, "finished", "")]);
    let log = |attempt: u32| folder.read_run(&format!("attempts/{attempt:02}/log.txt"));
    assert!(!log(1).contains("--resume"), "{}", log(1));
    for (attempt, steps) in [(1, [1, 2]), (2, [3, 4]), (3, [5, 6])] {
        let log = log(attempt);
        let found: Vec<&str> = log.lines().filter(|line| line.contains("step ")).collect();
        let want = steps.map(|step| format!("step {step} of batch {}", 16 >> attempt));
        assert!(found.len() == 2 && found.iter().zip(&want).all(|(line, want)| line.ends_with(want)), "{log}");
    }
    assert!(folder.run_folder().join("output/checkpoint-6/step").is_file());
}

fn children(engine: &str) {
    let folder = folder(engine, "children", "");
    folder.pipe(&["run", "job.yaml"]).exits(0);
    expect(&folder, &[(8, 2, "finished", "")]);
    if engine == "process" {
        let log = folder.read_run("attempts/01/log.txt");
        let child = log.lines().find_map(|line| line.split("child ").nth(1)).expect("the child");
        folder.wait_until("the child has ended", || is_gone(child));
    }
}

fn metrics(engine: &str) {
    let folder = folder(engine, "learn 4", "track: {tensorboard: true}\n");
    folder.pipe(&["run", "job.yaml"]).exits(0).prints("1-6").prints("4.000 to 0.667");
    let run = folder.show();
    let (first, last) = (&run["attempts"][0], &run["attempts"][1]);
    assert_eq!((first["last_step"].as_u64(), last["first_step"].as_u64()), (Some(3), Some(1)), "{run:#}");
    assert_eq!((run["steps"].as_u64(), last["last_loss"].as_f64()), (Some(6), Some(4.0 / 6.0)), "{run:#}");
    let events = folder.read_run("events.jsonl");
    assert_eq!(events.matches("\"type\":\"metrics\"").count(), 9, "{events}");
    let report = folder.read_run("report.html");
    assert!(
        report.contains("6 of 6")
            && report.contains("Loss")
            && report.contains("Eval loss")
            && !report.contains("Gradient norm"),
        "no curves"
    );
    folder.pipe(&["logs", "--json"]).exits(0).prints("\"loss\":");
    let folder_of_events = std::fs::read_dir(folder.run_folder()).unwrap().flatten();
    assert!(folder_of_events.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("tensorboard")));
    let without = folder.pipe(&["run", "job.yaml", "--set", "metrics=none", "--json"]).exits(0);
    assert!(!without.stdout.contains("\"metrics\""), "{}", without.stdout);
}

/// The ledger knows a command by its words: another one is another entry.
fn known(engine: &str) {
    let folder = folder(engine, "cpu 4", "");
    folder.pipe(&["run", "job.yaml"]).exits(0);
    folder.pipe(&["run", "job.yaml"]).exits(0).says("ledger: a batch of 8 did not fit").says("starting at 4");
    assert_eq!(folder.show()["attempts"].as_array().map(Vec::len), Some(1));
    folder.pipe(&["ledger", "ls"]).exits(0).prints("4 fits").prints("8 does not fit");
    folder.pipe(&["run", "job.yaml", "--ignore-ledger"]).exits(0).says_not("ledger:");
    let other = folder.read("job.yaml").replace("cpu 4", "cpu 2");
    folder.write("other.yaml", other);
    folder.pipe(&["run", "other.yaml"]).exits(0).says_not("ledger:");
}

/// With two peaks of smaller batches, which runs before have told, the next batch is the largest that fits.
fn fitted() {
    let folder = folder("process", "peak 46", "on_oom: {reduce: fit}\n");
    for batch in [4, 8] {
        let batch = format!("train.batch={batch}");
        folder
            .pipe(&[
                "run",
                "job.yaml",
                "--set",
                "train.accum=null",
                "--set",
                "train.effective_batch=128",
                "--set",
                &batch,
            ])
            .exits(0);
    }
    let large = [
        "run",
        "job.yaml",
        "--set",
        "train.accum=null",
        "--set",
        "train.effective_batch=128",
        "--set",
        "train.batch=64",
    ];
    folder.pipe(&large).exits(0);
    let batches: Vec<u64> = attempts(&folder).iter().map(|attempt| attempt.0).collect();
    assert!(batches.len() == 2 && (33..=46).contains(&batches[1]), "{batches:?}");
}

fn stubborn(engine: &str) {
    let folder = folder(engine, "stubborn", "");
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "sleeping");
    running.signal("TERM");
    running.end().exits(130).says("did not end within 2 s (container.stop_timeout)");
    expect(&folder, &[(8, 2, "stopped", "requested")]);
}

/// A folder with a pipeline of a script for sh, without a container.
fn script(stop_timeout: u32, script: &str) -> Folder {
    let folder = Folder::new();
    let head = "version: 1\nname: job\nengine: process\ncommand: [sh, script.sh]\n";
    let yaml = format!("{head}container: {{gpus: 0, stop_timeout: {stop_timeout}}}\n");
    folder.write("job.yaml", yaml).write("script.sh", script);
    folder
}

/// The shell passes no signal on, and ends at once; what it started saves.
fn shell() {
    let inner = "trap 'sleep 1; echo saved; exit' TERM; echo ready; while :; do sleep 0.1; done";
    let folder = script(60, &format!("sh -c \"{inner}\"\ntrue\n"));
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "ready");
    running.signal("TERM");
    running
        .end()
        .exits(130)
        .says("sent SIGTERM to the command")
        .says("saved")
        .says("\nstopped; continue with `pipe resume job-")
        .says_not("error:");
}

/// A program without accumulation, for which a batch above 16 is too large.
fn effective_batch() {
    let folder = Folder::new();
    let oom = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.'; exit 1";
    folder.write("t.sh", format!("test \"$2\" -le 16 || {{ {oom}; }}\necho trained on $2\n"));
    folder.pipe(&["init", "n.yaml", "--yes", "--command", "sh t.sh --batch-size 64 --output-dir out"]).exits(0).says(
        "accum     no option found: a smaller batch would change the effective batch, so out of memory ends the run",
    );
    let warning = "your own program, without {accum}: a smaller batch would change its effective batch";
    folder.pipe(&["check", "n.yaml"]).exits(0).prints(&format!("warning: {warning}"));
    let ended = folder
        .pipe(&["run", "n.yaml"])
        .exits(7)
        .says(warning)
        .says("a batch of 64 does not fit, and a smaller one would");
    ended.says("add {accum} to it").says("on_oom.then: [effective_batch]").says_not("retrying");
    expect(&folder, &[(64, 1, "oom", "capacity")]);
    folder.pipe(&["resume", "--set", "on_oom.then=[effective_batch]"]).exits(0).says("trained on 16");

    let allowed = ["run", "n.yaml", "--ignore-ledger", "--set", "on_oom.then=[effective_batch]"];
    folder
        .pipe(&allowed)
        .exits(0)
        .says("a smaller batch after out of memory makes its effective batch smaller, as on_oom.then allows")
        .says("retrying: batch 32 instead of 64, effective batch 32 instead of 64 (changes the training result)")
        .says("trained on 16")
        .says_not("as before");
    expect(&folder, &[(64, 1, "oom", "capacity"), (32, 1, "oom", "capacity"), (16, 1, "finished", "")]);
    let run = folder.show();
    assert_eq!(run["attempts"][2]["changes"][0], "effective batch 16 instead of 64");
    let report = folder.read(&format!("runs/{}/report.html", run["id"].as_str().unwrap()));
    assert!(report.contains("<td>effective batch 16 instead of 64</td>"), "{report}");

    let accumulates = ["run", "n.yaml", "--ignore-ledger", "--set", "on_oom.accumulates=true"];
    folder.pipe(&accumulates).exits(0).says("retrying: batch 16 instead of 32 (accum 4, effective batch 64 as before)");
    expect(&folder, &[(64, 1, "oom", "capacity"), (32, 2, "oom", "capacity"), (16, 4, "finished", "")]);
}

/// A program that tells its out-of-memory itself need not print it, and a record from before a later failure counts all the same: it is
/// written when memory ends the program. With an exit code of 0 it says nothing.
fn own_record() {
    let folder = Folder::new();
    let script = "record='{\"memory\": \"host\", \"phase\": \"eval\", \"step\": 3, \"batch\": 0, \"message\": \"Tried to allocate 2.00 GiB\"}'\n\
                  test -z \"$LIES\" || echo \"$LIES\" > \"$PIPE_OOM_RECORD\"\n\
                  test $PIPE_BATCH -gt $FITS && echo \"$record\" > \"$PIPE_OOM_RECORD\" && exit 43\n\
                  echo '{\"step\": 4, \"loss\": 0.5}'\nexit $CODE\n";
    let yaml = "version: 1\nname: job\nengine: process\ncommand: sh script.sh {accum} {seed}\ntrain: {batch: 8, accum: 2, seed: 7}\n\
                container: {gpus: 0, env: {FITS: '4', CODE: '0', LIES: ''}}\n";
    folder.write("script.sh", script).write("job.yaml", yaml);
    let ended = folder.pipe(&["run", "job.yaml"]).exits(0);
    ended.says("the host's memory ran out in eval of step 3: 2.0 GiB requested").says("batch 4 instead of 8");
    expect(&folder, &[(8, 2, "oom", "host_memory"), (4, 4, "finished", "")]);
    let record: serde_json::Value = serde_json::from_str(&folder.read_run("attempts/01/oom.json")).unwrap();
    assert_eq!((record["batch"].as_u64(), record["requested"].as_u64()), (Some(8), Some(2 << 30)), "{record:#}");
    let spec: serde_json::Value = serde_json::from_str(&folder.read_run("attempts/01/spec.json")).unwrap();
    assert_eq!((&spec["env"]["PIPE_SEED"], &spec["command"][3]), (&"7".into(), &"7".into()), "{spec:#}");

    // A record that is none, and one of a program that went on.
    let set = |name: &str, value: &str| format!("container.env.{name}='{value}'");
    let [fits, code, lies] = [set("FITS", "9"), set("CODE", "3"), set("LIES", "{}")];
    let run = ["run", "job.yaml", "--ignore-ledger", "--set", &fits, "--set", &lies];
    folder.pipe(&[&run[..], &["--set", &code]].concat()).exits(6).says("the command ended with exit code 3");
    let told = set("LIES", r#"{"memory": "host", "phase": "forward", "step": 1, "batch": 8, "message": ""}"#);
    folder.pipe(&["run", "job.yaml", "--ignore-ledger", "--set", &fits, "--set", &told]).exits(0);
    expect(&folder, &[(8, 2, "finished", "")]);
}

/// The ledger does not change it either.
fn known_effective_batch() {
    let folder = folder("process", "cpu 4", "");
    folder.write("job.yaml", folder.read("job.yaml").replace(" --accum {accum}", ""));
    folder.pipe(&["run", "job.yaml"]).exits(7);
    let refused = folder.pipe(&["run", "job.yaml"]).exits(7).says("a batch of 8 did not fit before, and a smaller one");
    refused.says("on_oom.then: [effective_batch]").says("--ignore-ledger").says_not("attempt 1");
    let allowed = folder.pipe(&["run", "job.yaml", "--set", "on_oom.then=[effective_batch]"]).exits(0);
    allowed.says("effective batch 8 instead of 16 (changes the training result), as on_oom.then allows");
    assert_eq!(folder.show()["attempts"][0]["changes"][0], "effective batch 8 instead of 16");
}

/// The checkpoints of the program are not those of the pattern.
fn beginning() {
    let folder = Folder::new();
    let script = "case $PIPE_ATTEMPT in\n\
                  1) echo x > \"$PIPE_RUN/ckpt-10.pt\"; echo 'CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1;;\n\
                  2) echo 'Traceback of 2'; exit 1;;\n\
                  *) echo \"continuing from $2\"; echo '{\"step\": 4, \"eval_accuracy\": 0.5, \"eval_loss\": 0.75}';;\nesac\n";
    let yaml =
        "version: 1\nname: job\nengine: process\ncommand: sh script.sh --accum={accum} {resume}\ncheckpoints: {}\n";
    folder.write("script.sh", script).write("job.yaml", yaml);
    let ended = folder.pipe(&["run", "job.yaml"]).exits(6).says("starting from the beginning: nothing in ");
    ended
        .says("matches checkpoint-*; found ckpt-10.pt: set checkpoints.pattern, such as ckpt-*.pt")
        .says("error: the command ended with exit code 1");
    let resumed = folder.pipe(&["resume", "--set", "checkpoints.pattern=ckpt-*.pt"]).exits(0);
    resumed.says("continuing from /").says_not("from the beginning").prints("eval.accuracy").prints("\noutput   runs/");
    let run = folder.show();
    assert_eq!(run["result"]["best"]["metrics"]["eval.accuracy"], 0.5, "{run:#}");
    folder.pipe(&["show"]).exits(0).prints("eval.accuracy");
    folder.pipe(&["ls"]).exits(0).prints("0.5");
    // The name of a pipeline is also the beginning of another name.
    folder.write("other.yaml", "version: 1\nname: job-hpo\nengine: process\ncommand: 'true'\n");
    folder.pipe(&["run", "other.yaml"]).exits(0);
    folder.pipe(&["show", "job"]).exits(0).prints("eval.accuracy");
    folder.pipe(&["show", "jo"]).exits(2).says("names several runs");
}

fn is_gone(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
    // A process that has ended and whose parent has not asked how.
    stat.is_empty() || stat.contains(") Z ")
}

fn moved_away() {
    let folder = script(
        60,
        "setsid sh -c 'echo $$ > \"$PIPE_RUN/id\"; sleep 600' &\nwhile ! test -s \"$PIPE_RUN/id\"; do sleep 0.1; done\n",
    );
    folder.pipe(&["run", "job.yaml"]).exits(0);
    let id = folder.read_run("output/id");
    folder.wait_until("it has ended", || is_gone(&id));
}

/// A job that kills its first process leaves nothing behind, though it writes down itself that all went well, and its child has
/// another session and no environment.
fn first_process_is_killed() {
    let folder = script(
        60,
        "setsid env -i sh -c 'echo $$ > \"$0\"; exec sleep 600' \"$PIPE_RUN/id\" &\n\
         while ! test -s \"$PIPE_RUN/id\"; do sleep 0.1; done\n\
         echo '{\"exit_code\": 0, \"oom_kills\": 0, \"error\": null}' > \"$PIPE_RUN/../attempts/01/job/end.json\"\n\
         kill -KILL $PPID\nsleep 600\n",
    );
    folder.pipe(&["run", "job.yaml"]).exits(6).says("killed by SIGKILL (exit code 137), not because of memory");
    let id = folder.read_run("output/id");
    assert!(is_gone(&id), "{id} lives");
}

/// Another attempt begins when nothing is left of the first.
fn pipe_is_killed() {
    let folder = script(
        3,
        "test $PIPE_ATTEMPT = 2 && exit 0\ntrap '' TERM\nsh -c 'echo $$ > \"$PIPE_RUN/id\"; echo ready; while :; do sleep 0.1; done'\n",
    );
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "ready");
    running.kill_alive();
    folder.pipe(&["resume"]).exits(0);
    let found: Vec<String> = attempts(&folder).into_iter().map(|attempt| attempt.2).collect();
    assert_eq!(found, ["stopped", "finished"]);
    assert!(is_gone(&folder.read_run("output/id")));
}

/// A program that stops itself is named in the log, and a request to stop reaches it nevertheless.
fn stopped_by_a_signal() {
    let folder = script(3, "trap 'echo heard; exit 143' TERM\nkill -STOP $$\nsleep 100\n");
    let running = folder.start(&["run", "job.yaml", "--set", "container.stop_timeout=60"]);
    folder.wait_for_log(1, "warning: a signal stopped the program of this job; it continues after SIGCONT");
    running.signal("TERM");
    running.end().exits(130).says("heard");
}

/// The same for the process that watches the job.
fn first_process_is_stopped() {
    let folder = script(3, "trap 'echo heard; exit 143' TERM\nkill -STOP $PPID\nwhile :; do sleep 0.1; done\n");
    let mut running = folder.start(&["run", "job.yaml", "--set", "container.stop_timeout=60"]);
    running.wait_until_it_says("warning: a signal stopped pipe-job (process ");
    running.signal("TERM");
    running.end().exits(130).says("heard");
}

/// A container goes on, and the next `pipe` takes it over.
fn taken_over() {
    let folder = folder("docker", "score 30 --millis 100", "");
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "\"step\": 5,");
    running.kill_alive();
    folder.pipe(&["resume"]).exits(0).says("taking over attempt 1");
    expect(&folder, &[(8, 2, "finished", "")]);
    // What was read again is written down once.
    for (name, before) in [("attempts/01/log.txt", "{\"step\": "), ("events.jsonl", "\"step\":")] {
        let text = folder.read_run(name);
        let step = |line: &str| line.split(before).nth(1)?.split(',').next()?.parse::<u32>().ok();
        assert!(text.lines().filter_map(step).eq(1..=30), "{name}:\n{text}");
    }
}

fn killed_by_kernel() {
    let folder = folder("docker", "eat 4", "");
    folder.pipe(&["run", "job.yaml"]).exits(0).says("the kernel killed it at its memory limit of 64.0 MiB");
    expect(&folder, &[(8, 2, "oom", "host_memory"), (4, 4, "finished", "")]);
}

/// Far more than a daemon keeps of a log, and the message after it.
fn every_line() {
    const LINES: usize = 100_000;
    let folder = folder("docker", &format!("many {LINES} --most 4"), "");
    folder.pipe(&["run", "job.yaml"]).exits(0);
    expect(&folder, &[(8, 2, "oom", "capacity"), (4, 4, "finished", "")]);
    for attempt in [1, 2] {
        let log = folder.read_run(&format!("attempts/{attempt:02}/log.txt"));
        let steps =
            log.lines().filter_map(|line| line.strip_prefix("{\"step\": ")?.split(',').next()?.parse::<usize>().ok());
        assert!(steps.eq(1..=LINES), "attempt {attempt} has {} lines", log.lines().count());
    }
}

fn outside() {
    let folder = folder("docker", "outside", "");
    let answer = folder.pipe(&["run", "job.yaml", "--set", "container.workdir=/run"]).exits(0);
    answer
        .says("refused /outside")
        .says("refused /job")
        .says("home /tmp")
        .says("folder /run")
        .says("from /tmp: exit status: 0");
}

fn no_image() {
    let folder = folder("docker", "survives", "");
    folder.write("job.yaml", folder.read("job.yaml").replace(" image: image/job.Dockerfile,", ""));
    folder
        .pipe(&["run", "job.yaml"])
        .exits(3)
        .says("container.image is missing: a command runs in an image of yours")
        .says("--engine process");
    assert!(!folder.has_runs());
    folder
        .pipe(&["run", "job.yaml", "--set", "container.image=nobody/nothing:latest"])
        .exits(5)
        .says("nobody/nothing:latest")
        .says("pull it first");
}

fn values() {
    let folder = Folder::new();
    folder.write(
        "job.yaml",
        "version: 1\nname: job\nengine: process\ncontainer: {gpus: 0, env: {MINE: a}}\ntrain: {batch: 3, effective_batch: 8, precision: \
         bf16}\nvars: {lr: 0.5, tag: x y}\ncommand: [sh, -c, 'echo \"$0 $PIPE_BATCH $PIPE_ACCUM $PIPE_EFFECTIVE_BATCH $PIPE_PRECISION \
         $PIPE_ATTEMPT $PIPE_VARS_LR $PIPE_VARS_TAG $MINE ${SECRET}\"; test -d \"$PIPE_RUN\" && pwd', '{vars.tag}-{precision}']\n",
    );
    let folder = folder.env("SECRET", "hidden");
    let here = folder.path().display().to_string();
    folder.pipe(&["run", "job.yaml"]).exits(0).says("x y-bf16 3 3 8 bf16 1 0.5 x y a hidden").says(&here);
    assert!(!folder.read_run("attempts/01/spec.json").contains("hidden"));
    folder.pipe(&["check", "job.yaml"]).exits(0).prints("job.yaml is valid: batch 3 x accum 3 = effective batch 8");
}

/// Only a training needs the trainer's file.
fn without_trainer() {
    let folder = Folder::new().env("PIPE_TRAINER", "/nowhere/pipe-trainer");
    folder.write(
        "job.yaml",
        "version: 1\nname: job\nengine: process\ncontainer: {gpus: 0}\ntrain: {batch: 4}\ncommand: [sh, -c, 'echo done']\n",
    );
    folder.pipe(&["run", "job.yaml"]).exits(0).says("done");
    folder.pipe(&["show", "latest"]).exits(0);
    folder.write("rows.jsonl", "{\"text\": \"a\", \"label\": \"x\"}\n");
    folder.write(
        "train.yaml",
        "version: 1\nname: train\nengine: process\nmodel: {arch: bag-of-words, config: {}}\ndata: {train: rows.jsonl}\n\
         train: {steps: 1, batch: 1, effective_batch: 1}\ncontainer: {gpus: 0}\n",
    );
    let said = folder.pipe(&["run", "train.yaml"]).exits(4).says("the trainer program was not found").stderr;
    assert_eq!(said.matches("/nowhere/pipe-trainer").count(), 1, "{said}");
}

/// What torch and JAX read, for a card of 24 GiB.
fn allocators() {
    let folder = job::on_card("", "", "24576 24000\n");
    folder.write(
        "job.yaml",
        "version: 1\nname: job\nengine: process\ncommand: sh -c env\ncontainer: {gpus: 1}\n\
         memory: {limit: 6g, allocator: {expandable_segments: true, max_split_size_mb: 64}}\n",
    );
    let dry = folder.pipe(&["run", "job.yaml", "--dry-run"]).exits(0).json();
    let env = &dry["spec"]["env"];
    let torch = "expandable_segments:True,max_split_size_mb:64,per_process_memory_fraction:";
    for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
        assert!(env[name].as_str().is_some_and(|text| text.starts_with(torch)), "{env:#}");
    }
    assert_eq!(env["XLA_PYTHON_CLIENT_MEM_FRACTION"], "0.2500", "{env:#}");
}

/// Text in another encoding is printed and written down as the job wrote it.
fn bytes() {
    let folder = script(60, "printf 'caf\\351\\n'\n");
    folder.pipe(&["run", "job.yaml"]).exits(0);
    assert_eq!(std::fs::read(folder.run_folder().join("attempts/01/log.txt")).unwrap(), b"caf\xe9\n");
    let printed = folder.command(&["logs"]).output().unwrap();
    assert_eq!(printed.stdout, b"caf\xe9\n");
}

fn bad_pipelines() {
    let folder = Folder::new();
    let head = "version: 1\nname: job\n";
    for (text, want) in [
        ("command: a {bach}\n", "command: unknown value {bach}; did you mean `batch`?"),
        ("command: a {vars.lr}\n", "command: unknown value {vars.lr}"),
        ("command: \"a 'b\"\n", "command: no program in it; is a quote left open?"),
        ("command: a\nmodel: {arch: t5, config: {}}\n", "model: give `model` or `command`, not both"),
        ("command: a\ntrain: {clip: 3}\n", "train.clip: not for a command"),
        ("command: a\ntrain: {batch: auto, effective_batch: 8}\n", "train.batch: found auto; a command needs a number"),
        ("command: a\non_oom: {patterns: ['(']}\n", "on_oom.patterns.0: not a regular expression: unclosed group"),
        (
            "command: a\non_oom: {then: [checkpointing]}\n",
            "on_oom.then.0: found \"checkpointing\"; allowed for a command: effective_batch",
        ),
        (
            "model: {arch: t5, config: {}}\ndata: {train: x}\non_oom: {then: [effective_batch]}\n",
            "on_oom.then.0: only for a `command`",
        ),
        (
            "model: {arch: t5, config: {}}\ndata: {train: x}\non_oom: {accumulates: true}\n",
            "on_oom.accumulates: only for a `command`",
        ),
        ("command: a\ncheckpoints: {folder: ../x}\n", "checkpoints.folder: must be a folder below {run}"),
        ("command: a --resume {resume}\n", "command: {resume} needs `checkpoints`"),
        ("command: a\non_oom: {patterns: ['x|']}\n", "on_oom.patterns.0: matches everything"),
        ("command: a\nmemory: {worst_first: true}\n", "memory.worst_first: not for a command"),
        ("command: a\nmetrics: jsn\n", "metrics: found the text \"jsn\""),
        ("command: a\nmetrics: ['loss ([0-9])']\n", "metrics.0: no value in it"),
        ("command: a\nmetrics: ['(']\n", "metrics.0: not a regular expression: unclosed group"),
        ("command: a\nvars: {a-b: 1}\n", "vars.a-b: a name has letters, digits and _"),
        ("model: {arch: t5, config: {}}\ndata: {train: x}\nvars: {a: 1}\n", "vars: only for a `command`"),
    ] {
        folder.write("job.yaml", format!("{head}{text}"));
        folder.pipe(&["check", "job.yaml"]).exits(3).says(want);
    }
}

fn other_subcommands() {
    let folder = folder("process", "survives", "");
    for words in [["plan", "job.yaml"], ["fit", "job.yaml"]] {
        folder.pipe(&words).exits(3).says("this pipeline runs a command, not a training");
    }
    folder.pipe(&["run", "job.yaml"]).exits(0);
    folder.pipe(&["ls"]).exits(0).prints("finished");
    folder.pipe(&["report"]).exits(0);
    folder.pipe(&["logs"]).exits(0).prints("lowering the resolution");
}
