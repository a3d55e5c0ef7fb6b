//! What the passes of a training step hold.

use super::layer::Layers;
use super::{ClipConfig, TextConfig, VisionConfig};
use crate::memory::{Stage, Work};

/// Of embeddings, logits and the pictures that come in.
const FLOAT: u128 = 4;

/// In the order of the forward pass.
pub fn stages(config: &ClipConfig, work: &Work) -> Vec<Stage> {
    let ClipConfig { text_config: text, vision_config: vision, .. } = config;
    let texts = Layers::of(&text.tower, work, work.source.min(text.max_position_embeddings as u128), work.padded);
    let pictures = Layers::of(&vision.tower, work, vision.positions() as u128, false);
    let mut stages = vec![input(vision, &texts, work)];
    stages.extend((work.accum > 1).then(|| loss(config, work)));
    stages.push(patches(vision, &pictures, work));
    stages.extend(pictures.stages("vision"));
    stages.push(projection("visual projection", config, &pictures));
    stages.push(words(text, &texts, work));
    stages.extend(texts.stages("text"));
    stages.push(projection("text projection", config, &texts));
    stages.extend((work.accum == 1).then(|| loss(config, work)));
    stages
}

/// Pictures, tokens and their mask.
fn input(vision: &VisionConfig, texts: &Layers, work: &Work) -> Stage {
    let bytes = FLOAT * pixels(vision, work) + 2 * 8 * texts.tokens;
    Stage { name: "input".to_owned(), kept: bytes, forward: bytes, backward: bytes, ..Stage::default() }
}

fn pixels(vision: &VisionConfig, work: &Work) -> u128 {
    work.batch * (vision.num_channels * vision.image_size.pow(2)) as u128
}

/// The convolution keeps narrow pictures and weights, the norm what it normed.
fn patches(vision: &VisionConfig, layers: &Layers, work: &Work) -> Stage {
    let filter = vision.tower.hidden_size * vision.num_channels * vision.patch_size.pow(2);
    let narrow_pixels = if work.compute() < FLOAT { pixels(vision, work) * work.compute() } else { 0 };
    let narrow_filter = if work.mixed() { filter as u128 * work.compute() } else { 0 };
    let kept = narrow_pixels + narrow_filter + layers.residual() + FLOAT * layers.tokens;
    let added = filter + vision.tower.hidden_size * (vision.positions() + 1);
    let gradients = added as u128 * work.weight();
    Stage {
        name: "patches".to_owned(),
        kept,
        forward: kept + 3 * layers.residual(),
        backward: kept + 3 * layers.residual() + layers.new_gradients(gradients),
        gradients,
        logits: 0,
    }
}

/// Nothing is kept of tokens but the mask that is made of them.
fn words(text: &TextConfig, layers: &Layers, work: &Work) -> Stage {
    let gradients = ((text.vocab_size + text.max_position_embeddings) * text.tower.hidden_size) as u128 * work.weight();
    let kept = layers.mask();
    Stage {
        name: "words".to_owned(),
        kept,
        forward: 2 * kept + 2 * layers.residual(),
        backward: kept + layers.residual() + layers.new_gradients(gradients),
        gradients,
        logits: 0,
    }
}

/// Of one position of each sample.
fn projection(name: &str, config: &ClipConfig, layers: &Layers) -> Stage {
    let width = config.projection_dim as u128;
    let rows = layers.batch * (3 * layers.width + 3 * width) * FLOAT;
    Stage {
        name: name.to_owned(),
        kept: rows,
        forward: rows + layers.residual(),
        backward: rows + layers.residual(),
        gradients: width * layers.width * layers.weight,
        logits: 0,
    }
}

/// Over all samples of a step: in several parts the gradients by embedding stay until each part's turn comes.
fn loss(config: &ClipConfig, work: &Work) -> Stage {
    let samples = work.batch * work.accum;
    let embeddings = 2 * samples * config.projection_dim as u128 * FLOAT;
    let logits = samples * samples * FLOAT;
    // The product, and its log-softmax by rows and by columns.
    let saved = 3 * logits;
    let kept = if work.accum > 1 { embeddings } else { embeddings + saved };
    // Going forward the scaled product and its transpose, going back the gradients of these.
    let most = 2 * embeddings + saved + 3 * logits;
    let backward = if work.accum > 1 { kept } else { most };
    Stage { name: "loss".to_owned(), kept, forward: most, backward, gradients: 0, logits: saved + 3 * logits }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::Map;

    use super::*;

    fn kept(change: impl FnOnce(&mut Work)) -> u128 {
        let mut work = Work {
            precision: Precision::Bf16,
            optimizer: OptimizerKind::Adamw,
            checkpointing: false,
            batch: 64,
            accum: 1,
            ranks: 1,
            sharded: false,
            source: 77,
            target: 0,
            padded: true,
            drops: false,
        };
        change(&mut work);
        stages(&ClipConfig::read(&Map::new()).unwrap(), &work).iter().map(|stage| stage.kept).sum()
    }

    #[test]
    fn samples_count_and_checkpointing_keeps_one_state_a_layer() {
        let whole = kept(|_| ());
        assert!(kept(|work| work.batch = 128).abs_diff(2 * whole) < whole / 100);
        assert!(kept(|work| work.checkpointing = true) < whole / 5);
    }

    #[test]
    fn texts_are_no_longer_than_there_are_positions() {
        assert_eq!(kept(|work| work.source = 128), kept(|_| ()));
    }
}
