//! YAML with lines: a tree that remembers where everything stood, and its check against a JSON schema.

mod node;
mod structure;

pub(crate) use node::Node;
pub(crate) use structure::{Structure, nearest};
