//! The model that predicts: the exported model of a run, with the settings of the run, or a model's folder by itself.
//!
//! Where predictions go: a file that is there whole or not at all, or stdout.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use pipe_spec::model_folder::{ADAPTER_CONFIG, CONFIG};
use pipe_spec::pipeline::{Arch, CHOSEN, COMPLETION, CONVERSATION, Container, EngineRequest, PROMPT, Pipeline, Task};
use pipe_spec::{Lock, Status, TrainerSpec, Variables};
use tempfile::TempDir;

use crate::engine::registry;
use crate::error::Error;
use crate::execute::launch::template::trainer_spec;
use crate::input::{Inputs, load, read_config};
use crate::run::{self, Listed, lock};
use crate::system::files::{self, absolute};

/// Bytes of an adapter_config.json at most.
const LARGEST_CONFIG: u64 = 16 << 20;

pub struct Subject {
    /// The id of the run.
    pub run: Option<String>,
    /// The engine of the run.
    pub engine: Option<String>,
    /// The folder of the model; of its adapter, where there is a `base`.
    pub model: PathBuf,
    /// The model that the adapter was trained for, as the pipeline or adapter_config.json has it.
    pub base: Option<String>,
    pub container: Container,
    pub engine_request: EngineRequest,
    /// Variables that `container` names.
    pub variables: Variables,
    /// The files that the run began with.
    pub lock: Option<Lock>,
    /// The settings that the model was trained with, or the defaults.
    pub settings: TrainerSpec,
}

impl Subject {
    /// By the id of a run, the folder of a run, or the folder of a model.
    pub fn find(wanted: &str) -> Result<Self, Error> {
        let folder = absolute(Path::new(wanted));
        if folder.join(CONFIG).is_file() {
            // The model of a run is used as the run says.
            let run = folder.parent().filter(|_| folder.ends_with("model")).and_then(Listed::read);
            return run.map_or_else(|| Self::of_folder(&folder), |run| Self::of_run(&run));
        }
        match Listed::read(&folder).filter(|_| folder.is_dir()) {
            Some(run) => Self::of_run(&run),
            None => run::find_single(&latest_id(wanted)?)
                .map_err(|error| match error {
                    Error::NoRun { .. } if folder.is_dir() => Error::NoModel {
                        what: format!(
                            "{wanted} is neither the folder of a model, which has a {CONFIG}, nor that of a run"
                        ),
                        hint: "`pipe ls` lists the runs".to_owned(),
                    },
                    error => error,
                })
                .and_then(|run| Self::of_run(&run)),
        }
    }

    fn of_run(run: &Listed) -> Result<Self, Error> {
        let (folder, id) = (run.folder(), &run.state.id);
        if !has_model(run) {
            return Err(no_model(run));
        }
        let parsed = load::parse(&folder.resolved(), &[])?;
        load::check_sockets(&parsed.pipeline, &parsed.variables, "", &folder.resolved())?;
        let damaged = |damage: String| Error::Damaged { id: id.clone(), damage: vec![damage] };
        // Changes by an out-of-memory are in the spec of the last attempt.
        let attempt = run.state.attempts().last().map_or(1, |attempt| attempt.number);
        let spec = folder.attempt(attempt).spec();
        let text = files::read_own(&spec).map_err(|error| damaged(format!("{}: {error}", spec.display())))?;
        let settings: Result<TrainerSpec, _> = serde_json::from_slice(&text);
        Ok(Self {
            run: Some(id.clone()),
            engine: Some(run.state.engine.clone()).filter(|name| !name.is_empty()),
            base: is_adapter(&folder.model()).then(|| base_of(&parsed.pipeline)).flatten(),
            model: absolute(&folder.model()),
            engine_request: parsed.pipeline.engine_request(),
            container: parsed.pipeline.container,
            variables: parsed.variables,
            lock: lock::read(&folder),
            settings: answering(settings.map_err(|error| damaged(format!("{}: {error}", spec.display())))?),
        })
    }

    /// With the defaults of a pipeline that names the folder.
    fn of_folder(folder: &Path) -> Result<Self, Error> {
        let fail = |what: String| Error::NoModel { what, hint: "give a folder that pipe has exported".to_owned() };
        let file = folder.join(CONFIG);
        let config = read_config(folder).ok_or_else(|| fail(format!("{} cannot be read", file.display())))?;
        let model_type = config.get("model_type").and_then(serde_json::Value::as_str).unwrap_or_default();
        let known = Arch::ALL.iter().map(|arch| arch.model_type()).collect::<Vec<_>>().join(", ");
        let arch = Arch::of_model_type(model_type)
            .ok_or_else(|| fail(format!("{}: found model_type {model_type:?}; allowed: {known}", file.display())))?;
        let task = pipe_model::named_task(&config).filter(|_| arch.labels_tokens());
        let task = task.map_or(String::new(), |task| format!("task: {}, ", task.name()));
        let text = format!(
            "version: 1\nname: predict\nmodel: {{arch: {}, {task}from: model}}\ndata: {{train: rows.jsonl}}\ntrain: {{batch: 32}}\n",
            arch.name()
        );
        let variables = load::variables();
        let pipeline = registry::parse_pipeline(&text, &[], &variables)
            .map_err(|problems| Error::Invalid { path: folder.to_owned(), problems })?;
        let training = pipeline.training().ok_or(Error::NotATraining)?;
        let settings = trainer_spec(training, &Inputs::none(), PathBuf::new(), |input| input.host.clone());
        Ok(Self {
            run: None,
            engine: None,
            base: base_name(folder),
            model: folder.to_owned(),
            container: pipeline.container.clone(),
            engine_request: EngineRequest::default(),
            variables,
            lock: None,
            settings,
        })
    }

    pub fn task(&self) -> Task {
        self.settings.model.task()
    }

    /// Reads what `role` is fed with from `column`.
    pub fn set_field(&mut self, role: &str, column: &str) -> Result<(), Error> {
        let task = self.task();
        let mut allowed = task.roles().to_vec();
        if task == Task::Language {
            allowed.push("prompt");
        }
        if !allowed.contains(&role) {
            let allowed = allowed.join(", ");
            return Err(Error::UnknownRole { role: role.to_owned(), task: task.name(), allowed });
        }
        self.settings.data.fields.insert(role.to_owned(), column.to_owned());
        Ok(())
    }
}

/// A model that learned from pairs of answers gives an answer.
fn answering(mut settings: TrainerSpec) -> TrainerSpec {
    if settings.model.task() == Task::Preference {
        let chosen = settings.data.field(CHOSEN).to_owned();
        let fields = match settings.data.fields.get(PROMPT) {
            Some(prompt) => vec![(PROMPT, prompt.clone()), (COMPLETION, chosen)],
            None => vec![(CONVERSATION, chosen)],
        };
        settings.data.fields = fields.into_iter().map(|(role, column)| (role.to_owned(), column)).collect();
        (settings.model.task, settings.train.preference) = (None, None);
    }
    settings
}

/// Whether a folder holds an adapter instead of a whole model.
fn is_adapter(folder: &Path) -> bool {
    folder.join(ADAPTER_CONFIG).is_file()
}

fn base_of(pipeline: &Pipeline) -> Option<String> {
    pipeline.training()?.model.from.clone()
}

/// The model that adapter_config.json names, where a folder has one.
fn base_name(folder: &Path) -> Option<String> {
    let text = files::read(&folder.join(ADAPTER_CONFIG), LARGEST_CONFIG).ok()?;
    let keys: serde_json::Value = serde_json::from_slice(&text).ok()?;
    keys["base_model_name_or_path"].as_str().map(str::to_owned)
}

/// A run that has not ended has no model yet: `latest` is the one before.
fn latest_id(wanted: &str) -> Result<String, Error> {
    let may_have_one = |run: &Listed| run.state.status != Status::Running || has_model(run);
    let latest = if wanted == run::LATEST { run::latest(may_have_one)? } else { None };
    Ok(latest.map_or_else(|| wanted.to_owned(), |run| run.state.id))
}

fn has_model(run: &Listed) -> bool {
    run.folder().model().join(CONFIG).is_file()
}

/// Why a run has no model, and what to do.
fn no_model(run: &Listed) -> Error {
    let id = &run.state.id;
    let hint = match run.state.status {
        Status::Running => format!("it exports its model at its end; `pipe attach {id}` watches it"),
        Status::Finished => "it was removed, or the pipeline has `save: {export: false}`; a new run with \
             `--set save.export=true` exports one"
            .to_owned(),
        Status::Stopped | Status::Orphaned | Status::Failed | Status::Unknown => {
            format!("`pipe resume {id}` continues it from its last checkpoint; it exports its model at its end")
        }
    };
    let status = run.state.status.name();
    Error::NoModel { what: format!("the run {id} ({status}) has no exported model"), hint }
}

/// How the folder of a job begins.
pub const WORK_FOLDER: &str = ".pipe-predict-";

pub enum Destination {
    Stdout,
    /// A file that is there or not; the output is moved there.
    File(PathBuf),
    /// The same, as a table with this character between the cells.
    Table(PathBuf, u8),
    /// A pipe or a device; the output is copied there.
    Stream(PathBuf),
}

impl Destination {
    /// Without a path stdout.
    pub fn find(out: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = out else { return Ok(Self::Stdout) };
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Err(Error::NotAFile { path: path.to_owned(), what: "a folder" }),
            Ok(meta) if !meta.is_file() => Ok(Self::Stream(path.to_owned())),
            _ => match path.extension().map(|ending| ending.to_ascii_lowercase()).as_deref().and_then(OsStr::to_str) {
                Some("csv") => Ok(Self::Table(path.to_owned(), b',')),
                Some("tsv") => Ok(Self::Table(path.to_owned(), b'\t')),
                Some("json" | "parquet" | "xlsx" | "xls" | "gz" | "zst") => {
                    Err(Error::OutputFormat { path: path.to_owned() })
                }
                _ => Ok(Self::File(path.to_owned())),
            },
        }
    }

    /// Takes the complete output.
    pub fn take(&self, output: &Path) -> Result<(), Error> {
        let read = |source| Error::Read { path: output.to_owned(), source };
        // The job wrote it: nothing there is followed elsewhere.
        if !std::fs::symlink_metadata(output).map_err(read)?.is_file() {
            return Err(Error::NotAFile { path: output.to_owned(), what: "something else" });
        }
        let copy = |mut to: Box<dyn Write>| {
            let mut from = File::open(output)?;
            std::io::copy(&mut from, &mut to).and_then(|_| to.flush())
        };
        let (done, path) = match self {
            Self::File(path) => (std::fs::rename(output, path), path.as_path()),
            Self::Table(path, separator) => (write_table(output, path, *separator), path.as_path()),
            Self::Stream(path) => {
                (File::options().write(true).open(path).and_then(|to| copy(Box::new(to))), path.as_path())
            }
            Self::Stdout => (copy(Box::new(std::io::stdout().lock())), Path::new("stdout")),
        };
        match done {
            // A reader that has read enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done.map_err(|source| Error::Output { path: path.to_owned(), source }),
        }
    }

    /// For a line about what was written.
    pub fn suffix(&self) -> String {
        match self {
            Self::Stdout => String::new(),
            Self::File(path) | Self::Table(path, _) | Self::Stream(path) => format!(": {}", path.display()),
        }
    }
}

/// Writes the output as a table, which has its name when it is complete.
fn write_table(output: &Path, path: &Path, separator: u8) -> std::io::Result<()> {
    let whole = output.with_extension("table");
    let file = File::create_new(&whole)?;
    pipe_data::write_csv(BufReader::new(File::open(output)?), separator, BufWriter::new(&file))?;
    file.sync_all()?;
    std::fs::rename(&whole, path)
}

/// A folder for the job that goes away with this process: beside the file, so that the output can be moved.
pub fn work_folder(destination: &Destination) -> Result<TempDir, Error> {
    let parent = match destination {
        Destination::File(path) | Destination::Table(path, _) => {
            absolute(path).parent().unwrap_or(Path::new("/")).to_owned()
        }
        Destination::Stdout | Destination::Stream(_) => absolute(&std::env::temp_dir()),
    };
    let made = tempfile::Builder::new().prefix(WORK_FOLDER).tempdir_in(&parent);
    made.map_err(|source| Error::Output { path: parent, source })
}
