//! What a new pipeline says of each architecture.

use pipe_spec::pipeline::{Arch, Task};

pub const ALL: [(&str, Arch); 8] = [
    ("t5", Arch::T5),
    ("bert", Arch::Bert),
    ("roberta", Arch::Roberta),
    ("xlm-roberta", Arch::XlmRoberta),
    ("deberta-v3", Arch::DebertaV3),
    ("clip", Arch::Clip),
    ("hybrid-cnn-lstm", Arch::HybridCnnLstm),
    ("mu-sota", Arch::MuSota),
];

pub fn name(arch: Arch) -> &'static str {
    ALL.iter().find(|known| known.1 == arch).map_or("", |known| known.0)
}

pub fn find(name: &str) -> Option<Arch> {
    ALL.iter().find(|known| known.0 == name).map(|known| known.1)
}

/// Where a training begins that nobody has tuned yet.
pub struct Defaults {
    pub epochs: u32,
    pub effective_batch: u32,
    pub lr: &'static str,
    pub schedule: &'static str,
    pub warmup: u32,
    /// A model that people begin from.
    pub hub: Option<&'static str>,
    /// Tokens of the vocabulary that goes with it.
    pub vocabulary: u64,
}

pub fn defaults(arch: Arch) -> Defaults {
    let classifier = |hub, vocabulary| Defaults {
        epochs: 3,
        effective_batch: 32,
        lr: "2.0e-5",
        schedule: "linear",
        warmup: 50,
        hub: Some(hub),
        vocabulary,
    };
    match arch {
        Arch::T5 => Defaults {
            epochs: 3,
            effective_batch: 64,
            lr: "3.0e-4",
            schedule: "cosine",
            warmup: 100,
            hub: Some("google/flan-t5-small"),
            vocabulary: 32_128,
        },
        Arch::Bert => classifier("google-bert/bert-base-uncased", 30_522),
        Arch::Roberta => classifier("FacebookAI/roberta-base", 50_265),
        Arch::XlmRoberta => classifier("FacebookAI/xlm-roberta-base", 250_002),
        Arch::DebertaV3 => classifier("microsoft/deberta-v3-base", 128_100),
        Arch::Clip => Defaults {
            epochs: 10,
            effective_batch: 128,
            lr: "2.0e-5",
            schedule: "cosine",
            warmup: 100,
            hub: Some("openai/clip-vit-base-patch32"),
            vocabulary: 49_408,
        },
        Arch::HybridCnnLstm => Defaults {
            epochs: 20,
            effective_batch: 256,
            lr: "1.0e-4",
            schedule: "cosine",
            warmup: 200,
            hub: None,
            vocabulary: 0,
        },
        Arch::MuSota => Defaults {
            epochs: 5,
            effective_batch: 32,
            lr: "3.0e-4",
            schedule: "cosine",
            warmup: 100,
            hub: None,
            vocabulary: 50_257,
        },
    }
}

/// The config of a model of a usual size, as lines of YAML. `vocabulary` is that of the tokenizer.
pub fn config(arch: Arch, vocabulary: u64, features: usize, classes: usize) -> Vec<String> {
    const SIZES: &str = "hidden_size: 768, num_hidden_layers: 12, num_attention_heads: 12, intermediate_size: 3072";
    match arch {
        Arch::T5 => vec![
            format!("vocab_size: {vocabulary}, d_model: 512, d_kv: 64, d_ff: 1024, num_layers: 8, num_heads: 6"),
            "feed_forward_proj: gated-gelu, tie_word_embeddings: false, dropout_rate: 0.1".to_owned(),
            "pad_token_id: 0, eos_token_id: 1, decoder_start_token_id: 0".to_owned(),
        ],
        Arch::Bert => vec![format!("vocab_size: {vocabulary}, max_position_embeddings: 512"), SIZES.to_owned()],
        Arch::Roberta | Arch::XlmRoberta => vec![
            format!("vocab_size: {vocabulary}, max_position_embeddings: 514, type_vocab_size: 1"),
            SIZES.to_owned(),
        ],
        Arch::DebertaV3 => vec![
            format!("vocab_size: {vocabulary}, max_position_embeddings: 512, type_vocab_size: 0"),
            SIZES.to_owned(),
            "relative_attention: true, position_buckets: 256, norm_rel_ebd: layer_norm, share_att_key: true".to_owned(),
            "pos_att_type: [p2c, c2p], position_biased_input: false".to_owned(),
        ],
        Arch::Clip => vec![
            "projection_dim: 512".to_owned(),
            format!("text_config: {{vocab_size: {vocabulary}, hidden_size: 512, intermediate_size: 2048, num_hidden_layers: 12, num_attention_heads: 8, max_position_embeddings: 77, bos_token_id: 0, eos_token_id: 1, pad_token_id: 1}}"),
            "vision_config: {hidden_size: 768, intermediate_size: 3072, num_hidden_layers: 12, num_attention_heads: 12, image_size: 224, patch_size: 32}".to_owned(),
        ],
        Arch::HybridCnnLstm => vec![
            format!("input_features: {features}, num_classes: {classes}, sequence_length: 60"),
            "conv_channels: [64, 128], kernel_size: 3, lstm_hidden: 256, lstm_layers: 2, bidirectional: true".to_owned(),
            "attention_heads: 4, dropout: 0.1, norm: layer".to_owned(),
        ],
        Arch::MuSota => vec![
            format!("vocab_size: {vocabulary}, n_layers: 24, n_blocks: 16, block_dim: 4, block_heads: 2, cross_heads: 8"),
            "ffn_dim: 7488, max_seq_len: 512, dropout: 0.0".to_owned(),
        ],
    }
}

/// What a task is, for somebody who chooses.
pub fn words(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq => "a text from a text",
        Task::Classification => "a class or a number for a text or two",
        Task::Contrastive => "which picture belongs to which text",
        Task::TimeSeries => "a class for a window of a time series",
        Task::Language => "the next token of a text",
    }
}

/// Where the data of a task usually lies.
pub fn data(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq | Task::Classification | Task::Contrastive => "data/train.jsonl",
        Task::TimeSeries => "data/train.csv",
        Task::Language => "data/train.txt",
    }
}
