//! Sizes that the stages of a step are made of.

use super::HybridConfig;
use crate::memory::Work;

pub const FLOAT: u128 = 4;

pub struct Sizes<'a> {
    pub work: &'a Work,
    /// Of a sample.
    pub length: u128,
    /// Times of all samples.
    pub times: u128,
    pub hidden: u128,
    pub layers: u128,
    pub directions: u128,
    pub width: u128,
    pub heads: u128,
}

impl<'a> Sizes<'a> {
    pub fn of(config: &HybridConfig, work: &'a Work) -> Self {
        let length = config.sequence_length as u128;
        Self {
            work,
            length,
            times: work.batch * length,
            hidden: config.lstm_hidden as u128,
            layers: config.lstm_layers as u128,
            directions: config.directions() as u128,
            width: config.width() as u128,
            heads: config.attention_heads as u128,
        }
    }

    /// Bytes of `channels` numbers for each time, as products take them.
    pub fn state(&self, channels: u128) -> u128 {
        self.times * channels * self.work.compute()
    }

    pub fn narrowed(&self, weights: u128) -> u128 {
        if self.work.mixed() { weights * self.work.compute() } else { 0 }
    }

    /// Gradients of `weights` beside those of earlier passes.
    pub fn new_gradients(&self, weights: u128) -> u128 {
        if self.work.accum > 1 { weights * self.work.weight() } else { 0 }
    }
}
