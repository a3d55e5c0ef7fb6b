//! CLIP: pictures and texts in one space (Radford et al., 2021), as transformers' `CLIPModel` computes it.

mod encoder;
mod text;
mod vision;

use pipe_model::clip::{ClipConfig, parameters};
use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};
use tch::{Kind, Reduction, Tensor};

use self::text::TextTower;
use self::vision::VisionTower;
use super::attention::row_multiple;
use super::interface::{Contrastive, Embeddings, Mode, Model};
use super::layers::Linear;
use super::pass::Pass;
use super::setup::{Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::Part;
use crate::error::TrainerError;

pub fn build(
    _: Arch,
    config: &Map<String, Value>,
    start: &Start<'_>,
    setup: &Setup,
) -> Result<Box<dyn Model>, TrainerError> {
    Ok(Box::new(Clip::build(ClipConfig::read(config)?, start, setup)?))
}

pub struct Clip {
    config: ClipConfig,
    weights: Weights,
    setup: Setup,
    text_model: TextTower,
    text_projection: Linear,
    vision_model: VisionTower,
    visual_projection: Linear,
    logit_scale: SharedTensor,
}

impl Clip {
    pub fn build(config: ClipConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        let text_layers = config.text_config.tower.num_hidden_layers as u64;
        Ok(Self {
            setup: *setup,
            text_model: TextTower::new(&config.text_config, &weights, 0),
            text_projection: Linear::without_bias(&weights, "text_projection"),
            vision_model: VisionTower::new(&config.vision_config, &weights, text_layers),
            visual_projection: Linear::without_bias(&weights, "visual_projection"),
            logit_scale: weights.get("logit_scale"),
            config,
            weights,
        })
    }

    /// A pass through one tower.
    fn pass(&self, mode: Mode, attention_dropout: f64) -> Pass {
        Pass::new(mode, self.setup.dropout.unwrap_or(attention_dropout), &self.setup)
    }

    /// [images, texts]
    fn logits_per_image(&self, all: &Embeddings) -> Result<Tensor, TrainerError> {
        let scale = self.logit_scale.f_to_kind(Kind::Float)?.f_exp()?;
        Ok(all.images.f_matmul(&all.texts.f_transpose(0, 1)?)?.f_mul(&scale)?)
    }
}

impl Model for Clip {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// `logits_per_image`: how well each text fits each picture.
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        self.logits_per_image(&self.embed(part, mode)?)
    }

    /// Of one part: its samples are compared only with each other.
    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let all = self.embed(part, mode)?;
        Ok(self.loss(&all)?.f_mul_scalar(all.images.size()[0])?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn row_multiple(&self) -> usize {
        row_multiple(self.setup.kinds.compute, self.setup.device, self.config.text_config.tower.head_width())
    }

    fn contrastive(&self) -> Option<&dyn Contrastive> {
        Some(self)
    }
}

/// Embeddings are in fp32 in every precision.
impl Contrastive for Clip {
    fn embed_images(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = self.pass(mode, self.config.vision_config.tower.attention_dropout);
        let pooled = self.vision_model.forward(part.get("pixel_values")?, pass)?;
        unit(&self.visual_projection.forward(&pooled, pass)?)
    }

    fn embed_texts(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = self.pass(mode, self.config.text_config.tower.attention_dropout);
        let pooled = self.text_model.forward(part, pass)?;
        unit(&self.text_projection.forward(&pooled, pass)?)
    }

    /// The mean of finding each picture's text and each text's picture.
    fn loss(&self, all: &Embeddings) -> Result<Tensor, TrainerError> {
        let logits = self.logits_per_image(all)?;
        let own = Tensor::f_arange(logits.size()[0], (Kind::Int64, logits.device()))?;
        let find = |logits: &Tensor| logits.f_cross_entropy_loss(&own, None::<&Tensor>, Reduction::Mean, -100, 0.0);
        Ok(find(&logits)?.f_add(&find(&logits.f_transpose(0, 1)?)?)?.f_div_scalar(2.0)?)
    }
}

/// Each row at length 1, in fp32.
fn unit(embeds: &Tensor) -> Result<Tensor, TrainerError> {
    let embeds = embeds.f_to_kind(Kind::Float)?;
    Ok(embeds.f_div(&embeds.f_norm_scalaropt_dim(2, [-1i64], true)?)?)
}
