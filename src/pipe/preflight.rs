//! What a pipeline names must be there before anything is started: data, tokenizer, model, Dockerfile.

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::{Image, Paths, Pipeline, Problems, Task};
use pipe_spec::{Variables, variables};

use crate::data_cache::{self, Format, Prepared, Wanted};
use crate::hub::{self, Hub, Snapshot};
use crate::run::absolute;

/// A file or folder that the job reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Where it lies on the host.
    pub host: PathBuf,
    /// The same with variables in place of their values, for what is written to disk.
    pub written: PathBuf,
    /// Where it lies in a container.
    pub mounted: PathBuf,
    /// What is mounted for it and where, if it would not be whole by itself.
    pub mount: Option<Mount>,
    /// What the job reads in its place.
    pub prepared: Option<Prepared>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub host: PathBuf,
    pub target: PathBuf,
}

impl Input {
    /// What a container needs of the host for it.
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
    /// Absent where nothing is read as text.
    pub tokenizer: Option<Input>,
    pub model: Option<Input>,
}

impl Inputs {
    pub fn all(&self) -> impl Iterator<Item = &Input> {
        self.train.iter().chain(&self.eval).chain(&self.tokenizer).chain(&self.model)
    }

    /// Finds everything, or says all that is missing.
    pub fn find(pipeline: &Pipeline, known: &Variables) -> Result<Self, Problems> {
        let mut finder = Finder { known, problems: Problems::default() };
        let task = pipeline.model.arch.task();
        let train = finder.data("data.train", &pipeline.data.train, task);
        let eval = pipeline.data.eval.as_ref().map_or(Vec::new(), |paths| finder.data("data.eval", paths, task));
        let model = pipeline.model.from.as_ref().map(|from| finder.model(from));
        let is_text = |input: &Input| input.host.extension().is_none_or(|ending| ending != "safetensors");
        let tokenizer = (task.reads_text() && train.iter().chain(&eval).any(is_text))
            .then(|| finder.tokenizer(pipeline, model.as_ref(), train.first()));
        let wanted = Wanted::of(task, &pipeline.data);
        finder.check_files("data.train", &train, &wanted);
        finder.check_files("data.eval", &eval, &wanted);
        if let Some(Image::Dockerfile(path)) = &pipeline.container.image
            && !Path::new(path).is_file()
        {
            finder.problem("container.image", format!("no such file: {path}"));
        }
        for (index, mount) in pipeline.container.mounts.iter().enumerate() {
            let input = finder.input(&mount.host, &mount.container);
            if !input.host.exists() {
                let place = format!("container.mounts.{index}.host");
                finder.problem(&place, format!("no such file or folder: {}", mount.host));
            }
        }
        if finder.problems.is_empty() { Ok(Self { train, eval, tokenizer, model }) } else { Err(finder.problems) }
    }
}

/// Where the model `from` lies, which need have no weights.
pub fn model_folder(from: &str, known: &Variables) -> Result<PathBuf, String> {
    let finder = Finder { known, problems: Problems::default() };
    let folder = finder.input(from, "").host;
    match finder.snapshot(from, &folder) {
        None => Ok(folder),
        Some(Ok(snapshot)) => Ok(in_repository(snapshot).host),
        Some(Err(message)) => Err(format!("no such folder: {from}; {message}")),
    }
}

struct Finder<'a> {
    known: &'a Variables,
    problems: Problems,
}

impl Finder<'_> {
    fn problem(&mut self, path: &str, message: String) {
        self.problems.push(None, path, message);
    }

    fn input(&self, text: &str, mounted: impl Into<PathBuf>) -> Input {
        // Undefined variables were refused when the pipeline was read.
        let value = self.known.expand(text).unwrap_or_else(|_| text.to_owned());
        let host = absolute(Path::new(&value));
        let written = match variables::names(text).next() {
            None => host.clone(),
            Some(_) if Path::new(&value).is_absolute() => PathBuf::from(text),
            Some(_) => absolute(Path::new("")).join(text),
        };
        Input { host, written, mounted: mounted.into(), mount: None, prepared: None }
    }

    /// The files of `data.train` or `data.eval`, those of folders in the order of their names.
    fn data(&mut self, place: &str, paths: &Paths, task: Task) -> Vec<Input> {
        let part = place.trim_start_matches("data.");
        let mut inputs = Vec::new();
        for (index, text) in paths.0.iter().enumerate() {
            let target = PathBuf::from(format!("/pipe/data/{part}/{index}"));
            let name = Path::new(text).file_name().unwrap_or_default();
            let mut input = self.input(text, target.join(name));
            match std::fs::File::open(&input.host).and_then(|file| file.metadata()) {
                Err(error) => self.problem(place, format!("cannot read {text}: {}", plain(&error))),
                Ok(meta) if meta.is_dir() => {
                    inputs.extend(self.files_of(&input, place, text, task));
                    continue;
                }
                Ok(_) if !has_ending(&input.host, task) => {
                    let endings = task.endings().join(", .");
                    self.problem(place, format!("{text}: allowed for {}: .{endings}", task.name()));
                }
                Ok(meta) if meta.len() == 0 => self.problem(place, format!("{text} is empty")),
                Ok(_) => {}
            }
            // Pictures lie beside the file that names them.
            if task == Task::Contrastive
                && let Some(parent) = input.host.parent()
            {
                input.mount = Some(Mount { host: parent.to_owned(), target });
            }
            inputs.push(input);
        }
        inputs
    }

    fn files_of(&mut self, folder: &Input, place: &str, text: &str, task: Task) -> Vec<Input> {
        let mut names: Vec<PathBuf> = std::fs::read_dir(&folder.host)
            .map(|entries| entries.flatten().map(|entry| PathBuf::from(entry.file_name())).collect())
            .unwrap_or_default();
        names.retain(|name| has_ending(name, task) && folder.host.join(name).is_file());
        names.sort();
        if names.is_empty() {
            let endings = task.endings().join(", .");
            self.problem(place, format!("the folder {text} has no files for {}: .{endings}", task.name()));
        }
        let mount = Mount { host: folder.host.clone(), target: folder.mounted.clone() };
        let file = |name: &PathBuf| Input {
            host: folder.host.join(name),
            written: folder.written.join(name),
            mounted: folder.mounted.join(name),
            mount: Some(mount.clone()),
            prepared: None,
        };
        names.iter().map(file).collect()
    }

    /// Whether the files are what their names say, as far as a look at them tells. What is missing was told before.
    fn check_files(&mut self, place: &str, inputs: &[Input], wanted: &Wanted) {
        for input in inputs.iter().filter(|input| input.host.metadata().is_ok_and(|meta| meta.len() > 0)) {
            if let Err(why) = data_cache::check(&input.host, wanted) {
                self.problem(place, format!("{}: {why}", input.written.display()));
            }
            let unpacked = input.host.with_extension("");
            let is_packed = matches!(Format::of(&input.host), Format::Compressed(_));
            if is_packed && inputs.iter().any(|other| other.host == unpacked) {
                let (packed, plain) = (input.written.display(), unpacked.file_name().unwrap_or_default().display());
                self.problem(
                    place,
                    format!("{packed} and {plain} beside it are the same data twice; name one of them"),
                );
            }
        }
    }

    fn model(&mut self, from: &str) -> Input {
        let folder = self.input(from, "/pipe/model");
        let input = match self.snapshot(from, &folder.host) {
            None => folder,
            Some(Ok(snapshot)) => in_repository(snapshot),
            Some(Err(message)) => {
                self.problem("model.from", format!("no such folder: {from}; {message}"));
                return folder;
            }
        };
        let has = |name: &str| input.host.join(name).is_file();
        if !has("config.json") {
            let message = format!("{from} has no config.json; it must be a folder in Hugging Face layout");
            self.problem("model.from", message);
        } else if !has("model.safetensors") && !has("model.safetensors.index.json") {
            self.problem("model.from", format!("{from} has no weights: neither model.safetensors nor its index"));
        }
        input
    }

    /// What the hub cache has for a model that is not a folder.
    fn snapshot(&self, from: &str, folder: &Path) -> Option<Result<Snapshot, String>> {
        if folder.is_dir() {
            return None;
        }
        Some(if hub::is_id(from) {
            Hub::from_environment(self.known).find(from)
        } else if variables::names(from).next().is_some() {
            // The value of a variable is not written to disk, as the path of a snapshot is.
            Err("a hub id has no variables in it".to_owned())
        } else {
            Err("give a folder in Hugging Face layout, or a hub id: owner/name".to_owned())
        })
    }

    fn tokenizer(&mut self, pipeline: &Pipeline, model: Option<&Input>, first: Option<&Input>) -> Input {
        let name = Path::new("tokenizer.json");
        let mounted = PathBuf::from("/pipe/data/tokenizer/tokenizer.json");
        let input = match (&pipeline.data.tokenizer, model, first) {
            (Some(text), _, _) => self.input(text, mounted),
            (None, Some(model), _) => {
                let (host, written) = (model.host.join(name), model.written.join(name));
                Input { host, written, mounted, mount: None, prepared: None }
            }
            (None, None, first) => {
                let beside = |path: &Path| path.with_file_name(name);
                let first = first.cloned().unwrap_or_else(|| self.input("", ""));
                let (host, written) = (beside(&first.host), beside(&first.written));
                Input { host, written, mounted, mount: None, prepared: None }
            }
        };
        if !input.host.is_file() {
            self.problem(
                "data.tokenizer",
                format!("no such file: {}; give the path of a tokenizer.json", input.written.display()),
            );
        }
        input
    }
}

/// The files of a snapshot are links to others of its repository, so the repository is mounted.
fn in_repository(snapshot: Snapshot) -> Input {
    let target = PathBuf::from("/pipe/model-repo");
    let host = snapshot.repository.join(&snapshot.path);
    Input {
        written: host.clone(),
        host,
        mounted: target.join(snapshot.path),
        mount: Some(Mount { host: snapshot.repository, target }),
        prepared: None,
    }
}

fn has_ending(path: &Path, task: Task) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| task.takes(name))
}

/// An I/O error without its number.
fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "no permission".to_owned(),
        _ => error.to_string(),
    }
}
