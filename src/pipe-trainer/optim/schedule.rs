//! The learning rate of each step, as transformers' `get_*_schedule_with_warmup`.

use std::f64::consts::PI;

use pipe_spec::pipeline::{Schedule, ScheduleKind};

/// What the learning rate is multiplied with in step `step`, which counts from 0, of `total`.
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
}
