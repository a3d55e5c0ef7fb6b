//! From a pipeline to the jobs of its attempts: the spec that the trainer reads and the launch that the engine starts. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use pipe_spec::lock::Program;
use pipe_spec::pipeline::{BatchSetting, Change, Edit, Limit, Paths, Pipeline, Training, Work};
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
        let seen_by_job = |input: &Input| {
            let (host, mounted) = input.read_at();
            engine.job_path(host, mounted)
        };
        let paths = |inputs: &[Input]| {
            Paths(inputs.iter().map(|input| seen_by_job(input).to_string_lossy().into_owned()).collect())
        };
        let training = self.training;
        let mut spec = TrainerSpec {
            version: TrainerSpec::VERSION,
            run: engine.job_path(folder.to_owned(), PathBuf::from(CONTAINER_RUN_FOLDER)),
            attempt: number,
            rank: Rank::default(),
            device: self.device,
            device_index: 0,
            threads: self.threads(),
            model: training.model.clone(),
            tokenizer: self.inputs.tokenizer.first().map(seen_by_job),
            data: training.data.clone(),
            train: training.train.clone(),
            memory: training.memory.clone(),
            evaluate: training.evaluate.clone(),
            save: training.save.clone(),
            maths_changed: settings.changes > 0,
        };
        spec.model.from = self.inputs.model.as_ref().map(|model| seen_by_job(model).to_string_lossy().into_owned());
        spec.data.train = paths(&self.inputs.train);
        spec.data.eval = training.data.eval.as_ref().map(|_| paths(&self.inputs.eval));
        spec.data.tokenizer = None;
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

    /// What a job said, with the user's own paths in place of those it sees.
    pub fn with_host_paths(&self, said: &str) -> String {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let given = |input: &Input| (text(&input.mounted), text(&input.written));
        // What lies beside a file, where its whole folder is mounted.
        let beside = |input: &Input| {
            let (mount, folder) = (input.mount.as_ref()?, input.written.parent()?);
            (input.mounted.parent() == Some(&mount.target)).then(|| (text(&mount.target) + "/", text(folder) + "/"))
        };
        let replaced = |text: String, (mounted, written): (String, String)| text.replace(&mounted, &written);
        let original = |said: String, input: &Input| match &input.prepared {
            Some(prepared) => prepared.with_original(&said, &text(&input.written)),
            None => said,
        };
        let said = self.inputs.all().fold(said.to_owned(), original);
        let said = self.inputs.all().map(given).fold(said, replaced);
        self.inputs.all().filter_map(beside).fold(said, replaced)
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
        Ok(Edit::Checkpointing) => spec.train.checkpointing = true,
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
