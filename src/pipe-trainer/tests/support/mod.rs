//! Trains by a spec, in a folder that goes away with the test: in this process, or where that matters in one of its own.

#[path = "../../../../tests/harness/generated.rs"]
mod generated;
#[path = "../../../../tests/harness/watchdog.rs"]
mod watchdog;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pipe_spec::run::checkpoint_name;
use pipe_spec::{Event, EventKind, RunFolder};
use pipe_trainer::Console;
use pipe_trainer::cli::Cli;
use pipe_trainer::host::Stop;
use serde_json::{Value, json};

pub struct Bench {
    _watched: watchdog::Watched,
    root: PathBuf,
    pub spec: Value,
}

pub struct Ended {
    pub code: Option<i32>,
    pub stderr: String,
    pub events: Vec<EventKind>,
}

impl Bench {
    /// The golden T5 with the settings of its reference run.
    pub fn golden() -> Self {
        let golden = fixture();
        let root = root();
        let spec = json!({
            "version": 1, "run": root.join("run"), "attempt": 1, "device": "cpu", "threads": 1,
            "model": { "arch": "t5", "from": golden },
            "tokenizer": golden.join("tokenizer.json"),
            "data": {
                "train": golden.join("train.jsonl"), "max_source": 48, "max_target": 64, "shuffle": false,
            },
            "train": {
                "steps": 12, "batch": 8, "effective_batch": 8, "precision": "fp32",
                "optimizer": { "lr": 0.002, "decay": "all" }, "schedule": {}, "clip": 1.0, "checkpointing": false,
                "seed": 42, "deterministic": false,
            },
            "memory": {}, "evaluate": {}, "save": { "every": 0 },
        });
        let _watched = watchdog::watch(std::thread::current().name().unwrap_or_default());
        Self { _watched, root, spec }
    }

    /// A small T5 from scratch, with dropout, on generated recipes.
    pub fn recipes() -> Self {
        let mut bench = Self::golden();
        let data = bench.root.join("data");
        generate(&["recipes", "--rows", "200", "--seed", "1"], &data);
        bench.set("/tokenizer", json!(data.join("tokenizer.json")));
        bench.set(
            "/model",
            json!({ "arch": "t5", "config": {
                "d_model": 48, "d_ff": 96, "d_kv": 12, "num_heads": 3, "num_layers": 2, "num_decoder_layers": 1,
                "vocab_size": 160, "dropout_rate": 0.1,
            }}),
        );
        bench.set(
            "/data",
            json!({
                "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl"),
                "fields": { "source": "ingredients", "target": "directions" }, "max_source": 64, "max_target": 128,
            }),
        );
        bench
    }

    /// Generated descriptions of dishes with their class, in the folder `data`.
    pub fn dishes(eval_rows: u32) -> Self {
        let bench = Self::golden();
        let eval_rows = eval_rows.to_string();
        generate(&["texts", "--rows", "600", "--eval-rows", &eval_rows, "--seed", "1"], &bench.path("data"));
        bench
    }

    /// Sets what stands at a JSON pointer, creating its last key.
    pub fn set(&mut self, pointer: &str, value: Value) -> &mut Self {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        self.spec.pointer_mut(parent).unwrap()[key] = value;
        self
    }

    pub fn run_folder(&self) -> RunFolder {
        RunFolder::new(self.root.join("run"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn start(&self) -> Child {
        self.start_to("train")
    }

    pub fn start_to(&self, verb: &str) -> Child {
        self.command(verb).spawn().unwrap()
    }

    pub fn command(&self, verb: &str) -> Command {
        let mut command = trainer();
        command.args([verb, "--spec"]).arg(self.write_spec()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn write_spec(&self) -> PathBuf {
        let path = self.root.join("spec.json");
        fs::write(&path, self.spec.to_string()).unwrap();
        path
    }

    /// In this process where that makes no difference to a training: starting one of its own takes longer than most of these trainings.
    pub fn train(&self) -> Ended {
        if self.needs_a_process() { self.run("train") } else { self.train_here() }
    }

    /// Where it changes what all trainings of a process share, or starts processes itself.
    fn needs_a_process(&self) -> bool {
        let is = |pointer: &str, usual: Value| self.spec.pointer(pointer).is_none_or(|value| *value == usual);
        let shares =
            is("/threads", json!(1)) && is("/train/deterministic", json!(false)) && is("/device", json!("cpu"));
        let starts_none =
            is("/rank/count", json!(1)) && is("/nodes", json!(1)) && self.spec["train"]["batch"] != "auto";
        !shares || !starts_none || self.spec.pointer("/memory/limit").is_some()
    }

    /// On a thread of its own, which begins as that of a new process does.
    fn train_here(&self) -> Ended {
        let spec = self.write_spec();
        let cli = Cli::of(["pipe-trainer", "train", "--spec", spec.to_str().unwrap()]);
        let (events, log) = (Written::default(), Written::default());
        let console = Console { stop: Stop::default(), events: Box::new(events.clone()) };
        let subscriber = log_to(log.clone());
        let train = || tracing::subscriber::with_default(subscriber, || pipe_trainer::run(&cli.command, console));
        let thread = std::thread::Builder::new().name("training".to_owned()).stack_size(8 << 20);
        let ended = std::thread::scope(|scope| thread.spawn_scoped(scope, train).unwrap().join().unwrap());
        let code = ended.as_ref().map_or_else(pipe_trainer::TrainerError::status, |()| 0);
        let report = ended.map_or_else(|error| error.report(), |()| String::new());
        Ended { code: Some(code), stderr: log.text() + &report, events: parse_events(&events.text()) }
    }

    pub fn run(&self, verb: &str) -> Ended {
        Ended::from(self.start_to(verb).wait_with_output().unwrap())
    }

    /// Trains in a process of its own. Returns also the most bytes that it held: what it allocated, and the libraries that it mapped.
    /// A small program starts it: Linux counts the memory of the one that starts a process as that of the process.
    pub fn train_and_measure(&self) -> (Ended, u64) {
        const MEASURE: &str = "import resource, subprocess, sys\nended = subprocess.run(sys.argv[2:])\nwith open(sys.argv[1], 'w') \
                               as file: file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))\n\
                               sys.exit(ended.returncode)";
        let peak = self.root.join("peak");
        let mut command = Command::new("python3");
        command.args(["-c", MEASURE]).arg(&peak).arg(trainer().get_program()).args(["train", "--spec"]);
        let ended = Ended::from(command.arg(self.write_spec()).output().unwrap());
        (ended, fs::read_to_string(&peak).unwrap().parse::<u64>().unwrap() * 1024)
    }

    /// Trains until a line with `text` is written, and sends SIGTERM or SIGKILL. Whether that ended it: under load the rest of a
    /// training may be faster than a signal.
    fn strike(&self, text: &str, signal: i32) -> bool {
        let mut child = self.start();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_written = lines.any(|line| line.unwrap().contains(text));
        // SAFETY: the child has not been waited for, so its number is still its own.
        unsafe { libc::kill(child.id().cast_signed(), signal) };
        // Kept open to the end: a trainer whose stdout is closed stops by itself.
        let rest = std::thread::spawn(move || lines.for_each(drop));
        let status = child.wait().unwrap();
        rest.join().unwrap();
        match (signal, status.code()) {
            (_, Some(0)) => false,
            // It saved and ended.
            (libc::SIGTERM, Some(143)) => is_written,
            (libc::SIGKILL, None) if status.signal() == Some(libc::SIGKILL) => is_written,
            _ => panic!("{text}, signal {signal}: {status}"),
        }
    }

    /// As a kill after `step` would have left them.
    pub fn remove_checkpoints_after(&self, step: u64) {
        let last = checkpoint_name(step);
        for entry in fs::read_dir(self.run_folder().checkpoints()).unwrap().flatten() {
            if entry.file_name().to_str() > Some(&last) {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
    }

    /// Trains, and once more from the checkpoint after `step` steps: same losses, same bits at the end.
    #[track_caller]
    pub fn expect_the_same_bits_from(&self, step: u64) {
        let steps = self.spec["train"]["steps"].as_u64().unwrap();
        let whole = self.train().expect(0).curve();
        let digests = self.checkpoint_digests(steps);
        self.remove_checkpoints_after(step);
        assert_eq!(self.train().expect(0).curve(), whole[usize::try_from(step).unwrap()..], "{}", self.spec["train"]);
        assert_eq!(self.checkpoint_digests(steps), digests, "{}", self.spec["train"]);
    }

    /// Stands for every byte of the checkpoint after `step` steps that training has changed.
    pub fn checkpoint_digests(&self, step: u64) -> [blake3::Hash; 2] {
        let folder = self.run_folder().checkpoints().join(checkpoint_name(step));
        ["model.safetensors", "optimizer.safetensors"].map(|name| blake3::hash(&fs::read(folder.join(name)).unwrap()))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            events: parse_events(&String::from_utf8(output.stdout).unwrap()),
        }
    }
}

fn parse_events(text: &str) -> Vec<EventKind> {
    text.lines().map(|line| Event::parse(line).unwrap_or_else(|| panic!("not an event: {line}")).kind).collect()
}

/// Text that a training writes, in memory.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of the trainer's `main`.
fn log_to(log: Written) -> impl tracing::Subscriber + Send + Sync {
    let log = move || log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(log);
    subscriber.with_target(false).with_ansi(false).without_time().finish()
}

impl Ended {
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        self
    }

    pub fn warnings(&self) -> Vec<&str> {
        let messages = self.events.iter().filter_map(|event| match event {
            EventKind::Warning(warning) => Some(warning.message.as_str()),
            _ => None,
        });
        messages.collect()
    }

    /// Step and loss.
    pub fn curve(&self) -> Vec<(u64, f64)> {
        let point = |event: &EventKind| match event {
            EventKind::Step(step) => Some((step.step, step.loss)),
            _ => None,
        };
        self.events.iter().filter_map(point).collect()
    }
}

/// A training that was ended by each of these signals in turn, sent once it had written a line with the text beside it.
#[track_caller]
pub fn struck(bench: impl Fn() -> Bench, signals: &[(String, i32)]) -> Bench {
    const TRIES: usize = 10;
    let try_once = |_| {
        let bench = bench();
        signals.iter().all(|(text, signal)| bench.strike(text, *signal)).then_some(bench)
    };
    (0..TRIES).find_map(try_once).unwrap_or_else(|| panic!("{TRIES} times a signal came too late: {signals:?}"))
}

/// The line of a step.
pub fn step_line(step: u64) -> String {
    format!("\"type\":\"step\",\"step\":{step},")
}

/// The loss of every step.
pub fn losses(ended: &Ended) -> Vec<f64> {
    ended.curve().into_iter().map(|(_, loss)| loss).collect()
}

/// How far two curves are apart where they are furthest.
pub fn furthest(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// One test for each architecture by `$quick`, and one by `$full` that `make test-all` runs. A function of the architecture's name makes
/// its bench.
macro_rules! for_each_architecture {
    ($quick:ident, $full:ident: $($name:ident),*) => {
        mod quick {
            $(#[test] fn $name() { super::$quick(super::$name()); })*
        }
        mod full {
            $(#[test] #[ignore = "test-all"] fn $name() { super::$full(super::$name()); })*
        }
    };
}

pub(crate) use for_each_architecture;

/// Steps of a training in 16 bits: the CPU multiplies such numbers slowly, so that `make test` has few of them.
pub fn narrow_steps(all: usize) -> usize {
    if std::env::var("PIPE_TEST_ALL").is_ok_and(|value| value == "1") { all } else { 8 }
}

/// Half of what a training is given to save: however busy the machine is, what takes longer waits for something.
const HANG: Duration = Duration::from_secs(120);

/// Looks until there is an answer.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let looks = std::iter::repeat_with(look).inspect(|_| std::thread::sleep(Duration::from_millis(20)));
    let mut looks = looks.take_while(|_| began.elapsed() < HANG);
    looks.find_map(|answer| answer).unwrap_or_else(|| panic!("{what} did not happen in {HANG:?}"))
}

/// Writes the files of `pipe-trainer data` with these arguments into `folder`.
pub fn generate(args: &[&str], folder: &Path) {
    generated::generate(trainer(), args, folder);
}

pub fn trainer() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pipe-trainer"))
}

pub fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/t5-gated").canonicalize().unwrap()
}

fn root() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let root = std::env::temp_dir().join(format!("pipe-trainer-{}-{number}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    root
}
