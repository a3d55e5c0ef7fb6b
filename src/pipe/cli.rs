//! The command line. The only place that knows clap.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use pipe_spec::PipeExit;
use pipe_spec::pipeline::{Arch, EngineKind};
use pipe_spec::text::{ByteSize, Name};
use tracing::level_filters::LevelFilter;
use tracing_log::{AsLog, LogTracer};
use tracing_subscriber::EnvFilter;

use crate::command;
use crate::error::Error;
use crate::run::Choices;

/// Runs training pipelines in containers, and brings them through out-of-memory unchanged.
#[derive(Parser)]
#[command(name = "pipe", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Only errors and data
    #[arg(short, long, global = true)]
    quiet: bool,
    /// More detail; twice for all of it (RUST_LOG wins)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 unexpected, 2 usage, 3 pipeline invalid, 4 engine, GPU or hub unavailable, \
5 image build failed, 6 training failed, 7 out of memory and no retry left, 130 interrupted.

Files: runs lie in ./runs, or where PIPE_RUNS says. PIPE_TRAINER names the trainer program, PIPE_CACHE the folder for \
remembered file hashes, PIPE_LEDGER the file that remembers what fits, PIPE_QUEUE the folder in which runs queue for a \
card, DOCKER_HOST the daemon, PIPE_ENGINE_WAIT the seconds to wait for one that went away (300).";

#[derive(Subcommand)]
enum Command {
    /// Write a pipeline to begin with, after a look at the data and a few questions
    Init(InitArgs),
    /// Run a pipeline to its end, through out-of-memory if need be
    Run {
        #[command(flatten)]
        args: RunArgs,
        /// Run in the background: print the run's id and return
        #[arg(short, long, conflicts_with = "dry_run")]
        detach: bool,
        /// Resume the newest run of this pipeline if it did not finish; else start one
        #[arg(long, conflicts_with = "dry_run")]
        resume: bool,
    },
    /// Check a pipeline file and what it names; report every problem at once
    Check {
        /// The pipeline file
        file: PathBuf,
        /// Replace a value: train.batch=64 (can be given again)
        #[arg(long = "set", value_name = "PATH=VALUE")]
        set: Vec<String>,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Compute how much memory a pipeline will need, and the largest batch for every size of card
    Plan {
        /// The pipeline file; its data need not be there
        file: PathBuf,
        /// Replace a value: train.batch=64 (can be given again)
        #[arg(long = "set", value_name = "PATH=VALUE")]
        set: Vec<String>,
        /// A card by its name, such as 5090, instead of the one that is here
        #[arg(long, value_name = "NAME")]
        gpu: Option<String>,
        /// A card by its memory, such as 24g
        #[arg(long, value_name = "SIZE")]
        memory: Option<ByteSize>,
        /// Print the plan as JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure the largest batch that fits, where a run would run
    Fit(RunArgs),
    /// What earlier runs have shown about what fits where
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// List the runs, newest first
    Ls {
        /// Print an array of runs as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one run: its attempts, their causes, what was done
    Show {
        /// An id, the beginning of one, or latest
        #[arg(default_value = "latest")]
        run: String,
        /// Print the run as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a run as a page, report.html, or compare several on one page
    Report {
        /// Ids, the beginnings of some, or latest; also the folder of a run
        #[arg(default_value = "latest", value_name = "RUN")]
        runs: Vec<String>,
        /// Write the page to this file instead of the run's folder, or print it with -; needed for several runs
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Compare two runs: settings, what they stood on, results, curves
    Diff {
        /// An id, the beginning of one, or latest
        first: String,
        /// Another one
        second: String,
        /// Print all of it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the pipeline of a run again, on the same data with the same program, and compare the curves
    Reproduce {
        /// An id, the beginning of one, or latest
        run: String,
        /// Go on though data, model, program or settings are not those of the run
        #[arg(long)]
        anyway: bool,
        /// Print what came of it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Watch a run that goes on in the background; Ctrl-C leaves it running
    Attach {
        /// An id, the beginning of one, or latest
        #[arg(default_value = "latest")]
        run: String,
        /// Print the events as JSON lines, from the first on
        #[arg(long)]
        json: bool,
    },
    /// Stop runs: their trainers save and end
    Stop {
        /// Ids, or the beginnings of some
        #[arg(required = true, value_name = "RUN")]
        runs: Vec<String>,
        /// Do not wait for a save
        #[arg(long)]
        now: bool,
    },
    /// Go on with a run that was stopped, failed, or lost its pipe, from where it stands
    Resume {
        /// An id, the beginning of one, or latest
        #[arg(default_value = "latest")]
        run: String,
        /// Replace a value that does not change what is computed: container.memory=24g (can be given again)
        #[arg(long = "set", value_name = "PATH=VALUE")]
        set: Vec<String>,
        /// Go on in the background
        #[arg(short, long)]
        detach: bool,
        /// Print the events as JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Print the log of an attempt
    Logs {
        /// An id, the beginning of one, or latest
        #[arg(default_value = "latest")]
        run: String,
        /// Which attempt; default: the last
        #[arg(long, value_name = "NUMBER")]
        attempt: Option<u32>,
        /// Print the events of all attempts instead, one JSON object a line
        #[arg(long)]
        json: bool,
        /// Go on printing until the run has ended
        #[arg(short, long)]
        follow: bool,
    },
    /// Remove runs with their folders and containers, or what a killed pipe left behind
    Rm {
        /// Ids, or the beginnings of some
        #[arg(required_unless_present = "left_behind")]
        runs: Vec<String>,
        /// Remove the containers of runs that nobody drives any more, and keep the folders
        #[arg(long, conflicts_with = "runs")]
        left_behind: bool,
    },
    /// Build the trainer image, or list the images that pipe built
    #[command(subcommand)]
    Image(ImageCommand),
    /// Check engine, GPU, driver, trainer, memory and disk, and say what to do; exits 4 where runs cannot run
    Doctor {
        /// Print the checks as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON schema of the pipeline file
    Schema,
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page of pipe or of a command: `pipe man run | man -l -`
    Man {
        /// A command
        command: Option<String>,
        /// Write the pages of pipe and of every command into this folder instead
        #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
        out: Option<PathBuf>,
    },
}

#[derive(Args)]
struct InitArgs {
    /// Where to write it; default: NAME.yaml
    file: Option<PathBuf>,
    /// What is trained; default: what the columns of the data look like
    #[arg(long, value_parser = arch())]
    arch: Option<Arch>,
    /// The training data: a file or a folder
    #[arg(long, value_name = "PATH")]
    data: Option<String>,
    /// The evaluation data; default: eval, validation, dev or test beside the training data
    #[arg(long, value_name = "PATH")]
    eval: Option<String>,
    /// A folder in Hugging Face layout, or a hub id; default: from scratch
    #[arg(long, value_name = "DIR_OR_ID")]
    model: Option<String>,
    /// The name of the pipeline
    #[arg(long)]
    name: Option<Name>,
    /// The card it is for by its memory, such as 24g; default: the one that is here
    #[arg(long, value_name = "SIZE")]
    gpu_memory: Option<ByteSize>,
    /// Ask nothing, and take defaults for what is not given
    #[arg(short, long)]
    yes: bool,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// Print it instead of writing a file
    #[arg(long, conflicts_with = "file")]
    stdout: bool,
}

fn arch() -> impl TypedValueParser<Value = Arch> {
    use command::init::architecture;
    PossibleValuesParser::new(architecture::ALL.map(|known| known.0))
        .map(|name| architecture::find(&name).expect("it is one of them"))
}

#[derive(Args)]
struct RunArgs {
    /// The pipeline file
    file: PathBuf,
    /// What starts the job; default: docker when a daemon answers, else process
    #[arg(long, value_enum)]
    engine: Option<EngineName>,
    /// Replace a value: train.batch=64 (can be given again)
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The name of the run, instead of the pipeline's
    #[arg(long)]
    name: Option<String>,
    /// Show what would be started, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Start as the pipeline says, whatever earlier runs have shown, and remember nothing
    #[arg(long)]
    ignore_ledger: bool,
    /// Start at once, though other runs have the card
    #[arg(long)]
    no_queue: bool,
    /// Print the events as JSON lines
    #[arg(long)]
    json: bool,
}

impl RunArgs {
    fn options(self, detach: bool, resume: bool, quiet: bool) -> command::run::Options {
        command::run::Options {
            job: crate::plan::Job::Train,
            file: self.file,
            engine: self.engine.map(|name| match name {
                EngineName::Docker => EngineKind::Docker,
                EngineName::Process => EngineKind::Process,
            }),
            set: self.set,
            name: self.name,
            dry_run: self.dry_run,
            resume,
            detach,
            choices: Choices { ignore_ledger: self.ignore_ledger, no_queue: self.no_queue },
            json: self.json,
            pins: Vec::new(),
            quiet,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum EngineName {
    Docker,
    Process,
}

#[derive(Subcommand)]
enum LedgerCommand {
    /// List what is known
    Ls {
        /// Print an array as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an entry with all of its facts, as JSON
    Show {
        /// The beginning of an id
        id: String,
    },
    /// Forget entries: the next run tries for itself
    Forget {
        /// The beginnings of ids
        #[arg(required_unless_present = "all")]
        ids: Vec<String>,
        /// All of them
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Print every entry as a line of JSON
    Export,
}

#[derive(Subcommand)]
enum ImageCommand {
    /// Build an image, unless an unchanged one is there
    Build {
        /// A Dockerfile; default: the trainer image
        dockerfile: Option<PathBuf>,
        /// Print the image as JSON
        #[arg(long)]
        json: bool,
    },
    /// List what the trainer image is made of: the trainer and the libraries that it loads
    Files {
        /// Print files and missing CUDA libraries as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the images that pipe built
    Ls {
        /// Print an array of images as JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, everything else is a usage error.
            let code = if error.use_stderr() { PipeExit::Usage } else { PipeExit::Done };
            error.print().ok();
            return ExitCode::from(code.code());
        }
    };
    log_to_stderr(cli.verbose);
    match dispatch(cli.command, cli.quiet) {
        Ok(()) => ExitCode::from(PipeExit::Done.code()),
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(error.exit_code().code())
        }
    }
}

fn dispatch(command: Command, quiet: bool) -> Result<(), Error> {
    match command {
        Command::Init(args) => command::init::run(&command::init::Options {
            file: args.file,
            arch: args.arch,
            data: args.data,
            eval: args.eval,
            model: args.model,
            name: args.name,
            gpu_memory: args.gpu_memory,
            yes: args.yes,
            force: args.force,
            stdout: args.stdout,
            quiet,
        }),
        Command::Run { args, detach, resume } => command::run::run(args.options(detach, resume, quiet)),
        Command::Fit(args) => command::fit::run(args.options(false, false, quiet)),
        Command::Attach { run, json } => command::attach::run(&run, json, quiet),
        Command::Stop { runs, now } => command::stop::run(&runs, now, quiet),
        Command::Resume { run, set, detach, json } => {
            command::resume::run(&command::resume::Options { run, set, detach, json, quiet })
        }
        Command::Plan { file, set, gpu, memory, json } => {
            command::plan::run(&command::plan::Options { file, set, gpu, memory, json })
        }
        Command::Ledger(LedgerCommand::Ls { json }) => command::ledger::ls(json),
        Command::Ledger(LedgerCommand::Show { id }) => command::ledger::show(&id),
        Command::Ledger(LedgerCommand::Forget { ids, all }) => command::ledger::forget(&ids, all),
        Command::Ledger(LedgerCommand::Export) => command::ledger::export(),
        Command::Check { file, set, json } => command::check::run(&file, &set, json),
        Command::Ls { json } => command::ls::run(json),
        Command::Show { run, json } => command::show::run(&run, json),
        Command::Report { runs, out } => command::report::run(&runs, out.as_deref()),
        Command::Diff { first, second, json } => command::diff::run(&first, &second, json),
        Command::Reproduce { run, anyway, json } => {
            command::reproduce::run(&command::reproduce::Options { run, anyway, json, quiet })
        }
        Command::Logs { run, attempt, json, follow } => {
            command::logs::run(&command::logs::Options { run, attempt, events: json, follow })
        }
        Command::Rm { runs, left_behind } => command::rm::run(&runs, left_behind),
        Command::Image(ImageCommand::Build { dockerfile, json }) => {
            command::image::build(dockerfile.as_deref(), json, quiet)
        }
        Command::Image(ImageCommand::Files { json }) => command::image::files(json),
        Command::Image(ImageCommand::Ls { json }) => command::image::ls(json),
        Command::Doctor { json } => command::doctor::run(json),
        Command::Schema => {
            crate::report::print_json(&pipe_spec::pipeline::schema());
            Ok(())
        }
        Command::Man { command, out } => man(command.as_deref(), out.as_deref()),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "pipe", &mut text);
            crate::report::print(String::from_utf8_lossy(&text).trim_end());
            Ok(())
        }
    }
}

fn man(wanted: Option<&str>, out: Option<&Path>) -> Result<(), Error> {
    let mut whole = Cli::command();
    if let Some(folder) = out {
        // `pipe help COMMAND` needs no pages of its own.
        let whole =
            whole.disable_help_subcommand(true).mut_subcommands(|command| command.disable_help_subcommand(true));
        let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(whole, folder));
        return written.map_err(|source| Error::Write { path: folder.to_owned(), source });
    }
    whole.build();
    let command = match wanted {
        None => whole,
        Some(name) => match whole.find_subcommand(name) {
            Some(found) => found.clone(),
            None => return Err(Error::NoCommand { wanted: name.to_owned() }),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|source| Error::Write { path: "the manual page".into(), source })?;
    crate::report::print(String::from_utf8_lossy(&text).trim_end());
    Ok(())
}

fn log_to_stderr(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "pipe=debug,trainer=info,info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).finish();
    // What the web client logs has addresses and tokens in it, which nobody may see, whatever RUST_LOG says.
    let bridge = LogTracer::builder().ignore_all(["ureq", "rustls"]);
    if tracing::subscriber::set_global_default(log).is_ok() {
        bridge.with_max_level(LevelFilter::current().as_log()).init().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
