//! The parameters of BERT and RoBERTa: names and shapes as in Hugging Face's files, beginnings as in its `_init_weights`.

use super::config::{BertConfig, Family};
use crate::{Init, Parameter};

/// Every parameter in transformers' order. The encoder must be in a checkpoint; the head may be newly initialised.
pub fn parameters(config: &BertConfig) -> Vec<Parameter> {
    let BertConfig { hidden_size, intermediate_size, .. } = *config;
    let prefix = config.prefix();
    let mut list = List { config, parameters: Vec::new() };
    for (name, rows) in [
        ("word_embeddings", config.vocab_size),
        ("position_embeddings", config.max_position_embeddings),
        ("token_type_embeddings", config.type_vocab_size),
    ] {
        list.weight(&format!("{prefix}.embeddings.{name}.weight"), [rows, hidden_size]);
    }
    list.norm(&format!("{prefix}.embeddings.LayerNorm"));
    for layer in 0..config.num_hidden_layers {
        let path = format!("{prefix}.encoder.layer.{layer}");
        for name in ["query", "key", "value"] {
            list.linear(&format!("{path}.attention.self.{name}"), hidden_size, hidden_size);
        }
        list.linear(&format!("{path}.attention.output.dense"), hidden_size, hidden_size);
        list.norm(&format!("{path}.attention.output.LayerNorm"));
        list.linear(&format!("{path}.intermediate.dense"), intermediate_size, hidden_size);
        list.linear(&format!("{path}.output.dense"), hidden_size, intermediate_size);
        list.norm(&format!("{path}.output.LayerNorm"));
    }
    let encoder = list.parameters.len();
    let labels = config.labels.count();
    match config.family {
        Family::Bert => {
            list.linear("bert.pooler.dense", hidden_size, hidden_size);
            list.linear("classifier", labels, hidden_size);
        }
        Family::Roberta | Family::XlmRoberta => {
            list.linear("classifier.dense", hidden_size, hidden_size);
            list.linear("classifier.out_proj", labels, hidden_size);
        }
    }
    for (index, parameter) in list.parameters.iter_mut().enumerate() {
        parameter.may_be_missing = index >= encoder;
        parameter.aliases = aliases(prefix, &parameter.name);
    }
    list.parameters
}

/// A file of the encoder alone leaves out the prefix, and the first files called the parts of a norm gamma and beta.
fn aliases(prefix: &str, name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    if let Some(bare) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')) {
        names.push(bare.to_owned());
    }
    for (new, old) in [("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")] {
        let older: Vec<String> =
            names.iter().filter_map(|name| name.strip_suffix(new)).map(|path| format!("{path}{old}")).collect();
        names.extend(older);
    }
    names.split_off(1)
}

struct List<'a> {
    config: &'a BertConfig,
    parameters: Vec<Parameter>,
}

impl List<'_> {
    fn linear(&mut self, path: &str, outputs: i64, inputs: i64) {
        self.weight(&format!("{path}.weight"), [outputs, inputs]);
        self.constant(&format!("{path}.bias"), outputs, 0.0);
    }

    fn norm(&mut self, path: &str) {
        self.constant(&format!("{path}.weight"), self.config.hidden_size, 1.0);
        self.constant(&format!("{path}.bias"), self.config.hidden_size, 0.0);
    }

    fn weight(&mut self, name: &str, shape: [i64; 2]) {
        let init = Init::Normal { std: self.config.initializer_range };
        self.parameters.push(Parameter::new(name, &shape, init));
    }

    fn constant(&mut self, name: &str, size: i64, value: f64) {
        self.parameters.push(Parameter::new(name, &[size], Init::Constant(value)));
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Arch;
    use serde_json::{Value, json};

    use super::*;

    fn count(arch: Arch, config: Value) -> i64 {
        let config = BertConfig::read(arch, config.as_object().unwrap()).unwrap();
        parameters(&config).iter().map(|parameter| parameter.shape.iter().product::<i64>()).sum()
    }

    #[test]
    fn known_models_have_their_sizes() {
        let large =
            json!({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096});
        let roberta = json!({"max_position_embeddings": 514, "type_vocab_size": 1});
        let xlm = json!({"max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 250_002});
        assert_eq!(count(Arch::Bert, json!({})), 109_483_778);
        assert_eq!(count(Arch::Bert, large), 335_143_938);
        assert_eq!(count(Arch::Roberta, roberta), 124_647_170);
        assert_eq!(count(Arch::XlmRoberta, xlm), 278_045_186);
    }

    #[test]
    fn older_names_are_known() {
        assert_eq!(aliases("bert", "bert.pooler.dense.bias"), ["pooler.dense.bias"]);
        assert_eq!(
            aliases("bert", "bert.embeddings.LayerNorm.weight"),
            ["embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma", "embeddings.LayerNorm.gamma"]
        );
        assert!(aliases("bert", "classifier.bias").is_empty());
    }
}
