//! One pass over the evaluation data, and what the measures of a task make of it.

use std::ops::Range;

use pipe_spec::Phase;
use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::Scores;
use pipe_spec::pipeline::Task;
use tch::{Kind, Tensor};

use crate::data::{Reader, Sample, sort_longest_first};
use crate::error::TrainerError;
use crate::model::Mode;
use crate::tokenizer::Tokens;
use crate::train::session::Session;
use crate::train::state::State;
use crate::train::step_splitter::StepSplitter;

/// Loss, scores and details that the measures of a task give.
#[derive(Default)]
pub struct Measures {
    pub loss: f64,
    pub scores: Scores,
    pub details: EvaluationDetails,
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
        let (mut loss, mut targets) = (0.0, 0);
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
            },
        )?;
        Ok(loss / targets.max(1) as f64)
    }

    /// All samples, in parts of those that are alike in length: not in the order of the data. Ranks share out the parts; each takes
    /// in what all have computed, in the order of the parts, so that what is added up is the same with any number of ranks. Of a
    /// part with so many samples `compute` gives `numbers`.
    pub fn for_each_part(
        &self,
        numbers: impl Fn(usize) -> usize,
        mut compute: impl FnMut(&[Sample]) -> Result<Vec<f64>, TrainerError>,
        mut take: impl FnMut(&[Sample], &[f64]),
    ) -> Result<(), TrainerError> {
        let indices: Vec<usize> = (0..self.reader.source.len()).collect();
        let peers = &self.session.peers;
        for rows in indices.chunks(self.rows) {
            let mut samples = self.samples(rows)?;
            sort_longest_first(&mut samples);
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
                    false => vec![0.0; numbers(part.len())],
                };
                assert_eq!(computed.len(), numbers(part.len()), "ranks must agree on how many numbers there are");
                all.extend(computed);
            }
            if !peers.is_nobody() {
                let sum = Tensor::f_from_slice(&all)?;
                peers.sum(&sum)?;
                all = Vec::try_from(sum)?;
            }
            let mut rest = all.as_slice();
            for part in parts {
                let (own, after) = rest.split_at(numbers(part.len()));
                take(part, own);
                rest = after;
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
