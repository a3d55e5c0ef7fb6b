//! The job of a prediction: what it is given, started by an engine and watched to its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Adapter, Checkpointing, ClassWeights, Container, Gpus, Limit, Paths};
use pipe_spec::trainer::Predicted;
use pipe_spec::trainer::error_message;
use pipe_spec::{Device, PredictEvent, PredictSpec, Rank, TrainerExit, model_folder};

use super::subject::WORK_FOLDER;
use super::{Rows, Subject};
use crate::engine::{Ending, Engine, JobProgram, Launch, Line, Mounts, Resources, Source, StartedJob};
use crate::error::Error;
use crate::execute::launch::{self, template::CONTAINER_RUN_FOLDER};
use crate::input::{Input, Inputs};
use crate::report::Reporter;
use crate::system::files::write_json;
use crate::system::interrupt::Interrupts;

/// Last lines of the trainer's stderr that are kept for an error.
const TAIL: usize = 20;

/// How long a job may take to go away after it was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Job<'a> {
    pub subject: &'a Subject,
    pub rows: &'a Rows,
    pub keep: &'a [String],
    /// Goes away after the prediction.
    pub folder: &'a Path,
}

/// Names below the folder of a prediction, on either side: the folder that the job may write, its spec, its output.
const WRITABLE: &str = "job";
const SPEC: &str = "spec.json";
const OUTPUT: &str = "predictions.jsonl";

/// One card of those that the training had: one process predicts.
fn one_of(gpus: &Gpus) -> Gpus {
    match gpus {
        Gpus::Auto | Gpus::Count(0 | 1) => gpus.clone(),
        Gpus::Count(_) | Gpus::All => Gpus::Count(1),
        Gpus::Ids(ids) => Gpus::Ids(ids.iter().take(1).cloned().collect()),
    }
}

impl Job<'_> {
    /// The complete output, once `run` has ended well.
    pub fn output(&self) -> PathBuf {
        self.folder.join(WRITABLE).join(OUTPUT)
    }

    pub async fn run(
        &self,
        engine: &dyn Engine,
        on_cpu: bool,
        no_queue: bool,
        reporter: &mut Reporter,
        interrupts: &mut Interrupts,
    ) -> Result<Predicted, Error> {
        let (device, gpus) = self.device(engine, on_cpu, reporter)?;
        let image = self.subject.container.image.as_ref();
        let program = tokio::select! {
            program = engine.prepare(image, None, reporter) => program?,
            () = interrupts.signal() => return Err(Error::Interrupted),
        };
        let writable = self.folder.join(WRITABLE);
        std::fs::create_dir(&writable).map_err(|source| Error::Write { path: writable.clone(), source })?;
        write_json(&self.folder.join(SPEC), &self.spec(engine, device))?;
        let launch = self.launch(engine, gpus, program);
        let _tickets = match device == Device::Cuda && !no_queue && !engine.has_queue() {
            true => super::wait(engine, &launch.resources.gpus, &launch.run_id, reporter, interrupts).await?,
            false => Vec::new(),
        };
        let mut job = launch::start(engine, &launch, interrupts).await?;
        let watched = watch(&mut job, self.rows, reporter, interrupts).await;
        job.handle.remove().await.ok();
        self.judge(watched?)
    }

    /// A model that was trained on a card also predicts where there is none.
    fn device(&self, engine: &dyn Engine, on_cpu: bool, reporter: &Reporter) -> Result<(Device, Gpus), Error> {
        let gpus = &one_of(&self.subject.container.gpus);
        if on_cpu {
            return Ok((Device::Cpu, Gpus::Count(0)));
        }
        match engine.device(gpus) {
            Err(Error::NoGpu { .. }) => {
                reporter.note("no GPU is available: predicting on the CPU");
                Ok((Device::Cpu, Gpus::Count(0)))
            }
            device => Ok((device?, gpus.clone())),
        }
    }

    fn spec(&self, engine: &dyn Engine, device: Device) -> PredictSpec {
        let Self { subject, rows, .. } = self;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let seen = |host: &Path, mounted: &Path| engine.job_path(host.to_owned(), mounted.to_owned());
        let seen_input = |input: &Input| match &input.prepared {
            Some(prepared) => seen(&prepared.folder.join(&prepared.file), &prepared.mounted.join(&prepared.file)),
            None => seen(&input.host, &input.mounted),
        };
        let run = Path::new(CONTAINER_RUN_FOLDER);
        let mut settings = subject.settings.clone();
        settings.run = seen(self.folder, run);
        (settings.device, settings.device_index) = (device, 0);
        settings.threads = subject.container.cpus.map(|cpus| (cpus.ceil() as u32).max(1));
        settings.model.config = None;
        settings.model.from = rows.inputs().model.as_ref().map(seen_input).map(text);
        settings.adapter = rows.inputs().adapter.as_ref().map(seen_input).map(text).map(Adapter::trained);
        let Inputs { model, adapter, .. } = rows.inputs();
        settings.tokenizer = adapter.iter().chain(model).find_map(|model| {
            let name = model_folder::find_tokenizer(&model.host, settings.model.arch)?[0];
            Some(seen_input(model).join(name))
        });
        settings.data.train = Paths(rows.inputs().train.iter().map(|input| text(seen_input(input))).collect());
        (settings.data.eval, settings.data.eval_share, settings.data.tokenizer) = (None, 0.0, None);
        // These settings are for a training alone.
        (settings.rank, settings.nodes) = (Rank::default(), 1);
        (settings.train.checkpointing, settings.train.class_weights) = (Checkpointing::Off, ClassWeights::None);
        let is_share = matches!(settings.memory.limit, Some(Limit::Share(_)));
        if device == Device::Cpu && is_share {
            settings.memory.limit = None;
        }
        if device == Device::Cpu && settings.memory.limit.is_none() && !engine.limits_memory() {
            settings.memory.limit = subject.container.memory.map(Limit::Size);
        }
        let out = seen(&self.output(), &run.join(WRITABLE).join(OUTPUT));
        PredictSpec { settings, out, keep: self.keep.to_vec() }
    }

    fn launch(&self, engine: &dyn Engine, gpus: Gpus, on: Program) -> Launch {
        let container = &self.subject.container;
        let value = |text: &str| self.subject.variables.expand(text).unwrap_or_default();
        let own = [("OMP_WAIT_POLICY", "PASSIVE"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
        let mut env: BTreeMap<String, String> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        env.extend(container.env.iter().map(|(name, text)| (name.clone(), value(text))));
        let run = Path::new(CONTAINER_RUN_FOLDER);
        let pair = |name: &str| {
            let host = self.folder.join(name);
            (host.clone(), engine.job_path(host, run.join(name)))
        };
        let (spec_on_host, spec) = pair(SPEC);
        let inputs: BTreeSet<(PathBuf, PathBuf)> =
            self.rows.inputs().all().flat_map(Input::mounts).map(|mount| (mount.host, mount.target)).collect();
        let given =
            container.mounts.iter().map(|mount| (PathBuf::from(value(&mount.host)), mount.container.clone().into()));
        // Folders that the training mounted may be gone; rows that need them are named.
        let given = given.filter(|(host, _): &(PathBuf, PathBuf)| host.exists());
        let writable = pair(WRITABLE);
        let letters = self.folder.file_name().unwrap_or_default().to_string_lossy();
        Launch {
            run_id: format!("predict-{}", letters.trim_start_matches(WORK_FOLDER)),
            attempt: 1,
            run_folder: self.folder.to_owned(),
            job_folder: writable.clone(),
            checkpoints: None,
            work_folder: Some(writable.1.clone()),
            network: false,
            stop_timeout: Container::STOP_TIMEOUT,
            args: vec!["predict".to_owned(), "--spec".to_owned(), spec.to_string_lossy().into_owned()],
            mounts: Mounts {
                writable: vec![writable],
                read_only: [(spec_on_host, spec)].into_iter().chain(inputs).chain(given).collect(),
                ..Mounts::default()
            },
            program: JobProgram::Trainer,
            image: on.image,
            image_id: on.image_id,
            env,
            resources: Resources {
                gpus,
                memory: container.memory.map(|size| size.0),
                shm: container.shm.map(|size| size.0),
                cpus: container.cpus,
                nodes: 1,
            },
        }
    }

    /// The result of a job that has ended.
    fn judge(&self, watched: Watched) -> Result<Predicted, Error> {
        let Watched { ending, predicted, tail } = watched;
        let said = Vec::from(tail).join("\n");
        let message = error_message(&said);
        let message = self.rows.with_host_paths(message);
        let exit = ending.exit_code.and_then(TrainerExit::from_code);
        match (exit, predicted) {
            (Some(TrainerExit::Done), Some(predicted)) => Ok(predicted),
            (Some(TrainerExit::BadInput), _) => Err(Error::Rows { message }),
            (Some(TrainerExit::Usage), _) => Err(Error::PredictionFailed {
                reason: "the trainer does not know the command predict: it is older than this pipe".to_owned(),
            }),
            (Some(TrainerExit::DeviceOutOfMemory | TrainerExit::HostOutOfMemory), _) => Err(out_of_memory(message)),
            _ if ending.oom_killed => Err(out_of_memory("the kernel killed the trainer".to_owned())),
            (_, _) => {
                let code = ending.exit_code.map_or("no exit code".to_owned(), |code| format!("exit code {code}"));
                let lost = ending.lost.or_else(|| ending.ended_by.as_ref().map(ToString::to_string));
                let lost = lost.map(|lost| format!("{lost}; ")).unwrap_or_default();
                Err(Error::PredictionFailed { reason: format!("{lost}{message} ({code})") })
            }
        }
    }
}

fn out_of_memory(reason: String) -> Error {
    let hint = "give a smaller --batch, or predict where there is more memory".to_owned();
    Error::OutOfMemory { reason, hint }
}

/// A job that has ended.
struct Watched {
    ending: Ending,
    predicted: Option<Predicted>,
    tail: VecDeque<String>,
}

/// Shows the progress of a job. A stop request ends it at once: it has nothing to save.
async fn watch(
    job: &mut StartedJob,
    rows: &Rows,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Watched, Error> {
    let mut progress = reporter.predict_progress();
    let (mut predicted, mut tail) = (None, VecDeque::new());
    loop {
        let line: Option<Line> = tokio::select! {
            line = job.lines.recv() => line,
            () = interrupts.signal() => {
                job.handle.kill().await?;
                let end = async { while job.lines.recv().await.is_some() {} };
                tokio::time::timeout(KILL_TIMEOUT, end).await.ok();
                return Err(Error::Interrupted);
            }
        };
        let Some(Line { source, text, .. }) = line else { break };
        match (source, PredictEvent::parse(&text)) {
            (Source::Engine | Source::Queue, _) => progress.note(&text),
            (Source::Job, Some(PredictEvent::Started { predictions })) => progress.begin(predictions),
            (Source::Job, Some(PredictEvent::Progress { predictions })) => progress.set(predictions),
            (Source::Job, Some(PredictEvent::Warning { message })) => {
                progress.note(&format!("warning: {}", rows.with_host_paths(&message)));
            }
            (Source::Job, Some(PredictEvent::Done(done))) => predicted = Some(done),
            (Source::Job, None) => {
                tracing::debug!(target: "trainer", "{text}");
                tail.push_back(text);
                if tail.len() > TAIL {
                    tail.pop_front();
                }
            }
        }
    }
    drop(progress);
    Ok(Watched { ending: job.handle.ending().await?, predicted, tail })
}
