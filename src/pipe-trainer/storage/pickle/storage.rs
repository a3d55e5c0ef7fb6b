//! Storages, and tensors as views of them.

use tch::Kind;

/// Memory that tensors are views of.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage<'a> {
    pub key: &'a str,
    /// Nothing where it is bytes.
    pub kind: Option<Kind>,
    /// Elements of `kind`, or bytes.
    pub elements: u64,
    /// Where it begins in the storage `key`, in elements: before torch 0.4 a storage could be a view of another.
    pub offset: u64,
}

impl Storage<'_> {
    pub fn element_size(&self) -> u64 {
        self.kind.map_or(1, |kind| kind.elt_size_in_bytes() as u64)
    }
}

/// A view of a storage.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The number of the storage among all objects.
    pub storage: usize,
    pub kind: Kind,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    /// Bytes of the storage before its first element and up to behind its last.
    pub start: u64,
    pub end: u64,
}
