//! Container engines beside that of the machine, as tests/engines/daemon starts them: one of each kind for all tests of a program.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::folder::repository;

/// The daemons that were started: the kind with the address.
static STARTED: Mutex<Option<HashMap<&str, String>>> = Mutex::new(None);

thread_local! {
    /// The address of the daemon that the test of this thread uses; none for the machine's own.
    static ADDRESS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The address of the shared daemon of this kind, which the first test starts.
pub fn start(kind: &'static str) -> String {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || {
        let output = script(&["start", kind]).arg(folder(kind)).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{kind} did not start");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    started.get_or_insert_default().entry(kind).or_insert_with(start).clone()
}

/// Runs a test on the daemon at this address.
pub fn run_on(address: String, test: impl FnOnce()) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            ADDRESS.take();
        }
    }
    ADDRESS.set(Some(address));
    let _reset = Reset;
    test();
}

/// Stops what was started, after the last test.
pub fn stop_all() {
    let started = STARTED.lock().unwrap_or_else(PoisonError::into_inner).take();
    for kind in started.unwrap_or_default().into_keys() {
        let stopped = script(&["stop"]).arg(folder(kind)).status();
        assert!(stopped.unwrap().success(), "{kind} did not stop");
    }
}

/// The address of the daemon that the test of this thread uses, where that is not the machine's own.
pub fn address() -> Option<String> {
    ADDRESS.with_borrow(Clone::clone)
}

/// The `docker` command, for the daemon that the test of this thread uses.
pub fn docker() -> Command {
    let mut docker = Command::new("docker");
    docker.envs(address().map(|address| ("DOCKER_HOST", address)));
    docker
}

fn folder(kind: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pipe-test-{}-{kind}", std::process::id()))
}

fn script(args: &[&str]) -> Command {
    let mut script = Command::new(repository().join("tests/engines/daemon"));
    script.args(args);
    script
}
