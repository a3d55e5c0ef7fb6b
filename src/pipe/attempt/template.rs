//! From a pipeline to the jobs of its attempts: the spec that the trainer reads and the launch that the engine starts. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use pipe_spec::lock::Program;
use pipe_spec::pipeline::{BatchSetting, Change, Checkpointing, Edit, Limit, Paths, Pipeline, Training, Work};
use pipe_spec::text::ByteSize;
use pipe_spec::{Device, Job, Rank, RunFolder, TrainerSpec, Variables};

use super::retry::Settings;
use crate::engine::{Engine, JobProgram, Launch};
use crate::error::Error;
use crate::input::load::Loaded;
use crate::input::{Input, Inputs};

/// Where the run folder lies in a container.
pub const CONTAINER_RUN_FOLDER: &str = "/run/pipe";

/// A pipeline with all that it names, for one engine.
pub struct JobTemplate<'a> {
    pub pipeline: &'a Pipeline,
    pub training: &'a Training,
    pub inputs: &'a Inputs,
    pub variables: &'a Variables,
    pub device: Device,
    pub job: Job,
    /// Where the engine has images.
    pub image: Option<String>,
}

/// The settings that the pipeline asks for.
pub fn first_settings(training: &Training) -> Settings {
    let batch = training.train.batch();
    Settings {
        batch,
        auto: training.train.batch == BatchSetting::Auto,
        prefetch: training.data.prefetch,
        eval_batch: training.evaluate.batch.map_or(batch, u32::from),
        expandable_segments: training.memory.allocator.expandable_segments,
        changes: 0,
    }
}

/// The settings that an attempt was started with, after so many changes to the training result.
pub fn settings_of(spec: &TrainerSpec, changes: usize) -> Settings {
    let batch = spec.train.batch();
    Settings {
        batch,
        auto: spec.train.batch == BatchSetting::Auto,
        prefetch: spec.data.prefetch,
        eval_batch: spec.evaluate.batch.map_or(batch, u32::from),
        expandable_segments: spec.memory.allocator.expandable_segments,
        changes,
    }
}

/// The first attempt of a training on the CPU, in a run folder that the trainer sees as `run` and with inputs that it sees as
/// `path` says.
pub fn trainer_spec(
    training: &Training,
    inputs: &Inputs,
    run: PathBuf,
    path: impl Fn(&Input) -> PathBuf,
) -> TrainerSpec {
    let text = |input: &Input| path(input).to_string_lossy().into_owned();
    let paths = |inputs: &[Input]| Paths(inputs.iter().map(text).collect());
    let mut spec = TrainerSpec {
        version: TrainerSpec::VERSION,
        run,
        attempt: 1,
        rank: Rank::default(),
        device: Device::Cpu,
        device_index: 0,
        threads: None,
        model: training.model.clone(),
        tokenizer: inputs.tokenizer.first().map(&path),
        data: training.data.clone(),
        train: training.train.clone(),
        memory: training.memory.clone(),
        evaluate: training.evaluate.clone(),
        save: training.save.clone(),
        maths_changed: false,
    };
    spec.model.from = inputs.model.as_ref().map(text);
    spec.data.train = paths(&inputs.train);
    spec.data.eval = training.data.eval.as_ref().map(|_| paths(&inputs.eval));
    spec.data.tokenizer = None;
    spec
}

impl<'a> JobTemplate<'a> {
    /// For what an engine will run.
    pub fn new(
        loaded: &'a Loaded,
        inputs: &'a Inputs,
        engine: &dyn Engine,
        on: &Program,
        job: Job,
    ) -> Result<Self, Error> {
        let Loaded { pipeline, variables, .. } = loaded;
        let device = engine.device(&pipeline.container.gpus)?;
        let training = loaded.training()?;
        Ok(Self { pipeline, training, inputs, variables, device, job, image: on.image.clone() })
    }

    /// What the trainer is to do in attempt `number`.
    pub fn spec(&self, engine: &dyn Engine, folder: &Path, number: u32, settings: &Settings) -> TrainerSpec {
        let run = engine.job_path(folder.to_owned(), PathBuf::from(CONTAINER_RUN_FOLDER));
        let mut spec = trainer_spec(self.training, self.inputs, run, |input| {
            let (host, mounted) = input.read_at();
            engine.job_path(host, mounted)
        });
        spec.attempt = number;
        spec.device = self.device;
        spec.threads = self.threads();
        spec.maths_changed = settings.changes > 0;
        spec.data.prefetch = settings.prefetch;
        if !settings.auto {
            spec.train.batch = NonZeroU32::new(settings.batch).map_or(BatchSetting::Auto, BatchSetting::Fixed);
            spec.evaluate.batch = NonZeroU32::new(settings.eval_batch);
        }
        for change in self.pipeline.on_oom.then.iter().take(settings.changes) {
            apply(change, &mut spec);
        }
        spec.memory.allocator.expandable_segments = settings.expandable_segments;
        if let Some(limit) = self.limit_without_container(engine) {
            spec.memory.limit = Some(Limit::Size(limit));
        }
        spec
    }

    /// For computation; nothing leaves it to libtorch.
    pub fn threads(&self) -> Option<u32> {
        self.pipeline.container.cpus.map(|cpus| (cpus.ceil() as u32).max(1))
    }

    /// The limit for the trainer itself, for an engine that does not limit memory.
    pub fn limit_without_container(&self, engine: &dyn Engine) -> Option<ByteSize> {
        let own = !engine.limits_memory() && self.device == Device::Cpu && self.training.memory.limit.is_none();
        self.pipeline.container.memory.filter(|_| own)
    }

    pub fn launch(&self, engine: &dyn Engine, run_id: &str, folder: &RunFolder, number: u32) -> Launch {
        let container = &self.pipeline.container;
        let value = |text: &str| self.variables.expand(text).unwrap_or_default();
        // Threads that wait by spinning slow each other down as soon as they share a core; the pipeline may say otherwise.
        let mut env = BTreeMap::from([("OMP_WAIT_POLICY".to_owned(), "PASSIVE".to_owned())]);
        env.extend(container.env.iter().map(|(name, text)| (name.clone(), value(text))));
        // The trainer fills in the variables of the paths it was given, which a container's paths have none of.
        for input in self.inputs.all() {
            let (host, mounted) = input.read_at();
            let written = engine.job_path(host, mounted);
            let used = self.variables.used(&written.to_string_lossy()).map(own).collect::<Vec<_>>();
            env.extend(used);
        }
        let attempt = folder.attempt(number);
        let seen = RunFolder::new(CONTAINER_RUN_FOLDER);
        let pair =
            |host: &Path, mounted: &Path| (host.to_owned(), engine.job_path(host.to_owned(), mounted.to_owned()));
        // Everything else in the run folder is out of the job's sight.
        let writable = vec![
            pair(&folder.checkpoints(), &seen.checkpoints()),
            pair(&folder.model(), &seen.model()),
            pair(attempt.job().path(), seen.attempt(number).job().path()),
        ];
        let (_, work_folder) = pair(attempt.job().path(), seen.attempt(number).job().path());
        let (spec_on_host, spec) = pair(&attempt.spec(), &seen.attempt(number).spec());
        let inputs: BTreeSet<_> =
            self.inputs.all().flat_map(Input::mounts).map(|mount| (mount.host, mount.target)).collect();
        let given = container.mounts.iter().map(|mount| (value(&mount.host).into(), PathBuf::from(&mount.container)));
        let (program, args) = match &self.pipeline.work {
            Work::Training(_) => {
                let spec = spec.to_string_lossy().into_owned();
                (JobProgram::Trainer, vec![self.job.name().to_owned(), "--spec".to_owned(), spec])
            }
            Work::Command(command) => {
                let (program, args) = command
                    .split_first()
                    .map_or((String::new(), Vec::new()), |(first, rest)| (first.clone(), rest.to_vec()));
                (JobProgram::Command(program), args)
            }
        };
        Launch {
            run_id: run_id.to_owned(),
            attempt: number,
            run_folder: folder.path().to_owned(),
            writable,
            work_folder,
            program,
            image: self.image.clone(),
            gpus: container.gpus.clone(),
            args,
            env,
            mounts: [(spec_on_host, spec)].into_iter().chain(inputs).chain(given).collect(),
            memory: container.memory.map(|size| size.0),
            shm: container.shm.map(|size| size.0),
            cpus: container.cpus,
        }
    }
}

/// What `on_oom.then` says, in the spec. What it cannot say was refused when the pipeline was read.
fn apply(change: &Change, spec: &mut TrainerSpec) {
    match change.edit() {
        Ok(Edit::Checkpointing) => spec.train.checkpointing = Checkpointing::On,
        Ok(Edit::Precision(precision)) => spec.train.precision = precision,
        Ok(Edit::Optimizer(kind)) => spec.train.optimizer.kind = kind,
        Ok(Edit::MaxSource(length)) => spec.data.max_source = length,
        Ok(Edit::MaxTarget(length)) => spec.data.max_target = length,
        Ok(Edit::MaxLength(length)) => spec.data.max_length = length,
        Err(_) => {}
    }
}

fn own((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
