//! Decoder models: Llama, Mistral, Qwen2 and Qwen3. config.json with keys and defaults as in Hugging Face's `LlamaConfig`,
//! `MistralConfig`, `Qwen2Config` and `Qwen3Config`, and their parameters with names, shapes and initialisation as there.

mod memory;
mod rope;

use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Algorithm, Architecture, ModelConfig, ModelSize, Starter, StarterSizes, StarterTraining, Template, Tokenization,
    TrainedTokenizer, joined,
};
use crate::config_keys::{Activation, ConfigError, ConfigKeys, bounded_width, extended, fail};
use crate::estimate::{StepMemory, rows_at_a_time};
use crate::parameter::{Init, Listed, Parameter};
use crate::task_data::{Labels, TaskData};

pub use rope::{Rope, RopeForm};

#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    pub family: Family,
    pub vocab_size: i64,
    pub hidden_size: i64,
    pub intermediate_size: i64,
    pub num_hidden_layers: i64,
    pub heads: Heads,
    pub hidden_act: Activation,
    pub max_position_embeddings: i64,
    pub initializer_range: f64,
    pub rms_norm_eps: f64,
    pub rope: Rope,
    /// Whether the head has the weights of the embeddings.
    pub tie_word_embeddings: bool,
    pub attention_dropout: f64,
    pub biases: Biases,
    /// For each layer, how many tokens a token sees, itself included; absent where it sees all before it.
    pub windows: Vec<Option<i64>>,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

/// Attention heads; several of queries share one of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub queries: i64,
    pub keys: i64,
    pub width: i64,
}

/// Which linear layers have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    pub queries_keys_values: bool,
    pub attention_output: bool,
    pub feed_forward: bool,
}

/// The members of the family, which differ in defaults, biases, norms and windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    fn of(arch: Arch) -> Self {
        match arch {
            Arch::Llama => Self::Llama,
            Arch::Mistral => Self::Mistral,
            Arch::Qwen2 => Self::Qwen2,
            Arch::Qwen3 => Self::Qwen3,
            other => panic!("{other:?} is no decoder model"),
        }
    }

    fn is_qwen(self) -> bool {
        matches!(self, Self::Qwen2 | Self::Qwen3)
    }

    /// Whether queries and keys are normed, head by head.
    pub fn norms_queries_and_keys(self) -> bool {
        self == Self::Qwen3
    }

    /// `model_type`, and the name of its class in transformers.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Llama => ("llama", "LlamaForCausalLM"),
            Self::Mistral => ("mistral", "MistralForCausalLM"),
            Self::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
            Self::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
        }
    }
}

impl LlamaConfig {
    pub fn read(arch: Arch, given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let family = Family::of(arch);
        let keys = ConfigKeys(given);
        let by_family = |llama: i64, mistral: i64, qwen: i64| match family {
            Family::Llama => llama,
            Family::Mistral => mistral,
            Family::Qwen2 | Family::Qwen3 => qwen,
        };
        let positions = keys.size("max_position_embeddings")?.unwrap_or(by_family(2048, 131_072, 32_768));
        let num_hidden_layers = keys.size("num_hidden_layers")?.unwrap_or(32);
        let config = Self {
            family,
            vocab_size: keys.size("vocab_size")?.unwrap_or(by_family(32_000, 32_000, 151_936)),
            hidden_size: keys.size("hidden_size")?.unwrap_or(4096),
            intermediate_size: keys.size("intermediate_size")?.unwrap_or(by_family(11_008, 14_336, 22_016)),
            num_hidden_layers,
            heads: Heads::read(family, &keys)?,
            hidden_act: Activation::parse("hidden_act", keys.text("hidden_act")?.unwrap_or("silu"))?,
            max_position_embeddings: positions,
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope: Rope::read(given, positions)?,
            tie_word_embeddings: keys.truth("tie_word_embeddings")?.unwrap_or(false),
            attention_dropout: keys.dropout("attention_dropout")?.unwrap_or(0.0),
            biases: Biases::read(family, &keys)?,
            windows: windows(family, &keys, num_hidden_layers)?,
            given: given.clone(),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let Heads { queries, keys, width } = self.heads;
        bounded_width("num_attention_heads x head_dim", queries.checked_mul(width))?;
        if queries % keys != 0 {
            let message = format!("found {keys}; allowed: what divides num_attention_heads, {queries}");
            return Err(fail("num_key_value_heads", message));
        }
        if width % 2 != 0 {
            return Err(fail("head_dim", format!("found {width}; allowed: an even number")));
        }
        if self.max_position_embeddings < 2 {
            let message = format!("found {}; allowed: at least 2", self.max_position_embeddings);
            return Err(fail("max_position_embeddings", message));
        }
        Ok(())
    }

    /// Whether queries and keys are normed, head by head.
    pub fn head_norms(&self) -> bool {
        self.family.norms_queries_and_keys()
    }

    /// Rows whose logits exist at a time: 256 MiB in fp32. With fewer, a head of a hundred thousand words is mostly read from memory.
    pub fn loss_rows(&self) -> i64 {
        rows_at_a_time(1 << 26, self.vocab_size) / 64 * 64
    }

    /// The tokens that end a text.
    pub fn end_tokens(&self) -> Vec<i64> {
        match self.given.get("eos_token_id") {
            Some(Value::Array(tokens)) => tokens.iter().filter_map(Value::as_i64).collect(),
            Some(token) => token.as_i64().into_iter().collect(),
            None if self.family.is_qwen() => Vec::new(),
            None => vec![2],
        }
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let (model_type, class) = self.family.names();
        let Heads { queries, keys, width } = self.heads;
        let filled = json!({
            "architectures": [class],
            "model_type": model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": queries,
            "num_key_value_heads": keys,
            "head_dim": width,
            "hidden_act": self.given.get("hidden_act").filter(|name| !name.is_null()).cloned().unwrap_or(json!("silu")),
            "max_position_embeddings": self.max_position_embeddings,
            "initializer_range": self.initializer_range,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_dropout": self.attention_dropout,
        });
        let mut config = extended(&self.given, filled);
        if !config.contains_key("rope_parameters") && !config.contains_key("rope_scaling") {
            config.entry("rope_theta").or_insert(json!(self.rope.theta));
        }
        config
    }
}

impl Heads {
    fn read(family: Family, keys: &ConfigKeys<'_>) -> Result<Self, ConfigError> {
        let hidden = keys.size("hidden_size")?.unwrap_or(4096);
        let queries = keys.size("num_attention_heads")?.unwrap_or(32);
        let shared = if family == Family::Mistral { 8 } else { queries };
        let width = match keys.size("head_dim")? {
            Some(width) => width,
            None if family == Family::Qwen3 => 128,
            None if hidden % queries == 0 => hidden / queries,
            None => {
                let message = format!("found {queries}; hidden_size, {hidden}, is no multiple; give head_dim");
                return Err(fail("num_attention_heads", message));
            }
        };
        Ok(Self { queries, keys: keys.size("num_key_value_heads")?.unwrap_or(shared), width })
    }
}

impl Biases {
    fn read(family: Family, keys: &ConfigKeys<'_>) -> Result<Self, ConfigError> {
        let given = |key: &str| Ok::<_, ConfigError>(keys.truth(key)?.unwrap_or(false));
        Ok(match family {
            Family::Llama => Self {
                queries_keys_values: given("attention_bias")?,
                attention_output: given("attention_bias")?,
                feed_forward: given("mlp_bias")?,
            },
            Family::Mistral => Self { queries_keys_values: false, attention_output: false, feed_forward: false },
            Family::Qwen2 => Self { queries_keys_values: true, attention_output: false, feed_forward: false },
            Family::Qwen3 => {
                let attention = given("attention_bias")?;
                Self { queries_keys_values: attention, attention_output: attention, feed_forward: false }
            }
        })
    }
}

/// Mistral has one window for all layers, Qwen from a layer on, or as `layer_types` says.
fn windows(family: Family, keys: &ConfigKeys<'_>, layers: i64) -> Result<Vec<Option<i64>>, ConfigError> {
    let everything = vec![None; layers as usize];
    let given = keys.size("sliding_window")?;
    if family == Family::Mistral {
        // An explicit null means none.
        let window = if keys.0.contains_key("sliding_window") { given } else { Some(4096) };
        return Ok(vec![window; layers as usize]);
    }
    if !family.is_qwen() || !keys.truth("use_sliding_window")?.unwrap_or(false) {
        return Ok(everything);
    }
    let window = if keys.0.contains_key("sliding_window") { given } else { Some(4096) };
    let Some(types) = keys.list("layer_types", "a list of names", Value::as_str)? else {
        let first = keys.count("max_window_layers")?.unwrap_or(28);
        return Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect());
    };
    if types.len() as i64 != layers {
        return Err(fail(
            "layer_types",
            format!("found {} entries; allowed: one for each of {layers} layers", types.len()),
        ));
    }
    let of = |name: &str| match name {
        "full_attention" => Ok(None),
        "sliding_attention" => Ok(window),
        other => Err(fail("layer_types", format!("found {other:?}; allowed: full_attention, sliding_attention"))),
    };
    types.into_iter().map(of).collect()
}

pub const LLAMA: Architecture = Architecture {
    read: |config| read(Arch::Llama, config),
    starter: starter("HuggingFaceTB/SmolLM2-135M-Instruct", 49_152),
    tokenization: Some(Tokenization::json(TrainedTokenizer {
        algorithm: Algorithm::ByteLevelBpe,
        special: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        template: Template::Bare,
    })),
    in_transformers: true,
    generation_keys: &["bos_token_id", "eos_token_id", "pad_token_id"],
    adapts: Adaptable::named(&["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
};

pub const MISTRAL: Architecture = Architecture {
    read: |config| read(Arch::Mistral, config),
    starter: starter("mistralai/Mistral-7B-Instruct-v0.3", 32_768),
    ..LLAMA
};

pub const QWEN2: Architecture = Architecture {
    read: |config| read(Arch::Qwen2, config),
    starter: starter("Qwen/Qwen2.5-0.5B-Instruct", 151_936),
    ..LLAMA
};

pub const QWEN3: Architecture =
    Architecture { read: |config| read(Arch::Qwen3, config), starter: starter("Qwen/Qwen3-0.6B", 151_936), ..LLAMA };

const fn starter(hub: &'static str, vocabulary: u64) -> Starter {
    Starter {
        fine_tuning: StarterTraining { lr: 2.0e-5, epochs: 3, steps: 60 },
        scratch: StarterTraining { lr: 1.0e-3, epochs: 5, steps: 400 },
        base_lr: 3.0e-4,
        effective_batch: 32,
        schedule: "cosine",
        hub: Some(hub),
        vocabulary,
        config,
    }
}

fn config(StarterSizes { model, vocabulary, length, .. }: &StarterSizes) -> Map<String, Value> {
    let (hidden, layers, heads, keys, inner) = match model {
        ModelSize::Small => (128, 4, 4, 2, 384),
        ModelSize::Medium => (320, 8, 5, 5, 960),
        ModelSize::Base => (576, 30, 9, 3, 1536),
    };
    joined([json!({
        "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": keys, "intermediate_size": inner, "max_position_embeddings": length,
        "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 2,
    })])
}

fn read(arch: Arch, config: &Map<String, Value>) -> Result<Box<dyn ModelConfig>, ConfigError> {
    Ok(Box::new(LlamaConfig::read(arch, config)?))
}

impl ModelConfig for LlamaConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        TaskData::Language {
            vocab_size: self.vocab_size as u64,
            max_length: self.max_position_embeddings as u32,
            joins_texts: false,
        }
    }

    fn drops(&self) -> bool {
        self.attention_dropout > 0.0
    }

    fn head_width(&self) -> Option<i64> {
        self.windows.iter().all(Option::is_none).then_some(self.heads.width)
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

pub fn parameters(config: &LlamaConfig) -> Vec<Parameter> {
    let LlamaConfig { vocab_size, hidden_size, intermediate_size, num_hidden_layers, heads, biases, .. } = *config;
    let init = Init::Normal { std: config.initializer_range };
    let mut list = Listed::default();
    list.push("model.embed_tokens.weight", &[vocab_size, hidden_size], init);
    for layer in 0..num_hidden_layers {
        let path = |name: &str| format!("model.layers.{layer}.{name}");
        let mut linear = |name: &str, outputs: i64, inputs: i64, has_bias: bool| {
            match has_bias {
                true => list.linear(&path(name), &[outputs, inputs], init),
                false => list.push(&path(&format!("{name}.weight")), &[outputs, inputs], init),
            };
        };
        linear("self_attn.q_proj", heads.queries * heads.width, hidden_size, biases.queries_keys_values);
        linear("self_attn.k_proj", heads.keys * heads.width, hidden_size, biases.queries_keys_values);
        linear("self_attn.v_proj", heads.keys * heads.width, hidden_size, biases.queries_keys_values);
        linear("self_attn.o_proj", hidden_size, heads.queries * heads.width, biases.attention_output);
        linear("mlp.gate_proj", intermediate_size, hidden_size, biases.feed_forward);
        linear("mlp.up_proj", intermediate_size, hidden_size, biases.feed_forward);
        linear("mlp.down_proj", hidden_size, intermediate_size, biases.feed_forward);
        if config.family.norms_queries_and_keys() {
            list.push(&path("self_attn.q_norm.weight"), &[heads.width], Init::Constant(1.0));
            list.push(&path("self_attn.k_norm.weight"), &[heads.width], Init::Constant(1.0));
        }
        list.push(&path("input_layernorm.weight"), &[hidden_size], Init::Constant(1.0));
        list.push(&path("post_attention_layernorm.weight"), &[hidden_size], Init::Constant(1.0));
    }
    list.push("model.norm.weight", &[hidden_size], Init::Constant(1.0));
    if !config.tie_word_embeddings {
        list.push("lm_head.weight", &[vocab_size, hidden_size], init);
    }
    list.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arch: Arch, config: Value) -> Result<LlamaConfig, String> {
        LlamaConfig::read(arch, config.as_object().unwrap()).map_err(|error| error.to_string())
    }

    fn count(arch: Arch, config: Value) -> u64 {
        parameters(&read(arch, config).unwrap()).iter().map(Parameter::count).sum()
    }

    #[test]
    fn published_models_have_their_sizes() {
        assert_eq!(count(Arch::Llama, json!({})), 6_738_415_616);
        let llama3 = json!({"vocab_size": 128_256, "intermediate_size": 14_336, "num_key_value_heads": 8});
        assert_eq!(count(Arch::Llama, llama3), 8_030_261_248);
        assert_eq!(count(Arch::Mistral, json!({})), 7_241_732_096);
        let qwen = json!({"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
                          "num_key_value_heads": 2, "tie_word_embeddings": true});
        assert_eq!(count(Arch::Qwen2, qwen), 494_032_768);
        let qwen = json!({"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
                          "num_key_value_heads": 8, "tie_word_embeddings": true});
        assert_eq!(count(Arch::Qwen3, qwen), 596_049_920);
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (
                json!({"num_key_value_heads": 5}),
                "num_key_value_heads: found 5; allowed: what divides num_attention_heads, 32",
            ),
            (json!({"head_dim": 5}), "head_dim: found 5; allowed: an even number"),
            (
                json!({"hidden_size": 100}),
                "num_attention_heads: found 32; hidden_size, 100, is no multiple; give head_dim",
            ),
            (json!({"hidden_act": "swoosh"}), "hidden_act: found \"swoosh\""),
        ];
        for (given, want) in cases {
            let error = read(Arch::Llama, given).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
        let wrong =
            json!({"num_hidden_layers": 2, "use_sliding_window": true, "layer_types": ["full_attention", "chunked"]});
        assert!(read(Arch::Qwen2, wrong).unwrap_err().contains("layer_types: found \"chunked\""));
    }

    #[test]
    fn layers_have_the_windows_of_transformers() {
        let windows = |arch, config| read(arch, config).unwrap().windows;
        assert_eq!(windows(Arch::Mistral, json!({"num_hidden_layers": 2})), [Some(4096); 2]);
        assert_eq!(windows(Arch::Mistral, json!({"num_hidden_layers": 2, "sliding_window": null})), [None; 2]);
        assert_eq!(windows(Arch::Llama, json!({"num_hidden_layers": 1, "sliding_window": 8})), [None]);
        assert_eq!(windows(Arch::Qwen2, json!({"num_hidden_layers": 1, "sliding_window": 8})), [None]);
        let qwen =
            json!({"num_hidden_layers": 3, "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2});
        assert_eq!(windows(Arch::Qwen3, qwen), [None, None, Some(8)]);
        let qwen = json!({"num_hidden_layers": 2, "use_sliding_window": true, "sliding_window": 8,
                          "layer_types": ["sliding_attention", "full_attention"]});
        assert_eq!(windows(Arch::Qwen3, qwen), [Some(8), None]);
    }

    #[test]
    fn the_export_reads_back_and_keeps_what_it_does_not_know() {
        let config =
            read(Arch::Qwen3, json!({"num_hidden_layers": 2, "author": "somebody", "eos_token_id": [7, 9]})).unwrap();
        let exported = config.export();
        assert_eq!((&exported["author"], &exported["head_dim"]), (&json!("somebody"), &json!(128)));
        let again = read(Arch::Qwen3, Value::Object(exported)).unwrap();
        assert_eq!(again.end_tokens(), [7, 9]);
        assert_eq!(LlamaConfig { given: Map::new(), ..again }, LlamaConfig { given: Map::new(), ..config });
    }
}
