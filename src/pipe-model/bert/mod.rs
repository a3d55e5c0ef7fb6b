//! BERT, RoBERTa and XLM-RoBERTa: config.json with keys and defaults as in Hugging Face's `BertConfig`,
//! `RobertaConfig` and `XLMRobertaConfig`, and their parameters with names, shapes and initialisation as there.

pub(crate) mod memory;

use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Algorithm, Architecture, ModelConfig, Starter, StarterSizes, Template, Tokenization, TrainedTokenizer,
    VocabularyFormat, encoder, joined, number_of_labels,
};
use crate::config_keys::{Activation, ConfigError, ConfigKeys, extended, fail};
use crate::estimate::StepMemory;
use crate::parameter::{Init, Listed, Parameter};
use crate::task_data::{Labels, TEXT_CLASS, TOKEN_CLASS, TaskData, labels_tokens};

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
    /// Whether every token has a label, and not the text.
    pub labels_tokens: bool,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

/// The three members of the family, which differ in names, positions and heads.
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
            hidden_dropout_prob: keys.dropout("hidden_dropout_prob")?.unwrap_or(0.1),
            attention_probs_dropout_prob: keys.dropout("attention_probs_dropout_prob")?.unwrap_or(0.1),
            classifier_dropout: keys.dropout("classifier_dropout")?,
            max_position_embeddings: keys.size("max_position_embeddings")?.unwrap_or(512),
            type_vocab_size: keys.size("type_vocab_size")?.unwrap_or(2),
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            layer_norm_eps: keys.number("layer_norm_eps")?.unwrap_or(1e-12),
            pad_token_id: keys.whole("pad_token_id")?.unwrap_or(if family == Family::Bert { 0 } else { 1 }),
            labels: Labels::read(given)?.unwrap_or_default(),
            labels_tokens: labels_tokens(given),
            given: given.clone(),
        };
        config.check(&keys)?;
        Ok(config)
    }

    fn check(&self, keys: &ConfigKeys<'_>) -> Result<(), ConfigError> {
        if self.hidden_size % self.num_attention_heads != 0 {
            let message =
                format!("found {}; hidden_size, {}, is no multiple", self.num_attention_heads, self.hidden_size);
            return Err(fail("num_attention_heads", message));
        }
        if self.pad_token_id >= self.vocab_size {
            let message = format!("found {}; allowed: below vocab_size, {}", self.pad_token_id, self.vocab_size);
            return Err(fail("pad_token_id", message));
        }
        if self.first_position() >= self.max_position_embeddings {
            let message = format!("found {}; allowed: above {}", self.max_position_embeddings, self.first_position());
            return Err(fail("max_position_embeddings", message));
        }
        if keys.truth("is_decoder")? == Some(true) {
            return Err(fail("is_decoder", "found true; allowed: false".to_owned()));
        }
        match keys.text("position_embedding_type")? {
            None | Some("absolute") => Ok(()),
            Some(other) => Err(fail("position_embedding_type", format!("found {other:?}; allowed: absolute"))),
        }
    }

    /// The position of the first token. RoBERTa's padding has the position of its own number.
    pub fn first_position(&self) -> i64 {
        match self.family {
            Family::Bert => 0,
            Family::Roberta | Family::XlmRoberta => self.pad_token_id + 1,
        }
    }

    /// The prefix of the encoder's parameters.
    pub fn prefix(&self) -> &'static str {
        match self.family {
            Family::Bert => "bert",
            Family::Roberta | Family::XlmRoberta => "roberta",
        }
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let (model_type, class) = match self.family {
            Family::Bert => ("bert", "Bert"),
            Family::Roberta => ("roberta", "Roberta"),
            Family::XlmRoberta => ("xlm-roberta", "XLMRoberta"),
        };
        let head = if self.labels_tokens { TOKEN_CLASS } else { TEXT_CLASS };
        let filled = json!({
            "architectures": [format!("{class}{head}")],
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
        let mut config = extended(&self.given, filled);
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

pub const BERT: Architecture = Architecture {
    read: |config| read(Arch::Bert, config),
    starter: Starter::classifier("google-bert/bert-base-uncased", 30_522, |sizes| {
        config(sizes, json!({ "vocab_size": sizes.vocabulary, "max_position_embeddings": 512 }))
    }),
    tokenization: Some(Tokenization {
        vocabulary: Some(VocabularyFormat::Bert),
        trained: TrainedTokenizer {
            algorithm: Algorithm::WordPiece,
            special: &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            template: Template::Typed { start: "[CLS]", end: "[SEP]" },
        },
        token_types: true,
        reserved_positions: 0,
    }),
    in_transformers: true,
    generation_keys: &[],
    adapts: Adaptable::named(&["query", "key", "value", "dense"]),
};

pub const ROBERTA: Architecture = Architecture {
    read: |config| read(Arch::Roberta, config),
    starter: Starter::classifier("FacebookAI/roberta-base", 50_265, roberta),
    tokenization: Some(roberta_tokens(VocabularyFormat::Roberta, Algorithm::ByteLevelBpe)),
    // The last is of the head, which PEFT names where all layers are meant.
    adapts: Adaptable::named(&["query", "key", "value", "dense", "out_proj"]),
    ..BERT
};

pub const XLM_ROBERTA: Architecture = Architecture {
    read: |config| read(Arch::XlmRoberta, config),
    starter: Starter::classifier("FacebookAI/xlm-roberta-base", 250_002, roberta),
    tokenization: Some(roberta_tokens(VocabularyFormat::XlmRoberta, Algorithm::Unigram { unknown: "<unk>" })),
    ..ROBERTA
};

fn read(arch: Arch, config: &Map<String, Value>) -> Result<Box<dyn ModelConfig>, ConfigError> {
    Ok(Box::new(BertConfig::read(arch, config)?))
}

/// The first position of a token follows that of padding, which is 1.
const fn roberta_tokens(vocabulary: VocabularyFormat, algorithm: Algorithm) -> Tokenization {
    Tokenization {
        vocabulary: Some(vocabulary),
        trained: TrainedTokenizer {
            algorithm,
            special: &["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
            template: Template::Enclosed { start: "<s>", end: "</s>" },
        },
        token_types: false,
        reserved_positions: 2,
    }
}

fn roberta(sizes: &StarterSizes) -> Map<String, Value> {
    let embeddings = json!({ "vocab_size": sizes.vocabulary, "max_position_embeddings": 514, "type_vocab_size": 1 });
    config(sizes, embeddings)
}

fn config(sizes: &StarterSizes, embeddings: Value) -> Map<String, Value> {
    joined([embeddings, encoder(sizes.model), number_of_labels(sizes.classes)])
}

impl ModelConfig for BertConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, labels: Option<Labels>) -> TaskData {
        let data = TaskData::Classification {
            vocab_size: self.vocab_size as u64,
            pad_token_id: self.pad_token_id,
            max_length: (self.max_position_embeddings - self.first_position()) as u32,
            // RoBERTa's tokenizers give no types, whatever its config has room for.
            token_types: self.family == Family::Bert && self.type_vocab_size > 1,
            labels,
        };
        data.per_token(self.labels_tokens)
    }

    fn head(&self) -> Option<&'static str> {
        Some(match self.family {
            _ if self.labels_tokens => "classifier.weight",
            Family::Bert => "classifier.weight",
            Family::Roberta | Family::XlmRoberta => "classifier.out_proj.weight",
        })
    }

    fn drops(&self) -> bool {
        self.hidden_dropout_prob.max(self.attention_probs_dropout_prob) > 0.0
    }

    fn head_width(&self) -> Option<i64> {
        Some(BertConfig::head_width(self))
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

/// Every parameter in transformers' order. The encoder must be in a checkpoint; the head may be newly initialised.
pub fn parameters(config: &BertConfig) -> Vec<Parameter> {
    let BertConfig { hidden_size, intermediate_size, .. } = *config;
    let prefix = config.prefix();
    let init = Init::Normal { std: config.initializer_range };
    let mut list = Listed::default();
    for (name, rows) in [
        ("word_embeddings", config.vocab_size),
        ("position_embeddings", config.max_position_embeddings),
        ("token_type_embeddings", config.type_vocab_size),
    ] {
        list.push(&format!("{prefix}.embeddings.{name}.weight"), &[rows, hidden_size], init);
    }
    list.norm(&format!("{prefix}.embeddings.LayerNorm"), hidden_size);
    for layer in 0..config.num_hidden_layers {
        let path = format!("{prefix}.encoder.layer.{layer}");
        for name in ["query", "key", "value"] {
            list.linear(&format!("{path}.attention.self.{name}"), &[hidden_size, hidden_size], init);
        }
        list.linear(&format!("{path}.attention.output.dense"), &[hidden_size, hidden_size], init);
        list.norm(&format!("{path}.attention.output.LayerNorm"), hidden_size);
        list.linear(&format!("{path}.intermediate.dense"), &[intermediate_size, hidden_size], init);
        list.linear(&format!("{path}.output.dense"), &[hidden_size, intermediate_size], init);
        list.norm(&format!("{path}.output.LayerNorm"), hidden_size);
    }
    let encoder = list.0.len();
    let labels = config.labels.count();
    match config.family {
        _ if config.labels_tokens => list.linear("classifier", &[labels, hidden_size], init),
        Family::Bert => {
            list.linear("bert.pooler.dense", &[hidden_size, hidden_size], init);
            list.linear("classifier", &[labels, hidden_size], init);
        }
        Family::Roberta | Family::XlmRoberta => {
            list.linear("classifier.dense", &[hidden_size, hidden_size], init);
            list.linear("classifier.out_proj", &[labels, hidden_size], init);
        }
    }
    for (index, parameter) in list.0.iter_mut().enumerate() {
        parameter.may_be_missing = index >= encoder;
        parameter.aliases = aliases(prefix, &parameter.name);
    }
    list.0
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
        // BertForTokenClassification and RobertaForTokenClassification with nine labels.
        let tokens = json!({"architectures": ["ForTokenClassification"], "num_labels": 9});
        assert_eq!(count(Arch::Bert, tokens), 108_898_569);
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
