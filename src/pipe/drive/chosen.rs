//! Which engine runs it.

use pipe_spec::Device;
use pipe_spec::pipeline::{Container, EngineKind, Gpus, Image};
use serde_json::{Value, json};

use crate::capability;
use crate::engine::Engine;
use crate::engine::docker::DockerEngine;
use crate::engine::process::ProcessEngine;
use crate::error::Error;
use crate::image;
use crate::load::Loaded;
use crate::plan::{Job, Plan, first_settings};
use crate::report::Reporter;
use crate::run::{absolute, runs_folder};

/// The engine that was chosen.
pub enum Chosen {
    Docker(Box<DockerEngine>),
    Process(ProcessEngine),
}

impl Chosen {
    /// What is wanted; without a wish docker when a daemon answers, else process.
    pub async fn choose(wanted: Option<EngineKind>, reporter: &Reporter) -> Result<Self, Error> {
        let docker = match wanted {
            Some(EngineKind::Process) => None,
            Some(_) => Some(DockerEngine::connect().await?),
            None => match DockerEngine::connect().await {
                Ok(engine) => Some(engine),
                Err(Error::NoEngine { reason, .. }) => {
                    reporter.note(&format!("no container daemon ({reason}): running without containers"));
                    None
                }
                Err(error) => return Err(error),
            },
        };
        match docker {
            Some(engine) => {
                reporter.note(&format!("engine: docker {} at {}", engine.info().version, engine.info().address));
                Ok(Self::Docker(Box::new(engine)))
            }
            None => {
                let engine = ProcessEngine::new(image::find_trainer()?);
                reporter.note("engine: process");
                Ok(Self::Process(engine))
            }
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Docker(_) => EngineKind::Docker.name(),
            Self::Process(_) => EngineKind::Process.name(),
        }
    }

    /// Whether there is what the pipeline asks for, and a job could use it.
    pub fn check(&self, container: &Container) -> Result<(), Error> {
        match self.device(&container.gpus)? {
            Device::Cpu => Ok(()),
            Device::Cuda => capability::ensure(container, matches!(self, Self::Docker(_))),
        }
    }

    /// What a job will compute on, for what the pipeline asks.
    pub fn device(&self, gpus: &Gpus) -> Result<Device, Error> {
        match self {
            Self::Docker(engine) => device(engine.as_ref(), gpus),
            Self::Process(engine) => device(engine, gpus),
        }
    }

    /// What would be started, for a run that is not.
    pub fn describe(&self, loaded: &Loaded, job: Job) -> Result<Value, Error> {
        let Loaded { pipeline, inputs, variables, .. } = loaded;
        let device = self.device(&pipeline.container.gpus)?;
        let plan = Plan { pipeline, inputs, variables, device, job };
        let folder = absolute(&runs_folder()).join(format!("{}-...", pipeline.name));
        let settings = first_settings(pipeline);
        Ok(match self {
            Self::Docker(engine) => {
                let image = match &pipeline.container.image {
                    Some(Image::Pinned(name)) => name.clone(),
                    other => image::recipe(image::dockerfile(other.as_ref()))?.name,
                };
                let on = json!({ "engine": "docker", "engine_version": engine.info().version, "image": image });
                json!({ "on": on, "spec": plan.spec(engine.as_ref(), &folder, 1, &settings) })
            }
            Self::Process(engine) => {
                json!({ "on": { "engine": "process" }, "spec": plan.spec(engine, &folder, 1, &settings) })
            }
        })
    }
}

pub fn device(engine: &impl Engine, gpus: &Gpus) -> Result<Device, Error> {
    Ok(if engine.gpu(gpus)? { Device::Cuda } else { Device::Cpu })
}
