//! Messages to people: an entry of `notify`.

use std::collections::VecDeque;
use std::time::Instant;

use pipe_spec::Variables;
use pipe_spec::pipeline::Notify;
use serde_json::Value;

use super::courier::{Courier, Errand};
use super::message::Message;
use super::web::{Failure, Method, Web};
use super::{Listener, News, discord};
use crate::run::now;

/// Messages that wait for a receiver, at most.
const ROOM: usize = 64;

pub struct Receiver {
    notify: Notify,
    courier: Courier<Value>,
}

impl Receiver {
    /// The receiver of entry `index`, or in words why there is none.
    pub fn new(index: usize, notify: &Notify, variables: &Variables) -> Result<Self, String> {
        let (kind, address) = notify.receiver().ok_or_else(|| format!("notify[{index}] names no receiver"))?;
        let who = format!("notify[{index}] ({kind})");
        let address =
            variables.expand(address).map_err(|name| format!("{who}: the variable ${{{name}}} is not set"))?;
        let delivery = Delivery { web: Web::new(None), address, waiting: VecDeque::new() };
        let courier = Courier::start(who.clone(), ROOM, delivery).map_err(|error| format!("{who}: {error}"))?;
        Ok(Self { notify: notify.clone(), courier })
    }
}

impl Listener for Receiver {
    fn hear(&mut self, news: &News<'_>) -> Result<(), String> {
        if let Some(message) = Message::of(news, now()).filter(|message| self.notify.wants(message.kind)) {
            let body = match self.notify.discord {
                Some(_) => discord::embed(&message),
                None => serde_json::to_value(&message).map_err(|error| error.to_string())?,
            };
            self.courier.send(body);
        }
        Ok(())
    }

    fn finish(&mut self, ended: Instant) {
        self.courier.finish(ended);
    }

    fn complaint(&mut self) -> Option<String> {
        self.courier.complaint()
    }
}

struct Delivery {
    web: Web,
    address: String,
    waiting: VecDeque<Value>,
}

impl Errand for Delivery {
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
