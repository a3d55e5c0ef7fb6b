//! A working folder for one test, in which `pipe` is run as a user would.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Answer, Running, daemons};

pub struct Folder {
    path: PathBuf,
    env: Vec<(String, String)>,
}

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pipe-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self { path: path.canonicalize().unwrap(), env: Vec::new() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.path.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    pub fn read(&self, name: &str) -> String {
        let path = self.path.join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// A file of the only run.
    pub fn read_run(&self, name: &str) -> String {
        std::fs::read_to_string(self.run_folder().join(name)).unwrap()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.other_command(pipe());
        command.args(args);
        command
    }

    /// A program that runs `pipe` in turn.
    pub fn other_command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.path)
            .env_remove("PIPE_RUNS")
            .env_remove("RUST_LOG")
            .env("PIPE_CACHE", cache())
            .env("PIPE_LEDGER", self.path.join("ledger"))
            .env("PIPE_QUEUE", self.path.join("queue"))
            .env("NO_COLOR", "1")
            // No test uses the real hub.
            .env("HF_HUB_OFFLINE", "1")
            .env_remove("HF_TOKEN")
            .envs(daemons::address().map(|address| ("DOCKER_HOST", address)))
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn pipe(&self, args: &[&str]) -> Answer {
        let output = self.command(args).output().unwrap();
        Answer::new(format!("pipe {}", args.join(" ")), output)
    }

    /// Starts `pipe` without waiting for it.
    pub fn start(&self, args: &[&str]) -> Running {
        Running::new(format!("pipe {}", args.join(" ")), self.command(args).spawn().unwrap())
    }

    /// The newest run, as `pipe show --json` prints it.
    pub fn show(&self) -> Value {
        self.pipe(&["show", "--json"]).exits(0).json()
    }

    /// The folder of the only run.
    pub fn run_folder(&self) -> PathBuf {
        let runs: Vec<PathBuf> =
            std::fs::read_dir(self.path.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs[0].clone()
    }

    /// `run.json` of the only run, once there is one.
    pub fn state(&self) -> Option<Value> {
        let mut runs = std::fs::read_dir(self.path.join("runs")).ok()?;
        serde_json::from_slice(&std::fs::read(runs.next()?.ok()?.path().join("run.json")).ok()?).ok()
    }

    pub fn has_runs(&self) -> bool {
        self.path.join("runs").exists()
    }

    /// Waits until the log of an attempt of the only run holds `text`.
    pub fn wait_for_log(&self, attempt: u32, text: &str) {
        self.wait_until(&format!("{text:?} in the log"), || {
            let runs = std::fs::read_dir(self.path.join("runs")).into_iter().flatten().flatten();
            runs.map(|run| run.path().join(format!("attempts/{attempt:02}/log.txt")))
                .any(|log| std::fs::read_to_string(log).is_ok_and(|log| log.contains(text)))
        });
    }

    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(120), "{what} did not happen within 120 s");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The containers of this folder's runs.
    pub fn containers(&self) -> Vec<String> {
        let output = daemons::docker()
            .args(["ps", "--all", "--filter", "label=pipe.run", "--format", "{{.ID}} {{.Label \"pipe.folder\"}}"])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.split_once(' '))
            // By whole names: `pipe-test-7-1` is not `pipe-test-7-10`.
            .filter(|(_, folder)| Path::new(folder).starts_with(&self.path))
            .map(|(id, _)| id.to_owned())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.path.display());
        } else {
            std::fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// The real `pipe`, built beside this test.
pub fn pipe() -> PathBuf {
    let built = option_env!("CARGO_BIN_EXE_pipe").map_or_else(|| binaries().join("pipe"), PathBuf::from);
    assert!(built.is_file(), "{} is not built; run `make build` first", built.display());
    built
}

/// Where cargo puts programs: two folders up from a test's own program.
pub fn binaries() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(Path::parent).unwrap().to_owned()
}

/// File hashes are remembered across tests, outside the user's own folders.
fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache")
}

/// The top of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}
