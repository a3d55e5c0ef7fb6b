//! MU-SOTA: its config.json, its parameters, and the memory of a step. The defaults are the model of its authors, which has 26.87 million
//! parameters.

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Algorithm, Architecture, ModelConfig, ModelSize, Starter, StarterSizes, StarterTraining, Template, Tokenization,
    TrainedTokenizer, joined,
};
use crate::config_keys::{ConfigError, ConfigKeys, bounded_width, extended, fail};
use crate::estimate::{
    Stage, StepMemory, WordLoss, Work, column_sums, has_attention_kernel, recomputed, rows_at_a_time,
};
use crate::parameter::{Init, Listed, Parameter};
use crate::task_data::{Labels, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct MuSotaConfig {
    pub vocab_size: i64,
    pub n_layers: i64,
    /// Each layer has so many narrow attentions side by side.
    pub n_blocks: i64,
    /// The width of one of them.
    pub block_dim: i64,
    pub block_heads: i64,
    pub cross_heads: i64,
    pub ffn_dim: i64,
    pub max_seq_len: i64,
    /// The dropout of embeddings, and of the output of each attention and each feed-forward layer.
    pub dropout: f64,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

impl MuSotaConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let config = Self {
            vocab_size: keys.size("vocab_size")?.unwrap_or(50257),
            n_layers: keys.size("n_layers")?.unwrap_or(24),
            n_blocks: keys.size("n_blocks")?.unwrap_or(16),
            block_dim: keys.size("block_dim")?.unwrap_or(4),
            block_heads: keys.size("block_heads")?.unwrap_or(2),
            cross_heads: keys.size("cross_heads")?.unwrap_or(8),
            ffn_dim: keys.size("ffn_dim")?.unwrap_or(7488),
            max_seq_len: keys.size("max_seq_len")?.unwrap_or(512),
            dropout: keys.dropout("dropout")?.unwrap_or(0.0),
            given: given.clone(),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        bounded_width("n_blocks x block_dim", self.n_blocks.checked_mul(self.block_dim))?;
        for (key, heads, of, width) in [
            ("block_heads", self.block_heads, "block_dim", self.block_dim),
            ("cross_heads", self.cross_heads, "n_blocks x block_dim", self.width()),
        ] {
            if width % heads != 0 {
                return Err(fail(key, format!("found {heads}; allowed: what divides {of}, which is {width}")));
            }
        }
        if self.max_seq_len < 2 {
            return Err(fail("max_seq_len", format!("found {}; allowed: at least 2", self.max_seq_len)));
        }
        Ok(())
    }

    /// The width of all blocks together.
    pub fn width(&self) -> i64 {
        self.n_blocks * self.block_dim
    }

    /// Rows whose logits exist at a time: 32 MiB in fp32.
    pub fn loss_rows(&self) -> i64 {
        rows_at_a_time(1 << 23, self.vocab_size)
    }

    /// Rows of which the inside of a feed-forward layer exists at a time.
    pub fn feed_forward_rows(&self) -> i64 {
        rows_at_a_time(1 << 25, self.ffn_dim)
    }

    /// config.json: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "model_type": "mu_sota",
            "vocab_size": self.vocab_size,
            "n_layers": self.n_layers,
            "n_blocks": self.n_blocks,
            "block_dim": self.block_dim,
            "block_heads": self.block_heads,
            "cross_heads": self.cross_heads,
            "ffn_dim": self.ffn_dim,
            "max_seq_len": self.max_seq_len,
            "dropout": self.dropout,
        });
        extended(&self.given, filled)
    }
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(MuSotaConfig::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 1.0e-4, epochs: 3, steps: 60 },
        scratch: StarterTraining { lr: 2.0e-3, epochs: 3, steps: 200 },
        base_lr: 3.0e-4,
        effective_batch: 32,
        schedule: "cosine",
        hub: None,
        vocabulary: 50_257,
        config,
    },
    tokenization: Some(Tokenization::json(TrainedTokenizer {
        algorithm: Algorithm::ByteLevelBpe,
        special: &["<|endoftext|>"],
        template: Template::Bare,
    })),
    in_transformers: false,
    generation_keys: &[],
    adapts: Adaptable::NONE,
};

fn config(StarterSizes { model, vocabulary, length, .. }: &StarterSizes) -> Map<String, Value> {
    let (layers, blocks, width, heads, cross, inner) = match model {
        ModelSize::Small => (2, 4, 32, 2, 4, 512),
        ModelSize::Medium => (8, 8, 32, 2, 8, 1024),
        ModelSize::Base => (24, 16, 4, 2, 8, 7488),
    };
    joined([json!({
        "vocab_size": vocabulary, "n_layers": layers, "n_blocks": blocks, "block_dim": width, "block_heads": heads,
        "cross_heads": cross, "ffn_dim": inner, "max_seq_len": length, "dropout": 0.0,
    })])
}

impl ModelConfig for MuSotaConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        TaskData::Language {
            vocab_size: self.vocab_size as u64,
            max_length: self.max_seq_len as u32,
            joins_texts: true,
        }
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

const INIT: Init = Init::Normal { std: 0.02 };

pub fn parameters(config: &MuSotaConfig) -> Vec<Parameter> {
    let MuSotaConfig { vocab_size, n_layers, n_blocks, block_dim, ffn_dim, max_seq_len, .. } = *config;
    let width = config.width();
    let mut list = Listed::default();
    list.push("tok_emb.weight", &[vocab_size, width], INIT);
    list.push("pos_emb.weight", &[max_seq_len, width], INIT);
    for layer in 0..n_layers {
        let path = |name: &str| format!("layers.{layer}.{name}");
        list.norm(&path("ln1"), width);
        list.linear(&path("blocks.qkv"), &[n_blocks, 3 * block_dim, block_dim], INIT);
        list.linear(&path("blocks.out"), &[n_blocks, block_dim, block_dim], INIT);
        list.norm(&path("ln2"), width);
        list.linear(&path("cross.qkv"), &[3 * width, width], INIT);
        list.linear(&path("cross.out"), &[width, width], INIT);
        list.norm(&path("ln3"), width);
        list.linear(&path("ffn.fc1"), &[ffn_dim, width], INIT);
        list.linear(&path("ffn.fc2"), &[width, ffn_dim], INIT);
    }
    list.norm("ln_f", width);
    list.0
}

impl StepMemory for MuSotaConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let sizes = Sizes::new(self, work);
        let loss = WordLoss {
            tokens: sizes.tokens,
            width: sizes.width,
            vocab: self.vocab_size as u128,
            rows: self.loss_rows() as u128,
            trains_head: true,
        };
        let mut stages = vec![sizes.embeddings(), sizes.projections()];
        for layer in 0..self.n_layers {
            stages.extend(sizes.layer(layer));
        }
        stages.push(sizes.final_norm());
        // The gradient of the head waits for that of the embeddings, beside that of the passes before.
        let waiting = work.beside(sizes.words());
        stages.iter_mut().for_each(|stage| stage.backward += waiting);
        stages.into_iter().chain(loss.stages(work)).collect()
    }
}

impl Sizes<'_> {
    fn embeddings(&self) -> Stage {
        let positions = self.config.max_seq_len as u128 * self.width * self.weight;
        Stage {
            name: "embeddings".to_owned(),
            forward: 2 * self.hidden(),
            // The gradient of the words is added to that of the head.
            backward: self.hidden() + self.words(),
            gradients: positions,
            ..Stage::default()
        }
    }

    fn projections(&self) -> Stage {
        let layers = self.config.n_layers as u128;
        let all = layers * self.projection();
        let (n, size) = (self.config.n_blocks as u128, self.config.block_dim as u128);
        Stage {
            name: "projections of blocks".to_owned(),
            kept: all,
            forward: self.hidden() + 2 * all,
            // Those of the layers, and together.
            backward: self.hidden() + 2 * all,
            gradients: layers * n * (4 * size * size + 3 * size) * self.weight,
            logits: 0,
        }
    }

    /// As one stage with checkpointing, as one for each of its parts without.
    fn layer(&self, number: i64) -> Vec<Stage> {
        let path = |part: &str| format!("layer {number}{part}");
        let MuSotaConfig { n_blocks, block_heads, cross_heads, n_layers, .. } = *self.config;
        let (width, weights) = (self.width, 4 * self.width * self.width + 4 * self.width);
        let mut inside = [
            self.attention(path(" block attention"), self.blocks_width, (n_blocks * block_heads) as u128, width),
            self.attention(path(" attention"), width, cross_heads as u128, weights),
            self.feed_forward(path(" feed-forward")),
        ];
        // The gradients of later layers' projections, and the input of a layer that is recomputed.
        let mut waiting = (n_layers - 1 - number) as u128 * self.projection();
        if self.work.checkpointing {
            waiting += self.hidden();
        }
        inside.iter_mut().for_each(|stage| stage.backward += waiting);
        if !self.work.checkpointing {
            return inside.to_vec();
        }
        // Names inside a layer live until its end, those of both attentions as well.
        let named = 4 * self.tokens * (self.blocks_width + width) * self.compute;
        let forward = inside[2].forward + named;
        vec![Stage { forward, ..recomputed(path(""), &inside, self.hidden(), self.work) }]
    }

    /// `width` is that of all heads together, `weights` how many parameters it has.
    fn attention(&self, name: String, width: u128, heads: u128, weights: u128) -> Stage {
        let projected = self.tokens * width * self.compute;
        let rows = self.tokens * heads;
        let kept = self.normed() + 4 * projected + rows * 4;
        // In kinds of 16 bits heads have room for the trainer's own kernel, with two numbers for each row, unless they are too wide:
        // flash attention adds up the gradient of queries in fp32, in heads of whole 32.
        let summed = match self.compute < 4 {
            true if has_attention_kernel((width / heads) as i64) => 2 * rows * 4,
            true => rows * ((width / heads).next_multiple_of(32) + 1) * 4,
            false => rows * 4,
        };
        // The gradients of the output, of queries, keys and values; then of these three apart and together.
        let inside = kept + 4 * projected + summed;
        let joined = self.normed() + 6 * projected;
        let biases = self.normed() + 3 * projected + self.narrow() + column_sums(self.tokens, 3 * width);
        Stage {
            name,
            kept,
            forward: kept + 2 * (self.hidden() + self.narrow()),
            backward: self.hidden() + inside.max(joined).max(biases),
            gradients: (weights + 2 * self.width) * self.weight,
            logits: 0,
        }
    }

    fn feed_forward(&self, name: String) -> Stage {
        let weights = self.width * self.feed;
        let narrow_weights = self.work.narrow_copy(2 * weights + self.feed);
        let rows = self.config.feed_forward_rows() as u128;
        let inner = rows.min(self.tokens) * self.feed * self.compute;
        let kept = self.normed() + narrow_weights;
        // Gradients of weights are added up in fp32 where there are several chunks.
        let summed = 2 * weights * if self.tokens > rows { 4 } else { self.compute };
        let first = if self.tokens > rows { summed } else { summed / 2 };
        // The input of the activation, its gradient and that of the output; then the first of them for the bias.
        let inside = (3 * inner + first).max(inner + summed + column_sums(rows.min(self.tokens), self.feed));
        let gradients = (2 * weights + self.feed + 3 * self.width) * self.weight;
        let given = self.hidden() + self.dropped();
        // The input of the layer and of this part of it, and what its attentions gave, live until the end of the layer.
        let named = 2 * (self.hidden() + self.narrow());
        Stage {
            name,
            kept,
            forward: kept + named + self.hidden() + self.narrow() + inner.max(self.hidden()),
            backward: (kept + given + self.narrow() + inside).saturating_sub(self.new_gradients(gradients)),
            gradients,
            logits: 0,
        }
    }

    fn final_norm(&self) -> Stage {
        let hidden = self.hidden();
        let kept = hidden + self.tokens * 4;
        Stage {
            name: "norm".to_owned(),
            kept,
            forward: kept + 2 * hidden,
            backward: kept + 2 * hidden,
            gradients: 2 * self.width * self.weight,
            logits: 0,
        }
    }
}

/// Bytes, where nothing else is said.
pub struct Sizes<'a> {
    pub config: &'a MuSotaConfig,
    pub work: &'a Work,
    /// Numbers: tokens of a pass, width of hidden states, of all heads of the block attentions with their room, of the
    /// middle of a feed-forward layer.
    pub tokens: u128,
    pub width: u128,
    pub blocks_width: u128,
    pub feed: u128,
    /// Bytes of a number that is added up along the layers, and of one that is computed with.
    pub weight: u128,
    pub compute: u128,
}

impl<'a> Sizes<'a> {
    pub fn new(config: &'a MuSotaConfig, work: &'a Work) -> Self {
        let compute = work.compute();
        let room = ((config.block_dim / config.block_heads) as u128).next_multiple_of(16 / compute);
        Self {
            config,
            work,
            tokens: work.batch * work.source,
            width: config.width() as u128,
            blocks_width: (config.n_blocks * config.block_heads) as u128 * room,
            feed: config.ffn_dim as u128,
            weight: work.weight(),
            compute,
        }
    }

    /// Hidden states, as they are added up along the layers.
    pub fn hidden(&self) -> u128 {
        self.tokens * self.width * self.weight
    }

    /// Hidden states, as products take and give them.
    pub fn narrow(&self) -> u128 {
        self.tokens * self.width * self.compute
    }

    /// The embeddings of words.
    pub fn words(&self) -> u128 {
        self.config.vocab_size as u128 * self.width * self.weight
    }

    /// The block-diagonal projections of a layer.
    pub fn projection(&self) -> u128 {
        4 * self.blocks_width * self.width * self.compute
    }

    /// Bytes that a norm keeps: its input, normed and, where the trainer has a kernel for the width, before that as it is
    /// multiplied by its weights; and what each row was divided by.
    pub fn normed(&self) -> u128 {
        let has_kernel = self.width.is_multiple_of(8) && self.width <= 4096;
        let before = if has_kernel { self.narrow() } else { self.hidden() + self.tokens * 4 };
        self.narrow() + before + self.tokens * 4
    }

    /// The gradient of what a layer gave, where it is not that of the sum.
    pub fn dropped(&self) -> u128 {
        if self.work.drops || self.work.mixed() { self.narrow() } else { 0 }
    }

    /// New gradients, where they are counted apart.
    pub fn new_gradients(&self, gradients: u128) -> u128 {
        if self.work.accum > 1 { 0 } else { gradients }
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::Map;

    use super::*;

    fn read(config: Value) -> Result<MuSotaConfig, ConfigError> {
        MuSotaConfig::read(config.as_object().unwrap())
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({"n_layers": 0}), "n_layers: found 0"),
            (json!({"ffn_dim": "wide"}), "ffn_dim: found \"wide\""),
            (json!({"block_heads": 3}), "block_heads: found 3; allowed: what divides block_dim, which is 4"),
            (
                json!({"cross_heads": 5}),
                "cross_heads: found 5; allowed: what divides n_blocks x block_dim, which is 64",
            ),
            (json!({"dropout": 1.0}), "dropout: found 1; allowed: at least 0 and below 1"),
            (json!({"max_seq_len": 1}), "max_seq_len: found 1; allowed: at least 2"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_export_reads_back_and_keeps_what_it_does_not_know() {
        let config = read(json!({"n_layers": 2, "author": "somebody"})).unwrap();
        let exported = config.export();
        assert_eq!((&exported["author"], &exported["ffn_dim"]), (&json!("somebody"), &json!(7488)));
        assert_eq!(
            MuSotaConfig { given: Map::new(), ..read(Value::Object(exported)).unwrap() },
            MuSotaConfig { given: Map::new(), ..config }
        );
    }

    #[test]
    fn the_model_of_its_authors_has_its_size() {
        let parameters = parameters(&MuSotaConfig::read(&Map::new()).unwrap());
        let count: i64 = parameters.iter().map(|parameter| parameter.shape.iter().product::<i64>()).sum();
        assert_eq!(count, 26_873_024);
    }

    fn largest(checkpointing: bool, batch: u128) -> u128 {
        let config = MuSotaConfig::read(&Map::new()).unwrap();
        let work = Work {
            precision: Precision::Fp16Mixed,
            optimizer: OptimizerKind::Adamw,
            checkpointing,
            batch,
            accum: 1,
            ranks: 1,
            sharded: false,
            source: 512,
            target: 0,
            padded: false,
            drops: false,
            adapter: None,
        };
        crate::estimate::peak(&config.stages(&work), 0, &work).bytes()
    }

    /// The inner width is 117 times the outer: kept whole, the middle of the feed-forward layers would be most.
    #[test]
    fn the_middle_of_feed_forward_layers_is_not_kept() {
        let middle = 24 * 32 * 512 * 7488 * 2;
        assert!(largest(false, 32) < middle / 3);
        assert!(largest(true, 32) < largest(false, 32) / 3);
    }
}
