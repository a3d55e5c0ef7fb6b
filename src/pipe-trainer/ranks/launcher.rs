//! Starts the ranks of a node, one process each, and watches them: one that fails ends the attempt, and so does one that does nothing
//! while others wait for it. It knows other nodes only by their notices.

use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use pipe_spec::trainer::LEASE_VARIABLE;
use pipe_spec::{Device, Phase, TrainerExit, TrainerSpec};

use super::notices::{Ended, Notices};
use super::waiter::{Heartbeat, Heartbeats, RankState};
use crate::error::TrainerError;
use crate::host::{self, Stop, bytes_moved, cpu_time, die_with_this_process};
use crate::session::{Node, job_folder};
use crate::storage;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long ranks may take to save and end when one of them has ended.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Arguments of the ranks beside the spec.
pub struct Start<'a> {
    pub spec_file: &'a Path,
    pub spec: &'a TrainerSpec,
    pub node: Node,
    /// Events that are written already.
    pub events: u64,
}

/// The batch that the first node finds.
pub fn await_batch(notices: &Notices, stop: &Stop) -> Result<NonZeroU32, TrainerError> {
    loop {
        if let Some(batch) = notices.batch() {
            return Ok(batch);
        }
        if let Some(ended) = notices.any() {
            return Err(ended.into());
        }
        if stop.requested() || notices.stops_after().is_some() {
            return Err(TrainerError::Stopped { step: 0 });
        }
        thread::sleep(notices.poll_interval());
    }
}

/// Runs all ranks of a node to their end.
pub fn launch(start: &Start<'_>, stop: &Stop) -> Result<(), TrainerError> {
    let folder = job_folder(start.spec).ranks();
    let fail = |source| TrainerError::Io { path: folder.clone(), source };
    let node = start.node;
    // An earlier process may have left files there. With several nodes another may be there already.
    if node.is_only() {
        storage::remove_folder(&folder).map_err(fail)?;
    }
    fs::create_dir_all(&folder).map_err(fail)?;
    let heartbeats = Heartbeats::create(&folder, node).map_err(fail)?;
    let mut ranks = Vec::new();
    for rank in node.ranks() {
        let child = command(start, rank).and_then(|mut command| command.spawn()).map_err(|source| {
            let path = PathBuf::from(format!("rank {rank}"));
            TrainerError::Io { path, source }
        });
        ranks.push(Watched::new(rank, child?, start.spec.device));
    }
    host::training_started();
    let mut launcher = Launcher {
        ranks,
        heartbeats,
        notices: Notices::new(&folder, node),
        node,
        progress: (Vec::new(), Instant::now()),
        timeout: Duration::from_secs(start.spec.train.rank_timeout.get().into()),
        leaving: None,
        stopping: false,
        stops: false,
    };
    let ended = launcher.watch(stop);
    if node.is_only() {
        let _ = fs::remove_dir_all(&folder);
    }
    ended
}

fn command(start: &Start<'_>, rank: u32) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("train").arg("--spec").arg(start.spec_file).arg("--rank").arg(rank.to_string());
    command.arg("--events").arg(start.events.to_string());
    command.arg("--batch").arg(start.spec.train.batch().to_string());
    // NCCL finds its own way to other machines.
    let loopback = [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_IB_DISABLE", "1")];
    for (name, value) in loopback.into_iter().filter(|_| start.node.is_only()) {
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
    node: Node,
    ranks: Vec<Watched>,
    heartbeats: Heartbeats,
    notices: Notices,
    timeout: Duration,
    /// The progress of all nodes, and when it last changed.
    progress: (Vec<Option<u64>>, Instant),
    /// Since when a rank has ended before its time.
    leaving: Option<Instant>,
    /// Whether the ranks were told to stop.
    stopping: bool,
    /// Whether a rank of any node has said after which step all stop.
    stops: bool,
}

impl Launcher {
    fn watch(&mut self, stop: &Stop) -> Result<(), TrainerError> {
        let (mut checked, mut looked) = (Instant::now(), Instant::now());
        while self.ranks.iter().any(|rank| rank.ended.is_none()) {
            thread::sleep(POLL_INTERVAL);
            self.collect();
            if stop.requested() && !self.stopping {
                self.stopping = true;
                self.living().for_each(|rank| rank.signal(libc::SIGTERM));
            }
            if !self.node.is_only() && looked.elapsed() >= self.notices.poll_interval() {
                looked = Instant::now();
                self.follow_other_nodes();
            }
            // On one machine ranks come soon, and then agree; those of another may not come at all.
            let ends = self.stopping && (!self.node.is_only() || self.ranks.iter().any(|rank| rank.ended.is_some()));
            if self.leaving.is_some() || self.stops || ends {
                self.end_stragglers();
            } else if checked.elapsed() >= self.timeout.min(Duration::from_secs(1)) / 4 {
                checked = Instant::now();
                self.find_idle();
            }
        }
        self.result()
    }

    /// Takes in what the ranks of other nodes have left. Those of this one find it too.
    fn follow_other_nodes(&mut self) {
        self.stops = self.notices.stops_after().is_some();
        if self.leaving.is_none() && self.notices.any().is_some() {
            self.leaving = Some(Instant::now());
        }
    }

    /// Kills ranks that should end and cannot: one that has not begun, because it waits for others to come, notices nothing else, and
    /// one that neither saves nor computes for long does not end by itself.
    fn end_stragglers(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            let heartbeat = self.heartbeats.of(rank.rank);
            rank.observe(heartbeat);
            let too_long =
                self.leaving.is_some_and(|since| since.elapsed().min(rank.worked.elapsed()) >= LEAVE_TIMEOUT);
            let begins = heartbeat.count == 0 && heartbeat.state != RankState::Starting;
            if begins && self.leaving.is_none() {
                // Without it no rank has completed a step.
                self.notices.stop_after(0);
            }
            if too_long || begins {
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
        self.ranks.iter_mut().for_each(Watched::collect);
        let first = self.failed();
        if let Some((rank, status)) = first.filter(|_| self.leaving.is_none()) {
            self.leaving = Some(Instant::now());
            if self.notices.any().is_none() {
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

    /// Tells other nodes that a rank of this one works, and takes in what they tell.
    fn exchange_progress(&mut self) {
        let now = self.notices.progress();
        if now != self.progress.0 {
            self.progress = (now, Instant::now());
        }
        let interval = self.timeout / 8;
        let works = |rank: &Watched| {
            let waits = rank.heartbeat.is_some_and(|heartbeat| heartbeat.state.waits());
            !waits && rank.seen.elapsed() < interval
        };
        if self.progress.1.elapsed() >= interval && self.living().any(works) {
            let own = self.progress.0.get(self.node.index as usize).copied().flatten();
            self.notices.leave_progress(own.unwrap_or(0) + 1);
        }
    }

    /// Gives up a rank that does nothing while others wait for it. Whether those of other nodes do is not known here; all ranks of a
    /// training wait for one that does nothing.
    fn find_idle(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            rank.observe(self.heartbeats.of(rank.rank));
        }
        if !self.node.is_only() {
            self.exchange_progress();
        }
        // Where all ranks of this node wait for one of another, that node has time to name it.
        let idle_timeout = if self.node.is_only() { self.timeout } else { self.timeout * 3 / 2 };
        let idle = |rank: &&Watched| rank.since.elapsed() >= idle_timeout;
        let waits = |rank: &&Watched| rank.heartbeat.is_some_and(|heartbeat| heartbeat.state.waits());
        // One that waits polls, unless it waits for all to come.
        let hangs = |rank: &&Watched| {
            let joins = rank.heartbeat.is_some_and(|heartbeat| heartbeat.state == RankState::Joining);
            !joins && rank.seen.elapsed() >= self.timeout
        };
        if self.node.is_only() && self.living().filter(waits).filter(idle).count() == 0 {
            return;
        }
        let seconds = self.timeout.as_secs();
        let progress = self.progress.1.elapsed() < idle_timeout && !self.node.is_only();
        let all_wait = || !progress && self.living().all(|rank| waits(&rank) && idle(&rank));
        let hint = "raise train.rank_timeout if it only needs longer; else look at its card (nvidia-smi, dmesg)";
        if let Some(rank) = self.living().find(hangs) {
            let message = format!("{} for {seconds} seconds while others waited for it", rank.idle_text());
            self.notices.leave(&given_up(rank, message, hint));
            rank.signal(libc::SIGKILL);
        } else if let Some(first) = self.living().next().filter(|_| all_wait()) {
            if self.node.is_only() {
                let message = format!("all ranks have waited for each other for {seconds} seconds");
                self.notices.leave(&given_up(first, message, hint));
                first.signal(libc::SIGKILL);
            } else {
                let (node, seconds) = (self.node.index, idle_timeout.as_secs());
                let message =
                    format!("all ranks of node {node} have waited for those of other nodes for {seconds} seconds");
                let hint =
                    "raise train.rank_timeout if they only need longer; else look at the other nodes and the network";
                self.notices.leave_for_node(&given_up(first, message, hint));
            }
        } else {
            return;
        }
        self.leaving = Some(Instant::now());
    }

    /// The result of the attempt: the reason of the rank that ended first, if one did.
    fn result(&self) -> Result<(), TrainerError> {
        let silent = || self.failed().map(|(rank, status)| without_a_word(rank, status));
        if let Some(ended) = self.notices.any().or_else(silent) {
            return Err(ended.into());
        }
        match self.ranks.iter().all(|rank| rank.ended.is_some_and(|status| status.success())) {
            true => Ok(()),
            false => Err(TrainerError::Stopped { step: self.notices.stops_after().unwrap_or(0) }),
        }
    }
}

fn is_failure(status: &ExitStatus) -> bool {
    !status.success() && status.code() != Some(TrainerExit::Stopped.code())
}

fn given_up(rank: &Watched, message: String, hint: &str) -> Ended {
    let (hint, exit) = (Some(hint.to_owned()), TrainerExit::Unexpected.code());
    Ended { rank: rank.rank, message, hint, exit, weights_differ: false, oom: None }
}

/// The notice of a rank that left none.
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
