//! Waiting for a card that others hold.

use std::time::{Duration, Instant};

use pipe_spec::OomRecord;

use super::Supervisor;
use crate::error::Error;

/// How long to wait where the driver does not say whether the card is free.
const BLIND_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the free memory of the card is read while another process holds it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl Supervisor<'_> {
    /// Waits until the card of the rank that ran out of memory has enough of it, or until the timeout; returns whether it has.
    pub(super) async fn wait_for_card(&mut self) -> Result<bool, Error> {
        let policy = &self.template.pipeline.on_oom;
        let record = self.oom_record(self.run.state.attempts.len() as u32);
        let rank = record.as_ref().map_or(0, |record| record.rank);
        let needed = record.as_ref().map_or(u64::MAX, needed);
        let name = match self.template.placement.cards {
            0 | 1 => "the card".to_owned(),
            _ => self.card_of(rank).map_or("a card".to_owned(), |card| format!("the card {}", card.index)),
        };
        let began = Instant::now();
        let mut timeout = Duration::from_secs(policy.wait);
        let mut reported = None;
        self.reporter.doing(&format!("waiting for {name}"));
        self.run.set_doing(&format!("waiting for {name}"))?;
        while began.elapsed() < timeout {
            let card = self.card_of(rank);
            if card.is_none() {
                timeout = timeout.min(BLIND_TIMEOUT);
            }
            if card.as_ref().is_some_and(|card| card.free >= needed.min(card.total - card.total / 20)) {
                self.reporter.note(&format!("{name} is free again"));
                return Ok(true);
            }
            let holders: Vec<String> = card.iter().flat_map(|card| &card.holders).map(ToString::to_string).collect();
            if reported.as_ref() != Some(&holders) {
                let processes = if holders.is_empty() { "other processes".to_owned() } else { holders.join(", ") };
                self.reporter.note(&format!("waiting for {name}, at most {}s, held by {processes}", timeout.as_secs()));
                reported = Some(holders);
            }
            let rest = timeout.saturating_sub(began.elapsed());
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL.min(rest)) => {}
                _ = self.interrupts.next() => return Err(Error::Interrupted),
            }
        }
        self.reporter.note(&format!("{name} is still in use after on_oom.wait: trying once more"));
        Ok(false)
    }
}

/// Bytes that the attempt needed: what it held and what it requested.
fn needed(record: &OomRecord) -> u64 {
    let own = record.own.or(record.reserved).unwrap_or(0);
    own.saturating_add(record.requested.unwrap_or(0))
}
