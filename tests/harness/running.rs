//! A program that is still running.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Answer;

const SIGKILL: i32 = 9;

/// The longest that anything is waited for. Thorough tests train longer, beside others that compute.
const LIMIT: Duration = Duration::from_secs(120);
const THOROUGH_LIMIT: Duration = Duration::from_secs(600);

fn limit() -> Duration {
    if super::suite::is_set("PIPE_TEST_ALL") { THOROUGH_LIMIT } else { LIMIT }
}

/// How long a program may take to stop its job after a test has failed.
const STOP_LIMIT: Duration = Duration::from_secs(20);

pub struct Running {
    command: String,
    child: Child,
    stdout: Written,
    stderr: Written,
}

/// What a program has written so far.
struct Written {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Written {
    fn read(mut from: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let all = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                all.lock().unwrap().extend(&buffer[..count]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn read_all(&mut self) -> Vec<u8> {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        std::mem::take(&mut self.bytes.lock().unwrap())
    }
}

impl Running {
    pub fn new(command: String, mut child: Child) -> Self {
        let stdout = Written::read(child.stdout.take().expect("stdout is a pipe"));
        let stderr = Written::read(child.stderr.take().expect("stderr is a pipe"));
        Self { command, child, stdout, stderr }
    }

    /// Waits until it has said `text`.
    #[track_caller]
    pub fn wait_until_it_says(&mut self, text: &str) {
        let began = Instant::now();
        loop {
            let is_over = self.has_ended();
            let said = String::from_utf8_lossy(&self.stderr.bytes.lock().unwrap()).into_owned();
            if said.contains(text) {
                return;
            }
            assert!(!is_over && began.elapsed() < limit(), "{} has not said {text:?}, but\n{said}", self.command);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success(), "kill -{name}");
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it. Whether the kill struck: false where it had ended by itself.
    pub fn kill(mut self) -> bool {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        self.answer(status);
        status.signal() == Some(SIGKILL)
    }

    /// Kills it; it must not have ended by itself.
    #[track_caller]
    pub fn kill_alive(self) {
        let command = self.command.clone();
        assert!(self.kill(), "{command} had ended before it was killed");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, `limit` at most.
    pub fn end(mut self) -> Answer {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return self.answer(status);
            }
            if began.elapsed() > limit() {
                self.child.kill().ok();
                let status = self.child.wait().unwrap();
                panic!("it did not end by itself\n{}", self.answer(status));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it wrote, to the end of all that hold its pipes.
    fn answer(&mut self, status: ExitStatus) -> Answer {
        let (stdout, stderr) = (self.stdout.read_all(), self.stderr.read_all());
        Answer::new(self.command.clone(), Output { status, stdout, stderr })
    }
}

impl Drop for Running {
    /// A test that failed leaves no program behind: `pipe` is asked to stop its job, and killed where it does not.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().ok();
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < STOP_LIMIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
