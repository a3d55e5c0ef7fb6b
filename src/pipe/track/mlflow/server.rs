//! Requests to an MLflow server, version 2.0 of its REST interface.

use std::collections::BTreeMap;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Value, json};

use super::Address;
use crate::system::http::{Failure, Method, Web};

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
