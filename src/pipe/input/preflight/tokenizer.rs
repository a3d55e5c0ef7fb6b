//! Where the tokenizer is: the file that names it, and those that belong to it.
//!
//! Whether the sizes in the model's config are ones that a model can be built with.

use std::iter;
use std::path::Path;

use pipe_model::ConfigError;
use pipe_spec::model_folder::{self, CHAT_TEMPLATE, CONFIG, TOKENIZER_JSON, TOKENIZER_SETTINGS};
use pipe_spec::pipeline::{Arch, Model, Task, Training};
use serde_json::{Map, Value};

use super::{Finder, Input, Inputs};
use crate::input::{TOKENIZER_FOLDER, TokenizerTraining, read_config};

impl Inputs {
    /// The files that decide which tokens a text has. What lies beside a tokenizer.json is only handed on to the result.
    pub fn tokenizer_definition(&self) -> &[Input] {
        let is_vocabulary = |input: &Input| {
            let (name, ending) = (input.host.file_name(), input.host.extension());
            name.is_some_and(|name| name == "vocab.json") || ending.is_some_and(|ending| ending != "json")
        };
        match self.tokenizer.first() {
            Some(first) if !is_vocabulary(first) => &self.tokenizer[..1],
            _ => &self.tokenizer,
        }
    }
}

impl Finder<'_> {
    /// Finds the tokenizer of `data.tokenizer`, else of the model's folder, else beside the data. The file that names it is the first.
    pub fn tokenizer(&mut self, training: &Training, model: Option<&Input>, first: Option<&Input>) -> Vec<Input> {
        let arch = training.model.arch;
        let found = match (&training.data.tokenizer, model) {
            (Some(text), _) => {
                let name = Path::new(text).file_name().unwrap_or_default();
                Some(self.input(text, Path::new(TOKENIZER_FOLDER).join(name))).filter(|input| input.host.is_file())
            }
            (None, Some(model)) => in_model(model, arch).or_else(|| beside_data(first?, arch)),
            (None, None) => first.and_then(|first| beside_data(first, arch)),
        };
        if let Some(found) = found {
            return self.with_companions(found, arch);
        }
        let looked = match (&training.data.tokenizer, model, first) {
            (Some(text), _, _) => self.input(text, "").written,
            (None, Some(model), _) => model.written.join(TOKENIZER_JSON),
            (None, None, first) => {
                first.map_or_else(Default::default, |first| first.written.with_file_name(TOKENIZER_JSON))
            }
        };
        let sets: Vec<String> = model_folder::tokenizers(arch).iter().map(|set| set.join(" with ")).collect();
        let message = format!("no such file: {}; give the path of a {}", looked.display(), sets.join(" or a "));
        self.problem("data.tokenizer", message);
        Vec::new()
    }

    /// A tokenizer's first file with the others of its set, and with its settings as far as they lie beside it.
    fn with_companions(&mut self, first: Input, arch: Arch) -> Vec<Input> {
        let is_named = |set: &&&[&str]| first.host.ends_with(set[0]);
        let set = model_folder::tokenizers(arch).iter().find(is_named).map_or(&[][..], |set| &set[1..]);
        let beside = |name: &&str| Input {
            host: first.host.with_file_name(name),
            written: first.written.with_file_name(name),
            mounted: first.mounted.with_file_name(name),
            mount: first.mount.clone(),
            prepared: None,
        };
        let others: Vec<Input> = set.iter().chain(&TOKENIZER_SETTINGS).chain(&[CHAT_TEMPLATE]).map(beside).collect();
        for missing in others.iter().take(set.len()).filter(|input| !input.host.is_file()) {
            let message =
                format!("{} needs {}, which does not exist", first.written.display(), missing.written.display());
            self.problem("data.tokenizer", message);
        }
        iter::once(first).chain(others.into_iter().filter(|input| input.host.is_file())).collect()
    }
}

/// The tokenizer that a model from scratch gets where none is named and nothing of one lies beside the data.
pub fn to_train(training: &Training, first: Option<&Input>) -> Option<TokenizerTraining> {
    let arch = training.model.arch;
    if training.data.tokenizer.is_some() || training.model.from.is_some() {
        return None;
    }
    let folder = first?.host.parent()?;
    if model_folder::tokenizers(arch).iter().flat_map(|set| set.iter()).any(|name| folder.join(name).exists()) {
        return None;
    }
    let size = |config: &Map<String, Value>| match config.get("text_config") {
        Some(text) => text.get("vocab_size")?.as_u64(),
        None => config.get("vocab_size")?.as_u64(),
    };
    let is_text = |role: &str| arch.task().text_roles().any(|text| text == role);
    let fields = training.data.fields.iter().filter(|(role, _)| is_text(role));
    let fields = match training.model.task() {
        Task::TokenLabels => [("tokens".to_owned(), training.data.field("tokens").to_owned())].into(),
        _ => fields.map(|(role, column)| (role.clone(), column.clone())).collect(),
    };
    Some(TokenizerTraining { arch, vocabulary: training.model.config.as_ref().and_then(size), fields })
}

/// Within the model's own mount, where links to other files of its repository lead somewhere.
fn in_model(model: &Input, arch: Arch) -> Option<Input> {
    let name = model_folder::find_tokenizer(&model.host, arch)?[0];
    Some(Input {
        host: model.host.join(name),
        written: model.written.join(name),
        mounted: model.mounted.join(name),
        mount: model.mounts().pop(),
        prepared: None,
    })
}

fn beside_data(data: &Input, arch: Arch) -> Option<Input> {
    let name = model_folder::find_tokenizer(data.host.parent()?, arch)?[0];
    Some(Input {
        host: data.host.with_file_name(name),
        written: data.written.with_file_name(name),
        mounted: Path::new(TOKENIZER_FOLDER).join(name),
        mount: None,
        prepared: None,
    })
}

impl Finder<'_> {
    /// The keys of the pipeline, or those of config.json in the folder where it is there already.
    pub(super) fn model_config(&mut self, model: &Model, folder: Option<&Input>) {
        if let Some(config) = &model.config {
            if let Some(ConfigError { key, message }) = wrong(model, config) {
                self.problem(&format!("model.config.{key}"), message);
            }
        } else if let Some(folder) = folder
            && let Some(config) = read_config(&folder.host)
            && let Some(ConfigError { key, message }) = wrong(model, &config)
        {
            let file = folder.written.join(CONFIG);
            self.problem("model.from", format!("{}: {key}: {message}", file.display()));
        }
    }
}

/// The first wrong value of the config. Missing keys are left to the trainer: another trainer may need fewer.
fn wrong(model: &Model, config: &Map<String, Value>) -> Option<ConfigError> {
    let config = pipe_model::with_task(config.clone(), model.task());
    pipe_model::read_config(model.arch, &config).err().filter(|error| !error.is_missing())
}
