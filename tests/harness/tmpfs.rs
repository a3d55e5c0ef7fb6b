//! A small file system for one test, unmounted when it is dropped. Needs root.

use std::path::PathBuf;
use std::process::Command;

pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `size` as mount takes it: `64k`, `3m`.
    pub fn mount(path: PathBuf, size: &str) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let disk = Self(path);
        disk.run(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        disk
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn resize(&self, size: &str) {
        self.run(&["-o", &format!("remount,size={size}")]);
    }

    fn run(&self, args: &[&str]) {
        let status = Command::new("mount").args(args).arg(&self.0).status().unwrap();
        assert!(status.success(), "mount {args:?}");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}
