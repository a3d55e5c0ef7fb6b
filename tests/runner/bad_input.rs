//! Bad input gets a clear error with its place, and nothing is created.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Answer, Folder, Needs, Suite};
use crate::stand_ins::job;

const GOOD: &str = "version: 1\nname: demo\nmodel: {arch: t5, config: {}}\ndata: {train: train.jsonl}\n";

fn folder(pipeline: &str) -> Folder {
    let folder = Folder::new();
    folder
        .write("p.yaml", pipeline)
        .write("train.jsonl", "{\"source\": \"a\", \"target\": \"b\"}\n")
        .write("tokenizer.json", "{}");
    folder
}

/// Both `check` and `run` refuse it with exit code 3 and these texts, and no run is begun.
fn refused(pipeline: &str, texts: &[&str]) {
    let folder = folder(pipeline);
    for command in ["check", "run"] {
        texts.iter().fold(folder.pipe(&[command, "p.yaml"]).exits(3), |answer, text| answer.says(text));
    }
    assert!(!folder.has_runs());
}

/// One of each kind of problem: src/pipe-spec/pipeline/tests.rs has all of them.
pub fn tests(suite: &mut Suite) {
    let table: [(&str, String, &[&str]); 4] = [
        ("yaml_syntax", "version: [1\nname: x\n".to_owned(), &["line 2: YAML syntax: "]),
        ("unknown_key", format!("{GOOD}trian: {{}}\n"), &["line 5: trian: unknown key; did you mean `train`?"]),
        (
            "values",
            format!("{GOOD}on_oom: {{reduce: [8, 8], then: [dropout=0]}}\n"),
            &[
                "on_oom.reduce: the ladder must fall: 8 is followed by 8",
                "on_oom.then.0: found \"dropout=0\"; allowed: checkpointing",
            ],
        ),
        (
            "config_of_the_model",
            GOOD.replace("config: {}", "config: {d_model: 8, num_layers: 10000000}"),
            &["model.config.num_layers: found 10000000; allowed: at most 4096"],
        ),
    ];
    for (name, pipeline, texts) in table {
        suite.test(&format!("bad_input::{name}"), Needs::Nothing, move || refused(&pipeline, texts));
    }
    suite.test("bad_input::largest_sizes", Needs::Nothing, largest_sizes);
    suite.test("bad_input::largest_numbers_run", Needs::Nothing, largest_numbers_run);
    suite.test("bad_input::every_problem_at_once", Needs::Nothing, every_problem_at_once);
    suite.test("bad_input::huge_file", Needs::Nothing, huge_file);
    suite.test("bad_input::missing_file", Needs::Nothing, missing_file);
    suite.test("bad_input::binary_file", Needs::Nothing, binary_file);
    suite.test("bad_input::not_utf8", Needs::Nothing, not_utf8);
    suite.test("bad_input::a_data_file_whose_name_is_not_utf8", Needs::Nothing, data_not_utf8);
    suite.test("bad_input::run_name", Needs::Nothing, run_name);
    suite.test("bad_input::data", Needs::Nothing, data);
    suite.test("bad_input::data_of_a_pipeline_that_comes_with_pipe", Needs::Nothing, example_data);
    suite.test("bad_input::tokenizer_missing", Needs::Nothing, tokenizer_missing);
    suite.test("bad_input::unwritable_runs", Needs::Nothing, unwritable_runs);
    suite.test("bad_input::variables_from_env_file", Needs::Nothing, variables_from_env_file);
    suite.test("bad_input::usage", Needs::Nothing, usage);
    suite.test("bad_input::many_runs_and_placeholders", Needs::Nothing, many);
}

/// `plan` refuses what `check` and `run` refuse. The largest model that they allow takes time in proportion to its layers.
fn largest_sizes() {
    let many = GOOD.replace("config: {}", "config: {d_model: 8, num_layers: 10000000}");
    let text = "num_layers: found 10000000; allowed: at most 4096";
    folder(&many).pipe(&["plan", "p.yaml"]).exits(3).says(text);
    let deep = |layers: u32| {
        let config = format!(
            "d_model: 1048576, d_ff: 1048576, d_kv: 1, num_heads: 1048576, num_layers: {layers}, vocab_size: 67108864"
        );
        let pipeline = GOOD.replace("config: {}", &format!("config: {{{config}}}"));
        let data = "train.jsonl, max_source: 1048576, max_target: 1048576";
        folder(&format!("{}train: {{effective_batch: 16777216}}\n", pipeline.replace("train.jsonl", data)))
    };
    let time = |folder: &Folder| -> Duration {
        let commands = [
            &["check", "p.yaml", "--no-data"][..],
            &["plan", "p.yaml", "--gpu", "H200"],
            &["plan", "p.yaml", "--json"],
        ];
        commands.iter().map(|command| processor_time(folder, command)).sum()
    };
    // Eight times the layers may take eight times as long, and not the square of it.
    let (eighth, whole) = (time(&deep(512)), time(&deep(4096)));
    assert!(whole < eighth * 32, "{whole:?}, and {eighth:?} for an eighth of the layers");
}

/// Runs are listed, and placeholders of a command found, in time in proportion to their number.
fn many() {
    let listed = |runs: u32| {
        let folder = Folder::new();
        for number in 0..runs {
            let id = format!("fake-20010909-{number:06}-abcd");
            let state = format!(
                "{{\"id\": \"{id}\", \"name\": \"fake\", \"status\": \"finished\", \"created\": {number}, \"engine\": \"process\", \
                 \"effective_batch\": 8, \"steps\": 100, \"error\": null, \"attempts\": []}}"
            );
            folder.write(&format!("runs/{id}/run.json"), state);
        }
        processor_time(&folder, &["ls"])
    };
    let checked = |placeholders: usize| {
        let command = "{vars.a} ".repeat(placeholders);
        let text = format!("version: 1\nname: many\nvars: {{a: 1}}\ncommand: echo {command}\n");
        processor_time(&folder(&text), &["check", "p.yaml", "--no-data"])
    };
    for (eighth, whole) in [(listed(125), listed(1000)), (checked(5000), checked(40_000))] {
        assert!(whole < eighth * 24, "{whole:?}, and {eighth:?} for an eighth");
    }
}

/// The processor time that `pipe` and what it starts need to succeed, however busy the machine is.
#[allow(clippy::zombie_processes)] // wait4 below waits for it.
fn processor_time(folder: &Folder, args: &[&str]) -> Duration {
    let child = folder.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = child.id().cast_signed();
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both pointers are to memory of the right type, and nobody else waits for the child.
    assert_eq!(unsafe { libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "pipe {}: {status}", args.join(" "));
    // SAFETY: wait4 has filled it.
    let usage = unsafe { usage.assume_init() };
    let time = |part: libc::timeval| Duration::from_micros((part.tv_sec * 1_000_000 + part.tv_usec).cast_unsigned());
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Every number at the most that is allowed, through a run and its report.
fn largest_numbers_run() {
    let numbers = [
        "data.workers=1024",
        "data.prefetch=1024",
        "data.max_source=1048576",
        "data.max_target=1048576",
        "train.batch=16777216",
        "train.effective_batch=16777216",
        "train.steps=1000000000",
        "train.schedule.warmup=1000000000",
        "train.seed=18446744073709551615",
        "on_oom.retries=1000",
        "on_oom.wait=31536000",
        "save.every=18446744073709551615",
        "save.keep=4294967295",
        "evaluate.generate=65536",
        "container.cpus=4096",
        "model.config.d_model=1048576",
        "model.config.num_layers=4096",
    ];
    let set = numbers.iter().flat_map(|number| ["--set", number]);
    let args: Vec<&str> = ["run", "job.yaml", "--engine", "process"].into_iter().chain(set).collect();
    let time = |args: &[&str]| {
        let folder = job::folder("exit 0", "");
        let time = processor_time(&folder, args);
        assert!(folder.run_folder().join("report.html").is_file());
        time
    };
    let (small, large) = (time(&args[..4]), time(&args));
    assert!(large < small * 20, "{large:?}, and {small:?} with the defaults");
}

fn every_problem_at_once() {
    let folder = folder("version: 1\nname: a b\nmodel: {arch: t6}\ndata: {}\ntrain: {batch: no}\n");
    folder.pipe(&["check", "p.yaml"]).exits(3).says("p.yaml has 4 problems");
    let answer = folder.pipe(&["check", "p.yaml", "--json"]).exits(3).json();
    assert_eq!(answer["valid"], false);
    let paths: Vec<&str> = answer["problems"].as_array().unwrap().iter().map(|p| p["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["name", "model.arch", "data.train", "train.batch"]);
    assert_eq!(answer["problems"][0]["line"], 2);
}

fn huge_file() {
    let folder = folder(GOOD);
    let file = std::fs::File::create(folder.path().join("p.yaml")).unwrap();
    file.set_len(100 << 20).unwrap();
    folder.pipe(&["check", "p.yaml"]).exits(3).says("104857600 bytes; the limit for such a file is 1048576 bytes");
}

fn missing_file() {
    Folder::new().pipe(&["run", "nope.yaml"]).exits(1).says("cannot read nope.yaml");
}

fn binary_file() {
    let folder = folder(GOOD);
    folder.write("p.yaml", [0xff, 0xfe, 0x00, 0x80]);
    folder.pipe(&["check", "p.yaml"]).exits(3).says("not text in UTF-8");
}

fn run_name() {
    let folder = folder(GOOD);
    for name in ["../x", "a/b", ""] {
        folder.pipe(&["run", "p.yaml", "--name", name]).exits(3).says("name: found the text");
    }
    assert!(!folder.has_runs());
}

fn data() {
    let cases = [
        ("gone.jsonl", "data.train: cannot read gone.jsonl: no such file in /"),
        ("empty.jsonl", "data.train: empty.jsonl is empty"),
        (
            "data.txt",
            "data.train: data.txt: allowed for text to text: .jsonl, .csv, .tsv, .json, .parquet, .xlsx, .jsonl.gz",
        ),
        ("[train.jsonl, gone.jsonl]", "data.train: cannot read gone.jsonl: no such file"),
    ];
    for (train, text) in cases {
        let folder = folder(&GOOD.replace("train.jsonl", train));
        folder.write("empty.jsonl", "").write("data.txt", "a,b\n");
        folder.pipe(&["run", "p.yaml"]).exits(3).says(text);
        assert!(!folder.has_runs());
    }
}

/// One that is named must be there: none is trained in its place.
fn tokenizer_missing() {
    let named = folder(&GOOD.replace("train.jsonl", "train.jsonl, tokenizer: other.json"));
    named
        .pipe(&["run", "p.yaml"])
        .exits(3)
        .says("data.tokenizer: no such file: ")
        .says("/other.json; give the path of a");
    assert!(!named.has_runs());
}

fn unwritable_runs() {
    // Not even root can create a folder below a file.
    let folder = job::folder("exit 0", "");
    let folder = folder.env("PIPE_RUNS", "train.jsonl/runs");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(1).says("cannot write ").says("train.jsonl/runs");
}

fn variables_from_env_file() {
    let folder = folder(&format!("{GOOD}container: {{env: {{TOKEN: \"${{TOKEN_OF_TEST}}\"}}}}\n"));
    folder.pipe(&["check", "p.yaml"]).exits(3).says("${TOKEN_OF_TEST} is not set");
    folder.write(".env", "TOKEN_OF_TEST=hush\n");
    folder.pipe(&["check", "p.yaml", "--no-data"]).exits(0).prints("p.yaml is valid");
}

/// Bytes that are no text, wherever a user can put them.
fn not_utf8() {
    let no_text = OsStr::from_bytes(b"no\xfftext");
    let folder = job::folder("exit 0", "");
    let end = |mut command: Command| Answer::new(format!("{command:?}"), command.output().unwrap());
    let with = |args: &[&str], name: &str| {
        let mut command = folder.command(args);
        command.env(name, no_text);
        end(command)
    };
    for name in ["UNUSED", "HOME", "PIPE_LEDGER", "PIPE_QUEUE", "DOCKER_HOST", "HF_HOME", "TERM"] {
        with(&["check", "job.yaml", "--no-data"], name).exits(0);
        with(&["ls"], name).exits(0);
    }
    with(&["run", "job.yaml", "--engine", "process", "--quiet"], "UNUSED").exits(0);
    with(&["show"], "UNUSED").exits(0);
    with(&["report"], "UNUSED").exits(0);
    with(&["tune", "status"], "UNUSED").exits(2);
    with(&["init", "--data", "train.jsonl", "--stdout", "--yes"], "UNUSED").exits(0);
    folder.write("used.yaml", format!("{GOOD}container: {{env: {{A: \"${{USED}}\"}}}}\n"));
    with(&["check", "used.yaml"], "USED").exits(3).says("the value of the variable ${USED} is not valid UTF-8");
    for command in ["check", "run"] {
        with(&[command, "job.yaml"], "PIPE_RUNS").exits(2).says("PIPE_RUNS no\u{fffd}text is not valid UTF-8");
    }
    with(&["ls"], "PIPE_RUNS").exits(0);
    with(&["check", "job.yaml", "--no-data"], "PIPE_CACHE").exits(0);
    for args in [&["check"][..], &["run"], &["run", "job.yaml", "--set"], &["init", "--data"], &["show"], &["predict"]]
    {
        let mut command = folder.command(args);
        command.arg(no_text);
        let answer = end(command);
        assert!(matches!(answer.code, Some(1..=3)), "{answer}");
    }
    // It may be the cache of before.
    let place = folder.path().join(no_text);
    std::fs::create_dir_all(&place).unwrap();
    for command in ["check", "run", "plan"] {
        let mut command = folder.command(&[command, "../job.yaml"]);
        command.current_dir(&place).env("PWD", &place);
        end(command).exits(2).says("the working directory ").says("is not valid UTF-8");
    }
    let mut command = folder.command(&["ls"]);
    command.current_dir(&place).env("PWD", &place);
    end(command).exits(0);
}

fn data_not_utf8() {
    let folder = folder(&GOOD.replace("train.jsonl", "fold"));
    folder.write("fold/b.jsonl", "{\"source\": \"a\", \"target\": \"b\"}\n");
    std::fs::copy(
        folder.path().join("fold/b.jsonl"),
        folder.path().join("fold").join(OsStr::from_bytes(b"a\xff.jsonl")),
    )
    .unwrap();
    let says = "data.train: the folder fold has a file whose name is not UTF-8: a\u{fffd}.jsonl; rename it";
    folder.pipe(&["check", "p.yaml"]).exits(3).says(says);
}

fn usage() {
    let folder = folder(GOOD);
    folder.pipe(&["run"]).exits(2).says("Usage: pipe run");
    folder.pipe(&["rnu"]).exits(2).says("unrecognized subcommand");
    folder.pipe(&["show", "nothing"]).exits(2).says("no run \"nothing\" in runs");
    folder
        .pipe(&["run", "p.yaml", "--set", "train.batch"])
        .exits(3)
        .says("--set: found \"train.batch\"; allowed: path=value");
}

/// The error names the command that makes the data; for data of other names it does not.
fn example_data() {
    let folder = Folder::new();
    let pipelines = crate::harness::folder::repository().join("pipelines");
    for name in ["demo", "demo-gpu", "text-hpo", "hybrid-cnn-lstm", "mu-sota", "car-clip", "car-kinds", "table"] {
        let file = pipelines.join(format!("{name}.yaml"));
        let checked = folder.pipe(&["check", file.to_str().unwrap()]).exits(3);
        let line = checked.stderr.lines().find(|line| line.contains("data.train: cannot read")).unwrap();
        assert!(line.contains("; `pipe-trainer data ") && line.ends_with("` makes some to try it with"), "{checked}");
    }
    let demo = pipelines.join("demo.yaml");
    let other = folder.pipe(&["check", demo.to_str().unwrap(), "--set", "data.train=mine.jsonl"]).exits(3);
    other.says("data.train: cannot read mine.jsonl: no such file").says_not("pipe-trainer data");
}
