//! The architecture of a trained model: what its config.json says.

use std::path::{Path, PathBuf};

use pipe_spec::model_folder::CONFIG;
use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::input::hub::{Failure, Hub, HubAccess};
use crate::input::{load, preflight, read_config};
use crate::report::Reporter;

/// Of a folder, or of a hub id that is in the cache; nothing where the model is not on this machine, or its config does not say.
pub fn architecture(model: &str) -> Result<Option<Arch>, Error> {
    let is_here = Path::new(model).is_dir();
    let folder = match config_folder(model, HubAccess::CacheOnly) {
        Ok(folder) => folder,
        Err(_) if !is_here => return Ok(None),
        Err(reason) => return Err(Error::BaseModel { model: model.to_owned(), reason }),
    };
    let unreadable =
        || Error::BaseModel { model: model.to_owned(), reason: format!("it has no {CONFIG} that can be read") };
    let config = read_config(&folder).ok_or_else(unreadable)?;
    of_config(&config).map_err(|reason| Error::BaseModel { model: model.to_owned(), reason })
}

/// `model_type`, or the name of a class in `architectures`.
fn of_config(config: &Map<String, Value>) -> Result<Option<Arch>, String> {
    let named = config.get("model_type").and_then(Value::as_str);
    if let Some(arch) = named.and_then(Arch::of_model_type) {
        return Ok(Some(arch));
    }
    let classes = config.get("architectures").and_then(Value::as_array);
    let classes: Vec<&str> = classes.into_iter().flatten().filter_map(Value::as_str).collect();
    if named.is_none()
        && let Some(arch) = classes.iter().find_map(|class| of_class(class))
    {
        return Ok(Some(arch));
    }
    let known: Vec<&str> = Arch::ALL.iter().map(|arch| arch.model_type()).collect();
    let found = match (named, classes.as_slice()) {
        (Some(name), _) => format!("the model_type {name:?}"),
        (None, []) => return Ok(None),
        (None, classes) => format!("the architectures {}", classes.join(", ")),
    };
    Err(format!("its {CONFIG} has {found}; pipe trains {}", known.join(", ")))
}

/// `BertForSequenceClassification` is a bert, `XLMRobertaModel` an xlm-roberta: the longest name that it begins with.
fn of_class(class: &str) -> Option<Arch> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '-'], "");
    let begins = |arch: &Arch| plain(class).starts_with(&plain(arch.model_type()));
    Arch::ALL.iter().copied().filter(begins).max_by_key(|arch| arch.model_type().len())
}

/// The folder with the config.json of a model, or why there is none.
pub fn config_folder(from: &str, access: HubAccess) -> Result<PathBuf, String> {
    let variables = load::variables();
    let hub = Hub::new(&variables, access, &[], Reporter::new(false, false).fetch_progress());
    preflight::config_folder(from, &variables, &hub).map_err(|failure| match failure {
        Failure::Named(message) => message,
        Failure::Error(error) => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(config: Value) -> Result<Option<Arch>, String> {
        of_config(config.as_object().unwrap())
    }

    #[test]
    fn a_config_names_its_architecture() {
        for (config, want) in [
            (json!({"model_type": "deberta-v2"}), Arch::DebertaV3),
            (json!({"model_type": "hybrid_cnn_lstm"}), Arch::HybridCnnLstm),
            (json!({"architectures": ["XLMRobertaForMaskedLM"]}), Arch::XlmRoberta),
            (json!({"architectures": ["T5ForConditionalGeneration"]}), Arch::T5),
            (json!({"architectures": ["CLIPModel"]}), Arch::Clip),
        ] {
            assert_eq!(of(config.clone()), Ok(Some(want)), "{config}");
        }
        let error = of(json!({"model_type": "gpt2", "architectures": ["T5Model"]})).unwrap_err();
        assert!(
            error.starts_with("its config.json has the model_type \"gpt2\"; pipe trains t5, bert, roberta"),
            "{error}"
        );
        assert_eq!(of(json!({"d_model": 64})), Ok(None));
        assert!(of(json!({"architectures": ["GPT2Model"]})).unwrap_err().contains("the architectures GPT2Model"));
    }
}
