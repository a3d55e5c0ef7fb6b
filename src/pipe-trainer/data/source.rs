//! Where samples come from: one implementation for each task, and the choice among them.

use std::path::Path;
use std::sync::Arc;

use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::{Arch, Pad, Paths};
use rayon::ThreadPool;
use serde_json::{Map, Value};

use super::longest::KEPT;
use super::tensors::TensorRows;
use super::{Padding, Sample, Tokens, classes, language, pairs, seq2seq, windows};
use crate::error::TrainerError;
use crate::model::{Expects, Labels};

pub trait Source: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// The same every time. Nothing where the sample cannot be read and the pipeline says to go on without such.
    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError>;

    /// The same, without counting it among those that could not be read.
    fn look(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.sample(index)
    }

    /// Samples that are likely the longest, if some are longer than others.
    fn longest(&self) -> Vec<usize> {
        (0..self.len().min(KEPT)).collect()
    }

    /// What a model is given to write something for a sample.
    fn prompt(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.sample(index)
    }

    /// What a sample says in words, where a model answers in words: what it is given and what it is to write.
    fn words(&self, _index: usize) -> Result<(String, String), TrainerError> {
        Ok((String::new(), String::new()))
    }

    /// What was read off the data and belongs to the model: keys of its config.json.
    fn learned(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Samples that could not be read so far.
    fn skipped(&self) -> u64 {
        0
    }
}

/// The data of a training.
pub struct Sources {
    pub train: Arc<dyn Source>,
    pub eval: Option<Arc<dyn Source>>,
    pub paddings: Vec<Padding>,
    /// What writes the tokens of a model as words.
    pub tokens: Option<Arc<Tokens>>,
    /// What the data tells apart, where it is the data that decides.
    pub labels: Option<Labels>,
}

impl Sources {
    /// Every row is read once, so that a broken one is named before the first step.
    pub fn open(spec: &TrainerSpec, expects: &Expects, pool: &ThreadPool) -> Result<Self, TrainerError> {
        let opener = Opener { spec, pool };
        match expects {
            Expects::Seq2Seq { .. } => seq2seq::open(&opener, expects),
            Expects::Classes { .. } => classes::open(&opener, expects),
            Expects::Pairs { .. } => pairs::open(&opener, expects),
            Expects::Windows { .. } => windows::open(&opener, expects),
            Expects::Tokens { .. } => language::open(&opener, expects),
        }
    }
}

pub type Opened = Result<Arc<dyn Source>, TrainerError>;

/// What every task's data is opened with.
pub struct Opener<'a> {
    pub spec: &'a TrainerSpec,
    pub pool: &'a ThreadPool,
}

impl Opener<'_> {
    /// Files of tensors need nothing more; others are for the task to open.
    pub fn part(&self, paths: &Paths, open: &dyn Fn(&Paths) -> Opened) -> Result<Arc<dyn Source>, TrainerError> {
        if holds_tensors(paths) {
            return Ok(Arc::new(TensorRows::open(paths)?));
        }
        open(paths)
    }

    pub fn tokenizer(&self) -> Result<&Path, TrainerError> {
        let missing = || TrainerError::Tokenizer { path: "".into(), message: "none is given".to_owned() };
        self.spec.tokenizer.as_deref().ok_or_else(missing)
    }

    pub fn arch(&self) -> Arch {
        self.spec.model.arch
    }

    /// The length of every row, where rows are not to be as short as they can be.
    pub fn fixed(&self, length: u32) -> Option<usize> {
        match self.spec.data.pad {
            Pad::Longest => None,
            Pad::Max => Some(length as usize),
        }
    }
}

/// Whether samples are ready for the model.
pub fn holds_tensors(paths: &Paths) -> bool {
    paths.0.iter().all(|path| path.ends_with(".safetensors"))
}
