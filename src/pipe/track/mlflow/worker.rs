//! The items that the server does not have yet. They are sent later if the server does not answer.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use pipe_spec::RunFolder;
use serde::{Deserialize, Serialize};

use super::server::{Metric, Server, Tracked};
use super::{BATCH_INTERVAL, LogItem, milliseconds};
use crate::system::files;
use crate::system::files::write_json;
use crate::system::http::Failure;
use crate::track::delivery::Deliver;

/// The most that the server takes in one request: parameters, tags, and all items together.
const MAX_PARAMETERS: usize = 100;
const MAX_TAGS: usize = 100;
const MAX_ITEMS: usize = 1000;

/// `mlflow.json` in the run folder: a `pipe` process that takes over continues the same MLflow run.
#[derive(Serialize, Deserialize)]
struct SavedRun {
    run_id: String,
    experiment_id: String,
}

/// A file that is kept with the run on the server.
enum Artifact {
    File(PathBuf),
    Text { name: &'static str, text: String },
}

pub(super) struct Worker {
    server: Server,
    folder: RunFolder,
    experiment: String,
    /// Texts that must not be in an artifact.
    secrets: Vec<String>,
    /// The run's id and when it was created, until the server knows of it.
    begun: Option<(String, f64)>,
    run: Option<Tracked>,
    parameters: VecDeque<(String, String)>,
    tags: BTreeMap<String, String>,
    metrics: VecDeque<Metric>,
    ended: Option<(&'static str, f64)>,
    artifacts: VecDeque<Artifact>,
    /// The server will have nothing of it.
    refused: bool,
}

impl Worker {
    pub fn new(
        server: Server,
        folder: RunFolder,
        experiment: String,
        parameters: Vec<(String, String)>,
        secrets: Vec<String>,
    ) -> Self {
        Self {
            server,
            folder,
            experiment,
            secrets,
            begun: None,
            run: None,
            parameters: parameters.into(),
            tags: BTreeMap::new(),
            metrics: VecDeque::new(),
            ended: None,
            artifacts: VecDeque::new(),
            refused: false,
        }
    }

    /// The run on the server: the one that was kept, or a new one.
    fn begin(&self, id: &str, created: f64) -> Result<(Tracked, bool), Failure> {
        let path = self.folder.path().join("mlflow.json");
        let kept: Option<SavedRun> = files::read_own(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(kept) = kept
            && let Some(found) = self.server.find_run(&kept.run_id)?
        {
            return Ok((found, false));
        }
        let experiment = self.server.experiment(&self.experiment)?;
        let run = self.server.create_run(&experiment, id, milliseconds(created))?;
        let kept = SavedRun { run_id: run.id.clone(), experiment_id: run.experiment.clone() };
        // Without it, a process that takes over creates a new MLflow run.
        if let Err(error) = write_json(&path, &kept) {
            tracing::debug!("{error}");
        }
        Ok((run, true))
    }

    fn log(&mut self, id: &str) -> Result<(), Failure> {
        let parameters: Vec<_> = self.parameters.iter().take(MAX_PARAMETERS).cloned().collect();
        let tags: Vec<_> = self.tags.iter().take(MAX_TAGS).map(|(key, value)| (key.clone(), value.clone())).collect();
        let free = MAX_ITEMS - parameters.len() - tags.len();
        let metrics: Vec<_> = self.metrics.iter().take(free).cloned().collect();
        let logged = self.server.log(id, &parameters, &tags, &metrics);
        if !matches!(logged, Err(Failure::Later { .. })) {
            self.parameters.drain(..parameters.len());
            self.metrics.drain(..metrics.len());
            tags.iter().for_each(|(key, _)| drop(self.tags.remove(key)));
        }
        logged
    }

    fn upload(&mut self, path: Option<&str>) -> Result<(), Failure> {
        let (name, text) = match self.artifacts.front() {
            None => return Ok(()),
            Some(Artifact::Text { name, text }) => ((*name).to_owned(), Ok(text.clone())),
            Some(Artifact::File(path)) => {
                (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), files::read_own_text(path))
            }
        };
        let uploaded = match (path, text) {
            (Some(path), Ok(text)) => {
                let text = self.secrets.iter().fold(text, |text, secret| text.replace(secret, "***"));
                self.server.upload(path, &name, text.as_bytes())
            }
            // The server does not take artifacts, or there is nothing to take.
            _ => Ok(()),
        };
        if !matches!(uploaded, Err(Failure::Later { .. })) {
            self.artifacts.pop_front();
        }
        uploaded
    }
}

impl Deliver for Worker {
    type Item = LogItem;

    fn take(&mut self, item: LogItem) {
        if self.refused {
            return;
        }
        match item {
            LogItem::Begun { run, created, recorded_metrics } => {
                self.begun = Some((run, created));
                self.metrics.extend(recorded_metrics);
            }
            LogItem::Metrics(metrics) => self.metrics.extend(metrics),
            LogItem::Tags(tags) => self.tags.extend(tags),
            LogItem::Ended { status, at, state } => {
                self.ended = Some((status, at));
                let files = [self.folder.report(), self.folder.resolved(), self.folder.lock()];
                self.artifacts = files.into_iter().map(Artifact::File).collect();
                self.artifacts.push_back(Artifact::Text { name: "run.json", text: state });
            }
        }
    }

    fn left(&self) -> usize {
        if self.refused || (self.begun.is_none() && self.run.is_none()) {
            return 0;
        }
        let items = self.parameters.len() + self.tags.len() + self.metrics.len();
        let begun = usize::from(self.begun.is_some());
        begun + items + usize::from(self.ended.is_some()) + self.artifacts.len()
    }

    fn deliver(&mut self) -> Result<(), Failure> {
        if let Some((id, created)) = &self.begun {
            match self.begin(id, *created) {
                Ok((run, new)) => {
                    if !new {
                        // They cannot change, and are there.
                        self.parameters.clear();
                        self.metrics
                            .retain(|metric| run.last_steps.get(&metric.key).is_none_or(|last| metric.step > *last));
                    }
                    (self.run, self.begun) = (Some(run), None);
                }
                Err(failure) => {
                    self.refused = matches!(failure, Failure::Never { .. });
                    return Err(failure);
                }
            }
        }
        let Some((id, path)) = self.run.as_ref().map(|run| (run.id.clone(), run.artifacts.clone())) else {
            return Ok(());
        };
        if self.parameters.len() + self.tags.len() + self.metrics.len() > 0 {
            return self.log(&id);
        }
        if let Some((status, at)) = self.ended {
            let updated = self.server.update(&id, status, Some(milliseconds(at)));
            if !matches!(updated, Err(Failure::Later { .. })) {
                self.ended = None;
            }
            return updated;
        }
        self.upload(path.as_deref())
    }

    /// Nothing is dropped: the items are sent when the server answers again.
    fn give_up(&mut self) {}

    fn pause(&self) -> Duration {
        let full = self.metrics.len() >= MAX_ITEMS;
        let urgent = full || self.begun.is_some() || self.ended.is_some() || !self.artifacts.is_empty();
        if urgent { Duration::ZERO } else { BATCH_INTERVAL }
    }
}
