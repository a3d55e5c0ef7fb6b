//! Errors: their messages, hints and exit codes. All wording is here or in the messages that the variants carry.

use std::io;
use std::path::PathBuf;

use pipe_data::DataError;
use pipe_model::ConfigError;
use pipe_spec::event::MemoryKind;
use pipe_spec::{Device, TrainerExit};
use thiserror::Error;

use crate::host::HostMemory;

#[derive(Debug, Error)]
pub enum TrainerError {
    #[error("the spec {}: {message}", path.display())]
    Spec { path: PathBuf, message: String },
    #[error("{what}: not available yet")]
    NotAvailable { what: String },
    #[error("{text}: {reason}")]
    Variable { reason: String, text: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the model {}: {message}", path.display())]
    Model { path: PathBuf, message: String },
    #[error("{}: tensor {name}: {message}", path.display())]
    Tensor { path: PathBuf, name: String, message: String },
    #[error("{}{}: {message}", path.display(), line.map(|line| format!(" line {line}")).unwrap_or_default())]
    Data { path: PathBuf, line: Option<u64>, message: String },
    #[error("the tokenizer {}: {message}", path.display())]
    Tokenizer { path: PathBuf, message: String },
    #[error("the checkpoint {}: {message}", path.display())]
    Checkpoint { path: PathBuf, message: String },
    /// `host` is the process' memory where the allocation failed, before anything was given back.
    #[error("out of {} memory: {message}", match memory { MemoryKind::Device => "device", MemoryKind::Host => "host" })]
    OutOfMemory { memory: MemoryKind, message: String, host: HostMemory },
    #[error("not even a batch of 1 fits in the {} memory", match device { Device::Cuda => "card's", Device::Cpu => "host's" })]
    NothingFits { device: Device },
    /// The error of the process that tries batches, as it reports it.
    #[error("{message}")]
    Measurer { message: String, hint: Option<String>, exit: TrainerExit },
    #[error(
        "the process that measures batches neither wrote nor computed anything for {seconds} seconds and was killed"
    )]
    MeasurerSilent { seconds: u64 },
    #[error("step {step}: the {what} is {value}")]
    NotFinite { step: u64, what: &'static str, value: f64 },
    #[error("step {step}: {tensor} is not finite, so nothing of this step was saved; {}", last_complete(last))]
    WeightsNotFinite { step: u64, tensor: String, last: Option<PathBuf> },
    #[error("stopped on request after step {step}")]
    Stopped { step: u64 },
    /// A rank ends because another has ended.
    #[error("rank {rank} has ended: {message}")]
    PeerEnded { rank: u32, message: String },
    /// A rank ends because a node is gone without a notice.
    #[error("the connection to ranks of another node is lost: {message}")]
    NodeLost { message: String },
    #[error("ranks of other nodes cannot connect to this one: {of}: {message}")]
    NoAddress { of: String, message: String },
    /// The process that started the ranks ends because one of them did, with its `exit` code.
    #[error("rank {rank}: {message}")]
    RankEnded { rank: u32, message: String, hint: Option<String>, exit: i32 },
    #[error("after step {step} the {what} of rank {rank} are not those of rank 0; {}", last_complete(last))]
    RanksDiffer { step: u64, rank: u32, what: &'static str, last: Option<PathBuf> },
    #[error("cannot save {}: {source}; {}", path.display(), last_complete(last))]
    Save { path: PathBuf, source: io::Error, last: Option<PathBuf> },
    #[error("CUDA cannot be used: {message}")]
    Cuda { message: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("torch: {message}")]
    Torch { message: String },
    #[error("unexpected: {message}")]
    Panic { message: String },
}

impl From<DataError> for TrainerError {
    fn from(DataError { path, line, message }: DataError) -> Self {
        Self::Data { path, line, message }
    }
}

fn last_complete(last: &Option<PathBuf>) -> String {
    match last {
        Some(path) => format!("the last complete checkpoint is {}", path.display()),
        None => "there is no complete checkpoint yet".to_owned(),
    }
}

impl TrainerError {
    /// Something wrong with a key of a model's config, or of the command line in its place.
    pub fn config(key: &str, message: String) -> Self {
        ConfigError { key: key.to_owned(), message }.into()
    }

    /// The handlers of signals could not be set.
    pub fn signals(source: io::Error) -> Self {
        Self::Io { path: PathBuf::from("signals"), source }
    }

    pub fn exit_code(&self) -> TrainerExit {
        match self {
            Self::Spec { .. }
            | Self::NotAvailable { .. }
            | Self::Variable { .. }
            | Self::Config(_)
            | Self::Model { .. }
            | Self::Tensor { .. }
            | Self::Data { .. }
            | Self::Tokenizer { .. }
            | Self::Checkpoint { .. } => TrainerExit::BadInput,
            Self::OutOfMemory { memory: MemoryKind::Device, .. } | Self::NothingFits { device: Device::Cuda } => {
                TrainerExit::DeviceOutOfMemory
            }
            Self::OutOfMemory { memory: MemoryKind::Host, .. } | Self::NothingFits { device: Device::Cpu } => {
                TrainerExit::HostOutOfMemory
            }
            Self::NotFinite { .. } | Self::WeightsNotFinite { .. } => TrainerExit::NotFinite,
            Self::Stopped { .. } => TrainerExit::Stopped,
            Self::Measurer { exit, .. } => *exit,
            Self::RankEnded { exit, .. } => TrainerExit::from_code(i64::from(*exit)).unwrap_or(TrainerExit::Unexpected),
            Self::PeerEnded { .. }
            | Self::NodeLost { .. }
            | Self::NoAddress { .. }
            | Self::RanksDiffer { .. }
            | Self::Save { .. }
            | Self::Cuda { .. }
            | Self::Io { .. }
            | Self::Torch { .. }
            | Self::Panic { .. }
            | Self::MeasurerSilent { .. } => TrainerExit::Unexpected,
        }
    }

    /// The exit code of the process, or that of a rank that was killed.
    pub fn status(&self) -> i32 {
        match self {
            Self::RankEnded { exit, .. } => *exit,
            _ => self.exit_code().code(),
        }
    }

    /// The text that the process prints: the error, and what to do about it.
    pub fn report(&self) -> String {
        let kind = if matches!(self, Self::Stopped { .. }) { "" } else { "error: " };
        let hint = self.hint().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        format!("{kind}{self}\n{hint}")
    }

    /// The hint what to do about it, where that is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Measurer { hint, .. } | Self::RankEnded { hint, .. } => hint.as_deref(),
            Self::RanksDiffer { .. } => Some(
                "resume: the training goes on from there; if it comes again, a disk, the memory of that card or of the machine may be faulty",
            ),
            Self::NodeLost { .. } => {
                Some("look at the log of the other nodes; resume goes on from the last checkpoint")
            }
            Self::NoAddress { .. } => {
                Some("set PIPE_ADDRESS to an address of this machine, or GLOO_SOCKET_IFNAME to its network interface")
            }
            Self::MeasurerSilent { .. } => Some("give train.batch a number, or try again"),
            Self::Variable { .. } => Some("set it in the environment of the trainer"),
            Self::Tokenizer { .. } => Some(
                "data.tokenizer names a tokenizer.json or another file of the model's tokenizer; by default it lies with the model or beside the data",
            ),
            Self::Checkpoint { .. } => {
                Some("a run keeps its seed, effective batch and data; start a new run to change them")
            }
            Self::NothingFits { .. } => Some("`pipe plan` says what would make it fit"),
            Self::NotFinite { .. } | Self::WeightsNotFinite { .. } => {
                Some("lower train.optimizer.lr, lengthen the warm-up, or clip the gradient")
            }
            Self::Save { .. } => Some("free space on the disk that holds the run folder, then resume"),
            Self::Cuda { .. } => Some("train on the CPU, or run where the driver and a CUDA build of libtorch are"),
            Self::Spec { .. }
            | Self::PeerEnded { .. }
            | Self::NotAvailable { .. }
            | Self::Config(_)
            | Self::Model { .. }
            | Self::Tensor { .. }
            | Self::Data { .. }
            | Self::OutOfMemory { .. }
            | Self::Stopped { .. }
            | Self::Io { .. }
            | Self::Torch { .. }
            | Self::Panic { .. } => None,
        }
    }
}
