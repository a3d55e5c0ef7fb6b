//! Whether a stage has been done before: hashes of what it depends on, and of what it has written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pipe_spec::pipeline::{OutputRef, Problems, Stage, StageGraph, WorkKind};
use pipe_spec::run::{StageState, StageStatus};
use pipe_spec::text::human_bytes;
use pipe_spec::{Lock, RunFolder, Status, Variables};
use serde_json::{Value, json};

use crate::engine::registry;
use crate::error::Error;
use crate::execute::launch::workload::workload;
use crate::input::load::ParsedStages;
use crate::report::Reporter;
use crate::run::{self, Listed};
use crate::system::digests::{Digests, Links, Tree, hash_tree};
use crate::system::files::special;
use crate::system::interrupt::{self, Interrupts};

/// The sections that do not change what a stage computes, besides those of engines.
const IRRELEVANT: [&str; 6] = ["name", "engine", "memory", "on_oom", "notify", "track"];

/// The settings of a container that do.
const RELEVANT_OF_CONTAINER: [&str; 3] = ["env", "workdir", "network"];

/// How long files are hashed before it is said; then after twice the time, and so on.
const FIRST_NOTE: Duration = Duration::from_secs(5);

/// The inputs of a stage besides its settings.
pub struct Inputs {
    /// The id of the image, or of the trainer without one; nothing for a command without a container.
    pub program: Vec<String>,
    /// The hashes of data and model, of a training.
    pub lock: Option<Lock>,
    /// Hashes of the outputs of other stages that it names, by their paths in containers; for stages that it needs and names nothing of, the
    /// run.
    pub outputs: BTreeMap<String, String>,
    /// Whether files of this machine that its command names count: in an image they are others.
    pub names_files: bool,
}

/// Finds inputs of stages that are not there, in the file `file`.
pub fn check_inputs(parsed: &ParsedStages, file: &Path) -> Result<(), Error> {
    let mut problems = Problems::default();
    for stage in &parsed.graph.stages {
        for (index, input) in stage.inputs.iter().enumerate() {
            let path = format!("steps.{}.inputs.{index}", stage.name);
            match parsed.variables.expand(input) {
                Ok(expanded) if Path::new(&expanded).exists() => {
                    not_an_input(Path::new(&expanded))
                        .into_iter()
                        .for_each(|message| problems.push(None, &path, message));
                }
                Ok(_) if input.contains("{steps.") => {
                    problems.push(
                        None,
                        &path,
                        "outputs of other steps count by themselves where a step names them; leave it out",
                    );
                }
                Ok(_) => problems.push(None, &path, format!("there is no {input}")),
                Err(_) => problems.push(None, &path, format!("a variable of {input} is not set")),
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Invalid { path: file.to_owned(), problems }) }
}

/// Why a path that is there cannot be an input.
fn not_an_input(path: &Path) -> Option<String> {
    let readable = || if path.is_dir() { path.read_dir().map(drop) } else { File::open(path).map(drop) };
    match special(path) {
        Ok(Some(what)) => Some(format!("{} is {what}; only files and folders can be inputs", path.display())),
        found => found.and_then(|_| readable()).err().map(|error| format!("cannot read {}: {error}", path.display())),
    }
}

/// Reads files in a thread until a signal comes, and shows how far it is.
pub async fn read_files<T: Send + 'static>(
    what: &str,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
    read: impl FnOnce(&mut Digests) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (began, mut next_note) = (Instant::now(), FIRST_NOTE);
    let show = |bytes: u64| {
        let text = format!("hashing {what}: {}", human_bytes(bytes));
        reporter.doing(&text);
        if began.elapsed() >= next_note {
            reporter.note(&format!("{text} so far"));
            next_note *= 2;
        }
    };
    interrupt::run_watched(interrupts, show, move |watch| {
        let mut digests = Digests::watched(watch);
        let result = read(&mut digests);
        digests.save();
        result
    })
    .await
}

/// The content that a stage is known by.
pub struct Identity {
    /// A hash of all that decides what it will write.
    pub hash: String,
    /// A hash of content and state for each file and folder that it reads.
    pub inputs: BTreeMap<String, String>,
}

/// Reads all that a stage depends on.
pub fn identify(
    stage: &Stage,
    inputs: &Inputs,
    variables: &Variables,
    digests: &mut Digests,
) -> Result<Identity, Error> {
    // Before their content is read: what changes in between has changed while the stage ran.
    let states = read_states(&names_of_inputs(stage, inputs, variables), variables, digests)?;
    let hash = hash(stage, inputs, variables, digests)?;
    Ok(Identity { hash, inputs: states })
}

/// The files and folders that a stage reads and must not write, as the pipeline names them.
fn names_of_inputs(stage: &Stage, inputs: &Inputs, variables: &Variables) -> BTreeSet<String> {
    let mounts = stage.pipeline.container.mounts.iter().map(|mount| mount.host.clone());
    let words = match inputs.names_files {
        true => workload(&stage.pipeline).named_files(variables),
        false => BTreeMap::new(),
    };
    let locked = inputs.lock.iter().flat_map(|lock| {
        let files = lock.train.iter().chain(&lock.eval).chain(&lock.tokenizer).chain(&lock.tokenizer_files);
        files.chain(&lock.model).map(|file| file.name.clone())
    });
    stage.inputs.iter().cloned().chain(mounts).chain(words.into_values()).chain(locked).collect()
}

/// Hashes of content and state of files and folders by the names that a pipeline has for them. What cannot be read has none.
fn read_states(
    names: &BTreeSet<String>,
    variables: &Variables,
    digests: &mut Digests,
) -> Result<BTreeMap<String, String>, Error> {
    let mut states = BTreeMap::new();
    for name in names {
        let host = PathBuf::from(variables.expand(name).unwrap_or_default());
        match hash_tree(digests, &host, Links::Followed) {
            Ok(Tree { content, state }) => {
                let hash = blake3::hash(format!("{content} {state}").as_bytes()).to_hex().to_string();
                states.insert(name.clone(), hash);
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(_) => {}
        }
    }
    Ok(states)
}

/// The inputs that are not what they were when the stage began, though they may have been put back.
pub fn changed_inputs(
    then: &BTreeMap<String, String>,
    variables: &Variables,
    digests: &mut Digests,
) -> Result<Vec<String>, Error> {
    let now = read_states(&then.keys().cloned().collect(), variables, digests)?;
    Ok(then.iter().filter(|(name, state)| now.get(*name) != Some(state)).map(|(name, _)| name.clone()).collect())
}

fn hash(stage: &Stage, inputs: &Inputs, variables: &Variables, digests: &mut Digests) -> Result<String, Error> {
    let mut settings = serde_json::to_value(&stage.pipeline).unwrap_or_default();
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
    let mut files = BTreeMap::new();
    for path in &stage.inputs {
        let host = PathBuf::from(variables.expand(path).unwrap_or_default());
        let tree = hash_tree(digests, &host, Links::Followed).map_err(refused_as_input)?;
        files.insert(format!("{path}:"), tree.content);
    }
    for mount in &stage.pipeline.container.mounts {
        let host = PathBuf::from(variables.expand(&mount.host).unwrap_or_default());
        let content = match hash_tree(digests, &host, Links::Followed) {
            // A device or a socket has no content.
            Err(Error::NotAFile { what, .. }) => what.to_owned(),
            tree => tree?.content,
        };
        files.insert(format!("{}:{}", mount.host, mount.container), content);
    }
    if inputs.names_files {
        for path in workload(&stage.pipeline).named_files(variables).into_keys() {
            match hash_tree(digests, &path, Links::Followed) {
                Ok(tree) => drop(files.insert(path.display().to_string(), tree.content)),
                // It is gone, or not a file any more.
                Err(Error::NotAFile { .. } | Error::Read { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let of_files =
        |files: &[pipe_spec::lock::LockedFile]| files.iter().map(|file| file.hash.clone()).collect::<Vec<_>>();
    let data = inputs.lock.as_ref().map(|lock| {
        let tokenizer: Vec<_> = lock.tokenizer.iter().chain(&lock.tokenizer_files).cloned().collect();
        json!([of_files(&lock.train), of_files(&lock.eval), of_files(&tokenizer), of_files(&lock.model)])
    });
    let all = json!({ "settings": settings, "program": inputs.program, "data": data, "files": files, "outputs": inputs.outputs });
    Ok(blake3::hash(all.to_string().as_bytes()).to_hex().to_string())
}

fn refused_as_input(error: Error) -> Error {
    match error {
        Error::NotAFile { path, what } => Error::NotAnInput { path, what },
        other => other,
    }
}

/// Refuses an output that is a link, or lies behind one: a job may have made it, and it would lead the next one out of its folder.
fn check_links(folder: &RunFolder, output: &Path) -> Result<(), Error> {
    let below = output.strip_prefix(folder.path()).unwrap_or(output);
    let mut path = folder.path().to_owned();
    for part in below.components() {
        path.push(part);
        if path.is_symlink() {
            return Err(Error::LinkedOutput { path });
        }
    }
    Ok(())
}

/// The outputs that a stage must have written, known apart from its pipeline.
pub struct StageOutputs {
    /// The name of its pipeline.
    pipeline: String,
    stage: Stage,
    /// Those that it names, and what other stages of its pipeline name of it.
    names: Vec<Option<String>>,
}

impl StageOutputs {
    pub fn of(graph: &StageGraph, stage: &Stage) -> Self {
        let is_named = |output: &Option<String>| {
            let named = OutputRef { stage: stage.name.clone(), output: output.clone() };
            graph.stages.iter().any(|other| other.references().contains(&named))
        };
        let is_own = |output: &Option<String>| output.as_ref().is_some_and(|name| stage.outputs.contains_key(name));
        let names = stage.output_names().into_iter().filter(|output| is_own(output) || is_named(output)).collect();
        Self { pipeline: graph.name.to_string(), stage: stage.clone(), names }
    }

    /// Their hashes, once the stage has finished. One that is not there is an error.
    pub fn hash(&self, folder: &RunFolder, digests: &mut Digests) -> Result<BTreeMap<String, String>, Error> {
        let mut outputs = BTreeMap::new();
        for name in &self.names {
            let (stage, path) = (self.stage.name.clone(), output_path(&self.stage, folder, name.as_deref()));
            check_links(folder, &path)?;
            let tree = hash_tree(digests, &path, Links::Kept).map_err(|error| match (error, name) {
                (Error::NotAFile { path, what }, _) => Error::SpecialOutput { stage, path, what },
                (_, Some(name)) if !path.exists() => Error::NoOutput { stage, output: name.clone(), path },
                (error, _) => error,
            })?;
            outputs.insert(name.clone().unwrap_or_default(), tree.content);
        }
        Ok(outputs)
    }

    /// The last time that the stage has finished in a run of the pipeline, if its outputs are still what they were: with this hash, or
    /// whatever it depended on.
    pub fn last_success(&self, hash: Option<&str>, digests: &mut Digests) -> Result<Option<StageState>, Error> {
        let is_run =
            |run: &&Listed| run.state.work() == WorkKind::Stages && run.state.name == self.pipeline && run.is_own();
        let is_done = |done: &&StageState| done.name == self.stage.name && done.status == StageStatus::Finished;
        let is_same = |done: &&StageState| hash.is_none() || done.hash.as_deref() == hash;
        // The newest first.
        let all = run::list()?;
        let stages = all.iter().filter(is_run).flat_map(|run| run.state.stages());
        for done in stages.filter(is_done).filter(is_same) {
            if self.are_intact(done, digests)? {
                return Ok(Some(done.clone()));
            }
        }
        Ok(None)
    }

    /// Whether they are still what they were when the stage finished.
    pub fn are_intact(&self, done: &StageState, digests: &mut Digests) -> Result<bool, Error> {
        let Some(folder) = done.run.as_ref().map(|id| run::folder_of(id)) else { return Ok(false) };
        // The outputs of another user are not trusted, whoever says that they are unchanged.
        if Listed::read(folder.path()).is_none_or(|run| run.state.status != Status::Finished || !run.is_own()) {
            return Ok(false);
        }
        match self.hash(&folder, digests) {
            Ok(now) => Ok(now.iter().all(|(name, hash)| done.outputs.get(name) == Some(hash))),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(_) => Ok(false),
        }
    }
}

/// Where an output lies in the folder of the stage's run.
pub fn output_path(stage: &Stage, folder: &RunFolder, output: Option<&str>) -> PathBuf {
    let output = output.map(|name| PathBuf::from(stage.outputs.get(name).map_or(name, String::as_str)));
    workload(&stage.pipeline).output_path(folder, output)
}
