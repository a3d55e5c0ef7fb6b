//! Signals: SIGTERM asks for a graceful stop, however often it comes; Ctrl-C asks for one and a second Ctrl-C for a hard one;
//! SIGQUIT asks for a hard one at once. SIGUSR1 is SIGTERM where that ends this process alone and not its run.
//!
//! Blocking work in a thread, so that Ctrl-C is handled meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;

/// Sets what `pipe` does with signals that a parent may have changed, or that would end it without a word.
pub fn set_signals() {
    // SAFETY: no handler is set, no other thread runs yet, and the handler does nothing.
    unsafe {
        // A process that ignores the ends of its children hands that on, and then nobody could tell how a job has ended.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        // Beyond `ulimit -f` a write fails then, and `pipe` says which one. A program that `pipe` starts has the signal as usual.
        libc::signal(libc::SIGXFSZ, ignore as extern "C" fn(libc::c_int) as libc::sighandler_t);
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// A request to stop a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// Save and end.
    Graceful,
    /// End at once.
    Hard,
}

impl StopRequest {
    /// Sends the signal that asks a `pipe` process to stop in this way; false where there is no such process.
    pub fn send(self, pid: i32) -> bool {
        let signal = match self {
            Self::Graceful => rustix::process::Signal::TERM,
            Self::Hard => rustix::process::Signal::QUIT,
        };
        Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Gives the request to this process, which somebody has written down for it.
    pub fn pass_on(self) {
        match self {
            Self::Graceful => {
                kill_process(rustix::process::getpid(), rustix::process::Signal::USR1).unwrap_or_default()
            }
            Self::Hard => drop(self.send(std::process::id().cast_signed())),
        }
    }
}

pub struct Interrupts {
    sigint: Signal,
    sigterm: Signal,
    sigquit: Signal,
    sigusr1: Signal,
    /// A request that no signal brought.
    pending: Option<StopRequest>,
    /// Whether a stop was requested before.
    asked: bool,
}

impl Interrupts {
    /// Takes the signals over from their default, which would end `pipe` at once. Needs a running tokio runtime.
    pub fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(|source| Error::Read { path: "signals".into(), source });
        Ok(Self {
            sigint: listen(SignalKind::interrupt())?,
            sigterm: listen(SignalKind::terminate())?,
            sigquit: listen(SignalKind::quit())?,
            sigusr1: listen(SignalKind::user_defined1())?,
            pending: None,
            asked: false,
        })
    }

    /// With a request that counts as the first.
    pub fn with_pending(self, pending: StopRequest) -> Self {
        Self { pending: Some(pending), ..self }
    }

    /// From here on SIGTERM ends this process at once: another one takes its run over, which goes on meanwhile.
    pub fn end_on_sigterm(&self) {
        // SAFETY: no handler is set.
        unsafe {
            libc::signal(libc::SIGTERM, libc::SIG_DFL);
        }
    }

    /// Leaves a request that ended a wait to those who watch the job: `next` gives it again.
    pub fn postpone(&mut self) {
        self.pending.get_or_insert(StopRequest::Graceful);
    }

    /// Fails if a stop was requested: nothing new is begun.
    pub fn check(&self) -> Result<(), Error> {
        if self.asked || self.pending.is_some() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Waits for the next request. Can be dropped and called again without losing any.
    pub async fn next(&mut self) -> StopRequest {
        let request = match self.pending.take() {
            Some(pending) => pending,
            None => tokio::select! {
                _ = self.sigint.recv() => if self.asked { StopRequest::Hard } else { StopRequest::Graceful },
                _ = self.sigterm.recv() => StopRequest::Graceful,
                _ = self.sigusr1.recv() => StopRequest::Graceful,
                _ = self.sigquit.recv() => StopRequest::Hard,
            },
        };
        self.asked = true;
        request
    }

    /// Waits for a signal, whatever is pending.
    pub async fn signal(&mut self) {
        tokio::select! {
            _ = self.sigint.recv() => {}
            _ = self.sigterm.recv() => {}
            _ = self.sigusr1.recv() => {}
            _ = self.sigquit.recv() => {}
        }
    }
}

/// Waits for `work`. If the future is dropped, the thread continues until its work or the process ends.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || send.send(work()).ok());
    // A thread that panics sends nothing.
    receive.await.unwrap_or(Err(Error::Panicked))
}

/// How often the progress of a thread is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(500);

/// State shared by a thread that reads files and the one that waits for it: how far it is, and whether it is to go on.
#[derive(Debug, Default)]
pub struct Watch {
    cancelled: AtomicBool,
    /// Bytes that are done.
    done: AtomicU64,
}

impl Watch {
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub fn set_done(&self, bytes: u64) {
        self.done.store(bytes, Ordering::Relaxed);
    }

    pub fn add_done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Cancels the thread that nobody waits for any more.
struct Cancel(Arc<Watch>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Waits for `work` until a signal comes, which cancels it. `show` gets the bytes that are done, twice a second.
pub async fn run_watched<T: Send + 'static>(
    interrupts: &mut Interrupts,
    mut show: impl FnMut(u64),
    work: impl FnOnce(Arc<Watch>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let watch = Arc::new(Watch::default());
    let (of_thread, _cancel) = (watch.clone(), Cancel(watch.clone()));
    let done = run(move || work(of_thread));
    tokio::pin!(done);
    loop {
        tokio::select! {
            done = &mut done => return done,
            () = tokio::time::sleep(SHOW_INTERVAL) => show(watch.done()),
            () = interrupts.signal() => return Err(Error::Interrupted),
        }
    }
}

/// Waits for `work` until a signal comes.
pub async fn run_interruptibly<T: Send + 'static>(
    interrupts: &mut Interrupts,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::select! {
        done = run(work) => done,
        () = interrupts.signal() => Err(Error::Interrupted),
    }
}
