//! How many tokens of a text are read: as many as nearly all texts have, so that no memory is spent on padding.

use pipe_spec::Inspection;
use pipe_spec::pipeline::Task;

use super::column::{Kind, Lengths};
use super::survey::{Field, Survey};

/// What is used where nothing is known of the data, and the most.
const UNKNOWN: u32 = 512;
/// For counting.
const LONGEST: u32 = 4096;
/// Limits are multiples of this.
const STEP: usize = 16;
/// Tokens that mark the beginning and the end of a text.
const MARKS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub source: u32,
    pub target: u32,
    /// For tasks with a single sequence.
    pub length: u32,
}

impl Limits {
    /// Of data that could not be looked at.
    pub fn unknown(task: Task) -> Self {
        let length = match task {
            Task::Classification => 256,
            Task::Contrastive => 77,
            _ => UNKNOWN,
        };
        Self { source: UNKNOWN, target: 256, length }
    }

    /// So that next to nothing is cut.
    pub fn longest(self) -> Self {
        Self { source: LONGEST, target: LONGEST, length: self.length.max(UNKNOWN) }
    }

    /// From what the trainer has counted.
    pub fn of_tokens(inspection: &Inspection) -> Option<Self> {
        let of = |column: &str| {
            let found = inspection.train.lengths.iter().find(|lengths| lengths.column == column)?;
            let (p95, longest) = (found.p95 as usize, found.longest as usize);
            // The marks are counted already.
            Some(limit(Lengths { mean: 0, p95, longest: longest.saturating_sub(MARKS) }))
        };
        match (of("source"), of("target"), of("text")) {
            (Some(source), Some(target), _) => Some(Self { source, target, length: UNKNOWN }),
            (_, _, Some(length)) => Some(Self { source: UNKNOWN, target: UNKNOWN, length }),
            _ => None,
        }
    }

    pub fn of(task: Task, survey: &Survey, fields: &[Field], is_small: bool) -> Self {
        let of = |role: &str| survey.fed(fields, role).map_or(Lengths::default(), |column| column.tokens);
        let mut limits = Self::unknown(task);
        match (task, survey.fed(fields, "messages")) {
            (Task::Seq2Seq, Some(column)) if column.kind == Kind::Messages => {
                (limits.source, limits.target) = (limit(column.tokens), limit(column.answer_tokens));
            }
            (Task::Seq2Seq, _) => (limits.source, limits.target) = (limit(of("source")), limit(of("target"))),
            (Task::Classification, _) => limits.length = limit(of("text").and(of("text_pair"))),
            (Task::Contrastive, _) => limits.length = limit(of("text")).min(77),
            (Task::Language, _) if is_small => limits.length = 128,
            (Task::Language | Task::TimeSeries, _) => {}
        }
        limits
    }
}

/// The longest text fits, unless it is far longer than the others.
fn limit(lengths: Lengths) -> u32 {
    let longest = if lengths.longest <= 2 * lengths.p95 { lengths.longest } else { lengths.p95 };
    ((longest + MARKS).next_multiple_of(STEP) as u32).clamp(STEP as u32 * 2, UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_far_longer_than_the_others_is_cut() {
        let of = |p95, longest| limit(Lengths { mean: 5, p95, longest });
        assert_eq!((of(40, 61), of(40, 600), of(2, 2), of(900, 900)), (64, 48, 32, 512));
    }
}
