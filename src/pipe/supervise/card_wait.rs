//! Waiting for a card that others hold.

use std::time::{Duration, Instant};

use pipe_spec::OomRecord;

use super::Supervisor;
use crate::card::Card;
use crate::engine::Engine;
use crate::error::Error;

/// How long to wait where nobody can tell whether the card is free.
const BLIND: Duration = Duration::from_secs(60);

/// How often the card is looked at while somebody else holds it.
const LOOK: Duration = Duration::from_secs(1);

impl<E: Engine> Supervisor<'_, E> {
    /// Until there is room on the card for what was asked for, or the time is over; whether there is.
    pub(super) async fn wait_for_card(&mut self) -> Result<bool, Error> {
        let policy = &self.plan.pipeline.on_oom;
        let gpus = &self.plan.pipeline.container.gpus;
        let needed = self.record(self.run.state.attempts.len() as u32).as_ref().map_or(u64::MAX, needed);
        let began = Instant::now();
        let mut patience = Duration::from_secs(policy.wait);
        let mut told = None;
        self.reporter.doing("waiting for the card");
        self.run.set_doing("waiting for the card")?;
        while began.elapsed() < patience {
            let card = Card::read(gpus);
            if card.is_none() {
                patience = patience.min(BLIND);
            }
            if card.as_ref().is_some_and(|card| card.free >= needed.min(card.total - card.total / 20)) {
                self.reporter.note("the card is free again");
                return Ok(true);
            }
            let holders: Vec<String> = card.iter().flat_map(|card| &card.holders).map(ToString::to_string).collect();
            if told.as_ref() != Some(&holders) {
                let who = if holders.is_empty() { "other processes".to_owned() } else { holders.join(", ") };
                self.reporter.note(&format!("waiting for the card, at most {}s, held by {who}", patience.as_secs()));
                told = Some(holders);
            }
            let rest = patience.saturating_sub(began.elapsed());
            tokio::select! {
                () = tokio::time::sleep(LOOK.min(rest)) => {}
                () = self.interrupts.next() => return Err(Error::Interrupted),
            }
        }
        self.reporter.note("the card is not free, and the time for waiting is over: trying once more");
        Ok(false)
    }
}

/// Bytes that an attempt would have needed to go on: what it held and what it asked for.
fn needed(record: &OomRecord) -> u64 {
    let own = record.own.or(record.reserved).unwrap_or(0);
    own.saturating_add(record.requested.unwrap_or(0))
}
