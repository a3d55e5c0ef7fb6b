//! The parameters that a rank updates.

use pipe_model::memory;
use pipe_spec::pipeline::Train;
use pipe_spec::trainer::Rank;

use crate::model::Weights;

/// Of all trained parameters, by their order. Every rank updates all of them, unless the optimizer's state is shared out.
pub struct Share {
    rank: u32,
    /// The rank that updates each; absent where every rank does.
    owners: Option<Vec<i32>>,
}

impl Share {
    pub fn of(train: &Train, rank: Rank, weights: &Weights) -> Self {
        let shared = rank.count > 1 && !train.shard.is_none();
        let sizes: Vec<u64> = weights.trained().map(|(_, tensor)| tensor.numel() as u64).collect();
        let owners = shared.then(|| memory::owners(&sizes, rank.count).into_iter().map(u32::cast_signed).collect());
        Self { rank: rank.index, owners }
    }

    /// All of them.
    #[cfg(test)]
    pub fn whole() -> Self {
        Self { rank: 0, owners: None }
    }

    /// Whether this rank updates the parameter with this number.
    pub fn has(&self, index: usize) -> bool {
        self.owners.as_ref().is_none_or(|owners| owners[index].cast_unsigned() == self.rank)
    }

    /// The rank that updates each parameter, where they are shared out.
    pub fn owners(&self) -> Option<&[i32]> {
        self.owners.as_deref()
    }
}
