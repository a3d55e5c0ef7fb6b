//! The learning rate of each step, and the scale of the loss in fp16.

use std::f64::consts::PI;

use pipe_spec::pipeline::{Precision, Schedule, ScheduleKind};
use serde::{Deserialize, Serialize};

/// The factor of the learning rate in step `step`, counted from 0, of `total`: as transformers'
/// `get_*_schedule_with_warmup`.
pub fn factor(schedule: &Schedule, step: u64, total: u64) -> f64 {
    let warmup = schedule.warmup.steps(total);
    if step < warmup {
        return step as f64 / warmup.max(1) as f64;
    }
    let rest = total.saturating_sub(warmup).max(1) as f64;
    let done = (step - warmup) as f64 / rest;
    match schedule.kind {
        ScheduleKind::Constant => 1.0,
        ScheduleKind::Linear => (1.0 - done).max(0.0),
        ScheduleKind::Cosine => (0.5 * (1.0 + (PI * done).cos())).max(0.0),
    }
}

/// Dynamic loss scaling for fp16 (Micikevicius et al., 2018): gradients too small for fp16 are scaled up, as far as
/// possible.
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
    use pipe_spec::pipeline::Warmup;

    use super::*;

    #[test]
    fn a_share_of_the_steps_is_the_same_as_those_steps() {
        for kind in [ScheduleKind::Constant, ScheduleKind::Linear, ScheduleKind::Cosine] {
            let of = |warmup| (0..10).map(|step| factor(&Schedule { kind, warmup }, step, 10)).collect::<Vec<_>>();
            assert_eq!(of(Warmup::Share(0.31)), of(Warmup::Steps(4)));
            assert_eq!(of(Warmup::Share(0.0)), of(Warmup::Steps(0)));
        }
    }

    #[test]
    fn factors_by_hand() {
        let cases = [
            (ScheduleKind::Constant, 0, 0, 1.0),
            (ScheduleKind::Constant, 4, 0, 0.0),
            (ScheduleKind::Constant, 4, 1, 0.25),
            (ScheduleKind::Constant, 4, 9, 1.0),
            (ScheduleKind::Linear, 0, 0, 1.0),
            (ScheduleKind::Linear, 2, 1, 0.5),
            (ScheduleKind::Linear, 2, 2, 1.0),
            (ScheduleKind::Linear, 2, 6, 0.5),
            (ScheduleKind::Linear, 2, 9, 0.125),
            (ScheduleKind::Cosine, 2, 2, 1.0),
            (ScheduleKind::Cosine, 2, 4, 0.853_553_390_593_273_7),
            (ScheduleKind::Cosine, 2, 6, 0.5),
            (ScheduleKind::Cosine, 2, 10, 0.0),
        ];
        for (kind, warmup, step, want) in cases {
            let found = factor(&Schedule { kind, warmup: Warmup::Steps(warmup) }, step, 10);
            assert!((found - want).abs() < 1e-12, "{kind:?} warmup {warmup} step {step}: {found}");
        }
    }

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
