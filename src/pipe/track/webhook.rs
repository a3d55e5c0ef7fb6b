//! Messages to people: an entry of `notify`.

use std::collections::VecDeque;
use std::time::Instant;

use pipe_spec::Variables;
use pipe_spec::pipeline::Notify;
use serde_json::Value;

use super::delivery::{Deliver, DeliveryThread};
use super::message::Message;
use super::{Listener, Notice, discord};
use crate::clock::now;
use crate::http::{Failure, Method, Web};

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
        let address =
            variables.expand(address).map_err(|name| format!("{key}: the variable ${{{name}}} is not set"))?;
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
                Some(_) => discord::embed(&message),
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
