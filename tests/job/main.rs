//! A stand-in for a trainer, for tests of what the runner does around one: it needs no libtorch and does what the variable
//! JOB says. It meets the runner as the trainer does, through the types of pipe-spec. tests/compile-job compiles it, linked
//! statically, so that it runs in an image made from nothing.

mod card;
mod command;
mod container;
mod events;
mod training;

use std::fs;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pipe_spec::event::{Started, StartedMemory};
use pipe_spec::trainer::{Predicted, Split};
use pipe_spec::{EventKind, Inspection, PredictEvent, PredictSpec, RunFolder, TrainerExit, TrainerSpec};

use events::{Events, job_folder, started, step};

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn raise(number: i32) -> i32;
}

const SIGTERM: i32 = 15;
const SIG_IGN: usize = 1;

extern "C" fn end_on_term(_: i32) {
    println!("stopping");
    exit(TrainerExit::Stopped);
}

fn on_sigterm(handler: extern "C" fn(i32)) {
    // SAFETY: the handlers only set a flag, or print and exit a program that does nothing else.
    unsafe { signal(SIGTERM, handler as *const () as usize) };
}

fn exit(code: TrainerExit) -> ! {
    std::process::exit(code as i32)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|word| word == "command") {
        return command::run(&args[2..]);
    }
    let job = std::env::var("JOB").unwrap_or_default();
    let words: Vec<&str> = job.split(' ').collect();
    let (verb, words) = (words[0], &words[1..]);
    let numbers: Vec<u64> = words.iter().map_while(|word| word.parse().ok()).collect();
    let number = numbers.first().copied().unwrap_or(0);
    match verb {
        // Runs out of memory before it has written anything.
        "early" => exit(TrainerExit::HostOutOfMemory),
        "pause" => return std::thread::sleep(Duration::from_millis(number)),
        _ => {}
    }
    let path = std::env::args().nth(3).expect("train --spec FILE");
    if args[1] == "predict" {
        return predict(&path);
    }
    let spec: TrainerSpec = serde_json::from_slice(&fs::read(path).expect("the spec")).expect("the spec");
    if std::env::args().nth(1).as_deref() == Some("inspect") {
        let train = Split { rows: 1, read: 1, ..Split::default() };
        let inspection =
            Inspection { train, eval: None, steps: 3, step_parts: None, example: Vec::new(), notices: Vec::new() };
        return println!("{}", serde_json::to_string(&inspection).expect("it is plain data"));
    }
    let fits = u64::from(spec.train.batch()) <= number;
    let is_long = verb == "long";
    let mut events = Events::new(&job_folder(&spec), if is_long { now } else { || 0.0 });
    if verb == "search" {
        return training::search(spec, &mut events, number as u32);
    }
    let on_cpu = started(&spec, if is_long { number } else { 3 });
    events.emit(EventKind::Started(match verb {
        "card" => Started {
            device: "Test Card".to_owned(),
            memory: StartedMemory { capacity: Some(card::TOTAL), ..StartedMemory::default() },
            driver: Some("1.2.3".to_owned()),
            ..on_cpu
        },
        _ => on_cpu,
    }));
    match verb {
        "exit" => {
            eprintln!("error: the job was told to exit");
            std::process::exit(number as i32);
        }
        "raise" => {
            eprintln!("about to raise");
            // SAFETY: the signal ends the program.
            unsafe { raise(number as i32) };
        }
        // A rank is gone, and the first process ends with a code of that.
        "lost" => {
            eprintln!("error: rank 1 was killed by SIGKILL");
            std::process::exit(number as i32);
        }
        // A rank takes memory until the kernel ends it, where the batch is too large.
        "rank-eats" if !fits => {
            let program = std::env::current_exe().expect("this program");
            let rank = std::process::Command::new(program).args(["command", "eat", "0", "--batch", "1"]).status();
            eprintln!("error: rank 1 ended with {}", rank.expect("a rank"));
            std::process::exit(137);
        }
        "rank-eats" => steps(&mut events, 3, 1.0),
        // Says what these variables are.
        "env" => {
            words.iter().for_each(|name| eprintln!("{name}={}", std::env::var(name).unwrap_or_default()));
            (1..=3).for_each(|number| events.emit(EventKind::Step(card::shared_step(&spec, number))));
        }
        // SAFETY: none; a bad access is what is asked for.
        "segfault" => unsafe { std::ptr::write_volatile(8 as *mut u8, 1) },
        // Ends well when the batch is small enough, and is out of host memory otherwise.
        "fit" if !fits => exit(TrainerExit::HostOutOfMemory),
        // The same, but takes the memory until the kernel ends it.
        "eat" if !fits => eat(),
        "fit" | "eat" => steps(&mut events, 3, 1.0),
        // Losses that are so many millionths too large, a model to match, and then the exit code that follows.
        "bend" => {
            steps(&mut events, 3, 1.0 + number as f64 * 1e-6);
            let folder = RunFolder::new(&spec.run).model();
            fs::create_dir_all(&folder).expect("the model's folder");
            fs::write(folder.join("model.safetensors"), number.to_string()).expect("the model");
            std::process::exit(numbers.get(1).copied().unwrap_or(0) as i32);
        }
        // So many steps, so many milliseconds each, if the batch is small enough.
        "long" if u64::from(spec.train.batch()) > numbers[2] => exit(TrainerExit::HostOutOfMemory),
        "long" => training::long(&mut events, number, Duration::from_millis(numbers[1])),
        "learn" => training::learn(&spec, &mut events),
        "classes" => training::classes(&spec, &mut events),
        "card" => card::run(&spec, &mut events, words),
        "walk" => training::walk(&spec, &mut events, &numbers),
        "sleep" => {
            on_sigterm(end_on_term);
            sleep();
        }
        // Ignores signals for so many milliseconds.
        "late" => {
            eprintln!("ignoring signals");
            std::thread::sleep(Duration::from_millis(number));
            on_sigterm(end_on_term);
            sleep();
        }
        "stubborn" => {
            // SAFETY: no handler runs.
            unsafe { signal(SIGTERM, SIG_IGN) };
            sleep();
        }
        "flood" => {
            let line = "x".repeat(1000);
            (0..number).for_each(|_| eprintln!("{line}"));
        }
        "probe" => container::probe(),
        // Events of which the middle one is in the file alone (`gap 1`) or nowhere (`gap 0`).
        "gap" => {
            for at in 1..=5 {
                match at {
                    3 if number == 1 => events.emit_to_file(plain_step(at, 1.0)),
                    3 => events.lose(),
                    _ => events.emit(plain_step(at, 1.0)),
                }
            }
        }
        "hostile" => {
            container::attack(&spec, &std::env::var("VICTIM").expect("the file to attack"));
            std::process::exit(6);
        }
        "read" => {
            read_inputs(&spec);
            steps(&mut events, 3, 1.0);
        }
        other => panic!("JOB is {other:?}"),
    }
}

/// Answers each row with its source in capitals; `sleep` until it is ended, and `bad` not at all.
fn predict(path: &str) {
    let spec: PredictSpec = serde_json::from_slice(&fs::read(path).expect("the spec")).expect("the spec");
    let mut answers = String::new();
    for file in &spec.settings.data.train.0 {
        for (number, line) in fs::read_to_string(file).expect("the rows").lines().enumerate() {
            let row: serde_json::Value = serde_json::from_str(line).expect("a row");
            match row["source"].as_str().unwrap_or_default() {
                "sleep" => sleep(),
                "bad" => {
                    eprintln!("error: {file} line 1: <b>no such dish</b>");
                    exit(TrainerExit::BadInput);
                }
                source => answers += &format!("{}\n", serde_json::json!({ "row": number, "text": source.to_uppercase() })),
            }
        }
    }
    let done = Predicted { predictions: 1, device: "cpu".to_owned(), batch: 1, ..Predicted::default() };
    fs::write(&spec.out, answers).expect("the answers");
    println!("{}", serde_json::to_string(&PredictEvent::Done(done)).expect("it is plain data"));
}

/// So many steps, with losses that are so many times the usual ones.
fn steps(events: &mut Events, count: u64, times: f64) {
    (1..=count).for_each(|number| events.emit(plain_step(number, times)));
}

fn plain_step(number: u64, times: f64) -> EventKind {
    EventKind::Step(step(number, 10.0 / number as f64 * times))
}

/// Reads the data and the weights that came from the hub.
fn read_inputs(spec: &TrainerSpec) {
    let data =
        spec.data.train.0.iter().filter(|path| path.contains("/snapshots/") && path.ends_with(".jsonl")).cloned();
    let weights = format!("{}/model.safetensors", spec.model.from.as_deref().unwrap_or_default());
    for path in data.chain([weights]) {
        match fs::read(&path) {
            Ok(bytes) => eprintln!("{path}: {} bytes", bytes.len()),
            Err(error) => eprintln!("{path}: {error}"),
        }
    }
}

/// Seconds since the Unix epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn sleep() {
    eprintln!("sleeping");
    std::io::stderr().flush().ok();
    std::thread::sleep(Duration::from_secs(600));
}

fn eat() {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(vec![1; 8 << 20]);
    }
}
