//! `pipe init`: writes a new pipeline, from a look at the data and the answers to a few questions.

pub mod architecture;
mod author;
mod base_model;
mod batch;
mod column;
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
mod table;
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
    let draft = Author { options, dialog: Dialog::find(options.yes) }.draft()?;
    let text = format!("{}{}", schema_file::editor_line(), draft.yaml());
    if options.stdout {
        print_data(format!("{}\n", text.trim_end()).as_bytes());
        return Ok(());
    }
    let file = options.file.clone().unwrap_or_else(|| PathBuf::from(format!("{}.yaml", draft.name)));
    check_free(&file, options)?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
    }
    std::fs::write(&file, text).map_err(|source| Error::Write { path: file.clone(), source })?;
    print(&file.display().to_string());
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

/// Fails if the file exists, unless it may be overwritten.
fn check_free(file: &Path, options: &Options) -> Result<(), Error> {
    match file.exists() && !options.force && !options.stdout {
        true => Err(Error::Exists { path: file.to_owned() }),
        false => Ok(()),
    }
}
