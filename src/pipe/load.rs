//! From a pipeline file to a pipeline, with what it names.

use std::path::Path;

use pipe_spec::pipeline::{MAX_FILE_BYTES, Pipeline};
use pipe_spec::{Problems, Variables};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::preflight::{self, Inputs};
use crate::run::{absolute, runs_folder};

/// A pipeline that was read, with the text it was read from.
pub struct Loaded {
    pub pipeline: Pipeline,
    pub text: String,
    pub variables: Variables,
    pub inputs: Inputs,
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
    let env_file = std::fs::read_to_string(".env").ok();
    let variables = Variables::new(env_file.as_deref(), std::env::vars());
    let pipeline = Pipeline::parse(&text, set, &variables).map_err(invalid)?;
    Ok(Parsed { pipeline, text, variables })
}

/// Reads a pipeline file, and finds what it names.
pub fn load(file: &Path, set: &[String]) -> Result<Loaded, Error> {
    let Parsed { pipeline, text, variables } = parse(file, set)?;
    let inputs =
        Inputs::find(&pipeline, &variables).map_err(|problems| Error::Invalid { path: file.to_owned(), problems })?;
    Ok(Loaded { pipeline, text, variables, inputs })
}

/// The keys of the model's config.json, for which nothing else that the pipeline names need be there.
pub fn planned_config(parsed: &Parsed) -> Result<Map<String, Value>, Error> {
    let fail = |reason: String| Error::NoPlan { reason };
    let model = &parsed.pipeline.model;
    let Some(from) = &model.from else { return Ok(model.config.clone().unwrap_or_default()) };
    let folder =
        preflight::model_folder(from, &parsed.variables).map_err(|message| fail(format!("model.from: {message}")))?;
    read_config(&folder).ok_or_else(|| fail(format!("model.from: {from} has no config.json that can be read")))
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
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).ok()?).ok()
}

/// Goes to the folder that a run was started in, which its paths begin from. Paths of the environment begin where they did.
/// To be called before there are other threads.
pub fn go_to(folder: &Path) -> Result<(), Error> {
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    let runs = absolute(&runs_folder());
    let given = ["PIPE_TRAINER", "PIPE_CACHE", "PIPE_LEDGER", "PIPE_QUEUE"]
        .into_iter()
        .filter_map(|name| Some((name, std::env::var_os(name).filter(|value| !value.is_empty())?)))
        .map(|(name, value)| (name, absolute(Path::new(&value))));
    for (name, value) in given.chain([("PIPE_RUNS", runs)]).collect::<Vec<_>>() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(name, value) };
    }
    std::env::set_current_dir(folder).map_err(|source| Error::Read { path: folder.to_owned(), source })
}
