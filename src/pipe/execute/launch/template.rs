//! From a pipeline to the jobs of its attempts: the spec that the trainer reads and the launch that the engine starts. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use pipe_spec::lock::Program;
use pipe_spec::pipeline::{
    Allocator, BatchSetting, Change, Checkpointing, Command, Edit, EffectiveBatch, Limit, Paths, Pipeline, Training,
    Work, accum,
};
use pipe_spec::text::ByteSize;
use pipe_spec::{Device, Job, Rank, RunFolder, TrainerSpec, Variables};

use super::Placement;
use super::job_spec::{self, CommandSpec, JobSpec};
use super::workload::{Workload, workload};
use crate::engine::{Engine, JobProgram, Launch, Mounts, Resources};
use crate::error::Error;
use crate::execute::decide::retry::Settings;
use crate::input::load::Loaded;
use crate::input::{Input, Inputs};
use crate::system::files::absolute;

/// Where the run folder lies in a container.
pub const CONTAINER_RUN_FOLDER: &str = "/run/pipe";

/// Names the file in which a command may tell its own out-of-memory.
const OOM_RECORD_VARIABLE: &str = "PIPE_OOM_RECORD";

/// The size of `/dev/shm` for several ranks, where the pipeline gives none.
pub const RANKS_SHM: u64 = 1 << 30;

/// Where a job of this pipeline will compute. Refuses what the engine cannot give it, before there is a run.
pub fn check(engine: &dyn Engine, pipeline: &Pipeline, job: Job) -> Result<Placement, Error> {
    workload(pipeline).check(engine, &pipeline.container, job)?;
    Placement::find(engine, pipeline)
}

/// The same of a run that is new: also what the engine would not take now.
pub async fn check_new(engine: &dyn Engine, pipeline: &Pipeline, job: Job) -> Result<Placement, Error> {
    engine.check_request(&pipeline.container).await?;
    check(engine, pipeline, job)
}

/// A pipeline with all that it names, for one engine.
pub struct JobTemplate<'a> {
    pub pipeline: &'a Pipeline,
    pub inputs: &'a Inputs,
    pub variables: &'a Variables,
    pub placement: Placement,
    pub job: Job,
    /// Where the engine has images.
    pub image: Option<String>,
    pub image_id: Option<String>,
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
        nodes: 1,
        device: Device::Cpu,
        cards: 1,
        device_index: 0,
        threads: None,
        model: training.model.clone(),
        base_model: training.adapter.as_ref().and(training.model.from.clone()),
        adapter: training.adapter.clone(),
        tokenizer: inputs.tokenizer.first().map(&path),
        data: training.data.clone(),
        train: training.train.clone(),
        memory: training.memory.clone(),
        evaluate: training.evaluate.clone(),
        save: training.save.clone(),
        maths_changed: false,
    };
    spec.model.from = inputs.model.as_ref().map(text);
    if let Some(adapter) = &mut spec.adapter {
        adapter.from = inputs.adapter.as_ref().map(text);
    }
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
        let placement = Placement::find(engine, pipeline)?;
        Ok(Self { pipeline, inputs, variables, placement, job, image: on.image.clone(), image_id: on.image_id.clone() })
    }

    pub fn workload(&self) -> &'a dyn Workload {
        workload(self.pipeline)
    }

    /// The settings that the pipeline asks for.
    pub fn first_settings(&self) -> Settings {
        let settings = self.workload().settings();
        let share = self.placement.share(self.pipeline.work.effective_batch());
        Settings { batch: settings.batch.min(share), ..settings }
    }

    /// With these settings, but a batch that was found.
    pub fn with_batch(&self, batch: u32, settings: Settings) -> Settings {
        let batch = batch.min(self.placement.share(self.pipeline.work.effective_batch()));
        Settings { batch, auto: false, eval_batch: self.workload().eval_batch().unwrap_or(batch), ..settings }
    }

    /// How many batches of a rank make its part of a step. A command that does not accumulate has as many with every batch.
    pub fn accum(&self, batch: u32) -> u32 {
        let work = &self.pipeline.work;
        let batch = match self.pipeline.effective_batch_rule() {
            EffectiveBatch::Kept => batch,
            EffectiveBatch::MayFall | EffectiveBatch::MustNotFall => work.batch(),
        };
        accum(work.effective_batch(), batch, self.placement.ranks)
    }

    /// Samples in a step with this batch.
    pub fn effective_batch(&self, batch: u32) -> u32 {
        let effective = self.pipeline.work.effective_batch();
        match self.pipeline.effective_batch_rule() {
            EffectiveBatch::Kept => effective,
            EffectiveBatch::MayFall | EffectiveBatch::MustNotFall => {
                effective.min(batch.saturating_mul(self.accum(batch)))
            }
        }
    }

    /// The change to the effective batch that this batch brings with it, as text.
    pub fn effective_batch_change(&self, batch: u32) -> Option<String> {
        let (now, asked) = (self.effective_batch(batch), self.pipeline.work.effective_batch());
        (now != asked).then(|| format!("effective batch {now} instead of {asked}"))
    }

    /// The spec of attempt `number`.
    pub fn spec(&self, engine: &dyn Engine, folder: &Path, number: u32, settings: &Settings) -> JobSpec {
        match &self.pipeline.work {
            Work::Training(training) => {
                JobSpec::Training(Box::new(self.trainer_spec(training, engine, folder, number, settings)))
            }
            Work::Command(command) => JobSpec::Command(self.command_spec(command, engine, folder, number, settings)),
        }
    }

    fn command_spec(
        &self,
        command: &Command,
        engine: &dyn Engine,
        folder: &Path,
        number: u32,
        settings: &Settings,
    ) -> CommandSpec {
        let output = RunFolder::new(folder).output();
        let seen = engine.job_path(output.clone(), RunFolder::new(CONTAINER_RUN_FOLDER).output());
        let newest = command.checkpoints.as_ref().and_then(|checkpoints| job_spec::newest(&output, checkpoints));
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        let accum = self.accum(settings.batch);
        let values = BTreeMap::from([
            ("batch", settings.batch.to_string()),
            ("accum", accum.to_string()),
            ("effective_batch", self.effective_batch(settings.batch).to_string()),
            ("precision", command.train.precision.name().to_owned()),
            ("seed", command.train.seed.to_string()),
            ("run", path(seen.clone())),
            ("attempt", number.to_string()),
            ("resume", newest.map_or(String::new(), |newest| path(seen.join(newest)))),
        ]);
        let vars = command.vars.iter().map(|(name, value)| (format!("vars_{name}"), value.0.clone()));
        let own = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).chain(vars);
        let mut env: BTreeMap<String, String> =
            own.map(|(name, value)| (format!("PIPE_{}", name.to_uppercase()), value)).collect();
        let record = RunFolder::new(folder).attempt(number).job().oom();
        let record = engine.job_path(record, RunFolder::new(CONTAINER_RUN_FOLDER).attempt(number).job().oom());
        env.insert(OOM_RECORD_VARIABLE.to_owned(), path(record));
        env.extend(self.allocator_env(command, engine, settings));
        CommandSpec {
            command: command.words(|name| values.get(name).cloned().unwrap_or_default()),
            batch: settings.batch,
            accum,
            expandable_segments: settings.expandable_segments,
            env,
        }
    }

    /// The variables that the allocators of torch and JAX read.
    fn allocator_env(&self, command: &Command, engine: &dyn Engine, settings: &Settings) -> Vec<(String, String)> {
        if self.placement.device == Device::Cpu {
            return Vec::new();
        }
        let total = || engine.cards(&self.pipeline.container.gpus).first().map(|card| card.total);
        let share = command.memory.limit.and_then(|limit| match limit {
            Limit::Share(share) => Some(share),
            Limit::Size(size) => total().map(|total| (size.0 as f64 / total.max(1) as f64).min(1.0)),
        });
        let allocator =
            Allocator { expandable_segments: settings.expandable_segments, ..command.memory.allocator.clone() };
        let torch = [
            allocator.to_string(),
            share.map_or(String::new(), |share| format!("per_process_memory_fraction:{share:.4}")),
        ];
        let torch = torch.into_iter().filter(|setting| !setting.is_empty()).collect::<Vec<_>>().join(",");
        let mut env = Vec::new();
        if !torch.is_empty() {
            env.extend(["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"].map(|name| (name.to_owned(), torch.clone())));
        }
        env.extend(share.map(|share| ("XLA_PYTHON_CLIENT_MEM_FRACTION".to_owned(), format!("{share:.4}"))));
        env
    }

    fn trainer_spec(
        &self,
        training: &Training,
        engine: &dyn Engine,
        folder: &Path,
        number: u32,
        settings: &Settings,
    ) -> TrainerSpec {
        let run = engine.job_path(folder.to_owned(), PathBuf::from(CONTAINER_RUN_FOLDER));
        let mut spec = trainer_spec(training, self.inputs, run, |input| {
            let (host, mounted) = input.read_at();
            engine.job_path(host, mounted)
        });
        spec.attempt = number;
        spec.rank = Rank { index: 0, count: self.placement.ranks };
        spec.train.ranks = self.placement.rank_setting();
        spec.nodes = self.placement.nodes;
        spec.device = self.placement.device;
        spec.cards = self.placement.cards;
        spec.threads = self.threads(engine);
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
        if let Some(limit) = self.own_limit(engine) {
            spec.memory.limit = Some(Limit::Size(limit));
        }
        spec
    }

    /// For the computation of a rank; nothing leaves it to libtorch. Ranks share the cores.
    pub fn threads(&self, engine: &dyn Engine) -> Option<u32> {
        let ranks = self.placement.ranks_on_node();
        let share = |cores: f64| ((cores / f64::from(ranks)).ceil() as u32).max(1);
        match self.pipeline.container.cpus {
            Some(cpus) => Some(share(cpus)),
            // How many cores another machine gives it, libtorch finds out there.
            None if ranks > 1 && engine.is_here() => {
                let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
                Some((cores / ranks).max(1))
            }
            None => None,
        }
    }

    /// The limit of a rank for its own allocations on the CPU: its share of `container.memory`, where the engine does not hold the
    /// job to that, or holds all ranks to it together.
    pub fn own_limit(&self, engine: &dyn Engine) -> Option<ByteSize> {
        let training = self.pipeline.training()?;
        let ranks = self.placement.ranks_on_node();
        let own = !engine.limits_memory() || ranks > 1;
        let own = own && self.placement.device == Device::Cpu && training.memory.limit.is_none();
        self.pipeline.container.memory.filter(|_| own).map(|size| ByteSize(size.0 / u64::from(ranks.max(1))))
    }

    /// The size of `/dev/shm`: ranks exchange gradients through it.
    fn shm(&self) -> Option<u64> {
        let given = self.pipeline.container.shm.map(|size| size.0);
        given.or((self.placement.ranks > 1).then_some(RANKS_SHM))
    }

    /// The variables of the job.
    fn env(&self, engine: &dyn Engine, job_spec: &JobSpec) -> BTreeMap<String, String> {
        let value = |text: &str| self.variables.expand(text).unwrap_or_default();
        // Threads that wait by spinning slow each other down as soon as they share a core; the pipeline may say otherwise.
        let mut env = BTreeMap::from([("OMP_WAIT_POLICY".to_owned(), "PASSIVE".to_owned())]);
        if self.placement.device == Device::Cuda {
            // Cards are counted as the driver counts them, here and in the job.
            env.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
        }
        if let JobSpec::Command(spec) = job_spec {
            // Python's output comes when it is printed, and in order.
            env.insert("PYTHONUNBUFFERED".to_owned(), "1".to_owned());
            env.extend(spec.env.iter().map(|(name, text)| (name.clone(), value(text))));
        }
        env.extend(self.pipeline.container.env.iter().map(|(name, text)| (name.clone(), value(text))));
        // The trainer fills in the variables of the paths it was given, which a container's paths have none of.
        for input in self.inputs.all() {
            let (host, mounted) = input.read_at();
            let written = engine.job_path(host, mounted);
            let used = self.variables.used(&written.to_string_lossy()).map(own).collect::<Vec<_>>();
            env.extend(used);
        }
        env
    }

    pub fn launch(
        &self,
        engine: &dyn Engine,
        run_id: &str,
        folder: &RunFolder,
        number: u32,
        job_spec: &JobSpec,
    ) -> Launch {
        let container = &self.pipeline.container;
        let value = |text: &str| self.variables.expand(text).unwrap_or_default();
        let attempt = folder.attempt(number);
        let seen = RunFolder::new(CONTAINER_RUN_FOLDER);
        let pair =
            |host: &Path, mounted: &Path| (host.to_owned(), engine.job_path(host.to_owned(), mounted.to_owned()));
        let job_folder = pair(attempt.job().path(), seen.attempt(number).job().path());
        let inputs: BTreeSet<_> =
            self.inputs.all().flat_map(Input::mounts).map(|mount| (mount.host, mount.target)).collect();
        let given = container
            .mounts
            .iter()
            .map(|mount| (absolute(Path::new(&value(&mount.host))), PathBuf::from(&mount.container)));
        let mut read_only: Vec<(PathBuf, PathBuf)> = inputs.into_iter().chain(given).collect();
        // Everything else in the run folder is out of the job's sight.
        let (mut writable, program, args, work_folder);
        match job_spec {
            JobSpec::Training(_) => {
                writable = vec![pair(&folder.checkpoints(), &seen.checkpoints()), pair(&folder.model(), &seen.model())];
                let (spec_on_host, spec) = pair(&attempt.spec(), &seen.attempt(number).spec());
                program = JobProgram::Trainer;
                args = vec![self.job.name().to_owned(), "--spec".to_owned(), spec.to_string_lossy().into_owned()];
                read_only.insert(0, (spec_on_host, spec));
                work_folder = Some(job_folder.1.clone());
            }
            JobSpec::Command(spec) => {
                writable = vec![pair(&folder.output(), &seen.output())];
                let mut words = spec.command.iter().map(|word| value(word));
                program = JobProgram::Command(words.next().unwrap_or_default());
                args = words.collect();
                work_folder = container.workdir.as_ref().map(|folder| PathBuf::from(value(folder)));
            }
        }
        writable.push(job_folder.clone());
        Launch {
            run_id: run_id.to_owned(),
            attempt: number,
            run_folder: folder.path().to_owned(),
            job_folder,
            mounts: Mounts { writable, read_only, ..Mounts::default() },
            checkpoints: self.pipeline.command().and_then(|command| {
                let found = command.checkpoints.as_ref()?;
                Some((found.folder.clone(), found.pattern.clone()))
            }),
            work_folder,
            program,
            image: self.image.clone(),
            image_id: self.image_id.clone(),
            args,
            env: self.env(engine, job_spec),
            network: container.network,
            stop_timeout: container.stop_timeout(),
            resources: Resources {
                gpus: container.gpus.clone(),
                memory: container.memory.map(|size| size.0),
                shm: self.shm(),
                cpus: container.cpus,
                nodes: match job_spec {
                    JobSpec::Training(spec) => spec.nodes,
                    JobSpec::Command(_) => 1,
                },
            },
        }
    }
}

/// The entries of `on_oom.then`, in the spec. Entries that it cannot express were refused when the pipeline was read.
fn apply(change: &Change, spec: &mut TrainerSpec) {
    match change.edit() {
        Ok(Edit::Checkpointing) => spec.train.checkpointing = Checkpointing::On,
        Ok(Edit::Precision(precision)) => spec.train.precision = precision,
        Ok(Edit::Optimizer(kind)) => spec.train.optimizer.kind = kind,
        Ok(Edit::MaxSource(length)) => spec.data.max_source = length,
        Ok(Edit::MaxTarget(length)) => spec.data.max_target = length,
        Ok(Edit::MaxLength(length)) => spec.data.max_length = length,
        Ok(Edit::EffectiveBatch) | Err(_) => {}
    }
}

fn own((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
