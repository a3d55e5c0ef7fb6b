//! The contracts of pipe as types: the pipeline file, the trainer spec, the events, the exit codes, the run folder and the lock.
//!
//! The runner (`pipe`) and the trainer (`pipe-trainer`) meet only here. This crate must not know about containers,
//! tensors, command lines or async.

mod attempt;
pub mod bucket;
pub mod evaluation;
pub mod event;
pub mod exit;
pub mod lock;
pub mod model_folder;
pub mod pipeline;
pub mod run;
mod run_folder;
pub mod study;
pub mod text;
pub mod trainer;
pub mod variables;
mod yaml;

/// The version of libtorch that the trainer is made for and linked with.
pub const LIBTORCH: &str = "2.11.0";

pub use bucket::BucketAddress;
pub use event::{Event, EventKind, OomRecord, Phase};
pub use exit::{PipeExit, TrainerExit};
pub use lock::Lock;
pub use pipeline::{Pipeline, Problem, Problems};
pub use run::{Attempt, Cause, Job, Outcome, RunFolder, RunState, Status};
pub use trainer::{Device, Inspection, PredictEvent, PredictSpec, Rank, TrainerSpec};
pub use variables::Variables;
