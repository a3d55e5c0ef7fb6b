//! The command line: parses arguments, calls the command, sets the exit code and the log level. Only this folder uses clap.

mod machine;
mod pipeline;
mod runs;

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use machine::{ImageCommand, LedgerCommand, ManArgs, PruneArgs};
use pipe_spec::PipeExit;
use pipeline::{CheckArgs, InitArgs, PlanArgs, PredictArgs, RunArgs, StartArgs, TuneCommand};
use runs::{
    AttachArgs, DiffArgs, LogsArgs, LsArgs, NoteArgs, ReportArgs, ReproduceArgs, ResumeArgs, RmArgs, ShowArgs,
    StopArgs, UiArgs,
};
use tracing::level_filters::LevelFilter;
use tracing_log::{AsLog, LogTracer};
use tracing_subscriber::EnvFilter;

use crate::command;
use crate::engine::registry;
use crate::error::Error;
use crate::report::{Output, print_data, print_json, say, visible};

/// Run training pipelines in containers, with retries after out-of-memory that keep the training the same
#[derive(Parser)]
#[command(name = "pipe", version, max_term_width = 80, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print only errors and data
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Print more detail; give it twice for debug output (RUST_LOG takes precedence)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 unexpected, 2 usage, 3 pipeline invalid, 4 engine, GPU or hub unavailable, \
5 image build failed, 6 training failed, 7 out of memory and no retry left, 130 interrupted.

Environment: PIPE_RUNS is the folder for runs (./runs), PIPE_TRAINER the trainer program, PIPE_CACHE the folder for \
file hashes and prepared data, PIPE_LEDGER the ledger file, PIPE_QUEUE the folder of the queue for cards, DOCKER_HOST the \
container daemon, PIPE_ENGINE_WAIT the seconds to wait for a daemon that stopped answering (300).";

/// The commands of `pipe --help` in groups. Each command is in one of them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Start here", &["init", "check", "plan", "run"]),
    ("Run", &["fit", "tune", "predict", "stop", "resume", "rm"]),
    ("Watch", &["ls", "show", "attach", "logs", "ui"]),
    ("Understand", &["report", "diff", "reproduce", "note"]),
    ("Machine", &["doctor", "image", "prune", "ledger", "schema", "completions", "man", "help"]),
];

#[derive(Subcommand)]
enum Command {
    /// Write a new pipeline file, from the data and a few questions
    Init(InitArgs),
    /// Run a pipeline to its end, with retries after out-of-memory
    Run(RunArgs),
    /// Check a pipeline file and its data; report every problem at once
    Check(CheckArgs),
    /// Compute the memory of a pipeline, and the largest batch per card
    Plan(PlanArgs),
    /// Measure the largest batch that fits, where a run would run
    Fit(StartArgs),
    /// Show or forget which batch fits on which card, from earlier runs
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// List the runs with their main metric, newest first
    #[command(after_help = "With --quiet it prints the ids alone.")]
    Ls(LsArgs),
    /// Show one run: attempts, why they ended, evaluations, its model
    Show(ShowArgs),
    /// Give a run a note and tags, or print them
    #[command(after_help = "Without a text and tags it prints what the run has. They change nothing of the run.")]
    Note(NoteArgs),
    /// Predict the rows of a file with the model of a run
    #[command(after_help = "Where the rows have labels, the model is evaluated on them too.")]
    Predict(PredictArgs),
    /// Write the HTML report of a run, or one that compares several runs
    Report(ReportArgs),
    /// Compare two runs: settings, lock, results, loss curves
    Diff(DiffArgs),
    /// Run the pipeline of a run again, and compare the loss curves
    #[command(after_help = "It refuses if data, model or program have changed, unless --anyway is given.")]
    Reproduce(ReproduceArgs),
    /// Watch a run in the background; Ctrl-C leaves it running
    Attach(AttachArgs),
    /// Stop runs: their trainers save a checkpoint and end
    Stop(StopArgs),
    /// Continue a run that stopped or failed, from its last checkpoint
    #[command(after_help = "It also continues a run whose pipe process was killed.")]
    Resume(ResumeArgs),
    /// Print the log of an attempt
    Logs(LogsArgs),
    /// Show every run in a browser, live
    #[command(after_help = "It prints an address with a token, which lets one person in.")]
    Ui(UiArgs),
    /// Remove runs with their folders and containers
    Rm(RmArgs),
    /// Search for good settings in trials, with a storage for Optuna
    #[command(subcommand)]
    Tune(TuneCommand),
    /// Build the trainer image, or list the images that pipe built
    #[command(subcommand)]
    Image(ImageCommand),
    /// Remove old images, prepared data and other files of the cache
    #[command(after_help = "Runs stay, and so does what a run that has not finished needs.")]
    Prune(PruneArgs),
    /// Check engine, GPU, driver, trainer, memory, disk; say what to do
    #[command(after_help = "Exits with 4 if runs cannot start on this machine.")]
    Doctor {
        #[arg(
            long,
            value_parser = PossibleValuesParser::new(registry::names()),
            help = format!("Check this engine in place of those that are tried by themselves{}", registry::doctor_help())
        )]
        engine: Option<String>,
        /// Print the checks as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON schema of the pipeline file, or of the study file
    Schema {
        /// That of the study file, for `pipe tune`
        #[arg(long)]
        study: bool,
    },
    /// Print completions for a shell; complete run ids in bash and zsh
    Completions { shell: clap_complete::Shell },
    /// Print a manual page: `pipe man run | man -l -`
    Man(ManArgs),
}

pub fn main() -> ExitCode {
    let parsed = command_line().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, everything else is a usage error.
            let code = if error.use_stderr() { PipeExit::Usage } else { PipeExit::Done };
            print_usage(&error);
            return ExitCode::from(code.code());
        }
    };
    log_to_stderr(cli.verbose);
    match dispatch(cli.command, cli.quiet) {
        Ok(()) => ExitCode::from(PipeExit::Done.code()),
        Err(error) => {
            let is_stopped = matches!(error, Error::Interrupted | Error::Stopped { .. });
            say(&if is_stopped { error.to_string() } else { format!("error: {error}") });
            if let Some(hint) = error.hint() {
                say(&format!("hint: {hint}"));
            }
            ExitCode::from(error.exit_code().code())
        }
    }
}

/// The command line with a help text that lists the commands in groups.
fn command_line() -> clap::Command {
    let mut built = Cli::command();
    built.build();
    let styles = built.get_styles().clone();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut groups = String::new();
    for (group, names) in GROUPS {
        groups += &format!("{header}{group}:{header:#}\n");
        for name in names {
            let about = built.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            groups += &format!("  {literal}{name:<11}{literal:#}  {about}\n");
        }
        groups.push('\n');
    }
    let options = format!("{header}Options:{header:#}\n{{options}}");
    let template = format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{options}{{after-help}}");
    Cli::command().help_template(template)
}

/// Prints help, or the usage error. It has colours unless an argument contains escape codes.
fn print_usage(error: &clap::Error) {
    let has_codes = |arg: std::ffi::OsString| {
        let arg = arg.to_string_lossy();
        visible(&arg) != arg
    };
    match std::env::args_os().any(has_codes) {
        true => say(error.render().to_string().trim_end()),
        false => drop(error.print()),
    }
}

fn dispatch(command: Command, quiet: bool) -> Result<(), Error> {
    match command {
        Command::Init(args) => command::init::run(&args.options(quiet)),
        Command::Run(args) => command::run::run(args.options(quiet)),
        Command::Check(args) => command::check::run(&args.options(quiet)),
        Command::Plan(args) => command::plan::run(&args.options(quiet)),
        Command::Fit(args) => command::run::fit(args.options(quiet)),
        Command::Ledger(LedgerCommand::Ls { json }) => command::ledger::ls(json),
        Command::Ledger(LedgerCommand::Show { id }) => command::ledger::show(&id),
        Command::Ledger(LedgerCommand::Forget { ids, all }) => command::ledger::forget(&ids, all),
        Command::Ledger(LedgerCommand::Export) => command::ledger::export(),
        Command::Tune(TuneCommand::Run(args)) => command::tune::run(&args.options(quiet)),
        Command::Tune(TuneCommand::Status { study, json }) => command::tune::status(&study, json),
        Command::Tune(TuneCommand::Best { study, trial, out, json }) => {
            command::tune::best(&study, trial, out.as_deref(), json)
        }
        Command::Tune(TuneCommand::Resume { study, set, detach, json }) => {
            let run = command::tune::find(&study)?.state.id;
            command::resume::run(&command::resume::ResumeOptions { run, set, detach, output: Output::new(json, quiet) })
        }
        Command::Tune(TuneCommand::Stop { study, now }) => {
            command::stop::run(&[command::tune::find(&study)?.state.id], now, Output::new(false, quiet))
        }
        Command::Tune(TuneCommand::Export { study, format, out }) => {
            command::tune::export(&study, format.into(), out.as_deref())
        }
        Command::Ls(args) => command::ls::run(&args.options(quiet)),
        Command::Show(args) => command::show::run(&args.run, args.json),
        Command::Note(args) => command::show::note(&args.run, args.change(), args.json),
        Command::Predict(args) => command::predict::run(&args.options(quiet)),
        Command::Report(args) => command::report::run(&args.runs, args.out.as_deref()),
        Command::Diff(args) => command::diff::run(&args.first, &args.second, args.json),
        Command::Reproduce(args) => command::reproduce::run(&args.run, args.anyway, Output::new(args.json, quiet)),
        Command::Attach(args) => command::attach::run(&args.run, Output::new(args.json, quiet)),
        Command::Stop(args) => command::stop::run(&args.runs, args.now, Output::new(false, quiet)),
        Command::Resume(args) => command::resume::run(&args.options(quiet)),
        Command::Logs(args) => command::logs::run(&args.options()),
        Command::Ui(args) => command::ui(args.options()),
        Command::Rm(args) if args.left_behind => command::rm::left_behind(),
        Command::Rm(args) => command::rm::run(&args.runs, args.force),
        Command::Image(ImageCommand::Build { dockerfile, json }) => {
            command::image::build(dockerfile.as_deref(), Output::new(json, quiet))
        }
        Command::Image(ImageCommand::Push { repository, pipeline, json }) => {
            command::image::push(repository, pipeline.as_deref(), Output::new(json, quiet))
        }
        Command::Image(ImageCommand::Files { json }) => command::image::files(json),
        Command::Image(ImageCommand::Ls { json }) => command::image::ls(json),
        Command::Prune(args) => command::prune::run(&args.options()),
        Command::Doctor { engine, json } => command::doctor::run(engine.as_deref(), json),
        Command::Schema { study } => {
            print_json(&if study { pipe_spec::study::schema() } else { registry::pipeline_schema() });
            Ok(())
        }
        Command::Completions { shell } => {
            print_data(machine::script(shell, Cli::command()).as_bytes());
            Ok(())
        }
        Command::Man(args) => machine::run(Cli::command(), &args),
    }
}

/// Log lines go to stderr, as `-v` and RUST_LOG ask for.
fn log_to_stderr(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "pipe=debug,trainer=info,info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // These clients log whole requests, with tokens and variables in them. RUST_LOG must not show these. Some also log as an error what is
    // tried again.
    let silent = ["kube_client=off", "tower=off"].into_iter().filter_map(|directive| directive.parse().ok());
    let filter = silent.fold(filter, EnvFilter::add_directive);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // It would report on stderr that stderr is closed, and panic.
        .log_internal_errors(false)
        .finish();
    let bridge =
        LogTracer::builder().ignore_all(["bollard", "h2", "hyper", "hyper_util", "ureq", "rustls", "tungstenite"]);
    if tracing::subscriber::set_global_default(log).is_ok() {
        bridge.with_max_level(LevelFilter::current().as_log()).init().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group() {
        let mut command = command_line();
        command.build();
        let mut commands: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        commands.sort_unstable();
        listed.sort_unstable();
        assert_eq!(commands, listed);
        let help = command_line().render_help().to_string();
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
    }
}
