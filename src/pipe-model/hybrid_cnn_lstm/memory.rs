//! What the passes of a training step hold.

use pipe_spec::pipeline::Precision;

use super::{HybridConfig, NormKind};
use crate::memory::column_sums;
use crate::memory::{Stage, Work};

const FLOAT: u64 = 4;
/// Up to this many cuDNN takes another algorithm for convolutions in fp32, which holds in- and output this many times. Both
/// as measured.
const FEW_CHANNELS: u64 = 1024;
const FEW_CHANNELS_TAKE: u64 = 49;
/// For the matrix products inside cuDNN's LSTM.
const LSTM_PRODUCTS: u64 = 32 << 20;

/// In the order of the forward pass.
pub fn stages(config: &HybridConfig, work: &Work) -> Vec<Stage> {
    let model = Sizes::of(config, work);
    let mut stages = vec![model.input(config.input_features as u64)];
    let mut before = config.input_features as u64;
    for (number, channels) in config.conv_channels.iter().map(|channels| *channels as u64).enumerate() {
        let taps = config.kernel_size as u64 * before * channels;
        let computed_again = config.norm == NormKind::Layer && work.checkpointing;
        stages.push(model.convolution(number, [before, channels], taps, computed_again));
        before = channels;
    }
    stages.extend([model.lstm(before), model.attention(), model.head(config.num_classes as u64)]);
    stages
}

struct Sizes<'a> {
    work: &'a Work,
    /// Times of all samples.
    times: u64,
    hidden: u64,
    layers: u64,
    directions: u64,
    width: u64,
    heads: u64,
}

impl<'a> Sizes<'a> {
    fn of(config: &HybridConfig, work: &'a Work) -> Self {
        Self {
            work,
            times: work.batch * config.sequence_length as u64,
            hidden: config.lstm_hidden as u64,
            layers: config.lstm_layers as u64,
            directions: config.directions() as u64,
            width: config.width() as u64,
            heads: config.attention_heads as u64,
        }
    }

    /// Bytes of `channels` numbers for each time, as products take them.
    fn state(&self, channels: u64) -> u64 {
        self.times * channels * self.work.compute()
    }

    fn narrowed(&self, weights: u64) -> u64 {
        if self.work.mixed() { weights * self.work.compute() } else { 0 }
    }

    /// Gradients of `weights` as products give them, and beside those of earlier passes.
    fn made(&self, weights: u64) -> u64 {
        self.narrowed(weights) + if self.work.accum > 1 { weights * self.work.weight() } else { 0 }
    }

    fn input(&self, features: u64) -> Stage {
        let bytes = self.times * features * FLOAT;
        let narrow = if self.work.compute() < FLOAT { self.state(features) } else { 0 };
        let kept = bytes + if self.work.checkpointing { 0 } else { narrow };
        Stage { name: "input".to_owned(), kept, forward: bytes + narrow, backward: bytes + narrow, ..Stage::default() }
    }

    /// A convolution, a norm and gelu: what each gives is kept for the next.
    fn convolution(&self, number: usize, [before, channels]: [u64; 2], taps: u64, computed_again: bool) -> Stage {
        let (state, input) = (self.state(channels), self.state(before));
        let weights = taps + 3 * channels;
        let inside = 3 * state + self.narrowed(weights);
        let convolving = state + input + self.made(weights) + self.workspace([before, channels], true);
        // Both gradients of gelu beside what it and the norm took; those of the convolution.
        let backward = (4 * state + self.narrowed(weights)).max(convolving);
        let stage = Stage {
            name: format!("convolution {number}"),
            kept: inside,
            forward: inside.max(state + self.workspace([before, channels], false)),
            backward,
            gradients: weights * self.work.weight(),
            logits: 0,
        };
        if !computed_again {
            return stage;
        }
        // What it gave is there a second time.
        Stage { kept: state, backward: backward + state, ..stage }
    }

    /// What cuDNN takes to turn in- and output around, channels last; more where few channels go back in full fp32.
    fn workspace(&self, [before, channels]: [u64; 2], backward: bool) -> u64 {
        let states = self.state(before) + self.state(channels);
        let few = before.max(channels) <= FEW_CHANNELS;
        if backward && few && self.work.precision == Precision::Fp32 { FEW_CHANNELS_TAKE * states } else { states }
    }

    fn lstm(&self, input: u64) -> Stage {
        let row = self.lstm_weights(input);
        let output = self.state(self.width);
        let copy = row * self.work.compute();
        let reserve = self.reserve();
        let kept = copy + reserve + output;
        let workspace = self.lstm_workspace(input) + copy;
        let anew = if self.work.accum > 1 { copy } else { 0 };
        let stage = Stage {
            name: "LSTM".to_owned(),
            kept,
            // cuDNN wants times before samples, and the weights in an order of its own.
            forward: kept + self.narrowed(row) + self.state(input) + workspace,
            backward: kept + output + 2 * self.state(input) + anew + workspace,
            gradients: row * self.work.weight(),
            logits: 0,
        };
        match self.work.checkpointing {
            true => Stage { kept: output, ..stage },
            false => stage,
        }
    }

    fn lstm_weights(&self, input: u64) -> u64 {
        let layer = |input: u64| 4 * self.hidden * (input + self.hidden + 2) * self.directions;
        layer(input) + (self.layers - 1) * layer(self.width)
    }

    /// What cuDNN keeps of every layer: gates, cells and what goes into the next; and the first states in fp32.
    fn reserve(&self) -> u64 {
        let beginnings = self.work.batch * self.layers * self.width * 2 * FLOAT;
        (6 * self.layers - 1) * self.state(self.width) + beginnings
    }

    /// The multiples are as measured.
    fn lstm_workspace(&self, input: u64) -> u64 {
        5 * self.state(input) + 13 * self.state(self.width) * self.layers / 4 + LSTM_PRODUCTS
    }

    fn attention(&self) -> Stage {
        let (state, weights) = (self.state(self.width), 4 * self.width * self.width);
        // Where weights are as narrow as products, a copy of what came in with samples before times.
        let copy = if self.work.mixed() { 0 } else { state };
        let sums = self.times * self.heads * FLOAT;
        // Queries, keys and values, what was attended to, and what was normed.
        let kept = 5 * state + copy + sums;
        let stage = Stage {
            name: "attention".to_owned(),
            kept,
            forward: kept + 3 * state + self.narrowed(weights),
            backward: (kept + 6 * state).max(9 * state + column_sums(self.times, 3 * self.width)) + self.made(weights),
            gradients: (weights + 6 * self.width) * self.work.weight(),
            logits: 0,
        };
        match self.work.checkpointing {
            true => Stage { kept: 0, backward: stage.backward + state, ..stage },
            false => stage,
        }
    }

    /// Of each sample once.
    fn head(&self, classes: u64) -> Stage {
        let rows = self.work.batch * 4 * self.width * FLOAT;
        Stage {
            name: "head".to_owned(),
            kept: rows,
            forward: rows + self.state(self.width),
            backward: rows + 2 * self.state(self.width),
            gradients: self.width / 2 * (self.width + classes) * self.work.weight(),
            logits: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::OptimizerKind;
    use serde_json::json;

    use super::*;

    fn kept(norm: &str, batch: u64, checkpointing: bool) -> u64 {
        let config = json!({"input_features": 8, "num_classes": 3, "conv_channels": [2048, 2048], "norm": norm});
        let config = HybridConfig::read(config.as_object().unwrap()).unwrap();
        let work = Work {
            precision: Precision::Bf16,
            optimizer: OptimizerKind::Adamw,
            checkpointing,
            batch,
            accum: 1,
            source: 0,
            target: 0,
            padded: false,
            drops: true,
        };
        stages(&config, &work).iter().map(|stage| stage.kept).sum()
    }

    #[test]
    fn convolutions_with_batch_norm_are_not_computed_again() {
        let conv = 2 * 3 * 2048 * 32 * 60 * 2;
        assert!(kept("layer", 32, true) < conv / 2);
        assert!(kept("batch", 32, true) > conv);
    }

    #[test]
    fn all_but_the_lstms_weights_grows_with_the_samples() {
        let weights = 2 * 4 * 128 * ((2048 + 128 + 2) + (256 + 128 + 2));
        assert_eq!(2 * kept("layer", 64, false) - kept("layer", 128, false), 2 * weights);
    }
}
