//! Measurements for a draft: the architecture of a base model, the tokens of the texts, the batch that fits on a card.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use pipe_spec::Inspection;
use pipe_spec::model_folder::CONFIG;
use pipe_spec::pipeline::{Arch, BatchSetting, Checkpointing, Quantize, Task};
use serde_json::{Map, Value};

use super::draft::{Answers, Draft};
use super::settings::{self, Limits};
use super::survey::Survey;
use crate::engine::registry;
use crate::error::Error;
use crate::execute::inspect::{self, Opened};
use crate::fit::{Forecaster, Target};
use crate::input::hub::{Failure, Hub, HubAccess};
use crate::input::load::{self, Request};
use crate::input::{preflight, read_config};
use crate::report::{Output, Reporter, say};
use crate::system::interrupt::Interrupts;

/// The architecture of a model in a folder or in the hub cache; nothing where the model is not on this machine, or its
/// config names none.
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
    let hub = Hub::new(&variables, access, &[], Reporter::new(Output::Text).fetch_progress());
    preflight::config_folder(from, &variables, &hub).map_err(|failure| match failure {
        Failure::Named(message) => message,
        Failure::Error(error) => error.to_string(),
    })
}

/// The draft with the lengths in tokens, where the trainer can count them.
pub fn with_tokens(draft: Draft, survey: &Survey) -> Result<Draft, Error> {
    let task = draft.answers.task();
    let is_chat = settings::is_chat(&draft.answers.fields);
    if !matches!(task, Task::Seq2Seq | Task::Classification | Task::TokenLabels) && !is_chat {
        return Ok(draft);
    }
    Ok(match inspect(&draft)? {
        Some(inspection) => Draft {
            limits: Limits::of_tokens(&inspection).unwrap_or(draft.limits),
            findings: survey.findings(task, &draft.answers.fields, Some(&inspection)),
            ..draft
        },
        None => draft,
    })
}

/// The lengths of the texts in tokens: the trainer opens the data of a draft, as it does for `pipe check`. Nothing where the
/// data cannot be opened here: `pipe check` says why. No text is cut.
fn inspect(draft: &Draft) -> Result<Option<Inspection>, Error> {
    let limits = Limits::unknown(draft.answers.task()).longest();
    let text = Draft { limits, ..draft.clone() }.yaml();
    let fail = |source| Error::Write { path: "a temporary folder".into(), source };
    let folder = tempfile::tempdir().map_err(fail)?;
    let file = folder.path().join("draft.yaml");
    std::fs::write(&file, text).map_err(fail)?;
    match crate::command::runtime()?.block_on(open(file)) {
        Ok(Opened::Data(inspection, _)) => Ok(Some(*inspection)),
        Ok(Opened::Not { why }) => {
            tracing::debug!("{why}");
            Ok(None)
        }
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) => {
            tracing::debug!("{error}");
            Ok(None)
        }
    }
}

async fn open(file: PathBuf) -> Result<Opened, Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut reporter = Reporter::new(Output::Quiet);
    let request = Request { file: file.clone(), set: Vec::new(), access: HubAccess::CacheOnly, pins: Vec::new() };
    let loaded = load::load_interruptibly(request, &reporter, &mut interrupts).await?;
    inspect::inspect(&file, &loaded, &mut reporter, &mut interrupts).await
}

/// The largest batch that divides a step and is expected to fit on a card of `total` bytes, without gradient checkpointing
/// if possible; nothing if there is no estimate.
pub fn largest_batch(draft: &Draft, total: u64) -> Option<u32> {
    let mut pipeline = registry::parse_pipeline(&draft.yaml(), &[], &load::variables()).ok()?;
    let training = pipeline.training_mut()?;
    let note = |reason: String| say(&format!("note: no batch computed: {reason}"));
    let config = match &draft.answers.from {
        None => training.model.config.clone()?,
        Some(from) => read_config(&config_folder(from, HubAccess::Check).map_err(note).ok()?)?,
    };
    let config = pipe_model::with_task(config, draft.answers.task());
    for checkpointing in [Checkpointing::Off, Checkpointing::On] {
        training.train.checkpointing = checkpointing;
        let mut next = NonZeroU32::new(training.train.effective_batch);
        while let Some(batch) = next {
            training.train.batch = BatchSetting::Fixed(batch);
            let target = Target { name: String::new(), total };
            let forecast = Forecaster::new(training, &config).forecast(Some(target));
            if forecast.map_err(|error| note(error.to_string())).ok()?.fits? {
                return Some(batch.get());
            }
            next = NonZeroU32::new(batch.get() / 2);
        }
    }
    None
}

/// Bytes that a parameter takes while all of them are trained in mixed precision with AdamW: itself, its gradient and two moments.
const BYTES_TRAINED: u64 = 16;

/// Bytes that a parameter takes beside an adapter.
const BYTES_FROZEN: u64 = 2;

/// The largest model whose weights are all trained where the memory of the card is not known.
const SMALL_ENOUGH: u64 = 1_000_000_000;

/// Whether an adapter is to be trained instead of all weights, because a card of `total` bytes would not hold them.
pub fn wants_adapter(draft: &Draft, total: Option<u64>) -> bool {
    let Some(parameters) = parameters_beside_adapter(draft) else { return false };
    match total {
        Some(total) => parameters.saturating_mul(BYTES_TRAINED) > total / 4 * 3,
        None => parameters > SMALL_ENOUGH,
    }
}

/// How the weights beside an adapter are kept: in 4 bits where a card of `total` bytes would not hold them in 16.
pub fn quantize(draft: &Draft, total: Option<u64>) -> Quantize {
    let is_large = |(parameters, total): (u64, u64)| parameters.saturating_mul(BYTES_FROZEN) > total / 4 * 3;
    match parameters_beside_adapter(draft).zip(total).is_some_and(is_large) {
        true => Quantize::Nf4,
        false => Quantize::None,
    }
}

/// How many parameters a trained model has that can have an adapter.
fn parameters_beside_adapter(draft: &Draft) -> Option<u64> {
    let Answers { arch, from: Some(from), .. } = &draft.answers else { return None };
    if pipe_model::architecture(*arch).adapts.names.is_empty() {
        return None;
    }
    let config = config_folder(from, HubAccess::Check).ok().and_then(|folder| read_config(&folder))?;
    let config = pipe_model::read_config(*arch, &config).ok()?;
    Some(config.parameters().iter().map(pipe_model::Parameter::count).sum())
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
