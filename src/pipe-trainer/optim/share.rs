//! The parameters that a rank updates, and those of them that decay.

use pipe_model::memory;
use pipe_spec::pipeline::{Decay, Train};
use pipe_spec::trainer::Rank;
use tch::Tensor;

use crate::model::Weights;

/// The trained parameters that a rank updates, by their order: all of them, unless the optimizer's state is shared out.
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

/// Whether weight decay applies to the parameter `name`. Biases of several blocks are one tensor of two dimensions.
pub fn decays(decay: Decay, name: &str, parameter: &Tensor) -> bool {
    decay == Decay::All || (parameter.dim() >= 2 && !name.ends_with(".bias"))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn biases_and_norms_do_not_decay_with_matrices() {
        let tensor = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        let cases: [(&str, &[i64], bool); 5] = [
            ("fc1.weight", &[4, 2], true),
            ("fc1.bias", &[4], false),
            ("ln.weight", &[2], false),
            ("blocks.qkv.bias", &[3, 12], false),
            ("relative_attention_bias.weight", &[8, 2], true),
        ];
        for (name, shape, want) in cases {
            assert_eq!(decays(Decay::Matrices, name, &tensor(shape)), want, "{name}");
            assert!(decays(Decay::All, name, &tensor(shape)), "{name}");
        }
    }
}
