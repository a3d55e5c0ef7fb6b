//! The functions between two layers, by the names that config.json has for them.

use tch::Tensor;

use crate::error::TrainerError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Relu,
    Gelu,
    GeluTanh,
    /// x * sigmoid(1.702 x)
    QuickGelu,
    Silu,
    Tanh,
}

impl Activation {
    /// `key` is the key of config.json that says `name`.
    pub fn parse(key: &str, name: &str) -> Result<Self, TrainerError> {
        Ok(match name {
            "relu" => Self::Relu,
            "gelu" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Self::GeluTanh,
            "quick_gelu" => Self::QuickGelu,
            "silu" | "swish" => Self::Silu,
            "tanh" => Self::Tanh,
            _ => {
                let message = format!("found {name:?}; allowed: relu, gelu, gelu_new, quick_gelu, silu, tanh");
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
        })
    }
}
