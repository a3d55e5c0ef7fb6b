//! A program that is still running.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::Answer;

const SIGKILL: i32 = 9;

pub struct Running {
    command: String,
    child: Child,
}

impl Running {
    pub fn new(command: String, child: Child) -> Self {
        Self { command, child }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success(), "kill -{name}");
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it. Whether the kill struck: false where it had ended by itself.
    pub fn kill(mut self) -> bool {
        self.child.kill().unwrap();
        let output = self.child.wait_with_output().unwrap();
        output.status.signal() == Some(SIGKILL)
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

    /// Waits for its end, two minutes at most.
    pub fn end(mut self) -> Answer {
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if began.elapsed() > Duration::from_secs(120) {
                self.child.kill().ok();
                let answer = Answer::new(self.command, self.child.wait_with_output().unwrap());
                panic!("it did not end by itself\n{answer}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Answer::new(self.command, self.child.wait_with_output().unwrap())
    }
}
