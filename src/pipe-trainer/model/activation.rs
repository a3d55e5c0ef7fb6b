//! The functions between two layers, by the names that config.json has for them.

use tch::Tensor;

use crate::error::TrainerError;

/// In the order of `Kind` in torch/functions.hpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Relu,
    Gelu,
    GeluTanh,
    /// x * sigmoid(1.702 x)
    QuickGelu,
    Silu,
    Tanh,
    Sigmoid,
    Mish,
    LeakyRelu,
    Relu6,
    /// relu(x)^2
    SquaredRelu,
    /// x itself
    Linear,
}

impl Activation {
    /// `key` is the key of config.json that says `name`.
    pub fn parse(key: &str, name: &str) -> Result<Self, TrainerError> {
        Ok(match name {
            "relu" => Self::Relu,
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_fast" | "gelu_accurate" | "gelu_pytorch_tanh" | "gelu_python_tanh" => Self::GeluTanh,
            "quick_gelu" => Self::QuickGelu,
            "silu" | "swish" => Self::Silu,
            "tanh" => Self::Tanh,
            "sigmoid" => Self::Sigmoid,
            "mish" => Self::Mish,
            "leaky_relu" => Self::LeakyRelu,
            "relu6" => Self::Relu6,
            "relu2" => Self::SquaredRelu,
            "linear" => Self::Linear,
            _ => {
                let message = format!(
                    "found {name:?}; allowed: relu, gelu, gelu_new, quick_gelu, silu, tanh, sigmoid, mish, leaky_relu, \
                     relu6, relu2, linear"
                );
                return Err(TrainerError::Config { key: key.to_owned(), message });
            }
        })
    }

    pub fn apply(self, input: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(match self {
            Self::Relu => input.f_relu()?,
            Self::Gelu => input.f_gelu("none")?,
            Self::GeluTanh => input.f_gelu("tanh")?,
            // The same as silu, which keeps one tensor for its gradient instead of two.
            Self::QuickGelu => input.f_mul_scalar(1.702)?.f_silu()?.f_mul_scalar(1.0 / 1.702)?,
            Self::Silu => input.f_silu()?,
            Self::Tanh => input.f_tanh()?,
            Self::Sigmoid => input.f_sigmoid()?,
            Self::Mish => input.f_mish()?,
            Self::LeakyRelu => input.f_leaky_relu()?,
            Self::Relu6 => input.f_relu6()?,
            Self::SquaredRelu => input.f_relu()?.f_square()?,
            Self::Linear => input.shallow_clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_torch() {
        let cases = [
            ("relu", -2.0, 0.0),
            ("gelu", 1.0, 0.841_344_7),
            ("gelu_python", 1.0, 0.841_344_7),
            ("gelu_new", 1.0, 0.841_192),
            ("gelu_fast", 1.0, 0.841_192),
            ("quick_gelu", 1.0, 0.845_795_8),
            ("silu", 1.0, 0.731_058_6),
            ("swish", 1.0, 0.731_058_6),
            ("tanh", 1.0, 0.761_594_2),
            ("sigmoid", 1.0, 0.731_058_6),
            ("mish", 1.0, 0.865_098_4),
            ("leaky_relu", -2.0, -0.02),
            ("relu6", 7.0, 6.0),
            ("relu2", 3.0, 9.0),
            ("linear", -2.0, -2.0),
        ];
        for (name, input, want) in cases {
            let function = Activation::parse("hidden_act", name).unwrap();
            let got = function.apply(&Tensor::from_slice(&[input])).unwrap().double_value(&[0]);
            assert!((got - want).abs() < 1e-6, "{name}({input}) is {got}");
        }
    }
}
