//! Completions for shells. clap writes them from the command line; bash and zsh also get the ids of the runs, from
//! `pipe ls --quiet`.

use clap::{Arg, Command};
use clap_complete::Shell;

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
