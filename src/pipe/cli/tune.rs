//! Arguments of `pipe tune`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};

use crate::command::tune;
use crate::engine::registry;
use crate::report::Output;
use crate::run::RunChoices;

#[derive(Subcommand)]
pub enum TuneCommand {
    /// Run the trials of a study file until its budget is spent; Ctrl-C stops it, `pipe tune resume` continues
    Run(TuneRunArgs),
    /// Show the progress of a study: its trials, those that did not fit, the best
    Status {
        /// An id, the beginning of an id, or latest
        #[arg(default_value = "latest")]
        study: String,
        /// Print the study with all trials as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the pipeline file of the best trial
    Best {
        /// An id, the beginning of an id, or latest
        #[arg(default_value = "latest")]
        study: String,
        /// Take this trial instead
        #[arg(long, value_name = "NUMBER")]
        trial: Option<u64>,
        /// Write the pipeline to this file
        #[arg(short, long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print the best trials as JSON instead
        #[arg(long, conflicts_with = "out")]
        json: bool,
    },
    /// Continue a study that was stopped or failed, or whose pipe process was killed
    Resume {
        /// An id, the beginning of an id, or latest
        #[arg(default_value = "latest")]
        study: String,
        /// Change the budget: budget.trials=200 (can be repeated)
        #[arg(long = "set", value_name = "PATH=VALUE")]
        set: Vec<String>,
        /// Run in the background
        #[arg(short, long)]
        detach: bool,
        /// Print the trials and their events as JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Stop a study: the trials that run save a checkpoint and end
    Stop {
        /// An id, the beginning of an id, or latest
        #[arg(default_value = "latest")]
        study: String,
        /// Do not wait for checkpoints
        #[arg(long)]
        now: bool,
    },
    /// Print all trials as CSV or JSON
    Export {
        /// An id, the beginning of an id, or latest
        #[arg(default_value = "latest")]
        study: String,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        /// Write them to this file
        #[arg(short, long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

#[derive(Args)]
pub struct TuneRunArgs {
    /// The study file
    file: PathBuf,
    /// The engine that starts the jobs; default: docker if a daemon answers, else process
    #[arg(long, value_parser = PossibleValuesParser::new(registry::names()))]
    engine: Option<String>,
    /// Replace a value of the study file: budget.trials=20 (can be repeated)
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Run in the background: print the id of the study and return
    #[arg(short, long)]
    detach: bool,
    /// Resume the newest study of this file if it did not finish; else start a new one
    #[arg(long)]
    resume: bool,
    /// Neither read nor write the ledger
    #[arg(long)]
    ignore_ledger: bool,
    /// Start trials now, even if other runs use the card
    #[arg(long)]
    no_queue: bool,
    /// Print the trials and their events as JSON lines
    #[arg(long)]
    json: bool,
}

impl TuneRunArgs {
    pub fn options(self, quiet: bool) -> tune::TuneOptions {
        let Self { file, engine, set, detach, resume, ignore_ledger, no_queue, json } = self;
        let choices = RunChoices { ignore_ledger, no_queue, ..RunChoices::default() };
        tune::TuneOptions { file, engine, set, resume, detach, choices, output: Output::new(json, quiet) }
    }
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Format {
    #[default]
    Csv,
    Json,
}

impl From<Format> for tune::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Csv => Self::Csv,
            Format::Json => Self::Json,
        }
    }
}
