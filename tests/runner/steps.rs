//! Pipelines of several steps: each after those that it needs, none run again without a reason, whatever is killed.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.each_engine("steps::a_diamond_with_one_that_fails_is_resumed", diamond);
    suite.any_engine("steps::only_what_depends_on_a_change_runs_again", changes);
    suite.any_engine("steps::pipe_is_killed_at_any_time", killed);
    suite.test("steps::all_are_killed", Needs::Nothing, all_are_killed);
    suite.test("steps::stopped_and_resumed", Needs::Nothing, stopped);
    suite.test("steps::side_by_side_where_there_is_room", Needs::Nothing, side_by_side);
    suite.test("steps::one_alone_and_from_one_on", Needs::Nothing, only_and_from);
    suite.test("steps::what_is_missing_is_said", Needs::Nothing, missing);
    suite.test("steps::they_are_listed_shown_and_removed", Needs::Nothing, listed);
    suite.test("steps::as_json", Needs::Nothing, json);
    suite.test("steps::an_output_that_was_missing_is_written_by_the_next_try", Needs::Nothing, repaired);
    suite.test("steps::a_traceback_is_shown_once", Needs::Nothing, traceback);
    suite.test("steps::what_a_step_depends_on", Needs::Nothing, depends);
    suite.test("steps::a_result_of_two_scripts_is_of_neither", Needs::Nothing, mixed);
    suite.test("steps::the_architecture_is_that_of_the_model", Needs::Nothing, architecture);
    suite.test("steps::only_files_and_folders_are_read", Needs::Nothing, special);
    suite.test("steps::hashing_can_be_interrupted", Needs::Nothing, interrupted);
    suite.test("steps::an_input_that_changes_meanwhile", Needs::Nothing, changed_meanwhile);
    suite.test("steps::outputs_that_are_read_are_not_removed", Needs::Nothing, in_use);
    suite.test("steps::a_damaged_step_does_not_stop_the_others", Needs::Nothing, damaged);
    suite.test("steps::a_link_does_not_lead_out::docker", Needs::Docker, linked);
    suite.test("steps::mounts_that_change_places::docker", Needs::Docker, swapped);
}

/// A folder with a diamond of four steps. Each writes what those before it wrote, and its name; `left` and `right` read a file of
/// their own, which may ask them to fail. A step takes so many milliseconds.
pub fn folder(engine: &str, millis: u32) -> Folder {
    let folder = job::folder("", "");
    let (program, below) = match engine {
        "docker" => ("/job".to_owned(), "/own".to_owned()),
        _ => (folder.path().join("image/job").display().to_string(), folder.path().join("own").display().to_string()),
    };
    let own = |name: &str| match engine {
        "docker" => (
            format!("/{name}.txt"),
            format!("{{mounts: [{{host: own/{name}.txt, container: /{name}.txt}}], cpus: 0.5}}"),
        ),
        _ => (format!("{below}/{name}.txt"), "{cpus: 0.5}".to_owned()),
    };
    let ((left, left_container), (right, right_container)) = (own("left"), own("right"));
    let join = format!("{program} command join {millis}");
    let yaml = format!(
        "version: 1\nname: diamond\nengine: {engine}\ncontainer: {{gpus: 0, memory: 64m, image: image/job.Dockerfile, stop_timeout: 2}}\n\
         steps:\n  first:\n    command: {join} first --out {{run}}\n    outputs: {{text: text}}\n    container: {{cpus: 0.5}}\n\
         \x20 left:\n    needs: [first]\n    command: {join} left --out {{run}} --in {{steps.first.text}} {left}\n    container: {left_container}\n\
         \x20 right:\n    needs: [first]\n    command: {join} right --out {{run}} --in {{steps.first}}/text {right}\n    container: {right_container}\n\
         \x20 end:\n    needs: [left, right]\n    command: {join} end --out {{run}} --in {{steps.left}}/text {{steps.right}}/text\n    container: {{cpus: 0.5}}\n"
    );
    folder.write("steps.yaml", yaml).write("own/left.txt", "").write("own/right.txt", "");
    folder
}

const JOINED: &str = "first\nleft\nfirst\nright\nend\n";

/// Name and status of each step of the newest run, and the run that did it.
fn graph(folder: &Folder) -> Vec<(String, String, String)> {
    let run = folder.show();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let steps = run["graph"].as_array().unwrap_or_else(|| panic!("no steps: {run:#}"));
    steps.iter().map(|step| (text(&step["name"]), text(&step["status"]), text(&step["run"]))).collect()
}

fn statuses(folder: &Folder) -> String {
    graph(folder).iter().map(|(name, status, _)| format!("{name} {status}")).collect::<Vec<_>>().join(", ")
}

/// How many attempts the run of a step has.
fn attempts(folder: &Folder, name: &str) -> usize {
    let (.., run) = graph(folder).into_iter().find(|step| step.0 == name).expect("the step");
    folder.pipe(&["show", &run, "--json"]).exits(0).json()["attempts"].as_array().map_or(0, Vec::len)
}

fn end_text(folder: &Folder) -> String {
    let (.., run) = graph(folder).into_iter().find(|step| step.0 == "end").expect("the step");
    folder.read(&format!("runs/{run}/output/text"))
}

fn diamond(engine: &str) {
    let folder = folder(engine, 0);
    folder.write("own/left.txt", "fail left\n");
    folder
        .pipe(&["run", "steps.yaml"])
        .exits(6)
        .says("[first] joined first")
        .says("[left] failed: the command ended with exit code 4; `pipe logs ")
        .says("[right] finished")
        .says("continues the unfinished steps");
    assert_eq!(statuses(&folder), "first finished, left failed, right finished, end waiting");
    assert_eq!(folder.show()["exit_code"], 6);
    folder.write("own/left.txt", "");
    folder.pipe(&["resume"]).exits(0).says("[left] joined left").says_not("[first] joined").says_not("asked to fail");
    assert_eq!(statuses(&folder), "first finished, left finished, right finished, end finished");
    assert_eq!(end_text(&folder), JOINED);
    assert_eq!(["first", "left", "right", "end"].map(|step| attempts(&folder, step)), [1, 2, 1, 1]);
    // A step that is no training has no batch.
    let (.., first) = graph(&folder).into_iter().find(|step| step.0 == "first").expect("the step");
    folder.pipe(&["show", &first]).exits(0).prints("1        -      finished");
    let report = folder.read(&format!("runs/{first}/report.html"));
    assert!(!report.contains("8 &times; 1"), "a batch in the report");
    assert!(folder.containers().is_empty());
    folder.pipe(&["resume"]).exits(0).prints("has finished");
}

fn changes(engine: &str) {
    let folder = folder(engine, 0);
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    let first = graph(&folder);
    folder.pipe(&["run", "steps.yaml"]).exits(0).says("[end] nothing has changed since").says_not("joined");
    assert_eq!(statuses(&folder), "first unchanged, left unchanged, right unchanged, end unchanged");
    assert!(graph(&folder).iter().zip(&first).all(|(now, then)| now.2 == then.2), "{:?}", graph(&folder));
    // What one reads, and the steps after it.
    folder.write("own/right.txt", "more\n");
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    assert_eq!(statuses(&folder), "first unchanged, left unchanged, right finished, end finished");
    assert_eq!(end_text(&folder), JOINED.replace("right", "more\nright"));
    // A command, whose output is what it was: nothing after it runs.
    let yaml = folder.read("steps.yaml").replace("join 0 left", "join 1 left");
    folder.write("steps.yaml", yaml);
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    assert_eq!(statuses(&folder), "first unchanged, left finished, right unchanged, end unchanged");
    // What was written is not what it was any more.
    let (.., right) = graph(&folder).into_iter().find(|step| step.0 == "right").unwrap();
    folder.write(&format!("runs/{right}/output/text"), "spoilt\n");
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    assert_eq!(statuses(&folder), "first unchanged, left unchanged, right finished, end unchanged");
    // Settings that change nothing about the result.
    let set = ["run", "steps.yaml", "--set", "on_oom.retries=1", "--set", "container.stop_timeout=3"];
    folder.pipe(&set).exits(0);
    assert_eq!(statuses(&folder), "first unchanged, left unchanged, right unchanged, end unchanged");
    assert!(folder.containers().is_empty());
}

fn killed(engine: &str) {
    let folder = folder(engine, 120);
    let mut running = folder.start(&["run", "steps.yaml"]);
    running.wait_until_it_says("run diamond");
    let mut kills = 0;
    for wait in (0..).map(|number| 40 + 90 * (number % 7)) {
        std::thread::sleep(Duration::from_millis(wait));
        if running.has_ended() {
            running.end().exits(0);
            break;
        }
        running.kill();
        kills += 1;
        assert!(kills < 60, "it never ends: {}", statuses(&folder));
        running = folder.start(&["resume", "latest"]);
    }
    assert!(kills >= 3, "{kills}");
    assert_eq!(statuses(&folder), "first finished, left finished, right finished, end finished");
    assert_eq!(end_text(&folder), JOINED);
    assert_eq!(["first", "left", "right", "end"].map(|step| attempts(&folder, step)), [1; 4]);
    assert!(folder.containers().is_empty());
}

/// The run and those of its steps: what a step had done is done again, and no step that has finished.
fn all_are_killed() {
    let folder = folder("process", 400);
    let mut running = folder.start(&["run", "steps.yaml"]);
    running.wait_until_it_says("[left] attempt 1");
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    running.kill_alive();
    for name in ["left", "right"] {
        let owner = std::fs::read_to_string(folder.path().join(format!("runs/{id}.{name}/.owner"))).unwrap_or_default();
        if let Some(pid) = owner.split_whitespace().next() {
            std::process::Command::new("kill").args(["-9", pid]).status().unwrap();
        }
    }
    folder.pipe(&["ls"]).exits(0).prints("orphaned");
    folder.pipe(&["attach", &id]).exits(0);
    assert_eq!(statuses(&folder), "first finished, left finished, right finished, end finished");
    assert_eq!(end_text(&folder), JOINED);
    assert_eq!(attempts(&folder, "first"), 1);
}

fn stopped() {
    let folder = folder("process", 60_000);
    let yaml = folder.read("steps.yaml").replace("join 60000 first", "join 0 first");
    folder.write("steps.yaml", yaml);
    let detached = folder.pipe(&["run", "steps.yaml", "--detach"]).exits(0);
    let id = detached.stdout.trim().to_owned();
    let log = |name: &str| std::fs::read_to_string(folder.path().join(format!("runs/{id}.{name}/attempts/01/log.txt")));
    folder.wait_until("both run", || {
        ["left", "right"].iter().all(|name| log(name).is_ok_and(|log| log.contains("args")))
    });
    folder.pipe(&["stop", &id]).exits(0).prints("stopped");
    assert_eq!(statuses(&folder), "first finished, left stopped, right stopped, end waiting");
    // One that nobody drives is stopped, too.
    let mut running = folder.start(&["resume", &id]);
    running.wait_until_it_says("[right] attempt 2");
    running.kill_alive();
    folder.pipe(&["stop", &id]).exits(0).prints("stopped");
    assert_eq!(statuses(&folder), "first finished, left stopped, right stopped, end waiting");
    let alive = std::process::Command::new("pgrep")
        .args(["-f", &folder.path().join("image/job").display().to_string()])
        .output()
        .unwrap();
    assert!(alive.stdout.is_empty(), "{}", String::from_utf8_lossy(&alive.stdout));
}

fn side_by_side() {
    let times = |folder: &Folder| {
        let run = folder.show();
        let of = |name: &str| {
            let step = run["graph"].as_array().unwrap().iter().find(|step| step["name"] == name).unwrap().clone();
            let began = step["began"].as_f64().unwrap();
            (began, began + step["seconds"].as_f64().unwrap())
        };
        let (left, right) = (of("left"), of("right"));
        left.0.max(right.0) < left.1.min(right.1)
    };
    let folder = folder("process", 700);
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    assert!(times(&folder), "one after the other");
    let wide = [
        "run",
        "steps.yaml",
        "--from",
        "first",
        "--set",
        "steps.left.container.cpus=512",
        "--set",
        "steps.right.container.cpus=512",
    ];
    folder.pipe(&wide).exits(0);
    assert!(!times(&folder), "side by side on a machine that is too small for that");
}

fn only_and_from() {
    let folder = folder("process", 0);
    folder
        .pipe(&["run", "steps.yaml", "--only", "right"])
        .exits(2)
        .says("right needs first, which has not finished in any run that is still here")
        .says("--from first");
    folder
        .pipe(&["run", "steps.yaml", "--only", "rihgt"])
        .exits(2)
        .says("there is no step \"rihgt\"; steps: first, left, right, end");
    folder.pipe(&["run", "job.yaml", "--only", "right"]).exits(2).says("job.yaml has no steps");
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    folder
        .pipe(&["run", "steps.yaml", "--only", "right"])
        .exits(0)
        .says("[right] joined right")
        .says_not("joined left");
    assert_eq!(statuses(&folder), "first unchanged, left left_out, right finished, end left_out");
    folder.pipe(&["run", "steps.yaml", "--from", "right"]).exits(0);
    assert_eq!(statuses(&folder), "first unchanged, left unchanged, right finished, end finished");
    assert_eq!(end_text(&folder), JOINED);
    let planned = folder.pipe(&["run", "steps.yaml", "--dry-run"]).exits(0).json();
    assert_eq!(planned["steps"][3]["needs"], serde_json::json!(["left", "right"]));
    // The newest run that did not finish goes on with --resume, and a file that was changed begins anew.
    folder.write("own/left.txt", "fail left\n");
    folder.pipe(&["run", "steps.yaml"]).exits(6);
    folder.write("own/left.txt", "");
    folder.pipe(&["run", "steps.yaml", "--resume"]).exits(0).says("resuming run diamond");
    assert_eq!(attempts(&folder, "left"), 2);
}

fn missing() {
    let folder = folder("process", 0);
    let yaml = folder.read("steps.yaml");
    folder.write("steps.yaml", yaml.replace("{text: text}", "{text: txt}"));
    folder
        .pipe(&["run", "steps.yaml"])
        .exits(6)
        .says("[first] failed: the step first has not written its output text")
        .says("output/txt is not there");
    assert_eq!(statuses(&folder), "first failed, left waiting, right waiting, end waiting");
    folder.write("steps.yaml", yaml.replace("needs: [left, right]", "needs: [left, rigth]"));
    folder
        .pipe(&["run", "steps.yaml"])
        .exits(3)
        .says("steps.end.needs: there is no step \"rigth\"; did you mean `right`?");
    folder.pipe(&["check", "steps.yaml"]).exits(3).says("did you mean `right`?");
    // What is missing before the first step begins is said then.
    folder.write("steps.yaml", yaml.replace("  end:", "  end:\n    inputs: [nowhere]"));
    for command in ["run", "check"] {
        folder.pipe(&[command, "steps.yaml"]).exits(3).says("steps.end.inputs.0: there is no nowhere");
    }
    folder.write("steps.yaml", &yaml);
    folder.pipe(&["check", "steps.yaml"]).exits(0).prints("steps.yaml is valid: 4 steps").prints("after left, right");
    for command in ["plan", "fit"] {
        folder.pipe(&[command, "steps.yaml"]).exits(3).says("steps");
    }
}

fn listed() {
    let folder = folder("process", 0);
    folder.pipe(&["run", "steps.yaml"]).exits(0).prints("end    finished").prints("left, right");
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    let list = folder.pipe(&["ls"]).exits(0).prints("4 of 4 steps done");
    assert!(list.stdout.contains(&format!("\n  {id}.first  finished")), "{}", list.stdout);
    // The table and the page have what each step has achieved.
    let first = format!("runs/{id}.first/run.json");
    let mut state: Value = serde_json::from_str(&folder.read(&first)).unwrap();
    state["result"] = json!({ "answer": { "metric": "eval.accuracy", "value": 0.75, "rows": 8 } });
    folder.write(&first, state.to_string());
    folder.pipe(&["show", &id]).exits(0).prints("right  finished").prints("75 % right");
    let page = folder.pipe(&["report", &id, "--out", "-"]).exits(0).stdout;
    assert!(page.contains("75 % right on 8 held-out rows"), "{page}");
    folder.pipe(&["logs", &id]).exits(0).prints(&format!("== {id}.left")).prints("joined right");
    folder.pipe(&["logs", &format!("{id}.left")]).exits(0).prints("joined left");
    folder.pipe(&["logs", &id, "-f"]).exits(2).says("has several steps").says("name one of them");
    folder.pipe(&["diff", &id, &id]).exits(2).says("name one of them");
    folder.pipe(&["report"]).exits(0);
    let page = folder.read(&format!("runs/{id}/report.html"));
    assert!(page.contains("<svg class=\"graph\"") && page.contains(&format!("../{id}.end/report.html")), "no graph");
    assert!(!page.contains("This page is not complete"));
    // The beginning of an id is that of the whole run.
    folder.pipe(&["show", &id[..id.len() - 2]]).exits(0).prints("right  finished");
    folder.pipe(&["rm", &id]).exits(0);
    assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 0);
}

fn json() {
    let folder = folder("process", 0);
    let lines = folder.pipe(&["run", "steps.yaml", "--json"]).exits(0).json_lines();
    let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).cloned().collect::<Vec<_>>();
    let attempts = of("attempt");
    assert!(attempts.len() == 4 && attempts.iter().all(|line| line["in"].is_string()), "{lines:#?}");
    let ended = of("pipeline_step").iter().filter(|line| line["status"] == "finished").count();
    assert_eq!((ended, of("run").len()), (4, 1), "{lines:#?}");
    assert_eq!(of("run")[0]["graph"][3]["status"], "finished");
}

/// A folder with a pipeline of scripts, without a container.
fn scripts(steps: &str, files: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    folder.write(
        "steps.yaml",
        format!("version: 1\nname: scripts\nengine: process\ncontainer: {{gpus: 0}}\nsteps:\n{steps}"),
    );
    files.iter().for_each(|(name, text)| {
        folder.write(name, text);
    });
    folder
}

fn repaired() {
    let folder = scripts("  a: {command: 'sh a.sh {run}', outputs: {rows: rows}}\n", &[("a.sh", "true\n")]);
    folder
        .pipe(&["run", "steps.yaml"])
        .exits(6)
        .says("has not written its output rows")
        .says("write it below {run}, or correct `outputs`");
    folder.write("a.sh", "echo 1 > $1/rows\n");
    folder.pipe(&["resume"]).exits(0);
    assert_eq!(statuses(&folder), "a finished");
}

/// A change of any of these is a change of the step.
fn depends() {
    let steps = "  side: {command: sh side.sh, outputs: {}}\n\
                 \x20 a:\n    needs: [side]\n    command: [sh, '{vars.script}', --conf=conf, folder]\n    vars: {script: a.sh}\n    inputs: [linked]\n";
    let files =
        [("side.sh", "date +%N > shared\n"), ("a.sh", "true\n"), ("conf", "1"), ("folder/x", "1"), ("real/x", "1")];
    let folder = scripts(steps, &files);
    std::fs::create_dir(folder.path().join("linked")).unwrap();
    std::os::unix::fs::symlink("../real/x", folder.path().join("linked/x")).unwrap();
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    assert_eq!(statuses(&folder), "side unchanged, a unchanged");
    for changed in ["a.sh", "conf", "folder/x", "real/x"] {
        let text = folder.read(changed);
        folder.write(changed, format!("{text}# more\n"));
        folder.pipe(&["run", "steps.yaml"]).exits(0);
        assert_eq!(statuses(&folder), "side unchanged, a finished", "{changed}");
    }
    // One that it needs and names nothing of may have changed what nobody sees.
    folder.pipe(&["run", "steps.yaml", "--from", "side"]).exits(0);
    assert_eq!(statuses(&folder), "side finished, a finished");
}

/// What a step printed is shown as it comes, and not again with its error.
fn traceback() {
    let folder = scripts("  a: {command: sh a.sh}\n", &[("a.sh", "echo 'Traceback of a'; exit 1\n")]);
    let ended = folder.pipe(&["run", "steps.yaml"]).exits(6).says("error: step a: the command ended with exit code 1");
    assert_eq!(ended.stderr.matches("Traceback of a").count(), 1, "{ended}");
    folder.pipe(&["logs"]).exits(0).prints("Traceback of a");
}

/// A step that began with one script and went on with another: what it wrote is taken for the result of neither.
fn mixed() {
    let folder = scripts("  a: {command: 'sh a.sh {run}', outputs: {rows: rows}}\n", &[("a.sh", "exit 1\n")]);
    folder.pipe(&["run", "steps.yaml"]).exits(6);
    folder.write("a.sh", "echo other > $1/rows\n");
    folder.pipe(&["resume"]).exits(0);
    for script in ["exit 1\n", "echo other > $1/rows\n"] {
        folder.write("a.sh", script);
        let code = if script.starts_with("exit") { 6 } else { 0 };
        folder.pipe(&["run", "steps.yaml"]).exits(code).says_not("nothing has changed");
    }
    folder.pipe(&["run", "steps.yaml"]).exits(0).says("nothing has changed");
    // Nor is what was changed after it had finished.
    let run = graph(&folder)[0].2.clone();
    folder.write(&format!("runs/{run}/output/rows"), "spoilt\n");
    folder.pipe(&["run", "steps.yaml"]).exits(0).says_not("nothing has changed");
}

/// A training that names a folder with a model needs no `arch`, as in a pipeline of its own.
fn architecture() {
    let folder = Folder::new();
    let model = repository().join("tests/fixtures/bert").display().to_string();
    folder.write("rows.jsonl", "{\"text\": \"a\", \"label\": \"x\"}\n");
    let yaml = format!(
        "version: 1\nname: steps\nsteps:\n  learn:\n    engine: process\n    model: {{from: {model}}}\n    data: {{train: rows.jsonl}}\n\
         \x20   train: {{steps: 1, batch: 1, effective_batch: 1}}\n    container: {{gpus: 0, cpus: 1}}\n"
    );
    folder.write("steps.yaml", &yaml);
    let planned = folder.pipe(&["run", "steps.yaml", "--dry-run"]).exits(0).json();
    assert_eq!(planned["steps"][0]["pipeline"]["model"]["arch"], "bert", "{planned}");
    folder.write("steps.yaml", yaml.replace(&model, "nowhere"));
    folder.pipe(&["run", "steps.yaml", "--dry-run"]).exits(3).says("steps.learn.model.arch");
}

/// Devices and what the kernel shows are no inputs though a command names them, and a pipe is no output.
fn special() {
    let steps =
        "  a: {command: 'dd if=/dev/urandom of={run}/x bs=1k count=1'}\n  b: {command: ls -d /proc/self /dev/zero}\n";
    let folder = scripts(steps, &[]);
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    folder.pipe(&["run", "steps.yaml"]).exits(0).says("[a] nothing has changed").says("[b] nothing has changed");
    std::process::Command::new("mkfifo").arg(folder.path().join("fifo")).status().unwrap();
    for (input, what) in
        [("/dev/zero", "a device"), ("fifo", "a pipe"), ("/proc/self", "part of a file system of the kernel")]
    {
        let named = scripts(&format!("  a: {{command: 'true', inputs: [{input}]}}\n"), &[]);
        if input == "fifo" {
            std::fs::rename(folder.path().join("fifo"), named.path().join("fifo")).unwrap();
        }
        let want = format!("steps.a.inputs.0: {input} is {what}; only files and folders can be inputs");
        named.pipe(&["check", "steps.yaml"]).exits(3).says(&want);
        named.pipe(&["run", "steps.yaml"]).exits(3).says(&want);
    }
    let made = scripts("  a: {command: [sh, -c, 'mkfifo {run}/rows'], outputs: {rows: rows}}\n", &[]);
    made.pipe(&["run", "steps.yaml"])
        .exits(6)
        .says("an output of the step a is a pipe, not a file or folder")
        .says("output/rows");
}

/// A terabyte of nothing is hashed for minutes: a signal ends that, and the step need not run again.
fn interrupted() {
    let command = "[sh, -c, 'echo once >> times; truncate -s 1T {run}/rows']";
    let folder = scripts(&format!("  a: {{command: {command}, outputs: {{rows: rows}}}}\n"), &[]);
    let running = folder.start(&["run", "steps.yaml"]);
    let step = || std::fs::read_dir(folder.path().join("runs")).into_iter().flatten().flatten();
    let ended = |run: std::fs::DirEntry| std::fs::read_to_string(run.path().join("run.json")).unwrap_or_default();
    folder.wait_until("the end of the command", || step().any(|run| ended(run).contains("\"finished\"")));
    std::thread::sleep(Duration::from_millis(500));
    running.signal("TERM");
    let asked = std::time::Instant::now();
    running.end().exits(130);
    // Far less than hashing a terabyte takes, on the busiest machine.
    assert!(asked.elapsed() < Duration::from_secs(60), "{:?}", asked.elapsed());
    assert_eq!(statuses(&folder), "a stopped");
    let run = graph(&folder)[0].2.clone();
    folder.write(&format!("runs/{run}/output/rows"), "");
    folder.pipe(&["resume"]).exits(0);
    assert_eq!((statuses(&folder).as_str(), folder.read("times").as_str()), ("a finished", "once\n"));
}

/// A step read what an input was for a moment: that is told, and the result is not taken for that of the input before and after.
fn changed_meanwhile() {
    let wait = |name: &str| format!("while ! test -e {name}; do sleep 0.02; done");
    let script = format!("touch began; {}; cat in.txt > {{run}}/o; touch read; {}", wait("go"), wait("end"));
    let steps = format!(
        "  a: {{command: [sh, -c, '{script}'], inputs: [in.txt], outputs: {{o: o}}}}\n  b: {{needs: [a], command: 'cat {{steps.a.o}}'}}\n"
    );
    let folder = scripts(&steps, &[("in.txt", "one\n")]);
    let running = folder.start(&["run", "steps.yaml"]);
    let wait_for = |name: &str| folder.wait_until(name, || folder.path().join(name).exists());
    wait_for("began");
    folder.write("in.txt", "two\n").write("go", "");
    wait_for("read");
    folder.write("in.txt", "one\n").write("end", "");
    running.end().exits(0).says("warning: in.txt changed while the step a was running").says("[b] two");
    folder.pipe(&["run", "steps.yaml", "--only", "b"]).exits(0).says("[a] taken from").says_not("nothing has changed");
    folder.pipe(&["run", "steps.yaml"]).exits(0).says_not("nothing has changed").says("[b] one");
    folder.pipe(&["run", "steps.yaml"]).exits(0).says("[a] nothing has changed").says("[b] nothing has changed");
}

fn in_use() {
    let steps = "  a: {command: 'sh a.sh {run}', outputs: {rows: rows}}\n  b: {needs: [a], command: 'sh b.sh {steps.a.rows}'}\n";
    let folder = scripts(steps, &[("a.sh", "echo 1 > $1/rows\n"), ("b.sh", "cat $1\n")]);
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    let first = folder.show()["id"].as_str().unwrap().to_owned();
    folder.write("b.sh", "while ! test -e go; do sleep 0.05; done; cat $1\n");
    let running = folder.start(&["run", "steps.yaml"]);
    folder.wait_until("b runs", || statuses(&folder) == "a unchanged, b running");
    folder.pipe(&["rm", &first]).exits(2).says("reads what").says("--force");
    folder.write("go", "");
    running.end().exits(0);
    // Where it is removed all the same, the next run writes it again; so does one that is resumed.
    folder.write("b.sh", "exit 1\n");
    folder.pipe(&["run", "steps.yaml"]).exits(6);
    folder.pipe(&["rm", &first]).exits(0);
    folder.write("b.sh", "cat $1\n");
    folder.pipe(&["resume"]).exits(0).says("a: its outputs are not what they were: it runs again");
    assert_eq!(statuses(&folder), "a finished, b finished");
}

fn damaged() {
    let steps = "  a: {command: sh a.sh}\n  b: {command: sh b.sh}\n";
    let folder = scripts(steps, &[("a.sh", "exit 1\n"), ("b.sh", "true\n")]);
    folder.pipe(&["run", "steps.yaml"]).exits(6);
    let id = folder.show()["id"].as_str().unwrap().to_owned();
    folder.write(&format!("runs/{id}.a/run.json"), "{");
    let list = folder.pipe(&["ls"]).exits(0);
    assert_eq!(list.stdout.matches(&format!("{id}.a ")).count(), 1, "{}", list.stdout);
    folder.write("a.sh", "true\n");
    folder.pipe(&["resume"]).exits(1).says("[a] failed").says("pipe rm");
    folder.pipe(&["rm", &format!("{id}.a")]).exits(0);
    folder.pipe(&["resume"]).exits(0);
    assert_eq!(statuses(&folder), "a finished, b finished");
}

/// A step in a container that writes a link to the host's files: the next one never sees them.
fn linked() {
    let folder = folder("docker", 0);
    let yaml = folder.read("steps.yaml").replace("join 0 first --out {run}", "link {run}/text");
    folder.write("steps.yaml", yaml);
    folder.pipe(&["run", "steps.yaml"]).exits(6).says("is a link that leads out of the output of its step");
    assert_eq!(statuses(&folder), "first failed, left waiting, right waiting, end waiting");
}

fn swapped() {
    let folder = job::folder("", "");
    let yaml = |one: &str, other: &str| {
        format!(
            "version: 1\nname: swapped\nengine: docker\nsteps:\n  a:\n    command: /job command join 0 a --out {{run}} --in /x /y\n    container:\n\
             \x20     {{image: image/job.Dockerfile, gpus: 0, mounts: [{{host: one.txt, container: {one}}}, {{host: other.txt, container: {other}}}]}}\n"
        )
    };
    folder.write("one.txt", "one\n").write("other.txt", "other\n").write("steps.yaml", yaml("/x", "/y"));
    folder.pipe(&["run", "steps.yaml"]).exits(0);
    folder.write("steps.yaml", yaml("/y", "/x"));
    folder.pipe(&["run", "steps.yaml"]).exits(0).says_not("nothing has changed");
    let run = graph(&folder)[0].2.clone();
    assert_eq!(folder.read(&format!("runs/{run}/output/text")), "other\none\na\n");
}
