//! The command line.
//!
//! The command line of `pipe-trainer-bench`.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Trains what a spec of pipe describes")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of this process. Ends the process where it is wrong.
    pub fn read() -> Self {
        Self::parse()
    }

    /// Another command line, whose first word is the name of the program. It must be right.
    pub fn of(words: impl IntoIterator<Item: Into<OsString> + Clone>) -> Self {
        Self::parse_from(words)
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Train; events go to stdout, one JSON object a line
    Train {
        #[arg(long, value_name = "FILE")]
        spec: PathBuf,
        #[command(flatten)]
        rank: RankArgs,
    },
    /// Find the largest batch that fits; events go to stdout, one JSON object a line
    Fit {
        #[arg(long, value_name = "FILE")]
        spec: PathBuf,
    },
    /// Open the data of a training and print what is in it, as one JSON object
    Inspect {
        #[arg(long, value_name = "FILE")]
        spec: PathBuf,
    },
    /// Predict the rows of a file with a trained model, for `pipe predict`
    Predict {
        #[arg(long, value_name = "FILE")]
        spec: PathBuf,
    },
    /// Try batches that are read from stdin, for `fit`
    #[command(hide = true)]
    Measure {
        #[arg(long, value_name = "FILE")]
        spec: PathBuf,
    },
    /// Generate text with a trained model: the continuation of a prompt, or the answer to it
    Generate(GenerateArgs),
    /// Make a tokenizer for a model that starts from scratch
    #[command(subcommand)]
    Tokenizer(TokenizerCommand),
    /// Generate synthetic data
    #[command(subcommand)]
    Data(DataCommand),
}

impl Command {
    /// Whether a signal to stop lets it save first. It ends the others at once.
    pub fn saves_when_stopped(&self) -> bool {
        matches!(self, Self::Train { .. } | Self::Fit { .. } | Self::Predict { .. } | Self::Measure { .. })
    }
}

/// For a rank that the trainer starts itself.
#[derive(Args)]
pub struct RankArgs {
    /// Which one
    #[arg(long, hide = true)]
    pub rank: Option<u32>,
    /// The batch, where the spec leaves it open
    #[arg(long, hide = true, requires = "rank")]
    pub batch: Option<NonZeroU32>,
    /// Events that are written already
    #[arg(long, hide = true, requires = "rank", default_value_t = 0)]
    pub events: u64,
}

#[derive(Args)]
pub struct GenerateArgs {
    /// A folder in Hugging Face layout, with weights and tokenizer, such as `model/` of a run
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Sampling temperature of a language model; 0 takes the most probable token
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = at_least_zero)]
    pub temperature: f64,
    /// Nucleus sampling: choose among the most probable tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = share)]
    pub top_p: f64,
    /// Seed of the sampling
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Beams of a seq2seq model; 1 takes the most probable token each time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub beams: u32,
}

fn at_least_zero(text: &str) -> Result<f64, String> {
    number(text, "at least 0", |number| number >= 0.0)
}

fn share(text: &str) -> Result<f64, String> {
    number(text, "above 0, at most 1", |number| number > 0.0 && number <= 1.0)
}

fn number(text: &str, allowed: &str, is_allowed: impl Fn(f64) -> bool) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && is_allowed(*number));
    number.ok_or_else(|| format!("allowed: a number, {allowed}"))
}

#[derive(Subcommand)]
pub enum TokenizerCommand {
    /// Train a tokenizer on the texts of data files: of the kind, and with the special tokens, that the published models of the
    /// architecture have
    Train(TrainTokenizerArgs),
}

#[derive(Args)]
pub struct TrainTokenizerArgs {
    /// The architecture, as model.arch of a pipeline
    #[arg(long)]
    pub arch: String,
    /// .jsonl, .csv, .tsv or .txt; can be repeated
    #[arg(long, value_name = "FILE", required = true)]
    pub data: Vec<String>,
    /// Which column holds what, as data.fields of a pipeline: text=review; can be repeated
    #[arg(long, value_name = "ROLE=COLUMN")]
    pub field: Vec<String>,
    /// The most tokens, as vocab_size of the model's config
    #[arg(long, value_name = "N", default_value_t = 8000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub vocab_size: u32,
    /// Written: tokenizer.json, which a pipeline finds beside its data
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Subcommand)]
pub enum DataCommand {
    /// Cooking recipes whose directions follow from their ingredients
    Recipes(RowsArgs),
    /// Descriptions of dishes with their class: soup, salad or cake
    Texts(RowsArgs),
    /// Small pictures of cars with captions, and the kind of car
    Pictures(PicturesArgs),
    /// Short stories as plain text, for a language model
    Stories(StoriesArgs),
    /// Conversations about cooking
    Talks(RowsArgs),
    /// A time series in three states, as comma-separated values
    Series(SeriesArgs),
    /// A table of customers and whether they cancel, as comma-separated values
    Table(TableArgs),
}

#[derive(Args)]
pub struct StoriesArgs {
    /// Stories of train.txt
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,
    #[arg(long)]
    pub seed: u64,
    /// Write train.txt, eval.txt and tokenizer.json there
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Stories of eval.txt; default: a twentieth of --rows
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub eval_rows: Option<u64>,
}

#[derive(Args)]
pub struct RowsArgs {
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

#[derive(Args)]
pub struct SeriesArgs {
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,
    #[arg(long)]
    pub seed: u64,
    /// Columns beside time and label
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    pub features: u64,
    /// Write train.csv and eval.csv there
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Rows of eval.csv; default: a tenth of --rows, at least 200
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub eval_rows: Option<u64>,
}

#[derive(Args)]
pub struct TableArgs {
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,
    #[arg(long)]
    pub seed: u64,
    /// Write train.csv there
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

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
    /// Time products of few rows with a matrix of 4 bits on the card, as it is and made wide first: a line of JSON for each
    QuantizedProducts,
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
    #[command(flatten)]
    pub rows: RowArgs,
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

/// The rows of random data.
#[derive(Args)]
pub struct RowArgs {
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
    /// The share that it drops of its input
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, requires = "lora")]
    pub lora_dropout: f64,
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
