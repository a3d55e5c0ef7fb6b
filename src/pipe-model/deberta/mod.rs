//! DeBERTa-v2 and -v3: config.json with keys and defaults as in Hugging Face's `DebertaV2Config`; the parameters with names and
//! shapes as in its files, initialised as in its `_init_weights`.

mod memory;

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Algorithm, Architecture, ModelConfig, Starter, Template, Tokenization, TrainedTokenizer, VocabularyFormat, encoder,
    joined, number_of_labels,
};
use crate::config_keys::{Activation, ConfigError, ConfigKeys, extended, fail};
use crate::estimate::StepMemory;
use crate::parameter::{Init, Listed, Parameter};
use crate::task_data::{Labels, TEXT_CLASS, TOKEN_CLASS, TaskData, labels_tokens};

#[derive(Clone, Debug, PartialEq)]
pub struct DebertaConfig {
    pub vocab_size: i64,
    pub hidden_size: i64,
    /// The width of embeddings, which are projected where it is not `hidden_size`.
    pub embedding_size: i64,
    pub num_hidden_layers: i64,
    pub num_attention_heads: i64,
    pub intermediate_size: i64,
    pub hidden_act: Activation,
    pub hidden_dropout_prob: f64,
    pub attention_probs_dropout_prob: f64,
    pub pooler_dropout: f64,
    /// Absent: as much as `hidden_dropout_prob`.
    pub cls_dropout: Option<f64>,
    pub pooler_hidden_act: Activation,
    pub max_position_embeddings: i64,
    /// 0: tokens have no types.
    pub type_vocab_size: i64,
    pub initializer_range: f64,
    pub layer_norm_eps: f64,
    pub pad_token_id: i64,
    pub position_biased_input: bool,
    /// `relative_attention`, if it is on.
    pub relative: Option<Relative>,
    /// Whether scores have a part by the content of the query and the distance of the key.
    pub c2p: bool,
    /// The other way round.
    pub p2c: bool,
    /// Whether distances are projected as content is.
    pub share_att_key: bool,
    /// `norm_rel_ebd`
    pub norms_relative: bool,
    /// `conv_kernel_size`, if it is not 0.
    pub conv: Option<ConvConfig>,
    pub labels: Labels,
    /// Whether every token has a label, and not the text.
    pub labels_tokens: bool,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

/// How distances between tokens are bucketed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    /// Absent: every distance by itself.
    pub position_buckets: Option<i64>,
    pub max_relative_positions: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvConfig {
    pub kernel_size: i64,
    pub groups: i64,
    pub activation: Activation,
}

impl DebertaConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let hidden_size = keys.size("hidden_size")?.unwrap_or(1536);
        let max_position_embeddings = keys.size("max_position_embeddings")?.unwrap_or(512);
        let activation = |key: &str, default: &str| Activation::parse(key, keys.text(key)?.unwrap_or(default));
        let position_types = position_types(&keys)?;
        let config = Self {
            vocab_size: keys.size("vocab_size")?.unwrap_or(128_100),
            hidden_size,
            embedding_size: keys.size("embedding_size")?.unwrap_or(hidden_size),
            num_hidden_layers: keys.size("num_hidden_layers")?.unwrap_or(24),
            num_attention_heads: keys.size("num_attention_heads")?.unwrap_or(24),
            intermediate_size: keys.size("intermediate_size")?.unwrap_or(6144),
            hidden_act: activation("hidden_act", "gelu")?,
            hidden_dropout_prob: keys.dropout("hidden_dropout_prob")?.unwrap_or(0.1),
            attention_probs_dropout_prob: keys.dropout("attention_probs_dropout_prob")?.unwrap_or(0.1),
            pooler_dropout: keys.dropout("pooler_dropout")?.unwrap_or(0.0),
            cls_dropout: keys.dropout("cls_dropout")?,
            pooler_hidden_act: activation("pooler_hidden_act", "gelu")?,
            max_position_embeddings,
            type_vocab_size: keys.count("type_vocab_size")?.unwrap_or(0),
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            layer_norm_eps: keys.number("layer_norm_eps")?.unwrap_or(1e-7),
            pad_token_id: keys.whole("pad_token_id")?.unwrap_or(0),
            position_biased_input: keys.truth("position_biased_input")?.unwrap_or(true),
            relative: match keys.truth("relative_attention")? {
                Some(true) => Some(Relative::read(&keys, max_position_embeddings)?),
                _ => None,
            },
            c2p: position_types.iter().any(|name| name == "c2p"),
            p2c: position_types.iter().any(|name| name == "p2c"),
            share_att_key: keys.truth("share_att_key")?.unwrap_or(false),
            norms_relative: keys
                .text("norm_rel_ebd")?
                .unwrap_or("none")
                .split('|')
                .any(|word| word.trim().eq_ignore_ascii_case("layer_norm")),
            conv: match keys.count("conv_kernel_size")? {
                None | Some(0) => None,
                Some(kernel_size) => Some(ConvConfig {
                    kernel_size,
                    groups: keys.size("conv_groups")?.unwrap_or(1),
                    activation: activation("conv_act", "tanh")?,
                }),
            },
            labels: Labels::read(given)?.unwrap_or_default(),
            labels_tokens: labels_tokens(given),
            given: given.clone(),
        };
        config.check(&keys)?;
        Ok(config)
    }

    fn check(&self, keys: &ConfigKeys<'_>) -> Result<(), ConfigError> {
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        if hidden % heads != 0 {
            return Err(fail("num_attention_heads", format!("found {heads}; hidden_size, {hidden}, is no multiple")));
        }
        for (key, only) in [("attention_head_size", hidden / heads), ("pooler_hidden_size", hidden)] {
            if let Some(found) = keys.size(key)?.filter(|found| *found != only) {
                return Err(fail(key, format!("found {found}; allowed with hidden_size {hidden}: {only}")));
            }
        }
        if self.pad_token_id >= self.vocab_size {
            let message = format!("found {}; allowed: below vocab_size, {}", self.pad_token_id, self.vocab_size);
            return Err(fail("pad_token_id", message));
        }
        if let Some(ConvConfig { kernel_size, groups, .. }) = self.conv {
            if kernel_size % 2 == 0 {
                return Err(fail("conv_kernel_size", format!("found {kernel_size}; allowed: 0 or an odd number")));
            }
            if hidden % groups != 0 {
                return Err(fail("conv_groups", format!("found {groups}; hidden_size, {hidden}, is no multiple")));
            }
        }
        Ok(())
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let or = |key: &str, default: Value| {
            self.given.get(key).filter(|value| !value.is_null()).cloned().unwrap_or(default)
        };
        let position_types: Vec<&str> = [("p2c", self.p2c), ("c2p", self.c2p)]
            .into_iter()
            .filter_map(|(name, is_on)| is_on.then_some(name))
            .collect();
        let head = if self.labels_tokens { TOKEN_CLASS } else { TEXT_CLASS };
        let filled = json!({
            "architectures": [format!("DebertaV2{head}")],
            "model_type": "deberta-v2",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": or("hidden_act", json!("gelu")),
            "hidden_dropout_prob": self.hidden_dropout_prob,
            "attention_probs_dropout_prob": self.attention_probs_dropout_prob,
            "pooler_dropout": self.pooler_dropout,
            "cls_dropout": self.cls_dropout,
            "pooler_hidden_act": or("pooler_hidden_act", json!("gelu")),
            "pooler_hidden_size": self.hidden_size,
            "max_position_embeddings": self.max_position_embeddings,
            "type_vocab_size": self.type_vocab_size,
            "initializer_range": self.initializer_range,
            "layer_norm_eps": self.layer_norm_eps,
            "pad_token_id": self.pad_token_id,
            "position_biased_input": self.position_biased_input,
            "relative_attention": self.relative.is_some(),
            "max_relative_positions": or("max_relative_positions", json!(-1)),
            "position_buckets": or("position_buckets", json!(-1)),
            "pos_att_type": position_types,
            "share_att_key": self.share_att_key,
            "norm_rel_ebd": or("norm_rel_ebd", json!("none")),
        });
        let mut config = extended(&self.given, filled);
        self.labels.export(&mut config);
        config
    }
}

impl Relative {
    fn read(keys: &ConfigKeys<'_>, max_position_embeddings: i64) -> Result<Self, ConfigError> {
        let above_0 = |key: &str| Ok::<_, ConfigError>(keys.signed(key)?.filter(|number| *number > 0));
        let relative = Self {
            position_buckets: above_0("position_buckets")?,
            max_relative_positions: above_0("max_relative_positions")?.unwrap_or(max_position_embeddings),
        };
        match relative.position_buckets {
            // Half of the buckets are for one distance each, and the logarithm of the others must grow.
            Some(buckets) if buckets < 2 || relative.max_relative_positions - 1 <= buckets / 2 => {
                let message = format!(
                    "found {buckets} up to distance {}; allowed: at least 2, and a distance of more than half of them",
                    relative.max_relative_positions
                );
                Err(ConfigError { key: "position_buckets".to_owned(), message })
            }
            _ => Ok(relative),
        }
    }

    /// How many distances there are in each direction.
    pub fn span(self) -> i64 {
        self.position_buckets.unwrap_or(self.max_relative_positions)
    }
}

/// `pos_att_type`, a list or a text with bars. transformers looks for `c2p` and `p2c` and passes over others.
fn position_types(keys: &ConfigKeys<'_>) -> Result<Vec<String>, ConfigError> {
    let words = match keys.0.get("pos_att_type") {
        Some(Value::String(text)) => text.split('|').map(|word| word.trim().to_lowercase()).collect(),
        _ => {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            keys.list("pos_att_type", "a list of c2p and p2c", text)?.unwrap_or_default()
        }
    };
    Ok(words)
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(DebertaConfig::read(config)?)),
    starter: Starter::classifier("microsoft/deberta-v3-base", 128_100, |sizes| {
        let embeddings = json!({
            "vocab_size": sizes.vocabulary, "max_position_embeddings": 512, "type_vocab_size": 0,
        });
        let relative = json!({
            "relative_attention": true, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": true,
            "pos_att_type": ["p2c", "c2p"], "position_biased_input": false,
        });
        joined([embeddings, encoder(sizes.model), relative, number_of_labels(sizes.classes)])
    }),
    tokenization: Some(Tokenization {
        vocabulary: Some(VocabularyFormat::DebertaV3),
        trained: TrainedTokenizer {
            algorithm: Algorithm::Unigram { unknown: "[UNK]" },
            special: &["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"],
            template: Template::Typed { start: "[CLS]", end: "[SEP]" },
        },
        token_types: true,
        reserved_positions: 0,
    }),
    in_transformers: true,
    generation_keys: &[],
    adapts: Adaptable::named(&[
        "query_proj",
        "key_proj",
        "value_proj",
        "pos_key_proj",
        "pos_query_proj",
        "dense",
        "embed_proj",
    ]),
};

impl ModelConfig for DebertaConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, labels: Option<Labels>) -> TaskData {
        let data = TaskData::Classification {
            vocab_size: self.vocab_size as u64,
            pad_token_id: self.pad_token_id,
            // Distances that are too far count as the farthest; only positions of their own run out.
            max_length: if self.position_biased_input { self.max_position_embeddings as u32 } else { u32::MAX },
            token_types: self.type_vocab_size > 1,
            labels,
        };
        data.per_token(self.labels_tokens)
    }

    fn head(&self) -> Option<&'static str> {
        Some("classifier.weight")
    }

    fn drops(&self) -> bool {
        self.hidden_dropout_prob.max(self.attention_probs_dropout_prob) > 0.0
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

/// Every parameter in transformers' order. The encoder must be in a checkpoint; the head may be newly initialised.
pub fn parameters(config: &DebertaConfig) -> Vec<Parameter> {
    let DebertaConfig { hidden_size, intermediate_size, embedding_size, .. } = *config;
    let init = Init::Normal { std: config.initializer_range };
    let mut list = Listed::default();
    let positions = if config.position_biased_input { config.max_position_embeddings } else { 0 };
    for (name, rows) in [
        ("word_embeddings", config.vocab_size),
        ("position_embeddings", positions),
        ("token_type_embeddings", config.type_vocab_size),
    ] {
        if rows > 0 {
            list.push(&format!("deberta.embeddings.{name}.weight"), &[rows, embedding_size], init);
        }
    }
    if embedding_size != hidden_size {
        list.push("deberta.embeddings.embed_proj.weight", &[hidden_size, embedding_size], init);
    }
    list.norm("deberta.embeddings.LayerNorm", hidden_size);
    for layer in 0..config.num_hidden_layers {
        let path = format!("deberta.encoder.layer.{layer}");
        for name in projections(config) {
            list.linear(&format!("{path}.attention.self.{name}"), &[hidden_size, hidden_size], init);
        }
        list.linear(&format!("{path}.attention.output.dense"), &[hidden_size, hidden_size], init);
        list.norm(&format!("{path}.attention.output.LayerNorm"), hidden_size);
        list.linear(&format!("{path}.intermediate.dense"), &[intermediate_size, hidden_size], init);
        list.linear(&format!("{path}.output.dense"), &[hidden_size, intermediate_size], init);
        list.norm(&format!("{path}.output.LayerNorm"), hidden_size);
    }
    if let Some(relative) = config.relative {
        list.push("deberta.encoder.rel_embeddings.weight", &[2 * relative.span(), hidden_size], init);
    }
    if config.norms_relative {
        list.norm("deberta.encoder.LayerNorm", hidden_size);
    }
    if let Some(conv) = config.conv {
        let shape = [hidden_size, hidden_size / conv.groups, conv.kernel_size];
        list.push("deberta.encoder.conv.conv.weight", &shape, init);
        list.push("deberta.encoder.conv.conv.bias", &[hidden_size], Init::Constant(0.0));
        list.norm("deberta.encoder.conv.LayerNorm", hidden_size);
    }
    let encoder = list.0.len();
    if !config.labels_tokens {
        list.linear("pooler.dense", &[hidden_size, hidden_size], init);
    }
    list.linear("classifier", &[config.labels.count(), hidden_size], init);
    for (index, parameter) in list.0.iter_mut().enumerate() {
        parameter.may_be_missing = index >= encoder;
        // A file of the encoder alone leaves out the prefix.
        parameter.aliases = parameter.name.strip_prefix("deberta.").map(str::to_owned).into_iter().collect();
    }
    list.0
}

/// The linear layers of attention. Distances have their own where they do not share those of content.
fn projections(config: &DebertaConfig) -> Vec<&'static str> {
    let own = config.relative.is_some() && !config.share_att_key;
    let mut names = vec!["query_proj", "key_proj", "value_proj"];
    names.extend((own && config.c2p).then_some("pos_key_proj"));
    names.extend((own && config.p2c).then_some("pos_query_proj"));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<DebertaConfig, ConfigError> {
        DebertaConfig::read(config.as_object().unwrap())
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = read(json!({})).unwrap();
        assert_eq!((config.vocab_size, config.hidden_size, config.intermediate_size), (128_100, 1536, 6144));
        assert_eq!((config.num_hidden_layers, config.num_attention_heads), (24, 24));
        assert_eq!((config.relative, config.c2p, config.p2c, config.conv), (None, false, false, None));
        assert!(config.position_biased_input && !config.share_att_key && !config.norms_relative);
    }

    #[test]
    fn distances_and_what_they_count_for() {
        let relative = |more: Value| {
            let mut config = json!({"relative_attention": true});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(config).unwrap()
        };
        // As in the files of deberta-v3-base.
        let v3 = relative(json!({
            "position_buckets": 256, "max_relative_positions": -1, "pos_att_type": "p2c|c2p", "norm_rel_ebd": "layer_norm",
        }));
        assert_eq!(v3.relative, Some(Relative { position_buckets: Some(256), max_relative_positions: 512 }));
        assert!(v3.c2p && v3.p2c && v3.norms_relative);
        let plain = relative(json!({"max_relative_positions": 40, "pos_att_type": ["c2p", "p2p"]}));
        assert_eq!(plain.relative.unwrap().span(), 40);
        assert!(plain.c2p && !plain.p2c);
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({"hidden_size": 10}), "num_attention_heads: found 24; hidden_size, 10, is no multiple"),
            (json!({"pooler_hidden_size": 10}), "pooler_hidden_size: found 10; allowed with hidden_size 1536: 1536"),
            (json!({"attention_head_size": 32}), "attention_head_size: found 32; allowed with hidden_size 1536: 64"),
            (json!({"pooler_hidden_act": "sine"}), "pooler_hidden_act: found \"sine\""),
            (json!({"cls_dropout": 1.0}), "cls_dropout: found 1"),
            (json!({"pos_att_type": [1]}), "pos_att_type: found [1]; allowed: a list of c2p and p2c"),
            (
                json!({"relative_attention": true, "position_buckets": 2000}),
                "position_buckets: found 2000 up to distance 512",
            ),
            (json!({"relative_attention": true, "position_buckets": "many"}), "position_buckets: found \"many\""),
            (json!({"conv_kernel_size": 4}), "conv_kernel_size: found 4; allowed: 0 or an odd number"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn what_is_exported_is_read_again_and_keeps_what_it_was_given() {
        let given = json!({
            "hidden_size": 24, "num_attention_heads": 3, "something": [1], "num_labels": 3, "relative_attention": true,
            "position_buckets": 8, "pos_att_type": "c2p", "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3,
        });
        let config = read(given).unwrap();
        let exported = config.export();
        assert_eq!((&exported["something"], &exported["model_type"]), (&json!([1]), &json!("deberta-v2")));
        assert_eq!(exported["pos_att_type"], json!(["c2p"]));
        let again = DebertaConfig::read(&exported).unwrap();
        assert_eq!(DebertaConfig { given: Map::new(), ..again }, DebertaConfig { given: Map::new(), ..config });
    }
}

#[cfg(test)]
mod parameters_tests {
    use serde_json::{Value, json};

    use super::*;

    fn count(config: Value) -> i64 {
        let config = DebertaConfig::read(config.as_object().unwrap()).unwrap();
        parameters(&config).iter().map(|parameter| parameter.shape.iter().product::<i64>()).sum()
    }

    #[test]
    fn known_models_have_their_sizes() {
        let v3 = |hidden: i64, layers: i64, heads: i64| {
            json!({
                "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                "intermediate_size": 4 * hidden, "position_buckets": 256, "relative_attention": true,
                "pos_att_type": "p2c|c2p", "share_att_key": true, "norm_rel_ebd": "layer_norm",
                "position_biased_input": false, "type_vocab_size": 0,
            })
        };
        assert_eq!(count(v3(768, 12, 12)), 184_423_682);
        assert_eq!(count(v3(1024, 24, 16)), 435_063_810);
        let mut xlarge = v3(1536, 24, 24);
        xlarge["conv_kernel_size"] = json!(3);
        assert_eq!(count(xlarge), 886_957_058);
    }
}
