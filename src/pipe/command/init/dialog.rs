//! Questions on a terminal, with defaults in brackets.

use std::io::{BufRead, IsTerminal, Write};

use crate::error::Error;

/// Whoever answers: a person, or nobody, and then defaults count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialog {
    Person,
    /// All defaults, as was asked for.
    Defaults,
    Nobody,
}

impl Dialog {
    pub fn find(yes: bool) -> Self {
        match (yes, std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            (true, _) => Self::Defaults,
            (false, true) => Self::Person,
            (false, false) => Self::Nobody,
        }
    }

    /// The answer that `read` accepts; nothing where nobody answers.
    pub fn ask<T>(
        self,
        question: &str,
        default: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        match self {
            Self::Nobody => return Ok(None),
            Self::Defaults => return Ok(read(default).ok()),
            Self::Person => {}
        }
        loop {
            eprint!("{question} [{default}]: ");
            std::io::stderr().flush().ok();
            let mut line = String::new();
            let count = std::io::stdin()
                .lock()
                .read_line(&mut line)
                .map_err(|source| Error::Read { path: "the answer".into(), source })?;
            if count == 0 {
                eprintln!();
                return Err(Error::Interrupted);
            }
            let answer = if line.trim().is_empty() { default } else { line.trim() };
            match read(answer) {
                Ok(value) => return Ok(Some(value)),
                Err(message) => eprintln!("  {message}"),
            }
        }
    }
}
