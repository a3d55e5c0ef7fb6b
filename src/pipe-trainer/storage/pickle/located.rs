//! Where a tensor lies in a file.

use tch::Kind;

/// Where a tensor lies in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub kind: Kind,
    pub shape: Vec<i64>,
    /// From one element to the next, by dimension, in elements.
    pub strides: Vec<i64>,
    /// The bytes from its first element to behind its last.
    pub start: usize,
    pub end: usize,
}
