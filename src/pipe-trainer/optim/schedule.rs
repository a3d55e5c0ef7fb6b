//! The learning rate of each step, as transformers' `get_*_schedule_with_warmup`.

use std::f64::consts::PI;

use pipe_spec::pipeline::{Schedule, ScheduleKind};

/// What the learning rate is multiplied with in step `step`, which counts from 0, of `total`.
pub fn factor(schedule: &Schedule, step: u64, total: u64) -> f64 {
    if step < schedule.warmup {
        return step as f64 / schedule.warmup.max(1) as f64;
    }
    let rest = total.saturating_sub(schedule.warmup).max(1) as f64;
    let done = (step - schedule.warmup) as f64 / rest;
    match schedule.kind {
        ScheduleKind::Constant => 1.0,
        ScheduleKind::Linear => (1.0 - done).max(0.0),
        ScheduleKind::Cosine => (0.5 * (1.0 + (PI * done).cos())).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let found = factor(&Schedule { kind, warmup }, step, 10);
            assert!((found - want).abs() < 1e-12, "{kind:?} warmup {warmup} step {step}: {found}");
        }
    }
}
