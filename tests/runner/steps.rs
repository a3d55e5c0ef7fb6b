//! Pipelines of several steps: each after those that it needs, none run again without a reason, whatever is killed.

use std::time::Duration;

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite, job};

pub fn tests(suite: &mut Suite) {
    for (engine, needs) in [("process", Needs::Nothing), ("docker", Needs::Docker)] {
        let mut test = |name: &str, body: fn(&str)| {
            suite.test(&format!("steps::{name}::{engine}"), needs, move || body(engine));
        };
        test("a_diamond_with_one_that_fails_is_resumed", diamond);
        test("only_what_depends_on_a_change_runs_again", changes);
        test("pipe_is_killed_at_any_time", killed);
    }
    suite.test("steps::all_are_killed", Needs::Nothing, all_are_killed);
    suite.test("steps::stopped_and_resumed", Needs::Nothing, stopped);
    suite.test("steps::side_by_side_where_there_is_room", Needs::Nothing, side_by_side);
    suite.test("steps::one_alone_and_from_one_on", Needs::Nothing, only_and_from);
    suite.test("steps::what_is_missing_is_said", Needs::Nothing, missing);
    suite.test("steps::they_are_listed_shown_and_removed", Needs::Nothing, listed);
    suite.test("steps::as_json", Needs::Nothing, json);
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
        .says("[left] failed: training failed: the command ended with exit code 4")
        .says("[right] finished")
        .says("goes on with the steps that have not finished");
    assert_eq!(statuses(&folder), "first finished, left failed, right finished, end waiting");
    assert_eq!(folder.show()["exit_code"], 6);
    folder.write("own/left.txt", "");
    folder.pipe(&["resume"]).exits(0).says("[left] joined left").says_not("[first] joined").says_not("asked to fail");
    assert_eq!(statuses(&folder), "first finished, left finished, right finished, end finished");
    assert_eq!(end_text(&folder), JOINED);
    assert_eq!(["first", "left", "right", "end"].map(|step| attempts(&folder, step)), [1, 2, 1, 1]);
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
    folder.write("steps.yaml", yaml.replace("  end:", "  end:\n    inputs: [nowhere]"));
    folder.pipe(&["run", "steps.yaml"]).exits(1).says("[end] failed: cannot read nowhere");
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
    folder.pipe(&["show", &id]).exits(0).prints("right  finished");
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
