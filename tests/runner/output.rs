//! Help texts and errors, word for word, and the schema that editors use.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::harness::folder::repository;
use crate::harness::{Answer, Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.test("output::help", Needs::Nothing, help);
    suite.test("output::errors", Needs::Nothing, errors);
    suite.test("output::schema_is_the_committed_one", Needs::Nothing, schema);
    suite.test("output::completions", Needs::Nothing, completions);
    suite.test("output::completions_know_the_runs", Needs::Nothing, completed_runs);
    suite.test("output::manual_pages", Needs::Nothing, manual_pages);
    suite.test("output::summary_of_a_job", Needs::Nothing, summary);
    suite.test("output::plain_output_has_no_control_codes", Needs::Nothing, plain_output);
    suite.test("output::broken_pipe_is_success", Needs::Nothing, broken_pipe);
    suite.test("output::a_run_outlives_its_stdout", Needs::Nothing, closed_stdout);
    suite.test("output::a_run_outlives_a_full_stdout", Needs::Nothing, full_stdout);
}

/// Compares with `tests/snapshots/NAME`; PIPE_UPDATE_SNAPSHOTS=1 writes it instead.
#[track_caller]
fn snapshot(name: &str, got: &str) {
    let path: PathBuf = repository().join("tests/snapshots").join(name);
    if updates_snapshots() {
        std::fs::write(&path, got).unwrap();
    }
    let want = std::fs::read_to_string(&path);
    let want = want.unwrap_or_else(|error| panic!("{}: {error} (PIPE_UPDATE_SNAPSHOTS=1 writes it)", path.display()));
    assert!(got == want, "{} differs (PIPE_UPDATE_SNAPSHOTS=1 updates it); got:\n{got}", path.display());
}

fn updates_snapshots() -> bool {
    std::env::var_os("PIPE_UPDATE_SNAPSHOTS").is_some()
}

/// The help of every command that `pipe --help` lists, subcommands too: none without a snapshot, no snapshot without a command.
fn help() {
    let folder = Folder::new();
    let mut names = BTreeSet::new();
    let mut waiting = vec![Vec::<String>::new()];
    while let Some(command) = waiting.pop() {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let answer = folder.pipe(&args).exits(0);
        let name = format!("{}.help.txt", [&["pipe".to_owned()], &command[..]].concat().join("-"));
        snapshot(&name, &answer.stdout);
        names.insert(name);
        waiting.extend(subcommands(&answer.stdout).into_iter().map(|name| [&command[..], &[name]].concat()));
    }
    assert!(names.contains("pipe-run.help.txt") && names.contains("pipe-image-build.help.txt"), "{names:?}");
    assert!(names.len() > 35, "{names:?}");
    for entry in std::fs::read_dir(repository().join("tests/snapshots")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".help.txt") || names.contains(name) {
            continue;
        }
        assert!(updates_snapshots(), "{} is the help of no command; remove it", path.display());
        std::fs::remove_file(&path).unwrap();
    }
}

/// The headings of a help text below which commands are listed: those of `pipe --help`, and the one of other commands.
const COMMANDS: [&str; 6] = ["Start here:", "Run:", "Watch:", "Understand:", "Machine:", "Commands:"];

/// The names of the commands that a help text lists, without `help` itself. A line that is indented further continues a
/// description.
fn subcommands(help: &str) -> Vec<String> {
    let sections = help.split("\n\n").filter_map(|section| section.split_once('\n'));
    let lines = sections.filter(|(heading, _)| COMMANDS.contains(heading)).flat_map(|(_, lines)| lines.lines());
    let names = lines.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    names.map(|line| line.split(' ').next().unwrap().to_owned()).filter(|name| name != "help").collect()
}

fn errors() {
    let folder = Folder::new();
    folder.write("bad.yaml", "version: 1\nname: x y\nmodel:\n  arch: t6\n  config: {}\ndata:\n  train: t.jsonl\n  pad: shortest\ntrain:\n  bacth: 8\n");
    folder.write(
        "unfit.yaml",
        "version: 1\nname: x\nmodel: {arch: clip, from: a}\ndata: {train: t.jsonl}\nengine: kubernetes\n\
         kubernetes: {volume: training}\n",
    );
    let no_daemon = Folder::new().env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    no_daemon.write("a.yaml", "version: 1\nname: a\nmodel: {arch: t5, config: {}}\ndata: {train: a.jsonl}\n");
    no_daemon.write("a.jsonl", "{}\n").write("tokenizer.json", "{}");
    let answers: [Answer; 5] = [
        folder.pipe(&["check", "bad.yaml"]),
        folder.pipe(&["check", "unfit.yaml"]),
        folder.pipe(&["show", "nope"]),
        no_daemon.pipe(&["run", "a.yaml", "--engine", "docker"]),
        no_daemon.pipe(&["image", "ls"]),
    ];
    let text: Vec<String> = answers
        .iter()
        .map(|answer| format!("$ {}\n{}exit {}\n", answer.command, answer.stderr, answer.code.unwrap()))
        .collect();
    snapshot("errors.txt", &text.join("\n"));
}

fn schema() {
    let answer = Folder::new().pipe(&["schema"]).exits(0);
    let path = repository().join("pipelines/schema.json");
    if updates_snapshots() {
        std::fs::write(&path, &answer.stdout).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(answer.stdout == committed, "pipelines/schema.json is old: pipe schema > pipelines/schema.json");
}

fn completions() {
    for shell in ["bash", "zsh", "fish"] {
        Folder::new().pipe(&["completions", shell]).exits(0).prints("doctor");
    }
}

fn plain_output() {
    let folder = job::folder("fit 2", "train: {batch: 4}\n");
    let answer = folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    assert!(!answer.stderr.contains('\u{1b}') && !answer.stdout.contains('\u{1b}'), "{answer}");
    answer
        .says("attempt 1 of at most 7: batch 4 x accum 1")
        .says("attempt 1: oom: the host's memory ran out")
        .says("retrying: batch 2 instead of 4 (accum 2, effective batch 4 as before)")
        .says("attempt 2 of at most 7: batch 2 x accum 2")
        .prints("attempt  batch  outcome");
}

/// In a real bash, after a Tab.
fn completed_runs() {
    let folder = job::folder("walk 1 0 8", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let id = folder.run_folder().file_name().unwrap().to_str().unwrap().to_owned();
    job::copy_run(&folder.run_folder(), 2);
    let listed = folder.pipe(&["ls", "-q"]).exits(0).stdout;
    assert!(listed.lines().count() == 3 && listed.lines().any(|line| line == id), "{listed}");
    folder.write("completions.bash", folder.pipe(&["completions", "bash"]).exits(0).stdout);
    let complete = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let [.., before, current] = &words[..] else { panic!("{words:?}") };
        let script = format!(
            "source completions.bash; COMP_WORDS=({}); COMP_CWORD={}; \
             function=$(complete -p pipe | sed 's/.*-F \\([^ ]*\\).*/\\1/'); \
             $function pipe {current} {before}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1
        );
        let mut path = crate::harness::folder::pipe().parent().unwrap().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let like = folder.command(&[]);
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &script]).current_dir(folder.path());
        shell.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("PATH", path);
        String::from_utf8(shell.output().unwrap().stdout).unwrap()
    };
    for command in ["show", "logs", "stop", "resume", "attach", "report", "rm", "reproduce", "diff"] {
        assert_eq!(complete(&["pipe", command, "job-"]), format!("{id}\n"), "{command}");
        assert!(complete(&["pipe", command, ""]).contains("latest\n"), "{command}");
    }
    assert_eq!(complete(&["pipe", "diff", "latest", "job-"]), format!("{id}\n"));
    assert_eq!(complete(&["pipe", "-q", "show", "--json", "job-"]), format!("{id}\n"));
    // Everything else is as it was.
    assert_eq!(complete(&["pipe", "sho"]), "show\n");
    assert!(complete(&["pipe", "show", "--j"]).contains("--json\n"));
    assert!(!complete(&["pipe", "resume", "--set", ""]).contains("latest"));
    let zsh = folder.pipe(&["completions", "zsh"]).exits(0).stdout;
    assert!(zsh.matches(":_pipe_runs' \\").count() >= 9 && zsh.contains("\n_pipe_runs() {\n"), "{zsh}");
}

/// A run whose output is cut off ends as it would have, with its own exit code; `more` closes stderr too.
fn closed_stdout() {
    let driven = |job: &str, code: i32, more: &str| {
        let folder = job::folder(job, "train: {batch: 4, effective_batch: 4}\n");
        let pipe = crate::harness::folder::pipe();
        let run = format!("'{}' run job.yaml --engine process {more}", pipe.display());
        let script = format!("{run} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}");
        // With the environment of the folder.
        let like = folder.command(&[]);
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &script]).current_dir(folder.path()).stderr(std::process::Stdio::null());
        shell.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        assert_eq!(shell.status().unwrap().code(), Some(code), "{run}");
        let state = folder.show();
        assert_eq!(state["exit_code"], code, "{state:#}");
        assert_eq!(state["status"], if code == 0 { "finished" } else { "failed" }, "{state:#}");
        assert!(folder.run_folder().join("report.html").is_file());
    };
    driven("walk 40 20 8", 0, "--json");
    driven("walk 40 20 8", 0, "-v 2>&1");
    driven("exit 1", 6, "--json");
    // What lists runs ends with success.
    let folder = job::folder("walk 1 0 8", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    job::copy_run(&folder.run_folder(), 60);
    for args in [&["ls"][..], &["ls", "--json"], &["show", "latest", "--json"], &["schema"], &["logs"]] {
        let mut child = folder.command(args).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
}

fn full_stdout() {
    let folder = job::folder("fit 8", "train: {batch: 4, effective_batch: 4}\n");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = folder.command(&["run", "job.yaml", "--engine", "process"]).stdout(full).output().unwrap();
    let answer = Answer::new("pipe run".to_owned(), output).exits(0);
    answer.says("warning: cannot write to stdout: No space left on device (os error 28); the run goes on without it");
    assert_eq!(folder.show()["status"], "finished");
}

fn broken_pipe() {
    let folder = job::folder("flood 20000", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let script =
        format!("'{}' logs | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}", crate::harness::folder::pipe().display());
    let status = std::process::Command::new("bash").args(["-c", &script]).current_dir(folder.path()).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

fn manual_pages() {
    let folder = Folder::new();
    folder.pipe(&["man"]).exits(0).prints(".TH pipe 1").prints("PIPE_LEDGER");
    folder.pipe(&["man", "run"]).exits(0).prints("pipe\\-run").prints("ignore\\-ledger");
    folder.pipe(&["man", "dance"]).exits(2).says("pipe has no command \"dance\"");
}

/// Every run of a job is added. A summary that cannot be written is a warning, and the run goes on.
fn summary() {
    let folder = job::folder("fit 5", "train: {batch: 10, effective_batch: 10}\n");
    let run = ["run", "job.yaml", "--engine", "process", "--ignore-ledger"];
    let summary = folder.path().join("summary.md");
    let add = |path: &std::path::Path| {
        let output = folder.command(&run).env("GITHUB_STEP_SUMMARY", path).output().unwrap();
        Answer::new("pipe run".to_owned(), output).exits(0)
    };
    add(&summary);
    add(&summary);
    let text = folder.read("summary.md");
    assert_eq!(text.matches("### pipe: job-").count(), 2, "{text}");
    assert!(text.contains("| 1 | 10 x 1 | oom |") && text.contains("| 2 | 5 x 2 | finished | 1-3 |"), "{text}");
    add(&folder.path().join("nowhere/summary.md")).says("warning: cannot write to GITHUB_STEP_SUMMARY");
}
