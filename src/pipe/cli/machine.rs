//! Options of the commands about this machine: completions, manual pages, images, the ledger.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, Command, Subcommand};
use clap_complete::Shell;

use crate::command::prune::PruneOptions;
use crate::error::Error;
use crate::report::print_data;

/// Arguments of these names are runs.
const RUNS: [&str; 4] = ["run", "runs", "first", "second"];

pub fn script(shell: Shell, mut command: Command) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "pipe", &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    match shell {
        Shell::Bash => bash(&text, &command),
        Shell::Zsh => zsh(&text),
        _ => text,
    }
}

fn is_run(argument: &Arg) -> bool {
    argument.is_positional() && RUNS.contains(&argument.get_id().as_str())
}

/// Calls the function of clap, and replaces its answer where a run is to be named.
fn bash(text: &str, command: &Command) -> String {
    let takes_run: Vec<&Command> =
        command.get_subcommands().filter(|command| command.get_arguments().any(is_run)).collect();
    let names: Vec<&str> = takes_run.iter().map(|command| command.get_name()).collect();
    let takes_value = |argument: &&Arg| !argument.is_positional() && argument.get_action().takes_values();
    let options = takes_run.iter().flat_map(|command| command.get_arguments()).filter(takes_value);
    let mut options: Vec<String> =
        options.filter_map(|option| option.get_long()).map(|long| format!("--{long}")).collect();
    options.sort();
    options.dedup();
    let function = format!(
        r#"
# The ids of the runs, where a command takes one.
_pipe_with_runs() {{
    _pipe "$@"
    local current="${{COMP_WORDS[COMP_CWORD]}}" command="" word
    if [[ "${{current}}" == -* ]]; then
        return 0
    fi
    case "$3" in
        {options})
            return 0
            ;;
    esac
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ "${{word}}" != -* ]]; then
            command="${{word}}"
            break
        fi
    done
    case "${{command}}" in
        {names})
            COMPREPLY=( $(compgen -W "latest $("$1" ls --quiet 2>/dev/null)" -- "${{current}}") )
            ;;
    esac
}}
"#,
        options = options.join("|"),
        names = names.join("|"),
    );
    let registered = text.replace("complete -F _pipe ", "complete -F _pipe_with_runs ");
    match registered.rfind("\nif [[ \"${BASH_VERSINFO") {
        Some(at) => format!("{}{function}{}", &registered[..at], &registered[at..]),
        None => text.to_owned(),
    }
}

/// Completes the arguments that are runs by a function of our own.
fn zsh(text: &str) -> String {
    let function = r#"
_pipe_runs() {
    local -a runs
    runs=(latest ${(f)"$(_call_program runs pipe ls --quiet 2>/dev/null)"})
    compadd -V runs -a runs
}
"#;
    let line = |line: &str| {
        let is_run = RUNS.iter().any(|name| line.contains(&format!(":{name} -- ")));
        match line.strip_suffix(":_default' \\").filter(|_| is_run) {
            Some(argument) => format!("{argument}:_pipe_runs' \\\n"),
            None => format!("{line}\n"),
        }
    };
    let replaced: String = text.lines().map(line).collect();
    match replaced.find("\n_pipe() {") {
        Some(at) => format!("{}{function}{}", &replaced[..at], &replaced[at..]),
        None => text.to_owned(),
    }
}

#[derive(Args)]
pub struct ManArgs {
    /// A command
    command: Option<String>,
    /// Write the pages of pipe and of every command into this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    out: Option<PathBuf>,
}

/// `pipe` is the whole command line.
pub fn run(mut pipe: clap::Command, args: &ManArgs) -> Result<(), Error> {
    if let Some(folder) = &args.out {
        // `pipe help COMMAND` needs no pages of its own.
        let pipe = pipe.disable_help_subcommand(true).mut_subcommands(|command| command.disable_help_subcommand(true));
        let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(pipe, folder));
        return written.map_err(|source| Error::Write { path: folder.clone(), source });
    }
    pipe.build();
    let command = match &args.command {
        None => pipe,
        Some(name) => match pipe.find_subcommand(name) {
            Some(found) => found.clone(),
            None => return Err(Error::NoCommand { wanted: name.clone() }),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|source| Error::Write { path: "the manual page".into(), source })?;
    print_data(&text);
    Ok(())
}

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Build an image, unless an unchanged image exists
    Build {
        /// A Dockerfile; default: the trainer image
        dockerfile: Option<PathBuf>,
        /// Print the image as JSON
        #[arg(long)]
        json: bool,
    },
    /// Push an image to a registry, and print its name there with its digest
    Push {
        /// The repository, such as registry.lab/pipe; default: that of the pipeline
        repository: Option<String>,
        /// A pipeline file, whose `container.image` is built; default: the trainer image
        #[arg(long, value_name = "FILE")]
        pipeline: Option<PathBuf>,
        /// Print the image as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the files of the trainer image: the trainer and the libraries that it loads
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

#[derive(Args)]
pub struct PruneArgs {
    /// Only what was not used for so long, images by when they were built: `30d`, `12h`
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = age)]
    older_than: Duration,
    /// Remove everything, however old it is
    #[arg(long, conflicts_with = "older_than")]
    all: bool,
    /// List what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove without a question
    #[arg(short, long)]
    yes: bool,
    /// Print the entries as JSON
    #[arg(long)]
    json: bool,
}

impl PruneArgs {
    pub fn options(&self) -> PruneOptions {
        let Self { older_than, all, dry_run, yes, json } = *self;
        PruneOptions { older_than: (!all).then_some(older_than), dry_run, yes, json }
    }
}

fn age(text: &str) -> Result<Duration, String> {
    let seconds = match text.chars().last() {
        Some('d') => 24 * 3600,
        Some('h') => 3600,
        Some('m') => 60,
        _ => 0,
    };
    let number = text.get(..text.len().saturating_sub(1)).and_then(|number| number.parse::<u32>().ok());
    match number {
        Some(number) if seconds > 0 => Ok(Duration::from_secs(u64::from(number) * seconds)),
        _ => Err("a number of days, hours or minutes: 30d, 12h, 45m".to_owned()),
    }
}

#[derive(Subcommand)]
pub enum LedgerCommand {
    /// List the entries
    Ls {
        /// Print an array as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an entry with every measurement, as JSON
    Show {
        /// The beginning of an id
        id: String,
    },
    /// Remove entries: the next run measures again
    Forget {
        /// The beginnings of ids
        #[arg(required_unless_present = "all")]
        ids: Vec<String>,
        /// Remove all entries
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Print every entry as a line of JSON
    Export,
}
