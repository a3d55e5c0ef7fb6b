//! Checks that everything a pipeline names exists before anything is started: data, tokenizer, model, Dockerfile. What lies on the
//! hub is fetched once everything else is known to be good.
//!
//! The data of the pipelines that come with pipe, which is generated and not shipped.

mod remote;
mod tokenizer;

use std::path::{Path, PathBuf};

use pipe_data::{is_picture, list_pictures};
use pipe_model::ConfigError;
use pipe_model::adapter::Lora;
use pipe_spec::bucket::BucketAddress;
use pipe_spec::lock::LockedRepository;
use pipe_spec::model_folder::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG};
use pipe_spec::pipeline::{Adapter, Arch, Image, Paths, Pipeline, Problems, Task};
use pipe_spec::{Variables, variables};
use remote::{Source, in_repository};

use super::data_cache::{self, ColumnSelection, Format};
use super::hub::{DataAddress, Failure, Hub, HubAccess, MissingFile, Snapshot};
use super::{ADAPTER_FOLDER, Input, Inputs, Mount};
use crate::bucket::Bucket;
use crate::engine::EngineSockets;
use crate::error::Error;
use crate::system::digests::Weights;
use crate::system::files::{self, absolute};

pub use remote::config_folder;

/// Why the inputs of a pipeline cannot be had.
pub enum NotFound {
    /// The pipeline names something that is not there, or not what it should be.
    Problems(Problems),
    /// Not the pipeline's fault.
    Error(Error),
}

impl Inputs {
    /// Finds everything, or says all that is missing. Fetches from the hub what `hub` reaches for, after everything else was
    /// found.
    pub fn find(pipeline: &Pipeline, known: &Variables, hub: &Hub) -> Result<Self, NotFound> {
        let mut finder = Finder::new(known, hub);
        let Some(training) = pipeline.training() else {
            finder.container(pipeline);
            finder.check()?;
            return Ok(Self::none());
        };
        let task = training.model.task();
        let train = finder.data("data.train", &training.data.train, task);
        let eval = training.data.eval.as_ref().map_or(Vec::new(), |paths| finder.data("data.eval", paths, task));
        let is_text = |input: &Input| input.host.extension().is_none_or(|ending| ending != "safetensors");
        let reads_text = task.reads_text() && train.iter().chain(&eval).any(is_text);
        let own_tokenizer = reads_text && training.data.tokenizer.is_none();
        let from = training.model.from.as_ref();
        let model = from.and_then(|from| finder.model(from, training.model.arch, own_tokenizer));
        finder.model_config(&training.model, model.as_ref());
        let adapter = training.adapter.as_ref().and_then(|adapter| finder.adapter(adapter, training.model.arch));
        let unfetched = finder.unfetched_tokenizer;
        // Nothing more is said of a model that does not exist.
        let is_lost = own_tokenizer && from.is_some() && model.is_none();
        let mut tokenizer = Vec::new();
        let tokenizer_training = tokenizer::to_train(training, train.first()).filter(|_| reads_text);
        if reads_text && unfetched.is_none() && !is_lost && tokenizer_training.is_none() {
            tokenizer = finder.tokenizer(training, model.as_ref(), train.first());
        }
        finder.save_to(training.save.to.as_deref());
        let columns = ColumnSelection::new(task, &training.data);
        finder.check_files("data.train", &train, &columns);
        finder.check_files("data.eval", &eval, &columns);
        finder.container(pipeline);
        finder.check()?;
        let missing = std::mem::take(&mut finder.missing);
        let all_local = missing.is_empty() || hub.access() == HubAccess::Fetch;
        if hub.access() == HubAccess::Fetch {
            if let Err(error) = hub.fetch(&missing) {
                finder.failed(if error.is_data { "data" } else { "model.from" }, error.failure);
                finder.check()?;
            }
            hub.announce(&finder.repositories);
            // Those that were still to be fetched.
            finder.check_files("data.train", &train, &columns);
            finder.check_files("data.eval", &eval, &columns);
        }
        match (unfetched, &model) {
            (Some(name), Some(model)) if !all_local => tokenizer = vec![inside(model, name)],
            (Some(_), model) => tokenizer = finder.tokenizer(training, model.as_ref(), train.first()),
            (None, _) => {}
        }
        if !pipeline.container.engine_socket {
            let sockets = EngineSockets::find();
            finder.check_mounts(&sockets, "data.train", &train);
            finder.check_mounts(&sockets, "data.eval", &eval);
            finder.check_mounts(&sockets, "data.tokenizer", &tokenizer);
            finder.check_mounts(&sockets, "model.from", model.as_slice());
            finder.check_mounts(&sockets, "adapter.from", adapter.as_slice());
        }
        finder.check()?;
        let hub = finder.repositories;
        Ok(Self { train, eval, tokenizer, tokenizer_training, model, adapter, hub, all_local })
    }

    /// Finds the model that an adapter was trained for, and fetches it where it is on the hub.
    pub fn find_model(from: &str, arch: Arch, known: &Variables, hub: &Hub) -> Result<Input, NotFound> {
        const KEY: &str = "model.from";
        let mut finder = Finder::new(known, hub);
        let model = finder.model(from, arch, false);
        finder.check()?;
        let missing = std::mem::take(&mut finder.missing);
        if let Err(error) = hub.fetch(&missing) {
            finder.failed(KEY, error.failure);
        }
        finder.check_mounts(&EngineSockets::find(), KEY, model.as_slice());
        finder.check()?;
        Ok(model.expect("a model that is not found is a problem"))
    }

    /// Finds rows to predict, and fetches those of the hub.
    pub fn find_rows(
        paths: &Paths,
        task: Task,
        columns: &ColumnSelection,
        known: &Variables,
        hub: &Hub,
    ) -> Result<Self, NotFound> {
        const KEY: &str = "data.rows";
        let mut finder = Finder::new(known, hub);
        let rows = finder.data(KEY, paths, task);
        finder.check()?;
        let missing = std::mem::take(&mut finder.missing);
        if let Err(error) = hub.fetch(&missing) {
            finder.failed(KEY, error.failure);
            finder.check()?;
        }
        hub.announce(&finder.repositories);
        finder.check_files(KEY, &rows, columns);
        finder.check_mounts(&EngineSockets::find(), KEY, &rows);
        finder.check()?;
        Ok(Self { train: rows, hub: finder.repositories, ..Self::none() })
    }
}

struct Finder<'a> {
    known: &'a Variables,
    hub: &'a Hub,
    problems: Problems,
    /// The first that is not the pipeline's fault.
    error: Option<Error>,
    /// Files that must be downloaded.
    missing: Vec<MissingFile>,
    repositories: Vec<LockedRepository>,
    /// The model's own tokenizer, where it is still to be fetched.
    unfetched_tokenizer: Option<&'static str>,
}

impl<'a> Finder<'a> {
    fn new(known: &'a Variables, hub: &'a Hub) -> Self {
        let (problems, missing, repositories) = (Problems::default(), Vec::new(), Vec::new());
        Self { known, hub, problems, error: None, missing, repositories, unfetched_tokenizer: None }
    }

    fn problem(&mut self, path: &str, message: String) {
        self.problems.push(None, path, message);
    }

    fn failed(&mut self, path: &str, failure: Failure) {
        match failure {
            Failure::Named(message) => self.problem(path, message),
            Failure::Error(error) => drop(self.error.get_or_insert(error)),
        }
    }

    /// Fails with the problems so far. Problems come before errors: the user can fix them.
    fn check(&mut self) -> Result<(), NotFound> {
        if !self.problems.is_empty() {
            return Err(NotFound::Problems(std::mem::take(&mut self.problems)));
        }
        self.error.take().map_or(Ok(()), |error| Err(NotFound::Error(error)))
    }

    /// The files that are used of a repository of the hub.
    fn take(&mut self, snapshot: &Snapshot) {
        self.missing.extend(snapshot.missing.iter().cloned());
        if !self.repositories.contains(&snapshot.locked) {
            self.repositories.push(snapshot.locked.clone());
        }
    }

    fn input(&self, text: &str, mounted: impl Into<PathBuf>) -> Input {
        let host = host_path(self.known, text);
        let written = match variables::names(text).next() {
            None => host.clone(),
            Some(_) if self.known.expand(text).is_ok_and(|value| Path::new(&value).is_absolute()) => text.into(),
            Some(_) => absolute(Path::new("")).join(text),
        };
        Input { host, written, mounted: mounted.into(), mount: None, prepared: None }
    }

    /// The files of `data.train` or `data.eval`, those of folders in the order of their names.
    fn data(&mut self, key: &str, paths: &Paths, task: Task) -> Vec<Input> {
        let part = key.trim_start_matches("data.");
        let mut inputs = Vec::new();
        for (index, text) in paths.0.iter().enumerate() {
            if DataAddress::is_meant(text) {
                inputs.extend(self.hub_data(key, text, task));
                continue;
            }
            let target = PathBuf::from(format!("/pipe/data/{part}/{index}"));
            let name = Path::new(text).file_name().unwrap_or_default();
            let mut input = self.input(text, target.join(name));
            // A pipe would be waited for, and a device may have no end.
            if let Ok(Some(what)) = files::special(&input.host) {
                self.problem(key, format!("{text} is {what}; allowed: a file or a folder"));
                continue;
            }
            match std::fs::File::open(&input.host).and_then(|file| file.metadata()) {
                Err(error) => {
                    let is_missing = key == "data.train" && error.kind() == std::io::ErrorKind::NotFound;
                    let command = command(text).filter(|_| is_missing);
                    let hint =
                        command.map_or(String::new(), |command| format!("; `{command}` makes some to try it with"));
                    let folder = folder_of_missing(&error, text);
                    self.problem(key, format!("cannot read {text}: {}{folder}{hint}", plain(&error)));
                }
                Ok(meta) if meta.is_dir() => {
                    inputs.extend(self.files_of(&input, key, text, task));
                    continue;
                }
                // A picture by itself, to predict.
                Ok(_) if task == Task::PictureClasses && is_picture(text) => {
                    inputs.push(input);
                    continue;
                }
                Ok(_) if !has_ending(&input.host, task) => {
                    let endings = task.endings().join(", .");
                    self.problem(key, format!("{text}: allowed for {}: .{endings}", task.name()));
                }
                Ok(meta) if meta.len() == 0 => self.problem(key, format!("{text} is empty")),
                Ok(_) => {}
            }
            // Pictures lie beside the file that names them.
            if task.reads_pictures()
                && let Some(parent) = input.host.parent()
            {
                input.mount = Some(Mount { host: parent.to_owned(), target });
            }
            inputs.push(input);
        }
        inputs
    }

    fn files_of(&mut self, folder: &Input, key: &str, text: &str, task: Task) -> Vec<Input> {
        let entries = std::fs::read_dir(&folder.host).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = entries.unwrap_or_else(|error| {
            self.problem(key, format!("cannot read {text}: {}", plain(&error)));
            Vec::new()
        });
        let mut names: Vec<PathBuf> = entries.iter().map(|entry| PathBuf::from(entry.file_name())).collect();
        names.retain(|name| belongs(name, task) && folder.host.join(name).is_file());
        names.sort();
        if names.is_empty()
            && task == Task::PictureClasses
            && list_pictures(&folder.host).is_ok_and(|all| !all.is_empty())
        {
            return vec![folder.clone()];
        }
        for name in names.iter().filter(|name| name.to_str().is_none()) {
            let name = name.display();
            self.problem(key, format!("the folder {text} has a file whose name is not UTF-8: {name}; rename it"));
        }
        if names.is_empty() {
            let endings = task.endings().join(", .");
            let pictures = if task == Task::PictureClasses { "pictures in a folder for each class, " } else { "" };
            self.problem(key, format!("the folder {text} has no files for {}: {pictures}.{endings}", task.name()));
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

    /// Checks the beginning of each file against its name. Missing files were reported before, or will be fetched.
    fn check_files(&mut self, key: &str, inputs: &[Input], columns: &ColumnSelection) {
        let is_filled = |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() > 0);
        let has_rows = |input: &&Input| is_filled(&input.host) && !input.host.to_str().is_some_and(is_picture);
        for input in inputs.iter().filter(has_rows) {
            if let Err(why) = data_cache::check(&input.host, columns) {
                self.problem(key, format!("{}: {why}", input.written.display()));
            }
            let unpacked = input.host.with_extension("");
            let is_packed = matches!(Format::from_path(&input.host), Format::Compressed(_));
            if is_packed && inputs.iter().any(|other| other.host == unpacked) {
                let (packed, plain) = (input.written.display(), unpacked.file_name().unwrap_or_default().display());
                self.problem(key, format!("{packed} and {plain} beside it are the same data twice; name one of them"));
            }
        }
    }

    fn model(&mut self, from: &str, arch: Arch, tokenizer: bool) -> Option<Input> {
        let folder = self.input(from, "/pipe/model");
        let address = match Source::find(from, &folder.host) {
            Source::Folder => {
                self.model_in(&folder, from);
                return Some(folder);
            }
            Source::Nothing(message) => {
                self.problem("model.from", message);
                return None;
            }
            Source::Hub(address) => address,
        };
        match self.hub.model(&address, arch, tokenizer) {
            Ok(found) => {
                self.take(&found.snapshot);
                self.unfetched_tokenizer = found.unfetched_tokenizer;
                Some(in_repository(&found.snapshot, &remote::names_in(&found.snapshot.folder())))
            }
            Err(failure) => {
                self.failed("model.from", failure);
                None
            }
        }
    }

    fn model_in(&mut self, folder: &Input, from: &str) {
        let has = |name: &str| folder.host.join(name).is_file();
        if !has(CONFIG) {
            let message = format!("{from} has no {CONFIG}; it must be a folder in Hugging Face layout");
            return self.problem("model.from", message);
        }
        let Some(weights) = Weights::find(has) else {
            if has(ADAPTER_CONFIG) {
                let message = format!(
                    "{from} holds an adapter alone; give its model as model.from, and this folder as adapter.from"
                );
                return self.problem("model.from", message);
            }
            let expected = Weights::expected();
            return self.problem("model.from", format!("{from} has no weights in a known format: {expected}"));
        };
        match weights.files(&folder.host).as_deref() {
            None => self.problem("model.from", format!("{from}: {} cannot be read", weights.name())),
            Some(names) => {
                if let Some(absent) = names.iter().find(|name| !has(name)) {
                    let message = format!("{from} has no {absent}, which {} names", weights.name());
                    self.problem("model.from", message);
                }
            }
        }
    }

    /// Checks the adapter; its folder, where it continues from one.
    fn adapter(&mut self, adapter: &Adapter, arch: Arch) -> Option<Input> {
        if let Err(ConfigError { key, message }) = Lora::new(adapter, pipe_model::architecture(arch)) {
            self.problem(&key, message);
        }
        let from = adapter.from.as_deref()?;
        let folder = self.input(from, ADAPTER_FOLDER);
        for name in [ADAPTER_CONFIG, ADAPTER_WEIGHTS] {
            if !folder.host.join(name).is_file() {
                self.problem(
                    "adapter.from",
                    format!("{from} has no {name}; it must be a folder that pipe or PEFT has saved"),
                );
                return None;
            }
        }
        Some(folder)
    }

    /// Checks that the bucket of `save.to` is there, before anything is fetched or started.
    fn save_to(&mut self, to: Option<&str>) {
        let Some(to) = to.and_then(BucketAddress::parse).filter(|_| self.hub.access() != HubAccess::CacheOnly) else {
            return;
        };
        let bucket = Bucket::open(&to, self.known);
        if let Err(failure) = bucket.and_then(|bucket| bucket.list(&to.join(""), false, Some(1))) {
            self.failed("save.to", failure.into());
        }
    }

    /// Checks the files that the image is built from.
    fn container(&mut self, pipeline: &Pipeline) {
        if let Some(Image::Dockerfile(path)) = &pipeline.container.image
            && !Path::new(path).is_file()
        {
            self.problem("container.image", format!("no such file: {path}"));
        }
        for (index, mount) in pipeline.container.mounts.iter().enumerate() {
            let input = self.input(&mount.host, &mount.container);
            if !input.host.exists() {
                let key = format!("container.mounts.{index}.host");
                self.problem(&key, format!("no such file or folder: {}", mount.host));
            }
        }
        self.problems.0.extend(socket_problems(pipeline, self.known, "").0);
    }
}

/// The mounts of a container that would hand its job the socket of an engine, whatever the work and the engine are. `place` is
/// where the pipeline stands in its file.
pub fn socket_problems(pipeline: &Pipeline, known: &Variables, place: &str) -> Problems {
    let mut problems = Problems::default();
    if pipeline.container.engine_socket || pipeline.container.mounts.is_empty() {
        return problems;
    }
    let sockets = EngineSockets::find();
    for (index, mount) in pipeline.container.mounts.iter().enumerate() {
        if let Some(message) = socket_problem(&sockets, &host_path(known, &mount.host)) {
            problems.push(None, &format!("{place}container.mounts.{index}.host"), message);
        }
    }
    problems
}

fn socket_problem(sockets: &EngineSockets, host: &Path) -> Option<String> {
    let socket = sockets.handed_by(host)?;
    let what = if socket == host { "is" } else { "leads to" };
    Some(format!(
        "{} {what} the socket of a container engine ({}): it gives the job control over the daemon, which means root on \
         this machine; where that is meant, set container.engine_socket: true",
        host.display(),
        socket.display()
    ))
}

/// Where a path of a pipeline lies on this machine. Undefined variables were refused when the pipeline was read.
fn host_path(known: &Variables, text: &str) -> PathBuf {
    absolute(Path::new(&known.expand(text).unwrap_or_else(|_| text.to_owned())))
}

impl Finder<'_> {
    /// Refuses mounts of inputs that would hand the job the socket of an engine.
    fn check_mounts(&mut self, sockets: &EngineSockets, key: &str, inputs: &[Input]) {
        let mounts: Vec<Mount> = inputs.iter().flat_map(Input::mounts).collect();
        for message in mounts.iter().filter_map(|mount| socket_problem(sockets, &mount.host)) {
            self.problem(key, message);
        }
    }
}

/// A file of a folder, which is mounted by itself.
fn inside(folder: &Input, name: &str) -> Input {
    Input {
        host: folder.host.join(name),
        written: folder.written.join(name),
        mounted: folder.mounted.join(name),
        mount: None,
        prepared: None,
    }
}

fn has_ending(path: &Path, task: Task) -> bool {
    path.file_name().is_some_and(|name| task.takes(&name.to_string_lossy()))
}

/// Where a relative path that leads to nothing begins: in the working directory, wherever the pipeline lies.
fn folder_of_missing(error: &std::io::Error, text: &str) -> String {
    match error.kind() == std::io::ErrorKind::NotFound && !text.starts_with(['/', '$']) {
        true => format!(" in {}", std::env::current_dir().unwrap_or_default().display()),
        false => String::new(),
    }
}

/// Whether a file of a folder is part of the data.
fn belongs(path: &Path, task: Task) -> bool {
    path.file_name().is_some_and(|name| task.takes_in_folder(&name.to_string_lossy()))
}

/// An I/O error without its number.
fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "no permission".to_owned(),
        _ => error.to_string(),
    }
}

/// The folders that these pipelines name, and the commands that fill them.
const COMMANDS: [(&str, &str); 9] = [
    ("data/car-clip", "pipe-trainer data pictures --rows 20000 --seed 1 --size 224 --out data/car-clip"),
    ("data/car-kinds", "pipe-trainer data pictures --rows 2000 --seed 1 --size 64 --out data/car-kinds"),
    ("data/demo", "pipe-trainer data recipes --rows 2000 --seed 7 --out data/demo"),
    ("data/recipes", "pipe-trainer data recipes --rows 20000 --seed 1 --out data/recipes"),
    ("data/series", "pipe-trainer data series --rows 200000 --features 32 --seed 1 --out data/series"),
    ("data/table", "pipe-trainer data table --rows 2000 --seed 1 --out data/table"),
    ("data/stories", "pipe-trainer data stories --rows 20000 --seed 1 --out data/stories"),
    ("data/talks", "pipe-trainer data talks --rows 2000 --seed 1 --out data/talks"),
    ("data/text-hpo", "pipe-trainer data texts --rows 20000 --seed 1 --out data/text-hpo"),
];

/// The command that makes the file `path` of such a pipeline.
pub fn command(path: &str) -> Option<&'static str> {
    let (folder, name) = path.rsplit_once('/')?;
    let is_generated = ["train", "eval"].iter().any(|part| name.split('.').next() == Some(part));
    COMMANDS.iter().find(|(known, _)| *known == folder && is_generated).map(|(_, command)| *command)
}

#[cfg(test)]
mod example_data_tests {
    use pipe_spec::Variables;
    use pipe_spec::study::Study;

    use super::*;
    use crate::engine::registry;

    #[test]
    fn every_pipeline_that_comes_with_pipe_has_a_command() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "yaml")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let variables = Variables::new(None, std::iter::empty());
            // The data of a step comes from other steps, that of a study is its pipeline's.
            if registry::parse_stages(&text, &[], &variables).unwrap().is_some() || Study::is_one(&text) {
                continue;
            }
            let pipeline = registry::parse_pipeline(&text, &[], &variables).unwrap();
            let Some(data) = pipeline.training().map(|training| &training.data) else { continue };
            for path in data.train.0.iter().chain(data.eval.iter().flat_map(|paths| &paths.0)) {
                assert!(command(path).is_some(), "{}: {path}", file.display());
            }
        }
    }

    #[test]
    fn other_data_has_none() {
        for path in
            ["train.jsonl", "data/train.jsonl", "data/demo/mine.jsonl", "/data/demo/train.jsonl", "mine/data/demo"]
        {
            assert_eq!(command(path), None, "{path}");
        }
    }
}
