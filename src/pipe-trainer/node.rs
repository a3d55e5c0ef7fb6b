//! A node: one of the machines that the ranks of an attempt are on, as many on each.

use std::ops::Range;

use pipe_spec::TrainerSpec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// From 0.
    pub index: u32,
    /// How many nodes there are.
    pub count: u32,
    /// Ranks of all nodes.
    pub all_ranks: u32,
}

impl Node {
    pub fn new(spec: &TrainerSpec, index: u32) -> Self {
        Self { index, count: spec.nodes, all_ranks: spec.rank.count }
    }

    /// The one that a rank is on.
    pub fn with_rank(spec: &TrainerSpec, rank: u32) -> Self {
        let first = Self::new(spec, 0);
        Self { index: rank / first.size(), ..first }
    }

    pub fn is_only(self) -> bool {
        self.count == 1
    }

    /// How many ranks each node has.
    pub fn size(self) -> u32 {
        self.all_ranks / self.count
    }

    /// Its ranks.
    pub fn ranks(self) -> Range<u32> {
        self.index * self.size()..(self.index + 1) * self.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_as_many_ranks() {
        let node = |index| Node { index, count: 3, all_ranks: 12 };
        assert_eq!((node(0).ranks(), node(2).ranks()), (0..4, 8..12));
    }
}
