//! Ctrl-C and SIGTERM: the first asks for a graceful stop, the second for a hard one.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;

pub struct Interrupts {
    sigint: Signal,
    sigterm: Signal,
    /// How many are due that no signal brought.
    due: u32,
}

impl Interrupts {
    /// Takes the signals over from their default, which would end `pipe` at once. Needs a running tokio runtime.
    pub fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(|source| Error::Read { path: "signals".into(), source });
        Ok(Self { sigint: listen(SignalKind::interrupt())?, sigterm: listen(SignalKind::terminate())?, due: 0 })
    }

    /// As if so many had come already.
    pub fn due(self, due: u32) -> Self {
        Self { due, ..self }
    }

    /// Nothing is to be begun where a stop is due.
    pub fn check(&self) -> Result<(), Error> {
        if self.due > 0 { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Waits for the next one. Can be dropped and called again without losing any.
    pub async fn next(&mut self) {
        if self.due > 0 {
            self.due -= 1;
            return;
        }
        self.signal().await;
    }

    /// Waits for a signal, whatever is due.
    pub async fn signal(&mut self) {
        tokio::select! {
            _ = self.sigint.recv() => {}
            _ = self.sigterm.recv() => {}
        }
    }
}
