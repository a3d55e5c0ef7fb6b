//! Arguments of the commands that take a pipeline file or a study file, and of `pipe predict`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use pipe_spec::pipeline::Arch;
use pipe_spec::text::{ByteSize, Name};

use crate::command::{self, tune};
use crate::engine::registry;
use crate::execute::stages::Selection;
use crate::report::Output;
use crate::run::RunChoices;

#[derive(Args)]
pub struct InitArgs {
    /// The file to write; default: NAME.yaml
    file: Option<PathBuf>,
    /// The architecture to train; default: that of --model, or one that fits the columns of the data
    #[arg(long, value_parser = arch())]
    arch: Option<Arch>,
    /// The training data: a file, or a folder of files or of pictures
    #[arg(long, value_name = "PATH")]
    data: Option<String>,
    /// The evaluation data; default: eval, validation, dev or test beside the training data
    #[arg(long, value_name = "PATH")]
    eval: Option<String>,
    /// The column for each role, such as text=review,label=stars; default: found from the names and values of the columns
    #[arg(long, value_name = "ROLE=COLUMN", value_delimiter = ',', value_parser = field)]
    fields: Vec<(String, String)>,
    /// A folder in Hugging Face layout, or a hub id; default: train from scratch
    #[arg(long, value_name = "DIR_OR_ID")]
    model: Option<String>,
    /// A command line of yours, such as "python train.py --batch-size 16", in place of data and a model
    #[arg(long, value_name = "LINE", conflicts_with_all = ["arch", "data", "eval", "fields", "model", "gpu_memory"])]
    command: Option<String>,
    /// Write a script with a training loop of your own as well, for a table or for texts with a label; the pipeline runs it
    #[arg(long, conflicts_with_all = ["command", "model", "gpu_memory", "stdout"])]
    python: bool,
    /// The name of the pipeline
    #[arg(long)]
    name: Option<Name>,
    /// The memory of the card to train on: 24 (gigabytes), 7.5g, 512m; default: the card of this machine
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::gigabytes_or)]
    gpu_memory: Option<ByteSize>,
    /// Ask no questions, and use the defaults
    #[arg(short, long)]
    yes: bool,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    /// Print the pipeline instead of writing a file
    #[arg(long, conflicts_with = "file")]
    stdout: bool,
}

impl InitArgs {
    pub fn options(self, quiet: bool) -> command::init::InitOptions {
        let Self { file, arch, data, eval, fields, model, command, python, name, gpu_memory, yes, force, stdout } =
            self;
        command::init::InitOptions {
            file,
            arch,
            data,
            eval,
            fields,
            model,
            command,
            python,
            name,
            gpu_memory,
            yes,
            force,
            stdout,
            quiet,
        }
    }
}

fn field(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').map(|(role, column)| (role.trim(), column.trim())) {
        Some((role, column)) if !role.is_empty() && !column.is_empty() => Ok((role.to_owned(), column.to_owned())),
        _ => Err("allowed: ROLE=COLUMN, such as text=review".to_owned()),
    }
}

fn arch() -> impl TypedValueParser<Value = Arch> {
    PossibleValuesParser::new(Arch::ALL.iter().map(|arch| arch.name()))
        .map(|name| Arch::find(&name).expect("the parser accepts only these names"))
}

// No doc comment: clap would print it as the help of the command.
#[derive(Args)]
pub struct StartArgs {
    /// The pipeline file
    file: PathBuf,
    /// The engine that starts the job; default: docker if a daemon answers, else process
    #[arg(long, value_parser = PossibleValuesParser::new(registry::names()))]
    engine: Option<String>,
    /// Replace a value: train.batch=64 (can be repeated)
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The name of the run; default: the name of the pipeline
    #[arg(long)]
    name: Option<String>,
    /// Show what would be started, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Start with the batch of the pipeline, without reading or writing the ledger
    #[arg(long)]
    ignore_ledger: bool,
    /// Start now, even if other runs use the card
    #[arg(long)]
    no_queue: bool,
    /// Print the events as JSON lines
    #[arg(long)]
    json: bool,
}

impl StartArgs {
    pub fn options(self, quiet: bool) -> command::run::RunOptions {
        command::run::RunOptions {
            file: self.file,
            engine: self.engine,
            set: self.set,
            name: self.name,
            dry_run: self.dry_run,
            resume: false,
            detach: false,
            selection: Selection::default(),
            choices: RunChoices { ignore_ledger: self.ignore_ledger, no_queue: self.no_queue, ..RunChoices::default() },
            pins: Vec::new(),
            output: Output::new(self.json, quiet),
        }
    }
}

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    start: StartArgs,
    /// Run in the background: print the id of the run and return
    #[arg(short, long, conflicts_with = "dry_run")]
    detach: bool,
    /// Resume the newest run of this pipeline if it did not finish; else start a new run
    #[arg(long, conflicts_with = "dry_run")]
    resume: bool,
    /// Run this step of the pipeline alone, on the outputs that the steps before it have
    #[arg(long, value_name = "STEP", conflicts_with_all = ["from", "resume"])]
    only: Option<String>,
    /// Run this step of the pipeline and all after it again, even if nothing has changed
    #[arg(long, value_name = "STEP", conflicts_with = "resume")]
    from: Option<String>,
}

impl RunArgs {
    pub fn options(self, quiet: bool) -> command::run::RunOptions {
        let Self { start, detach, resume, only, from } = self;
        command::run::RunOptions { detach, resume, selection: Selection { only, from }, ..start.options(quiet) }
    }
}

#[derive(Args)]
pub struct CheckArgs {
    /// The pipeline file
    file: PathBuf,
    /// Replace a value: train.batch=64 (can be repeated)
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Leave the data closed, and check the pipeline file alone
    #[arg(long)]
    no_data: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl CheckArgs {
    pub fn options(self, quiet: bool) -> command::check::CheckOptions {
        let Self { file, set, no_data, json } = self;
        command::check::CheckOptions { file, set, no_data, output: Output::new(json, quiet) }
    }
}

#[derive(Args)]
pub struct PlanArgs {
    /// The pipeline file; its data need not exist
    file: PathBuf,
    /// Replace a value: train.batch=64 (can be repeated)
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// A card by its name, such as 5090, instead of the card of this machine
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// A card by its memory, such as 24g
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Number of trainer processes, one card each; overrides container.gpus
    #[arg(long, value_name = "NUMBER")]
    ranks: Option<NonZeroU32>,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

impl PlanArgs {
    pub fn options(self, quiet: bool) -> command::plan::PlanOptions {
        let Self { file, set, gpu, memory, ranks, json } = self;
        command::plan::PlanOptions { file, set, gpu, memory, ranks, output: Output::new(json, quiet) }
    }
}

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
