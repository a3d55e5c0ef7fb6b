//! The keys of dropout in the memory of a card: a CUDA graph is launched again with other ones, which its kernels read there.

use std::sync::{Mutex, PoisonError};

use super::interface::Drawn;

/// Where the keys lie, [ROWS, 2] of 64 bits each, and of which places in the model they are. Each row is the key of a place and
/// where the first sample of the part stands in its step.
#[derive(Debug)]
pub struct DropoutKeys {
    address: u64,
    /// By row: the block, and how often something was dropped in it before.
    places: Mutex<Vec<(u64, u64)>>,
}

/// Each is itself alone.
impl PartialEq for DropoutKeys {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for DropoutKeys {}

impl DropoutKeys {
    /// Places that a model may have.
    pub const ROWS: usize = 2048;

    const ROW_BYTES: u64 = 16;

    pub fn new(address: u64) -> Self {
        Self { address, places: Mutex::default() }
    }

    /// Where the key of a place lies. A model with more places than rows is told by `are_too_many`.
    pub fn address_of(&self, block: u64, count: u64) -> u64 {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let row = places.iter().position(|place| *place == (block, count)).unwrap_or_else(|| {
            places.push((block, count));
            places.len() - 1
        });
        self.address + row.min(Self::ROWS - 1) as u64 * Self::ROW_BYTES
    }

    pub fn are_too_many(&self) -> bool {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).len() > Self::ROWS
    }

    /// All rows so far, for a part of a step.
    pub fn rows(&self, drawn: Drawn) -> Vec<i64> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(block, count): &(u64, u64)| [drawn.key(*block, *count).cast_signed(), drawn.first_sample.into()];
        places.iter().flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_a_row_of_its_own() {
        let keys = DropoutKeys::new(4096);
        let addresses = [(1, 0), (1, 1), (2, 0), (1, 1)].map(|(block, count)| keys.address_of(block, count));
        assert_eq!(addresses, [4096, 4112, 4128, 4112]);
        let drawn = Drawn::new(7, 12);
        let key = |block, count| drawn.key(block, count).cast_signed();
        assert_eq!(keys.rows(drawn), [key(1, 0), 12, key(1, 1), 12, key(2, 0), 12]);
        assert!(!keys.are_too_many());
        (0..DropoutKeys::ROWS as u64).for_each(|block| assert!(keys.address_of(block, 9) >= 4096));
        assert!(keys.are_too_many());
    }
}
