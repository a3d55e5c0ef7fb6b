//! The event lines on stdout.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use pipe_spec::event::Warning;
use pipe_spec::{Event, EventKind};

use crate::stop::Stop;

pub struct Events {
    seq: u64,
    stop: Stop,
}

impl Events {
    pub fn new(stop: Stop) -> Self {
        Self { seq: 0, stop }
    }

    /// Writes one line. When nobody reads them any more the training is stopped: whoever comes back for it will resume it.
    pub fn emit(&mut self, kind: EventKind) {
        self.seq += 1;
        let ts = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let event = Event { seq: self.seq, ts, kind };
        let line = serde_json::to_string(&event).expect("an event is plain data");
        let mut stdout = io::stdout().lock();
        if let Err(error) = writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
            tracing::error!("cannot write events: {error}; stopping");
            self.stop.request();
        }
    }

    pub fn warn(&mut self, message: String) {
        tracing::warn!("{message}");
        self.emit(EventKind::Warning(Warning { message }));
    }
}
