//! Arguments of `pipe predict`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::command;
use crate::engine::registry;
use crate::report::Output;

#[derive(Args)]
pub struct PredictArgs {
    /// A run by its id, the beginning of an id, or latest; or the folder of a trained model
    run: String,
    /// The rows to predict: a file or a folder in a format of data.train, or - for standard input (can be repeated)
    #[arg(long, required = true, value_name = "PATH")]
    data: Vec<String>,
    /// Write the predictions to this file: .csv, .tsv, or one JSON object per line; default: print them as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The column for a role, as data.fields of a pipeline: text=review (can be repeated); default: as in the run
    #[arg(long, value_name = "ROLE=COLUMN", value_parser = field, alias = "fields")]
    field: Vec<(String, String)>,
    /// Repeat this column in the output (can be repeated); a column id is always repeated
    #[arg(long, value_name = "COLUMN")]
    keep: Vec<String>,
    /// Skip pictures that cannot be read, rows without a text, and rows with too few or too many cells
    #[arg(long)]
    skip_bad: bool,
    /// Rows that are computed together; default: the batch of the run's evaluations, or 32
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroU32>,
    /// Tokens of a generated text, at most; default: as in the run's evaluations
    #[arg(long, value_name = "N")]
    max_length: Option<NonZeroU32>,
    /// Beams of a seq2seq model; 1 takes the most probable token each time; default: as in the run's evaluations
    #[arg(long, value_name = "N")]
    beams: Option<NonZeroU32>,
    /// Predict on the CPU even if there is a GPU
    #[arg(long)]
    cpu: bool,
    /// The engine that starts the job; default: that of the run
    #[arg(long, value_parser = PossibleValuesParser::new(registry::names()))]
    engine: Option<String>,
    /// Start now, even if runs use the card
    #[arg(long)]
    no_queue: bool,
    /// Print a summary as JSON; the predictions then need a file
    #[arg(long, requires = "out")]
    json: bool,
}

impl PredictArgs {
    pub fn options(self, quiet: bool) -> command::predict::PredictOptions {
        let Self { run, data, out, field, keep, skip_bad, batch, max_length, beams, cpu, engine, no_queue, json } =
            self;
        command::predict::PredictOptions {
            subject: run,
            data,
            out: out.filter(|out| out.as_os_str() != "-"),
            fields: field,
            keep,
            skip_bad,
            batch,
            max_length,
            beams,
            cpu,
            engine,
            no_queue,
            output: Output::new(json, quiet),
        }
    }
}

fn field(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((role, column)) if !role.is_empty() && !column.is_empty() => Ok((role.to_owned(), column.to_owned())),
        _ => Err("allowed: ROLE=COLUMN, such as text=review".to_owned()),
    }
}
