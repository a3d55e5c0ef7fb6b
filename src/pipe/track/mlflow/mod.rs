//! A run in MLflow: its settings as parameters, its figures as metrics by step, its attempts as tags, its page as an
//! artifact. Through the REST interface of a server, by a thread that collects the items.
//!
//! The settings of a run as MLflow's parameters: one level, with dotted names.
//!
//! The address and the credentials of the server. They are never written to disk.

mod worker;

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;
use pipe_spec::event::RecordedEvent;
use pipe_spec::{Attempt, Event, EventKind, Pipeline, RunFolder, RunState, Status, Variables};
use serde_json::Value;
use worker::{Metric, Server, Worker};

use super::delivery::DeliveryThread;
use super::{Listener, Notice, retry, scalars, settings, shortened};
use crate::system::clock::now;
use crate::system::files;

/// How it is called where its address must not be.
const KEY: &str = "track.mlflow";

/// Entries that wait for the server, at most.
const QUEUE_CAPACITY: usize = 20_000;

/// How long entries are gathered before they are sent.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The longest value of a parameter or tag that servers of all versions take.
const MAX_VALUE_LENGTH: usize = 500;

/// An item for the worker.
enum LogItem {
    /// With the recorded metrics of a run that is taken over, which the server may lack.
    Begun {
        run: String,
        created: f64,
        recorded_metrics: Vec<Metric>,
    },
    Metrics(Vec<Metric>),
    Tags(Vec<(String, String)>),
    /// With `run.json` as it will be.
    Ended {
        status: &'static str,
        at: f64,
        state: String,
    },
}

pub struct Mlflow {
    delivery: DeliveryThread<LogItem>,
    folder: RunFolder,
}

impl Mlflow {
    /// An error says why it cannot be used.
    pub fn new(pipeline: &Pipeline, folder: &RunFolder, variables: &Variables) -> Result<Self, String> {
        let written = pipeline.track.mlflow.as_deref().unwrap_or_default();
        let address = Address::read(written, variables).map_err(|reason| format!("{KEY}: {reason}"))?;
        let secrets = secrets(pipeline, variables);
        let parameters = from_pipeline(pipeline);
        let worker = Worker::new(Server::new(address), folder.clone(), pipeline.name.to_string(), parameters, secrets);
        let delivery =
            DeliveryThread::start(KEY.to_owned(), QUEUE_CAPACITY, worker).map_err(|error| format!("{KEY}: {error}"))?;
        Ok(Self { delivery, folder: folder.clone() })
    }

    fn begin(&self, state: &RunState) {
        let recorded_metrics = if state.attempts().is_empty() { Vec::new() } else { self.recorded_metrics() };
        self.delivery.send(LogItem::Begun { run: state.id.clone(), created: state.created, recorded_metrics });
        let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
        self.tag(&[
            ("mlflow.source.name", Some("pipe")),
            ("mlflow.user", user.as_deref()),
            ("pipe.run", Some(&state.id)),
            ("pipe.engine", Some(&state.engine)),
            ("pipe.version", Some(env!("CARGO_PKG_VERSION"))),
        ]);
        state.attempts().iter().for_each(|attempt| self.retry(attempt));
    }

    /// The metrics of every event that is written down.
    fn recorded_metrics(&self) -> Vec<Metric> {
        let text = std::fs::read_to_string(self.folder.events()).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<RecordedEvent>(line).ok());
        events.flat_map(|recorded| metrics(&recorded.event)).collect()
    }

    fn event(&self, recorded: &RecordedEvent) {
        let event = &recorded.event;
        if let EventKind::Started(started) = &event.kind {
            self.tag(&[
                ("pipe.device", Some(&started.device)),
                ("pipe.driver", started.driver.as_deref()),
                ("pipe.libtorch", Some(&started.libtorch)),
                ("pipe.image", self.image().as_deref()),
            ]);
        }
        let metrics = metrics(event);
        if !metrics.is_empty() {
            self.delivery.send(LogItem::Metrics(metrics));
        }
    }

    /// Records the change after an attempt, and its reason.
    fn retry(&self, attempt: &Attempt) {
        self.tag(&[(&format!("pipe.retry.{}", attempt.number), retry(attempt).as_deref())]);
    }

    /// The image in which the attempts run, once it is locked.
    fn image(&self) -> Option<String> {
        let lock: serde_json::Value = serde_json::from_slice(&files::read_own(&self.folder.lock()).ok()?).ok()?;
        lock["on"]["image"].as_str().map(str::to_owned)
    }

    fn tag(&self, tags: &[(&str, Option<&str>)]) {
        let known =
            tags.iter().filter_map(|(key, value)| Some(((*key).to_owned(), shortened((*value)?, MAX_VALUE_LENGTH))));
        self.delivery.send(LogItem::Tags(known.collect()));
    }
}

impl Listener for Mlflow {
    fn receive(&mut self, notice: &Notice<'_>) -> Result<(), String> {
        match notice {
            Notice::RunStarted(state) => self.begin(state),
            Notice::Event(recorded) => self.event(recorded),
            Notice::AttemptEnded(state) => self.tag(&[("pipe.attempts", Some(&state.attempts().len().to_string()))]),
            Notice::Retried(state) => state.attempts().last().into_iter().for_each(|attempt| self.retry(attempt)),
            Notice::RunEnded(state) => {
                self.tag(&[("pipe.error", state.error.as_deref())]);
                let file = serde_json::to_string_pretty(state).unwrap_or_default();
                self.delivery.send(LogItem::Ended { status: status(state.status), at: now(), state: file });
            }
        }
        Ok(())
    }

    fn finish(&mut self, ended: Instant) {
        self.delivery.finish(ended);
    }

    fn warning(&mut self) -> Option<String> {
        self.delivery.warning()
    }
}

/// The metrics of an event.
fn metrics(event: &Event) -> Vec<Metric> {
    let timestamp = milliseconds(event.ts);
    let (step, values) = scalars(&event.kind).unwrap_or_default();
    // JSON has no other numbers.
    let finite = values.into_iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| Metric { key, value, timestamp, step }).collect()
}

/// Among MLflow's own.
fn status(status: Status) -> &'static str {
    match status {
        Status::Running => "RUNNING",
        Status::Finished => "FINISHED",
        Status::Failed => "FAILED",
        Status::Stopped | Status::Orphaned | Status::Unknown => "KILLED",
    }
}

/// The texts of the pipeline that must not be in a file that others can read.
fn secrets(pipeline: &Pipeline, variables: &Variables) -> Vec<String> {
    let discord = pipeline.notify.iter().filter_map(|notify| notify.discord.as_ref());
    let mlflow = pipeline.track.mlflow.iter().filter(|address| address.contains('@'));
    discord.chain(mlflow).filter_map(|address| variables.expand(address).ok()).collect()
}

fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1000.0) as i64
}

/// Every setting with its value. A list is one value.
pub fn from_pipeline(pipeline: &Pipeline) -> Vec<(String, String)> {
    let mut parameters = Vec::new();
    settings(pipeline).iter().for_each(|(name, section)| flatten(name, section, &mut parameters));
    parameters
}

fn flatten(path: &str, value: &Value, parameters: &mut Vec<(String, String)>) {
    let text = match value {
        Value::Object(map) => {
            return map.iter().for_each(|(key, value)| flatten(&format!("{path}.{key}"), value, parameters));
        }
        Value::Null => return,
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => value.to_string(),
    };
    parameters.push((named(path), shortened(&text, MAX_VALUE_LENGTH)));
}

/// With the characters that MLflow takes, at most 250 of them.
fn named(path: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "_-. /".contains(c) { c } else { '_' };
    path.chars().map(allowed).take(250).collect()
}

pub struct Address {
    /// Without credentials and without a slash at its end.
    pub base: String,
    /// The header.
    pub authorization: Option<String>,
}

impl Address {
    /// Credentials come from the address itself, else from the variables that MLflow's own clients read. An error says
    /// nothing of either.
    pub fn read(written: &str, variables: &Variables) -> Result<Self, String> {
        let text = variables.expand(written).map_err(|name| variables.reason(&name))?;
        let (scheme, rest) = text.split_once("://").ok_or("the address does not begin with https:// or http://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        // Where a file of the folder chooses the server, that gets a token of that file, and none of the user's own.
        let is_foreign = pipe_spec::variables::names(written).any(|name| variables.is_from_file(name));
        let authorization = match (user.map(from_address), is_foreign) {
            (Some(given), _) => Some(given),
            (None, false) => from_variables(variables),
            (None, true) => {
                let of_file = from_variables(&variables.of_file());
                if of_file.is_none() && from_variables(variables).is_some() {
                    return Err(
                        "its address is set in .env, which may be somebody else's, so that MLFLOW_TRACKING_TOKEN \
                                and the like of the environment are not sent there: set both in the environment"
                            .to_owned(),
                    );
                }
                of_file
            }
        };
        Ok(Self { base: format!("{scheme}://{host}{path}"), authorization })
    }
}

fn from_address(user: &str) -> String {
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    basic(&decoded(user), &decoded(password))
}

fn from_variables(variables: &Variables) -> Option<String> {
    let get = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let named = get("MLFLOW_TRACKING_USERNAME").zip(get("MLFLOW_TRACKING_PASSWORD"));
    let token = || get("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
    named.map(|(user, password)| basic(user, password)).or_else(token)
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

#[cfg(test)]
mod parameters_tests {
    use pipe_spec::Variables;

    use super::*;
    use crate::engine::registry;

    #[test]
    fn a_server_that_a_file_of_the_folder_names_gets_no_token_of_the_user() {
        let token = || [("MLFLOW_TRACKING_TOKEN".to_owned(), "mine".to_owned())].into_iter();
        let of = |variables: &Variables| Address::read("${URI}", variables).map(|address| address.authorization);
        assert!(of(&Variables::new(Some("URI=http://evil"), token())).unwrap_err().contains("is set in .env"));
        assert_eq!(of(&Variables::new(Some("URI=http://own"), [].into_iter())), Ok(None));
        let both = Variables::new(Some("URI=http://own\nMLFLOW_TRACKING_TOKEN=its"), [].into_iter());
        assert_eq!(of(&both), Ok(Some("Bearer its".to_owned())));
        let uri = [("URI".to_owned(), "http://own".to_owned())].into_iter();
        assert_eq!(of(&Variables::new(None, uri.chain(token()))), Ok(Some("Bearer mine".to_owned())));
    }

    #[test]
    fn settings_are_flat_and_short_and_no_secrets() {
        let text = format!(
            "version: 1\nname: x\nmodel: {{arch: t5, config: {{d_model: 8, 'odd key!': {}}}}}\n\
             data: {{train: [a.jsonl, b.jsonl]}}\ntrain: {{batch: 4, accum: 2}}\n\
             container: {{env: {{TOKEN: s3cret}}}}\nnotify: [{{webhook: https://s3cret}}]\n",
            "y".repeat(1000)
        );
        let pipeline = registry::parse_pipeline(&text, &[], &Variables::default()).unwrap();
        let parameters = from_pipeline(&pipeline);
        let value = |key: &str| parameters.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        assert_eq!(value("train.batch"), Some("4"));
        assert_eq!(value("model.arch"), Some("t5"));
        assert_eq!(value("train.optimizer.betas"), Some("[0.9,0.999]"));
        assert_eq!(value("data.train"), Some("[\"a.jsonl\",\"b.jsonl\"]"));
        assert_eq!(value("model.config.odd key_").map(str::len), Some(MAX_VALUE_LENGTH));
        assert!(parameters.iter().all(|(_, value)| !value.contains("s3cret")), "{parameters:?}");
    }
}

#[cfg(test)]
mod address_tests {
    use super::*;

    fn read(written: &str, variables: &[(&str, &str)]) -> (String, Option<String>) {
        let pairs = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let address = Address::read(written, &Variables::new(None, pairs)).unwrap();
        (address.base, address.authorization)
    }

    #[test]
    fn credentials_come_from_the_address_or_from_variables() {
        let basic = Some("Basic YWRhOnA6QHNz".to_owned());
        assert_eq!(read("http://h:5000/", &[]), ("http://h:5000".to_owned(), None));
        assert_eq!(read("https://ada:p%3A%40ss@h/ml/", &[]), ("https://h/ml".to_owned(), basic.clone()));
        let named = [("MLFLOW_TRACKING_USERNAME", "ada"), ("MLFLOW_TRACKING_PASSWORD", "p:@ss")];
        assert_eq!(read("https://h", &named).1, basic);
        let token = [("U", "https://h/x?y"), ("MLFLOW_TRACKING_TOKEN", "t")];
        assert_eq!(read("${U}", &token), ("https://h/x".to_owned(), Some("Bearer t".to_owned())));
    }
}
