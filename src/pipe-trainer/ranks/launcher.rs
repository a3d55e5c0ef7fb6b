//! Starts the ranks of an attempt, one process each, and watches them: one that fails ends the attempt, and so does one that does
//! nothing while others wait for it.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pipe_spec::trainer::LEASE_VARIABLE;
use pipe_spec::{Device, Phase, TrainerExit, TrainerSpec};

use super::heartbeat::{Heartbeat, Heartbeats, RankState};
use super::notices::{Ended, Notices};
use crate::error::TrainerError;
use crate::host::child::{bytes_moved, cpu_time, die_with_this_process};
use crate::host::{Stop, lease};
use crate::spec::job_folder;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long ranks may take to save and end when one of them has ended.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(120);

/// What the ranks are told beside the spec.
pub struct Start<'a> {
    pub spec_file: &'a Path,
    pub spec: &'a TrainerSpec,
    /// Events that are written already.
    pub events: u64,
}

/// Runs all ranks to their end.
pub fn launch(start: &Start<'_>, stop: &Stop) -> Result<(), TrainerError> {
    let folder = job_folder(start.spec).ranks();
    let fail = |source| TrainerError::Io { path: folder.clone(), source };
    // What an earlier process has left there.
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    fs::create_dir_all(&folder).map_err(fail)?;
    let heartbeats = Heartbeats::create(&folder, start.spec.rank.count).map_err(fail)?;
    let mut ranks = Vec::new();
    for rank in 0..start.spec.rank.count {
        let child = command(start, rank).and_then(|mut command| command.spawn()).map_err(|source| {
            let path = PathBuf::from(format!("rank {rank}"));
            TrainerError::Io { path, source }
        });
        ranks.push(Watched::new(rank, child?, start.spec.device));
    }
    lease::training_started();
    let mut launcher = Launcher {
        ranks,
        heartbeats,
        notices: Notices::new(&folder),
        timeout: Duration::from_secs(start.spec.train.rank_timeout.get().into()),
        leaving: None,
        stopping: false,
    };
    let ended = launcher.watch(stop);
    let _ = fs::remove_dir_all(&folder);
    ended
}

fn command(start: &Start<'_>, rank: u32) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("train").arg("--spec").arg(start.spec_file).arg("--rank").arg(rank.to_string());
    command.arg("--events").arg(start.events.to_string());
    command.arg("--batch").arg(start.spec.train.batch().to_string());
    // What is said goes from process to process of this machine.
    for (name, value) in [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_IB_DISABLE", "1")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command.env_remove(LEASE_VARIABLE).stdin(Stdio::null());
    if rank > 0 {
        command.stdout(Stdio::null());
    }
    die_with_this_process(&mut command);
    Ok(command)
}

struct Launcher {
    ranks: Vec<Watched>,
    heartbeats: Heartbeats,
    notices: Notices,
    timeout: Duration,
    /// Since when a rank has ended before its time.
    leaving: Option<Instant>,
    /// Whether the ranks were told to stop.
    stopping: bool,
}

/// A rank and when it was last seen to do something.
struct Watched {
    rank: u32,
    child: Child,
    ended: Option<ExitStatus>,
    device: Device,
    heartbeat: Option<Heartbeat>,
    signs: (Option<u64>, Option<u64>),
    /// When it last went on.
    since: Instant,
    /// When it last did so or polled.
    seen: Instant,
    /// When it was last seen to read or write, or on the CPU to compute.
    worked: Instant,
    /// Whether it was killed here.
    dropped: bool,
}

impl Launcher {
    fn watch(&mut self, stop: &Stop) -> Result<(), TrainerError> {
        let mut checked = Instant::now();
        while self.ranks.iter().any(|rank| rank.ended.is_none()) {
            thread::sleep(POLL_INTERVAL);
            self.collect();
            if stop.requested() && !self.stopping {
                self.stopping = true;
                self.living().for_each(|rank| rank.signal(libc::SIGTERM));
            }
            if self.leaving.is_some() || (self.stopping && self.ranks.iter().any(|rank| rank.ended.is_some())) {
                self.end_stragglers();
            } else if checked.elapsed() >= self.timeout.min(Duration::from_secs(1)) / 4 {
                checked = Instant::now();
                self.find_idle();
            }
        }
        self.result()
    }

    /// Of ranks that are to end: one that waits for others to come notices nothing else, and one that neither saves nor computes for
    /// long does not end by itself.
    fn end_stragglers(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            let heartbeat = self.heartbeats.of(rank.rank);
            rank.observe(heartbeat);
            let too_long =
                self.leaving.is_some_and(|since| since.elapsed().min(rank.worked.elapsed()) >= LEAVE_TIMEOUT);
            if too_long || heartbeat.state == RankState::Joining {
                rank.dropped = true;
                rank.signal(libc::SIGKILL);
            }
        }
    }

    fn living(&self) -> impl Iterator<Item = &Watched> {
        self.ranks.iter().filter(|rank| rank.ended.is_none())
    }

    /// Takes in which ranks have ended.
    fn collect(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            rank.ended = rank.child.try_wait().ok().flatten();
        }
        let first = self.failed();
        if let Some((rank, status)) = first.filter(|_| self.leaving.is_none()) {
            self.leaving = Some(Instant::now());
            if self.reason().is_none() {
                self.notices.leave(&without_a_word(rank, status));
            }
        }
    }

    /// A rank that ended otherwise than it should.
    fn failed(&self) -> Option<(u32, ExitStatus)> {
        // One that was told to stop before it could hear that ends by the signal.
        let told = |status: &ExitStatus| self.stopping && status.signal() == Some(libc::SIGTERM);
        let failure = |rank: &Watched| rank.ended.filter(|status| is_failure(status) && !told(status) && !rank.dropped);
        self.ranks.iter().find_map(|rank| Some((rank.rank, failure(rank)?)))
    }

    /// What the rank that ended first has left.
    fn reason(&self) -> Option<Ended> {
        self.ranks.iter().find_map(|rank| self.notices.of(rank.rank))
    }

    /// Gives up a rank that does nothing while others wait for it.
    fn find_idle(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            rank.observe(self.heartbeats.of(rank.rank));
        }
        let idle = |rank: &&Watched| rank.since.elapsed() >= self.timeout;
        let waits = |rank: &&Watched| rank.heartbeat.is_some_and(|heartbeat| heartbeat.state.waits());
        // One that waits polls, unless it waits for all to come.
        let hangs = |rank: &&Watched| {
            let joins = rank.heartbeat.is_some_and(|heartbeat| heartbeat.state == RankState::Joining);
            !joins && rank.seen.elapsed() >= self.timeout
        };
        if self.living().filter(waits).filter(idle).count() == 0 {
            return;
        }
        let seconds = self.timeout.as_secs();
        let (rank, message) = match self.living().find(hangs) {
            Some(rank) => (rank, format!("{} for {seconds} seconds while others waited for it", rank.idle_text())),
            None if self.living().all(|rank| waits(&rank) && idle(&rank)) => {
                let Some(first) = self.living().next() else { return };
                (first, format!("all ranks have waited for each other for {seconds} seconds"))
            }
            None => return,
        };
        let hint = "raise train.rank_timeout if it only needs longer; else look at its card (nvidia-smi, dmesg)";
        self.notices.leave(&Ended {
            rank: rank.rank,
            message,
            hint: Some(hint.to_owned()),
            exit: TrainerExit::Unexpected.code(),
            weights_differ: false,
            oom: None,
        });
        rank.signal(libc::SIGKILL);
        self.leaving = Some(Instant::now());
    }

    /// What the attempt came to: the reason of the rank that ended first, if one did.
    fn result(&self) -> Result<(), TrainerError> {
        let silent = || self.failed().map(|(rank, status)| without_a_word(rank, status));
        if let Some(Ended { rank, message, hint, exit, .. }) = self.reason().or_else(silent) {
            return Err(TrainerError::RankEnded { rank, message, hint, exit });
        }
        match self.ranks.iter().all(|rank| rank.ended.is_some_and(|status| status.success())) {
            true => Ok(()),
            false => Err(TrainerError::Stopped { step: self.notices.stops_after().unwrap_or(0) }),
        }
    }
}

impl Watched {
    fn new(rank: u32, child: Child, device: Device) -> Self {
        let now = Instant::now();
        let (heartbeat, signs) = (None, (None, None));
        Self { rank, child, ended: None, device, heartbeat, signs, since: now, seen: now, worked: now, dropped: false }
    }

    /// Takes in whether it has done anything. A card that hangs keeps a core busy, so that there only what a rank says counts; it
    /// says nothing while it reads and writes.
    fn observe(&mut self, heartbeat: Heartbeat) {
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

    fn idle_text(&self) -> String {
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

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill takes two integers. The process is a child that has not been waited for, so that its number is still its own.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }
}

fn is_failure(status: &ExitStatus) -> bool {
    !status.success() && status.code() != Some(TrainerExit::Stopped.code())
}

/// Of a rank that left nothing.
fn without_a_word(rank: u32, status: ExitStatus) -> Ended {
    let (message, exit) = match (status.signal(), status.code()) {
        (Some(signal), _) => (format!("it was killed by signal {signal}"), 128 + signal),
        (None, code) => {
            let code = code.unwrap_or(TrainerExit::Unexpected.code());
            (format!("it ended with exit code {code}"), code)
        }
    };
    Ended { rank, message, hint: None, exit, weights_differ: false, oom: None }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
