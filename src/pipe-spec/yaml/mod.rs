//! YAML as a tree with line numbers, its check against a JSON schema with all problems at once, and YAML that is written for people.

mod node;
mod structure;
mod writer;

use std::fmt;

pub use writer::Note;

pub(crate) use node::{Entry, Node, NodeKind};
pub(crate) use structure::{OtherName, OtherNames, Structure, nearest};
pub(crate) use writer::{without_defaults, write};

/// One problem: where, what was found, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `None` for a value that did not come from the file (`--set`), or for the file as a whole.
    pub line: Option<u64>,
    /// Dotted, as in `train.batch`; empty for the file as a whole.
    pub path: String,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Characters of a message: what it repeats of a file that is no pipeline may be any text.
const LONGEST: usize = 2000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub fn one(line: Option<u64>, path: &str, message: impl Into<String>) -> Self {
        let mut problems = Self::default();
        problems.push(line, path, message);
        problems
    }

    pub fn push(&mut self, line: Option<u64>, path: &str, message: impl Into<String>) {
        let bounded = |text: String| match text.char_indices().nth(LONGEST) {
            None => text,
            Some((end, _)) => format!("{}...", &text[..end]),
        };
        self.0.push(Problem { line, path: bounded(path.to_owned()), message: bounded(message.into()) });
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of the file, each once.
    pub fn sorted(mut self) -> Self {
        self.0.sort_by(|a, b| (a.line, &a.path).cmp(&(b.line, &b.path)));
        self.0.dedup();
        self
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Problems {}
