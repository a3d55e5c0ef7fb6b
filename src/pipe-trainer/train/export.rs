//! The result: `model/` in Hugging Face layout, loadable by transformers.

use std::fs;
use std::io;

use tch::TchError;

use super::session::Session;
use super::state::State;
use crate::error::TrainerError;
use crate::staged_folder::StagedFolder;
use crate::{durable, tensor_writer};

pub fn export(session: &Session, state: &State) -> Result<(), TrainerError> {
    write(session, state).map_err(|error| match error.downcast::<TchError>() {
        Ok(torch) => torch.into(),
        Err(source) => {
            let last = Some(session.store.path(state.step)).filter(|path| path.is_dir());
            TrainerError::Save { path: session.run.model(), source, last }
        }
    })
}

fn write(session: &Session, state: &State) -> io::Result<()> {
    let staged = StagedFolder::create(&session.run.model())?;
    let config = serde_json::to_vec_pretty(&state.model.config())?;
    durable::write_synced(&staged.path("config.json"), &config)?;
    if let Some(tokenizer) = &session.spec.tokenizer {
        durable::write_synced(&staged.path("tokenizer.json"), &fs::read(tokenizer)?)?;
    }
    tensor_writer::write(&staged.path("model.safetensors"), &state.named_weights())?;
    staged.commit()
}
