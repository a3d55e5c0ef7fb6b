//! What the passes of a training step hold.

use super::sizes::{FLOAT, Sizes};
use super::{HybridConfig, NormKind, attention, lstm};
use crate::memory::{Stage, Work};

/// In the order of the forward pass. The estimate is of what is needed: where there is room, cuDNN may take several times as
/// much for convolutions in fp32, and does with less where there is none.
pub fn stages(config: &HybridConfig, work: &Work) -> Vec<Stage> {
    let sizes = Sizes::of(config, work);
    let mut stages = vec![input(&sizes, config.input_features as u128)];
    let mut before = config.input_features as u128;
    for (number, channels) in config.conv_channels.iter().map(|channels| *channels as u128).enumerate() {
        let taps = config.kernel_size as u128 * before * channels;
        let computed_again = config.norm == NormKind::Layer && work.checkpointing;
        stages.push(convolution(&sizes, number, [before, channels], taps, computed_again));
        before = channels;
    }
    stages.extend(lstm::stages(&sizes, before));
    stages.extend(attention::stages(&sizes));
    stages.push(head(&sizes, config.num_classes as u128));
    stages
}

fn input(sizes: &Sizes, features: u128) -> Stage {
    let bytes = sizes.times * features * FLOAT;
    let narrow = if sizes.work.compute() < FLOAT { sizes.state(features) } else { 0 };
    let kept = bytes + if sizes.work.checkpointing { 0 } else { narrow };
    Stage { name: "input".to_owned(), kept, forward: bytes + narrow, backward: bytes + narrow, ..Stage::default() }
}

/// A convolution, a norm and gelu: what each gives is kept for the next.
fn convolution(sizes: &Sizes, number: usize, [before, channels]: [u128; 2], taps: u128, computed_again: bool) -> Stage {
    let (state, input) = (sizes.state(channels), sizes.state(before));
    let weights = taps + 3 * channels;
    let narrowed = sizes.narrowed(weights);
    let inside = 3 * state + narrowed;
    // cuDNN turns in- and output around, channels last.
    let turned = state + input;
    let convolving = state + input + turned + narrowed + sizes.new_gradients(weights);
    // Both gradients of gelu beside what it and the norm took; those of the convolution.
    let backward = (4 * state + narrowed).max(convolving);
    let stage = Stage {
        name: format!("convolution {number}"),
        kept: inside,
        forward: inside.max(state + turned),
        backward,
        gradients: weights * sizes.work.weight(),
        logits: 0,
    };
    if !computed_again {
        return stage;
    }
    // What it gave is there a second time.
    Stage { kept: state, backward: backward + state, ..stage }
}

/// Of each sample once.
fn head(sizes: &Sizes, classes: u128) -> Stage {
    let (width, state) = (sizes.width, sizes.state(sizes.width));
    let rows = sizes.work.batch * 2 * width * sizes.work.compute();
    Stage {
        name: "head".to_owned(),
        kept: rows,
        forward: rows + state,
        backward: rows + 2 * state,
        gradients: width / 2 * (width + classes) * sizes.work.weight(),
        logits: 0,
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::json;

    use super::*;

    fn kept(norm: &str, batch: u128, checkpointing: bool) -> u128 {
        let config = json!({"input_features": 8, "num_classes": 3, "conv_channels": [2048, 2048], "norm": norm});
        let config = HybridConfig::read(config.as_object().unwrap()).unwrap();
        let work = Work {
            precision: Precision::Bf16,
            optimizer: OptimizerKind::Adamw,
            checkpointing,
            batch,
            accum: 1,
            ranks: 1,
            sharded: false,
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
