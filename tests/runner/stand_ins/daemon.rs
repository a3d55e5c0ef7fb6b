//! A Docker daemon for one test, with its own socket and data: the machine's daemon is never stopped. And a socket that leads to the
//! machine's daemon and changes what it answers, in as many bytes.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Daemon {
    pub fn start(folder: &Path) -> Self {
        Self::start_with(folder, "{}")
    }

    /// With settings of its own, as in daemon.json.
    pub fn start_with(folder: &Path, settings: &str) -> Self {
        let folder = folder.join("daemon");
        std::fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name).display().to_string();
        // The settings of the machine's daemon are not used.
        std::fs::write(folder.join("daemon.json"), settings).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        // In the machine's network it would remove the bridge of the machine's daemon.
        let child = Command::new("unshare")
            .args(["--net", "dockerd"])
            .args(["--bridge=none", "--iptables=false", "--ip-masq=false"])
            .args(["--config-file", &at("daemon.json"), "--storage-driver", "vfs"])
            .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
            .args(["--host", &format!("unix://{}", at("docker.sock"))])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let daemon = Self { child, folder };
        daemon.wait_for_word();
        daemon
    }

    /// Stops it, and starts it again with the same data.
    pub fn restart(&mut self) {
        self.restart_after(|| std::thread::sleep(Duration::from_secs(1)));
    }

    /// The same; `meanwhile` happens while there is none.
    pub fn restart_after(&mut self, meanwhile: impl FnOnce()) {
        self.stop();
        meanwhile();
        let base = self.folder.parent().unwrap().to_owned();
        let settings = std::fs::read_to_string(self.folder.join("daemon.json")).unwrap();
        let started = Self::start_with(&base, &settings);
        // The old one is not cleaned up: the new one uses its folder.
        std::mem::forget(std::mem::replace(self, started));
    }

    fn wait_for_word(&self) {
        let began = Instant::now();
        let log = self.folder.join("log");
        while !std::fs::read_to_string(&log).unwrap_or_default().contains("API listen on") {
            let text = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(60), "the daemon did not start:\n{}", text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn address(&self) -> String {
        format!("unix://{}", self.folder.join("docker.sock").display())
    }

    pub fn stop(&mut self) {
        Command::new("kill").arg(self.child.id().to_string()).status().ok();
        self.child.wait().ok();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
        // Its mounts would keep the folder from being removed.
        Command::new("sh")
            .args(["-c", "grep -o \"$0[^ ]*\" /proc/mounts | sort -r | xargs -r umount -l"])
            .arg(&self.folder)
            .stderr(Stdio::null())
            .status()
            .ok();
    }
}

/// The machine's daemon.
const DAEMON: &str = "/var/run/docker.sock";

/// Listens at `socket` until the test program ends. In the first `times` answers that have it, `from` becomes `to`.
pub fn change_answers(socket: &Path, times: usize, from: &'static str, to: &'static str) {
    let left = Arc::new(AtomicUsize::new(times));
    assert_eq!(from.len(), to.len(), "the lengths that the daemon tells must stay true");
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let left = left.clone();
            std::thread::spawn(move || serve(client, &left, from, to));
        }
    });
}

fn serve(client: UnixStream, left: &AtomicUsize, from: &str, to: &str) {
    let daemon = UnixStream::connect(DAEMON).unwrap();
    let (asking, answered) = (client.try_clone().unwrap(), daemon.try_clone().unwrap());
    std::thread::spawn(move || copy(asking, daemon, |bytes| bytes));
    copy(answered, client, |bytes| replace(bytes, left, from.as_bytes(), to.as_bytes()));
}

fn copy(mut source: UnixStream, mut target: UnixStream, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    // Larger than the answer that is changed, which the daemon writes at once.
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = source.read(&mut buffer) {
        if target.write_all(&change(buffer[..count].to_vec())).is_err() {
            break;
        }
    }
    target.shutdown(std::net::Shutdown::Write).ok();
}

fn replace(mut bytes: Vec<u8>, left: &AtomicUsize, from: &[u8], to: &[u8]) -> Vec<u8> {
    let found = bytes.windows(from.len()).position(|window| window == from);
    let is_left = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
    if let Some(at) = found.filter(|_| is_left()) {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    bytes
}
