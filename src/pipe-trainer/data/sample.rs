//! One sample, ready to become a row of tensors. Knows no tensors itself, so that threads can make it.

use std::cmp::Reverse;

use super::ALIGNED_COLUMNS;

/// The column with what the loss of a sample is multiplied with. Absent where every sample counts the same.
pub const LOSS_WEIGHTS: &str = "loss_weights";

/// Columns have the names that models know them by: `input_ids`, `labels`, `pixel_values` and the like.
#[derive(Clone, Debug)]
pub struct Sample {
    pub columns: Vec<(&'static str, Column)>,
    /// What the loss of a step is divided by, summed over its samples: target tokens, or 1.
    pub targets: u64,
}

#[derive(Clone, Debug)]
pub enum Column {
    /// Padded to the length of the part's longest.
    Tokens(Vec<i64>),
    /// One number for the sample, such as its class.
    Whole(i64),
    Real(f32),
    /// Values of a shape that every sample has.
    Values {
        shape: Vec<i64>,
        values: Vec<f32>,
    },
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

    /// What its loss is multiplied with, where samples count differently.
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
