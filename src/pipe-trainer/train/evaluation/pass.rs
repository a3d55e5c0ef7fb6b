//! One evaluation: what it reads and what it computes with.

use std::ops::Range;

use pipe_spec::Phase;
use pipe_spec::pipeline::Task;
use tch::Kind;

use crate::data::{Reader, Sample, Tokens, sort_longest_first};
use crate::error::TrainerError;
use crate::model::Mode;
use crate::train::cut::Cut;
use crate::train::session::Session;
use crate::train::state::State;

/// One pass over the evaluation data.
pub struct Pass<'a> {
    pub reader: &'a Reader,
    pub tokens: Option<&'a Tokens>,
    pub task: Task,
    /// Of a classifier, by number; empty where they have none.
    pub class_names: &'a [String],
    pub batch: usize,
    /// Rows that are read at a time.
    pub rows: usize,
    pub session: &'a Session,
    pub state: &'a State,
    /// For parts of `batch` samples.
    pub cut: &'a Cut,
}

impl Pass<'_> {
    /// The mean over all targets.
    pub fn loss(&self) -> Result<f64, TrainerError> {
        let (mut loss, mut targets) = (0.0, 0);
        self.for_each_part(|samples| {
            let sum = self.state.model.loss_sum(&self.cut.shape().collate(samples)?, Mode::Eval)?;
            loss += sum.f_to_kind(Kind::Double)?.f_double_value(&[])?;
            targets += samples.iter().map(|sample| sample.targets).sum::<u64>();
            Ok(())
        })?;
        Ok(loss / targets.max(1) as f64)
    }

    /// All samples, in parts of those that are alike in length: not in the order of the data.
    pub fn for_each_part(
        &self,
        mut compute: impl FnMut(&[Sample]) -> Result<(), TrainerError>,
    ) -> Result<(), TrainerError> {
        let indices: Vec<usize> = (0..self.reader.source.len()).collect();
        for rows in indices.chunks(self.rows) {
            let mut samples = self.samples(rows)?;
            sort_longest_first(&mut samples);
            for part in self.cut.parts(&samples) {
                self.enter(part)?;
                compute(part)?;
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
        self.session.progress.set_part(part.len() as u32, self.cut.shape().longest(part) as u32);
        self.session.enter(Phase::Eval, self.state.step)
    }
}
