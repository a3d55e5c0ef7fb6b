//! A hostile job: it tries to reach the host through what it may write. TRAP says how, and the exit code that
//! it ends with; SECRETS is a folder of the host; PIDS a process id near that of `pipe`. What it could do and must not is
//! a line with REACHED.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

unsafe extern "C" {
    fn mkfifo(path: *const std::ffi::c_char, mode: u32) -> i32;
}

const RUN: &str = "/run/pipe";

/// What the runner keeps for itself.
const DECIDES: [&str; 6] = ["pipeline.yaml", "resolved.yaml", "lock.json", "run.json", "report.html", ".owner"];

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (trap, secrets) = (variable("TRAP"), PathBuf::from(variable("SECRETS")));
    let mut words = trap.split(' ');
    let kind = words.next().unwrap_or_default().to_owned();
    let code = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let attempt = Path::new(&std::env::args().nth(3).expect("train --spec FILE")).parent().expect("a folder").to_owned();
    tell(1, "\"type\":\"started\",\"device\":\"cpu\",\"capacity\":1,\"driver\":null,\"libtorch\":\"none\",\"params\":1,\"batch\":8,\
             \"accum\":1,\"effective_batch\":8,\"steps\":3,\"samples\":3,\"longest\":\"64\",\"resumed_from\":null", &attempt);
    look_around(&secrets);
    match kind.as_str() {
        "links" => links(&attempt, &secrets, variable("PIDS").parse().unwrap_or(1)),
        "fifos" => records(&attempt).iter().for_each(|path| replace(path, fifo)),
        "large" => records(&attempt).iter().for_each(|path| replace(path, large)),
        "holes" => holes(&attempt),
        "line" => line(&attempt),
        "deep" => deep(),
        "names" => names(&attempt),
        "events" => events(&attempt),
        "mounts" => change_what_decides(&secrets),
        other => panic!("TRAP is {other:?}"),
    }
    std::process::exit(code);
}

/// An event on both ways that there are: the job's own file and its output.
fn tell(seq: u64, event: &str, attempt: &Path) {
    let line = format!("{{\"seq\":{seq},\"ts\":0,{event}}}");
    println!("{line}");
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(attempt.join("job/events.jsonl")) {
        writeln!(file, "{line}").ok();
    }
}

/// A mount that the job asked for in an earlier attempt, or the host's files by their own path.
fn look_around(secrets: &Path) {
    for place in [Path::new("/secrets"), secrets] {
        if place.join("key").exists() {
            eprintln!("REACHED {}", place.display());
        }
    }
}

/// None of it is in the job's mounts.
fn change_what_decides(secrets: &Path) {
    let run = Path::new(RUN);
    for name in DECIDES {
        if run.join(name).exists() {
            eprintln!("REACHED {name} is visible");
        }
    }
    let resolved = run.join("resolved.yaml");
    if let Ok(text) = fs::read_to_string(&resolved) {
        let mount = format!("mounts:\n    - host: {}\n      container: /secrets\n      readonly: true\n", secrets.display());
        let changed = text.replace("mounts: []\n", &mount);
        if fs::write(&resolved, changed).is_ok() {
            eprintln!("REACHED resolved.yaml could be written");
        }
    }
    for name in ["lock.json", "run.json", "events.jsonl"] {
        if let Ok(mut file) = OpenOptions::new().append(true).open(run.join(name))
            && file.write_all(b"\n").is_ok()
        {
            eprintln!("REACHED {name} could be written");
        }
    }
}

/// The files that the runner reads back from the job, where they are and where they were.
fn records(attempt: &Path) -> Vec<PathBuf> {
    let run = Path::new(RUN);
    vec![
        attempt.join("job/oom.json"),
        attempt.join("job/events.jsonl"),
        attempt.join("oom.json"),
        run.join("model/config.json"),
        run.join("checkpoints/step-00000003/checkpoint.json"),
    ]
}

/// Links at every name that the runner may write or read next.
fn links(attempt: &Path, secrets: &Path, pid: u32) {
    let run = Path::new(RUN);
    for path in records(attempt) {
        replace(&path, |path| symlink(secrets.join("key"), path).is_ok());
    }
    for folder in [run, attempt, &attempt.join("job"), &run.join("model"), &run.join("checkpoints")] {
        let written = ["run.json", "report.html", "events.jsonl", "outcome.json", "oom.json", "log.txt", "pipe.log", "lock.json",
            "resolved.yaml", "spec.json"];
        for name in written {
            replace(&folder.join(name), |path| symlink(secrets.join("mail"), path).is_ok());
            for pid in pid..pid + 30 {
                symlink(secrets.join("mail"), folder.join(format!(".{name}.{pid}.tmp"))).ok();
            }
        }
    }
    // A folder in place of a folder.
    symlink(secrets, run.join("attempts/02")).ok();
    symlink(secrets, run.join("checkpoints/step-00000009")).ok();
    symlink(secrets, run.join("tensorboard")).ok();
    symlink(secrets, run.join("wandb")).ok();
}

fn replace(path: &Path, make: impl Fn(&Path) -> bool) {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).ok();
    }
    fs::remove_file(path).ok();
    if !make(path) {
        eprintln!("{} could not be made", path.display());
    }
}

fn fifo(path: &Path) -> bool {
    let path = std::ffi::CString::new(path.to_str().expect("a path")).expect("a path");
    unsafe { mkfifo(path.as_ptr(), 0o666) == 0 }
}

/// 2 GB that take no room, as one line.
fn large(path: &Path) -> bool {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(b"{\"memory\": \"")?;
        file.seek(SeekFrom::Start(2 << 30))?;
        file.write_all(b"\"}")
    };
    write().is_ok()
}

/// Holes that no disk could fill, in the files that are read while the job runs.
fn holes(attempt: &Path) {
    for name in ["output", "events.jsonl"] {
        let file = OpenOptions::new().write(true).open(attempt.join("job").join(name));
        if file.and_then(|file| file.set_len(8 << 40)).is_err() {
            eprintln!("{name} could not be made longer");
        }
    }
    tell(2, "\"type\":\"warning\",\"message\":\"after the holes\"", attempt);
}

/// 200 MB without an end of line, on the output and in the file of events.
fn line(attempt: &Path) {
    let piece = vec![b'x'; 1 << 20];
    let mut file = File::create(attempt.join("job/events.jsonl")).ok();
    for _ in 0..200 {
        std::io::stdout().write_all(&piece).ok();
        if let Some(file) = &mut file {
            file.write_all(&piece).ok();
        }
    }
}

/// Folders in folders, deeper than a path may be long.
fn deep() {
    for base in ["checkpoints", "model"] {
        fs::create_dir_all(Path::new(RUN).join(base)).ok();
        if std::env::set_current_dir(Path::new(RUN).join(base)).is_err() {
            continue;
        }
        for _ in 0..1500 {
            if fs::create_dir("deeper").is_err() || std::env::set_current_dir("deeper").is_err() {
                break;
            }
        }
    }
}

/// Names and words that a terminal would obey.
fn names(attempt: &Path) {
    let run = Path::new(RUN);
    for name in ["\u{1b}[2J\u{1b}]0;title\u{7}", "line\nbreak", "\u{202e}txt", "step-\u{1b}[31m", "step-99999999999999999999"] {
        for folder in [run.join("checkpoints"), run.join("model"), attempt.join("job")] {
            fs::create_dir_all(folder.join(name)).ok();
        }
    }
    tell(2, "\"type\":\"warning\",\"message\":\"\\u001b[31mred\\u001b]0;title\\u0007\"", attempt);
    tell(3, "\"type\":\"sample\",\"step\":1,\"source\":\"\\u001b[2J\",\"target\":\"<script>alert(1)</script>\",\"generated\":\"\\u001bc\"", attempt);
    eprintln!("error: \u{1b}[31mthe label \u{1b}]0;title\u{7} is not known");
}

/// Events that no trainer would write.
fn events(attempt: &Path) {
    let step = |step: &str, loss: &str| {
        format!("\"type\":\"step\",\"step\":{step},\"epoch\":0,\"samples\":1,\"loss\":{loss},\"lr\":0,\"grad_norm\":0,\"tokens\":1,\
                 \"ms\":-1,\"allocated\":1,\"reserved\":1,\"peak\":18446744073709551615")
    };
    tell(2, &step("18446744073709551615", "1e308"), attempt);
    tell(u64::MAX, &step("1", "-1e308"), attempt);
    tell(3, &step("2", "1e999"), attempt);
    tell(4, "\"type\":\"checkpoint\",\"step\":1,\"path\":\"../../../etc/passwd\",\"bytes\":1,\"ms\":1", attempt);
    tell(5, "\"type\":\"finished\",\"step\":1,\"samples\":1,\"model\":\"/etc\"", attempt);
    tell(6, "\"type\":\"fitted\",\"batch\":0,\"accum\":0,\"effective_batch\":0,\"peak\":0,\"capacity\":0,\"device\":\"x\",\"driver\":null,\"longest\":\"\"", attempt);
    let deep = "[".repeat(100_000);
    println!("{{\"seq\":7,\"ts\":0,\"type\":\"warning\",\"message\":{deep}");
}
