//! The surroundings of a training: its spec, parsed, checked and with its variables filled in; its events; and its progress for the record of
//! an out-of-memory.

pub mod events;
pub mod oom;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::{Limit, Paths, bounds};
use pipe_spec::run::JobFolder;
use pipe_spec::trainer::NODE_VARIABLE;
use pipe_spec::{Device, PredictSpec, RunFolder, TrainerSpec, Variables};
use serde::de::DeserializeOwned;

use crate::error::TrainerError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// From 0.
    pub index: u32,
    /// How many nodes there are.
    pub count: u32,
    /// Ranks of all nodes.
    pub all_ranks: u32,
}

impl Node {
    pub fn new(spec: &TrainerSpec, index: u32) -> Self {
        Self { index, count: spec.nodes, all_ranks: spec.rank.count }
    }

    /// The one that a rank is on.
    pub fn with_rank(spec: &TrainerSpec, rank: u32) -> Self {
        let first = Self::new(spec, 0);
        Self { index: rank / first.size(), ..first }
    }

    pub fn is_only(self) -> bool {
        self.count == 1
    }

    /// How many ranks each node has.
    pub fn size(self) -> u32 {
        self.all_ranks / self.count
    }

    /// Its ranks.
    pub fn ranks(self) -> Range<u32> {
        self.index * self.size()..(self.index + 1) * self.size()
    }
}

/// The folder that the attempt of this spec may write about itself.
pub fn job_folder(spec: &TrainerSpec) -> JobFolder {
    RunFolder::new(&spec.run).attempt(spec.attempt).job()
}

pub fn read(path: &Path) -> Result<TrainerSpec, TrainerError> {
    let mut spec: TrainerSpec = parse(path)?;
    check(path, &spec)?;
    fill_in(&mut spec, &Variables::of_process(None))?;
    Ok(spec)
}

/// Its paths have no variables.
pub fn read_predict(path: &Path) -> Result<PredictSpec, TrainerError> {
    let spec: PredictSpec = parse(path)?;
    check(path, &spec.settings)?;
    Ok(spec)
}

/// Which of the nodes this is.
pub fn node(path: &Path, spec: &TrainerSpec) -> Result<Node, TrainerError> {
    let index = match spec.nodes {
        1 => Ok(0),
        nodes => {
            let text = std::env::var_os(NODE_VARIABLE).map(|text| text.to_string_lossy().into_owned());
            node_index(nodes, text, &Variables::of_process(None))
        }
    };
    let index = index.map_err(|message| TrainerError::Spec { path: path.to_owned(), message })?;
    Ok(Node::new(spec, index))
}

/// A number, or `${NAME}` where a scheduler sets the variable of that name on each node.
fn node_index(nodes: u32, text: Option<String>, variables: &Variables) -> Result<u32, String> {
    let allowed = format!("allowed: 0 to {}, because nodes is {nodes}", nodes - 1);
    let text = text.ok_or_else(|| format!("the variable {NODE_VARIABLE} is not set; {allowed}"))?;
    let number = variables.expand(&text);
    let number = number.map_err(|name| format!("the variable {name} of {NODE_VARIABLE} is not set; {allowed}"))?;
    let index = number.trim().parse().ok().filter(|index| *index < nodes);
    index.ok_or_else(|| format!("the variable {NODE_VARIABLE}: found {text:?}; {allowed}"))
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, TrainerError> {
    let fail = |message: String| TrainerError::Spec { path: path.to_owned(), message };
    let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| fail(error.to_string()))
}

fn check(path: &Path, spec: &TrainerSpec) -> Result<(), TrainerError> {
    match problem(spec) {
        Some(message) => Err(TrainerError::Spec { path: path.to_owned(), message }),
        None => Ok(()),
    }
}

fn problem(spec: &TrainerSpec) -> Option<String> {
    let train = &spec.train;
    if spec.version != TrainerSpec::VERSION {
        return Some(format!("version {} is not {}", spec.version, TrainerSpec::VERSION));
    }
    if train.batch() == 0 || train.effective_batch < train.batch() {
        return Some(format!(
            "train.batch {} is not between 1 and the effective batch {}",
            train.batch(),
            train.effective_batch
        ));
    }
    for (key, found, most) in [
        ("train.effective_batch", train.effective_batch, bounds::MAX_SAMPLES),
        ("data.max_source", spec.data.max_source.get(), bounds::MAX_TOKENS),
        ("data.max_target", spec.data.max_target.get(), bounds::MAX_TOKENS),
        ("data.max_length", spec.data.max_length.get(), bounds::MAX_TOKENS),
        ("data.workers", spec.data.workers.get(), bounds::MAX_WORKERS),
        ("data.prefetch", spec.data.prefetch, bounds::MAX_PREFETCHED),
    ] {
        if found > most {
            return Some(format!("{key}: found {found}; allowed: at most {most}"));
        }
    }
    if train.steps == Some(0) || (train.steps.is_none() && !train.epochs.is_some_and(|epochs| epochs > 0.0)) {
        return Some("train: give steps or epochs above 0".to_owned());
    }
    if spec.model.from.is_some() == spec.model.config.is_some() {
        return Some("model: give either from or config".to_owned());
    }
    if spec.rank.count == 0 || spec.rank.index >= spec.rank.count || spec.cards == 0 {
        return Some(format!("rank {} of {} on {} cards", spec.rank.index, spec.rank.count, spec.cards));
    }
    if spec.nodes == 0 || !spec.rank.count.is_multiple_of(spec.nodes) {
        return Some(format!("nodes: {} ranks are not as many on each of {} nodes", spec.rank.count, spec.nodes));
    }
    if spec.device == Device::Cpu && spec.device_index > 0 {
        return Some(format!("device_index: found {}; allowed: 0 on the CPU", spec.device_index));
    }
    if spec.device == Device::Cpu && matches!(spec.memory.limit, Some(Limit::Share(_))) {
        return Some("memory.limit: on the CPU give a size".to_owned());
    }
    None
}

fn fill_in(spec: &mut TrainerSpec, variables: &Variables) -> Result<(), TrainerError> {
    let expand = |text: &str| {
        let fail = |name: String| TrainerError::Variable { reason: variables.reason(&name), text: text.to_owned() };
        variables.expand(text).map_err(fail)
    };
    let expand_all = |paths: &mut Paths| -> Result<(), TrainerError> {
        paths.0.iter_mut().try_for_each(|path| expand(path).map(|expanded| *path = expanded))
    };
    expand_all(&mut spec.data.train)?;
    if let Some(eval) = &mut spec.data.eval {
        expand_all(eval)?;
    }
    if let Some(from) = &mut spec.model.from {
        *from = expand(from)?;
    }
    if let Some(path) = &mut spec.tokenizer {
        *path = PathBuf::from(expand(&path.to_string_lossy())?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_as_many_ranks() {
        let node = |index| Node { index, count: 3, all_ranks: 12 };
        assert_eq!((node(0).ranks(), node(2).ranks()), (0..4, 8..12));
    }
}

#[cfg(test)]
mod spec_tests {
    use super::*;

    #[test]
    fn a_node_has_a_number() {
        let variables = Variables::new(None, [("NUMBER".to_owned(), "1".to_owned())].into_iter());
        let of = |text: &str| node_index(2, Some(text.to_owned()), &variables);
        assert_eq!((of("0"), of("1"), of("${NUMBER}")), (Ok(0), Ok(1), Ok(1)));
        assert!(of("${OTHER}").unwrap_err().starts_with("the variable OTHER of PIPE_NODE is not set"));
        for text in ["2", "-1", "first", ""] {
            assert!(of(text).unwrap_err().contains(&format!("PIPE_NODE: found {text:?}; allowed: 0 to 1")), "{text}");
        }
        assert!(node_index(2, None, &variables).unwrap_err().starts_with("the variable PIPE_NODE is not set"));
    }
}
