//! `pipe-trainer tokenizer train`: a tokenizer of one's own, from the texts that a model will be trained on.

use std::collections::BTreeMap;
use std::path::Path;

use pipe_spec::pipeline::{Arch, CONVERSATION, Task};

use crate::cli::TrainTokenizerArgs;
use crate::error::TrainerError;
use crate::storage::durable;
use crate::{data, tokenizer};

pub fn train(args: &TrainTokenizerArgs) -> Result<(), TrainerError> {
    let fail = |path: &Path, message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
    let arch = Arch::find(&args.arch).ok_or_else(|| {
        let known: Vec<&str> = Arch::ALL.iter().map(|arch| arch.name()).collect();
        fail(&args.out, format!("no architecture {:?}; allowed: {}", args.arch, known.join(", ")))
    })?;
    let columns = columns(arch.task(), &args.field).map_err(|message| fail(&args.out, message))?;
    let texts = data::texts(&args.data, &columns.iter().map(String::as_str).collect::<Vec<_>>())?;
    let trained = tokenizer::guarded(|| tokenizer::train(arch, args.vocab_size, &texts));
    let trained = trained.map_err(|message| fail(&args.out, message))?;
    let json = trained.to_string(true).map_err(|error| fail(&args.out, error.to_string()))?;
    let write = |source| TrainerError::Io { path: args.out.clone(), source };
    if let Some(folder) = args.out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(write)?;
    }
    durable::write_whole(&args.out, json.as_bytes()).map_err(write)?;
    tracing::info!("{} tokens from {} texts: {}", trained.get_vocab_size(true), texts.len(), args.out.display());
    Ok(())
}

/// The columns that hold text, by role unless `fields` renames them.
fn columns(task: Task, fields: &[String]) -> Result<Vec<String>, String> {
    let roles: Vec<&str> = task.text_roles().collect();
    let mut named = BTreeMap::new();
    for field in fields {
        let (role, column) = field.split_once('=').unwrap_or(("", field));
        if !roles.contains(&role) {
            return Err(format!("--field {field}: allowed: ROLE=COLUMN with a role of {}", roles.join(", ")));
        }
        named.insert(role, column);
    }
    let data_roles = roles.iter().filter(|role| (**role == CONVERSATION) == named.contains_key(CONVERSATION));
    Ok(data_roles.map(|role| (*named.get(role).unwrap_or(role)).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_with_text() {
        assert_eq!(columns(Task::Seq2Seq, &["messages=chat".to_owned()]).unwrap(), ["chat"]);
        assert_eq!(columns(Task::Seq2Seq, &["source=a".to_owned()]).unwrap(), ["a", "target"]);
        let field = |text: &str| vec![text.to_owned()];
        assert_eq!(columns(Task::Classification, &field("text=review")).unwrap(), ["review", "text_pair"]);
        assert_eq!(columns(Task::Contrastive, &[]).unwrap(), ["text"]);
        let error = columns(Task::Seq2Seq, &field("text=review")).unwrap_err();
        assert_eq!(error, "--field text=review: allowed: ROLE=COLUMN with a role of source, target, messages");
    }
}
