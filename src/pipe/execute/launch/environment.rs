//! Collects the lock of a run before it starts: its inputs, its program, its machine and its commit. Starts nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pipe_spec::lock::{Commit, Cpu, LockedCard, LockedFile, LockedMachine, Program};
use pipe_spec::text::human_bytes;
use pipe_spec::{Device, Lock, RunFolder, variables};

use super::template::JobTemplate;
use crate::engine::Engine;
use crate::error::Error;
use crate::gpu::Card;
use crate::input::{Input, Inputs};
use crate::report::Reporter;
use crate::run::lock::{Difference, differences, hash, read, settings};
use crate::system::digests::{self, Digests};
use crate::system::interrupt::{self, Interrupts};

/// From this size on, hashing is reported.
const LARGE_BYTES: u64 = 1 << 30;

/// All that can be known of a run before it starts, in the folder that it starts in. `on` is what the engine will run; what
/// the user wrote is in the folder of the run.
pub async fn collect(
    on: Program,
    engine: &dyn Engine,
    folder: &RunFolder,
    template: &JobTemplate<'_>,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Lock, Error> {
    let path = folder.pipeline();
    let text = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    let (pipeline, inputs) = (template.pipeline, template.inputs);
    let resolved = settings(pipeline);
    let names: BTreeSet<String> = variables::names(&resolved).map(str::to_owned).collect();
    let cards =
        if template.placement.device == Device::Cuda { engine.cards(&pipeline.container.gpus) } else { Vec::new() };
    let locked = |card: &Card| LockedCard {
        name: card.name.clone(),
        driver: Some(card.driver.clone()),
        capability: card.capability.map(|capability| capability.to_string()),
    };
    let card = cards.first().map(locked);
    // One that is still to be trained will be the one that the run had: the hashes of the training data answer for it.
    let then = inputs.tokenizer_training.as_ref().and_then(|_| read(folder));
    let (tokenizer, tokenizer_files) =
        then.map_or_else(Default::default, |then| (then.tokenizer, then.tokenizer_files));
    let lock = Lock {
        pipe: env!("CARGO_PKG_VERSION").to_owned(),
        pipeline: hash(&text),
        resolved: Some(hash(resolved.as_bytes())),
        resolved_before: None,
        variables: names.into_iter().collect(),
        seed: pipeline.training().map(|training| training.train.seed),
        on,
        train: Vec::new(),
        eval: Vec::new(),
        tokenizer,
        tokenizer_files,
        model: Vec::new(),
        hub: Vec::new(),
        commit: read_commit(Path::new(".")),
        machine: LockedMachine {
            libtorch: None,
            device: match (template.placement.device, &card) {
                (Device::Cpu, _) => Some("cpu".to_owned()),
                (Device::Cuda, card) => card.as_ref().map(|card| card.name.clone()),
            },
            card,
            cards: if cards.len() > 1 { cards.iter().map(locked).collect() } else { Vec::new() },
            cpu: cpu(),
            threads: template.threads(engine),
            ranks: Some(template.placement.ranks),
        },
    };
    with_inputs(lock, inputs, reporter, interrupts).await
}

/// Names data, tokenizer and model that differ from those that the run in this folder began with. Without a record
/// nothing does.
pub async fn changed_inputs(
    folder: &RunFolder,
    inputs: &Inputs,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Vec<Difference>, Error> {
    let Some(then) = read(folder) else { return Ok(Vec::new()) };
    Ok(differences(&then, &with_inputs(then.clone(), inputs, reporter, interrupts).await?))
}

/// The hashes of what a training reads, as it is now.
pub async fn of_inputs(inputs: &Inputs, reporter: &Reporter, interrupts: &mut Interrupts) -> Result<Lock, Error> {
    with_inputs(Lock::default(), inputs, reporter, interrupts).await
}

/// A lock with the hashes of the inputs as they are now.
async fn with_inputs(
    lock: Lock,
    inputs: &Inputs,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Lock, Error> {
    let model = inputs.model.iter().chain(&inputs.adapter).flat_map(model_files).collect::<Vec<_>>();
    let hasher = Hasher::new(inputs.all().chain(&model), reporter);
    let inputs = inputs.clone();
    interrupt::run_interruptibly(interrupts, move || hash_inputs(lock, &inputs, &model, hasher)).await
}

fn hash_inputs(lock: Lock, inputs: &Inputs, model: &[Input], mut hasher: Hasher) -> Result<Lock, Error> {
    let mut tokenizer = hasher.files(inputs.tokenizer_definition())?.into_iter();
    let (first, others) = match inputs.tokenizer_training {
        // Not trained yet: what is written down of it stays.
        Some(_) => (lock.tokenizer.clone(), lock.tokenizer_files.clone()),
        None => (tokenizer.next(), tokenizer.collect()),
    };
    let lock = Lock {
        train: hasher.files(&inputs.train)?,
        eval: hasher.files(&inputs.eval)?,
        tokenizer: first,
        tokenizer_files: others,
        model: hasher.files(model)?,
        hub: inputs.hub.clone(),
        ..lock
    };
    hasher.digests.save();
    Ok(lock)
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
        if bytes >= LARGE_BYTES {
            reporter.note(&format!("hashing {} of data and model, once", human_bytes(bytes)));
        }
        Self { digests }
    }

    fn files(&mut self, inputs: &[Input]) -> Result<Vec<LockedFile>, Error> {
        inputs.iter().map(|input| self.file(input)).collect()
    }

    fn file(&mut self, input: &Input) -> Result<LockedFile, Error> {
        let path = &input.host;
        if path.is_dir() {
            return hash_pictures(input);
        }
        let size = std::fs::metadata(path).map_err(|source| Error::Read { path: path.clone(), source })?.len();
        Ok(LockedFile { name: input.written.display().to_string(), hash: self.digests.hash(path)?, size })
    }
}

/// A folder of pictures by their names and sizes: what is in them is not read.
fn hash_pictures(folder: &Input) -> Result<LockedFile, Error> {
    let fail = |source| Error::Read { path: folder.host.clone(), source };
    let mut hasher = blake3::Hasher::new();
    let mut size = 0;
    for picture in pipe_data::list_pictures(&folder.host).map_err(fail)? {
        let bytes = std::fs::metadata(&picture.path).map_err(fail)?.len();
        hasher.update(format!("{}\n{bytes}\n", picture.name).as_bytes());
        size += bytes;
    }
    let hash = hasher.finalize().to_hex().to_string();
    Ok(LockedFile { name: folder.written.display().to_string(), hash, size })
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
    digests::list(&folder.host).into_iter().map(file).collect()
}

fn cpu() -> Option<Cpu> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1.trim().to_owned();
    let count = std::thread::available_parallelism().ok()?.get();
    Some(Cpu { model, count: u32::try_from(count).ok()? })
}

/// Nothing where there is no git, no work tree, or no commit yet. Files that git does not know say nothing: data and runs
/// lie about in most work trees.
pub fn read_commit(folder: &Path) -> Option<Commit> {
    let id = ask(folder, &["rev-parse", "--verify", "HEAD"])?;
    let changed = ask(folder, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(Commit { id, dirty: !changed.is_empty() })
}

fn ask(folder: &Path, question: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(question)
        // Do not rewrite the index.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
