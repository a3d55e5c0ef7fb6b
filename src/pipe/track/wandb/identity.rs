//! Which W&B run a run is. The id depends on the run's own id alone, so that a run that is resumed or taken over stays the
//! same W&B run.

use std::path::{Path, PathBuf};

use pipe_spec::{RunState, Variables};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::system::clock::iso;

/// Characters of an id. W&B's own have as many.
const ID_LENGTH: usize = 8;

pub struct Identity {
    pub id: String,
    pub project: String,
    /// The name that W&B shows: the run's own id.
    pub name: String,
    /// Seconds since the Unix epoch.
    pub created: f64,
    pub host: String,
    pub os: String,
    pub labels: Labels,
}

impl Identity {
    pub fn new(state: &RunState, project: String, labels: Labels) -> Self {
        let kernel = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
            text.trim().to_owned()
        };
        Self {
            id: id(&state.id),
            project,
            name: state.id.clone(),
            created: state.created,
            host: kernel("hostname"),
            os: format!("Linux-{}", kernel("osrelease")),
            labels,
        }
    }

    pub fn started_at(&self) -> String {
        iso(OffsetDateTime::from_unix_timestamp(self.created as i64).unwrap_or(OffsetDateTime::UNIX_EPOCH))
    }

    /// The folder that `wandb sync` takes, in the folder of the run.
    pub fn folder(&self, run: &Path) -> PathBuf {
        let when = self.started_at().replace(['-', ':', 'Z'], "").replace('T', "_");
        run.join("wandb").join(format!("offline-run-{when}-{}", self.id))
    }
}

/// What W&B's own variables say about a run. They are kept, so that a `pipe` in another shell that takes the run over does not
/// change them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Labels {
    pub entity: String,
    pub group: String,
    pub tags: Vec<String>,
    pub notes: String,
}

impl Labels {
    pub fn read(variables: &Variables) -> Self {
        let get = |name: &str| variables.get(name).unwrap_or_default().to_owned();
        let tags = get("WANDB_TAGS");
        let tags = tags.split(',').map(str::trim).filter(|tag| !tag.is_empty());
        Self {
            entity: get("WANDB_ENTITY"),
            group: get("WANDB_RUN_GROUP"),
            tags: tags.map(str::to_owned).collect(),
            notes: get("WANDB_NOTES"),
        }
    }

    /// With what `kept` says where these say nothing.
    pub fn or(self, kept: Self) -> Self {
        let or = |own: String, kept: String| if own.is_empty() { kept } else { own };
        Self {
            entity: or(self.entity, kept.entity),
            group: or(self.group, kept.group),
            tags: if self.tags.is_empty() { kept.tags } else { self.tags },
            notes: or(self.notes, kept.notes),
        }
    }
}

/// Small letters and digits, as W&B's own ids.
fn id(run: &str) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let hash = blake3::hash(run.as_bytes());
    hash.as_bytes()[..ID_LENGTH].iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_from_the_variables_and_then_from_what_was_kept() {
        let pairs = [("WANDB_TAGS", " a, b,,"), ("WANDB_ENTITY", "me"), ("WANDB_API_KEY", "s3cret")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let kept = Labels { entity: "other".to_owned(), notes: "kept".to_owned(), ..Labels::default() };
        let labels = Labels::read(&Variables::new(None, pairs.into_iter())).or(kept);
        let text = serde_json::to_string(&labels).unwrap();
        assert_eq!(text, r#"{"entity":"me","group":"","tags":["a","b"],"notes":"kept"}"#);
    }

    #[test]
    fn ids_are_stable_and_differ() {
        assert_eq!(id("job-20261115-014500-abcd"), id("job-20261115-014500-abcd"));
        assert_ne!(id("job-20261115-014500-abcd"), id("job-20261115-014500-abce"));
        assert!(id("x").len() == ID_LENGTH && id("x").chars().all(|c| c.is_ascii_alphanumeric()));
    }
}
