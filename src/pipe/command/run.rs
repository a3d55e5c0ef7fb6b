//! `pipe run`: from a pipeline file to a trained model.

use std::path::PathBuf;

use pipe_spec::Device;
use pipe_spec::event::Fitted;
use pipe_spec::pipeline::{EngineKind, Image, Pipeline};
use pipe_spec::text::human_bytes;
use serde_json::json;

use super::Loaded;
use crate::engine::Engine;
use crate::engine::docker::DockerEngine;
use crate::engine::process::ProcessEngine;
use crate::error::Error;
use crate::image;
use crate::interrupt::Interrupts;
use crate::ledger::{Diary, Ledger};
use crate::plan::{Job, Plan, first_settings};
use crate::report::{Reporter, print, print_json};
use crate::run::{Run, absolute, runs_folder, write_json};
use crate::supervise::Supervisor;
use crate::track::Audience;

pub struct Options {
    pub job: Job,
    pub file: PathBuf,
    pub engine: Option<EngineKind>,
    pub set: Vec<String>,
    pub name: Option<String>,
    pub dry_run: bool,
    pub ignore_ledger: bool,
    pub json: bool,
    pub quiet: bool,
}

pub fn run(mut options: Options) -> Result<(), Error> {
    options.set.extend(options.name.take().map(|name| format!("name={name:?}")));
    let loaded = super::load(&options.file, &options.set)?;
    super::runtime()?
        .block_on(Launcher { reporter: Reporter::new(options.json, options.quiet), options, loaded }.start())
}

struct Launcher {
    options: Options,
    loaded: Loaded,
    reporter: Reporter,
}

impl Launcher {
    async fn start(mut self) -> Result<(), Error> {
        let mut interrupts = Interrupts::listen()?;
        let wanted = self.options.engine.or(self.loaded.pipeline.engine);
        match wanted {
            Some(EngineKind::Process) => self.with_process(&mut interrupts).await,
            Some(_) => {
                let engine = DockerEngine::connect().await?;
                self.with_docker(engine, &mut interrupts).await
            }
            None => match DockerEngine::connect().await {
                Ok(engine) => self.with_docker(engine, &mut interrupts).await,
                Err(Error::NoEngine { reason, .. }) => {
                    self.reporter.note(&format!("no container daemon ({reason}): running without containers"));
                    self.with_process(&mut interrupts).await
                }
                Err(error) => Err(error),
            },
        }
    }

    async fn with_process(&mut self, interrupts: &mut Interrupts) -> Result<(), Error> {
        let engine = ProcessEngine::new(image::find_trainer()?);
        self.reporter.note("engine: process");
        self.with(&engine, json!({ "engine": "process" }), interrupts).await
    }

    async fn with_docker(&mut self, mut engine: DockerEngine, interrupts: &mut Interrupts) -> Result<(), Error> {
        let info = engine.info().clone();
        self.reporter.note(&format!("engine: docker {} at {}", info.version, info.address));
        let name = tokio::select! {
            name = ready_image(&engine, &self.loaded.pipeline, &mut self.reporter, self.options.dry_run) => name?,
            () = interrupts.next() => return Err(Error::Interrupted),
        };
        engine.set_image(name.clone());
        let image_id = engine.image_id(&name).await?;
        let on = json!({ "engine": "docker", "engine_version": info.version, "image": name, "image_id": image_id });
        self.with(&engine, on, interrupts).await
    }

    async fn with<E: Engine>(
        &mut self,
        engine: &E,
        on: serde_json::Value,
        interrupts: &mut Interrupts,
    ) -> Result<(), Error> {
        let Loaded { pipeline, text, variables, inputs } = &self.loaded;
        let device = if engine.gpu(&pipeline.container.gpus)? { Device::Cuda } else { Device::Cpu };
        let job = self.options.job;
        let plan = Plan { pipeline, inputs, variables, device, job };
        if let Some(limit) = plan.limit_without_container(engine) {
            self.reporter.note(&format!("no container: the trainer keeps itself to container.memory ({limit})"));
        }
        if self.options.dry_run {
            let folder = absolute(&runs_folder()).join(format!("{}-...", pipeline.name));
            print_json(&json!({ "on": on, "spec": plan.spec(engine, &folder, 1, &first_settings(pipeline)) }));
            return Ok(());
        }
        let image = image_word(&on)?;
        let mut run = Run::create(pipeline, text, engine.name())?;
        write_json(&run.folder.lock(), &lock(on, text))?;
        self.reporter.keep_journal(&run.folder.journal());
        self.reporter.note(&format!("run {}", run.state.id));
        let ledger = Ledger::find().filter(|_| !self.options.ignore_ledger);
        let diary = ledger.map(|ledger| {
            let spec = plan.spec(engine, run.folder.path(), 1, &first_settings(pipeline));
            let config = super::model_config(pipeline, inputs).unwrap_or_default();
            Diary::open(ledger, &run.state.id, image, config, &spec, inputs)
        });
        let reporter = &mut self.reporter;
        let points = Vec::new();
        let fitted = None;
        let (audience, missing) = match job {
            Job::Train => Audience::of(pipeline, &run.folder, variables),
            Job::Fit => Default::default(),
        };
        missing.iter().for_each(|reason| reporter.note(&format!("warning: {reason}")));
        let supervisor =
            Supervisor { engine, plan: &plan, run: &mut run, reporter, interrupts, diary, points, fitted, audience };
        if job == Job::Train {
            return supervisor.run().await;
        }
        let fitted = supervisor.fit().await?;
        // Nothing was trained: what is worth keeping is in the ledger.
        let folder = run.folder.path().to_owned();
        std::fs::remove_dir_all(&folder).map_err(|source| Error::Write { path: folder, source })?;
        if !self.options.json {
            print(&fitting(&fitted));
        }
        Ok(())
    }
}

/// The name of the image that the pipeline wants, built if need be. A dry run builds nothing.
async fn ready_image(
    engine: &DockerEngine,
    pipeline: &Pipeline,
    reporter: &mut Reporter,
    dry_run: bool,
) -> Result<String, Error> {
    if let Some(Image::Pinned(name)) = &pipeline.container.image {
        return match engine.image_id(name).await? {
            Some(_) => Ok(name.clone()),
            None => Err(Error::NoImage { image: name.clone() }),
        };
    }
    let recipe = image::recipe(image::dockerfile(pipeline.container.image.as_ref()))?;
    if !dry_run {
        super::image::ensure(engine, &recipe, reporter).await?;
    }
    Ok(recipe.name)
}

/// What was found, in words.
fn fitting(fitted: &Fitted) -> String {
    let Fitted { batch, accum, effective_batch, peak, .. } = fitted;
    let of = fitted.capacity.map_or(String::new(), |capacity| format!(" of {}", human_bytes(capacity)));
    format!(
        "train.batch: {batch}   # x accum {accum} = {effective_batch}; peak {}{of} on {}",
        human_bytes(*peak),
        fitted.device
    )
}

/// What the job's program is known by: the image, or without one the trainer's content.
fn image_word(on: &serde_json::Value) -> Result<String, Error> {
    match on.get("image").and_then(serde_json::Value::as_str) {
        Some(image) => Ok(image.to_owned()),
        None => Ok(format!("process:{}", &image::trainer_digest()?[..16])),
    }
}

/// What the run ran on: `lock.json`.
fn lock(on: serde_json::Value, pipeline_text: &str) -> serde_json::Value {
    json!({
        "pipe": env!("CARGO_PKG_VERSION"),
        "pipeline": blake3::hash(pipeline_text.as_bytes()).to_hex().to_string(),
        "on": on,
    })
}
