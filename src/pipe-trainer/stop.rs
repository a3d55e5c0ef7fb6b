//! The wish to stop: set by SIGTERM or SIGINT, looked at between parts of a step.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::TrainerError;

#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn listen() -> Result<Self, TrainerError> {
        Self::on_signals().map_err(|source| TrainerError::Io { path: PathBuf::from("signals"), source })
    }

    fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
