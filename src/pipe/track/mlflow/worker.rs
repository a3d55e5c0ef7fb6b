//! The items that the server does not have yet. They are sent later if the server does not answer.
//!
//! Requests to an MLflow server, version 2.0 of its REST interface.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pipe_spec::RunFolder;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Address, BATCH_INTERVAL, LogItem, milliseconds};
use crate::system::files::{self, write_json};
use crate::system::http::{Failure, Method, Web};
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

const JSON: &str = "application/json";

#[derive(Clone, Debug, Serialize)]
pub struct Metric {
    pub key: String,
    pub value: f64,
    /// Milliseconds since the Unix epoch.
    pub timestamp: i64,
    pub step: u64,
}

/// A run as the server knows it.
pub struct Tracked {
    pub id: String,
    pub experiment: String,
    /// Where its artifacts are put on the server; absent where the server does not take them.
    pub artifacts: Option<String>,
    /// The last step that it has of each metric.
    pub last_steps: BTreeMap<String, u64>,
}

pub struct Server {
    web: Web,
    base: String,
}

impl Server {
    pub fn new(address: Address) -> Self {
        Self { web: Web::new(address.authorization), base: address.base }
    }

    /// The experiment of that name: found, restored or made.
    pub fn experiment(&self, name: &str) -> Result<String, Failure> {
        let found = match self.find_experiment(name) {
            Err(failure) if says(&failure, "RESOURCE_DOES_NOT_EXIST") => {
                match self.post("experiments/create", &json!({ "name": name })) {
                    Ok(made) => return text(&made["experiment_id"]),
                    // Another process created it first.
                    Err(failure) if says(&failure, "RESOURCE_ALREADY_EXISTS") => self.find_experiment(name)?,
                    Err(failure) => return Err(failure),
                }
            }
            found => found?,
        };
        let id = text(&found["experiment"]["experiment_id"])?;
        if found["experiment"]["lifecycle_stage"] == "deleted" {
            self.post("experiments/restore", &json!({ "experiment_id": id }))?;
        }
        Ok(id)
    }

    fn find_experiment(&self, name: &str) -> Result<Value, Failure> {
        self.get(&format!("experiments/get-by-name?experiment_name={}", encoded(name)))
    }

    pub fn create_run(&self, experiment: &str, name: &str, began: i64) -> Result<Tracked, Failure> {
        let tags = [json!({ "key": "mlflow.runName", "value": name })];
        let body = json!({ "experiment_id": experiment, "run_name": name, "start_time": began, "tags": tags });
        tracked(&self.post("runs/create", &body)?)
    }

    /// Sets an earlier run to running again; nothing if the server does not have it.
    pub fn find_run(&self, id: &str) -> Result<Option<Tracked>, Failure> {
        match self.get(&format!("runs/get?run_id={}", encoded(id))) {
            Ok(found) if found["run"]["info"]["lifecycle_stage"] == "deleted" => Ok(None),
            Ok(found) => {
                self.update(id, "RUNNING", None)?;
                tracked(&found).map(Some)
            }
            Err(Failure::Never { .. }) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    pub fn update(&self, id: &str, status: &str, ended: Option<i64>) -> Result<(), Failure> {
        self.post("runs/update", &json!({ "run_id": id, "status": status, "end_time": ended })).map(drop)
    }

    pub fn log(
        &self,
        id: &str,
        parameters: &[(String, String)],
        tags: &[(String, String)],
        metrics: &[Metric],
    ) -> Result<(), Failure> {
        let pairs = |pairs: &[(String, String)]| -> Vec<Value> {
            pairs.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
        };
        let batch = json!({ "run_id": id, "params": pairs(parameters), "tags": pairs(tags), "metrics": metrics });
        self.post("runs/log-batch", &batch).map(drop)
    }

    pub fn upload(&self, folder: &str, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let address = format!("{}/api/2.0/mlflow-artifacts/artifacts/{folder}/{name}", self.base);
        self.web.request(Method::Put, &address, "application/octet-stream", bytes).map(drop)
    }

    fn get(&self, path: &str) -> Result<Value, Failure> {
        parsed(&self.web.request(Method::Get, &self.url(path), JSON, &[])?)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        parsed(&self.web.request(Method::Post, &self.url(path), JSON, body.to_string().as_bytes())?)
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.base)
    }
}

fn encoded(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

fn tracked(answer: &Value) -> Result<Tracked, Failure> {
    let info = &answer["run"]["info"];
    let artifacts = info["artifact_uri"].as_str().and_then(proxied);
    let metrics = answer["run"]["data"]["metrics"].as_array();
    let last_steps = metrics.into_iter().flatten().filter_map(|metric| {
        Some((
            metric["key"].as_str()?.to_owned(),
            metric["step"].as_u64().or_else(|| metric["step"].as_str()?.parse().ok())?,
        ))
    });
    let (id, experiment) = (text(&info["run_id"])?, text(&info["experiment_id"])?);
    Ok(Tracked { id, experiment, artifacts, last_steps: last_steps.collect() })
}

/// The path behind the server's own artifact proxy, where the artifacts lie there: `mlflow-artifacts:/1/abc/artifacts`,
/// with or without a host.
fn proxied(address: &str) -> Option<String> {
    let rest = address.strip_prefix("mlflow-artifacts:")?;
    let path = match rest.strip_prefix("//") {
        Some(with_host) => with_host.split_once('/')?.1,
        None => rest.trim_start_matches('/'),
    };
    Some(path.trim_end_matches('/').to_owned())
}

/// Whether a refusal has that error code.
fn says(failure: &Failure, code: &str) -> bool {
    match failure {
        Failure::Never { body, .. } => {
            serde_json::from_slice::<Value>(body).is_ok_and(|answer| answer["error_code"] == code)
        }
        Failure::Later { .. } => false,
    }
}

fn parsed(answer: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(answer).map_err(|_| unexpected())
}

fn text(value: &Value) -> Result<String, Failure> {
    value.as_str().map(str::to_owned).ok_or_else(unexpected)
}

fn unexpected() -> Failure {
    Failure::Never { reason: "its answer is not that of an MLflow server".to_owned(), body: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_behind_the_server_are_found() {
        let cases = [
            ("mlflow-artifacts:/1/abc/artifacts", Some("1/abc/artifacts")),
            ("mlflow-artifacts://host:5000/1/abc/artifacts/", Some("1/abc/artifacts")),
            ("s3://bucket/1/abc", None),
            ("/var/mlruns/1", None),
        ];
        for (address, want) in cases {
            assert_eq!(proxied(address).as_deref(), want, "{address}");
        }
    }
}
