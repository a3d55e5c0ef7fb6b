//! What the data of every task is opened with: the spec, the worker threads and what it is read for.

use std::path::Path;
use std::sync::Arc;

use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::{Arch, Pad, Paths};
use rayon::ThreadPool;

use super::part::Padding;
use super::source::Source;
use super::tensors::TensorRows;
use crate::error::TrainerError;

pub type Opened = Result<Arc<dyn Source>, TrainerError>;

pub struct Opener<'a> {
    pub spec: &'a TrainerSpec,
    pub pool: &'a ThreadPool,
    pub purpose: Purpose,
}

/// What rows are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Training,
    /// What is to be predicted may be missing.
    Prediction,
}

impl Opener<'_> {
    /// Files of tensors need nothing more; others are for the task to open.
    pub fn part(&self, paths: &Paths, open: &dyn Fn(&Paths) -> Opened) -> Result<Arc<dyn Source>, TrainerError> {
        if holds_tensors(paths) {
            return Ok(Arc::new(Tensoropen_rows(paths)?));
        }
        open(paths)
    }

    pub fn predicts(&self) -> bool {
        self.purpose == Purpose::Prediction
    }

    pub fn tokenizer(&self) -> Result<&Path, TrainerError> {
        let missing = || TrainerError::Tokenizer { path: "".into(), message: "none is given".to_owned() };
        self.spec.tokenizer.as_deref().ok_or_else(missing)
    }

    pub fn arch(&self) -> Arch {
        self.spec.model.arch
    }

    /// Of a column whose rows have at most so many tokens, as `data.pad` says.
    pub fn padding(&self, column: &'static str, with: i64, most: u32) -> Padding {
        let most = most as usize;
        let length = match self.spec.data.pad {
            Pad::Longest => None,
            Pad::Max => Some(most),
        };
        Padding { column, with, length, most }
    }
}

/// Whether samples are ready for the model.
pub fn holds_tensors(paths: &Paths) -> bool {
    paths.0.iter().all(|path| path.ends_with(".safetensors"))
}
