//! `pipe init`: writes a new pipeline, from a look at the data and the answers to a few questions.

pub mod architecture;
mod author;
mod base_model;
mod batch;
mod column;
mod command_line;
mod compose;
mod dialog;
mod draft;
mod findings;
mod inspection;
mod limits;
mod names;
mod page;
mod pictures;
mod roles;
mod schema_file;
mod settings;
mod survey;
mod vocabulary;

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Arch;
use pipe_spec::text::{ByteSize, Name};

use crate::error::Error;
use crate::report::{print, print_data, say};
use author::Author;
use dialog::Dialog;

pub struct Options {
    pub file: Option<PathBuf>,
    pub arch: Option<Arch>,
    pub data: Option<String>,
    pub eval: Option<String>,
    /// Roles with the columns that feed them.
    pub fields: Vec<(String, String)>,
    pub model: Option<String>,
    /// A command line, in place of data and a model.
    pub command: Option<String>,
    pub name: Option<Name>,
    pub gpu_memory: Option<ByteSize>,
    pub yes: bool,
    pub force: bool,
    pub stdout: bool,
    pub quiet: bool,
}

pub fn run(options: &Options) -> Result<(), Error> {
    if let Some(file) = &options.file {
        check_free(file, options)?;
    }
    if let Some(line) = &options.command {
        let draft = command_line::draft(line, options.name.as_ref(), Path::new("."))?;
        let Some(file) = write(options, &draft.name, &draft.yaml)? else { return Ok(()) };
        if !options.quiet {
            draft.findings.iter().for_each(|line| say(&format!("  {line}")));
            say(&format!(
                "next:\n  pipe check {0}   check the file\n  pipe run {0}     run the command",
                file.display()
            ));
        }
        return Ok(());
    }
    let draft = Author { options, dialog: Dialog::find(options.yes) }.draft()?;
    let Some(file) = write(options, &draft.name, &draft.yaml())? else { return Ok(()) };
    if !options.quiet {
        draft.findings.iter().for_each(|line| say(&format!("  {line}")));
        if !Path::new(&draft.train).exists() {
            say(&format!("note: {} does not exist yet: its columns are guessed", draft.train));
        }
        let file = file.display();
        say(&format!(
            "next:\n  pipe check {file}   check the file and its data\n  pipe plan {file}    how much memory it needs\n  pipe run {file}     train"
        ));
    }
    Ok(())
}

/// Writes a pipeline to a file, and says which; nothing where it was printed instead.
fn write(options: &Options, name: &str, yaml: &str) -> Result<Option<PathBuf>, Error> {
    let text = format!("{}{yaml}", schema_file::editor_line());
    if options.stdout {
        print_data(format!("{}\n", text.trim_end()).as_bytes());
        return Ok(None);
    }
    let file = options.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.yaml")));
    check_free(&file, options)?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
    }
    std::fs::write(&file, text).map_err(|source| Error::Write { path: file.clone(), source })?;
    print(&file.display().to_string());
    Ok(Some(file))
}

/// Fails if the file exists, unless it may be overwritten.
fn check_free(file: &Path, options: &Options) -> Result<(), Error> {
    match file.exists() && !options.force && !options.stdout {
        true => Err(Error::Exists { path: file.to_owned() }),
        false => Ok(()),
    }
}
