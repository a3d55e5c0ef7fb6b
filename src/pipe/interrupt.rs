//! Ctrl-C and SIGTERM: the first asks for a graceful stop, the second for a hard one.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;

pub struct Interrupts {
    sigint: Signal,
    sigterm: Signal,
}

impl Interrupts {
    /// Takes the signals over from their default, which would end `pipe` at once. Needs a running tokio runtime.
    pub fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(|source| Error::Read { path: "signals".into(), source });
        Ok(Self { sigint: listen(SignalKind::interrupt())?, sigterm: listen(SignalKind::terminate())? })
    }

    /// Waits for the next one. Can be dropped and called again without losing any.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.sigint.recv() => {}
            _ = self.sigterm.recv() => {}
        }
    }
}
