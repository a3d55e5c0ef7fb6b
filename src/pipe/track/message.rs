//! The content of a message, for every receiver.
//!
//! A message as a Discord embed, within what Discord takes: 256 characters for a title, 4096 for a description, 1024 for a
//! field, 6000 for all of them together.
//!
//! Messages to people: an entry of `notify`.

use std::collections::VecDeque;
use std::time::Instant;

use pipe_spec::pipeline::{Notify, NotifyOn};
use pipe_spec::text::human_bytes;
use pipe_spec::{Attempt, Cause, Outcome, RunState, Status, Variables};
use serde::Serialize;
use serde_json::{Value, json};

use super::delivery::{Deliver, DeliveryThread};
use super::{Listener, Notice, shortened};
use crate::report::duration;
use crate::system::clock::{iso, now};
use crate::system::http::{Failure, Method, Web};

/// The JSON object that a webhook gets. What is not known is null.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    #[serde(rename = "type")]
    pub kind: NotifyOn,
    /// The run's id.
    pub run: String,
    /// The pipeline's name.
    pub name: String,
    pub status: Status,
    pub engine: String,
    #[serde(flatten)]
    pub attempt: LastAttempt,
    pub effective_batch: u32,
    /// The last step that was done, of so many.
    pub step: Option<u64>,
    pub steps: Option<u64>,
    pub loss: Option<f64>,
    /// Why the run failed.
    pub error: Option<String>,
    /// Since the run began.
    pub seconds: f64,
    /// Seconds since the Unix epoch.
    pub time: f64,
}

/// The settings of the last attempt, its outcome and the action after it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LastAttempt {
    #[serde(rename = "attempt")]
    pub number: Option<u32>,
    pub batch: Option<u32>,
    pub accum: Option<u32>,
    pub cause: Option<Cause>,
    pub reason: Option<String>,
    pub action: Option<String>,
    /// Bytes.
    pub peak_memory: Option<u64>,
}

impl LastAttempt {
    fn new(attempt: &Attempt) -> Self {
        Self {
            number: Some(attempt.number),
            batch: Some(attempt.batch),
            accum: Some(attempt.accum),
            cause: attempt.cause,
            reason: attempt.reason.clone(),
            action: attempt.action.clone(),
            peak_memory: attempt.figures.peak_memory,
        }
    }
}

impl Message {
    /// Nothing for notices without a message, and when a person has stopped the run.
    pub fn from_notice(notice: &Notice<'_>, now: f64) -> Option<Self> {
        let (kind, state) = match *notice {
            // A run that was taken over has started before.
            Notice::RunStarted(state) if state.attempts().is_empty() => (NotifyOn::Started, state),
            Notice::AttemptEnded(state) => {
                let outcome = state.attempts().last()?.outcome?;
                (outcome == Outcome::Oom).then_some((NotifyOn::Oom, state))?
            }
            Notice::Retried(state) => (NotifyOn::Retried, state),
            Notice::RunEnded(state) => match state.status {
                Status::Finished => (NotifyOn::Finished, state),
                Status::Failed => (NotifyOn::Failed, state),
                Status::Running | Status::Stopped | Status::Orphaned | Status::Unknown => return None,
            },
            Notice::RunStarted(_) | Notice::Event(_) => return None,
        };
        Some(Self::new(kind, state, now))
    }

    fn new(kind: NotifyOn, state: &RunState, now: f64) -> Self {
        // An attempt that failed early has no steps of its own.
        let reached = state.attempts().iter().rev().find(|attempt| attempt.figures.last_step.is_some());
        Self {
            kind,
            run: state.id.clone(),
            name: state.name.clone(),
            status: state.status,
            engine: state.engine.clone(),
            attempt: state.attempts().last().map(LastAttempt::new).unwrap_or_default(),
            effective_batch: state.effective_batch(),
            step: reached.and_then(|attempt| attempt.figures.last_step),
            steps: state.steps(),
            loss: reached.and_then(|attempt| attempt.figures.last_loss),
            error: state.error.clone(),
            seconds: (now - state.created).max(0.0),
            time: now,
        }
    }
}

pub fn embed(message: &Message) -> Value {
    let (title, color) = heading(message);
    json!({
        "embeds": [{
            "title": shortened(&title, 256),
            "description": description(message),
            "color": color,
            "fields": fields(message),
            "footer": { "text": shortened(&message.run, 256) },
            "timestamp": iso(message.time),
        }],
        // Nothing that an error says calls anybody.
        "allowed_mentions": { "parse": [] },
    })
}

fn heading(message: &Message) -> (String, u32) {
    let name = &message.name;
    match message.kind {
        NotifyOn::Started => (format!("{name} has started"), 0x34_98_db),
        NotifyOn::Oom => (format!("{name} is out of memory"), 0xe6_7e_22),
        NotifyOn::Retried => (format!("{name} is retried"), 0xf1_c4_0f),
        NotifyOn::Finished => (format!("{name} has finished"), 0x2e_cc_71),
        NotifyOn::Failed => (format!("{name} has failed"), 0xe7_4c_3c),
    }
}

fn description(message: &Message) -> String {
    let text = |text: &Option<String>| shortened(text.as_deref().unwrap_or_default(), 2000);
    match message.kind {
        NotifyOn::Started => format!("On the engine {}.", message.engine),
        NotifyOn::Oom => text(&message.attempt.reason),
        NotifyOn::Retried => match text(&message.attempt.action) {
            action if action.contains("effective batch") => format!("{action}."),
            action => format!("{action}, effective batch {} as before.", message.effective_batch),
        },
        NotifyOn::Finished => format!("In {}.", duration(message.seconds)),
        // The end of a log has its own layout.
        NotifyOn::Failed => format!("```\n{}\n```", text(&message.error).replace("```", "'''")),
    }
}

fn fields(message: &Message) -> Vec<Value> {
    let batch = message.attempt.batch.zip(message.attempt.accum).map(|(batch, accum)| format!("{batch} x {accum}"));
    let step = message.step.map(|step| match message.steps {
        Some(steps) => format!("{step} of {steps}"),
        None => step.to_string(),
    });
    let time = (message.kind != NotifyOn::Started).then(|| duration(message.seconds));
    [
        ("Attempt", message.attempt.number.map(|number| number.to_string())),
        ("Batch x accum", batch),
        ("Step", step),
        ("Loss", message.loss.map(|loss| format!("{loss:.4}"))),
        ("Peak memory", message.attempt.peak_memory.map(human_bytes)),
        ("Time", time),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(json!({ "name": name, "value": value?, "inline": true })))
    .collect()
}

/// Messages that wait for a receiver, at most.
const QUEUE_CAPACITY: usize = 64;

pub struct Receiver {
    notify: Notify,
    delivery: DeliveryThread<Value>,
}

impl Receiver {
    /// The receiver of entry `index`, or why it cannot be used.
    pub fn new(index: usize, notify: &Notify, variables: &Variables) -> Result<Self, String> {
        let (kind, address) = notify.receiver().ok_or_else(|| format!("notify[{index}] names no receiver"))?;
        let key = format!("notify[{index}] ({kind})");
        let address = variables.expand(address).map_err(|name| format!("{key}: {}", variables.reason(&name)))?;
        let delivery = Delivery { web: Web::new(None), address, waiting: VecDeque::new() };
        let delivery =
            DeliveryThread::start(key.clone(), QUEUE_CAPACITY, delivery).map_err(|error| format!("{key}: {error}"))?;
        Ok(Self { notify: notify.clone(), delivery })
    }
}

impl Listener for Receiver {
    fn receive(&mut self, notice: &Notice<'_>) -> Result<(), String> {
        if let Some(message) = Message::from_notice(notice, now()).filter(|message| self.notify.wants(message.kind)) {
            let body = match self.notify.discord {
                Some(_) => embed(&message),
                None => serde_json::to_value(&message).map_err(|error| error.to_string())?,
            };
            self.delivery.send(body);
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

struct Delivery {
    web: Web,
    address: String,
    waiting: VecDeque<Value>,
}

impl Deliver for Delivery {
    type Item = Value;

    fn take(&mut self, item: Value) {
        self.waiting.push_back(item);
    }

    fn left(&self) -> usize {
        self.waiting.len()
    }

    fn deliver(&mut self) -> Result<(), Failure> {
        let Some(message) = self.waiting.front() else { return Ok(()) };
        let sent = self.web.request(Method::Post, &self.address, "application/json", message.to_string().as_bytes());
        if !matches!(sent, Err(Failure::Later { .. })) {
            self.waiting.pop_front();
        }
        sent.map(drop)
    }

    fn give_up(&mut self) {
        self.waiting.pop_front();
    }
}

#[cfg(test)]
mod discord_tests {
    use pipe_spec::Status;

    use super::*;

    fn message(kind: NotifyOn, text: &str) -> Message {
        Message {
            kind,
            run: text.to_owned(),
            name: text.to_owned(),
            status: Status::Running,
            engine: "test".to_owned(),
            attempt: LastAttempt {
                number: Some(2),
                batch: Some(16),
                accum: Some(4),
                cause: None,
                reason: Some(text.to_owned()),
                action: Some(text.to_owned()),
                peak_memory: Some(1 << 30),
            },
            effective_batch: 64,
            step: Some(5),
            steps: Some(60),
            loss: Some(1.25),
            error: Some(text.to_owned()),
            seconds: 75.0,
            time: 1_000_000_000.0,
        }
    }

    #[test]
    fn no_text_is_too_long_for_discord() {
        let long = "@everyone ``` ".repeat(5000);
        for kind in [NotifyOn::Started, NotifyOn::Oom, NotifyOn::Retried, NotifyOn::Finished, NotifyOn::Failed] {
            let embed = &embed(&message(kind, &long))["embeds"][0];
            let length = |value: &Value| value.as_str().unwrap().chars().count();
            let (title, description) = (length(&embed["title"]), length(&embed["description"]));
            assert!(title <= 256 && (1..=4096).contains(&description), "{kind:?}");
            let fields = embed["fields"].as_array().unwrap();
            assert!(fields.len() <= 25 && fields.iter().all(|field| (1..=1024).contains(&length(&field["value"]))));
            assert!(title + description + length(&embed["footer"]["text"]) < 5500);
        }
    }

    #[test]
    fn an_embed_says_what_matters() {
        let embed = embed(&message(NotifyOn::Failed, "it broke ```"));
        assert_eq!(embed["allowed_mentions"]["parse"], json!([]));
        let embed = &embed["embeds"][0];
        assert_eq!(embed["title"], "it broke ``` has failed");
        assert_eq!(embed["description"], "```\nit broke '''\n```");
        assert_eq!(embed["timestamp"], "2001-09-09T01:46:40Z");
        let values: Vec<&str> =
            embed["fields"].as_array().unwrap().iter().filter_map(|f| f["value"].as_str()).collect();
        assert_eq!(values, ["2", "16 x 4", "5 of 60", "1.2500", "1.0 GiB", "1m15s"]);
    }
}
