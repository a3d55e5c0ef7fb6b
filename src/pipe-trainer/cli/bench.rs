//! The command line of `pipe-trainer-bench`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Measures the trainer, and compares it with other implementations")]
pub struct BenchCli {
    #[command(subcommand)]
    pub command: BenchCommand,
}

impl BenchCli {
    /// The command line of this process. Ends the process where it is wrong.
    pub fn read() -> Self {
        Self::parse()
    }
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Compute logits and gradients of one batch, to compare with another implementation
    Parity(ParityArgs),
    /// Print digests of what dropout keeps, as one JSON object, to compare two devices
    DropoutMasks(DropoutMasksArgs),
    /// Print digests of what quantized weights stand for, as one JSON object, to compare two devices
    QuantizedWeights(QuantizedWeightsArgs),
    /// Time training steps on random data, and print a line of JSON
    Steps(BenchArgs),
}

#[derive(Args)]
pub struct ParityArgs {
    /// A folder in Hugging Face layout
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The folder of an adapter, as PEFT writes it: its gradients are written in place of the model's
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// With weights quantized as model.quantize of a pipeline: int8 or nf4
    #[arg(long, requires = "adapter")]
    pub quantize: Option<String>,
    /// The batch has pairs of answers (rejected_ids and rejected_labels beside ids and labels): the loss is that of DPO with this factor
    #[arg(long)]
    pub beta: Option<f64>,
    /// The inputs of the model, by name: input_ids, attention_mask, labels and the like
    #[arg(long, value_name = "FILE")]
    pub batch: PathBuf,
    /// Written: logits, grad.<name> of every parameter, and last_hidden_state of an encoder
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
    /// With samples one behind the other, also where a training pads them: loss, gradients and outputs are those of packed samples
    #[arg(long)]
    pub packed: bool,
}

#[derive(Args)]
pub struct DropoutMasksArgs {
    #[arg(long, default_value = "fp32")]
    pub precision: String,
    /// On the card instead of the CPU
    #[arg(long)]
    pub cuda: bool,
}

#[derive(Args)]
pub struct QuantizedWeightsArgs {
    /// On the card instead of the CPU
    #[arg(long)]
    pub cuda: bool,
}

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[arg(long)]
    pub batch: i64,
    /// Batches in a step
    #[arg(long, default_value_t = 1)]
    pub accum: i64,
    /// adamw, adamw8bit or adafactor
    #[arg(long, default_value = "adamw")]
    pub optimizer: String,
    /// With rows that are padded, so that there is a mask
    #[arg(long)]
    pub padded: bool,
    /// Shares of the rows that are tokens, on average: rows of many lengths instead of full ones. Each share is timed twice, with rows that are padded
    /// to the longest and with samples one behind the other, and prints two lines
    #[arg(long, value_name = "SHARE", value_delimiter = ',', conflicts_with_all = ["padded", "sums", "trace"])]
    pub fill_of_rows: Vec<f64>,
    /// Tokens of a row, of a T5's source
    #[arg(long, default_value_t = 512)]
    pub source: i64,
    /// Tokens of a T5's target
    #[arg(long, default_value_t = 128)]
    pub target: i64,
    #[arg(long, default_value = "bf16")]
    pub precision: String,
    /// With gradient checkpointing
    #[arg(long)]
    pub checkpointing: bool,
    /// As memory.limit of a pipeline
    #[arg(long)]
    pub limit: Option<String>,
    /// Launches kernels one by one
    #[arg(long)]
    pub no_graphs: bool,
    /// Steps that are timed
    #[arg(long, default_value_t = 20)]
    pub steps: usize,
    /// On the CPU instead of the card
    #[arg(long)]
    pub cpu: bool,
    #[command(flatten)]
    pub sums: SumArgs,
    /// Writes what the card does in one more step, as a Chrome trace
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// The model whose steps are timed.
#[derive(Args)]
pub struct ModelArgs {
    /// t5-small to t5-xl, bert-base, bert-large, deberta-v3-base, clip-vit-b-32, mu-sota, llama-1b or llama-8b
    #[arg(long = "model", id = "model", required_unless_present = "arch")]
    pub name: Option<String>,
    /// Any architecture, as model.arch of a pipeline, instead of --model
    #[arg(long, conflicts_with = "model")]
    pub arch: Option<String>,
    /// Its config, as model.config of a pipeline
    #[arg(long, value_name = "JSON", requires = "arch")]
    pub config: Option<String>,
    /// Trains an adapter of this rank beside all linear layers
    #[arg(long, value_name = "RANK")]
    pub lora: Option<NonZeroU32>,
    /// Beside weights quantized as model.quantize of a pipeline: int8 or nf4
    #[arg(long, requires = "lora")]
    pub quantize: Option<String>,
}

/// The sums of other ranks that are stood in for.
#[derive(Args)]
pub struct SumArgs {
    /// As one of several ranks on a card that is alone: instead of being summed, gradients wait as long as a sum at so many GB/s takes
    #[arg(long = "sums", id = "sums", value_name = "GB/S", conflicts_with = "cpu")]
    pub rate: Option<f64>,
    /// Microseconds that each of the sums takes beside that
    #[arg(long = "sum-latency", value_name = "US", default_value_t = 0.0, requires = "sums")]
    pub latency: f64,
    /// Blocks of threads that a sum takes from the card
    #[arg(long = "sum-blocks", value_name = "N", default_value_t = 4, requires = "sums")]
    pub blocks: u32,
    /// Sums after the last part, which may then be a CUDA graph too
    #[arg(long = "sums-after", requires = "sums")]
    pub after: bool,
}
