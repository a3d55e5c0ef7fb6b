//! YAML as a tree with line numbers, its check against a JSON schema, and YAML that is written for people.

mod node;
mod structure;
mod writer;

pub use writer::Note;

pub(crate) use node::{Entry, Node, NodeKind};
pub(crate) use structure::{OtherName, OtherNames, Structure, nearest};
pub(crate) use writer::{without_defaults, write};
