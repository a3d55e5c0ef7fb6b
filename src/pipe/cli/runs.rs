//! Arguments of the commands that take runs.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use pipe_spec::{Status, Variables};

use crate::command;
use crate::report::Output;
use crate::run::{Filter, NoteText, NotesChange, Since, Tag, runs_folder};
use crate::system::clock::now;
use crate::system::files::absolute;
use crate::ui::UiOptions;

#[derive(Args)]
pub struct LsArgs {
    /// List only runs with this status (can be repeated, or separated by commas)
    #[arg(long, value_parser = status(), value_delimiter = ',', value_name = "STATUS")]
    status: Vec<Status>,
    /// List only runs of pipelines with this name; * is any text, ? any character: 'recipes-*'
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// List only runs that were started since then: 90m, 12h, 2d or 1w ago, or a date (UTC): 2026-01-31
    #[arg(long, value_name = "TIME")]
    since: Option<Since>,
    /// List only runs with this tag of `pipe note` (can be repeated, or separated by commas: runs with all of them)
    #[arg(long, value_delimiter = ',', value_name = "TAG")]
    tag: Vec<Tag>,
    /// List at most NUMBER runs
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
    /// List the trials of studies too
    #[arg(long)]
    trials: bool,
    /// The order: by metric the best first, by the time of the start the newest first, or by name
    #[arg(long, value_enum, default_value_t, value_name = "BY")]
    sort: SortBy,
    /// Print an array of runs as JSON
    #[arg(long)]
    json: bool,
}

impl LsArgs {
    pub fn options(self, quiet: bool) -> command::ls::LsOptions {
        let Self { status, name, since, tag, limit, trials, sort, json } = self;
        let filter = Filter { statuses: status, name, since: since.map(|since| since.seconds(now())), tags: tag };
        command::ls::LsOptions { filter, limit, trials, sort: sort.into(), output: Output::new(json, quiet) }
    }
}

fn status() -> impl TypedValueParser<Value = Status> {
    let find = |name: String| Status::ALL.into_iter().find(|status| status.name() == name);
    PossibleValuesParser::new(Status::ALL.map(Status::name)).map(move |name| find(name).expect("it is one of them"))
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum SortBy {
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
pub struct NoteArgs {
    /// An id, the beginning of an id, or latest
    pub run: String,
    /// The new note, up to 2000 characters; '' removes it
    #[arg(value_name = "TEXT")]
    note: Option<NoteText>,
    /// Add a tag (can be repeated, or separated by commas)
    #[arg(long, value_delimiter = ',', value_name = "TAG")]
    tag: Vec<Tag>,
    /// Remove a tag (can be repeated, or separated by commas)
    #[arg(long, value_delimiter = ',', value_name = "TAG")]
    untag: Vec<Tag>,
    /// Print the note and the tags as JSON
    #[arg(long)]
    pub json: bool,
}

impl NoteArgs {
    pub fn change(&self) -> NotesChange {
        NotesChange { note: self.note.clone(), add: self.tag.clone(), remove: self.untag.clone() }
    }
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
    pub run: String,
    /// Run even if data, model, program or settings differ from those of the run
    #[arg(long)]
    pub anyway: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct AttachArgs {
    /// An id, the beginning of an id, or latest; ENGINE://RUN fetches a run that a job of the engine supervises
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
    /// An id, the beginning of an id, latest, or a copy in a bucket: s3://bucket/prefix/RUN
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
    pub fn options(self, quiet: bool) -> command::resume::ResumeOptions {
        let Self { run, set, detach, json } = self;
        command::resume::ResumeOptions { run, set, detach, output: Output::new(json, quiet) }
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
    pub fn options(self) -> command::logs::LogsOptions {
        let Self { run, attempt, json, follow } = self;
        command::logs::LogsOptions { run, attempt, events: json, follow }
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
    /// Remove the folders even if the daemon does not answer, so that containers of these runs stay, or another run reads what they
    /// hold
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct UiArgs {
    /// Show the runs of these folders too, beside those of PIPE_RUNS; s3://, gs:// or az:// for the copies of `save.to`
    #[arg(value_name = "FOLDER")]
    folders: Vec<String>,
    /// Listen at this address instead of 127.0.0.1:7473; port 0 is any free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The address of a proxy with TLS in front: https://pipe.example.org; required to listen beyond this machine
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,
    /// Only show: nobody can start, stop, resume, remove, note or try a run
    #[arg(long)]
    read_only: bool,
    /// Open the address in a browser
    #[arg(long)]
    open: bool,
}

impl UiArgs {
    pub fn options(self) -> UiOptions {
        let Self { folders, listen, proxy, read_only, open } = self;
        let runs = absolute(&runs_folder());
        UiOptions { listen, proxy, read_only, open, runs, others: folders, variables: Variables::of_process(None) }
    }
}
