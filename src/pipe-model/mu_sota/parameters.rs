//! MU-SOTA's parameters: names and shapes as in its files. Matrices are initialised normally around 0, biases to 0, norms to 1.

use super::config::MuSotaConfig;
use crate::{Init, Parameter};

const STD: f64 = 0.02;

pub fn parameters(config: &MuSotaConfig) -> Vec<Parameter> {
    let MuSotaConfig { vocab_size, n_layers, n_blocks, block_dim, ffn_dim, max_seq_len, .. } = *config;
    let width = config.width();
    let mut list = List::default();
    list.push("tok_emb.weight", &[vocab_size, width], Init::Normal { std: STD });
    list.push("pos_emb.weight", &[max_seq_len, width], Init::Normal { std: STD });
    for layer in 0..n_layers {
        let path = |name: &str| format!("layers.{layer}.{name}");
        list.norm(&path("ln1"), width);
        list.linear(&path("blocks.qkv"), &[n_blocks, 3 * block_dim, block_dim]);
        list.linear(&path("blocks.out"), &[n_blocks, block_dim, block_dim]);
        list.norm(&path("ln2"), width);
        list.linear(&path("cross.qkv"), &[3 * width, width]);
        list.linear(&path("cross.out"), &[width, width]);
        list.norm(&path("ln3"), width);
        list.linear(&path("ffn.fc1"), &[ffn_dim, width]);
        list.linear(&path("ffn.fc2"), &[width, ffn_dim]);
    }
    list.norm("ln_f", width);
    list.0
}

#[derive(Default)]
struct List(Vec<Parameter>);

impl List {
    /// The bias has all dimensions of the weight but the last.
    fn linear(&mut self, path: &str, shape: &[i64]) {
        self.push(&format!("{path}.weight"), shape, Init::Normal { std: STD });
        self.push(&format!("{path}.bias"), &shape[..shape.len() - 1], Init::Constant(0.0));
    }

    fn norm(&mut self, path: &str, width: i64) {
        self.push(&format!("{path}.weight"), &[width], Init::Constant(1.0));
        self.push(&format!("{path}.bias"), &[width], Init::Constant(0.0));
    }

    fn push(&mut self, name: &str, shape: &[i64], init: Init) {
        self.0.push(Parameter::new(name, shape, init));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn the_model_of_its_authors_has_its_size() {
        let parameters = parameters(&MuSotaConfig::read(&Map::new()).unwrap());
        let count: i64 = parameters.iter().map(|parameter| parameter.shape.iter().product::<i64>()).sum();
        assert_eq!(count, 26_873_024);
    }
}
