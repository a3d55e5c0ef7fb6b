//! How text is generated.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation {
    /// Tokens of an answer at most, its end token included.
    pub max_length: i64,
    /// Beams; 1 takes the most probable token each time.
    pub beams: i64,
    /// Sampling temperature of a language model; 0 takes the most probable token.
    pub temperature: f64,
    /// Nucleus sampling: the most probable tokens that together have this probability.
    pub top_p: f64,
    /// Seed of the sampling, with the number of the row.
    pub seed: u64,
    /// The number of the first row of the part among all rows.
    pub first_row: u64,
    /// What ends a text, for a model whose config does not say.
    pub end_token: Option<i64>,
}

impl Generation {
    /// The most probable token each time.
    pub const fn greedy(max_length: i64) -> Self {
        Self { max_length, beams: 1, temperature: 0.0, top_p: 1.0, seed: 0, first_row: 0, end_token: None }
    }
}
