//! Arguments of the commands that take runs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::command;

#[derive(Args)]
pub struct LsArgs {
    /// The order: by metric the best first, by the time of the start the newest first, or by name
    #[arg(long, value_enum, default_value_t, value_name = "BY")]
    pub sort: SortBy,
    /// Print an array of runs as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub enum SortBy {
    Metric,
    #[default]
    Started,
    Name,
}

impl From<SortBy> for command::ls::Sort {
    fn from(by: SortBy) -> Self {
        match by {
            SortBy::Metric => Self::Metric,
            SortBy::Started => Self::Started,
            SortBy::Name => Self::Name,
        }
    }
}

#[derive(Args)]
pub struct ShowArgs {
    /// An id, the beginning of an id, or latest
    #[arg(default_value = "latest")]
    pub run: String,
    /// Print the run as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ReportArgs {
    /// Ids, beginnings of ids, or latest; also the folder of a run
    #[arg(default_value = "latest", value_name = "RUN")]
    pub runs: Vec<String>,
    /// Write the report to this file instead of the run folder, or print it with -; required for several runs
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct DiffArgs {
    /// An id, the beginning of an id, or latest
    pub first: String,
    /// Another run
    pub second: String,
    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ReproduceArgs {
    /// An id, the beginning of an id, or latest
    run: String,
    /// Run even if data, model, program or settings differ from those of the run
    #[arg(long)]
    anyway: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl ReproduceArgs {
    pub fn options(self, quiet: bool) -> command::reproduce::Options {
        let Self { run, anyway, json } = self;
        command::reproduce::Options { run, anyway, json, quiet }
    }
}

#[derive(Args)]
pub struct AttachArgs {
    /// An id, the beginning of an id, or latest
    #[arg(default_value = "latest")]
    pub run: String,
    /// Print the events as JSON lines, from the first event
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct StopArgs {
    /// Ids, or beginnings of ids
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Do not wait for a checkpoint
    #[arg(long)]
    pub now: bool,
}

#[derive(Args)]
pub struct ResumeArgs {
    /// An id, the beginning of an id, or latest
    #[arg(default_value = "latest")]
    run: String,
    /// Replace a value that does not change the training result: container.memory=24g (can be repeated)
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Run in the background
    #[arg(short, long)]
    detach: bool,
    /// Print the events as JSON lines
    #[arg(long)]
    json: bool,
}

impl ResumeArgs {
    pub fn options(self, quiet: bool) -> command::resume::Options {
        let Self { run, set, detach, json } = self;
        command::resume::Options { run, set, detach, json, quiet }
    }
}

#[derive(Args)]
pub struct LogsArgs {
    /// An id, the beginning of an id, or latest
    #[arg(default_value = "latest")]
    run: String,
    /// The number of the attempt; default: the last one
    #[arg(long, value_name = "NUMBER")]
    attempt: Option<u32>,
    /// Print the events of all attempts instead, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Follow the log until the run ends
    #[arg(short, long)]
    follow: bool,
}

impl LogsArgs {
    pub fn options(self) -> command::logs::Options {
        let Self { run, attempt, json, follow } = self;
        command::logs::Options { run, attempt, events: json, follow }
    }
}

#[derive(Args)]
pub struct RmArgs {
    /// Ids, or beginnings of ids
    #[arg(required_unless_present = "left_behind")]
    pub runs: Vec<String>,
    /// Remove the containers of runs without a pipe process, and keep the folders
    #[arg(long, conflicts_with = "runs")]
    pub left_behind: bool,
    /// Remove the folders even if the daemon does not answer; containers of these runs stay
    #[arg(long)]
    pub force: bool,
}
