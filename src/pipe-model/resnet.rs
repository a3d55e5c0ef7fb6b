//! ResNet: config.json with keys and defaults as in Hugging Face's `ResNetConfig`, parameters with names, shapes and initialisation as in
//! its `ResNetForImageClassification`, and the memory of a step. Its convolutions come one after the other, and nothing is recomputed.

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{Architecture, ModelConfig, ModelSize, Starter, StarterSizes, StarterTraining, joined};
use crate::config_keys::{Activation, ConfigError, ConfigKeys, extended, fail};
use crate::estimate::{Stage, StepMemory, Work};
use crate::parameter::{Init, Listed, Parameter};
use crate::task_data::{Labels, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct ResNetConfig {
    pub num_channels: i64,
    /// Channels of the first convolution.
    pub embedding_size: i64,
    /// Channels of each stage, and how many layers it has.
    pub hidden_sizes: Vec<i64>,
    pub depths: Vec<i64>,
    pub layer_type: LayerType,
    pub hidden_act: Activation,
    pub downsample_in_first_stage: bool,
    pub downsample_in_bottleneck: bool,
    /// Height and width of a picture. transformers has no such key: it takes any size.
    pub image_size: Option<i64>,
    pub labels: Labels,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerType {
    /// Two convolutions of 3 x 3.
    Basic,
    /// One of 3 x 3 between two of 1 x 1, with a quarter of the channels.
    Bottleneck,
}

/// The layers of a stage have this many times the channels of their narrow convolutions.
const REDUCTION: i64 = 4;

/// A convolution, with half of its kernel as padding, and the batch norm after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvNorm {
    /// Where its parameters `convolution` and `normalization` are.
    pub path: String,
    pub channels: [i64; 2],
    pub kernel: i64,
    pub stride: i64,
}

/// A residual layer: convolutions one after the other, and what the input goes through before it is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidualLayer {
    pub convolutions: Vec<ConvNorm>,
    pub shortcut: Option<ConvNorm>,
}

impl ResNetConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let config = Self {
            num_channels: keys.size("num_channels")?.unwrap_or(3),
            embedding_size: keys.size("embedding_size")?.unwrap_or(64),
            hidden_sizes: keys.sizes("hidden_sizes")?.unwrap_or_else(|| vec![256, 512, 1024, 2048]),
            depths: keys.sizes("depths")?.unwrap_or_else(|| vec![3, 4, 6, 3]),
            layer_type: match keys.text("layer_type")? {
                None | Some("bottleneck") => LayerType::Bottleneck,
                Some("basic") => LayerType::Basic,
                Some(other) => {
                    return Err(fail("layer_type", format!("found {other:?}; allowed: basic, bottleneck")));
                }
            },
            hidden_act: Activation::parse("hidden_act", keys.text("hidden_act")?.unwrap_or("relu"))?,
            downsample_in_first_stage: keys.truth("downsample_in_first_stage")?.unwrap_or(false),
            downsample_in_bottleneck: keys.truth("downsample_in_bottleneck")?.unwrap_or(false),
            image_size: keys.size("image_size")?,
            labels: Labels::read(given)?.unwrap_or_default(),
            given: given.clone(),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.hidden_sizes.is_empty() || self.depths.len() != self.hidden_sizes.len() {
            let message = format!(
                "found {} entries; allowed: one for each of {} hidden_sizes, at least one",
                self.depths.len(),
                self.hidden_sizes.len()
            );
            return Err(fail("depths", message));
        }
        match self.hidden_sizes.iter().find(|size| **size % REDUCTION != 0) {
            Some(size) if self.layer_type == LayerType::Bottleneck => Err(fail(
                "hidden_sizes",
                format!("found {size}; allowed with bottleneck layers: multiples of {REDUCTION}"),
            )),
            _ => Ok(()),
        }
    }

    /// The first convolution, before the maximum of each 3 x 3 is taken.
    pub fn embedder(&self) -> ConvNorm {
        let channels = [self.num_channels, self.embedding_size];
        ConvNorm { path: "resnet.embedder.embedder".to_owned(), channels, kernel: 7, stride: 2 }
    }

    /// The residual layers of all stages.
    pub fn layers(&self) -> Vec<ResidualLayer> {
        let mut layers = Vec::new();
        let mut input = self.embedding_size;
        for (stage, (output, depth)) in self.hidden_sizes.iter().copied().zip(&self.depths).enumerate() {
            for number in 0..*depth {
                let halves = number == 0 && (stage > 0 || self.downsample_in_first_stage);
                let path = format!("resnet.encoder.stages.{stage}.layers.{number}");
                layers.push(self.layer(&path, [input, output], if halves { 2 } else { 1 }));
                input = output;
            }
        }
        layers
    }

    fn layer(&self, path: &str, [input, output]: [i64; 2], stride: i64) -> ResidualLayer {
        let narrow = output / REDUCTION;
        let (first, second) = if self.downsample_in_bottleneck { (stride, 1) } else { (1, stride) };
        // Channels, kernel and stride.
        let convolutions = match self.layer_type {
            LayerType::Basic => vec![([input, output], 3, stride), ([output, output], 3, 1)],
            LayerType::Bottleneck => {
                vec![([input, narrow], 1, first), ([narrow, narrow], 3, second), ([narrow, output], 1, 1)]
            }
        };
        let convolution = |(number, (channels, kernel, stride)): (usize, ([i64; 2], i64, i64))| ConvNorm {
            path: format!("{path}.layer.{number}"),
            channels,
            kernel,
            stride,
        };
        let shortcut = || ConvNorm { path: format!("{path}.shortcut"), channels: [input, output], kernel: 1, stride };
        ResidualLayer {
            convolutions: convolutions.into_iter().enumerate().map(convolution).collect(),
            shortcut: (input != output || stride != 1).then(shortcut),
        }
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "architectures": ["ResNetForImageClassification"],
            "model_type": "resnet",
            "num_channels": self.num_channels,
            "embedding_size": self.embedding_size,
            "hidden_sizes": self.hidden_sizes,
            "depths": self.depths,
            "layer_type": match self.layer_type {
                LayerType::Basic => "basic",
                LayerType::Bottleneck => "bottleneck",
            },
            "hidden_act": self.given.get("hidden_act").filter(|name| !name.is_null()).cloned().unwrap_or(json!("relu")),
            "downsample_in_first_stage": self.downsample_in_first_stage,
            "downsample_in_bottleneck": self.downsample_in_bottleneck,
        });
        let mut config = extended(&self.given, filled);
        self.labels.export(&mut config);
        config
    }
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(ResNetConfig::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 5.0e-4, epochs: 5, steps: 200 },
        scratch: StarterTraining { lr: 2.0e-3, epochs: 10, steps: 300 },
        base_lr: 1.0e-3,
        effective_batch: 32,
        schedule: "cosine",
        hub: Some("microsoft/resnet-50"),
        vocabulary: 0,
        config,
    },
    tokenization: None,
    in_transformers: true,
    generation_keys: &[],
    adapts: Adaptable::NONE,
};

/// Small pictures lose little by a small size, and learn in minutes on a CPU.
fn config(sizes: &StarterSizes) -> Map<String, Value> {
    let (embedding, hidden, depths, layer, image) = match sizes.model {
        ModelSize::Small => (32, [32, 64, 128, 256], [1, 1, 1, 1], "basic", 64),
        ModelSize::Medium => (64, [64, 128, 256, 512], [2, 2, 2, 2], "basic", 128),
        ModelSize::Base => (64, [256, 512, 1024, 2048], [3, 4, 6, 3], "bottleneck", 224),
    };
    joined([json!({
        "embedding_size": embedding, "hidden_sizes": hidden, "depths": depths, "layer_type": layer, "image_size": image,
    })])
}

impl ModelConfig for ResNetConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, labels: Option<Labels>) -> TaskData {
        TaskData::PictureClasses { num_channels: self.num_channels, image_size: self.image_size, labels }
    }

    fn head(&self) -> Option<&'static str> {
        Some("classifier.1.weight")
    }

    fn drops(&self) -> bool {
        false
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

/// The encoder must be in a checkpoint; the head may be newly initialised. A file of the encoder alone leaves out its prefix.
pub fn parameters(config: &ResNetConfig) -> Vec<Parameter> {
    let mut list = Listed::default();
    conv_norm(&mut list, &config.embedder());
    for ResidualLayer { convolutions, shortcut } in config.layers() {
        shortcut.iter().chain(&convolutions).for_each(|one| conv_norm(&mut list, one));
    }
    for parameter in &mut list.0 {
        parameter.aliases.extend(parameter.name.strip_prefix("resnet.").map(str::to_owned));
    }
    let encoder = list.0.len();
    let width = config.hidden_sizes.last().copied().unwrap_or(config.embedding_size);
    list.torch_linear("classifier.1", config.labels.count(), width);
    list.0[encoder..].iter_mut().for_each(|parameter| parameter.may_be_missing = true);
    list.counts_first()
}

/// Kaiming's normal initialisation by what goes out (He et al., 2015).
fn conv_norm(list: &mut Listed, ConvNorm { path, channels: [input, output], kernel, .. }: &ConvNorm) {
    let std = (2.0 / (output * kernel * kernel) as f64).sqrt();
    list.push(&format!("{path}.convolution.weight"), &[*output, *input, *kernel, *kernel], Init::Normal { std });
    list.batch_norm(&format!("{path}.normalization"), *output);
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<ResNetConfig, ConfigError> {
        ResNetConfig::read(config.as_object().unwrap())
    }

    #[test]
    fn the_published_models_have_their_sizes() {
        let count = |config: Value| {
            let trained = parameters(&read(config).unwrap()).into_iter().filter(|parameter| parameter.trained);
            trained.map(|parameter| parameter.count()).sum::<u64>()
        };
        assert_eq!(count(json!({"num_labels": 1000})), 25_557_032);
        let resnet_18 = json!({
            "num_labels": 1000, "layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512],
        });
        assert_eq!(count(resnet_18), 11_689_512);
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({"depths": [1]}), "depths: found 1 entries; allowed: one for each of 4 hidden_sizes"),
            (json!({"depths": [], "hidden_sizes": []}), "depths: found 0 entries"),
            (json!({"layer_type": "wide"}), "layer_type: found \"wide\"; allowed: basic, bottleneck"),
            (json!({"hidden_sizes": [6], "depths": [1]}), "hidden_sizes: found 6; allowed with bottleneck layers"),
            (json!({"depths": [1, 1, 1, 5000]}), "depths: found 5000; allowed: at most 4096"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_export_reads_back_and_keeps_unknown_keys() {
        let config = read(json!({"layer_type": "basic", "image_size": 64, "num_labels": 3, "mine": 1})).unwrap();
        let exported = config.export();
        assert_eq!((&exported["mine"], &exported["image_size"]), (&json!(1), &json!(64)));
        let again = read(Value::Object(exported)).unwrap();
        assert_eq!(ResNetConfig { given: config.given.clone(), ..again }, config);
    }
}
