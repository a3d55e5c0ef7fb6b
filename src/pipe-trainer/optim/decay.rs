//! Which parameters weight decay applies to.

use pipe_spec::pipeline::Decay;
use tch::Tensor;

/// Whether weight decay applies to the parameter `name`. Biases of several blocks are one tensor of two dimensions.
pub fn applies(decay: Decay, name: &str, parameter: &Tensor) -> bool {
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
            assert_eq!(applies(Decay::Matrices, name, &tensor(shape)), want, "{name}");
            assert!(applies(Decay::All, name, &tensor(shape)), "{name}");
        }
    }
}
