//! The names of the hub in a pipeline, as local paths.

use std::path::{Path, PathBuf};

use pipe_spec::bucket::BucketAddress;
use pipe_spec::pipeline::Task;
use pipe_spec::{Variables, variables};

use super::{Finder, Input, Mount, belongs, has_ending, inside};
use crate::input::hub::{Address, DataAddress, Failure, Hub, Snapshot};

/// The folder that has the config.json of the model `from`, which need have nothing else.
pub fn config_folder(from: &str, known: &Variables, hub: &Hub) -> Result<PathBuf, Failure> {
    let folder = Finder::new(known, hub).input(from, "").host;
    match Source::find(from, &folder) {
        Source::Folder => Ok(folder),
        Source::Hub(address) => hub.config(&address),
        Source::Nothing(message) => Err(Failure::Named(message)),
    }
}

/// Where a model comes from.
pub enum Source {
    Folder,
    Hub(Address),
    /// Why it was not found.
    Nothing(String),
}

impl Source {
    pub fn find(from: &str, folder: &Path) -> Self {
        if BucketAddress::is_meant(from) {
            let found = || format!("found {from}; allowed: {}", BucketAddress::ALLOWED);
            return Address::of_model(from).map_or_else(|| Self::Nothing(found()), Self::Hub);
        }
        if folder.is_dir() {
            return Self::Folder;
        }
        match Address::of_model(from) {
            Some(address) => Self::Hub(address),
            // The value of a variable is not written to disk, as the path of a snapshot is.
            None if variables::names(from).next().is_some() => {
                Self::Nothing(format!("no such folder: {from}; a hub id has no variables in it"))
            }
            None => Self::Nothing(format!(
                "no such folder: {from}; give a folder in Hugging Face layout, or a hub id: owner/name or owner/name@revision, or s3://bucket/folder"
            )),
        }
    }
}

impl Finder<'_> {
    /// The files of a data set of the hub.
    pub fn hub_data(&mut self, key: &str, text: &str, task: Task) -> Vec<Input> {
        let Some(address) = DataAddress::parse(text) else {
            self.problem(key, format!("found {text}; allowed: {}", DataAddress::allowed(text)));
            return Vec::new();
        };
        let found = match self.hub.data(&address, |name| belongs(name, task)) {
            Ok(found) => found,
            Err(failure) => {
                self.failed(key, failure);
                return Vec::new();
            }
        };
        for name in found.names.iter().map(Path::new) {
            if !has_ending(name, task) {
                let endings = task.endings().join(", .");
                self.problem(key, format!("{}: allowed for {}: .{endings}", name.display(), task.name()));
            } else if task.reads_pictures() && names_pictures(name) {
                let command = address.repository.copy_command();
                let place = if address.repository.bucket.is_some() { "a bucket" } else { "the hub" };
                let message = format!(
                    "{text}: pictures that a file names are not fetched from {place}; fetch all of it with `{command}`, and \
                     name the file in DIR"
                );
                self.problem(key, message);
            }
        }
        self.take(&found.snapshot);
        let folder = in_repository(&found.snapshot, &found.names);
        found.names.iter().map(|name| Input { mount: folder.mount.clone(), ..inside(&folder, name) }).collect()
    }
}

/// The folder of a snapshot. Its files are links to others of its repository, so the repository is mounted; where some of
/// `names` lead out of it, to contents that the hub's own tools share among repositories, the whole cache.
pub fn in_repository(snapshot: &Snapshot, names: &[String]) -> Input {
    let (host, target) = (snapshot.folder(), Path::new("/pipe/hub"));
    let repository = snapshot.repository.canonicalize().unwrap_or_else(|_| snapshot.repository.clone());
    let leads_out = |name: &String| host.join(name).canonicalize().is_ok_and(|path| !path.starts_with(&repository));
    let repository = target.join(snapshot.repository.file_name().unwrap_or_default());
    let mount = match names.iter().any(leads_out) {
        true => Mount { host: snapshot.cache.clone(), target: target.to_owned() },
        false => Mount { host: snapshot.repository.clone(), target: repository.clone() },
    };
    Input { written: host.clone(), host, mounted: repository.join(&snapshot.path), mount: Some(mount), prepared: None }
}

pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Whether the rows of a file name pictures that lie beside it.
fn names_pictures(path: &Path) -> bool {
    let ending = |path: &Path| path.extension().map(|ending| ending.to_string_lossy().into_owned());
    let packed = ending(path).filter(|ending| ["gz", "zst"].contains(&ending.as_str())).is_some();
    let inner = if packed { path.with_extension("") } else { path.to_owned() };
    ending(&inner).is_some_and(|ending| ["jsonl", "csv", "tsv", "json", "xlsx"].contains(&ending.as_str()))
}
