//! The losses of two runs, step by step.

use std::collections::BTreeMap;

use pipe_spec::RunFolder;
use pipe_spec::event::{Eval, Step};
use pipe_spec::text::count;
use serde::Serialize;

use crate::run::{Record, losses};

/// The rounding that the exactness contract allows: up to this step, losses agree to this share.
pub const TOLERANCES: [(u64, f64); 2] = [(30, 1e-5), (100, 1e-3)];

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curves {
    /// Steps of each run.
    pub steps: [u64; 2],
    /// Steps that both have.
    pub compared: u64,
    /// Whether every step of one is in the other with the same loss, bit for bit.
    pub same_bits: bool,
    /// The first step whose losses differ in any bit.
    pub first_difference: Option<Gap>,
    /// The step whose losses differ most.
    pub largest: Option<Gap>,
    /// The first step whose losses differ by more than rounding may.
    pub beyond: Option<Gap>,
    /// The first evaluation that differs in any bit of its loss or its scores.
    pub eval: Option<u64>,
}

/// Two losses of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gap {
    pub step: u64,
    pub losses: [f64; 2],
    /// Their difference as a share of the first, or as it is where that is below 1.
    pub difference: f64,
}

impl Curves {
    /// How far the curves agree, in a sentence.
    pub fn sentence(&self) -> String {
        let Self { steps: [first, second], compared, .. } = self;
        let counts = if first == second { String::new() } else { format!(" ({} and {second})", count(*first, "step")) };
        match (self.first_difference, self.largest) {
            _ if *compared == 0 => format!("curves: no step in common{counts}"),
            (Some(gap), Some(largest)) => format!(
                "curves: {} in common{counts}; the losses differ from step {} on, most at step {}: by {:.1e}",
                count(*compared, "step"),
                gap.step,
                largest.step,
                largest.difference
            ),
            _ => format!("curves: the losses of {} are the same bit for bit{counts}", count(*compared, "step")),
        }
    }

    pub fn compare(first: &Record, second: &Record) -> Self {
        let (first, second) = (&first.history, &second.history);
        let eval = eval_difference(&first.evals, &second.evals);
        Self { eval, ..Self::of_steps(by_step(&first.steps).into_iter(), by_step(&second.steps).into_iter()) }
    }

    /// The same for runs that are too long to be held in memory: their events are read side by side.
    pub fn compare_files(first: (&Record, &RunFolder), second: (&Record, &RunFolder)) -> Self {
        let eval = eval_difference(&first.0.history.evals, &second.0.history.evals);
        Self { eval, ..Self::of_steps(losses(first.1), losses(second.1)) }
    }

    /// Builds the curve from steps with their losses, in order.
    fn of_steps(first: impl Iterator<Item = (u64, f64)>, second: impl Iterator<Item = (u64, f64)>) -> Self {
        let mut found = Self::default();
        let (mut first, mut second) = (first.peekable(), second.peekable());
        loop {
            let (one, other) = (first.peek().copied(), second.peek().copied());
            let (takes_one, takes_other) = match (one, other) {
                (None, None) => break,
                (Some((one, _)), Some((other, _))) => (one <= other, other <= one),
                (one, other) => (one.is_some(), other.is_some()),
            };
            let one = first.next_if(|_| takes_one);
            let other = second.next_if(|_| takes_other);
            found.steps[0] += u64::from(one.is_some());
            found.steps[1] += u64::from(other.is_some());
            if let (Some((step, one)), Some((_, other))) = (one, other) {
                found.add(Gap::new(step, one, other));
            }
        }
        found.same_bits = found.first_difference.is_none() && found.steps == [found.compared; 2];
        found
    }

    fn add(&mut self, gap: Gap) {
        self.compared += 1;
        if gap.is_none() {
            return;
        }
        self.first_difference.get_or_insert(gap);
        if self.largest.is_none_or(|largest| largest.difference.total_cmp(&gap.difference).is_le()) {
            self.largest = Some(gap);
        }
        if self.beyond.is_none() && tolerance(gap.step).is_some_and(|most| gap.difference > most) {
            self.beyond = Some(gap);
        }
    }
}

impl Gap {
    fn new(step: u64, first: f64, second: f64) -> Self {
        Self { step, losses: [first, second], difference: (first - second).abs() / first.abs().max(1.0) }
    }

    fn is_none(&self) -> bool {
        self.losses[0].to_bits() == self.losses[1].to_bits()
    }
}

/// The tolerance that is promised for a step; none for late steps, where rounding may have grown without bound.
fn tolerance(step: u64) -> Option<f64> {
    TOLERANCES.iter().find(|(last, _)| step <= *last).map(|(_, most)| *most)
}

fn by_step(steps: &[Step]) -> BTreeMap<u64, f64> {
    steps.iter().map(|step| (step.step, step.loss)).collect()
}

/// The first step that both evaluated at with another result. What was done over counts as it was done last.
fn eval_difference(first: &[Eval], second: &[Eval]) -> Option<u64> {
    let bits = |evals: &[Eval]| -> BTreeMap<u64, Vec<u64>> {
        let of = |eval: &Eval| {
            std::iter::once(&eval.loss).chain(eval.scores.values()).map(|score| score.to_bits()).collect()
        };
        evals.iter().map(|eval| (eval.step, of(eval))).collect()
    };
    let (first, second) = (bits(first), bits(second));
    first.into_iter().find(|(step, one)| second.get(step).is_some_and(|other| other != one)).map(|(step, _)| step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(losses: &[f64]) -> Record {
        let step = |(index, loss): (usize, &f64)| Step {
            step: index as u64 + 1,
            loss: *loss,
            tokens: 1,
            ms: 1.0,
            ..Step::default()
        };
        let mut record = Record::default();
        record.history.steps = losses.iter().enumerate().map(step).collect();
        record
    }

    fn curves(first: &[f64], second: &[f64]) -> Curves {
        Curves::compare(&run(first), &run(second))
    }

    #[test]
    fn bits() {
        assert!(curves(&[3.0, 2.0], &[3.0, 2.0]).same_bits);
        let one_bit = curves(&[3.0, 2.0], &[3.0, f64::from_bits(2.0f64.to_bits() + 1)]);
        assert!(!one_bit.same_bits && one_bit.beyond.is_none());
        assert_eq!(one_bit.first_difference.unwrap().step, 2);
        let shorter = curves(&[3.0, 2.0], &[3.0]);
        assert_eq!((shorter.same_bits, shorter.compared, shorter.first_difference), (false, 1, None));
    }

    #[test]
    fn the_largest_difference_is_a_share_of_the_loss() {
        let found = curves(&[10.0, 0.5, 1.0], &[11.0, 0.55, 1.0]);
        let (first, largest) = (found.first_difference.unwrap(), found.largest.unwrap());
        assert_eq!((first.step, largest.step), (1, 1));
        assert!((largest.difference - 0.1).abs() < 1e-12);
    }

    #[test]
    fn rounding_may_grow_with_the_steps() {
        let flat = vec![1.0; 200];
        for (step, gap, allowed) in
            [(30, 0.9e-5, true), (30, 1.1e-5, false), (31, 1.1e-5, true), (100, 1.1e-3, false), (101, 0.5, true)]
        {
            let mut other = flat.clone();
            other[step - 1] += gap;
            assert_eq!(curves(&flat, &other).beyond.is_none(), allowed, "{gap} at step {step}");
        }
    }

    #[test]
    fn evaluations() {
        let eval = |step, loss, score| Eval {
            step,
            loss,
            samples: 1,
            ms: 1.0,
            headline: None,
            scores: [("accuracy".to_owned(), score)].into(),
        };
        let one = [eval(5, 1.0, 0.5), eval(9, 0.8, 0.6)];
        assert_eq!(eval_difference(&one, &one), None);
        assert_eq!(eval_difference(&one, &[eval(5, 1.0, 0.5), eval(9, 0.8, 0.7)]), Some(9));
        // Done over by a later attempt.
        assert_eq!(eval_difference(&one, &[eval(5, 7.0, 0.5), eval(5, 1.0, 0.5)]), None);
    }
}
