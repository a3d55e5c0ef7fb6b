//! From a pipeline file to a pipeline, with what it names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pipe_spec::lock::LockedRepository;
use pipe_spec::model_folder::CONFIG;
use pipe_spec::pipeline::{Arch, MAX_FILE_BYTES, Model, ModelTask, Pipeline, StageGraph, Task, Training};
use pipe_spec::study::Study;
use pipe_spec::{Lock, Problems, Variables};
use serde_json::{Map, Value};

use super::hub::{Failure, Hub, HubAccess};
use super::preflight::{self, NotFound};
use super::{Inputs, read_config};
use crate::engine::registry;
use crate::error::Error;
use crate::report::{FetchProgress, Output, Reporter};
use crate::run::runs_folder;
use crate::system::files::{self, absolute};
use crate::system::interrupt::{self, Interrupts};

/// A pipeline that was read, with the text it was read from.
pub struct Loaded {
    pub pipeline: Pipeline,
    pub text: String,
    pub variables: Variables,
    pub inputs: Inputs,
}

impl Loaded {
    pub fn training(&self) -> Result<&Training, Error> {
        self.pipeline.training().ok_or(Error::NotATraining)
    }
}

/// Which pipeline is read, and how much of what it names on the hub is fetched.
pub struct Request {
    pub file: PathBuf,
    pub set: Vec<String>,
    pub access: HubAccess,
    /// The commits that a run began with, which it keeps whatever a branch names by now.
    pub pins: Vec<LockedRepository>,
}

/// A pipeline that was read, whether what it names is there or not.
pub struct Parsed {
    pub pipeline: Pipeline,
    pub text: String,
    pub variables: Variables,
}

/// Reads a pipeline file, with a `.env` of the working directory.
pub fn parse(file: &Path, set: &[String]) -> Result<Parsed, Error> {
    let (text, variables) = (text(file)?, variables());
    if Study::is_one(&text) {
        return Err(Error::IsStudy { file: file.to_owned() });
    }
    let set = with_model_of_folder("", &Model::written_keys(&text), set, &variables);
    let pipeline = registry::parse_pipeline(&text, &set, &variables).map_err(|problems| invalid(file, problems))?;
    Ok(Parsed { pipeline, text, variables })
}

/// The settings with the architecture and the task that the trained model in `model.from` has, where the file names none. `place` is where the pipeline
/// stands in the file, and `written` its model as it is there.
fn with_model_of_folder(place: &str, written: &Value, set: &[String], variables: &Variables) -> Vec<String> {
    let mut set = set.to_vec();
    let given = |key: &str| {
        let setting = format!("{place}model.{key}=");
        let set = set.iter().rev().find_map(|item| item.strip_prefix(&setting));
        set.or_else(|| written[key].as_str()).map(str::to_owned)
    };
    let (arch, task) = (given("arch"), given("task"));
    let knows_task = |arch: &String| task.is_some() || !Arch::find(arch).is_some_and(Arch::labels_tokens);
    let Some(from) = given("from").filter(|_| !arch.as_ref().is_some_and(knows_task)) else { return set };
    // The hub is asked only to find out what a model is.
    let access = if arch.is_some() { HubAccess::CacheOnly } else { HubAccess::Check };
    let hub = Hub::new(variables, access, &[], Reporter::new(Output::Quiet).fetch_progress());
    let config = preflight::config_folder(&from, variables, &hub).ok().and_then(|folder| read_config(&folder));
    let model_type = config.as_ref().and_then(|config| config.get("model_type")?.as_str());
    let found = model_type.and_then(Arch::of_model_type);
    if let (None, Some(found)) = (&arch, found) {
        set.insert(0, format!("{place}model.arch={}", found.name()));
    }
    let labels_tokens = arch.as_deref().map_or(found, Arch::find).is_some_and(Arch::labels_tokens);
    if !labels_tokens || task.is_some() {
        return set;
    }
    if let Some(task @ ModelTask::TokenClassification) = config.as_ref().and_then(pipe_model::named_task) {
        // Behind it stands what the command line says.
        set.insert(0, format!("{place}model.task={}", task.name()));
    }
    set
}

fn text(file: &Path) -> Result<String, Error> {
    files::check_utf8("the working directory", &std::env::current_dir().unwrap_or_default())?;
    files::check_utf8("PIPE_RUNS", &runs_folder())?;
    let not_text = |_| invalid(file, Problems::one(None, "", "the file is not text in UTF-8"));
    let bytes = files::read(file, MAX_FILE_BYTES).map_err(|error| match is_data(file) && file.is_file() {
        true => Error::DataFile { path: file.to_owned() },
        false => error,
    })?;
    String::from_utf8(bytes).map_err(not_text)
}

fn invalid(path: &Path, problems: Problems) -> Error {
    match is_data(path) {
        true => Error::DataFile { path: path.to_owned() },
        false => Error::Invalid { path: path.to_owned(), problems },
    }
}

/// Whether a file is named like one with data.
pub fn is_data(path: &Path) -> bool {
    path.file_name().is_some_and(|name| Task::Language.takes(&name.to_string_lossy()))
}

/// A pipeline of several steps, with the text it was read from.
pub struct ParsedStages {
    pub graph: StageGraph,
    pub text: String,
    pub variables: Variables,
}

/// The same for a file with `steps`; nothing where it has none.
pub fn parse_stages(file: &Path, set: &[String]) -> Result<Option<ParsedStages>, Error> {
    let (text, variables) = (text(file)?, variables());
    let mut set = set.to_vec();
    for (name, model) in Model::written_in_steps(&text) {
        set = with_model_of_folder(&format!("steps.{name}."), &model, &set, &variables);
    }
    let graph = registry::parse_stages(&text, &set, &variables).map_err(|problems| invalid(file, problems))?;
    for stage in graph.iter().flat_map(|graph| &graph.stages) {
        check_sockets(&stage.pipeline, &variables, &format!("steps.{}.", stage.name), file)?;
    }
    Ok(graph.map(|graph| ParsedStages { graph, text, variables }))
}

/// A study, with the text it was read from.
pub struct ParsedStudy {
    pub study: Study,
    pub text: String,
    pub variables: Variables,
}

/// The same for a study file, and the pipeline file that it names; nothing where it is none.
pub fn parse_study(file: &Path, set: &[String]) -> Result<Option<ParsedStudy>, Error> {
    let (text, variables) = (text(file)?, variables());
    if !Study::is_one(&text) {
        return Ok(None);
    }
    // The files that it names are beside it.
    let beside = |named: &str| -> Result<PathBuf, String> {
        let path = variables.expand(named).map_err(|name| variables.reason(&name))?;
        Ok(absolute(&file.parent().unwrap_or(Path::new("")).join(path)))
    };
    let read = |named: &str| self::text(&beside(named)?).map_err(|error| error.to_string());
    let mut study = registry::parse_study(&text, set, read, &variables).map_err(|problems| invalid(file, problems))?;
    if let Some(storage) = study.storage.clone() {
        let path = beside(&storage).map_err(|message| invalid(file, Problems::one(None, "storage", message)))?;
        files::check_utf8("the path of the storage", &path)?;
        study = study.with_storage(path.display().to_string());
    }
    Ok(Some(ParsedStudy { study, text, variables }))
}

/// Refuses a study whose trials would be handed the socket of an engine. Other values of its settings are looked at when a trial
/// has them.
pub fn check_study(parsed: &ParsedStudy, file: &Path) -> Result<(), Error> {
    let ParsedStudy { study, variables, .. } = parsed;
    let first = study.pipeline(study.name.as_str(), &study.first_point(), &[], variables);
    check_sockets(&first.map_err(|problems| invalid(file, problems))?, variables, "pipeline.", file)
}

/// Refuses mounts that hand a job the socket of an engine. `place` is where the pipeline stands in the file.
pub fn check_sockets(pipeline: &Pipeline, variables: &Variables, place: &str, file: &Path) -> Result<(), Error> {
    let problems = preflight::socket_problems(pipeline, variables, place);
    if problems.is_empty() { Ok(()) } else { Err(invalid(file, problems)) }
}

/// Those of the environment and of a `.env` of the working directory.
pub fn variables() -> Variables {
    let env_file = files::read(Path::new(".env"), MAX_FILE_BYTES).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    Variables::of_process(env_file.as_deref())
}

/// Reads a pipeline file, and finds what it names.
pub fn load(request: &Request, progress: FetchProgress) -> Result<Loaded, Error> {
    let Request { file, set, access, pins } = request;
    find(parse(file, set)?, file, *access, pins, progress)
}

/// Finds what a pipeline names, which `file` holds.
fn find(
    parsed: Parsed,
    file: &Path,
    access: HubAccess,
    pins: &[LockedRepository],
    progress: FetchProgress,
) -> Result<Loaded, Error> {
    let Parsed { pipeline, text, variables } = parsed;
    let hub = Hub::new(&variables, access, pins, progress);
    let inputs = Inputs::find(&pipeline, &variables, &hub).map_err(|error| match error {
        NotFound::Problems(problems) => invalid(file, problems),
        NotFound::Error(error) => error,
    })?;
    Ok(Loaded { pipeline, text, variables, inputs })
}

/// The same in a thread of its own, so that Ctrl-C ends it at once however long the hub takes. What was fetched until then
/// stays in the cache.
pub async fn load_interruptibly(
    request: Request,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Loaded, Error> {
    interruptibly(reporter, interrupts, move |progress| load(&request, progress)).await
}

/// The same where signals have to wait.
pub async fn load_whole(request: Request, reporter: &Reporter) -> Result<Loaded, Error> {
    let progress = reporter.fetch_progress();
    interrupt::run(move || load(&request, progress)).await
}

/// The same for what one step of a pipeline names, in the file `file`.
pub async fn find_interruptibly(
    parsed: Parsed,
    file: PathBuf,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Loaded, Error> {
    let find = move |progress| find(parsed, &file, HubAccess::Fetch, &[], progress);
    interruptibly(reporter, interrupts, find).await
}

async fn interruptibly(
    reporter: &Reporter,
    interrupts: &mut Interrupts,
    load: impl FnOnce(FetchProgress) -> Result<Loaded, Error> + Send + 'static,
) -> Result<Loaded, Error> {
    let progress = reporter.fetch_progress();
    let thread_progress = progress.clone();
    let loaded = interrupt::run_interruptibly(interrupts, move || load(thread_progress)).await;
    if matches!(loaded, Err(Error::Interrupted)) {
        progress.end(false);
    }
    loaded
}

/// The commits that a run keeps to.
pub fn pins(lock: Option<&Lock>) -> Vec<LockedRepository> {
    lock.map(|lock| lock.hub.clone()).unwrap_or_default()
}

/// The keys of the model's config.json, for which nothing else that the pipeline names need be there.
pub fn planned_config(parsed: &Parsed, progress: FetchProgress) -> Result<Map<String, Value>, Error> {
    let fail = |reason: String| Error::NoPlan { reason };
    let model = &parsed.pipeline.training().ok_or(Error::NotATraining)?.model;
    let of_task = |config| pipe_model::with_task(config, model.task());
    let Some(from) = &model.from else { return Ok(of_task(model.config.clone().unwrap_or_default())) };
    let hub = Hub::new(&parsed.variables, HubAccess::Check, &[], progress);
    let folder = preflight::config_folder(from, &parsed.variables, &hub).map_err(|failure| match failure {
        Failure::Named(message) => fail(format!("model.from: {message}")),
        Failure::Error(error) => error,
    })?;
    read_config(&folder)
        .map(of_task)
        .ok_or_else(|| fail(format!("model.from: {from} has no {CONFIG} that can be read")))
}

/// Goes to the folder that a run was started in, which its paths begin from. Paths of the environment begin where they did.
/// To be called before there are other threads.
pub fn enter_folder(folder: &Path) -> Result<(), Error> {
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    let runs = absolute(&runs_folder());
    // A path that begins with ~ begins nowhere else.
    let is_relative = |value: &OsString| !value.is_empty() && !value.as_encoded_bytes().starts_with(b"~");
    let given = ["PIPE_TRAINER", "PIPE_CACHE", "PIPE_LEDGER", "PIPE_QUEUE", "HF_HUB_CACHE", "HF_HOME", "HF_TOKEN_PATH"]
        .into_iter()
        .filter_map(|name| Some((name, std::env::var_os(name).filter(is_relative)?)))
        .map(|(name, value)| (name, absolute(Path::new(&value))));
    for (name, value) in given.chain([("PIPE_RUNS", runs)]).collect::<Vec<_>>() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(name, value) };
    }
    std::env::set_current_dir(folder).map_err(|source| Error::Read { path: folder.to_owned(), source })
}
