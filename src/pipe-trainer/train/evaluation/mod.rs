//! Evaluation on data that is not trained on: one pass over it, and the measures of each task.

mod classification;
mod contrastive;
mod evaluator;
mod generation;
mod token_labels;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use pipe_spec::Phase;
use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::{Headline, Scores};
use pipe_spec::pipeline::Task;
use tch::{Kind, Tensor};

use super::session::Session;
use super::state::State;
use super::step_splitter::StepSplitter;
use crate::data::{Column, IGNORED, Reader, Sample};
use crate::error::TrainerError;
use crate::model::Mode;
use crate::tokenizer::Tokens;

pub use classification::{Predictions, SeveralLabels};
pub use contrastive::{Figures, figures as contrastive_figures};
pub use evaluator::{Evaluated, Evaluator, check_metrics, write_details};
pub use generation::{TextScores, generation};
pub use token_labels::{TaggedTexts, are_numbers, predicted_labels};

/// Loss, scores and details that the measures of a task give.
#[derive(Default)]
pub struct Measures {
    pub loss: f64,
    pub scores: Scores,
    pub details: EvaluationDetails,
    pub headline: Option<Headline>,
    /// How many samples there were, where that is not what the source says.
    pub samples: Option<u64>,
}

/// One pass over the evaluation data.
pub struct Pass<'a> {
    pub reader: &'a Reader,
    pub tokens: Option<&'a Tokens>,
    pub task: Task,
    /// The names of a classifier's classes, by number; empty where they have none.
    pub class_names: &'a [String],
    /// Labels that a text can have at once; 0 where it has one.
    pub labels_per_text: usize,
    pub batch: usize,
    /// Rows that are read at a time.
    pub rows: usize,
    pub session: &'a Session,
    pub state: &'a State,
    /// For parts of `batch` samples.
    pub splitter: &'a StepSplitter,
}

impl Pass<'_> {
    /// The mean over all targets.
    pub fn loss(&self) -> Result<f64, TrainerError> {
        self.loss_and_tokens().map(|(loss, _)| loss)
    }

    /// The same, and how often each token is a target.
    pub fn loss_and_tokens(&self) -> Result<(f64, HashMap<i64, u64>), TrainerError> {
        let (mut loss, mut targets, mut tokens) = (0.0, 0, HashMap::new());
        let compute = |samples: &[Sample]| {
            let sum = self.state.model.loss_sum(&self.splitter.shape().collate(samples)?, Mode::Eval)?;
            Ok(vec![sum.f_to_kind(Kind::Double)?.f_double_value(&[])?])
        };
        self.for_each_part(
            |_| 1,
            compute,
            |samples, numbers| {
                loss += numbers[0];
                targets += samples.iter().map(|sample| sample.targets).sum::<u64>();
                samples.iter().flat_map(target_tokens).for_each(|token| *tokens.entry(token).or_default() += 1);
            },
        )?;
        Ok((loss / targets.max(1) as f64, tokens))
    }

    /// `for_each_row` where it does not matter which rows the samples are.
    pub fn for_each_part(
        &self,
        numbers: impl Fn(&[Sample]) -> usize,
        compute: impl FnMut(&[Sample]) -> Result<Vec<f64>, TrainerError>,
        mut take: impl FnMut(&[Sample], &[f64]),
    ) -> Result<(), TrainerError> {
        self.for_each_row(numbers, compute, |_, samples, numbers| take(samples, numbers))
    }

    /// All samples, in parts of those that are alike in length: not in the order of the data. Ranks share out the parts; each takes
    /// in what all have computed, in the order of the parts, so that what is added up is the same with any number of ranks. Of a
    /// part `compute` gives so many `numbers`. `take` gets the samples of a part with their indices.
    pub fn for_each_row(
        &self,
        numbers: impl Fn(&[Sample]) -> usize,
        mut compute: impl FnMut(&[Sample]) -> Result<Vec<f64>, TrainerError>,
        mut take: impl FnMut(&[usize], &[Sample], &[f64]),
    ) -> Result<(), TrainerError> {
        let indices: Vec<usize> = (0..self.reader.source.len()).collect();
        let peers = &self.session.peers;
        for rows in indices.chunks(self.rows) {
            self.session.enter(Phase::Eval, self.state.step)?;
            let mut read = self.reader.read_rows(rows)?;
            // As `sort_longest_first` does.
            read.sort_by_key(|(_, sample)| Reverse(sample.tokens()));
            let (rows, samples): (Vec<usize>, Vec<Sample>) = read.into_iter().unzip();
            self.enter(&samples)?;
            let counts = peers.gather(&[samples.len() as f64])?;
            if let Some(rank) = counts.iter().position(|count| *count != counts[0]) {
                return Err(self.state.ranks_differ(self.session, rank, "samples"));
            }
            let parts = self.splitter.parts(&samples);
            let mut all = Vec::new();
            for (part, rank) in parts.iter().zip((0..peers.rank.count).cycle()) {
                let own = rank == peers.rank.index;
                let computed = match own {
                    true => {
                        self.enter(part)?;
                        compute(part)?
                    }
                    false => vec![0.0; numbers(part)],
                };
                assert_eq!(computed.len(), numbers(part), "ranks must agree on how many numbers there are");
                all.extend(computed);
            }
            if !peers.is_nobody() {
                let sum = Tensor::f_from_slice(&all)?;
                peers.sum(&sum)?;
                all = Vec::try_from(sum)?;
            }
            let (mut rest, mut rows) = (all.as_slice(), rows.as_slice());
            for part in parts {
                let (own, after) = rest.split_at(numbers(part));
                let (indices, others) = rows.split_at(part.len());
                take(indices, part, own);
                (rest, rows) = (after, others);
            }
        }
        Ok(())
    }

    pub fn samples(&self, part: &[usize]) -> Result<Vec<Sample>, TrainerError> {
        self.session.enter(Phase::Eval, self.state.step)?;
        let samples = self.reader.read(part)?;
        self.enter(&samples)?;
        Ok(samples)
    }

    /// The prompts of these rows, for a model that generates text, and the rows that have one.
    pub fn prompts(&self, rows: Range<usize>) -> Result<(Vec<usize>, Vec<Sample>), TrainerError> {
        self.session.enter(Phase::Eval, self.state.step)?;
        let prompt = |row: usize| Ok(self.reader.source.prompt(row)?.map(|prompt| (row, prompt)));
        Ok(rows
            .filter_map(|row| prompt(row).transpose())
            .collect::<Result<Vec<_>, TrainerError>>()?
            .into_iter()
            .unzip())
    }

    pub fn enter(&self, part: &[Sample]) -> Result<(), TrainerError> {
        self.session.progress.set_part(part.len() as u32, self.splitter.shape().longest(part) as u32);
        self.session.enter(Phase::Eval, self.state.step)
    }
}

/// The tokens that a sample's loss is taken over.
fn target_tokens(sample: &Sample) -> impl Iterator<Item = i64> {
    let column = sample.column("labels").or_else(|| sample.column("next"));
    // A model that shifts the labels itself does not predict the first.
    let (tokens, first): (&[i64], usize) = match column {
        Some(Column::Tokens(tokens)) => (tokens, tokens.len().saturating_sub(sample.targets as usize)),
        Some(Column::PerToken(tokens)) => (tokens, tokens.len().min(1)),
        _ => (&[], 0),
    };
    tokens[first..].iter().copied().filter(|token| *token != IGNORED)
}
