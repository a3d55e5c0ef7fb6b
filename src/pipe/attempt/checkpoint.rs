//! What a command can resume from.

use std::path::{Component, Path, PathBuf};

use pipe_spec::pipeline::Checkpoints;

/// The newest complete checkpoint, as a path below `output`, the folder that the command writes to.
pub fn newest(output: &Path, checkpoints: &Checkpoints) -> Option<PathBuf> {
    let folder: PathBuf =
        Path::new(&checkpoints.folder).components().filter(|part| *part != Component::CurDir).collect();
    let found = std::fs::read_dir(output.join(&folder)).ok()?.flatten();
    let complete = found.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| matches(&checkpoints.pattern, name))
            && is_complete(&entry.path(), checkpoints.complete.as_deref())
    });
    let newest = complete.max_by_key(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (last_number(&name), entry.metadata().and_then(|found| found.modified()).ok(), name)
    })?;
    Some(folder.join(newest.file_name()))
}

fn is_complete(path: &Path, file: Option<&str>) -> bool {
    let Ok(found) = std::fs::metadata(path) else { return false };
    match file {
        Some(file) => path.join(file).is_file(),
        None if found.is_dir() => std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()),
        None => found.len() > 0,
    }
}

/// The number that a name ends with, before its ending: 1000 of `checkpoint-1000` and of `step1000.pt`.
fn last_number(name: &str) -> Option<u64> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    stem[stem.len() - digits..].parse().ok()
}

/// Whether `name` is what `pattern` says, in which `*` is anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
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
    }
}
