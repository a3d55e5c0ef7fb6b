//! Adapters: which layers of a model get one, and what is trained then. The weights themselves are frozen, but for a head that is new.

use std::collections::HashSet;

use pipe_spec::pipeline::{Adapter, AdapterTargets, Quantize};
use serde_json::{Map, Value, json};

use crate::adaptable::{Adaptable, is_end, last_part};
use crate::architecture::{Architecture, ModelConfig};
use crate::config_keys::{ConfigError, ConfigKeys, fail};
use crate::estimate::AdapterWork;
use crate::parameter::{Init, Parameter};
use crate::task_data::TaskData;

/// The names of the two matrices beside a layer, the one down to the rank and the one up again.
pub const MATRICES: [&str; 2] = ["lora_A", "lora_B"];

/// The beginning of the names of tensors in a file of PEFT.
const PREFIX: &str = "base_model.model.";

/// The modules of heads.
const HEADS: [&str; 2] = ["classifier", "pooler"];

/// The adapter of a model (LoRA).
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    pub rank: i64,
    pub alpha: f64,
    /// Whether alpha is divided by the root of the rank instead of the rank.
    pub is_rank_stabilised: bool,
    /// The share of the input that is dropped in training.
    pub dropout: f64,
    /// The layers that have one: by their names, or by their paths or the ends of these, as PEFT writes them.
    pub targets: Vec<String>,
    /// The modules that are trained whole beside it, as PEFT names them (`modules_to_save`).
    pub whole: Vec<String>,
    /// PEFT's name for the task of the model (`task_type`).
    pub task: Option<&'static str>,
    /// The layers that could have one.
    pub adapts: Adaptable,
}

impl Lora {
    pub fn new(adapter: &Adapter, architecture: &Architecture) -> Result<Self, ConfigError> {
        Ok(Self {
            rank: adapter.rank.get().into(),
            alpha: adapter.alpha(),
            is_rank_stabilised: adapter.rs,
            dropout: adapter.dropout,
            targets: layers(&adapter.targets, architecture)?,
            whole: Vec::new(),
            task: None,
            adapts: architecture.adapts,
        })
    }

    /// With the heads that PEFT trains whole beside a new adapter of `model`.
    pub fn with_heads(self, model: &dyn ModelConfig) -> Self {
        let heads = match model.task_data(None) {
            TaskData::Classification { .. } | TaskData::TokenLabels { .. } => &["classifier", "score"][..],
            TaskData::PictureClasses { .. } => &["classifier"],
            _ => &[],
        };
        Self { whole: heads.iter().map(|name| (*name).to_owned()).collect(), ..self }
    }

    /// For `model`: without names of layers that it does not have, and with heads that are in no file.
    pub fn for_model(
        mut self,
        model: &dyn ModelConfig,
        is_stored: impl Fn(&Parameter) -> bool,
    ) -> Result<Self, ConfigError> {
        let parameters = model.parameters();
        self.task = task_type(&model.task_data(None));
        let is_kept = |parameter: &Parameter| self.is_whole(&parameter.name) && !parameter.may_be_missing;
        if let Some(parameter) = parameters.iter().find(|parameter| is_kept(parameter)) {
            let message = format!("found {:?}; allowed: heads alone, but {} is none", self.whole, parameter.name);
            return Err(fail("modules_to_save", message));
        }
        if model.head().is_some() {
            let new: Vec<&Parameter> =
                parameters.iter().filter(|parameter| parameter.may_be_missing && !is_stored(parameter)).collect();
            for name in HEADS {
                if new.iter().any(|parameter| is_within(&parameter.name, name) && !self.is_whole(&parameter.name)) {
                    self.whole.push(name.to_owned());
                }
            }
        }
        let layers: Vec<String> =
            parameters.iter().filter_map(|parameter| Some(self.adapts.module(self.layer(parameter)?))).collect();
        let targets = self.targets.iter().filter(|target| layers.iter().any(|layer| is_end(layer, target))).cloned();
        match targets.collect::<Vec<_>>() {
            none if none.is_empty() => {
                let message = format!("found {}; the model has no such layer", self.targets.join(", "));
                Err(fail("adapter.targets", message))
            }
            targets => Ok(Self { targets, ..self }),
        }
    }

    /// The factor of the product of the matrices.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.is_rank_stabilised { rank.sqrt() } else { rank }
    }

    /// The facts that an estimate of memory needs. A layer is counted where one of its name has an adapter.
    pub fn work(&self, architecture: &Architecture, quantize: Quantize) -> AdapterWork {
        let adapts = architecture.adapts;
        let layer = |target: &String| adapts.names.iter().position(|name| *name == last_part(target));
        let layers = self.targets.iter().filter_map(layer).fold(0, |layers, layer| layers | 1 << layer);
        let (rank, drops) = (self.rank as u128, self.dropout > 0.0);
        AdapterWork { rank, drops, layers, quantize, adapts }
    }

    /// The parameters of a model, frozen, with those of the adapter behind each layer that has one.
    pub fn parameters(&self, model: &[Parameter]) -> Vec<Parameter> {
        let mut all = Vec::with_capacity(3 * model.len());
        for parameter in model {
            if self.is_whole(&parameter.name) {
                let aliases = [self.stored_names(&parameter.name), parameter.aliases.clone()].concat();
                all.push(Parameter { aliases, ..parameter.clone() });
                continue;
            }
            // State that is no weight, such as the mean of a batch norm, stays state.
            all.push(Parameter { frozen: parameter.trained, trained: false, ..parameter.clone() });
            if let (Some(layer), [outputs, inputs]) = (self.layer(parameter), parameter.shape.as_slice()) {
                all.extend(self.matrices(layer, *outputs, *inputs));
            }
        }
        all
    }

    /// The layer of a weight, where it has an adapter.
    fn layer<'a>(&self, parameter: &'a Parameter) -> Option<&'a str> {
        let layer = parameter.name.strip_suffix(".weight").filter(|_| parameter.shape.len() == 2)?;
        let module = self.adapts.module(layer);
        let is_one = self.targets.iter().any(|target| is_end(&module, target));
        (is_one && !self.is_whole(layer)).then_some(layer)
    }

    /// The name in files of what is trained in an adapter or beside it, as PEFT has it.
    pub fn stored_name(&self, name: &str) -> String {
        stored_name(&self.adapts.module(name))
    }

    /// The same, and the one that PEFT gave it when modules were still called what files call them.
    fn stored_names(&self, name: &str) -> Vec<String> {
        let mut names = vec![self.stored_name(name), stored_name(name)];
        names.dedup();
        names
    }

    fn is_whole(&self, path: &str) -> bool {
        self.whole.iter().any(|module| is_within(path, module))
    }

    /// Drawn as PEFT does: the matrix down as torch draws a linear layer, the one up is 0.
    fn matrices(&self, layer: &str, outputs: i64, inputs: i64) -> [Parameter; 2] {
        let [down, up] = MATRICES;
        let matrix = |name: &str, shape: &[i64], init: Init| {
            let name = format!("{layer}.{name}.weight");
            let aliases = self.stored_names(&name);
            Parameter { aliases, may_be_missing: true, ..Parameter::new(name, shape, init) }
        };
        [
            matrix(down, &[self.rank, inputs], Init::Uniform { bound: (inputs as f64).powf(-0.5) }),
            matrix(up, &[outputs, self.rank], Init::Constant(0.0)),
        ]
    }

    /// adapter_config.json as PEFT reads it. `base` is the model that it was trained for.
    pub fn export(&self, base: Option<&str>) -> Map<String, Value> {
        let whole = if self.whole.is_empty() { Value::Null } else { json!(self.whole) };
        let config = json!({
            "peft_type": "LORA", "task_type": self.task, "base_model_name_or_path": base, "inference_mode": true, "r": self.rank,
            "lora_alpha": self.alpha, "lora_dropout": self.dropout, "use_rslora": self.is_rank_stabilised,
            "target_modules": self.targets, "bias": "none", "fan_in_fan_out": false, "init_lora_weights": true,
            "modules_to_save": whole, "use_dora": false, "rank_pattern": {}, "alpha_pattern": {},
        });
        config.as_object().cloned().unwrap_or_default()
    }

    /// Reads adapter_config.json, and refuses what would be computed otherwise there.
    pub fn read(config: &Map<String, Value>, architecture: &Architecture) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(config);
        match keys.text("peft_type")? {
            Some("LORA") => {}
            other => return Err(fail("peft_type", format!("found {:?}; allowed: LORA", other.unwrap_or_default()))),
        }
        for (key, plain) in [
            ("use_dora", json!(false)),
            ("bias", json!("none")),
            ("fan_in_fan_out", json!(false)),
            ("lora_bias", json!(false)),
        ] {
            if let Some(found) = config.get(key).filter(|found| !found.is_null() && **found != plain) {
                return Err(fail(key, format!("found {found}; allowed: {plain}")));
            }
        }
        for key in [
            "rank_pattern",
            "alpha_pattern",
            "layers_to_transform",
            "target_parameters",
            "exclude_modules",
            "trainable_token_indices",
        ] {
            let is_empty = |value: &Value| match value {
                Value::Null => true,
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                _ => false,
            };
            if let Some(found) = config.get(key).filter(|found| !is_empty(found)) {
                return Err(fail(key, format!("found {found}; allowed: none")));
            }
        }
        let name = |value: &Value| value.as_str().map(str::to_owned);
        let targets = match config.get("target_modules") {
            Some(Value::String(name)) if name == "all-linear" => AdapterTargets::AllLinear,
            _ => {
                let names = keys.list("target_modules", "a list of names, or all-linear", name)?;
                AdapterTargets::Named(names.ok_or_else(|| fail("target_modules", ConfigError::MISSING.to_owned()))?)
            }
        };
        Ok(Self {
            rank: keys.required_size("r")?,
            alpha: keys.number("lora_alpha")?.unwrap_or(8.0),
            is_rank_stabilised: keys.truth("use_rslora")?.unwrap_or(false),
            dropout: keys.dropout("lora_dropout")?.unwrap_or(0.0),
            targets: layers(&targets, architecture)?,
            whole: keys.list("modules_to_save", "a list of names", name)?.unwrap_or_default(),
            task: None,
            adapts: architecture.adapts,
        })
    }
}

/// The name that PEFT has for a task. What it takes for feature extraction reads texts alone.
fn task_type(data: &TaskData) -> Option<&'static str> {
    match data {
        TaskData::Seq2Seq { .. } => Some("SEQ_2_SEQ_LM"),
        TaskData::Classification { .. } => Some("SEQ_CLS"),
        TaskData::TokenLabels { .. } => Some("TOKEN_CLS"),
        TaskData::Language { .. } | TaskData::Preference { .. } => Some("CAUSAL_LM"),
        TaskData::Contrastive { .. }
        | TaskData::PictureClasses { .. }
        | TaskData::TimeSeries { .. }
        | TaskData::Table { .. } => None,
    }
}

/// Whether a path is that of `module` or of something in it.
fn is_within(path: &str, module: &str) -> bool {
    format!(".{path}.").contains(&format!(".{module}."))
}

/// The layers that `targets` names, all of which the architecture must have.
fn layers(targets: &AdapterTargets, architecture: &Architecture) -> Result<Vec<String>, ConfigError> {
    let known = architecture.adapts;
    if known.names.is_empty() {
        return Err(fail("adapter", "this architecture cannot have one; leave it out".to_owned()));
    }
    let layers: Vec<String> = match targets {
        AdapterTargets::AllLinear => known.names.iter().map(|name| (*name).to_owned()).collect(),
        AdapterTargets::Named(names) => {
            let mut layers: Vec<String> = names.iter().flat_map(|name| known.targets(name)).collect();
            let mut seen = HashSet::new();
            layers.retain(|name| seen.insert(name.clone()));
            layers
        }
    };
    match layers.iter().find(|name| !known.names.contains(&last_part(name))) {
        None => Ok(layers),
        Some(name) => {
            let message = format!("found {name:?}; allowed: all-linear, {}", known.names.join(", "));
            Err(fail("adapter.targets", message))
        }
    }
}

/// The name in files of PEFT of what is trained beside an adapter, such as a head.
pub fn stored_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

pub fn is_stored_name(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Whether a parameter is one of the two matrices beside a layer.
pub fn is_matrix(name: &str) -> bool {
    let layer = name.strip_suffix(".weight").unwrap_or_default();
    MATRICES.iter().any(|matrix| is_end(layer, matrix))
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Arch;

    use super::*;
    use crate::registry::{architecture, read_config};

    fn lora(value: Value) -> Result<Lora, String> {
        let adapter: Adapter = serde_json::from_value(value).unwrap();
        Lora::new(&adapter, architecture(Arch::Llama)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_model_is_frozen_and_its_targets_have_matrices() {
        let config = json!({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 50,
                            "num_attention_heads": 4, "num_key_value_heads": 2});
        let model = read_config(Arch::Llama, config.as_object().unwrap()).unwrap().parameters();
        let targets = json!({"rank": 4, "targets": ["model.layers.0.self_attn.k_proj", "down_proj"]});
        let all = lora(targets).unwrap().parameters(&model);
        let trained: Vec<(&str, &[i64])> = all
            .iter()
            .filter(|parameter| parameter.trained)
            .map(|parameter| (parameter.name.as_str(), parameter.shape.as_slice()))
            .collect();
        let path = "model.layers.0.";
        assert_eq!(trained.len(), 4);
        assert_eq!(trained[0], (format!("{path}self_attn.k_proj.lora_A.weight").as_str(), &[4, 64][..]));
        assert_eq!(trained[3], (format!("{path}mlp.down_proj.lora_B.weight").as_str(), &[64, 4][..]));
        assert_eq!(all.iter().filter(|parameter| parameter.frozen).count(), model.len());
    }

    /// PEFT trains heads whole; what no file has is one too. Names that the model does not have are left out.
    #[test]
    fn a_head_is_trained_whole_and_has_no_adapter() {
        let config = json!({"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "vocab_size": 50,
                            "num_attention_heads": 2, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2});
        let of = |arch: Arch, stored: fn(&str) -> bool| {
            let model = read_config(arch, config.as_object().unwrap()).unwrap();
            let lora = Lora::new(&Adapter::default(), architecture(arch)).unwrap().with_heads(model.as_ref());
            let lora = lora.for_model(model.as_ref(), |parameter| stored(&parameter.name)).unwrap();
            let all = lora.parameters(&model.parameters());
            let trained: Vec<String> =
                all.into_iter().filter(|one| one.trained && !is_matrix(&one.name)).map(|one| one.name).collect();
            (lora, trained)
        };
        let (bert, trained) = of(Arch::Bert, |_| true);
        assert_eq!(
            (bert.task, bert.whole.as_slice()),
            (Some("SEQ_CLS"), &["classifier".to_owned(), "score".to_owned()][..])
        );
        assert_eq!(
            (trained.as_slice(), bert.targets.len()),
            (&["classifier.weight".to_owned(), "classifier.bias".to_owned()][..], 4)
        );
        let (bert, trained) = of(Arch::Bert, |name| !name.contains("pooler"));
        assert_eq!((bert.whole.last().map(String::as_str), trained.len()), (Some("pooler"), 4));
        let (roberta, trained) = of(Arch::Roberta, |_| true);
        assert!(!roberta.targets.contains(&"out_proj".to_owned()) && trained.len() == 4, "{trained:?}");
        let (t5, trained) = of(Arch::T5, |_| false);
        assert_eq!((t5.task, t5.whole.is_empty(), trained.len()), (Some("SEQ_2_SEQ_LM"), true, 0));
        assert!(t5.targets.contains(&"wi".to_owned()) != t5.targets.contains(&"wi_0".to_owned()), "{:?}", t5.targets);
        assert_eq!(of(Arch::Clip, |_| true).0.task, None);
        let model = read_config(Arch::Bert, config.as_object().unwrap()).unwrap();
        let mut lora = Lora::new(&Adapter::default(), architecture(Arch::Bert)).unwrap();
        lora.whole = vec!["word_embeddings".to_owned()];
        let error = lora.for_model(model.as_ref(), |_| true).unwrap_err().to_string();
        assert!(error.contains("modules_to_save: found [\"word_embeddings\"]; allowed: heads alone"), "{error}");
    }

    /// Its modules have other names in transformers than in files. An adapter may have been written with either.
    #[test]
    fn a_vit_has_the_names_of_modules_and_of_files() {
        let config = json!({"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
                            "image_size": 8, "patch_size": 4});
        let model = read_config(Arch::Vit, config.as_object().unwrap()).unwrap();
        let adapter: Adapter =
            serde_json::from_value(json!({"rank": 2, "targets": ["query", "output.dense"]})).unwrap();
        let lora = Lora::new(&adapter, architecture(Arch::Vit)).unwrap();
        let lora = lora.for_model(model.as_ref(), |_| true).unwrap();
        assert_eq!((lora.targets.as_slice(), lora.task), (&["q_proj", "o_proj", "fc2"].map(str::to_owned)[..], None));
        let all = lora.parameters(&model.parameters());
        assert_eq!(all.iter().filter(|parameter| parameter.trained).count(), 6);
        let name = "vit.encoder.layer.0.output.dense.lora_A.weight";
        let down = all.iter().find(|parameter| parameter.name == name).unwrap();
        let stored = ["vit.layers.0.mlp.fc2.lora_A.weight", name].map(stored_name);
        assert_eq!((down.shape.as_slice(), down.aliases.as_slice()), (&[2, 12][..], &stored[..]));
        assert_eq!(lora.stored_name(name), stored[0]);
    }

    #[test]
    fn what_peft_writes_reads_back_and_what_it_cannot_be_is_named() {
        let written = lora(json!({"rank": 4, "alpha": 8.0, "dropout": 0.1, "rs": true})).unwrap();
        let config = written.export(Some("owner/name"));
        assert_eq!(Lora::read(&config, architecture(Arch::Llama)).unwrap(), written);
        assert_eq!(written.scale(), 4.0);
        assert_eq!(lora(json!({"rank": 4, "alpha": 8.0})).unwrap().scale(), 2.0);
        let cases = [
            ("peft_type", json!("IA3"), "peft_type: found \"IA3\"; allowed: LORA"),
            ("use_dora", json!(true), "use_dora: found true; allowed: false"),
            ("rank_pattern", json!({"q_proj": 8}), "rank_pattern: found"),
            ("target_modules", json!(["lm_head"]), "adapter.targets: found \"lm_head\"; allowed: all-linear, q_proj"),
            ("target_modules", json!(["q_proj", 3]), "target_modules: found [\"q_proj\",3]; allowed: a list of names"),
            ("r", json!(0), "r: found 0; allowed: a whole number above 0"),
            ("target_modules", json!("q_.*"), "target_modules: found \"q_.*\"; allowed: a list of names"),
        ];
        for (key, value, want) in cases {
            let mut config = config.clone();
            config.insert(key.to_owned(), value);
            let error = Lora::read(&config, architecture(Arch::Llama)).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
        let error = Lora::new(&Adapter::default(), architecture(Arch::Tabular)).unwrap_err().to_string();
        assert!(error.contains("adapter: this architecture cannot have one"), "{error}");
    }
}
