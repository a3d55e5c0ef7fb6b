//! The engines that `pipe` has. The one place outside an engine's own folder that names it.

use std::sync::LazyLock;

use futures_util::FutureExt;
use pipe_spec::pipeline::{EngineEntry, EngineRequest, Engines, Pipeline, StageGraph};
use pipe_spec::study::Study;
use pipe_spec::{Problems, Variables};
use serde_json::Value;

use super::contract::{Check, Connection, Engine, Host, Progress, Registration};
use super::{docker, kubernetes, process, slurm};
use crate::error::Error;

/// In the order in which they are tried where a pipeline names none.
const ENGINES: &[Registration] = &[
    docker::REGISTRATION,
    process::REGISTRATION,
    slurm::REGISTRATION,
    kubernetes::REGISTRATION,
    #[cfg(test)]
    super::toy::REGISTRATION,
];

/// Names that a later version will have, and that are refused until then.
const PLANNED: &[&str] = &[];

/// The order of `ENGINES`, for people.
const DEFAULT: &str = "docker when a daemon answers, else process";

/// The sections that the engines add to the pipeline file.
fn engines() -> Engines {
    static ENTRIES: LazyLock<Vec<EngineEntry>> = LazyLock::new(|| {
        ENGINES.iter().map(|engine| EngineEntry { name: engine.name, section: engine.section }).collect()
    });
    Engines { entries: &ENTRIES, planned: PLANNED, default: DEFAULT }
}

/// Reads a pipeline file. `overrides` are `path=value` pairs that replace what the file says.
pub fn parse_pipeline(text: &str, overrides: &[String], variables: &Variables) -> Result<Pipeline, Problems> {
    Pipeline::parse(text, overrides, variables, engines())
}

/// Reads a pipeline file with `steps`; nothing where it has none.
pub fn parse_stages(text: &str, overrides: &[String], variables: &Variables) -> Result<Option<StageGraph>, Problems> {
    StageGraph::parse(text, overrides, variables, engines())
}

/// Reads a study file. `read` gives the text of the pipeline file that it names.
pub fn parse_study(
    text: &str,
    overrides: &[String],
    read: impl FnOnce(&str) -> Result<String, String>,
    variables: &Variables,
) -> Result<Study, Problems> {
    Study::parse(text, overrides, read, variables, engines())
}

/// The JSON schema of the pipeline file.
pub fn pipeline_schema() -> Value {
    pipe_spec::pipeline::schema(engines())
}

/// The sections of the pipeline file that belong to engines.
pub fn section_names() -> impl Iterator<Item = &'static str> {
    engines().section_names()
}

/// The names of all engines.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENGINES.iter().map(|engine| engine.name)
}

/// The name of the first engine whose jobs run without an image.
pub fn without_images() -> &'static str {
    ENGINES.iter().find(|engine| !engine.has_images).map_or("", |engine| engine.name)
}

fn find(name: &str) -> Result<&'static Registration, Error> {
    let known = || names().map(str::to_owned).collect();
    ENGINES
        .iter()
        .find(|engine| engine.name == name)
        .ok_or_else(|| Error::UnknownEngine { name: name.to_owned(), known: known() })
}

/// The engine of this name, for jobs that it has already, at the address of their run.
pub async fn connect(name: &str, address: Option<&str>) -> Result<Box<dyn Engine>, Error> {
    connect_for(name, &EngineRequest::default().at(address.map(str::to_owned))).await
}

/// The engine of this name, for the jobs of a pipeline.
pub async fn connect_for(name: &str, request: &EngineRequest) -> Result<Box<dyn Engine>, Error> {
    connect_to(find(name)?, request.clone()).await
}

async fn connect_to(engine: &Registration, request: EngineRequest) -> Result<Box<dyn Engine>, Error> {
    (engine.connect)(Connection { request, images: || connect_for_images().boxed_local() }).await
}

/// The requested engine, else the first that answers. Prints its name.
pub async fn choose(
    wanted: Option<&str>,
    request: &EngineRequest,
    progress: &dyn Progress,
) -> Result<Box<dyn Engine>, Error> {
    let engine = match wanted {
        Some(name) => connect_for(name, request).await?,
        None => first_that_answers(request, progress).await?,
    };
    progress.note(&format!("engine: {}", engine.describe()));
    Ok(engine)
}

async fn first_that_answers(request: &EngineRequest, progress: &dyn Progress) -> Result<Box<dyn Engine>, Error> {
    let mut engines = ENGINES.iter().filter(|engine| engine.is_tried).peekable();
    while let Some(engine) = engines.next() {
        match (connect_to(engine, request.clone()).await, engines.peek()) {
            // A command that is meant to be confined is not begun on the machine itself by accident.
            (Err(Error::NoEngine { reason, .. }), Some(next)) if request.for_image && !next.has_images => {
                let (from, to) = (engine.name, next.name);
                let hint = format!("start {from}; `--engine {to}` runs the command on this machine, without its image");
                return Err(Error::NoEngine { reason: format!("{reason}; the command names an image"), hint });
            }
            (Err(Error::NoEngine { reason, .. }), Some(next)) => {
                progress.note(&format!("{} is not available ({reason}): using the engine {}", engine.name, next.name));
            }
            (connected, _) => return connected,
        }
    }
    Err(Error::NoEngine { reason: "none is built in".to_owned(), hint: String::new() })
}

/// The engine that `pipe image` builds for.
pub async fn connect_for_images() -> Result<Box<dyn Engine>, Error> {
    match ENGINES.iter().find(|engine| engine.has_images) {
        Some(engine) => connect_to(engine, EngineRequest::default()).await,
        None => Err(Error::NoEngine { reason: "no engine has images".to_owned(), hint: String::new() }),
    }
}

/// Whether the jobs of the engine of this name may outlive their `pipe`. Of an unknown engine nothing is ruled out.
pub fn keeps_jobs(name: &str) -> bool {
    find(name).map_or(true, |engine| engine.keeps_jobs)
}

/// How many machines a job of this pipeline gets, as far as the pipeline says.
pub fn nodes(pipeline: &Pipeline) -> u32 {
    let named = pipeline.engine.as_deref().filter(|_| pipeline.training().is_some());
    let engine = named.and_then(|name| find(name).ok());
    engine.map_or(1, |engine| (engine.nodes)(&pipeline.engine_request()))
}

/// Where the jobs of a pipeline pull the images of `pipe` from.
pub fn repository(pipeline: &Pipeline) -> Option<String> {
    let engine = pipeline.engine.as_deref().and_then(|name| find(name).ok())?;
    (engine.repository)(&pipeline.engine_request())
}

/// Whether a job of the engine of this name supervises the run of a pipeline when it is detached.
pub fn supervises(name: &str, pipeline: &Pipeline) -> bool {
    find(name).is_ok_and(|engine| (engine.supervises)(&pipeline.engine_request()))
}

/// Help for `pipe doctor --engine`: a text for each engine that has one.
pub fn doctor_help() -> String {
    let helps = ENGINES.iter().filter(|engine| !engine.doctor_help.is_empty());
    helps.map(|engine| format!("; {} {}", engine.name, engine.doctor_help)).collect()
}

/// Runs the checks of one engine for `pipe doctor`, or of all that are tried.
pub async fn doctor(host: &Host, wanted: Option<&str>) -> Vec<Check> {
    let is_wanted = |engine: &&Registration| wanted.map_or(engine.is_tried, |name| name == engine.name);
    let mut checks = Vec::new();
    for engine in ENGINES.iter().filter(is_wanted) {
        checks.extend((engine.doctor)(host).await);
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pipeline_of_the_repository_is_valid() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines");
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
        let pipelines: Vec<_> = files.iter().filter(|file| file.extension().is_some_and(|end| end == "yaml")).collect();
        assert!(!pipelines.is_empty());
        for file in pipelines {
            let text = std::fs::read_to_string(file).unwrap();
            let variables = Variables::new(None, std::iter::empty());
            let beside = |named: &str| std::fs::read_to_string(folder.join(named)).map_err(|error| error.to_string());
            let result = match parse_stages(&text, &[], &variables) {
                Ok(None) if Study::is_one(&text) => parse_study(&text, &[], beside, &variables).map(drop),
                Ok(None) => parse_pipeline(&text, &[], &variables).map(drop),
                steps => steps.map(drop),
            };
            assert!(result.is_ok(), "{}:\n{}", file.display(), result.unwrap_err());
        }
    }
}
