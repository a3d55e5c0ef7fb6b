//! Dynamic loss scaling for fp16 (Micikevicius et al., 2018): gradients too small for fp16 are scaled up, as far as possible.

use pipe_spec::pipeline::Precision;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    pub factor: f64,
    /// Steps since it last changed.
    steady: u32,
}

impl LossScale {
    /// As torch.amp.GradScaler.
    const FIRST: f64 = 65536.0;
    const GROW_AFTER: u32 = 2000;

    /// fp16 needs it, nothing else does.
    pub fn new(precision: Precision) -> Option<Self> {
        (precision == Precision::Fp16Mixed).then_some(Self { factor: Self::FIRST, steady: 0 })
    }

    /// After a step whose gradients were finite.
    pub fn succeeded(&mut self) {
        self.steady += 1;
        if self.steady == Self::GROW_AFTER {
            *self = Self { factor: self.factor * 2.0, steady: 0 };
        }
    }

    /// After gradients that were not. Whether the step is to be repeated.
    pub fn overflowed(&mut self) -> bool {
        *self = Self { factor: self.factor / 2.0, steady: 0 };
        self.factor >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falls_at_once_and_grows_slowly() {
        assert_eq!(LossScale::new(Precision::Bf16), None);
        let mut scale = LossScale::new(Precision::Fp16Mixed).unwrap();
        assert!(scale.overflowed());
        assert_eq!(scale.factor, 32768.0);
        (0..2000).for_each(|_| scale.succeeded());
        assert_eq!(scale.factor, 65536.0);
        assert_eq!((0..20).take_while(|_| scale.overflowed()).count(), 16);
    }
}
