//! The functions between two layers, by the names that config.json has for them.

use crate::ConfigError;

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
    pub fn parse(key: &str, name: &str) -> Result<Self, ConfigError> {
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
                return Err(ConfigError { key: key.to_owned(), message });
            }
        })
    }
}
