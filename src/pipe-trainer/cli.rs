//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Trains what a spec of pipe describes")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Train; events go to stdout, one JSON object a line
    Train {
        #[arg(long, value_name = "FILE")]
        spec: PathBuf,
    },
    /// Compute logits and gradients of one batch, to compare with another implementation
    Parity(ParityArgs),
    /// Time training steps of T5 on random tokens, and print one line of JSON
    Bench(BenchArgs),
    /// Make data
    #[command(subcommand)]
    Data(DataCommand),
}

#[derive(Args)]
pub struct ParityArgs {
    /// A folder in Hugging Face layout
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// What the model is given, by name: input_ids, attention_mask, labels and the like
    #[arg(long, value_name = "FILE")]
    pub batch: PathBuf,
    /// Gets logits, grad.<name> of every parameter, and last_hidden_state of an encoder
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[arg(long, default_value = "fp32")]
    pub precision: String,
    /// On the card instead of the CPU
    #[arg(long)]
    pub cuda: bool,
    /// With gradient checkpointing
    #[arg(long)]
    pub checkpointing: bool,
}

#[derive(Args)]
pub struct BenchArgs {
    /// small, base, large or xl
    #[arg(long)]
    pub size: String,
    #[arg(long)]
    pub batch: i64,
    #[arg(long)]
    pub source: i64,
    #[arg(long)]
    pub target: i64,
    #[arg(long, default_value = "bf16")]
    pub precision: String,
    /// With gradient checkpointing
    #[arg(long)]
    pub checkpointing: bool,
    /// As memory.limit of a pipeline
    #[arg(long)]
    pub limit: Option<String>,
    /// Steps that are timed
    #[arg(long, default_value_t = 20)]
    pub steps: usize,
    /// On the CPU instead of the card
    #[arg(long)]
    pub cpu: bool,
    /// Writes what the card does in one more step, as a Chrome trace
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum DataCommand {
    /// Cooking recipes whose directions follow from their ingredients
    Recipes(RecipesArgs),
    /// Small pictures of cars with captions
    Pictures(PicturesArgs),
}

#[derive(Args)]
pub struct RecipesArgs {
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,
    #[arg(long)]
    pub seed: u64,
    /// Write train.jsonl, eval.jsonl and tokenizer.json there, instead of rows to stdout
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Rows of eval.jsonl; default: a twentieth of --rows
    #[arg(long, requires = "out", value_parser = clap::value_parser!(u64).range(1..))]
    pub eval_rows: Option<u64>,
}

#[derive(Args)]
pub struct PicturesArgs {
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,
    #[arg(long)]
    pub seed: u64,
    /// Height and width
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..=4096))]
    pub size: u32,
    /// Write train.jsonl, eval.jsonl, tokenizer.json and the pictures there
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Rows of eval.jsonl; default: a twentieth of --rows
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub eval_rows: Option<u64>,
}
