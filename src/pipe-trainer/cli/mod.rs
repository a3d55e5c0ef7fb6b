//! The command line.

pub mod bench;

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
