//! MU-SOTA: a language model whose layers attend within narrow blocks side by side, and then across all of them.

mod generate;
mod layers;

use std::sync::Arc;

use layers::{Blocks, EPSILON, Layer};
use pipe_model::mu_sota::{MuSotaConfig, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::interface::{Model, TextGenerator};
use super::layers::LayerNorm;
use super::pass::{Mode, Pass};
use super::setup::{Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::{IGNORED, Part, next_tokens};
use crate::error::TrainerError;
use crate::torch;

pub struct MuSota {
    config: MuSotaConfig,
    weights: Weights,
    dropout: f64,
    setup: Setup,
    tok_emb: SharedTensor,
    pos_emb: SharedTensor,
    blocks: Blocks,
    layers: Vec<Arc<Layer>>,
    ln_f: LayerNorm,
}

impl MuSota {
    pub fn build(config: MuSotaConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.dropout),
            setup: *setup,
            tok_emb: weights.get("tok_emb.weight"),
            pos_emb: weights.get("pos_emb.weight"),
            blocks: Blocks::new(&config, &weights),
            layers: (0..config.n_layers).map(|index| Arc::new(Layer::new(&config, &weights, index))).collect(),
            ln_f: LayerNorm::new(&weights, "ln_f", EPSILON),
            config,
            weights,
        })
    }

    /// `ids` [rows, length] behind `before` others.
    fn embed(&self, ids: &Tensor, before: i64) -> Result<Tensor, TrainerError> {
        let length = ids.size2()?.1;
        if before + length > self.config.max_seq_len {
            let message = format!("found {}; a row has {} tokens", self.config.max_seq_len, before + length);
            return Err(TrainerError::config("max_seq_len", message));
        }
        let positions = self.pos_emb.f_narrow(0, before, length)?;
        Ok(Tensor::f_embedding(&self.tok_emb, ids, -1, false, false)?.f_add(&positions)?)
    }

    /// The input of the head: [batch, length, width], in the kind that is computed in.
    fn read(&self, ids: &Tensor, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = Pass::new(mode, self.dropout, &self.setup);
        let mut hidden = pass.for_block(0).drop_out(&self.embed(ids, 0)?)?;
        let projections = self.blocks.projections(pass.compute)?;
        for (number, (layer, projections)) in (1..).zip(self.layers.iter().zip(&projections)) {
            let [qkv, qkv_bias, out] = projections.tensors();
            hidden = pass.block(layer, number, &[&hidden, qkv, qkv_bias, out])?;
        }
        Ok(self.ln_f.forward(&hidden)?.f_to_kind(pass.compute)?)
    }

    fn head(&self) -> Result<Tensor, TrainerError> {
        Ok(self.tok_emb.f_to_kind(self.setup.kinds.compute)?)
    }
}

impl Model for MuSota {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, length, vocab_size]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        Ok(self.read(part.get("ids")?, mode)?.f_linear(&self.head()?, None::<&Tensor>)?)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let ids = part.get("ids")?;
        let hidden = self.read(ids, mode)?.f_reshape([-1, self.config.width()])?;
        let labels = next_tokens(part.get("labels")?, ids.size2()?.1)?.f_reshape([-1])?;
        Ok(torch::linear_cross_entropy(&hidden, &self.head()?, &labels, IGNORED, self.config.loss_rows())?)
    }

    fn targets(&self, part: &Part) -> Result<i64, TrainerError> {
        let labels = next_tokens(part.get("labels")?, part.get("ids")?.size2()?.1)?;
        Ok(labels.f_ne(IGNORED)?.f_sum(Kind::Int64)?.f_int64_value(&[])?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn text_generator(&self) -> Option<&dyn TextGenerator> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tch::Device;

    use super::*;
    use crate::model::Drawn;

    /// The gradient of each parameter, by name.
    fn gradients(checkpointing: bool) -> Vec<(String, Tensor)> {
        let config = json!({
            "vocab_size": 31, "n_layers": 2, "n_blocks": 3, "block_dim": 4, "cross_heads": 3, "ffn_dim": 40, "max_seq_len": 9,
        });
        let config = MuSotaConfig::read(config.as_object().unwrap()).unwrap();
        let setup = Setup { checkpointing, ..Setup::plain() };
        let model = MuSota::build(config, &Start::Random { seed: 1 }, &setup).unwrap();
        let ids = Tensor::arange(18, (Kind::Int64, Device::Cpu)).reshape([2, 9]);
        let part = Part::default().with("labels", ids.shallow_clone()).with("ids", ids);
        model.loss_sum(&part, Mode::Train(Drawn::new(7, 0))).unwrap().backward();
        let names = model.weights.trained().map(|(name, _)| name.to_owned());
        names.zip(model.weights.gradients().unwrap()).collect()
    }

    #[test]
    fn checkpointing_gives_the_same_gradients() {
        for ((name, kept), (_, again)) in gradients(false).iter().zip(gradients(true)) {
            assert!(kept.abs().max().double_value(&[]) > 0.0, "{name} has no gradient");
            assert!(kept.allclose(&again, 1e-5, 1e-7, false), "{name}: {kept} {again}");
        }
    }
}
