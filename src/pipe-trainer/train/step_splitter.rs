//! How the samples of a step become parts. The first part of the next step is put on its device while the card computes: otherwise the card
//! would wait for that.

use std::ops::Range;

use pipe_model::memory::{self, Layout, Lengths, PartBudget, Recompute, Work};
use pipe_model::{TaskData, architecture};
use pipe_spec::pipeline::{Checkpointing, Pad, Split};
use pipe_spec::{Rank, TrainerSpec};

use super::session::Session;
use crate::data::{Padding, Part, PartShape, Sample};
use crate::error::TrainerError;
use crate::model::{Definition, Model};

/// A part of a step.
#[derive(Clone, Copy)]
pub struct StepPart<'s> {
    pub samples: &'s [Sample],
    /// Where its first sample stands in the step.
    pub first_sample: u32,
}

/// Splits the samples of steps into parts.
pub struct StepSplitter {
    batch: u32,
    /// Whether parts have more than `batch` samples where these are short.
    fills: bool,
    /// Where that is needed.
    budget: Option<PartBudget>,
    recompute: Recompute,
    shape: PartShape,
    /// Lengths of the longest row that there may be.
    full: Lengths,
    /// Whether what a sample holds goes by its length: not where most of it is a picture, or all rows have one length.
    by_length: bool,
}

impl StepSplitter {
    /// For the parts of a training.
    pub fn for_model(
        session: &Session,
        definition: &Definition,
        task: &TaskData,
        paddings: &[Padding],
        model: &dyn Model,
    ) -> Result<Self, TrainerError> {
        let hardware = &session.hardware;
        let shape = PartShape::new(paddings, hardware.device).in_multiples_of(model.row_multiple());
        // CUDA graphs are recorded shape by shape, so there are few lengths on a card; without graphs too, so that the result has
        // the same bits.
        let shape = match hardware.device.is_cuda() && model.is_recordable() {
            true => shape.in_few_lengths(),
            false => shape,
        };
        let shape = match (model.packs(), model.unpacks_for_attention()) {
            (true, false) => shape.packed(session.spec.train.batch()),
            (true, true) => shape.packed(session.spec.train.batch()).unpacked_for_attention(),
            (false, _) => shape,
        };
        let shape = match model.is_shaped_by_tokens() {
            true => shape.shaped_by_tokens(session.spec.train.effective_batch),
            false => shape,
        };
        if model.packs() && session.spec.data.pad == Pad::Max {
            tracing::warn!("data.pad: max changes nothing: samples stand one behind the other, without padding");
        }
        // Nothing is counted on where parts of another size are another training.
        let capacity = hardware.card_capacity().filter(|_| model.depends_on_batch().is_none());
        Self::new(&session.spec, definition, task, &shape, capacity)
    }

    /// `capacity` is what a card has for this training, where there is one.
    pub fn new(
        spec: &TrainerSpec,
        definition: &Definition,
        task: &TaskData,
        shape: &PartShape,
        capacity: Option<u64>,
    ) -> Result<Self, TrainerError> {
        let full = Lengths::full(task, &spec.data, shape.multiple() as u32);
        let by_length = matches!(
            task,
            TaskData::Seq2Seq { .. }
                | TaskData::Classification { .. }
                | TaskData::TokenLabels { .. }
                | TaskData::Preference { .. }
                | TaskData::Language { joins_texts: false, .. }
        );
        let fills = spec.train.split == Split::Fill;
        let recompute = match (spec.train.checkpointing, capacity) {
            (Checkpointing::On, _) => Recompute::Always,
            (Checkpointing::Auto, Some(bytes)) => Recompute::Beyond(memory::usable(bytes)),
            (Checkpointing::Off | Checkpointing::Auto, _) => Recompute::Never,
        };
        let budget = match fills || matches!(recompute, Recompute::Beyond(_)) {
            true => {
                let config = definition.config()?;
                let work = Work {
                    precision: spec.train.precision,
                    optimizer: spec.train.optimizer.kind,
                    checkpointing: false,
                    batch: spec.train.batch().into(),
                    accum: spec.train.accum().into(),
                    ranks: spec.rank.count,
                    sharded: !spec.train.shard.is_none(),
                    source: full.source.into(),
                    target: full.target.into(),
                    padded: true,
                    drops: spec.train.dropout.map_or(config.drops(), |share| share > 0.0),
                    adapter: definition
                        .adapter()
                        .map(|adapter| adapter.work(architecture(definition.arch()), definition.quantize())),
                };
                Some(PartBudget::new(
                    config,
                    definition.adapter(),
                    work,
                    shape.layout(),
                    recompute,
                    spec.train.effective_batch,
                ))
            }
            false => None,
        };
        Ok(Self { batch: spec.train.batch(), fills, budget, recompute, shape: shape.clone(), full, by_length })
    }

    /// The same for another batch, of steps of so many samples.
    pub fn with_batch(&self, batch: u32, step: u32) -> Self {
        let budget = self.budget.as_ref().map(|budget| budget.with_batch(batch, step));
        Self { batch, budget, shape: self.shape.clone().with_batch(batch), ..*self }
    }

    /// The same for evaluation.
    pub fn without_gradients(&self, batch: u32, step: u32) -> Self {
        let budget = self.budget.as_ref().map(|budget| budget.without_gradients(batch, step));
        // An evaluation has a row for each sample.
        let shape = self.shape.clone().with_batch(batch).with_own_samples();
        Self { batch, budget, recompute: Recompute::Never, shape, ..*self }
    }

    /// The same for rows of full length, where those decide how much a part holds.
    pub fn in_full_length(&self) -> Self {
        let shape = self.shape.clone();
        let shape = if self.fills && self.by_length { shape.in_full_length() } else { shape };
        Self { shape, budget: self.budget.clone(), ..*self }
    }

    pub fn shape(&self) -> &PartShape {
        &self.shape
    }

    /// Whether what a sample holds goes by its length.
    pub fn is_by_length(&self) -> bool {
        self.by_length
    }

    fn filling(&self) -> Option<&PartBudget> {
        self.budget.as_ref().filter(|_| self.fills)
    }

    /// The samples of a step, longest first, in parts.
    pub fn parts<'s>(&self, samples: &'s [Sample]) -> Vec<&'s [Sample]> {
        self.split(samples, 1)
    }

    /// The parts of each of so many ranks, in order. Their work is alike, and where rows are of one length so is the number of samples:
    /// then the parts of a round, one of each rank, follow each other.
    pub fn shares<'s>(&self, samples: &'s [Sample], ranks: u32) -> Vec<Vec<StepPart<'s>>> {
        let parts = self.split(samples, ranks);
        let work = |part: &&[Sample]| part.len() as u64 * self.lengths(part).tokens();
        let owners: Vec<u32> = match self.by_length {
            true => memory::owners(&parts.iter().map(work).collect::<Vec<_>>(), ranks),
            false => (0..ranks).cycle().take(parts.len()).collect(),
        };
        let mut shares: Vec<Vec<StepPart<'s>>> = (0..ranks).map(|_| Vec::new()).collect();
        let mut first_sample = 0;
        for (part, owner) in parts.into_iter().zip(owners) {
            shares[owner as usize].push(StepPart { samples: part, first_sample });
            first_sample += part.len() as u32;
        }
        shares
    }

    fn split<'s>(&self, samples: &'s [Sample], ranks: u32) -> Vec<&'s [Sample]> {
        let lengths =
            || -> Vec<Lengths> { samples.iter().map(|sample| self.lengths(std::slice::from_ref(sample))).collect() };
        let sizes = match (self.filling(), ranks) {
            (None, 1) => return samples.chunks(self.batch as usize).collect(),
            (Some(budget), 1) => budget.part_sizes(&lengths(), 1),
            (_, ranks) if !self.by_length => memory::even_part_sizes(samples.len(), ranks, self.room(samples) as usize),
            (Some(budget), ranks) => budget.part_sizes(&lengths(), ranks),
            (None, ranks) => memory::part_sizes(&lengths(), ranks, self.shape.layout(), |_| self.batch as usize),
        };
        let mut rest = samples;
        let mut take = |size: usize| {
            let (part, after) = rest.split_at(size);
            rest = after;
            part
        };
        sizes.into_iter().map(&mut take).collect()
    }

    /// Whether the blocks of a part are computed again for its gradient.
    pub fn recomputes(&self, part: &[Sample]) -> bool {
        match &self.budget {
            Some(budget) => budget.recomputes(part.len() as u32, self.lengths(part)),
            None => self.recompute == Recompute::Always,
        }
    }

    /// How much of what a part may keep the fullest of these keeps. Absent where parts are not filled.
    pub fn filled<'s>(&self, parts: impl Iterator<Item = &'s [Sample]>) -> Option<f64> {
        let budget = self.filling()?;
        parts.map(|part| budget.filled(part.len() as u32, self.lengths(part))).reduce(f64::max)
    }

    /// Bytes that a part may hold beside the state of the model. Absent where parts are not filled, or nothing is known of it.
    pub fn part_bytes(&self) -> Option<u64> {
        self.filling()?.part_bytes()
    }

    /// How many rows as long as these a part may have.
    pub fn room(&self, samples: &[Sample]) -> u32 {
        self.filling().map_or(self.batch, |budget| budget.room(self.lengths(samples)))
    }

    /// How many prompts as long as these may be answered at a time, by texts of any length that there may be.
    pub fn room_for_answers(&self, prompts: &[Sample]) -> u32 {
        let prompts = if self.by_length { self.shape.clone().padded().row_lengths(prompts) } else { self.full };
        let lengths = Lengths { target: self.full.target, ..prompts };
        self.filling().map_or(self.batch, |budget| budget.room(lengths))
    }

    /// Tokens of the rows that decide how much a part holds, as `Started::longest` writes them: those of full length, or the
    /// longest of the data.
    pub fn longest(&self, longest: &[Sample]) -> String {
        if self.fills { self.full.to_string() } else { self.shape.lengths(longest) }
    }

    /// Lengths of the rows of a part, or their mean where that decides what it holds.
    fn lengths(&self, part: &[Sample]) -> Lengths {
        if self.by_length { self.shape.row_lengths(part) } else { self.full }
    }
}

pub struct Prepared {
    /// The samples of each part, of each rank.
    shares: Vec<Vec<Range<usize>>>,
    pub filled: Option<f64>,
    /// The first part of this rank, where that was made ahead.
    pub first: Option<Part>,
}

impl Prepared {
    pub fn new(samples: &[Sample], splitter: &StepSplitter, rank: Rank) -> Self {
        let shares = splitter.shares(samples, rank.count);
        let filled = splitter.filled(shares.iter().flatten().map(|part| part.samples));
        let range = |part: &StepPart<'_>| part.first_sample as usize..part.first_sample as usize + part.samples.len();
        let shares = shares.iter().map(|share| share.iter().map(range).collect()).collect();
        Self { shares, filled, first: None }
    }

    /// The same with its first part, where that is tokens alone: a part of pictures would be in the way of the one before.
    pub fn ahead(samples: &[Sample], splitter: &StepSplitter, rank: Rank) -> Result<Self, TrainerError> {
        let prepared = Self::new(samples, splitter, rank);
        let first = match prepared.share(samples, rank.index).first() {
            Some(part) if splitter.shape().layout() == Layout::Packed => Some(splitter.shape().collate(part.samples)?),
            _ => None,
        };
        Ok(Self { first, ..prepared })
    }

    /// Parts of all ranks.
    pub fn parts(&self) -> u32 {
        self.shares.iter().map(|share| share.len() as u32).sum()
    }

    /// The parts of one rank, in order.
    pub fn share<'s>(&self, samples: &'s [Sample], rank: u32) -> Vec<StepPart<'s>> {
        let part =
            |range: &Range<usize>| StepPart { samples: &samples[range.clone()], first_sample: range.start as u32 };
        self.shares[rank as usize].iter().map(part).collect()
    }
}
