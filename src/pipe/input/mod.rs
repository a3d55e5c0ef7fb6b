//! The inputs of a run: the pipeline file, and the data, tokenizer and model that it names, found, checked and prepared. Starts nothing.
//!
//! The files that a pipeline names, as the host and the job see them. Types only: `preflight` finds them, `data_cache` prepares them.
//!
//! The config.json of the model that a pipeline names.
//!
//! The files and folders that the words of a command name.

pub mod data_cache;
pub mod hub;
pub mod load;
pub mod preflight;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pipe_spec::lock::LockedRepository;
use pipe_spec::model_folder::CONFIG;
use pipe_spec::pipeline::{Arch, Command, Data, Split, Training};
use pipe_spec::{TrainerSpec, Variables};
use serde_json::{Map, Value};

use crate::run::runs_folder;
use crate::system::files::{self, absolute};

/// Where an adapter is in a container.
pub const ADAPTER_FOLDER: &str = "/pipe/adapter";

/// Where a tokenizer that does not lie with the model is in a container.
pub const TOKENIZER_FOLDER: &str = "/pipe/data/tokenizer";

/// A file or folder that the job reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Where it lies on the host.
    pub host: PathBuf,
    /// The same with variables in place of their values, for what is written to disk.
    pub written: PathBuf,
    /// Where it lies in a container.
    pub mounted: PathBuf,
    /// The mount that it needs, if it would not be whole by itself: what, and where.
    pub mount: Option<Mount>,
    /// The path that the job reads in its place.
    pub prepared: Option<Prepared>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub host: PathBuf,
    pub target: PathBuf,
}

impl Input {
    /// The mounts of the host that a container needs for it.
    pub fn mounts(&self) -> Vec<Mount> {
        let Some(prepared) = &self.prepared else {
            let alone = || Mount { host: self.host.clone(), target: self.mounted.clone() };
            return vec![self.mount.clone().unwrap_or_else(alone)];
        };
        let beside = prepared.beside.iter().map(|folder| Mount { host: folder.clone(), target: folder.clone() });
        let rows = Mount { host: prepared.folder.clone(), target: prepared.mounted.clone() };
        std::iter::once(rows).chain(beside).collect()
    }

    /// Where the job reads it: on the host, as that is written to disk, and in a container.
    pub fn read_at(&self) -> (PathBuf, PathBuf) {
        match &self.prepared {
            Some(prepared) => (prepared.folder.join(&prepared.file), prepared.mounted.join(&prepared.file)),
            None => (self.written.clone(), self.mounted.clone()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    pub train: Vec<Input>,
    pub eval: Vec<Input>,
    /// The file that names the tokenizer, then those that belong to it; none where nothing is read as text.
    pub tokenizer: Vec<Input>,
    /// The tokenizer that is trained before the model is, where there is none.
    pub tokenizer_training: Option<TokenizerTraining>,
    pub model: Option<Input>,
    /// The folder of an adapter that the training continues from, or that predicts.
    pub adapter: Option<Input>,
    /// The repositories of the hub that any of them came from.
    pub hub: Vec<LockedRepository>,
    /// Whether all of them are on this machine. What is only checked is not fetched from the hub.
    pub all_local: bool,
}

impl Inputs {
    /// The inputs of work that reads no files that `pipe` knows.
    pub fn none() -> Self {
        let (train, eval, tokenizer, hub) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { train, eval, tokenizer, tokenizer_training: None, model: None, adapter: None, hub, all_local: true }
    }

    /// Files that are evaluated on and trained on, or named twice while a share of all rows is held out: a sentence for each.
    pub fn evaluated_and_trained(&self, data: &Data) -> Vec<String> {
        let holds_out = data.eval.is_none() && data.eval_share > 0.0;
        let identity = |input: &Input| {
            let found = std::fs::metadata(&input.host).ok().filter(std::fs::Metadata::is_file)?;
            Some((found.dev(), found.ino()))
        };
        let trained: Vec<_> = self.train.iter().map(identity).collect();
        let is_trained = |input: &&Input| identity(input).is_some_and(|found| trained.contains(&Some(found)));
        let evaluated = self.eval.iter().filter(is_trained).map(|input| {
            format!(
                "data.eval: {} is part of data.train too, so that it does not show how good the model is on new rows",
                input.written.display()
            )
        });
        let is_second = |(index, input): &(usize, &Input)| {
            holds_out && identity(input).is_some_and(|found| trained[..*index].contains(&Some(found)))
        };
        let twice = self.train.iter().enumerate().filter(is_second).map(|(_, input)| {
            format!(
                "data.train: {} is named twice, so that a row may be trained on and be held out by data.eval_share",
                input.written.display()
            )
        });
        evaluated.chain(twice).collect()
    }

    pub fn all(&self) -> impl Iterator<Item = &Input> {
        self.train.iter().chain(&self.eval).chain(&self.tokenizer).chain(&self.model).chain(&self.adapter)
    }

    /// Replaces the paths that a job sees in a message with the user's own.
    pub fn with_host_paths(&self, said: &str) -> String {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let given = |input: &Input| (text(&input.mounted), text(&input.written));
        // A file beside another one, where the whole folder is mounted.
        let beside = |input: &Input| {
            let (mount, folder) = (input.mount.as_ref()?, input.written.parent()?);
            (input.mounted.parent() == Some(&mount.target)).then(|| (text(&mount.target) + "/", text(folder) + "/"))
        };
        let replaced = |text: String, (mounted, written): (String, String)| text.replace(&mounted, &written);
        let original = |said: String, input: &Input| match &input.prepared {
            Some(prepared) => prepared.with_original(&said, &text(&input.written)),
            None => said,
        };
        let said = self.all().fold(said.to_owned(), original);
        let said = self.all().map(given).fold(said, replaced);
        self.all().filter_map(beside).fold(said, replaced)
    }
}

/// Everything beside the texts that decides which tokenizer is trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerTraining {
    pub arch: Arch,
    /// That of the model's config.
    pub vocabulary: Option<u64>,
    /// The columns with text that have other names than their roles.
    pub fields: BTreeMap<String, String>,
}

/// A file that the job reads in place of a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Its folder in the cache, which is mounted as a whole.
    pub folder: PathBuf,
    /// The name of the file with the rows in it.
    pub file: String,
    /// Where the folder lies in a container.
    pub mounted: PathBuf,
    /// A folder of the host that rows name files of by their whole paths.
    pub beside: Option<PathBuf>,
    /// Numbers of the lines in the original, line by line of the file.
    pub numbering: Numbering,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// The same lines.
    SameLines,
    /// Rows, counted from 1.
    Rows,
    /// Rows, after a line of names.
    RowsAfterHeader,
}

impl Prepared {
    /// Replaces the prepared file in a message with the original.
    pub fn with_original(&self, said: &str, original: &str) -> String {
        let mut text = said.to_owned();
        for folder in [&self.mounted, &self.folder] {
            let prepared = folder.join(&self.file).to_string_lossy().into_owned();
            text = self.replace(&text, &prepared, original);
        }
        text.replace(&*self.mounted.to_string_lossy(), &self.folder.to_string_lossy())
    }

    fn replace(&self, said: &str, prepared: &str, original: &str) -> String {
        let mut pieces = said.split(prepared);
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            text.push_str(original);
            let digits =
                piece.strip_prefix(" line ").map(|rest| (rest, rest.bytes().take_while(u8::is_ascii_digit).count()));
            let line = digits.and_then(|(rest, count)| Some((rest[..count].parse::<u64>().ok()?, &rest[count..])));
            match (self.numbering, line) {
                (Numbering::Rows, Some((line, rest))) => text.push_str(&format!(" row {line}{rest}")),
                (Numbering::RowsAfterHeader, Some((0 | 1, rest))) => text.push_str(rest),
                (Numbering::RowsAfterHeader, Some((line, rest))) => text.push_str(&format!(" row {}{rest}", line - 1)),
                (Numbering::SameLines, _) | (_, None) => text.push_str(piece),
            }
        }
        text
    }
}

/// A hash of what decides how long the rows of a training are.
pub fn data_hash(spec: &TrainerSpec, inputs: &Inputs) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |path: &Path| {
        hasher.update(path.as_os_str().as_encoded_bytes());
        if let Ok(meta) = std::fs::metadata(path) {
            hasher.update(&meta.len().to_le_bytes()).update(&meta.mtime().to_le_bytes());
            hasher.update(&meta.mtime_nsec().to_le_bytes());
        }
    };
    inputs.train.iter().chain(inputs.tokenizer_definition()).for_each(|input| add(&input.host));
    let data = &spec.data;
    let how = (data.max_source, data.max_target, data.max_length, data.pad, &data.fields);
    hasher.update(serde_json::to_string(&how).expect("it is plain data").as_bytes());
    if spec.train.split == Split::Fill {
        // Then a batch is of rows of full length.
        hasher.update(b"fill");
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Reads `model_type` in a model's config.json.
const MAX_BYTES: u64 = 16 << 20;

/// The keys of the model's config.json, from the pipeline or from the folder that it names.
pub fn model_config(training: &Training, inputs: &Inputs) -> Option<Map<String, Value>> {
    let config = match &inputs.model {
        Some(folder) => read_config(&folder.host),
        None => training.model.config.clone(),
    };
    config.map(|config| pipe_model::with_task(config, training.model.task()))
}

/// The keys of the config.json in a model's folder, where it can be read.
pub fn read_config(folder: &Path) -> Option<Map<String, Value>> {
    serde_json::from_slice(&files::read(&folder.join(CONFIG), MAX_BYTES).ok()?).ok()
}

/// Those of this machine that are there and can be read, as a word or behind a `=` in one, each with what the command calls it: regular
/// files and folders, without what lies in the folder of the runs and the folders that it is in.
pub fn named_paths(command: &Command, variables: &Variables) -> BTreeMap<PathBuf, String> {
    let runs = absolute(&runs_folder());
    let mut paths = BTreeMap::new();
    for word in command.words(|name| format!("{{{name}}}")) {
        let value = word.split_once('=').map_or(word.as_str(), |(_, value)| value);
        for written in [word.as_str(), value] {
            let path = PathBuf::from(variables.expand(written).unwrap_or_else(|_| written.to_owned()));
            let place = absolute(&path);
            let is_readable = || rustix::fs::access(&path, rustix::fs::Access::READ_OK).is_ok();
            let is_input = || files::special(&path).is_ok_and(|special| special.is_none()) && is_readable();
            if !runs.starts_with(&place) && !place.starts_with(&runs) && is_input() {
                paths.insert(path, written.to_owned());
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_original() {
        let prepared = |numbering| Prepared {
            folder: "/home/u/.cache/pipe/data/ab".into(),
            file: "data.jsonl".into(),
            mounted: "/pipe/prepared/ab".into(),
            beside: None,
            numbering,
        };
        for (numbering, said, want) in [
            (Numbering::Rows, "/pipe/prepared/ab/data.jsonl line 17: no field", "t.parquet row 17: no field"),
            (Numbering::Rows, "/home/u/.cache/pipe/data/ab/data.jsonl line 3: x", "t.parquet row 3: x"),
            (Numbering::Rows, "/pipe/prepared/ab/data.jsonl: the file is empty", "t.parquet: the file is empty"),
            (Numbering::SameLines, "/pipe/prepared/ab/data.jsonl line 17: no", "t.parquet line 17: no"),
            (Numbering::RowsAfterHeader, "/pipe/prepared/ab/data.jsonl line 17: no", "t.parquet row 16: no"),
            (Numbering::RowsAfterHeader, "/pipe/prepared/ab/data.jsonl line 1: no", "t.parquet: no"),
            (
                Numbering::Rows,
                "/pipe/prepared/ab/data.jsonl line 2: the picture /pipe/prepared/ab/pictures/0000/2.png: bad",
                "t.parquet row 2: the picture /home/u/.cache/pipe/data/ab/pictures/0000/2.png: bad",
            ),
            (Numbering::Rows, "nothing of it", "nothing of it"),
        ] {
            assert_eq!(prepared(numbering).with_original(said, "t.parquet"), want);
        }
    }
}
