//! Sizes that the stages of a step are made of.

use super::HybridConfig;
use crate::memory::Work;

pub const FLOAT: u64 = 4;

pub struct Sizes<'a> {
    pub work: &'a Work,
    /// Of a sample.
    pub length: u64,
    /// Times of all samples.
    pub times: u64,
    pub hidden: u64,
    pub layers: u64,
    pub directions: u64,
    pub width: u64,
    pub heads: u64,
}

impl<'a> Sizes<'a> {
    pub fn of(config: &HybridConfig, work: &'a Work) -> Self {
        let length = config.sequence_length as u64;
        Self {
            work,
            length,
            times: work.batch * length,
            hidden: config.lstm_hidden as u64,
            layers: config.lstm_layers as u64,
            directions: config.directions() as u64,
            width: config.width() as u64,
            heads: config.attention_heads as u64,
        }
    }

    /// Bytes of `channels` numbers for each time, as products take them.
    pub fn state(&self, channels: u64) -> u64 {
        self.times * channels * self.work.compute()
    }

    pub fn narrowed(&self, weights: u64) -> u64 {
        if self.work.mixed() { weights * self.work.compute() } else { 0 }
    }

    /// Gradients of `weights` beside those of earlier passes.
    pub fn anew(&self, weights: u64) -> u64 {
        if self.work.accum > 1 { weights * self.work.weight() } else { 0 }
    }
}
