//! Predictions of a trained model: what predicts, the rows, the job that computes them, and where they go. A prediction is no
//! run: it leaves nothing but its output.
//!
//! Predictions queue for a card as runs do.

mod job;
mod rows;
mod subject;

use std::time::Duration;

use pipe_spec::pipeline::Gpus;

use crate::engine::Engine;
use crate::error::Error;
use crate::gpu::queue::{Ticket, card_names};
use crate::report::Reporter;
use crate::system::interrupt::Interrupts;

pub use job::Job;
pub use rows::Rows;
pub use subject::{Destination, Subject, work_folder};

/// How often the queue is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until no run has the cards. They are held while the tickets live.
pub async fn wait(
    engine: &dyn Engine,
    gpus: &Gpus,
    id: &str,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Vec<Ticket>, Error> {
    let mut tickets = Vec::new();
    for card in card_names(gpus, &engine.cards(&Gpus::All)) {
        let ticket = match Ticket::take(&card, id) {
            Ok((ticket, warning)) => {
                warning.iter().for_each(|warning| reporter.note(warning));
                ticket
            }
            Err(error) => {
                reporter.note(&format!("warning: {error}; the prediction does not wait for runs"));
                break;
            }
        };
        let mut reported = None;
        while let Some(first) = ticket.ahead()?.into_iter().next() {
            if reported.as_ref() != Some(&first) {
                reporter.note(&format!("waiting for {card}: {first} has it; --no-queue starts at once"));
                reported = Some(first);
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = interrupts.signal() => return Err(Error::Interrupted),
            }
        }
        tickets.push(ticket);
    }
    Ok(tickets)
}
