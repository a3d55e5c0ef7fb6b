//! Text from outside reaches the terminal without control codes.

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Answer, Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("terminal::{name}"), Needs::Nothing, test);
    test("keys_and_paths_of_a_pipeline", pipeline);
    test("everything_in_a_run", run);
    test("a_log_on_a_terminal", logs);
    test("a_log_is_for_people", log_for_people);
    test("a_very_long_error", long);
    test("the_command_line", usage);
}

/// Sets the title, clears the screen, turns the direction around, and begins a sequence in one character.
const CODES: &str = "\x1b]0;x\x07\x1b[2J\u{202e}\u{9b}31m";

#[track_caller]
fn is_harmless(answer: &Answer) {
    let harmful = |text: &str| {
        text.contains(|letter: char| {
            (letter.is_control() && letter != '\n' && letter != '\t') || "\u{202e}\u{2066}".contains(letter)
        })
    };
    assert!(!harmful(&answer.stdout) && !harmful(&answer.stderr), "{:?}\n{:?}", answer.stdout, answer.stderr);
}

fn pipeline() {
    let folder = job::folder("exit 0", "");
    let text = folder.read("job.yaml");
    folder.write("job.yaml", format!("{text}\"key\\e]0;x\\a\\e[2J\\u202E\": 1\n"));
    for command in ["check", "run", "plan"] {
        let answer = folder.pipe(&[command, "job.yaml"]).exits(3).says("key\\x1b]0;x\\x07\\x1b[2J\\u{202e}");
        is_harmless(&answer);
    }
    let json = folder.pipe(&["check", "job.yaml", "--json"]).exits(3).json();
    assert!(json["problems"][0].to_string().contains("\\u001b]0;x"), "{json:#}");
    // A path, of data and of the pipeline itself.
    folder.write("job.yaml", text.replace("train.jsonl", "\"no\\e]0;x\\a\\e[2J.jsonl\""));
    is_harmless(&folder.pipe(&["check", "job.yaml"]).exits(3).says("no\\x1b]0;x\\x07\\x1b[2J.jsonl"));
    is_harmless(&folder.pipe(&["check", &format!("no{CODES}.yaml")]).exits(1).says("no\\x1b]0;x\\x07\\x1b[2J"));
}

/// The only run, with codes in every text of its state.
fn tampered(folder: &Folder) -> Value {
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(6);
    let path = folder.run_folder().join("run.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for key in ["error", "doing", "engine", "name"] {
        state[key] = json!(format!("{key} {CODES}"));
    }
    for key in ["reason", "action"] {
        state["attempts"][0][key] = json!(format!("{key} {CODES}"));
    }
    std::fs::write(path, state.to_string()).unwrap();
    state
}

fn run() {
    let folder = job::folder("exit 1", "");
    let state = tampered(&folder);
    let journal = folder.run_folder().join("pipe.log");
    std::fs::write(journal, format!("note {CODES}\n")).unwrap();
    let shown = folder.pipe(&["show"]).exits(0).prints("error    error \\x1b]0;x\\x07\\x1b[2J\\u{202e}\\x9b31m");
    is_harmless(&shown.prints("reason \\x1b]0;x\\x07\\x1b[2J"));
    is_harmless(&folder.pipe(&["attach"]).exits(6).says("error: error \\x1b]0;x"));
    is_harmless(&folder.pipe(&["ls"]).exits(0));
    is_harmless(&folder.pipe(&["diff", "latest", "latest"]).exits(0));
    let json = folder.pipe(&["show", "--json"]).exits(0);
    assert_eq!(json.json()["error"], state["error"]);
    assert!(json.stdout.contains('\u{202e}'), "JSON is as it was");
    // What the trainer says, on its way through a run.
    let folder = job::folder("exit 1", "");
    let text = folder.read("job.yaml");
    folder.write("job.yaml", text.replace("JOB: exit 1", "JOB: \"\\e]0;x\\a\\e[2J\""));
    let answer = folder.pipe(&["run", "job.yaml", "--engine", "process"]);
    assert_ne!(answer.code, Some(0), "{answer}");
    is_harmless(&answer);
}

/// What a terminal gets of `pipe` with these arguments.
fn on_terminal(folder: &Folder, args: &[&str]) -> String {
    let (mut master, mut slave) = (0, 0);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: both descriptors are ours; name, settings and size may be absent.
    let opened = unsafe { libc::openpty(&mut master, &mut slave, name, settings, size) };
    assert_eq!(opened, 0);
    // SAFETY: they were just opened, and nothing else owns them.
    let (mut master, slave) = unsafe { (std::fs::File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
    let mut command = folder.command(args);
    command.stdout(Stdio::from(slave.try_clone().unwrap())).stderr(Stdio::from(slave));
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut bytes = Vec::new();
    // A terminal whose other end is closed is an error and no end.
    master.read_to_end(&mut bytes).ok();
    child.wait().unwrap();
    String::from_utf8(bytes).unwrap()
}

fn logs() {
    let folder = job::folder("exit 1", "");
    tampered(&folder);
    let log = folder.run_folder().join("attempts/01/log.txt");
    std::fs::write(&log, format!("line {CODES}\n").repeat(20_000)).unwrap();
    let shown = on_terminal(&folder, &["logs"]);
    assert!(!shown.contains(['\x1b', '\x07', '\u{202e}', '\u{9b}', '\u{fffd}']), "{:?}", &shown[..200]);
    assert_eq!(shown.matches("line \\x1b]0;x\\x07\\x1b[2J\\u{202e}\\x9b31m\r\n").count(), 20_000);
    // In a pipe it is as it was written.
    assert_eq!(folder.pipe(&["logs"]).exits(0).stdout, std::fs::read_to_string(&log).unwrap());
    let json = on_terminal(&folder, &["show", "--json"]);
    assert!(!json.contains(['\x1b', '\u{202e}', '\u{9b}']), "{json:?}");
    assert!(serde_json::from_str::<Value>(&json).unwrap()["error"].as_str().unwrap().contains(CODES));
}

fn long() {
    let folder = job::folder("exit 1", "");
    tampered(&folder);
    let path = folder.run_folder().join("run.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    state["attempts"][0]["reason"] = json!("ä".repeat(70_000));
    state["attempts"][0]["action"] = Value::Null;
    state["error"] = json!("ö".repeat(70_000));
    state["id"] = json!("i".repeat(66_000));
    std::fs::write(&path, state.to_string()).unwrap();
    folder.pipe(&["show"]).exits(0).prints("(69000 more characters)").prints(&"ö".repeat(70_000));
    folder.pipe(&["ls"]).exits(0).prints("(65000 more characters)");
    folder.pipe(&["attach"]).exits(6).says(&"ö".repeat(70_000));
}

fn usage() {
    let folder = Folder::new();
    let shown = on_terminal(&folder, &["check", "a.yaml", CODES]);
    assert!(
        shown.contains("unexpected argument") && !shown.contains("\x1b]0;") && !shown.contains("\x1b[2J"),
        "{shown:?}"
    );
    // With its colour where the text is safe.
    let folder = folder.env("NO_COLOR", "").env("TERM", "xterm");
    assert!(on_terminal(&folder, &["check", "a.yaml", "b"]).contains("\x1b["));
    is_harmless(&folder.pipe(&["show", CODES]).exits(2));
}

/// Text as it was written, events as sentences, every step once; no JSON.
fn log_for_people() {
    let folder = job::folder("long 50 1 8", "train: {batch: 4, effective_batch: 8}\n");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let path = folder.run_folder().join("attempts/01/log.txt");
    let written = std::fs::read_to_string(&path).unwrap();
    let event = |seq: u64, rest: &str| format!("{{\"seq\":{seq},\"ts\":1.0,\"type\":{rest}}}\n");
    let more = [
        "a line of the trainer\n INFO 1 parameters on cpu, 50 steps\n".to_owned(),
        " INFO step 50/50 loss 1.0600 lr 3.000e-4 grad norm 1.000\n INFO step 50 evaluation loss 1.2500\n".to_owned(),
        event(90, "\"warning\",\"message\":\"be careful\""),
        event(91, "\"oom\",\"memory\":\"host\",\"phase\":\"forward\",\"step\":3,\"batch\":4,\"message\":\"\""),
        event(92, "\"finished\",\"step\":50,\"samples\":400,\"model\":\"model\""),
        "{\"not\": \"an event\"}\nno line end".to_owned(),
    ];
    std::fs::write(&path, format!("{written}{}", more.concat())).unwrap();
    let shown = folder.pipe(&["logs"]).exits(0);
    for text in [
        "training 1 parameter on cpu with 64.0 MiB: 50 steps of 8 samples\n",
        "step 1/50: loss 4.1",
        "step 50/50: loss ",
        "step 12: eval loss 1.2500, accuracy 0.500, 20 samples\n",
        "a line of the trainer\n INFO 1 parameters on cpu, 50 steps\n",
        "warning: be careful\n",
        "out of memory: the host's memory ran out in step 3 (forward) with batch 4\n",
        "finished after 50 steps and 400 samples; the model is in model\n",
        "{\"not\": \"an event\"}\nno line end",
    ] {
        assert!(shown.stdout.contains(text), "no {text:?} in\n{shown}");
    }
    assert!(!shown.stdout.contains("\"seq\""), "{shown}");
    for step in 1..=50 {
        assert_eq!(shown.stdout.matches(&format!("step {step}/50")).count(), 1, "{shown}");
    }
    assert!(!shown.stdout.contains("INFO step"), "{shown}");
    // What is no trainer may write what it likes.
    let state = folder.run_folder().join("run.json");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, text.replace("\"training\"", "\"command\"")).unwrap();
    folder.pipe(&["logs"]).exits(0).prints("INFO step 50/50 loss 1.0600");
    let events = folder.pipe(&["logs", "--json"]).exits(0).json_lines();
    assert_eq!(events.iter().filter(|event| event["type"] == "step").count(), 50);
}
