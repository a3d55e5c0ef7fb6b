//! The folders of runs that are shown, and the keys of the runs in them.

use std::path::{Path, PathBuf};

/// The folders of runs, each with a label: first that of `PIPE_RUNS`, whose label is empty.
pub struct Folders(Vec<(String, PathBuf)>);

impl Folders {
    pub fn new(runs: &Path, others: &[PathBuf]) -> Self {
        let mut folders = vec![(String::new(), runs.to_owned())];
        for path in others {
            let name = path.file_name().map_or("other".into(), |name| name.to_string_lossy()).into_owned();
            let mut labels = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
            let is_free = |label: &String| folders.iter().all(|known| known.0 != *label);
            let Some(label) = labels.find(is_free).filter(|_| folders.iter().all(|known| known.1 != *path)) else {
                continue;
            };
            folders.push((label, path.clone()));
        }
        Self(folders)
    }

    pub fn iter(&self) -> impl Iterator<Item = &(String, PathBuf)> {
        self.0.iter()
    }

    /// Where the run with this key is, whether there is one or not; nothing where no folder has the label.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        let (label, name) = match key.split_once('/') {
            Some(("", _)) => return None,
            Some(found) => found,
            None => ("", key),
        };
        let is_name = !matches!(name, "" | "." | "..") && !name.contains('/');
        self.0.iter().find(|known| known.0 == label && is_name).map(|known| known.1.join(name))
    }
}

/// The key of a run: the name of its folder, after the label of the folder that this is in.
pub fn key_of(label: &str, name: &str) -> String {
    if label.is_empty() { name.to_owned() } else { format!("{label}/{name}") }
}

/// The key of a part of a run, such as a trial, which lies beside it.
pub fn key_beside(key: &str, name: &str) -> String {
    key_of(key.split_once('/').map_or("", |(label, _)| label), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_labels() {
        let others = ["/b/runs", "/c/runs", "/a/runs", "/"].map(PathBuf::from);
        let folders = Folders::new(Path::new("/a/runs"), &others);
        let labels: Vec<&str> = folders.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(labels, ["", "runs", "runs-2", "other"]);
        let path = |key: &str| folders.path(key).map(|path| path.display().to_string()).unwrap_or_default();
        assert_eq!([path("x"), path("runs/x"), path("runs-2/x")], ["/a/runs/x", "/b/runs/x", "/c/runs/x"]);
        assert_eq!(
            [path(""), path(".."), path("runs/.."), path("none/x"), path("runs/x/y"), path("/x")],
            [""; 6].map(str::to_owned)
        );
        assert_eq!((key_beside("runs/x", "y"), key_beside("x", "y")), ("runs/y".to_owned(), "y".to_owned()));
    }
}
