//! Precisions: what weights are kept in, and what is computed in.

use pipe_spec::pipeline::Precision;
use tch::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Weights, their gradients and the optimizer's moments.
    pub weights: Kind,
    /// Matrix products and attention. Where it is narrower than the weights, what is added up along the layers stays wide.
    pub compute: Kind,
}

impl Kinds {
    pub const FP32: Self = Self { weights: Kind::Float, compute: Kind::Float };

    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 | Precision::Tf32 => Self::FP32,
            Precision::Bf16 => Self { weights: Kind::BFloat16, compute: Kind::BFloat16 },
            Precision::Bf16Mixed => Self { weights: Kind::Float, compute: Kind::BFloat16 },
            Precision::Fp16Mixed => Self { weights: Kind::Float, compute: Kind::Half },
        }
    }
}

/// Added to the score of what must not be seen: about the least number of the kind.
pub fn hidden_score(kind: Kind) -> f64 {
    match kind {
        Kind::Half => -6.0e4,
        Kind::BFloat16 => -3.0e38,
        _ => f64::from(f32::MIN),
    }
}
