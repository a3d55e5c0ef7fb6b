//! Samples, and a part of a step as tensors.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tch::{Device, Kind, TchError, Tensor};

use super::packing::Packed;
use crate::error::TrainerError;
use crate::torch;

/// The label that the loss ignores.
pub const IGNORED: i64 = -100;

/// 1 where there is a token, 0 where there is padding.
pub const MASK: &str = "attention_mask";

/// Columns with one number for each token of `input_ids`.
pub const ALIGNED_COLUMNS: [&str; 2] = [MASK, "token_type_ids"];

/// The input of a model: tensors by name. The first dimension of each is the samples; tokens of packed samples are [1, tokens].
#[derive(Debug, Default)]
pub struct Part(BTreeMap<String, Tensor>);

impl Part {
    pub fn get(&self, name: &str) -> Result<&Tensor, TrainerError> {
        self.find(name).ok_or_else(|| TrainerError::Panic { message: format!("a part without {name}") })
    }

    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// Where the samples of a column of tokens stand. Absent where each has a row of its own.
    pub fn packed(&self, column: &str) -> Option<Packed<'_>> {
        Packed::find(|name| self.find(&format!("{column}.{name}")))
    }

    /// Tokens that are computed for samples like this one, padding and rounding included.
    pub fn tokens(&self, like: &Sample) -> u64 {
        let counted = like.columns.iter().filter(|(name, column)| is_counted(name, column));
        counted.filter_map(|(name, _)| self.find(name)).map(|tensor| tensor.numel() as u64).sum()
    }

    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The same in memory of its own.
    pub fn copy(&self) -> Result<Self, TchError> {
        self.tensors()
            .map(|(name, tensor)| Ok((name.to_owned(), tensor.f_detach_copy()?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub fn shallow_clone(&self) -> Self {
        Self(self.0.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect())
    }

    pub fn with(mut self, name: &str, tensor: Tensor) -> Self {
        self.0.insert(name.to_owned(), tensor);
        self
    }

    /// The mask of a part on `device`, and beside it the tokens of each row where every row has some and all padding is behind them. `mask` is on
    /// the CPU.
    pub fn with_mask(self, mask: &Tensor, device: Device) -> Result<Self, TchError> {
        let part = self.with(MASK, torch::to_device(mask, device)?);
        let returns = mask.f_diff(1, 1, None::<&Tensor>, None::<&Tensor>)?.f_gt(0)?.f_any()?.f_int64_value(&[])? != 0;
        let lengths = mask.f_sum_dim_intlist(1i64, false, Kind::Int)?;
        if returns || lengths.f_min()?.f_int64_value(&[])? == 0 {
            return Ok(part);
        }
        Ok(part.with("lengths", torch::to_device(&lengths, device)?))
    }
}

/// The label that each of `length` positions predicts: the one after its own. Labels are the tokens of the row, and may be one
/// more than its ids; where there is none after the last position, it is ignored.
pub fn next_tokens(labels: &Tensor, length: i64) -> Result<Tensor, TchError> {
    let (batch, count) = labels.size2()?;
    let known = (count - 1).min(length);
    let next = labels.f_narrow(1, 1, known)?;
    if known == length {
        return Ok(next);
    }
    let nothing = Tensor::f_full([batch, length - known], IGNORED, (Kind::Int64, labels.device()))?;
    Tensor::f_cat(&[next, nothing], 1)
}

/// The same where samples are packed: `labels` as `of_labels` says, for the positions of `ids`.
pub fn next_packed_tokens(labels: &Tensor, ids: Packed<'_>, of_labels: Packed<'_>) -> Result<Tensor, TchError> {
    let sample = ids.sample_numbers()?;
    let tokens = Tensor::f_arange(ids.tokens(), (Kind::Int, labels.device()))?;
    let inside = tokens.f_sub(&ids.offsets.f_index_select(0, &sample)?)?;
    let next = of_labels.offsets.f_index_select(0, &sample)?.f_add(&inside)?.f_add_scalar(1)?;
    let is_known = next.f_lt_tensor(&of_labels.offsets.f_index_select(0, &sample.f_add_scalar(1)?)?)?;
    let found = labels.f_squeeze_dim(0)?.f_index_select(0, &next.f_clamp_max(of_labels.tokens() - 1)?)?;
    found.f_masked_fill(&is_known.f_logical_not()?, IGNORED)?.f_unsqueeze(0)
}

/// The column with what the loss of a sample is multiplied by. Absent where every sample counts the same.
pub const LOSS_WEIGHTS: &str = "loss_weights";

/// Columns have the names that models know them by: `input_ids`, `labels`, `pixel_values` and the like.
#[derive(Clone, Debug)]
pub struct Sample {
    pub columns: Vec<(&'static str, Column)>,
    /// Target tokens, or 1. The loss of a step is divided by their sum over its samples.
    pub targets: u64,
}

#[derive(Clone, Debug)]
pub enum Column {
    /// Padded to the length of the part's longest.
    Tokens(Vec<i64>),
    /// One number for each token of `input_ids`, such as its label.
    PerToken(Vec<i64>),
    /// One number for the sample, such as its class.
    Whole(i64),
    Real(f32),
    /// Values of a shape that every sample has.
    Values {
        shape: Vec<i64>,
        values: Vec<f32>,
    },
}

/// Whether it is tokens, and not what stands beside those of another column.
pub fn is_counted(name: &str, column: &Column) -> bool {
    matches!(column, Column::Tokens(_)) && !ALIGNED_COLUMNS.contains(&name)
}

/// The order of the samples of a step: by their tokens, longest first; samples with as many stay in their order.
pub fn sort_longest_first(samples: &mut [Sample]) {
    samples.sort_by_key(|sample| Reverse(sample.tokens()));
}

impl Sample {
    /// Its class, where it has one.
    pub fn class(&self) -> Option<i64> {
        match self.column("labels") {
            Some(Column::Whole(class)) => Some(*class),
            _ => None,
        }
    }

    /// The factor of its loss, where samples count differently.
    pub fn loss_weight(&self) -> Option<f32> {
        match self.column(LOSS_WEIGHTS) {
            Some(Column::Real(weight)) => Some(*weight),
            _ => None,
        }
    }

    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(column, _)| *column == name).map(|(_, column)| column)
    }

    /// How many tokens it has in all.
    pub fn tokens(&self) -> usize {
        self.lengths().sum()
    }

    /// The length of its longest column of tokens.
    pub fn length(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    /// Tokens of each column; none of those that are aligned with another.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.columns.iter().map(|(name, column)| match column {
            Column::Tokens(tokens) if !ALIGNED_COLUMNS.contains(name) => tokens.len(),
            _ => 0,
        })
    }
}
