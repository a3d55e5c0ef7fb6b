//! The result: `model/` in Hugging Face layout, loadable by transformers.

use std::fs;
use std::io;
use std::path::Path;

use pipe_model::{TaskData, read_config};
use pipe_spec::model_folder::{CONFIG, PREPROCESSOR, SAFETENSORS, TOKENIZER_JSON, TOKENIZER_SETTINGS};
use serde_json::{Map, Value};
use tch::TchError;

use super::session::Session;
use super::state::State;
use crate::data::Preprocessor;
use crate::error::TrainerError;
use crate::storage::ExportedFolder;
use crate::storage::durable;
use crate::storage::tensor_writer;
use crate::tokenizer;

/// Exports the weights in the file `weights`, or those of `state`.
pub fn export(session: &Session, state: &State, weights: Option<&Path>) -> Result<(), TrainerError> {
    write(session, state, weights).map_err(|error| match error.downcast::<TchError>() {
        Ok(torch) => torch.into(),
        Err(source) => {
            let last = Some(session.store.path(state.step)).filter(|path| path.is_dir());
            TrainerError::Save { path: session.run.model(), source, last }
        }
    })
}

fn write(session: &Session, state: &State, weights: Option<&Path>) -> io::Result<()> {
    let staged = ExportedFolder::create(&session.run.model())?;
    let config = state.model.config();
    durable::write_synced(&staged.path(CONFIG), &serde_json::to_vec_pretty(&config)?)?;
    if let Some(path) = &session.spec.tokenizer {
        let json = tokenizer::json(path, session.spec.model.arch).map_err(io::Error::other)?;
        durable::write_synced(&staged.path(TOKENIZER_JSON), &json)?;
        // Without them transformers would take the defaults of the model's tokenizer instead, whatever tokenizer.json says.
        for name in TOKENIZER_SETTINGS {
            let settings = path.with_file_name(name);
            if settings.is_file() {
                durable::write_synced(&staged.path(name), &fs::read(settings)?)?;
            }
        }
    }
    if let Some(preprocessor) = preprocessor(session, &config)? {
        durable::write_synced(&staged.path(PREPROCESSOR), &serde_json::to_vec_pretty(&preprocessor)?)?;
    }
    let exported = staged.path(SAFETENSORS.single);
    match weights {
        Some(file) => durable::copy_synced(file, &exported)?,
        None => drop(tensor_writer::write(&exported, &state.named_weights())?),
    }
    staged.commit()
}

/// How pictures were prepared, for a model that sees them.
fn preprocessor(session: &Session, config: &Map<String, Value>) -> io::Result<Option<Value>> {
    let model = &session.spec.model;
    let task_data = read_config(model.arch, config).map_err(io::Error::other)?.task_data(None);
    let TaskData::Contrastive { image_size, .. } = task_data else { return Ok(None) };
    let preprocessor = Preprocessor::open(image_size as u32, model.from.as_deref().map(Path::new));
    Ok(Some(preprocessor.map_err(io::Error::other)?.json()))
}
