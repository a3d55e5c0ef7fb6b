//! `pipe init`: writes a new pipeline, from a look at the data and the answers to a few questions.

mod author;
mod column;
mod command_line;
mod draft;
mod measure;
mod pictures;
mod python;
mod roles;
mod settings;
mod survey;
mod texts;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use author::Author;
use draft::{Answers, Draft};
use pipe_spec::pipeline::{Arch, COMPLETION, CONVERSATION, CommandLine, Task};
use pipe_spec::text::{ByteSize, Name};
use python::Script;
use survey::Field;

use crate::engine::registry;
use crate::error::Error;
use crate::input::load::is_data;
use crate::report::{print, print_data, say};
use crate::system::digests::cache_folder;
use crate::system::files::{write_json, write_whole};

pub use author::Dialog;

/// The schema that `make install` installs, below the folder that holds `bin`.
const INSTALLED_SCHEMA: &str = "share/pipe/pipelines/schema.json";

pub struct InitOptions {
    pub file: Option<PathBuf>,
    pub arch: Option<Arch>,
    pub data: Option<String>,
    pub eval: Option<String>,
    /// Roles with the columns that feed them.
    pub fields: Vec<(String, String)>,
    pub model: Option<String>,
    /// A command line, in place of data and a model.
    pub command: Option<String>,
    /// Whether to write a script with a training loop, and a pipeline that runs it.
    pub python: bool,
    pub name: Option<Name>,
    pub gpu_memory: Option<ByteSize>,
    pub yes: bool,
    pub force: bool,
    pub stdout: bool,
    pub quiet: bool,
}

pub fn run(options: &InitOptions) -> Result<(), Error> {
    if let Some(file) = &options.file {
        check_free(file, options)?;
    }
    if let Some(line) = &options.command {
        return write_command(options, line, options.name.as_ref(), command_line::DEFAULT_BATCH);
    }
    let draft = Author { options, dialog: Dialog::find(options.yes) }.draft()?;
    if options.python {
        return write_script(options, &draft);
    }
    let Some(file) = write(options, &draft.answers.name, &draft.yaml())? else { return Ok(()) };
    if !options.quiet {
        draft.findings.iter().for_each(|line| say(&format!("  {line}")));
        say(&format!("  {}", choice(&draft.answers)));
        let train = &draft.answers.train;
        if !Path::new(train).exists() {
            say(&format!("note: {train} does not exist yet: its columns are guessed"));
        }
        let file = file.display();
        say(&format!(
            "next:\n  pipe check {file}   check the file and its data\n  pipe plan {file}    how much memory it needs\n  pipe run {file}     train"
        ));
    }
    Ok(())
}

fn write_command(options: &InitOptions, line: &str, name: Option<&Name>, batch: NonZeroU32) -> Result<(), Error> {
    let draft = command_line::draft(line, name, Path::new("."), Dialog::find(options.yes), batch)?;
    let Some(file) = write(options, &draft.name, &draft.yaml)? else { return Ok(()) };
    if !options.quiet {
        draft.findings.iter().for_each(|line| say(&format!("  {line}")));
        say(&format!("next:\n  pipe check {0}   check the file\n  pipe run {0}     run the command", file.display()));
    }
    Ok(())
}

/// Writes a script with a training loop, and the pipeline that runs it.
fn write_script(options: &InitOptions, draft: &Draft) -> Result<(), Error> {
    let name = &draft.answers.name;
    let file = options.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.yaml")));
    let script = Script::new(draft, &file)?;
    check_free(&file, options)?;
    check_free(&script.path, options)?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
    }
    write_whole(&script.path, script.text.as_bytes())?;
    print(&script.path.display().to_string());
    if !options.quiet {
        draft.findings.iter().for_each(|line| say(&format!("  {line}")));
        say("  the script needs torch and pipe_train, which `pip install` of the wheel of pipe brings");
    }
    let words = ["python3".to_owned(), CommandLine::quoted(&script.path.display().to_string())];
    let batch = NonZeroU32::new(draft.settings.effective_batch).unwrap_or(command_line::DEFAULT_BATCH);
    write_command(options, &words.join(" "), Some(name), batch)
}

/// Which model it is, and why, in a sentence.
fn choice(answers: &Answers) -> String {
    let (name, because) = (answers.arch.name(), because(answers.task(), &answers.fields));
    let has = |role: &str| answers.fields.iter().any(|(fed, _)| fed == role);
    match (&answers.from, pipe_model::starter(answers.arch).hub) {
        (Some(from), _) => format!("model: {name}, starting from {from}, because {because}"),
        (None, None) => format!("model: {name}, trained from scratch, because {because}"),
        (None, _) if has(CONVERSATION) && answers.task() == Task::Seq2Seq => format!(
            "model: {name}, trained from scratch, because {because}, and no trained model is named; \
             `--model {}` starts from one that can talk",
            Arch::ALL
                .iter()
                .filter(|arch| arch.can(Task::Language))
                .find_map(|arch| pipe_model::starter(*arch).hub)
                .unwrap_or_default()
        ),
        (None, Some(hub)) => format!(
            "model: {name}, trained from scratch, because {because}, and no trained model is named; \
             `--model {hub}` starts from one"
        ),
    }
}

/// The reason why the data calls for a task.
fn because(task: Task, fields: &[Field]) -> &'static str {
    let has = |role: &str| fields.iter().any(|(fed, _)| fed == role);
    match task {
        Task::Seq2Seq if has("messages") => "the data holds conversations, whose last turn it learns to write",
        Task::Seq2Seq => "the data has a text to read and a text to write",
        Task::Classification => "the data has a text and a label",
        Task::Contrastive => "the data has pictures with texts",
        Task::TimeSeries => "the data has numbers with a label, row after row",
        Task::Language if has(CONVERSATION) => "the data holds conversations, and it learns what the assistant says",
        Task::Language if has(COMPLETION) => "the data has questions with their answers",
        Task::Language => "the data has texts and nothing to predict about them",
        Task::TokenLabels => "the data has a label for each token",
        Task::Table => "the data has numbers and categories, and no order in time",
        Task::PictureClasses => "the data has pictures with a class",
        Task::Preference => "the data has two answers to each prompt, one of them better",
    }
}

/// Writes a pipeline to a file, and says which; nothing where it was printed instead.
fn write(options: &InitOptions, name: &Name, yaml: &str) -> Result<Option<PathBuf>, Error> {
    let text = format!("{}{yaml}", editor_line());
    if options.stdout {
        print_data(format!("{}\n", text.trim_end()).as_bytes());
        return Ok(None);
    }
    let file = options.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.yaml")));
    check_free(&file, options)?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
    }
    write_whole(&file, text.as_bytes())?;
    print(&file.display().to_string());
    Ok(Some(file))
}

/// Fails if the file exists, unless it may be overwritten.
fn check_free(file: &Path, options: &InitOptions) -> Result<(), Error> {
    if let Some(address) = file.to_str().filter(|file| file.contains("://")) {
        let (why, how) =
            ("a pipeline is written to this machine", "give the name of a file; addresses go to --data and --model");
        return Err(Error::UnreadData { data: address.to_owned(), why: why.to_owned(), how: how.to_owned() });
    }
    // Not even with --force: a file with data is there once.
    if file.is_file() && is_data(file) && !options.stdout {
        return Err(Error::DataFile { path: file.to_owned() });
    }
    let is_free = !file.exists() || options.force || options.stdout;
    if is_free { Ok(()) } else { Err(Error::Exists { path: file.to_owned() }) }
}

/// The line that tells editors with a YAML language server which schema a pipeline has; empty where no file can be had.
fn editor_line() -> String {
    let path = installed_schema().or_else(cached_schema);
    path.map_or(String::new(), |path| format!("# yaml-language-server: $schema={}\n", path.display()))
}

fn installed_schema() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let path = program.parent().and_then(Path::parent)?.join(INSTALLED_SCHEMA);
    path.is_file().then_some(path)
}

/// Each `pipe init` writes it, so that it is the schema of this version.
fn cached_schema() -> Option<PathBuf> {
    let folder = std::path::absolute(cache_folder()?).ok()?;
    std::fs::create_dir_all(&folder).ok()?;
    let path = folder.join("schema.json");
    write_json(&path, &registry::pipeline_schema()).ok()?;
    Some(path)
}
