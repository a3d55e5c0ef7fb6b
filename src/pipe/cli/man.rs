//! `pipe man`: manual pages, generated from the arguments.

use std::path::PathBuf;

use clap::Args;

use crate::error::Error;
use crate::report::print_data;

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
