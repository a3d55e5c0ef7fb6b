//! Everything that can go wrong between a row and its tokens.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("{folder} has no chat template; hint: save the tokenizer with one (chat_template.jinja), or choose ChatML")]
    NoTemplate { folder: PathBuf },
    #[error("{path}: cannot read it: {message}")]
    Read { path: PathBuf, message: String },
    #[error("{template}{}: {message}", at_line(*line))]
    Template { template: String, line: Option<usize>, message: String },
    /// The template called `raise_exception`.
    #[error("{template}{}: the template refuses this conversation: {message}", at_line(*line))]
    Refused { template: String, line: Option<usize>, message: String },
    #[error("{template}: the conversation is longer than {limit} bytes of text; hint: split it into shorter ones")]
    TooLong { template: String, limit: usize },
    #[error(
        "{template}: cannot tell which text the assistant wrote in message {message}: {reason}; hint: add {{% generation %}} \
         to the template, or count all tokens"
    )]
    Unmarked { template: String, message: usize, reason: &'static str },
    /// The row is no conversation.
    #[error("{message}")]
    Row { message: String },
    #[error("the tokenizer failed: {message}")]
    Tokenizer { message: String },
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}
