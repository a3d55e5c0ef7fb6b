//! What is in the data of a pipeline, before anything is started: the trainer opens it, on this machine and without a container.

mod summary;
mod warnings;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use pipe_spec::pipeline::{Gpus, Training};
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE, error_message};
use pipe_spec::{Device, Inspection, Problems, TrainerExit};
use serde::Serialize;
use tokio::process::Command;

use crate::attempt::placement::expected_ranks;
use crate::attempt::template::trainer_spec;
use crate::error::Error;
use crate::gpu::Card;
use crate::image;
use crate::input::data_cache::{self, ColumnSelection};
use crate::input::load::Loaded;
use crate::input::{Input, Inputs, model_config};
use crate::interrupt::Interrupts;
use crate::ledger::{self, Ledger, LedgerJob, LedgerSession};
use crate::report::Reporter;
pub use summary::summary;
pub use warnings::warnings;

/// What came of it.
pub enum Opened {
    /// With the time that the training takes, where the ledger knows it.
    Data(Box<Inspection>, Option<ExpectedTime>),
    /// It cannot be opened here, which says nothing about the data.
    Not { why: String },
}

/// How long a training will take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedTime {
    pub seconds: f64,
    /// `cpu`, or the name of the card.
    pub device: String,
    /// The run that it is computed from.
    pub run: String,
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
    let trainer = match image::find_trainer() {
        Ok(trainer) => trainer,
        Err(error) => return Ok(Opened::Not { why: error.to_string() }),
    };
    let wrong = |key: &str, message: String| Error::Invalid {
        path: file.to_owned(),
        problems: Problems::one(None, key, message),
    };
    let training = loaded.training()?;
    let columns = ColumnSelection::new(training.model.arch.task(), &training.data);
    let prepared = data_cache::prepare_inputs(&loaded.inputs, columns, reporter, interrupts).await;
    let prepared = prepared.map_err(|error| match error {
        Error::NoTokenizer { message, is_input: true } => wrong("data.tokenizer", message),
        other => other,
    })?;
    let answer = tokio::select! {
        answer = ask_trainer(&trainer, training, &prepared.inputs) => answer?,
        () = interrupts.signal() => return Err(Error::Interrupted),
    };
    match answer {
        Answer::Found(inspection) => {
            let time = expected_time(loaded, &prepared.inputs, inspection.steps);
            Ok(Opened::Data(Box::new(inspection), time))
        }
        Answer::Wrong(message) => Err(wrong("", prepared.inputs.with_host_paths(&message))),
        Answer::Unable(why) => Ok(Opened::Not { why }),
    }
}

/// On the device that a run on this machine would have.
fn expected_time(loaded: &Loaded, inputs: &Inputs, steps: u64) -> Option<ExpectedTime> {
    let training = loaded.training().ok()?;
    let card = Card::of_host().filter(|_| loaded.pipeline.container.gpus != Gpus::Count(0));
    let device = card.map_or("cpu".to_owned(), |card| card.name);
    let config = model_config(training, inputs)?;
    let mut spec = trainer_spec(training, inputs, PathBuf::new(), |input: &Input| input.host.clone());
    spec.rank.count = expected_ranks(&loaded.pipeline);
    let session = LedgerSession::open(Ledger::find()?, "", String::new(), ledger::data_hash(&spec, inputs));
    let pace = session.pace(&LedgerJob::of_training(&spec, &config), &device).ok()??;
    Some(ExpectedTime { seconds: pace.seconds(steps, training.train.effective_batch), device, run: pace.run })
}

/// What the trainer says.
enum Answer {
    Found(Inspection),
    /// The data, the tokenizer or the model cannot be used.
    Wrong(String),
    /// The trainer is one that cannot inspect.
    Unable(String),
}

async fn ask_trainer(trainer: &Path, training: &Training, inputs: &Inputs) -> Result<Answer, Error> {
    let fail = |source| Error::Write { path: "a temporary folder".into(), source };
    let folder = tempfile::tempdir().map_err(fail)?;
    let mut spec = trainer_spec(training, inputs, folder.path().to_owned(), |input: &Input| input.read_at().0);
    // Nothing is computed: neither card nor memory matters.
    spec.device = Device::Cpu;
    spec.memory.limit = None;
    let spec_file = folder.path().join("spec.json");
    std::fs::write(&spec_file, serde_json::to_vec(&spec).expect("a spec is plain data")).map_err(fail)?;
    let mut command = Command::new(trainer);
    command.arg("inspect").arg("--spec").arg(&spec_file);
    // It ends with this process.
    command.env(LEASE_VARIABLE, LEASE_ON_STDIN).stdin(Stdio::piped()).kill_on_drop(true);
    let cannot = |source| Error::Spawn { program: trainer.to_owned(), source };
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
    let _lease = child.stdin.take();
    let output = child.wait_with_output().await.map_err(cannot)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success()
        && let Ok(inspection) = serde_json::from_slice(&output.stdout)
    {
        return Ok(Answer::Found(inspection));
    }
    let message = error_message(&said).to_owned();
    match output.status.code().and_then(|code| TrainerExit::from_code(code.into())) {
        Some(TrainerExit::BadInput) => Ok(Answer::Wrong(message)),
        Some(TrainerExit::Usage) => Ok(Answer::Unable(format!("{} cannot inspect data", trainer.display()))),
        _ => Err(Error::Inspection { status: output.status.to_string(), message }),
    }
}
