//! A real Slurm cluster of a test's own, on this machine.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Folder;
use super::folder::repository;

pub struct Slurm {
    folder: PathBuf,
    conf: String,
}

impl Slurm {
    pub fn start(nodes: u32) -> Self {
        Self::start_with(nodes, &[])
    }

    pub fn start_with(nodes: u32, options: &[&str]) -> Self {
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
