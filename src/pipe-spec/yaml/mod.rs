//! YAML as a tree with line numbers, and its check against a JSON schema.

mod node;
mod structure;

pub(crate) use node::{Entry, Kind, Node};
pub(crate) use structure::{OtherName, OtherNames, Structure, nearest};
