//! A real Slurm cluster on this machine: one for all tests that leave it as it was, and one of its own for a test that breaks it.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::harness::folder::repository;
use crate::harness::{Folder, Needs, Suite};

pub struct Slurm {
    folder: PathBuf,
    conf: String,
}

/// The shared cluster, once a test has asked for it.
static SHARED: Mutex<Option<Slurm>> = Mutex::new(None);

/// The shared cluster, which no other test has at the same time.
pub struct Shared(MutexGuard<'static, Option<Slurm>>);

impl Shared {
    /// Waits for the test that has it.
    pub fn lock() -> Self {
        Self(SHARED.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts it with two nodes where it has not been started, and removes the jobs that a failed test left in it.
    pub fn start(&mut self) {
        let slurm = self.0.get_or_insert_with(|| Slurm::start(2, &[]));
        let began = Instant::now();
        while !slurm.call("squeue", &["--noheader"]).is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "jobs of another test do not end: {:?}", slurm.queue());
            slurm.call("scancel", &["--user=root"]);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops it, after the last test.
    pub fn stop(mut self) {
        self.0.take();
    }
}

impl Deref for Shared {
    type Target = Slurm;

    fn deref(&self) -> &Slurm {
        self.0.as_ref().expect("a test has started it")
    }
}

/// Adds a test that leaves the shared cluster as it was. It has the cluster for itself.
pub fn on_cluster(suite: &mut Suite, name: &str, needs: Needs, test: fn(&Slurm)) {
    suite.test_after(name, needs, Shared::lock, move |mut shared| {
        shared.start();
        test(&shared);
    });
}

impl Slurm {
    pub fn start(nodes: u32, options: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pipe-slurm-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        let mut command = script();
        command.arg("start").arg(&folder).arg(nodes.to_string()).args(options);
        let output = command.stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "tests/slurm/cluster start: {}", output.status);
        Self { folder, conf: String::from_utf8(output.stdout).unwrap().trim().to_owned() }
    }

    /// A folder whose `pipe` uses this cluster.
    pub fn with(&self, folder: Folder) -> Folder {
        folder.env("SLURM_CONF", &self.conf)
    }

    /// `restart-controller`, or `lose` and `regain` with a node.
    pub fn ask(&self, what: &str, node: &[&str]) {
        let status = script().arg(what).arg(&self.folder).args(node).stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "tests/slurm/cluster {what}: {status}");
    }

    /// What a program of the cluster prints.
    pub fn call(&self, program: &str, args: &[&str]) -> String {
        let output = Command::new(program).args(args).env("SLURM_CONF", &self.conf).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Another user cancels all jobs of this one.
    pub fn cancel_as_operator(&self) {
        let conf = format!("SLURM_CONF={}", self.conf);
        self.call("runuser", &["-u", "nobody", "--", "env", &conf, "scancel", "--user=root"]);
    }

    /// The jobs that wait or run.
    pub fn queue(&self) -> Vec<String> {
        let text = self.call("squeue", &["--noheader", "--format=%i %T %N"]);
        text.lines().filter(|line| !line.contains("COMPLETING")).map(str::to_owned).collect()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        script().arg("stop").arg(&self.folder).stdout(Stdio::null()).status().ok();
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.folder).ok();
        }
    }
}

fn script() -> Command {
    Command::new(repository().join("tests/slurm/cluster"))
}
