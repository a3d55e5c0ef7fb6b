//! What a training holds on a card: the state of the model, computed exactly, and what passes through it, stage by stage.

mod column_sums;
mod fit;
mod recomputed;
mod stage;
mod word_loss;

pub(crate) use column_sums::column_sums;
pub use fit::{MARGIN, Search, largest};
pub(crate) use recomputed::recomputed;
pub use stage::{Peak, Stage, peak};
pub(crate) use word_loss::WordLoss;

use pipe_spec::pipeline::{OptimizerKind, Precision};

use crate::{Init, Parameter};

/// What cuBLAS and cuBLASLt keep for their products, on cards that take this much.
pub const WORKSPACE: u64 = 64 << 20;

/// What decides how much a training holds, beside the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    pub precision: Precision,
    pub optimizer: OptimizerKind,
    pub checkpointing: bool,
    /// Samples in one forward and backward pass.
    pub batch: u64,
    /// Passes in a step.
    pub accum: u64,
    /// Tokens of a row, of a T5's source, as they are padded.
    pub source: u64,
    /// Tokens of a T5's target.
    pub target: u64,
    /// Whether some rows are shorter than others, so that there is a mask.
    pub padded: bool,
    /// Whether anything is dropped.
    pub drops: bool,
}

impl Work {
    /// Bytes of a weight, of its gradient and of each of its moments.
    pub fn weight(&self) -> u64 {
        match self.precision {
            Precision::Bf16 => 2,
            Precision::Fp32 | Precision::Tf32 | Precision::Bf16Mixed | Precision::Fp16Mixed => 4,
        }
    }

    /// Bytes of what matrix products take and give.
    pub fn compute(&self) -> u64 {
        match self.precision {
            Precision::Fp32 | Precision::Tf32 => 4,
            Precision::Bf16 | Precision::Bf16Mixed | Precision::Fp16Mixed => 2,
        }
    }

    /// Whether products are computed in less than the weights are kept in.
    pub fn mixed(&self) -> bool {
        self.compute() < self.weight()
    }
}

/// What a training holds at its worst moment, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// How many numbers are learned.
    pub params: u64,
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    /// What the passes forward and back hold, without logits.
    pub activations: u64,
    /// What the model says about every word, where it says that.
    pub logits: u64,
    pub workspace: u64,
    /// What was going on at that moment.
    pub moment: String,
}

impl Estimate {
    /// All of it together: what torch calls allocated.
    pub fn allocated(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.workspace
    }

    /// Of a model with these parameters whose passes go through these stages.
    pub(crate) fn of(parameters: &[Parameter], stages: &[Stage], work: &Work) -> Self {
        let trained = || parameters.iter().filter(|parameter| parameter.trained);
        let params: u64 = trained().map(Parameter::count).sum();
        let kept: u64 = parameters.iter().filter(|parameter| !parameter.trained).map(remembered).sum();
        let optimizer = match work.optimizer {
            OptimizerKind::Adamw => 2 * params * work.weight(),
            OptimizerKind::Adafactor => trained().map(factored).sum::<u64>() * 4,
        };
        let all_gradients = params * work.weight();
        let mut worst = peak(stages, all_gradients, work);
        let update = update(trained(), work);
        if all_gradients + update > worst.bytes() {
            worst = Peak { moment: "update".to_owned(), activations: update, logits: 0, gradients: all_gradients };
        }
        Self {
            params,
            weights: params * work.weight() + kept,
            gradients: worst.gradients,
            optimizer,
            activations: worst.activations,
            logits: worst.logits,
            workspace: WORKSPACE,
            moment: worst.moment,
        }
    }
}

/// Bytes of what is not learned, whatever the precision: counts are whole numbers.
fn remembered(parameter: &Parameter) -> u64 {
    parameter.count() * if parameter.init == Init::Count { 8 } else { 4 }
}

/// How many numbers Adafactor remembers of a parameter.
fn factored(parameter: &Parameter) -> u64 {
    rows_and_columns(parameter).map_or(parameter.count(), |[outer, rows, columns]| outer * (rows + columns))
}

/// How many matrices a parameter is, and their size.
fn rows_and_columns(parameter: &Parameter) -> Option<[u64; 3]> {
    let [outer @ .., rows, columns] = parameter.shape.as_slice() else { return None };
    Some([outer.iter().product::<i64>() as u64, *rows as u64, *columns as u64])
}

/// What an update holds for a moment beside the gradients.
fn update<'a>(parameters: impl Iterator<Item = &'a Parameter>, work: &Work) -> u64 {
    let Some(largest) = parameters.max_by_key(|parameter| parameter.count()) else { return 0 };
    match work.optimizer {
        // In place.
        OptimizerKind::Adamw => 0,
        OptimizerKind::Adafactor => {
            // The square of the gradient in fp32, and what adds up its rows; in bf16 the gradient in fp32 as well.
            let copies = if work.weight() < 4 { 2 } else { 1 };
            copies * 4 * largest.count()
                + rows_and_columns(largest).map_or(0, |[_, rows, columns]| column_sums(rows, columns))
        }
    }
}
