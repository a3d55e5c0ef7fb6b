//! A program of somebody else, which knows nothing of pipe: `job command VERB NUMBER [--batch N] [--out FOLDER] [--resume PATH]`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::{SIG_IGN, SIGTERM, eat, signal};

unsafe extern "C" {
    fn setsid() -> i32;
}

/// As torch writes it. With so many GiB allocated by torch, of 24.
const CUDA: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of \
                    which 0.50 GiB is free. Including non-PyTorch memory, this process has 23.50 GiB memory in use. Of the allocated \
                    memory 22.50 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.";
const CPU: &str = "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to \
                   allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)";

pub fn run(words: &[String]) {
    let after = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1)).cloned();
    let number: u32 = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let batch: u32 = after("--batch").and_then(|word| word.parse().ok()).unwrap_or(0);
    let fits = batch <= number;
    println!("args: {}", words.join(" "));
    match words[0].as_str() {
        "cuda" if !fits => fail(CUDA, 1),
        "cpu" if !fits => fail(CPU, 1),
        "own" if !fits => fail("the heap is full", 9),
        "eat" if !fits => eat(),
        "cuda" | "cpu" | "own" | "eat" => println!("done"),
        "exit" => fail("giving up", number as i32),
        "survives" => eprintln!("{CUDA}\nlowering the resolution"),
        // A progress bar that never ends its line, and then the message in it.
        "flood" => {
            let bar = "\rstep 1000 of 100000 ".repeat(50);
            let mut stderr = std::io::stderr();
            (0..number * 1000).for_each(|_| stderr.write_all(bar.as_bytes()).expect("stderr"));
            if batch > 1 {
                fail(CUDA, 1);
            }
        }
        "stubborn" => {
            // SAFETY: no handler runs.
            unsafe { signal(SIGTERM, SIG_IGN) };
            println!("sleeping");
            std::thread::sleep(Duration::from_secs(600));
        }
        // Says how much it held, half a gigabyte for each sample and two besides, and runs out beyond so many samples.
        "peak" => {
            println!("{{\"step\": 1, \"loss\": 1.0, \"peak_memory\": {}}}", 2_000_000_000 + u64::from(batch) * 500_000_000);
            if !fits {
                fail(CUDA, 1);
            }
        }
        // Six steps, told as JSON; with a batch that is too large the third is the last.
        "learn" => {
            for step in 1..=6 {
                println!("{{\"step\": {step}, \"total_steps\": 6, \"loss\": {}, \"eval_loss\": {}}}", 4.0 / f64::from(step), step);
                if !fits && step == 3 {
                    fail(CUDA, 1);
                }
            }
        }
        // So many steps, each of so many milliseconds, whose score falls to the square of how far `--x` is from one half. Runs out beyond
        // `--most` samples, and fails where `--x` is above 1.9.
        "score" => {
            let float = |name: &str| after(name).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
            let (x, most) = (float("--x"), float("--most"));
            if most > 0.0 && f64::from(batch) > most {
                fail(CUDA, 1);
            }
            if x > 1.9 {
                fail("x is too large", 3);
            }
            for step in 1..=number {
                std::thread::sleep(Duration::from_millis(float("--millis") as u64));
                let score = (x - 0.5).powi(2) + 1.0 - f64::from(step) / f64::from(number);
                println!("{{\"step\": {step}, \"total_steps\": {number}, \"score\": {score}, \"peak_memory\": {}}}", 1_000_000 * u64::from(batch));
            }
        }
        // So many steps, told as fast as possible, and then the message, beyond `--most` samples.
        "many" => {
            let pad = "x".repeat(100);
            (1..=number).for_each(|step| println!("{{\"step\": {step}, \"loss\": 1.0, \"pad\": \"{pad}\"}}"));
            if after("--most").and_then(|word| word.parse().ok()).is_some_and(|most: u32| batch > most) {
                fail(CUDA, 1);
            }
        }
        // With a batch that is too large: leaves a process in a session of its own, without an environment, and fails.
        "stray" => {
            let out = PathBuf::from(after("--out").expect("--out"));
            let note = |name: &str| std::fs::write(out.join(format!("{name}-{batch}")), crate::now().to_string()).expect("a file");
            note("begin");
            if !fits {
                leave_behind(&out, words.iter().any(|word| word == "--quiet"));
            }
            std::thread::sleep(Duration::from_secs(1));
            note("end");
            if !fits {
                fail(CUDA, 1);
            }
        }
        // Writes and prints the time, for longer than it may, but not for ever.
        "noise" => {
            let mut file = std::fs::File::options().create(true).append(true).open(&words[1]).expect("a file");
            for _ in 0..300 {
                writeln!(file, "{}", crate::now()).expect("a line");
                writeln!(std::io::stdout(), "noise").ok();
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        "nap" => {
            println!("napping");
            std::thread::sleep(Duration::from_millis(number.into()));
            println!("awake");
        }
        // Writes a file: what the files after --in hold, and its own name. Fails where one of them says so, once that is all.
        "join" => {
            let read = |path: &String| std::fs::read_to_string(path).unwrap_or_else(|error| fail(&format!("{path}: {error}"), 5));
            let inputs = words.iter().position(|word| word == "--in").map_or(&[][..], |at| &words[at + 1..]);
            let text: String = inputs.iter().map(read).collect();
            std::thread::sleep(Duration::from_millis(number.into()));
            let out = PathBuf::from(after("--out").expect("--out"));
            if text.contains(&format!("fail {}", words[2])) {
                fail("asked to fail", 4);
            }
            std::fs::write(out.join("text"), format!("{text}{}\n", words[2])).expect("a file");
            println!("joined {}", words[2]);
        }
        "link" => std::os::unix::fs::symlink("/etc", &words[1]).expect("a link"),
        "children" => {
            let program = std::env::current_exe().expect("this program");
            let child = std::process::Command::new(program).args(["command", "stubborn"]).spawn().expect("a child");
            println!("child {}", child.id());
        }
        "outside" => {
            for path in ["/outside", "/job", "/run/outside"] {
                match std::fs::write(path, "x") {
                    Ok(()) => fail(&format!("wrote {path}"), 1),
                    Err(_) => println!("refused {path}"),
                }
            }
            // What is compiled while it runs is loaded from there.
            std::fs::copy("/job", "/tmp/job").expect("/tmp");
            let copy = std::process::Command::new("/tmp/job").args(["command", "survives"]).status().expect("a program in /tmp");
            println!("from /tmp: {copy}");
            println!("home {}", std::env::var("HOME").unwrap_or_default());
            println!("folder {}", std::env::current_dir().expect("a folder").display());
        }
        // Six steps with a checkpoint each. With a batch that is too large the third step of an attempt fails.
        "walk" => {
            let out = PathBuf::from(after("--out").expect("--out"));
            let first = after("--resume").map_or(1, |path| {
                let saved = std::fs::read_to_string(PathBuf::from(path).join("step")).expect("the checkpoint");
                saved.parse::<u32>().expect("a number") + 1
            });
            for (step, count) in (first..=6).zip(1..) {
                if !fits && count == 3 {
                    fail(CUDA, 1);
                }
                println!("step {step} of batch {batch}");
                let folder = out.join(format!("checkpoint-{step}"));
                std::fs::create_dir_all(&folder).expect("the checkpoint");
                std::fs::write(folder.join("step"), step.to_string()).expect("the checkpoint");
            }
        }
        other => fail(&format!("no verb {other}"), 2),
    }
}

/// Starts `noise`, where neither the environment nor the session tells whose it is.
fn leave_behind(out: &std::path::Path, quiet: bool) {
    use std::os::unix::process::CommandExt;
    let mut noise = std::process::Command::new(std::env::current_exe().expect("this program"));
    noise.args(["command", "noise"]).arg(out.join("noise")).env_clear();
    if quiet {
        noise.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    }
    // SAFETY: setsid may be called between fork and exec.
    unsafe { noise.pre_exec(|| if setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }) };
    noise.spawn().expect("a process");
}

fn fail(said: &str, code: i32) -> ! {
    eprintln!("{said}");
    std::process::exit(code)
}
