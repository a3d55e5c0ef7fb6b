//! Questions on a terminal, with defaults in brackets.

use std::io::{BufRead, IsTerminal};

use crate::error::Error;
use crate::report::{ask, say};

/// Who answers the questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialog {
    Person,
    /// `--yes`: every answer is the default.
    Defaults,
    /// No terminal to ask on.
    NoTerminal,
}

impl Dialog {
    pub fn find(yes: bool) -> Self {
        match (yes, std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            (true, _) => Self::Defaults,
            (false, true) => Self::Person,
            (false, false) => Self::NoTerminal,
        }
    }

    /// The first answer that `read` accepts; nothing without a terminal.
    pub fn ask<T>(
        self,
        question: &str,
        default: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        match self {
            Self::NoTerminal => return Ok(None),
            Self::Defaults => return Ok(read(default).ok()),
            Self::Person => {}
        }
        loop {
            ask(&format!("{question} [{default}]: "));
            let mut line = String::new();
            let count = std::io::stdin()
                .lock()
                .read_line(&mut line)
                .map_err(|source| Error::Read { path: "the answer".into(), source })?;
            if count == 0 {
                say("");
                return Err(Error::Interrupted);
            }
            let answer = if line.trim().is_empty() { default } else { line.trim() };
            match read(answer) {
                Ok(value) => return Ok(Some(value)),
                Err(message) => say(&format!("  {message}")),
            }
        }
    }
}
