//! The folders of runs that are shown, and the keys of the runs in them.

use std::path::{Path, PathBuf};

use pipe_spec::Variables;
use pipe_spec::bucket::BucketAddress;

use crate::bucket::copies::RunCopies;
use crate::error::Error;
use crate::system::files::absolute;

/// The folders of runs: first that of `PIPE_RUNS`, whose label is empty.
pub struct Folders(Vec<RunsFolder>);

pub struct RunsFolder {
    pub label: String,
    pub path: PathBuf,
    /// The folder of a bucket that it is a copy of.
    pub bucket: Option<BucketAddress>,
}

impl Folders {
    pub fn new(runs: &Path, others: Vec<(PathBuf, Option<BucketAddress>)>) -> Self {
        let mut folders = vec![RunsFolder { label: String::new(), path: runs.to_owned(), bucket: None }];
        for (path, bucket) in others {
            let name = path.file_name().map_or("other".into(), |name| name.to_string_lossy()).into_owned();
            let mut labels = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
            let is_free = |label: &String| folders.iter().all(|known| known.label != *label);
            let Some(label) = labels.find(is_free).filter(|_| folders.iter().all(|known| known.path != path)) else {
                continue;
            };
            folders.push(RunsFolder { label, path, bucket });
        }
        Self(folders)
    }

    pub fn iter(&self) -> impl Iterator<Item = &RunsFolder> {
        self.0.iter()
    }

    /// Where the run with this key is, whether there is one or not; nothing where no folder has the label.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        self.find(key).map(|(folder, name)| folder.path.join(name))
    }

    /// The address of the run with this key in a bucket, where it is a copy from there.
    pub fn address(&self, key: &str) -> Option<BucketAddress> {
        let (folder, name) = self.find(key)?;
        folder.bucket.as_ref().map(|bucket| bucket.at(&bucket.join(name)))
    }

    fn find<'a>(&self, key: &'a str) -> Option<(&RunsFolder, &'a str)> {
        let (label, name) = match key.split_once('/') {
            Some(("", _)) => return None,
            Some(found) => found,
            None => ("", key),
        };
        let is_name = !matches!(name, "" | "." | "..") && !name.contains('/');
        self.0.iter().find(|known| known.label == label && is_name).map(|known| (known, name))
    }
}

/// A folder of runs by the word that names it. One in a bucket is copied to a folder below `copies`, as long as the process lives.
pub fn open(text: &str, copies: &Path, variables: &Variables) -> Result<(PathBuf, Option<BucketAddress>), Error> {
    if !BucketAddress::is_meant(text) {
        let path = absolute(Path::new(text));
        std::fs::read_dir(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        return Ok((path, None));
    }
    let refused = || Error::BucketRefused { reason: format!("{text:?} is none of {}", BucketAddress::ALLOWED) };
    let address = BucketAddress::parse(text).ok_or_else(refused)?;
    let name = if address.path.is_empty() { address.bucket.as_str() } else { address.parent().1 };
    let above = copies.join(&blake3::hash(text.as_bytes()).to_hex()[..16]);
    let folder = above.join(name);
    std::fs::create_dir_all(&folder).map_err(|source| Error::Write { path: folder.clone(), source })?;
    let copies = RunCopies::open(address.clone(), folder.clone(), variables)?;
    std::thread::spawn(move || copies.follow());
    Ok((folder, Some(address)))
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
        let bucket = BucketAddress::parse("s3://lab/team/runs");
        let others = ["/b/runs", "/c/runs", "/a/runs", "/"].map(|path| (PathBuf::from(path), None));
        let others = others.into_iter().chain([(PathBuf::from("/d/runs"), bucket)]).collect();
        let folders = Folders::new(Path::new("/a/runs"), others);
        let labels: Vec<&str> = folders.iter().map(|folder| folder.label.as_str()).collect();
        assert_eq!(labels, ["", "runs", "runs-2", "other", "runs-3"]);
        let address = |key: &str| folders.address(key).map(|address| address.to_string());
        assert_eq!((address("runs/x"), address("runs-3/x")), (None, Some("s3://lab/team/runs/x".to_owned())));
        let path = |key: &str| folders.path(key).map(|path| path.display().to_string()).unwrap_or_default();
        assert_eq!([path("x"), path("runs/x"), path("runs-2/x")], ["/a/runs/x", "/b/runs/x", "/c/runs/x"]);
        assert_eq!(
            [path(""), path(".."), path("runs/.."), path("none/x"), path("runs/x/y"), path("/x")],
            [""; 6].map(str::to_owned)
        );
        assert_eq!((key_beside("runs/x", "y"), key_beside("x", "y")), ("runs/y".to_owned(), "y".to_owned()));
    }
}
