//! From a pipeline file to a pipeline, with what it names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pipe_spec::lock::LockedRepository;
use pipe_spec::model_folder::CONFIG;
use pipe_spec::pipeline::{MAX_FILE_BYTES, Pipeline};
use pipe_spec::{Lock, Problems, Variables};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::hub::{Failure, Hub, Reach};
use crate::interrupt::Interrupts;
use crate::preflight::{self, Inputs, NotFound};
use crate::report::{FetchProgress, Reporter};
use crate::run::{absolute, runs_folder};

/// A pipeline that was read, with the text it was read from.
pub struct Loaded {
    pub pipeline: Pipeline,
    pub text: String,
    pub variables: Variables,
    pub inputs: Inputs,
}

/// Which pipeline is read, and how much of what it names on the hub is fetched.
pub struct Request {
    pub file: PathBuf,
    pub set: Vec<String>,
    pub reach: Reach,
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
    let read_error = |source| Error::Read { path: file.to_owned(), source };
    let size = std::fs::metadata(file).map_err(read_error)?.len();
    if size > MAX_FILE_BYTES {
        return Err(Error::PipelineTooLarge { path: file.to_owned(), size, limit: MAX_FILE_BYTES });
    }
    let bytes = std::fs::read(file).map_err(read_error)?;
    let invalid = |problems: Problems| Error::Invalid { path: file.to_owned(), problems };
    let text =
        String::from_utf8(bytes).map_err(|_| invalid(Problems::one(None, "", "the file is not text in UTF-8")))?;
    let variables = variables();
    let pipeline = Pipeline::parse(&text, set, &variables).map_err(invalid)?;
    Ok(Parsed { pipeline, text, variables })
}

/// Those of the environment and of a `.env` of the working directory.
pub fn variables() -> Variables {
    let env_file = std::fs::read_to_string(".env").ok();
    Variables::new(env_file.as_deref(), std::env::vars())
}

/// Reads a pipeline file, and finds what it names.
pub fn load(request: &Request, progress: FetchProgress) -> Result<Loaded, Error> {
    let Request { file, set, reach, pins } = request;
    let Parsed { pipeline, text, variables } = parse(file, set)?;
    let hub = Hub::new(&variables, *reach, pins, progress);
    let inputs = Inputs::find(&pipeline, &variables, &hub).map_err(|error| match error {
        NotFound::Problems(problems) => Error::Invalid { path: file.clone(), problems },
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
    let progress = reporter.fetch_progress();
    let (send, receive) = tokio::sync::oneshot::channel();
    let theirs = progress.clone();
    std::thread::spawn(move || send.send(load(&request, theirs)).ok());
    tokio::select! {
        loaded = receive => loaded.unwrap_or_else(|_| Err(Error::Interrupted)),
        () = interrupts.signal() => {
            progress.end(false);
            Err(Error::Interrupted)
        }
    }
}

/// The commits that a run keeps to.
pub fn pins(lock: Option<&Lock>) -> Vec<LockedRepository> {
    lock.map(|lock| lock.hub.clone()).unwrap_or_default()
}

/// The keys of the model's config.json, for which nothing else that the pipeline names need be there.
pub fn planned_config(parsed: &Parsed, progress: FetchProgress) -> Result<Map<String, Value>, Error> {
    let fail = |reason: String| Error::NoPlan { reason };
    let model = &parsed.pipeline.model;
    let Some(from) = &model.from else { return Ok(model.config.clone().unwrap_or_default()) };
    let hub = Hub::new(&parsed.variables, Reach::Check, &[], progress);
    let folder = preflight::config_folder(from, &parsed.variables, &hub).map_err(|failure| match failure {
        Failure::Named(message) => fail(format!("model.from: {message}")),
        Failure::Error(error) => error,
    })?;
    read_config(&folder).ok_or_else(|| fail(format!("model.from: {from} has no {CONFIG} that can be read")))
}

/// The keys of the model's config.json, from the pipeline or from the folder that it names.
pub fn model_config(pipeline: &Pipeline, inputs: &Inputs) -> Option<Map<String, Value>> {
    match &inputs.model {
        Some(folder) => read_config(&folder.host),
        None => pipeline.model.config.clone(),
    }
}

/// The keys of the config.json in a model's folder, where it can be read.
pub fn read_config(folder: &Path) -> Option<Map<String, Value>> {
    serde_json::from_slice(&std::fs::read(folder.join(CONFIG)).ok()?).ok()
}

/// Goes to the folder that a run was started in, which its paths begin from. Paths of the environment begin where they did.
/// To be called before there are other threads.
pub fn go_to(folder: &Path) -> Result<(), Error> {
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
