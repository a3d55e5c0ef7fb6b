//! What a run stands on, collected before it starts, and what differs between two of them. Starts nothing.

mod commit;
mod difference;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pipe_spec::event::Started;
use pipe_spec::lock::{Cpu, LockedCard, LockedFile, Program};
use pipe_spec::pipeline::Pipeline;
use pipe_spec::text::human_bytes;
use pipe_spec::{Device, Lock, RunFolder, variables};
use serde::Deserialize;
use serde_json::Value;

use crate::card::Card;
use crate::digests::Digests;
use crate::error::Error;
use crate::image;
use crate::model_files;
use crate::plan::Plan;
use crate::preflight::{Input, Inputs};
use crate::report::Reporter;
use crate::run::write_json;
pub use difference::{Difference, Effect, differences};

/// From so many bytes on it is said that they are read.
const LONG: u64 = 1 << 30;

/// All that can be known of `plan` before it starts, in the folder that it starts in. `on` is the engine with its image; what
/// the user wrote is in the folder of the run.
pub fn collect(on: &Value, folder: &RunFolder, plan: &Plan, reporter: &Reporter) -> Result<Lock, Error> {
    let path = folder.pipeline();
    let text = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    let mut on = Program::deserialize(on).unwrap_or_default();
    if on.image.is_none() {
        on.trainer = Some(image::trainer_digest()?);
        on.libraries = image::libraries_digest();
    }
    let (pipeline, inputs) = (plan.pipeline, plan.inputs);
    let resolved = settings(pipeline);
    let names: BTreeSet<String> = variables::names(&resolved).map(str::to_owned).collect();
    let card = (plan.device == Device::Cuda).then(|| Card::read(&pipeline.container.gpus)).flatten();
    let lock = Lock {
        pipe: env!("CARGO_PKG_VERSION").to_owned(),
        pipeline: hash(&text),
        resolved: Some(hash(resolved.as_bytes())),
        variables: names.into_iter().collect(),
        seed: Some(pipeline.train.seed),
        on,
        train: Vec::new(),
        eval: Vec::new(),
        tokenizer: None,
        tokenizer_files: Vec::new(),
        model: Vec::new(),
        hub: Vec::new(),
        commit: commit::of(Path::new(".")),
        libtorch: None,
        device: match (plan.device, &card) {
            (Device::Cpu, _) => Some("cpu".to_owned()),
            (Device::Cuda, card) => card.as_ref().map(|card| card.name.clone()),
        },
        card: card.map(|card| LockedCard {
            name: card.name,
            driver: Some(card.driver),
            capability: card.capability.map(|capability| capability.to_string()),
        }),
        cpu: cpu(),
        threads: plan.threads(),
    };
    with_inputs(lock, inputs, reporter)
}

/// What of data, tokenizer and model is not what the run in this folder began with. Where nothing was written down, nothing is.
pub fn changed_inputs(folder: &RunFolder, inputs: &Inputs, reporter: &Reporter) -> Result<Vec<Difference>, Error> {
    let Some(then) = read(folder) else { return Ok(Vec::new()) };
    Ok(differences(&then, &with_inputs(then.clone(), inputs, reporter)?))
}

/// A lock with the hashes of the inputs as they are now.
fn with_inputs(lock: Lock, inputs: &Inputs, reporter: &Reporter) -> Result<Lock, Error> {
    let model = inputs.model.iter().flat_map(model_files).collect::<Vec<_>>();
    let mut hasher = Hasher::new(inputs.all().chain(&model), reporter);
    let mut tokenizer = hasher.files(inputs.tokenizer_definition())?.into_iter();
    let lock = Lock {
        train: hasher.files(&inputs.train)?,
        eval: hasher.files(&inputs.eval)?,
        tokenizer: tokenizer.next(),
        tokenizer_files: tokenizer.collect(),
        model: hasher.files(&model)?,
        hub: inputs.hub.clone(),
        ..lock
    };
    hasher.digests.save();
    Ok(lock)
}

/// The lock of a run; nothing where it cannot be read.
pub fn read(folder: &RunFolder) -> Option<Lock> {
    serde_json::from_slice(&std::fs::read(folder.lock()).ok()?).ok()
}

/// Adds to the lock of a run what its trainer tells. Not being able to is no reason not to train.
pub fn learn(folder: &RunFolder, started: &Started) {
    change(folder, |lock| lock.learn(started)).unwrap_or_else(|error| tracing::debug!("{error}"));
}

/// Adds to the lock of a run that it goes on with other settings, none of which changes what is computed.
pub fn settle(folder: &RunFolder, pipeline: &Pipeline) -> Result<(), Error> {
    change(folder, |lock| lock.resolved = Some(hash(settings(pipeline).as_bytes())))
}

fn change(folder: &RunFolder, change: impl FnOnce(&mut Lock)) -> Result<(), Error> {
    let Some(before) = read(folder) else { return Ok(()) };
    let mut lock = before.clone();
    change(&mut lock);
    if lock == before { Ok(()) } else { write_json(&folder.lock(), &lock) }
}

/// Every setting. What a run is called is none.
fn settings(pipeline: &Pipeline) -> String {
    let yaml = pipeline.to_yaml();
    yaml.lines().filter(|line| !line.starts_with("name:")).map(|line| format!("{line}\n")).collect()
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

struct Hasher {
    digests: Digests,
}

impl Hasher {
    /// Says so where much is to be read.
    fn new<'a>(inputs: impl Iterator<Item = &'a Input>, reporter: &Reporter) -> Self {
        let digests = Digests::load();
        let files: BTreeSet<&PathBuf> = inputs.map(|input| &input.host).collect();
        let bytes: u64 = files.into_iter().filter(|path| path.is_file()).map(|path| digests.to_read(path)).sum();
        if bytes >= LONG {
            reporter.note(&format!("hashing {} of data and model, once", human_bytes(bytes)));
        }
        Self { digests }
    }

    fn files(&mut self, inputs: &[Input]) -> Result<Vec<LockedFile>, Error> {
        inputs.iter().map(|input| self.file(input)).collect()
    }

    fn file(&mut self, input: &Input) -> Result<LockedFile, Error> {
        let path = &input.host;
        let size = std::fs::metadata(path).map_err(|source| Error::Read { path: path.clone(), source })?.len();
        Ok(LockedFile { name: input.written.display().to_string(), hash: self.digests.of(path)?, size })
    }
}

/// The files of a model's folder that the trainer reads.
fn model_files(folder: &Input) -> Vec<Input> {
    let file = |name: String| Input {
        host: folder.host.join(&name),
        written: folder.written.join(&name),
        mounted: folder.mounted.join(&name),
        mount: None,
        prepared: None,
    };
    model_files::of_folder(&folder.host).into_iter().map(file).collect()
}

fn cpu() -> Option<Cpu> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1.trim().to_owned();
    let count = std::thread::available_parallelism().ok()?.get();
    Some(Cpu { model, count: u32::try_from(count).ok()? })
}
