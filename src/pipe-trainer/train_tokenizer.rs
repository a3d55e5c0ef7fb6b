//! `pipe-trainer tokenizer train`: a tokenizer of one's own, from the texts that a model will be trained on.

use std::collections::BTreeMap;
use std::path::Path;

use pipe_spec::pipeline::{Arch, CONTEXT, CONVERSATION};

use crate::cli::TrainTokenizerArgs;
use crate::error::TrainerError;
use crate::{data, storage, tokenizer};

pub fn train(args: &TrainTokenizerArgs) -> Result<(), TrainerError> {
    let fail = |path: &Path, message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
    let arch = Arch::find(&args.arch).ok_or_else(|| {
        let known: Vec<&str> = Arch::ALL.iter().map(|arch| arch.name()).collect();
        fail(&args.out, format!("no architecture {:?}; allowed: {}", args.arch, known.join(", ")))
    })?;
    let columns = columns(arch, &args.field).map_err(|message| fail(&args.out, message))?;
    let texts = data::texts(&args.data, &columns.iter().map(String::as_str).collect::<Vec<_>>())?;
    let trained = tokenizer::guarded(|| tokenizer::train(arch, args.vocab_size, &texts));
    let trained = trained.map_err(|message| fail(&args.out, message))?;
    let json = trained.to_string(true).map_err(|error| fail(&args.out, error.to_string()))?;
    let write = |source| TrainerError::Io { path: args.out.clone(), source };
    if let Some(folder) = args.out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(write)?;
    }
    storage::write_whole(&args.out, json.as_bytes()).map_err(write)?;
    tracing::info!("{} tokens from {} texts: {}", trained.get_vocab_size(true), texts.len(), args.out.display());
    Ok(())
}

/// The role of the column with lists of words.
const TOKENS: &str = "tokens";

/// The columns that hold text, by role unless `fields` renames them.
fn columns(arch: Arch, fields: &[String]) -> Result<Vec<String>, String> {
    let tokens = arch.labels_tokens().then_some(TOKENS);
    let roles: Vec<&str> = arch.task().text_roles().chain(tokens).collect();
    let mut named = BTreeMap::new();
    for field in fields {
        let (role, column) = field.split_once('=').unwrap_or(("", field));
        if !roles.contains(&role) {
            return Err(format!("--field {field}: allowed: ROLE=COLUMN with a role of {}", roles.join(", ")));
        }
        named.insert(role, column);
    }
    // Conversations, or words with a label each, stand instead of texts.
    let instead = [CONVERSATION, TOKENS].into_iter().find(|role| named.contains_key(role));
    let is_read = |role: &&&str| match instead {
        Some(instead) => **role == instead,
        None if **role == CONTEXT => named.contains_key(CONTEXT),
        None => ![CONVERSATION, TOKENS].contains(*role),
    };
    let data_roles = roles.iter().filter(is_read);
    Ok(data_roles.map(|role| (*named.get(role).unwrap_or(role)).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_with_text() {
        assert_eq!(columns(Arch::T5, &["messages=chat".to_owned()]).unwrap(), ["chat"]);
        assert_eq!(columns(Arch::T5, &["source=a".to_owned()]).unwrap(), ["a", "target"]);
        let alpaca = ["source=instruction", "target=output", "context=input"].map(str::to_owned);
        assert_eq!(columns(Arch::T5, &alpaca).unwrap(), ["instruction", "output", "input"]);
        let field = |text: &str| vec![text.to_owned()];
        assert_eq!(columns(Arch::Bert, &field("text=review")).unwrap(), ["review", "text_pair"]);
        assert_eq!(columns(Arch::Bert, &field("tokens=words")).unwrap(), ["words"]);
        assert_eq!(columns(Arch::Clip, &[]).unwrap(), ["text"]);
        let error = columns(Arch::T5, &field("text=review")).unwrap_err();
        assert_eq!(error, "--field text=review: allowed: ROLE=COLUMN with a role of source, target, messages, context");
    }
}
