//! Which model: an architecture with its config, from a folder or from the spec.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use pipe_model::adapter::{self, Lora};
use pipe_model::{
    ConfigKeys, Labels, ModelConfig, Parameter, TaskData, architecture, named_task, read_config, with_task,
};
use pipe_spec::model_folder::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG};
use pipe_spec::pipeline::{self, Arch, ModelTask, Quantize, Task};
use serde_json::{Map, Value};

use super::interface::Model;
use super::pass::{Setup, Start};
use super::preference::PreferenceModel;
use super::quantized::QuantizedLayers;
use super::{registry, weights};
use crate::error::TrainerError;
use crate::storage::{self, LARGEST_CONFIG, TensorFiles};

/// The key of config.json, and its value in a model that another program has trained.
const THRESHOLD: &str = "threshold";
const DEFAULT_THRESHOLD: f64 = 0.5;

/// For as long as the program runs: layers refer to it, and there is one.
fn kept(lora: Lora) -> &'static Lora {
    Box::leak(Box::new(lora))
}

/// Whether a file has every matrix of an adapter, and nothing that the model has no place for.
fn check_adapter(parameters: &[Parameter], stored: &TensorFiles) -> Result<(), String> {
    let trained = || parameters.iter().filter(|parameter| parameter.trained);
    let is_stored_name = |name: &&str| adapter::is_stored_name(name);
    let names: HashSet<&str> =
        trained().flat_map(|parameter| &parameter.aliases).map(String::as_str).filter(is_stored_name).collect();
    if let Some(name) = stored.names().find(|name| !names.contains(name)) {
        return Err(format!("{ADAPTER_WEIGHTS} has {name}, for which the model has no layer"));
    }
    let absent = |parameter: &&Parameter| {
        adapter::is_matrix(&parameter.name) && !parameter.aliases.iter().any(|name| stored.contains(name))
    };
    match trained().find(absent) {
        Some(parameter) => {
            Err(format!("{ADAPTER_WEIGHTS} has no {}", parameter.aliases.first().unwrap_or(&parameter.name)))
        }
        None => Ok(()),
    }
}

fn read_json(path: &Path) -> Result<Map<String, Value>, TrainerError> {
    let fail = |message: String| TrainerError::Model { path: path.to_owned(), message };
    let text = storage::read(path, LARGEST_CONFIG).map_err(|error| fail(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| fail(error.to_string()))
}

pub struct Definition {
    arch: Arch,
    config: Map<String, Value>,
    /// Where trained weights are.
    folder: Option<PathBuf>,
    /// Whether the head of the trained weights is for other classes.
    has_new_head: bool,
    adapter: Option<AdapterDefinition>,
    quantize: Quantize,
    /// Whether it learns which of two answers is the better one.
    prefers: bool,
}

/// The adapter of a model.
struct AdapterDefinition {
    lora: &'static Lora,
    /// The folder of one that was trained.
    folder: Option<PathBuf>,
}

impl Definition {
    pub fn from_spec(model: &pipeline::Model) -> Result<Self, TrainerError> {
        let definition = match (&model.from, &model.config) {
            (Some(from), _) => Self::from_folder(Path::new(from))?,
            (None, config) => Self {
                arch: model.arch,
                config: config.clone().unwrap_or_default(),
                folder: None,
                has_new_head: false,
                adapter: None,
                quantize: Quantize::None,
                prefers: false,
            },
        };
        definition.check_task(model)?;
        if definition.arch != model.arch {
            let path = definition.folder.unwrap_or_default();
            let message = format!("it is {}, the pipeline says {}", definition.arch.name(), model.arch.name());
            return Err(TrainerError::Model { path, message });
        }
        let (quantize, prefers) = (model.quantize, model.task() == Task::Preference);
        Ok(Self { config: with_task(definition.config, model.task()), quantize, prefers, ..definition })
    }

    /// How the weights beside an adapter are kept.
    pub fn quantize(&self) -> Quantize {
        self.quantize
    }

    /// With quantized weights beside an adapter.
    pub fn with_quantized(self, quantize: Quantize) -> Self {
        Self { quantize, ..self }
    }

    /// A trained head of one task would be read as that of the other.
    fn check_task(&self, model: &pipeline::Model) -> Result<(), TrainerError> {
        let found = named_task(&self.config).filter(|_| self.folder.is_some());
        let wanted = match model.task() {
            Task::TokenLabels => ModelTask::TokenClassification,
            _ => ModelTask::TextClassification,
        };
        match found.filter(|found| *found != wanted && model.arch.labels_tokens()) {
            None => Ok(()),
            Some(found) => {
                let path = self.folder.clone().unwrap_or_default();
                let (found, wanted) = (found.name(), wanted.name());
                let message =
                    format!("it is trained for {found}; set model.task: {found}, or start {wanted} from a base model");
                Err(TrainerError::Model { path, message })
            }
        }
    }

    /// A folder in Hugging Face layout; `model_type` says what it holds.
    pub fn from_folder(folder: &Path) -> Result<Self, TrainerError> {
        let fail = |path: &Path, message: String| TrainerError::Model { path: path.to_owned(), message };
        if !folder.is_dir() {
            return Err(fail(folder, "not a folder".to_owned()));
        }
        let config = read_json(&folder.join(CONFIG))?;
        let model_type = ConfigKeys(&config).text("model_type")?.unwrap_or_default();
        match Arch::of_model_type(model_type) {
            Some(arch) => {
                let folder = Some(folder.to_owned());
                let (quantize, prefers) = (Quantize::None, false);
                Ok(Self { arch, config, folder, has_new_head: false, adapter: None, quantize, prefers })
            }
            None => Err(TrainerError::NotAvailable { what: format!("model_type {model_type:?}") }),
        }
    }

    /// With an adapter that is trained in place of the weights; that of its folder, where it continues from one.
    pub fn with_adapter(mut self, adapter: Option<&pipeline::Adapter>) -> Result<Self, TrainerError> {
        let Some(adapter) = adapter else { return Ok(self) };
        if let Some(folder) = &adapter.from {
            return self.with_adapter_folder(Some(Path::new(folder)));
        }
        let (config, base) = (self.config()?, self.trained()?);
        let lora = Lora::new(adapter, architecture(self.arch))?.with_heads(config.as_ref());
        let lora = lora.for_model(config.as_ref(), |parameter| {
            base.as_ref().is_some_and(|base| weights::stored_name(parameter, base).is_some())
        })?;
        self.adapter = Some(AdapterDefinition { lora: kept(lora), folder: None });
        Ok(self)
    }

    /// With the adapter of a folder, as PEFT writes it. One that `pipe` has exported has the config of its model beside it, with the labels that
    /// its head predicts; elsewhere the head tells how many there are.
    pub fn with_adapter_folder(mut self, folder: Option<&Path>) -> Result<Self, TrainerError> {
        let Some(folder) = folder else { return Ok(self) };
        let file = folder.join(ADAPTER_CONFIG);
        let fail = |message: String| TrainerError::Model { path: file.clone(), message };
        let lora = Lora::read(&read_json(&file)?, architecture(self.arch)).map_err(|error| fail(error.to_string()))?;
        let stored = TensorFiles::open_file(&folder.join(ADAPTER_WEIGHTS))?;
        let beside = folder.join(CONFIG);
        if beside.is_file() {
            let config = read_json(&beside)?;
            if config.get("model_type") == self.config.get("model_type") {
                self.config = config;
            }
        } else if let Some(head) = self.config()?.head() {
            let labels = Labels::read(&self.config)?.map(|labels| labels.count());
            let rows = stored.shape(&adapter::stored_name(head)).and_then(|shape| shape.first().copied());
            if let Some(rows) = rows.filter(|rows| Some(*rows) != labels) {
                self.config.retain(|key, _| !matches!(key.as_str(), "id2label" | "label2id"));
                self.config.insert("num_labels".to_owned(), rows.into());
            }
        }
        let base = self.trained()?;
        let is_stored = |parameter: &Parameter| {
            stored.contains(&adapter::stored_name(&parameter.name))
                || base.as_ref().is_some_and(|base| weights::stored_name(parameter, base).is_some())
        };
        let config = self.config()?;
        let lora = lora.for_model(config.as_ref(), is_stored).map_err(|error| fail(error.to_string()))?;
        check_adapter(&lora.parameters(&config.parameters()), &stored).map_err(fail)?;
        self.adapter = Some(AdapterDefinition { lora: kept(lora), folder: Some(folder.to_owned()) });
        Ok(self)
    }

    /// The same for pairs of answers.
    pub fn of_pairs(self) -> Self {
        Self { prefers: true, ..self }
    }

    /// The adapter that is trained, if there is one.
    pub fn adapter(&self) -> Option<&'static Lora> {
        self.adapter.as_ref().map(|adapter| adapter.lora)
    }

    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// The folder's weights, if there is one; without a head that is for other classes.
    pub fn trained(&self) -> Result<Option<TensorFiles>, TrainerError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let mut files = TensorFiles::open_folder(folder)?;
        if let Some(folder) = self.adapter.as_ref().and_then(|adapter| adapter.folder.as_deref()) {
            files = files.joined(TensorFiles::open_file(&folder.join(ADAPTER_WEIGHTS))?);
        }
        Ok(Some(match self.config()?.head() {
            Some(head) if self.has_new_head => {
                let names = [head.to_owned(), head.replace(".weight", ".bias")];
                let all: Vec<String> =
                    names.iter().flat_map(|name| [name.clone(), adapter::stored_name(name)]).collect();
                files.without(&all.iter().map(String::as_str).collect::<Vec<_>>())
            }
            _ => files,
        }))
    }

    /// The weights of a checkpoint, with those that it leaves to the model that the training started from.
    pub fn with_frozen(&self, checkpoint: TensorFiles) -> Result<TensorFiles, TrainerError> {
        match self.trained()?.filter(|_| self.adapter.is_some()) {
            Some(base) => Ok(base.joined(checkpoint)),
            None => Ok(checkpoint),
        }
    }

    /// With the labels of its head, where the data decided them.
    pub fn with_labels(mut self, labels: Option<&Labels>) -> Self {
        if let Some(labels) = labels {
            self.has_new_head = true;
            labels.export(&mut self.config);
        }
        self
    }

    /// The labels of a classifier. Left to the data where the files have no trained `head`, or the config says nothing.
    fn labels(&self, head: &str) -> Result<Option<Labels>, TrainerError> {
        match self.trained()? {
            None => Ok(Labels::read(&self.config)?),
            Some(files) if files.contains(head) || files.contains(&adapter::stored_name(head)) => {
                Ok(Some(Labels::read(&self.config)?.unwrap_or_default()))
            }
            Some(_) => Ok(None),
        }
    }

    /// The names of its classes, in the order of their numbers. Empty where it does not classify.
    pub fn class_names(&self) -> Vec<String> {
        match Labels::read(&self.config) {
            Ok(Some(Labels::Classes(names) | Labels::Several(names))) => names,
            _ => Vec::new(),
        }
    }

    /// How many labels a text can have at once; 0 where it has one.
    pub fn labels_per_text(&self) -> usize {
        match Labels::read(&self.config) {
            Ok(Some(Labels::Several(names))) => names.len(),
            _ => 0,
        }
    }

    /// The probability from which one of several labels applies.
    pub fn threshold(&self) -> f64 {
        self.config.get(THRESHOLD).and_then(Value::as_f64).unwrap_or(DEFAULT_THRESHOLD)
    }

    /// With the threshold of the pipeline, where a text can have several labels.
    pub fn with_threshold(mut self, threshold: f64) -> Self {
        if let Ok(Some(Labels::Several(_))) = Labels::read(&self.config) {
            self.config.insert(THRESHOLD.to_owned(), threshold.into());
        }
        self
    }

    /// With keys of config.json that follow from the data.
    pub fn with_keys(mut self, keys: Map<String, Value>) -> Self {
        self.config.extend(keys);
        self
    }

    pub fn config(&self) -> Result<Box<dyn ModelConfig>, TrainerError> {
        Ok(read_config(self.arch, &self.config)?)
    }

    /// The data that it needs.
    pub fn task_data(&self) -> Result<TaskData, TrainerError> {
        let config = self.config()?;
        let labels = config.head().map(|head| self.labels(head)).transpose()?.flatten();
        let task_data = config.task_data(labels);
        Ok(if self.prefers { task_data.of_pairs() } else { task_data })
    }

    /// Whether the folder's weights are those of its config. Reads names and shapes alone.
    pub fn check_weights(&self) -> Result<(), TrainerError> {
        let Some(files) = self.trained()? else { return Ok(()) };
        weights::check(&self.config()?.parameters(), &files)
    }

    pub fn build(&self, start: &Start<'_>, setup: &Setup) -> Result<Box<dyn Model>, TrainerError> {
        let adapter = self.adapter();
        // Without one they would be trained themselves.
        let kind = if adapter.is_some() { self.quantize } else { Quantize::None };
        let quantized = QuantizedLayers { kind, layers: architecture(self.arch).adapts };
        let setup = Setup { adapter, quantized, ..*setup };
        let build = |start: &Start<'_>| registry::build(self.arch, &self.config, start, &setup);
        let model = build(start)?;
        if !self.prefers {
            return Ok(model);
        }
        // Without an adapter, the weights that the training began with, also where it is resumed.
        let (Start::Random { seed } | Start::Tensors { seed, .. }) = *start;
        let reference = match (setup.adapter, self.trained()?) {
            (Some(_), _) => None,
            (None, Some(files)) => Some(build(&Start::Tensors { files: &files, seed })?),
            (None, None) => Some(build(&Start::Random { seed })?),
        };
        Ok(Box::new(PreferenceModel::new(model, reference, setup.preference)?))
    }
}
