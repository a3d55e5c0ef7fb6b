//! The settings of an attempt, as `spec.json` of its folder holds them.
//!
//! Also the checkpoints that a command can resume from.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::Checkpoints;
use serde::{Deserialize, Serialize};

use crate::execute::decide::retry::Settings;
use crate::system::files::Pattern;

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum JobSpec {
    /// The part that the trainer reads.
    Training(Box<TrainerSpec>),
    Command(CommandSpec),
}

/// A command with the values of one attempt. Variables of the environment are put in when it is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandSpec {
    pub command: Vec<String>,
    pub batch: u32,
    pub accum: u32,
    pub expandable_segments: bool,
    /// `PIPE_BATCH` and the like, and the settings of allocators.
    pub env: BTreeMap<String, String>,
}

impl JobSpec {
    pub fn training(&self) -> Option<&TrainerSpec> {
        match self {
            Self::Training(spec) => Some(spec),
            Self::Command(_) => None,
        }
    }

    pub fn accum(&self) -> u32 {
        match self {
            Self::Training(spec) => spec.train.accum(),
            Self::Command(spec) => spec.accum,
        }
    }

    /// The settings that it was written with, after so many changes to the training result.
    pub fn settings(&self, changes: usize) -> Settings {
        match self {
            Self::Training(spec) => {
                Settings { changes, ..Settings::of_trainer(&spec.train, &spec.data, &spec.evaluate, &spec.memory) }
            }
            Self::Command(spec) => {
                Settings { expandable_segments: spec.expandable_segments, changes, ..Settings::of_command(spec.batch) }
            }
        }
    }
}

/// The newest complete checkpoint, as a path below `output`, the folder that the command writes to. No link is one: it may lead elsewhere
/// for the command.
pub fn newest(output: &Path, checkpoints: &Checkpoints) -> Option<PathBuf> {
    let folder: PathBuf =
        Path::new(&checkpoints.folder).components().filter(|part| *part != Component::CurDir).collect();
    let pattern = Pattern::new(&checkpoints.pattern);
    let parts = folder.ancestors().map(|part| output.join(part));
    if parts.take_while(|part| part != output).any(|part| part.is_symlink()) {
        return None;
    }
    let found = std::fs::read_dir(output.join(&folder)).ok()?.flatten();
    let complete = found.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| pattern.matches(name))
            && is_complete(&entry.path(), checkpoints.complete.as_deref())
    });
    let newest = complete.max_by_key(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (last_number(&name), entry.metadata().and_then(|found| found.modified()).ok(), name)
    })?;
    Some(folder.join(newest.file_name()))
}

/// Endings of files that hold weights or the state of a training.
const WEIGHTS: [&str; 9] = [".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".h5", ".keras", ".msgpack", ".npz"];

/// Names of checkpoints that are shown.
const SHOWN: usize = 3;

/// Why there is nothing in `output` to resume from, with what looks like a checkpoint there.
pub fn nothing_to_resume(output: &Path, checkpoints: &Checkpoints) -> String {
    let Checkpoints { folder, pattern, complete } = checkpoints;
    let shown = match folder.as_str() {
        "." => output.display().to_string(),
        folder => output.join(folder).display().to_string(),
    };
    let names = names_in(&output.join(folder));
    let alike: Vec<&String> = names.iter().filter(|name| looks_like_checkpoint(name)).take(SHOWN).collect();
    let matches = Pattern::new(pattern);
    if let Some(name) = names.iter().find(|name| matches.matches(name)) {
        let lack = complete.as_ref().map_or("it is empty".to_owned(), |file| format!("it has no {file}"));
        return format!("{name} in {shown} is not complete: {lack}");
    }
    let found = match alike.split_first() {
        None => String::new(),
        Some((first, others)) => {
            let others: String = others.iter().map(|name| format!(", {name}")).collect();
            format!("; found {first}{others}: set checkpoints.pattern, such as {}", pattern_of(first))
        }
    };
    format!("nothing in {shown} matches {pattern}{found}")
}

/// The names in a folder that a person can read, the newest first; none behind a link.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().filter(|_| !folder.is_symlink()).flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let changed = entry.metadata().and_then(|found| found.modified()).ok();
            (!name.chars().any(char::is_control)).then_some((changed, last_number(&name), name))
        })
        .collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    names.into_iter().map(|(_, _, name)| name).collect()
}

fn looks_like_checkpoint(name: &str) -> bool {
    let name = name.to_lowercase();
    ["checkpoint", "ckpt", "step", "epoch", "iter"].iter().any(|part| name.contains(part))
        || WEIGHTS.iter().any(|ending| name.ends_with(ending))
}

/// A pattern for a name, with `*` for its number.
fn pattern_of(name: &str) -> String {
    let (stem, ending) = name.rfind('.').map_or((name, ""), |at| name.split_at(at));
    format!("{}*{ending}", stem.trim_end_matches(|c: char| c.is_ascii_digit()))
}

fn is_complete(path: &Path, file: Option<&str>) -> bool {
    let Ok(found) = path.symlink_metadata() else { return false };
    match file {
        _ if found.is_symlink() => false,
        Some(file) => path.join(file).symlink_metadata().is_ok_and(|found| found.is_file()),
        None if found.is_dir() => std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()),
        None => found.is_file() && found.len() > 0,
    }
}

/// The number that a name ends with, before its ending: 1000 of `checkpoint-1000` and of `step1000.pt`.
fn last_number(name: &str) -> Option<u64> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    stem[stem.len() - digits..].parse().ok()
}

#[cfg(test)]
mod checkpoint_tests {
    use super::*;

    #[test]
    fn the_newest_that_is_complete() {
        let output = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = output.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let with = |pattern: &str, complete: Option<&str>| {
            let checkpoints = Checkpoints {
                pattern: pattern.to_owned(),
                complete: complete.map(str::to_owned),
                ..Checkpoints::default()
            };
            newest(output.path(), &checkpoints).map(|path| path.to_string_lossy().into_owned())
        };
        assert_eq!(with("checkpoint-*", None), None);
        write("checkpoint-900/trainer_state.json", "{}");
        write("checkpoint-1000/model", "x");
        write("checkpoint-1100", "");
        write("other-2000/model", "x");
        assert_eq!(with("checkpoint-*", None).as_deref(), Some("checkpoint-1000"));
        assert_eq!(with("checkpoint-*", Some("trainer_state.json")).as_deref(), Some("checkpoint-900"));
        write("step8.pt", "x");
        write("step10.pt", "x");
        write("last.pt", "x");
        assert_eq!(with("*.pt", None).as_deref(), Some("step10.pt"));
        assert_eq!(with("la*t.pt", None).as_deref(), Some("last.pt"));
        assert_eq!(with("nothing", None), None);
        // A link of the job is none, nor is what lies behind one.
        std::os::unix::fs::symlink("/etc", output.path().join("checkpoint-2000")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", output.path().join("checkpoint-1000/state")).unwrap();
        assert_eq!(with("checkpoint-*", None).as_deref(), Some("checkpoint-1000"));
        assert_eq!(with("checkpoint-*", Some("state")), None);
        let behind =
            Checkpoints { folder: "checkpoint-2000".to_owned(), pattern: "*".to_owned(), ..Checkpoints::default() };
        assert_eq!(newest(output.path(), &behind), None);
    }

    #[test]
    fn the_reason_for_a_start_from_the_beginning() {
        let output = tempfile::tempdir().unwrap();
        let shown = output.path().display();
        let why = |pattern: &str, complete: Option<&str>| {
            let (pattern, complete) = (pattern.to_owned(), complete.map(str::to_owned));
            nothing_to_resume(output.path(), &Checkpoints { pattern, complete, ..Checkpoints::default() })
        };
        assert_eq!(why("checkpoint-*", None), format!("nothing in {shown} matches checkpoint-*"));
        for name in ["log.txt", "ckpt-10.pt"] {
            std::fs::write(output.path().join(name), "x").unwrap();
        }
        assert_eq!(
            why("checkpoint-*", None),
            format!(
                "nothing in {shown} matches checkpoint-*; found ckpt-10.pt: set checkpoints.pattern, such as ckpt-*.pt"
            )
        );
        std::fs::create_dir(output.path().join("checkpoint-9")).unwrap();
        assert_eq!(why("checkpoint-*", None), format!("checkpoint-9 in {shown} is not complete: it is empty"));
        assert_eq!(
            why("checkpoint-*", Some("trainer_state.json")),
            format!("checkpoint-9 in {shown} is not complete: it has no trainer_state.json")
        );
    }
}
