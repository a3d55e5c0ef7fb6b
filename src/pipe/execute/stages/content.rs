//! Whether a step has been done before: hashes of what it depends on, and of what it has written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::{OutputRef, Stage, StageGraph, WorkKind};
use pipe_spec::run::{StageState, StageStatus};
use pipe_spec::{Lock, RunFolder, Status, Variables};
use serde_json::{Value, json};

use crate::engine::registry;
use crate::error::Error;
use crate::execute::launch::workload::workload;
use crate::run::{self, Listed};
use crate::system::digests::{Digests, Links, hash_tree};

/// The sections that do not change what a step computes, besides those of engines.
const IRRELEVANT: [&str; 6] = ["name", "engine", "memory", "on_oom", "notify", "track"];

/// The settings of a container that do.
const RELEVANT_OF_CONTAINER: [&str; 3] = ["env", "workdir", "network"];

/// What a step depends on besides its settings.
pub struct Inputs<'a> {
    /// What names the image, or the trainer without one; nothing of a command without a container.
    pub program: Vec<String>,
    /// The hashes of data and model, of a training.
    pub lock: Option<&'a Lock>,
    /// Of the outputs of other steps that it names, by where containers find them; of steps that it needs and names nothing of, the
    /// run.
    pub outputs: BTreeMap<String, String>,
    /// Whether files of this machine that its command names count: in an image they are others.
    pub names_files: bool,
}

/// A hash of all that decides what a step will write.
pub fn hash(step: &Stage, inputs: &Inputs<'_>, variables: &Variables) -> Result<String, Error> {
    let mut settings = serde_json::to_value(&step.pipeline).unwrap_or_default();
    if let Some(sections) = settings.as_object_mut() {
        let irrelevant: Vec<&str> = IRRELEVANT.into_iter().chain(registry::section_names()).collect();
        sections.retain(|name, _| !irrelevant.contains(&name.as_str()));
        if let Some(container) = sections.get_mut("container").and_then(Value::as_object_mut) {
            container.retain(|name, _| RELEVANT_OF_CONTAINER.contains(&name.as_str()));
        }
        // Where there is a lock, their content counts and not where they are.
        if let Some(data) = sections.get_mut("data").and_then(Value::as_object_mut) {
            data.retain(|name, _| !["train", "eval", "tokenizer", "workers", "prefetch"].contains(&name.as_str()));
        }
    }
    let settings = variables.expand(&settings.to_string()).unwrap_or_else(|_| settings.to_string());
    let mut digests = Digests::load();
    let mut files = BTreeMap::new();
    let mounts = step.pipeline.container.mounts.iter().map(|mount| (mount.host.clone(), mount.container.clone()));
    for (path, place) in step.inputs.iter().map(|path| (path.clone(), String::new())).chain(mounts) {
        let host = PathBuf::from(variables.expand(&path).unwrap_or_default());
        files.insert(format!("{path}:{place}"), hash_tree(&mut digests, &host, Links::Followed)?);
    }
    if inputs.names_files {
        for path in workload(&step.pipeline).named_files(variables) {
            files.insert(path.display().to_string(), hash_tree(&mut digests, &path, Links::Followed)?);
        }
    }
    digests.save();
    let of_files =
        |files: &[pipe_spec::lock::LockedFile]| files.iter().map(|file| file.hash.clone()).collect::<Vec<_>>();
    let data = inputs.lock.map(|lock| {
        let tokenizer: Vec<_> = lock.tokenizer.iter().chain(&lock.tokenizer_files).cloned().collect();
        json!([of_files(&lock.train), of_files(&lock.eval), of_files(&tokenizer), of_files(&lock.model)])
    });
    let all = json!({ "settings": settings, "program": inputs.program, "data": data, "files": files, "outputs": inputs.outputs });
    Ok(blake3::hash(all.to_string().as_bytes()).to_hex().to_string())
}

/// Refuses an output that is a link, or lies behind one: a job may have made it, and it would lead the next one out of its place.
fn check_links(folder: &RunFolder, output: &Path) -> Result<(), Error> {
    let below = output.strip_prefix(folder.path()).unwrap_or(output);
    let mut place = folder.path().to_owned();
    for part in below.components() {
        place.push(part);
        if place.is_symlink() {
            return Err(Error::LinkedOutput { path: place });
        }
    }
    Ok(())
}

/// The outputs that a step must have written: those that it names, and what other steps of its pipeline name of it.
pub fn required_outputs(graph: &StageGraph, step: &Stage) -> Vec<Option<String>> {
    let is_named = |output: &Option<String>| {
        let named = OutputRef { step: step.name.clone(), output: output.clone() };
        graph.steps.iter().any(|other| other.references().contains(&named))
    };
    let is_own = |output: &Option<String>| output.as_ref().is_some_and(|name| step.outputs.contains_key(name));
    step.output_names().into_iter().filter(|output| is_own(output) || is_named(output)).collect()
}

/// Hashes of the outputs of a step that has finished. One that is not there is an error.
pub fn of_outputs(graph: &StageGraph, step: &Stage, folder: &RunFolder) -> Result<BTreeMap<String, String>, Error> {
    let mut digests = Digests::load();
    let mut outputs = BTreeMap::new();
    for name in required_outputs(graph, step) {
        let path = output_path(step, folder, name.as_deref());
        check_links(folder, &path)?;
        let hash = hash_tree(&mut digests, &path, Links::Kept).map_err(|error| {
            match name.as_ref().filter(|_| !path.exists()) {
                Some(name) => Error::NoOutput { step: step.name.clone(), output: name.clone(), path },
                None => error,
            }
        })?;
        outputs.insert(name.unwrap_or_default(), hash);
    }
    digests.save();
    Ok(outputs)
}

/// Where an output lies in the folder of the step's run.
pub fn output_path(step: &Stage, folder: &RunFolder, output: Option<&str>) -> PathBuf {
    let output = output.map(|name| PathBuf::from(step.outputs.get(name).map_or(name, String::as_str)));
    workload(&step.pipeline).output_path(folder, output)
}

/// The last time that a step with this hash has finished in a run of the pipeline, if its outputs are still what they were.
pub fn last_success(graph: &StageGraph, step: &Stage, hash: &str) -> Result<Option<StageState>, Error> {
    let all = run::list()?;
    let same = |done: &&StageState| done.hash.as_deref() == Some(hash) && is_intact(graph, step, done);
    Ok(successes(&all, graph.name.as_str(), &step.name).find(same).cloned())
}

/// The last time that a step has finished, whatever it depended on.
pub fn any_success(graph: &StageGraph, step: &Stage) -> Result<Option<StageState>, Error> {
    let all = run::list()?;
    Ok(successes(&all, graph.name.as_str(), &step.name).find(|done| is_intact(graph, step, done)).cloned())
}

/// The newest first.
fn successes<'a>(all: &'a [Listed], pipeline: &'a str, step: &'a str) -> impl Iterator<Item = &'a StageState> {
    all.iter()
        .filter(move |run| run.state.work() == WorkKind::Stages && run.state.name == pipeline)
        .flat_map(|run| run.state.stages())
        .filter(move |done| done.name == step && done.status == StageStatus::Finished)
}

/// Whether the outputs of a step are still what they were when it finished.
pub fn is_intact(graph: &StageGraph, step: &Stage, done: &StageState) -> bool {
    let Some(folder) = done.run.as_ref().map(|id| run::folder_of(id)) else { return false };
    let finished = Listed::read(folder.path()).is_some_and(|run| run.state.status == Status::Finished);
    let same = |now: BTreeMap<String, String>| now.iter().all(|(name, hash)| done.outputs.get(name) == Some(hash));
    finished && of_outputs(graph, step, &folder).is_ok_and(same)
}
