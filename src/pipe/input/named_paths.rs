//! The files and folders that the words of a command name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pipe_spec::Variables;
use pipe_spec::pipeline::Command;

use crate::files::absolute;
use crate::run::runs_folder;

/// Those of this machine that are there, as a word or behind a `=` in one, without what lies in the folder of the runs and the
/// folders that it is in.
pub fn named_paths(command: &Command, variables: &Variables) -> BTreeSet<PathBuf> {
    let runs = absolute(&runs_folder());
    let mut paths = BTreeSet::new();
    for word in command.words(|name| format!("{{{name}}}")) {
        let word = variables.expand(&word).unwrap_or(word);
        let value = word.split_once('=').map_or(word.as_str(), |(_, value)| value);
        for path in [word.as_str(), value].map(Path::new) {
            let place = absolute(path);
            if path.exists() && !runs.starts_with(&place) && !place.starts_with(&runs) {
                paths.insert(path.to_owned());
            }
        }
    }
    paths
}
