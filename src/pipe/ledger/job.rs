//! A job as the ledger knows it: what decides how much a batch holds, whoever computes it.

use std::sync::LazyLock;

use pipe_spec::pipeline::{Allocator, Checkpointing, Command, Limit, OptimizerKind, Precision, Split};
use pipe_spec::{Device, TrainerSpec};
use regex::Regex;
use serde_json::{Map, Value};

use super::{allocator_text, model_hash};

/// The name of a run of several steps, before that of a step.
static RUN_ID: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[A-Za-z0-9][\w.-]*-\d{8}-\d{6}-[a-z]{4}\.").expect("it is written here"));

pub struct LedgerJob {
    /// A hash of the model, or of the command.
    pub(super) model: String,
    /// For people.
    pub(super) arch: String,
    pub(super) precision: Precision,
    pub(super) optimizer: OptimizerKind,
    pub(super) checkpointing: Checkpointing,
    pub(super) ranks: u32,
    pub(super) sharded: bool,
    pub(super) fills: bool,
    pub(super) allocator: String,
    pub(super) device: Device,
    pub(super) limit: Option<Limit>,
    pub(super) batch: u32,
    pub(super) is_command: bool,
    pub effective_batch: u32,
}

impl LedgerJob {
    /// `config` is the model's.
    pub fn of_training(spec: &TrainerSpec, config: &Map<String, Value>) -> Self {
        let text = |value| serde_json::to_value(value).ok().and_then(|value: Value| value.as_str().map(str::to_owned));
        Self {
            model: model_hash(&spec.model, config),
            arch: text(spec.model.arch).unwrap_or_default(),
            precision: spec.train.precision,
            optimizer: spec.train.optimizer.kind,
            checkpointing: spec.train.checkpointing,
            ranks: spec.rank.count,
            sharded: spec.rank.count > 1 && !spec.train.shard.is_none(),
            fills: spec.train.split == Split::Fill,
            allocator: allocator_text(&spec.memory.allocator),
            device: spec.device,
            limit: spec.memory.limit,
            batch: spec.train.batch(),
            is_command: false,
            effective_batch: spec.train.effective_batch,
        }
    }

    /// A command is known by its words, as the pipeline has them, and by the values of its variables.
    pub fn of_command(command: &Command, expandable_segments: bool, device: Device) -> Self {
        let text = serde_json::to_string(&(&command.line, &command.vars)).expect("words are plain data");
        // Outputs of other steps lie in runs whose names change.
        let text = RUN_ID.replace_all(&text, "RUN.");
        let program = command.line.0.iter().take(2).map(|word| word.rsplit('/').next().unwrap_or(word));
        Self {
            model: blake3::hash(text.as_bytes()).to_hex()[..16].to_owned(),
            arch: program.collect::<Vec<_>>().join(" "),
            precision: command.train.precision,
            optimizer: OptimizerKind::Adamw,
            checkpointing: Checkpointing::Off,
            ranks: 1,
            sharded: false,
            fills: false,
            allocator: allocator_text(&Allocator { expandable_segments, ..command.memory.allocator.clone() }),
            device,
            limit: command.memory.limit,
            batch: command.train.batch,
            is_command: true,
            effective_batch: command.train.effective_batch,
        }
    }

    /// The largest batch that makes a difference: all that a rank has of a step.
    pub fn largest_batch(&self) -> u32 {
        self.effective_batch.div_ceil(self.ranks.max(1))
    }

    /// What the ledger finds how long the rows of a command are by: itself.
    pub fn data(&self) -> &str {
        &self.model
    }
}
