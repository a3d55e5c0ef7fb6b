//! The result: `model/` in Hugging Face layout, loadable by transformers.

use std::io;
use std::path::Path;

use pipe_model::{architecture, read_config};
use pipe_spec::event::Eval;
use pipe_spec::model_folder::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, MODEL_CARD, PREPROCESSOR, SAFETENSORS,
    TOKENIZER_JSON, TOKENIZER_SETTINGS,
};
use serde_json::{Map, Value, json};
use tch::{TchError, Tensor};

use super::model_card::ModelCard;
use super::session::Session;
use super::state::State;
use crate::data::Preprocessor;
use crate::error::TrainerError;
use crate::storage::files::{self, LARGEST_CONFIG, LARGEST_TOKENIZER};
use crate::storage::tensor_files;
use crate::storage::{ExportedFolder, TensorFiles};
use crate::tokenizer::{self, SpecialTokens};

/// The weights that are exported, and what the model card says beside the settings.
pub struct Exported<'a> {
    /// The step of the weights.
    pub step: u64,
    /// The file of weights that is copied; absent for those of the state.
    pub weights: Option<&'a Path>,
    /// Rows that were trained on.
    pub rows: u64,
    /// The evaluation of that step, if it was evaluated.
    pub eval: Option<&'a Eval>,
}

pub fn export(session: &Session, state: &State, exported: &Exported<'_>) -> Result<(), TrainerError> {
    write(session, state, exported).map_err(|error| match error.downcast::<TchError>() {
        Ok(torch) => torch.into(),
        Err(source) => {
            let last = Some(session.store.path(state.step)).filter(|path| path.is_dir());
            TrainerError::Save { path: session.run.model(), source, last }
        }
    })
}

fn write(session: &Session, state: &State, exported: &Exported<'_>) -> io::Result<()> {
    let staged = ExportedFolder::create(&session.run.model())?;
    let config = state.model.config();
    write_json(&staged, CONFIG, &config)?;
    if let Some(path) = &session.spec.tokenizer {
        write_tokenizer(session, &staged, path, &config)?;
    }
    write_generation_config(session, &staged, &config)?;
    if let Some(preprocessor) = preprocessor(session, &config)? {
        files::write_synced(&staged.path(PREPROCESSOR), &serde_json::to_vec_pretty(&preprocessor)?)?;
    }
    let card = ModelCard {
        spec: &session.spec,
        config: &config,
        parameters: state.model.weights().count(),
        steps: exported.step,
        rows: exported.rows,
        eval: exported.eval,
    };
    files::write_synced(&staged.path(MODEL_CARD), card.text().as_bytes())?;
    write_weights(session, state, exported, &staged)?;
    staged.commit()
}

/// The weights of the model; or its adapter, as PEFT reads it, unless the two are to be merged.
fn write_weights(session: &Session, state: &State, exported: &Exported<'_>, staged: &ExportedFolder) -> io::Result<()> {
    let mut file = staged.path(SAFETENSORS.single);
    if let Some(lora) = state.adapter {
        if session.spec.save.merge {
            let read = |path: &Path| state.model.weights().with_stored(&TensorFiles::open_file(path)?);
            let stored = exported.weights.map(read).transpose().map_err(io::Error::other)?;
            let merged = stored.as_ref().unwrap_or(state.model.weights()).merged().map_err(io::Error::other)?;
            let tensors: Vec<(String, &Tensor)> = merged.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
            return tensor_files::write(&file, &tensors).map(drop);
        }
        write_json(staged, ADAPTER_CONFIG, &lora.export(session.spec.base_model.as_deref()))?;
        file = staged.path(ADAPTER_WEIGHTS);
    }
    match exported.weights {
        Some(weights) => files::copy_synced(weights, &file),
        None => tensor_files::write(&file, &state.named_weights()).map(drop),
    }
}

fn write_json(staged: &ExportedFolder, name: &str, keys: &Map<String, Value>) -> io::Result<()> {
    files::write_synced(&staged.path(name), &serde_json::to_vec_pretty(keys)?)
}

/// `tokenizer.json`, the settings that transformers reads beside it, and the vocabulary that it was made from.
fn write_tokenizer(
    session: &Session,
    staged: &ExportedFolder,
    path: &Path,
    config: &Map<String, Value>,
) -> io::Result<()> {
    let arch = session.spec.model.arch;
    let json = tokenizer::json(path, arch).map_err(io::Error::other)?;
    files::write_synced(&staged.path(TOKENIZER_JSON), &json)?;
    // Without them transformers would take the defaults of the model's tokenizer instead, whatever tokenizer.json says.
    let [tokenizer_config, special_tokens, _] = TOKENIZER_SETTINGS;
    let mut carried = Vec::new();
    for name in TOKENIZER_SETTINGS {
        if let Some(keys) = carry_over(session, staged, &path.with_file_name(name), name)? {
            carried.push((name, keys));
        }
    }
    let template = path.with_file_name(CHAT_TEMPLATE);
    if template.is_file() {
        let text = files::read(&template, LARGEST_CONFIG)?;
        files::write_synced(&staged.path(CHAT_TEMPLATE), &text)?;
    }
    let known = tokenizer::open(path, arch).map_err(io::Error::other)?;
    let settings: Vec<&Map<String, Value>> = carried.iter().map(|(_, keys)| keys).collect();
    let tokenization = architecture(arch).tokenization;
    let roles = tokenization.map_or(&[][..], |tokenization| tokenization.roles());
    let special = SpecialTokens::of(&known, roles, &settings);
    let missing = |name: &str| carried.iter().all(|(one, _)| *one != name);
    if missing(tokenizer_config) {
        let token_types = tokenization.is_some_and(|tokenization| tokenization.token_types);
        let longest = config.get("max_position_embeddings").or_else(|| config.get("n_positions"));
        let reserved = tokenization.map_or(0, |tokenization| tokenization.reserved_positions);
        let longest = longest.and_then(Value::as_u64).map(|positions| positions.saturating_sub(reserved));
        write_json(staged, tokenizer_config, &special.tokenizer_config(token_types, longest))?;
    }
    if missing(special_tokens) {
        write_json(staged, special_tokens, &special.map())?;
    }
    write_vocabulary(session, staged, path)
}

/// The files of the vocabulary, where the tokenizer is the model's own or was read from them. Others of the same names may be of
/// another tokenizer.
fn write_vocabulary(session: &Session, staged: &ExportedFolder, path: &Path) -> io::Result<()> {
    let model = &session.spec.model;
    let names = model.arch.vocabulary_files();
    let is_one = path.file_name().is_some_and(|name| names.iter().any(|one| name == *one));
    if !is_one && model.from.as_deref().map(Path::new) != path.parent() {
        return Ok(());
    }
    for name in names {
        let file = path.with_file_name(name);
        if !file.is_file() {
            continue;
        }
        match files::read(&file, LARGEST_TOKENIZER) {
            Ok(bytes) if name.ends_with(".json") && serde_json::from_slice::<Value>(&bytes).is_err() => {
                session.warn(format!("{} is not JSON and not part of the exported model", file.display()));
            }
            Ok(bytes) => files::write_synced(&staged.path(name), &bytes)?,
            Err(error) => session.warn(format!("{}: {error}; it is not part of the exported model", file.display())),
        }
    }
    Ok(())
}

/// How texts are generated, for an architecture that has settings for it: those of the model's folder, else keys of its config.
fn write_generation_config(session: &Session, staged: &ExportedFolder, config: &Map<String, Value>) -> io::Result<()> {
    let names = architecture(session.spec.model.arch).generation_keys;
    if names.is_empty() {
        return Ok(());
    }
    if let Some(from) = &session.spec.model.from {
        let file = Path::new(from).join(GENERATION_CONFIG);
        if carry_over(session, staged, &file, GENERATION_CONFIG)?.is_some() {
            return Ok(());
        }
    }
    let mut keys = Map::from_iter([("_from_model_config".to_owned(), json!(true))]);
    keys.extend(names.iter().filter_map(|name| Some(((*name).to_owned(), config.get(*name)?.clone()))));
    write_json(staged, GENERATION_CONFIG, &keys)
}

/// Copies a file of settings where there is one; its keys. One that is too large or no JSON object is left out with a warning:
/// the training is not lost for it.
fn carry_over(
    session: &Session,
    staged: &ExportedFolder,
    file: &Path,
    name: &str,
) -> io::Result<Option<Map<String, Value>>> {
    if !file.is_file() {
        return Ok(None);
    }
    let read = files::read(file, LARGEST_CONFIG).and_then(|bytes| {
        let keys = serde_json::from_slice(&bytes)?;
        Ok((bytes, keys))
    });
    match read {
        Ok((bytes, keys)) => {
            files::write_synced(&staged.path(name), &bytes)?;
            Ok(Some(keys))
        }
        Err(error) => {
            session.warn(format!("{}: {error}; it is not part of the exported model", file.display()));
            Ok(None)
        }
    }
}

/// How pictures were prepared, for a model that sees them.
fn preprocessor(session: &Session, config: &Map<String, Value>) -> io::Result<Option<Value>> {
    let model = &session.spec.model;
    let task_data = read_config(model.arch, config).map_err(io::Error::other)?.task_data(None);
    let preprocessor = Preprocessor::find(&task_data, model.from.as_deref().map(Path::new));
    Ok(preprocessor.map_err(io::Error::other)?.map(|preprocessor| preprocessor.json()))
}
