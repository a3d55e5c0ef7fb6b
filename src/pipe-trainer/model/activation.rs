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
