//! The memory of the passes of a training step: convolutions with their batch norms, one after the other. Nothing is recomputed.

use super::{ConvNorm, ResNetConfig, ResidualLayer};
use crate::estimate::{Stage, StepMemory, Work};

/// Pictures are scaled to this size where the config names none.
const IMAGE_SIZE: i64 = 224;

/// Bytes of a pixel, and of the place of a maximum.
const FLOAT: u128 = 4;
const PLACE: u128 = 8;

impl StepMemory for ResNetConfig {
    /// The estimate is of what is needed: where there is room, cuDNN may take more.
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let first = Convolution::of(&self.embedder(), self.image_size.unwrap_or(IMAGE_SIZE), work);
        let mut picture = Picture { channels: self.embedding_size, size: after(first.size, 2) };
        let mut stages = vec![first.with_maximum(bytes(picture, work), work)];
        for (number, layer) in self.layers().iter().enumerate() {
            picture = layer_stages(number, layer, picture, work, &mut stages);
        }
        stages.push(head(picture, self.labels.count() as u128, work));
        stages
    }
}

/// Channels, and both height and width.
#[derive(Clone, Copy)]
struct Picture {
    channels: i64,
    size: i64,
}

/// The bytes of such a picture for each sample, as products take them.
fn bytes(Picture { channels, size }: Picture, work: &Work) -> u128 {
    work.batch * (channels * size * size) as u128 * work.compute()
}

/// Height and width after a convolution with half of its kernel as padding.
fn after(size: i64, stride: i64) -> i64 {
    (size - 1) / stride + 1
}

/// Adds the stages of a residual layer, and gives what comes out of it.
fn layer_stages(number: usize, layer: &ResidualLayer, input: Picture, work: &Work, stages: &mut Vec<Stage>) -> Picture {
    let mut size = input.size;
    let inside: Vec<Convolution> = layer
        .convolutions
        .iter()
        .map(|convolution| {
            let convolution = Convolution::of(convolution, size, work);
            size = convolution.size;
            convolution
        })
        .collect();
    let shortcut = layer.shortcut.as_ref().map(|shortcut| Convolution::of(shortcut, input.size, work));
    let channels = layer.convolutions.last().map_or(input.channels, |last| last.channels[1]);
    let output = Picture { channels, size };
    for (place, convolution) in inside.iter().enumerate() {
        let name = format!("convolution {place} of layer {number}");
        // The gradient of the input, which the shortcut has given, waits for that of the convolutions.
        stages.push(convolution.stage(name, place + 1 == inside.len(), bytes(input, work)));
    }
    stages.push(sum(format!("sum of layer {number}"), bytes(output, work), shortcut));
    output
}

/// A convolution and its norm, in bytes.
#[derive(Clone, Copy)]
struct Convolution {
    input: u128,
    output: u128,
    /// Height and width of what comes out.
    size: i64,
    /// The copy of its weights that products take, where they are narrower.
    narrowed: u128,
    gradients: u128,
    /// Gradients of its weights beside those of earlier passes.
    new_gradients: u128,
}

impl Convolution {
    fn of(ConvNorm { channels: [from, to], kernel, stride, .. }: &ConvNorm, size: i64, work: &Work) -> Self {
        let weights = (from * to * kernel * kernel) as u128;
        let after = after(size, *stride);
        Self {
            input: bytes(Picture { channels: *from, size }, work),
            output: bytes(Picture { channels: *to, size: after }, work),
            size: after,
            narrowed: work.narrow_copy(weights),
            gradients: (weights + 2 * *to as u128) * work.weight(),
            new_gradients: work.beside(weights * work.weight()),
        }
    }

    /// cuDNN holds what goes in and what comes out a second time, channels last.
    fn turned(&self) -> u128 {
        self.input + self.output
    }

    /// The gradients of both, made from that of the norm.
    fn convolving_back(&self) -> u128 {
        self.output + self.input + self.turned() + self.new_gradients
    }

    /// With relu, unless it is the last of its layer. `waiting` is held while gradients are computed.
    fn stage(&self, name: String, is_last: bool, waiting: u128) -> Stage {
        let Self { output, narrowed, .. } = *self;
        let kept = if is_last { output } else { 2 * output };
        Stage {
            name,
            kept: kept + narrowed,
            forward: narrowed + (output + self.turned()).max(kept + output),
            // Both gradients of relu or of the norm, beside what these took and gave.
            backward: waiting + narrowed + (kept + 2 * output).max(self.convolving_back()),
            gradients: self.gradients,
            logits: 0,
        }
    }

    /// The first one, with relu and the maximum of each 3 x 3, `pooled` bytes. Pixels have no gradient.
    fn with_maximum(&self, pooled: u128, work: &Work) -> Stage {
        let Self { input, output, narrowed, .. } = *self;
        let pixels = input / work.compute() * FLOAT;
        let narrow_pixels = if work.compute() < FLOAT { input } else { 0 };
        let places = pooled / work.compute() * PLACE;
        let taken = pixels + narrow_pixels + narrowed;
        let kept = taken + 2 * output + pooled + places;
        Stage {
            name: "the first convolution".to_owned(),
            kept,
            forward: kept.max(taken + output + self.turned()),
            backward: (kept + pooled + output).max(taken + output + self.turned() + self.new_gradients),
            gradients: self.gradients,
            logits: 0,
        }
    }
}

/// The sum of what the convolutions and the shortcut give, with relu.
fn sum(name: String, output: u128, shortcut: Option<Convolution>) -> Stage {
    let Some(shortcut) = shortcut else {
        return Stage { name, kept: output, forward: 2 * output, backward: 3 * output, ..Stage::default() };
    };
    let narrowed = shortcut.narrowed;
    Stage {
        name,
        kept: 2 * output + narrowed,
        forward: narrowed + (2 * output + shortcut.turned()).max(4 * output),
        // The gradient of the sum waits for the convolutions.
        backward: narrowed + (4 * output).max(output + shortcut.convolving_back()),
        gradients: shortcut.gradients,
        logits: 0,
    }
}

/// The mean of each channel, in fp32, and the classes.
fn head(input: Picture, classes: u128, work: &Work) -> Stage {
    let state = bytes(input, work);
    let wide = if work.compute() < FLOAT { state / work.compute() * FLOAT } else { 0 };
    let weights = (input.channels as u128 + 1) * classes;
    Stage { name: "head".to_owned(), backward: state + wide, gradients: weights * work.weight(), ..Stage::default() }
}
