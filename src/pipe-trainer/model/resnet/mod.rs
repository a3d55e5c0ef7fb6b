//! ResNet (He et al., 2016): a class for a picture, as transformers' `ResNetForImageClassification` computes it.

use pipe_model::Activation;
use pipe_model::resnet::{ConvNorm, ResNetConfig, ResidualLayer, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::batch_norm::{BatchNorm, DEPENDS_ON_BATCH};
use super::classification;
use super::interface::Model;
use super::layers::{Linear, activate};
use super::pass::{Mode, Pass, Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::Part;
use crate::error::TrainerError;
use crate::ranks::SharedSum;

pub struct ResNet {
    config: ResNetConfig,
    weights: Weights,
    setup: Setup,
    embedder: Convolution,
    layers: Vec<Layer>,
    classifier: Linear,
}

impl ResNet {
    pub fn build(config: ResNetConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        Ok(Self {
            setup: *setup,
            embedder: Convolution::new(&config.embedder(), &weights),
            layers: config.layers().iter().map(|layer| Layer::new(layer, &weights)).collect(),
            classifier: Linear::new(&weights, "classifier.1"),
            config,
            weights,
        })
    }

    fn convolutions(&self) -> impl Iterator<Item = &Convolution> {
        let inside = self.layers.iter().flat_map(|layer| layer.convolutions.iter().chain(&layer.shortcut));
        std::iter::once(&self.embedder).chain(inside)
    }
}

impl Model for ResNet {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, classes]. Batch norm must see each batch once: nothing is recomputed.
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let (pass, training) = (Pass::quiet(self.setup.kinds.compute), matches!(mode, Mode::Train(_)));
        let hidden_act = self.config.hidden_act;
        let pixels = part.get("pixel_values")?;
        // The output of the norm is the largest of all: nothing holds it any longer than relu needs it.
        let mut hidden = activate(hidden_act, &self.embedder.forward(pixels, training, pass)?)?;
        hidden = hidden.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)?;
        for layer in &self.layers {
            hidden = activate(hidden_act, &layer.forward(&hidden, training, pass)?)?;
        }
        let pooled = hidden.f_mean_dim([2i64, 3].as_slice(), false, Kind::Float)?;
        self.classifier.forward(&pooled, pass)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        classification::part_loss_sum(&self.logits(part, mode)?, part)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn depends_on_batch(&self) -> Option<&'static str> {
        Some(DEPENDS_ON_BATCH)
    }

    fn share_statistics(&self, sum: &'static SharedSum) {
        self.convolutions().for_each(|convolution| convolution.normalization.share_statistics(sum));
    }

    fn step_ended(&self, done: bool) -> Result<(), TrainerError> {
        self.convolutions().try_for_each(|convolution| convolution.normalization.step_ended(done))
    }
}

/// A convolution without bias, and the batch norm after it.
struct Convolution {
    weight: SharedTensor,
    normalization: BatchNorm,
    stride: i64,
    padding: i64,
}

impl Convolution {
    fn new(ConvNorm { path, kernel, stride, .. }: &ConvNorm, weights: &Weights) -> Self {
        Self {
            weight: weights.get(&format!("{path}.convolution.weight")),
            normalization: BatchNorm::new(weights, &format!("{path}.normalization")),
            stride: *stride,
            padding: kernel / 2,
        }
    }

    /// [batch, channels, height, width]
    fn forward(&self, input: &Tensor, training: bool, pass: Pass) -> Result<Tensor, TrainerError> {
        let (input, weight) = (input.f_to_kind(pass.compute)?, self.weight.f_to_kind(pass.compute)?);
        let (stride, padding) = ([self.stride; 2], [self.padding; 2]);
        let convolved = input.f_conv2d(&weight, None::<&Tensor>, stride, padding, [1, 1], 1)?;
        self.normalization.forward(&convolved, training)
    }
}

struct Layer {
    convolutions: Vec<Convolution>,
    shortcut: Option<Convolution>,
}

impl Layer {
    fn new(ResidualLayer { convolutions, shortcut }: &ResidualLayer, weights: &Weights) -> Self {
        let new = |convolution: &ConvNorm| Convolution::new(convolution, weights);
        Self { convolutions: convolutions.iter().map(new).collect(), shortcut: shortcut.as_ref().map(new) }
    }

    /// The sum, before its activation. Between the convolutions it is always relu.
    fn forward(&self, input: &Tensor, training: bool, pass: Pass) -> Result<Tensor, TrainerError> {
        let mut hidden = input.shallow_clone();
        for (number, convolution) in self.convolutions.iter().enumerate() {
            if number > 0 {
                hidden = activate(Activation::Relu, &hidden)?;
            }
            hidden = convolution.forward(&hidden, training, pass)?;
        }
        match &self.shortcut {
            Some(shortcut) => Ok(hidden.f_add(&shortcut.forward(input, training, pass)?)?),
            None => Ok(hidden.f_add(input)?),
        }
    }
}
