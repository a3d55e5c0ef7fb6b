//! Refusals of the hub as messages that say what to do.

use pipe_spec::text::human_bytes;

use super::address::Address;
use super::client::{Client, RequestError};
use crate::error::Error;

/// Why something cannot be read from the hub.
#[derive(Debug)]
pub enum Failure {
    /// The pipeline names what the hub does not have or does not give: a problem of the file.
    Named(String),
    /// Not the pipeline's fault.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// An answer that is no content.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    /// Of the header `X-Error-Code`.
    pub code: String,
    /// Of the header `X-Error-Message`.
    pub message: String,
}

/// What went wrong with `file` of a repository, or with the repository itself.
pub fn failure(error: RequestError, client: &Client, address: &Address, file: Option<&str>) -> Failure {
    match error {
        RequestError::Transient { reason, .. } => unavailable(client, &reason),
        RequestError::Refused(refusal) => refused_file(&refusal, client, address, file),
    }
}

fn unavailable(client: &Client, reason: &str) -> Failure {
    Failure::Error(Error::Hub { host: client.host(), reason: reason.to_owned() })
}

fn refused_file(refusal: &Refusal, client: &Client, address: &Address, file: Option<&str>) -> Failure {
    let (kind, id, revision) = (address.kind(), &address.id, &address.revision);
    let page = format!("{}/{}", client.endpoint(), address.name());
    let Refusal { status, code, message } = refusal;
    let text = match (code.as_str(), status) {
        ("GatedRepo", _) if client.has_token() => format!(
            "the {kind} {id} is gated, and the account of your token (HF_TOKEN) has no access: accept its terms at {page}"
        ),
        ("GatedRepo", _) => {
            format!("the {kind} {id} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account")
        }
        ("RevisionNotFound", _) => format!(
            "the {kind} {id} has no revision {revision:?}; its branches and tags are listed at {page}/tree/main"
        ),
        ("EntryNotFound", _) => format!("the {kind} {address} has no file {:?}", file.unwrap_or_default()),
        (_, 401) if message.starts_with("Invalid credentials") => {
            "the hub does not accept your token: make another in the settings of your account, and set HF_TOKEN to it"
                .into()
        }
        ("RepoNotFound", _) | (_, 401 | 404) => {
            let private = match client.has_token() {
                true => "or it is private and your token (HF_TOKEN) may not read it",
                false => "or it is private: set HF_TOKEN to a token that may read it",
            };
            format!("the hub has no {kind} {id} (looked at {page}), {private}")
        }
        (_, 403) => format!("the hub does not let you read the {kind} {id}: {}", plain(message)),
        _ => return unavailable(client, &format!("it answered {status} for the {kind} {id}")),
    };
    Failure::Named(text)
}

/// A message of the hub without what a terminal would obey.
fn plain(message: &str) -> String {
    let text: String = message.chars().filter(|letter| !letter.is_control()).take(200).collect();
    if text.is_empty() { "no reason is given; is HF_TOKEN a token that may read it?".to_owned() } else { text }
}

/// There is no room for what is to be fetched.
pub fn no_space(folder: &std::path::Path, needed: u64, free: u64) -> Error {
    Error::NoSpace { folder: folder.to_owned(), needed: human_bytes(needed), free: human_bytes(free) }
}
