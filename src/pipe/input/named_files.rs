//! The files that the words of a command name.

use std::collections::BTreeMap;
use std::path::Path;

use pipe_spec::Variables;
use pipe_spec::pipeline::Command;

use crate::error::Error;
use crate::files::absolute;
use crate::files::digests::Digests;
use crate::files::tree::{Links, hash_tree};
use crate::run::runs_folder;

/// The files and folders of this machine that the words of a command name, with their hashes: those of the user, as far as words
/// tell. A folder that the runs are in is not one of them.
pub fn named_files(
    digests: &mut Digests,
    command: &Command,
    variables: &Variables,
) -> Result<BTreeMap<String, String>, Error> {
    let runs = absolute(&runs_folder());
    let mut files = BTreeMap::new();
    for word in command.words(|name| format!("{{{name}}}")) {
        let word = variables.expand(&word).unwrap_or(word);
        let value = word.split_once('=').map_or(word.as_str(), |(_, value)| value);
        for path in [word.as_str(), value].map(Path::new) {
            let holds_runs = runs.starts_with(absolute(path));
            if path.is_file() || (path.is_dir() && !holds_runs) {
                files.insert(path.display().to_string(), hash_tree(digests, path, Links::Followed)?);
            }
        }
    }
    Ok(files)
}
