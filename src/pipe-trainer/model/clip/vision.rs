//! The tower that sees pictures, cut into patches. A picture stands for itself by a class token that sees all patches.

use pipe_model::clip::VisionConfig;
use tch::Tensor;

use super::encoder::Encoder;
use crate::error::TrainerError;
use crate::model::layers::LayerNorm;
use crate::model::pass::Pass;
use crate::model::weights::{SharedTensor, Weights};

pub struct VisionTower {
    class_embedding: SharedTensor,
    patch_embedding: SharedTensor,
    position_embedding: SharedTensor,
    pre_layrnorm: LayerNorm,
    encoder: Encoder,
    post_layernorm: LayerNorm,
    patch_size: i64,
}

impl VisionTower {
    pub fn new(config: &VisionConfig, weights: &Weights, first: u64) -> Self {
        let of = |name: &str| format!("vision_model.{name}");
        let norm = |name: &str| LayerNorm::new(weights, &of(name), config.tower.layer_norm_eps);
        Self {
            class_embedding: weights.get(&of("embeddings.class_embedding")),
            patch_embedding: weights.get(&of("embeddings.patch_embedding.weight")),
            position_embedding: weights.get(&of("embeddings.position_embedding.weight")),
            pre_layrnorm: norm("pre_layrnorm"),
            encoder: Encoder::new(&config.tower, weights, &of("encoder"), false, first),
            post_layernorm: norm("post_layernorm"),
            patch_size: config.patch_size,
        }
    }

    /// [samples, hidden_size] of [samples, channels, height, width]
    pub fn forward(&self, pixel_values: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let patches = self.patches(pixel_values, pass)?;
        let (samples, _, width) = patches.size3()?;
        let class = self.class_embedding.f_expand([samples, 1, width], false)?;
        let hidden = Tensor::f_cat(&[class, patches], 1)?.f_add(&self.position_embedding)?;
        let hidden = self.encoder.forward(&self.pre_layrnorm.forward(&hidden)?, None, pass)?;
        self.post_layernorm.forward(&hidden.f_select(1, 0)?)
    }

    /// [samples, patches, hidden_size], in the kind of the weights.
    fn patches(&self, pixel_values: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let (pixels, weight) = (pixel_values.f_to_kind(pass.compute)?, self.patch_embedding.f_to_kind(pass.compute)?);
        let stride = [self.patch_size; 2];
        let patches = pixels.f_conv2d(&weight, None::<&Tensor>, stride, [0, 0], [1, 1], 1)?;
        Ok(patches.f_flatten(2, 3)?.f_transpose(1, 2)?.f_to_kind(self.class_embedding.kind())?)
    }
}
