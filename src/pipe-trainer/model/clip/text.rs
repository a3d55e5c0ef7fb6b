//! The tower that reads texts. A text stands for itself by its end token, which sees all of it.

use pipe_model::clip::TextConfig;
use tch::{Kind, Tensor};

use super::encoder::Encoder;
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::attention::key_lengths;
use crate::model::layers::LayerNorm;
use crate::model::pass::Pass;
use crate::model::weights::{SharedTensor, Weights};
use crate::precision::hidden_score;

pub struct TextTower {
    token_embedding: SharedTensor,
    position_embedding: SharedTensor,
    encoder: Encoder,
    final_layer_norm: LayerNorm,
    eos_token_id: Option<i64>,
    head_width: i64,
}

impl TextTower {
    pub fn new(config: &TextConfig, weights: &Weights, first: u64) -> Self {
        let of = |name: &str| format!("text_model.{name}");
        Self {
            token_embedding: weights.get(&of("embeddings.token_embedding.weight")),
            position_embedding: weights.get(&of("embeddings.position_embedding.weight")),
            encoder: Encoder::new(&config.tower, weights, &of("encoder"), true, first),
            final_layer_norm: LayerNorm::new(weights, &of("final_layer_norm"), config.tower.layer_norm_eps),
            eos_token_id: config.end(),
            head_width: config.tower.head_width(),
        }
    }

    /// [samples, hidden_size]. Without a mask the padding is behind each text, where causal attention never looks.
    pub fn forward(&self, part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
        let input_ids = part.get("input_ids")?;
        let length = self.length(input_ids)?;
        let input_ids = input_ids.f_narrow(1, 0, length)?;
        let mask = match (key_lengths(part, pass.compute, self.head_width), part.find("attention_mask")) {
            (Some(lengths), _) => Some(lengths.shallow_clone()),
            (None, Some(mask)) => Some(causal_mask(&mask.f_narrow(1, 0, length)?, pass.compute)?),
            (None, None) => None,
        };
        let tokens = Tensor::f_embedding(&self.token_embedding, &input_ids, -1, false, false)?;
        let hidden = tokens.f_add(&self.position_embedding.f_narrow(0, 0, length)?)?;
        let hidden = self.encoder.forward(&hidden, mask.as_ref(), pass)?;
        // A norm is of each position alone, so only those that are used are normed.
        self.final_layer_norm.forward(&self.ends(&hidden, &input_ids)?)
    }

    /// On a card rows may be padded to a round length, beyond the last position; behind that is only padding.
    fn length(&self, input_ids: &Tensor) -> Result<i64, TrainerError> {
        let (length, positions) = (input_ids.size2()?.1, self.position_embedding.size()[0]);
        Ok(if input_ids.device().is_cuda() { length.min(positions) } else { length })
    }

    /// [samples, hidden_size] of [samples, length, hidden_size]: the position of each end token.
    fn ends(&self, hidden: &Tensor, input_ids: &Tensor) -> Result<Tensor, TrainerError> {
        let (samples, length, width) = hidden.size3()?;
        // The first of equals, so padding with the end token does no harm.
        let positions = match self.eos_token_id {
            Some(token) => input_ids.f_eq(token)?.f_to_kind(Kind::Int)?.f_argmax(1, false)?,
            None => input_ids.f_argmax(1, false)?,
        };
        let starts = Tensor::f_arange(samples, (Kind::Int64, hidden.device()))?.f_mul_scalar(length)?;
        Ok(hidden.f_reshape([-1, width])?.f_index_select(0, &starts.f_add(&positions)?)?)
    }
}

/// [samples, 1, length, length]: no position sees a later one, nor one without a token.
fn causal_mask(attention_mask: &Tensor, kind: Kind) -> Result<Tensor, TrainerError> {
    let (samples, length) = attention_mask.size2()?;
    let later = Tensor::f_ones([length, length], (Kind::Bool, attention_mask.device()))?.f_triu(1)?;
    let hidden = attention_mask.f_eq(0)?.f_view([samples, 1, 1, length])?.f_logical_or(&later)?;
    let zeros = Tensor::f_zeros([samples, 1, length, length], (kind, attention_mask.device()))?;
    Ok(zeros.f_masked_fill(&hidden, hidden_score(kind))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_positions_and_padding_are_hidden_once() {
        let mask = causal_mask(&Tensor::from_slice(&[0i64, 1, 1]).unsqueeze(0), Kind::Float).unwrap();
        let no = f32::MIN;
        let want = [no, no, no, no, 0.0, no, no, 0.0, 0.0];
        assert_eq!(Vec::<f32>::try_from(mask.reshape([-1])).unwrap(), want);
    }
}
