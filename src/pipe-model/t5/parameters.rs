//! T5's parameters: names and shapes as in Hugging Face's files, initialised as in its `_init_weights`.

use super::config::T5Config;
use crate::{Init, Parameter};

/// Every parameter in transformers' order. A tied head has no parameter of its own.
pub fn parameters(config: &T5Config, tied: bool) -> Vec<Parameter> {
    let mut list = List { config, parameters: Vec::new() };
    list.normal("shared.weight", [config.vocab_size, config.d_model], 1.0);
    for block in 0..config.num_layers {
        let path = format!("encoder.block.{block}.layer");
        list.attention(&format!("{path}.0"), "SelfAttention", block == 0);
        list.feed_forward(&format!("{path}.1"));
    }
    list.norm("encoder.final_layer_norm.weight");
    for block in 0..config.num_decoder_layers {
        let path = format!("decoder.block.{block}.layer");
        list.attention(&format!("{path}.0"), "SelfAttention", block == 0);
        list.attention(&format!("{path}.1"), "EncDecAttention", false);
        list.feed_forward(&format!("{path}.2"));
    }
    list.norm("decoder.final_layer_norm.weight");
    if !tied {
        list.normal("lm_head.weight", [config.vocab_size, config.d_model], 1.0);
    }
    // A checkpoint without a head of its own has `shared` as its head, whatever its config says.
    list.parameters.iter_mut().for_each(|one| one.may_be_missing = one.name == "lm_head.weight");
    list.parameters
}

struct List<'a> {
    config: &'a T5Config,
    parameters: Vec<Parameter>,
}

impl List<'_> {
    fn attention(&mut self, layer: &str, name: &str, has_bias: bool) {
        let T5Config { d_model, d_kv, num_heads, relative_attention_num_buckets, .. } = *self.config;
        let inner = self.config.inner();
        let path = format!("{layer}.{name}");
        self.normal(&format!("{path}.q.weight"), [inner, d_model], root(d_model * d_kv));
        self.normal(&format!("{path}.k.weight"), [inner, d_model], root(d_model));
        self.normal(&format!("{path}.v.weight"), [inner, d_model], root(d_model));
        self.normal(&format!("{path}.o.weight"), [d_model, inner], root(inner));
        if has_bias {
            let shape = [relative_attention_num_buckets, num_heads];
            self.normal(&format!("{path}.relative_attention_bias.weight"), shape, root(d_model));
        }
        self.norm(&format!("{layer}.layer_norm.weight"));
    }

    fn feed_forward(&mut self, layer: &str) {
        let T5Config { d_model, d_ff, feed_forward, .. } = *self.config;
        let inputs: &[&str] = if feed_forward.gated { &["wi_0", "wi_1"] } else { &["wi"] };
        for input in inputs {
            self.normal(&format!("{layer}.DenseReluDense.{input}.weight"), [d_ff, d_model], root(d_model));
        }
        self.normal(&format!("{layer}.DenseReluDense.wo.weight"), [d_model, d_ff], root(d_ff));
        self.norm(&format!("{layer}.layer_norm.weight"));
    }

    fn norm(&mut self, name: &str) {
        self.push(name, vec![self.config.d_model], Init::Constant(self.config.initializer_factor));
    }

    fn normal(&mut self, name: &str, shape: [i64; 2], std: f64) {
        self.push(name, shape.to_vec(), Init::Normal { std: self.config.initializer_factor * std });
    }

    fn push(&mut self, name: &str, shape: Vec<i64>, init: Init) {
        self.parameters.push(Parameter::new(name, &shape, init));
    }
}

/// size^-0.5
fn root(size: i64) -> f64 {
    (size as f64).powf(-0.5)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flan_t5_xl_has_its_size() {
        let config = json!({
            "d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24, "num_heads": 32, "vocab_size": 32128,
            "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
        });
        let config = T5Config::read(config.as_object().unwrap()).unwrap();
        let count = |tied| parameters(&config, tied).iter().map(|p| p.shape.iter().product::<i64>()).sum::<i64>();
        assert_eq!(count(false), 2_849_757_184);
        assert_eq!(count(false) - count(true), 32128 * 2048);
    }
}
