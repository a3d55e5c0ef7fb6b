//! What a job can see and change from inside its container.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use pipe_spec::{RunFolder, TrainerSpec};

unsafe extern "C" {
    fn getuid() -> u32;
}

/// Prints what a container lets a job do.
pub fn probe() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    let interfaces = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let interfaces: Vec<&str> =
        interfaces.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
    let connected = std::net::TcpStream::connect_timeout(&([192, 0, 2, 1], 80).into(), Duration::from_secs(2)).is_ok();
    let words = [
        // SAFETY: it cannot fail and touches no memory.
        format!("uid {}", unsafe { getuid() }),
        format!("capabilities {}", field("CapEff:")),
        format!("bounding {}", field("CapBnd:")),
        format!("no_new_privileges {}", field("NoNewPrivs:")),
        format!("root_writable {}", fs::write("/probe", "x").is_ok()),
        format!("data_writable {}", fs::write("/pipe/data/train/0/x", "x").is_ok()),
        format!("run_writable {}", fs::write("/run/pipe/probe", "x").is_ok()),
        format!("spec_writable {}", fs::write("/run/pipe/attempts/01/spec.json", "x").is_ok()),
        format!("seen {}", list("/run/pipe").join(",")),
        format!("seen_of_attempts {}", list("/run/pipe/attempts/01").join(",")),
        format!("own_writable {}", ["checkpoints", "model", "attempts/01/job"].iter().all(|name| is_writable(name))),
        format!("interfaces {}", interfaces.join(",")),
        format!("connected {connected}"),
        format!("loopback {}", reaches_itself()),
    ];
    for line in words {
        eprintln!("{line}");
    }
}

/// Ranks find each other so.
fn reaches_itself() -> bool {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0));
    listener.is_ok_and(|listener| {
        let address = listener.local_addr().expect("an address");
        std::net::TcpStream::connect_timeout(&address, Duration::from_secs(2)).is_ok()
    })
}

fn list(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn is_writable(name: &str) -> bool {
    let file = format!("/run/pipe/{name}/probe");
    fs::write(&file, "x").is_ok() && fs::remove_file(&file).is_ok()
}

/// Links to a file of the host wherever `pipe` may read or write next.
pub fn attack(spec: &TrainerSpec, victim: &str) {
    let run = RunFolder::new(&spec.run);
    let attempt = run.attempt(1);
    let own = attempt.job();
    for path in [run.state(), run.resolved(), run.lock(), run.report(), run.events(), run.journal()] {
        replace(&path, victim);
    }
    for path in [attempt.outcome(), attempt.oom(), attempt.log(), attempt.spec()] {
        replace(&path, victim);
    }
    fs::remove_file(own.events()).ok();
    for path in [own.events(), own.oom(), run.model().join("config.json"), run.model().join("model.safetensors")] {
        symlink(victim, path).expect("a link");
    }
    symlink("/", run.checkpoints().join(pipe_spec::run::checkpoint_name(1))).expect("a link");
}

/// Tries to remove a file of the runner or to put a link there, and says whether it could.
fn replace(path: &Path, victim: &str) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let changed = fs::remove_file(path).is_ok() || symlink(victim, path).is_ok();
    eprintln!("{name} changed {changed}");
}
