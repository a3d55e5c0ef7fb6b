//! Signals: SIGTERM asks for a graceful stop, however often it comes; Ctrl-C asks for one and a second Ctrl-C for a hard one;
//! SIGQUIT asks for a hard one at once.
//!
//! Blocking work in a thread, so that Ctrl-C is handled meanwhile.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;

/// What a person or a program asks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// Save and end.
    Graceful,
    /// End at once.
    Hard,
}

/// What asks a `pipe` to stop so.
pub fn signal_for(request: StopRequest) -> i32 {
    match request {
        StopRequest::Graceful => libc::SIGTERM,
        StopRequest::Hard => libc::SIGQUIT,
    }
}

pub struct Interrupts {
    sigint: Signal,
    sigterm: Signal,
    sigquit: Signal,
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
            pending: None,
            asked: false,
        })
    }

    /// With a request that counts as the first.
    pub fn with_pending(self, pending: StopRequest) -> Self {
        Self { pending: Some(pending), ..self }
    }

    /// Fails if a stop is pending.
    pub fn check(&self) -> Result<(), Error> {
        if self.pending.is_some() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Waits for the next request. Can be dropped and called again without losing any.
    pub async fn next(&mut self) -> StopRequest {
        let request = match self.pending.take() {
            Some(pending) => pending,
            None => tokio::select! {
                _ = self.sigint.recv() => if self.asked { StopRequest::Hard } else { StopRequest::Graceful },
                _ = self.sigterm.recv() => StopRequest::Graceful,
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
            _ = self.sigquit.recv() => {}
        }
    }
}

/// Waits for `work`. If the future is dropped, the thread continues until its work or the process ends.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || send.send(work()).ok());
    receive.await.unwrap_or(Err(Error::Interrupted))
}

/// The same until a signal comes.
pub async fn run_interruptibly<T: Send + 'static>(
    interrupts: &mut Interrupts,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::select! {
        done = run(work) => done,
        () = interrupts.signal() => Err(Error::Interrupted),
    }
}
