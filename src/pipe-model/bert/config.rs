//! The config.json of BERT, RoBERTa and XLM-RoBERTa: keys and defaults as in Hugging Face's `BertConfig`, `RobertaConfig` and
//! `XLMRobertaConfig`.

use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value, json};

use crate::Activation;
use crate::ConfigError;
use crate::{ConfigKeys, Labels, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    pub family: Family,
    pub vocab_size: i64,
    pub hidden_size: i64,
    pub num_hidden_layers: i64,
    pub num_attention_heads: i64,
    pub intermediate_size: i64,
    pub hidden_act: Activation,
    pub hidden_dropout_prob: f64,
    pub attention_probs_dropout_prob: f64,
    /// Absent: as much as `hidden_dropout_prob`.
    pub classifier_dropout: Option<f64>,
    pub max_position_embeddings: i64,
    pub type_vocab_size: i64,
    pub initializer_range: f64,
    pub layer_norm_eps: f64,
    pub pad_token_id: i64,
    pub labels: Labels,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

/// What the three differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Bert,
    Roberta,
    XlmRoberta,
}

impl BertConfig {
    pub fn head_width(&self) -> i64 {
        self.hidden_size / self.num_attention_heads
    }

    pub fn read(arch: Arch, given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let family = Family::of(arch);
        let keys = ConfigKeys(given);
        let config = Self {
            family,
            vocab_size: keys.size("vocab_size")?.unwrap_or(if family == Family::Roberta { 50265 } else { 30522 }),
            hidden_size: keys.size("hidden_size")?.unwrap_or(768),
            num_hidden_layers: keys.size("num_hidden_layers")?.unwrap_or(12),
            num_attention_heads: keys.size("num_attention_heads")?.unwrap_or(12),
            intermediate_size: keys.size("intermediate_size")?.unwrap_or(3072),
            hidden_act: Activation::parse("hidden_act", keys.text("hidden_act")?.unwrap_or("gelu"))?,
            hidden_dropout_prob: keys.number("hidden_dropout_prob")?.unwrap_or(0.1),
            attention_probs_dropout_prob: keys.number("attention_probs_dropout_prob")?.unwrap_or(0.1),
            classifier_dropout: keys.number("classifier_dropout")?,
            max_position_embeddings: keys.size("max_position_embeddings")?.unwrap_or(512),
            type_vocab_size: keys.size("type_vocab_size")?.unwrap_or(2),
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            layer_norm_eps: keys.number("layer_norm_eps")?.unwrap_or(1e-12),
            pad_token_id: keys.whole("pad_token_id")?.unwrap_or(if family == Family::Bert { 0 } else { 1 }),
            labels: Labels::read(given)?.unwrap_or_default(),
            given: given.clone(),
        };
        config.check(&keys)?;
        Ok(config)
    }

    fn check(&self, keys: &ConfigKeys<'_>) -> Result<(), ConfigError> {
        let fail = |key: &str, message: String| Err(ConfigError { key: key.to_owned(), message });
        if self.hidden_size % self.num_attention_heads != 0 {
            let message =
                format!("found {}; hidden_size, {}, is no multiple", self.num_attention_heads, self.hidden_size);
            return fail("num_attention_heads", message);
        }
        if self.pad_token_id >= self.vocab_size {
            let message = format!("found {}; allowed: below vocab_size, {}", self.pad_token_id, self.vocab_size);
            return fail("pad_token_id", message);
        }
        if self.first_position() >= self.max_position_embeddings {
            let message = format!("found {}; allowed: above {}", self.max_position_embeddings, self.first_position());
            return fail("max_position_embeddings", message);
        }
        for (key, share) in [
            ("hidden_dropout_prob", Some(self.hidden_dropout_prob)),
            ("attention_probs_dropout_prob", Some(self.attention_probs_dropout_prob)),
            ("classifier_dropout", self.classifier_dropout),
        ] {
            if let Some(share) = share.filter(|share| !(0.0..1.0).contains(share)) {
                return fail(key, format!("found {share}; allowed: at least 0 and below 1"));
            }
        }
        if keys.truth("is_decoder")? == Some(true) {
            return fail("is_decoder", "found true; allowed: false".to_owned());
        }
        match keys.text("position_embedding_type")? {
            None | Some("absolute") => Ok(()),
            Some(other) => fail("position_embedding_type", format!("found {other:?}; allowed: absolute")),
        }
    }

    /// `labels` are absent where the data decides.
    pub fn task_data(&self, labels: Option<Labels>) -> TaskData {
        TaskData::Classification {
            vocab_size: self.vocab_size as u64,
            pad_token_id: self.pad_token_id,
            max_length: (self.max_position_embeddings - self.first_position()) as u32,
            // RoBERTa's tokenizers give no types, whatever its config has room for.
            token_types: self.family == Family::Bert && self.type_vocab_size > 1,
            labels,
        }
    }

    /// The position of the first token. RoBERTa's padding has the position of its own number.
    pub fn first_position(&self) -> i64 {
        match self.family {
            Family::Bert => 0,
            Family::Roberta | Family::XlmRoberta => self.pad_token_id + 1,
        }
    }

    /// What the names of the encoder's parameters begin with.
    pub fn prefix(&self) -> &'static str {
        match self.family {
            Family::Bert => "bert",
            Family::Roberta | Family::XlmRoberta => "roberta",
        }
    }

    /// The parameter whose rows are the labels.
    pub fn head(&self) -> &'static str {
        match self.family {
            Family::Bert => "classifier.weight",
            Family::Roberta | Family::XlmRoberta => "classifier.out_proj.weight",
        }
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let mut config = self.given.clone();
        let (model_type, class) = match self.family {
            Family::Bert => ("bert", "BertForSequenceClassification"),
            Family::Roberta => ("roberta", "RobertaForSequenceClassification"),
            Family::XlmRoberta => ("xlm-roberta", "XLMRobertaForSequenceClassification"),
        };
        let filled = json!({
            "architectures": [class],
            "model_type": model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": self.given.get("hidden_act").filter(|name| !name.is_null()).cloned().unwrap_or(json!("gelu")),
            "hidden_dropout_prob": self.hidden_dropout_prob,
            "attention_probs_dropout_prob": self.attention_probs_dropout_prob,
            "classifier_dropout": self.classifier_dropout,
            "max_position_embeddings": self.max_position_embeddings,
            "type_vocab_size": self.type_vocab_size,
            "initializer_range": self.initializer_range,
            "layer_norm_eps": self.layer_norm_eps,
            "pad_token_id": self.pad_token_id,
        });
        if let Value::Object(filled) = filled {
            config.extend(filled);
        }
        self.labels.export(&mut config);
        config
    }
}

impl Family {
    fn of(arch: Arch) -> Self {
        match arch {
            Arch::Bert => Self::Bert,
            Arch::Roberta => Self::Roberta,
            Arch::XlmRoberta => Self::XlmRoberta,
            other => panic!("{other:?} is not of BERT's family"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arch: Arch, config: Value) -> Result<BertConfig, ConfigError> {
        BertConfig::read(arch, config.as_object().unwrap())
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        for (arch, vocab_size, pad_token_id) in
            [(Arch::Bert, 30522, 0), (Arch::Roberta, 50265, 1), (Arch::XlmRoberta, 30522, 1)]
        {
            let config = read(arch, json!({})).unwrap();
            assert_eq!((config.vocab_size, config.pad_token_id), (vocab_size, pad_token_id));
            assert_eq!((config.hidden_size, config.num_hidden_layers, config.num_attention_heads), (768, 12, 12));
            assert_eq!((config.intermediate_size, config.max_position_embeddings), (3072, 512));
            assert_eq!((config.hidden_act, config.layer_norm_eps), (Activation::Gelu, 1e-12));
            assert_eq!(config.labels, Labels::default());
        }
    }

    #[test]
    fn what_the_data_must_be_like() {
        let cases = [
            (Arch::Bert, json!({}), 512, true),
            (Arch::Bert, json!({"type_vocab_size": 1, "max_position_embeddings": 40}), 40, false),
            // As in the files of roberta-base and xlm-roberta-base.
            (Arch::Roberta, json!({"max_position_embeddings": 514, "type_vocab_size": 1}), 512, false),
            (Arch::XlmRoberta, json!({"max_position_embeddings": 514, "pad_token_id": 3}), 510, false),
        ];
        for (arch, given, want, types) in cases {
            let TaskData::Classification { max_length, token_types, .. } = read(arch, given).unwrap().task_data(None)
            else {
                panic!("{arch:?}")
            };
            assert_eq!((max_length, token_types), (want, types), "{arch:?}");
        }
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({"hidden_size": 10}), "num_attention_heads: found 12; hidden_size, 10, is no multiple"),
            (json!({"hidden_act": "sine"}), "hidden_act: found \"sine\""),
            (json!({"hidden_dropout_prob": 1.0}), "hidden_dropout_prob: found 1"),
            (json!({"classifier_dropout": -0.5}), "classifier_dropout: found -0.5"),
            (json!({"pad_token_id": 40000}), "pad_token_id: found 40000; allowed: below vocab_size, 30522"),
            (json!({"position_embedding_type": "relative_key"}), "position_embedding_type: found \"relative_key\""),
            (json!({"is_decoder": true}), "is_decoder: found true"),
            (json!({"num_labels": 0}), "num_labels: found 0"),
        ];
        for (given, want) in cases {
            let error = read(Arch::Bert, given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn what_is_exported_is_read_again_and_keeps_what_it_was_given() {
        let given = json!({"hidden_size": 24, "num_attention_heads": 3, "something": [1], "num_labels": 3});
        let config = read(Arch::Roberta, given).unwrap();
        let exported = config.export();
        assert_eq!((&exported["something"], &exported["model_type"]), (&json!([1]), &json!("roberta")));
        let again = BertConfig::read(Arch::Roberta, &exported).unwrap();
        assert_eq!(BertConfig { given: Map::new(), ..again }, BertConfig { given: Map::new(), ..config });
    }
}
