//! A rank of this node, seen by the process that started it.

use std::process::{Child, ExitStatus};
use std::time::Instant;

use pipe_spec::{Device, Phase};

use super::heartbeat::{Heartbeat, RankState};
use crate::host::child::{bytes_moved, cpu_time};

/// A rank and when it was last seen to do something.
pub struct Watched {
    pub rank: u32,
    child: Child,
    pub ended: Option<ExitStatus>,
    device: Device,
    pub heartbeat: Option<Heartbeat>,
    signs: (Option<u64>, Option<u64>),
    /// When it last went on.
    pub since: Instant,
    /// When it last did so or polled.
    pub seen: Instant,
    /// When it was last seen to read or write, or on the CPU to compute.
    pub worked: Instant,
    /// Whether it was killed here.
    pub dropped: bool,
}

impl Watched {
    pub fn new(rank: u32, child: Child, device: Device) -> Self {
        let now = Instant::now();
        let (heartbeat, signs) = (None, (None, None));
        Self { rank, child, ended: None, device, heartbeat, signs, since: now, seen: now, worked: now, dropped: false }
    }

    /// Takes in whether it has done anything. A card that hangs keeps a core busy, so that there only what a rank says counts; it
    /// says nothing while it reads and writes.
    pub fn observe(&mut self, heartbeat: Heartbeat) {
        let process = self.child.id();
        let signs = (cpu_time(process), bytes_moved(process));
        let (computed, moved) = (signs.0 != self.signs.0, signs.1 != self.signs.1);
        let on_card = self.device == Device::Cuda;
        if moved || (computed && !on_card) {
            self.worked = Instant::now();
        }
        let works = match heartbeat.phase {
            _ if heartbeat.state.waits() => false,
            _ if heartbeat.state == RankState::Starting || !on_card => computed || moved,
            Phase::Load | Phase::Resume => computed || moved,
            Phase::Checkpoint => moved,
            Phase::Forward | Phase::Backward | Phase::Optimizer | Phase::Eval => false,
        };
        let known = self.heartbeat.map(|known| Heartbeat { polls: heartbeat.polls, ..known });
        let computes_nothing = heartbeat.state == RankState::Computing;
        if known != Some(heartbeat) || works {
            (self.since, self.seen) = (Instant::now(), Instant::now());
        } else if self.heartbeat != Some(heartbeat) && !computes_nothing {
            self.seen = Instant::now();
        }
        (self.heartbeat, self.signs) = (Some(heartbeat), signs);
    }

    /// Takes in whether it has ended.
    pub fn collect(&mut self) {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
    }

    pub fn idle_text(&self) -> String {
        match self.heartbeat {
            Some(heartbeat) if heartbeat.state != RankState::Starting => {
                let what = if heartbeat.state == RankState::Computing {
                    "its card has computed nothing"
                } else {
                    "it did nothing"
                };
                format!("{what} in phase {} after step {}", heartbeat.phase.name(), heartbeat.step)
            }
            _ => "it did nothing since its start".to_owned(),
        }
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill takes two integers. The process is a child that has not been waited for, so that its number is still its own.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
