//! What is in the data of a pipeline, before anything is started: the trainer opens it, on this machine and without a container.

mod summary;
mod warnings;

use std::path::Path;
use std::process::Stdio;

use pipe_spec::pipeline::Training;
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE};
use pipe_spec::{Device, Inspection, Problems, TrainerExit};
use tokio::process::Command;

use crate::attempt::template::trainer_spec;
use crate::error::Error;
use crate::image;
use crate::input::data_cache::{self, ColumnSelection};
use crate::input::load::Loaded;
use crate::input::{Input, Inputs};
use crate::interrupt::Interrupts;
use crate::report::Reporter;
pub use summary::summary;
pub use warnings::warnings;

/// What came of it.
pub enum Opened {
    Data(Inspection),
    /// It cannot be opened here, which says nothing about the data.
    Not {
        why: String,
    },
}

/// Opens the data of a pipeline that was read from `file`.
pub async fn inspect(
    file: &Path,
    loaded: &Loaded,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Opened, Error> {
    if !loaded.inputs.all_local {
        return Ok(Opened::Not { why: "some of it is still to be fetched from the hub".to_owned() });
    }
    let training = loaded.training()?;
    let columns = ColumnSelection::new(training.model.arch.task(), &training.data);
    let prepared = data_cache::prepare_inputs(&loaded.inputs, columns, reporter, interrupts).await?;
    let answer = tokio::select! {
        answer = ask_trainer(training, &prepared.inputs) => answer?,
        () = interrupts.signal() => return Err(Error::Interrupted),
    };
    match answer {
        Answer::Found(inspection) => Ok(Opened::Data(inspection)),
        Answer::Wrong(message) => Err(Error::Invalid {
            path: file.to_owned(),
            problems: Problems::one(None, "", prepared.inputs.with_host_paths(&message)),
        }),
        Answer::Unable(why) => Ok(Opened::Not { why }),
    }
}

/// What the trainer says.
enum Answer {
    Found(Inspection),
    /// The data, the tokenizer or the model cannot be used.
    Wrong(String),
    /// There is no trainer, or it is one that cannot inspect.
    Unable(String),
}

async fn ask_trainer(training: &Training, inputs: &Inputs) -> Result<Answer, Error> {
    let trainer = match image::find_trainer() {
        Ok(trainer) => trainer,
        Err(error) => return Ok(Answer::Unable(error.to_string())),
    };
    let fail = |source| Error::Write { path: "a temporary folder".into(), source };
    let folder = tempfile::tempdir().map_err(fail)?;
    let mut spec = trainer_spec(training, inputs, folder.path().to_owned(), |input: &Input| input.read_at().0);
    // Nothing is computed: neither card nor memory matters.
    spec.device = Device::Cpu;
    spec.memory.limit = None;
    let spec_file = folder.path().join("spec.json");
    std::fs::write(&spec_file, serde_json::to_vec(&spec).expect("a spec is plain data")).map_err(fail)?;
    let mut command = Command::new(&trainer);
    command.arg("inspect").arg("--spec").arg(&spec_file);
    // It ends with this process.
    command.env(LEASE_VARIABLE, LEASE_ON_STDIN).stdin(Stdio::piped()).kill_on_drop(true);
    let cannot = |source| Error::Spawn { program: trainer.clone(), source };
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
    let _lease = child.stdin.take();
    let output = child.wait_with_output().await.map_err(cannot)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success()
        && let Ok(inspection) = serde_json::from_slice(&output.stdout)
    {
        return Ok(Answer::Found(inspection));
    }
    let message = said.split_once("error: ").map_or(said.trim(), |(_, message)| message.trim()).to_owned();
    match output.status.code().and_then(|code| TrainerExit::from_code(code.into())) {
        Some(TrainerExit::BadInput) => Ok(Answer::Wrong(message)),
        Some(TrainerExit::Usage) => Ok(Answer::Unable(format!("{} cannot inspect data", trainer.display()))),
        _ => Err(Error::Inspection { status: output.status.to_string(), message }),
    }
}
