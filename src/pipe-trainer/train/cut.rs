//! How the samples of a step become parts.

use pipe_model::TaskData;
use pipe_model::memory::{Cutter, Lengths, Work};
use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::Split;

use crate::data::{PartShape, Sample};
use crate::error::TrainerError;
use crate::model::Definition;

pub struct Cut {
    how: How,
    shape: PartShape,
    /// Of the longest row that there may be.
    full: Lengths,
    /// Whether what a sample holds goes by its length: not where most of it is a picture, or all rows have one length.
    by_length: bool,
}

enum How {
    /// So many samples.
    Fixed(u32),
    Fill(Cutter),
}

impl Cut {
    pub fn new(
        spec: &TrainerSpec,
        definition: &Definition,
        task: &TaskData,
        shape: &PartShape,
    ) -> Result<Self, TrainerError> {
        let full = Lengths::full(task, &spec.data, shape.multiple() as u32);
        let by_length = matches!(task, TaskData::Seq2Seq { .. } | TaskData::Classification { .. });
        let how = match spec.train.split {
            Split::Fixed => How::Fixed(spec.train.batch()),
            Split::Fill => {
                let config = definition.config()?;
                let work = Work {
                    precision: spec.train.precision,
                    optimizer: spec.train.optimizer.kind,
                    checkpointing: spec.train.checkpointing,
                    batch: spec.train.batch().into(),
                    accum: spec.train.accum().into(),
                    source: full.source.into(),
                    target: full.target.into(),
                    padded: true,
                    drops: spec.train.dropout.map_or(config.drops(), |share| share > 0.0),
                };
                How::Fill(Cutter::new(config, work, spec.train.effective_batch))
            }
        };
        Ok(Self { how, shape: shape.clone(), full, by_length })
    }

    /// The same for another batch, of steps of so many samples.
    pub fn with_batch(&self, batch: u32, step: u32) -> Self {
        let how = match &self.how {
            How::Fixed(_) => How::Fixed(batch),
            How::Fill(cutter) => How::Fill(cutter.with_batch(batch, step)),
        };
        Self { how, shape: self.shape.clone(), ..*self }
    }

    /// Whether what a sample holds goes by its length.
    pub fn is_by_length(&self) -> bool {
        self.by_length
    }

    /// The samples of a step, longest first, in parts.
    pub fn parts<'s>(&self, samples: &'s [Sample]) -> Vec<&'s [Sample]> {
        let cutter = match &self.how {
            How::Fixed(batch) => return samples.chunks(*batch as usize).collect(),
            How::Fill(cutter) => cutter,
        };
        let lengths: Vec<Lengths> = samples.iter().map(|sample| self.lengths(std::slice::from_ref(sample))).collect();
        let mut rest = samples;
        let mut take = |size: usize| {
            let (part, after) = rest.split_at(size);
            rest = after;
            part
        };
        cutter.cut(&lengths).into_iter().map(&mut take).collect()
    }

    /// How much of what a part may keep the fullest of these keeps. Absent where parts are not filled.
    pub fn filled(&self, parts: &[&[Sample]]) -> Option<f64> {
        let How::Fill(cutter) = &self.how else { return None };
        parts.iter().map(|part| cutter.filled(part.len() as u32, self.lengths(part))).reduce(f64::max)
    }

    /// How many rows as long as these a part may have.
    pub fn room(&self, samples: &[Sample]) -> u32 {
        match &self.how {
            How::Fixed(batch) => *batch,
            How::Fill(cutter) => cutter.room(self.lengths(samples)),
        }
    }

    /// Tokens of the rows that decide how much a part holds, as `Started::longest` writes them: those of full length, or the
    /// longest of the data.
    pub fn longest(&self, longest: &[Sample]) -> String {
        match &self.how {
            How::Fixed(_) => self.shape.lengths(longest),
            How::Fill(_) => self.full.to_string(),
        }
    }

    /// Of the rows of a part.
    fn lengths(&self, part: &[Sample]) -> Lengths {
        if self.by_length { self.shape.row_lengths(part) } else { self.full }
    }
}
