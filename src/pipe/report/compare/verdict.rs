//! Whether a run reproduces another: what is required, and what it does not meet. Pure.

use pipe_spec::Status;
use pipe_spec::text::count;
use serde::Serialize;

use super::{Comparison, Results};
use crate::run::lock::Effect;

/// How closely the losses must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standard {
    /// The same bits, of the losses, the evaluations and the model.
    Bits,
    /// The same up to rounding, as the exactness contract has it.
    Tolerance,
    /// Nothing: differences are only reported.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub standard: Standard,
    pub reproduced: bool,
    /// The requirements that it does not meet.
    pub reasons: Vec<String>,
}

/// How the first run was computed.
#[derive(Clone, Copy, Debug)]
pub struct ComputeMode {
    /// `train.deterministic`.
    pub deterministic: bool,
    pub on_card: bool,
}

/// Judges the second run of `comparison` as a reproduction of the first.
pub fn judge(comparison: &Comparison, mode: ComputeMode) -> Verdict {
    let standard = standard(comparison, mode);
    let curves = &comparison.curves;
    let [first, second] = &comparison.results;
    let mut reasons = Vec::new();
    if first.status != second.status {
        let status = |results: &Results| results.status.unwrap_or("unknown");
        reasons.push(format!("it is {}, and the first one was {}", status(second), status(first)));
    }
    // One that was stopped may have been stopped at any step.
    let cut_off = first.status == Some(Status::Stopped.name());
    if first.steps != second.steps && !cut_off {
        reasons.push(format!("it has {}, and the first one had {}", count(second.steps, "step"), first.steps));
    }
    if curves.compared == 0 {
        reasons.push("there are no losses to compare".to_owned());
    }
    match standard {
        Standard::Bits => {
            if let Some(gap) = curves.first_difference {
                let [one, other] = gap.losses;
                reasons.push(format!("the losses differ from step {} on: {one} and {other}", gap.step));
            }
            reasons.extend(curves.eval.map(|step| format!("the evaluation at step {step} differs")));
            let files = comparison.model.iter().flat_map(|model| &model.differ);
            reasons.extend(files.map(|name| format!("model/{name} differs")));
        }
        Standard::Tolerance => {
            if let Some(gap) = curves.beyond {
                let [one, other] = gap.losses;
                let step = gap.step;
                reasons.push(format!("the losses differ by more than rounding at step {step}: {one} and {other}"));
            }
        }
        Standard::None => {}
    }
    Verdict { standard, reproduced: reasons.is_empty(), reasons }
}

fn standard(comparison: &Comparison, mode: ComputeMode) -> Standard {
    let same_lock = comparison
        .lock
        .as_ref()
        .is_some_and(|differences| differences.iter().all(|difference| difference.effect == Effect::None));
    let [first, second] = &comparison.results;
    match mode {
        ComputeMode { deterministic: true, .. } if same_lock && work(first).eq(work(second)) => Standard::Bits,
        ComputeMode { deterministic: false, on_card: true } => Standard::None,
        ComputeMode { .. } => Standard::Tolerance,
    }
}

/// Which steps were done with which batch: another split of a step rounds differently.
fn work(results: &Results) -> impl Iterator<Item = (u32, [Option<u64>; 2], &[String])> {
    let worked = results.attempts.iter().filter(|attempt| attempt.last_step.is_some());
    worked.map(|one| (one.batch, [one.first_step, one.last_step], one.changes.as_slice()))
}

impl Verdict {
    /// A sentence on the comparison and the requirement.
    pub fn summary(&self, comparison: &Comparison) -> String {
        let curves = &comparison.curves;
        let seen = match curves.largest {
            None => format!("the losses of {} are the same bit for bit", count(curves.compared, "step")),
            Some(gap) => format!(
                "over {} the losses differ by {:.1e} at most, at step {}",
                count(curves.compared, "step"),
                gap.difference,
                gap.step
            ),
        };
        let model = comparison.model.as_ref().map_or(String::new(), |model| match model.differ.len() {
            0 => format!(", and so is the model: {}", count(model.count, "file")),
            _ => format!("; model files that differ: {}", model.differ.join(", ")),
        });
        let required = match self.standard {
            Standard::Bits => "",
            Standard::Tolerance => "; required: equal up to rounding: 1e-5 to step 30, 1e-3 to step 100",
            Standard::None => "; required: nothing, because a card without train.deterministic sums in any order",
        };
        let model = if curves.largest.is_some() {
            model.replace(", and so is the model", "; the model is the same")
        } else {
            model
        };
        format!("{seen}{model}{required}")
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::Outcome;
    use pipe_spec::pipeline::LossUnit;

    use super::*;
    use crate::report::compare::curves::{Curves, Gap};
    use crate::report::compare::{AttemptResult, Files, Results};
    use crate::run::lock::Difference;

    fn results(batch: u32, steps: u64) -> Results {
        let attempt = AttemptResult {
            batch,
            accum: 1,
            ranks: 1,
            outcome: Some(Outcome::Finished),
            cause: None,
            changes: Vec::new(),
            first_step: Some(1),
            last_step: Some(steps),
        };
        Results {
            status: Some("finished"),
            attempts: vec![attempt],
            steps,
            loss: None,
            eval: Default::default(),
            seconds: None,
            peak_memory: None,
            tokens_per_second: None,
            unit: LossUnit::default(),
        }
    }

    fn comparison() -> Comparison {
        Comparison {
            runs: ["a".to_owned(), "b".to_owned()],
            settings: Some(Vec::new()),
            lock: Some(Vec::new()),
            results: [results(8, 5), results(8, 5)],
            curves: Curves { steps: [5, 5], compared: 5, same_bits: true, ..Curves::default() },
            model: Some(Files { count: 1, differ: Vec::new() }),
        }
    }

    fn judged(change: impl Fn(&mut Comparison), deterministic: bool, on_card: bool) -> (Standard, bool) {
        let mut comparison = comparison();
        change(&mut comparison);
        let verdict = judge(&comparison, ComputeMode { deterministic, on_card });
        (verdict.standard, verdict.reproduced)
    }

    fn rounded(comparison: &mut Comparison) {
        let gap = Gap { step: 4, losses: [1.0, 1.000_001], difference: 1e-6 };
        comparison.curves.first_difference = Some(gap);
        comparison.curves.largest = Some(gap);
        comparison.curves.same_bits = false;
    }

    fn far(comparison: &mut Comparison) {
        rounded(comparison);
        comparison.curves.beyond = Some(Gap { step: 4, losses: [1.0, 2.0], difference: 1.0 });
    }

    fn elsewhere(comparison: &mut Comparison, effect: Effect) {
        let text = || "x".to_owned();
        comparison.lock = Some(vec![Difference { what: text(), first: text(), second: text(), effect }]);
    }

    #[test]
    fn what_is_asked() {
        use Standard::{Bits, None as Nothing, Tolerance};
        assert_eq!(judged(|_| {}, true, false), (Bits, true));
        assert_eq!(judged(|_| {}, true, true), (Bits, true));
        assert_eq!(judged(|_| {}, false, false), (Tolerance, true));
        assert_eq!(judged(|_| {}, false, true), (Nothing, true));
        assert_eq!(judged(|one| elsewhere(one, Effect::None), true, false), (Bits, true));
        assert_eq!(judged(|one| elsewhere(one, Effect::Rounding), true, false), (Tolerance, true));
        assert_eq!(judged(|one| elsewhere(one, Effect::Forbids), true, false), (Tolerance, true));
        assert_eq!(judged(|one| one.lock = None, true, false), (Tolerance, true));
        // Another batch on the way rounds differently.
        assert_eq!(judged(|one| one.results[1] = results(4, 5), true, false), (Tolerance, true));
    }

    #[test]
    fn what_it_falls_short_of() {
        use Standard::{Bits, None as Nothing, Tolerance};
        assert_eq!(judged(rounded, true, false), (Bits, false));
        assert_eq!(judged(rounded, false, false), (Tolerance, true));
        assert_eq!(judged(far, false, false), (Tolerance, false));
        assert_eq!(judged(far, false, true), (Nothing, true));
        assert_eq!(judged(|one| one.curves.eval = Some(5), true, false), (Bits, false));
        let other_model = |one: &mut Comparison| one.model = Some(Files { count: 1, differ: vec!["x".to_owned()] });
        assert_eq!(judged(other_model, true, false), (Bits, false));
        assert_eq!(judged(other_model, false, false), (Tolerance, true));
        assert_eq!(judged(|one| one.results[1].steps = 4, false, true), (Nothing, false));
        assert_eq!(judged(|one| one.results[1].status = Some("failed"), false, true), (Nothing, false));
        assert_eq!(judged(|one| one.curves.compared = 0, false, true), (Nothing, false));
    }
}
