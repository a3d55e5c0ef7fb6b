//! The search for the largest batch that fits. The batches are tried by a separate process, `pipe-trainer measure`: its changed
//! weights are gone when it exits, and a batch that gets it killed does not fit.

use std::path::Path;

use pipe_model::memory::Search;
use pipe_spec::event::{EventKind, Fitted, Measured};
use pipe_spec::{Device, TrainerExit, TrainerSpec, pipeline};

use super::capacity::usable;
use super::measure::{Failure, Ready};
use super::measurer::{Ended, Measurer};
use crate::error::TrainerError;
use crate::events::Events;
use crate::host::Stop;

/// How a search ended.
pub enum Searched {
    Fitted(Fitted),
    /// Not even one sample fits.
    NothingFits,
    /// Nothing could be measured, for a reason that would end a training too.
    Failed(Failure),
}

/// The largest batch that fits. `relay` passes on the warnings of the process that measures, each once: a training that follows
/// gives the same ones.
pub fn search(
    spec_file: &Path,
    spec: &TrainerSpec,
    events: &mut Events,
    stop: &Stop,
    relay: bool,
) -> Result<Searched, TrainerError> {
    let effective_batch = spec.train.effective_batch;
    let mut relay = Relay { wanted: relay, given: Vec::new() };
    let mut measurer = Measurer::start(spec_file)?;
    let ready = measurer.ready(stop)?;
    relay.pass_on(&mut measurer, events);
    let Ready { device, driver, capacity, longest } = match ready {
        Ok(ready) => ready,
        Err(Ended::Failed(failure)) if !failure.is_out_of_memory() => return Ok(Searched::Failed(failure)),
        Err(Ended::Failed(_) | Ended::Died) => return Ok(Searched::NothingFits),
    };
    // What a process may allocate and what it is seen to hold differ: only a try shows what fits.
    let only_tried = spec.device == Device::Cpu && spec.memory.limit.is_some();
    let known = capacity.filter(|_| !only_tried).map(|bytes| usable(spec.device, bytes));
    let mut search = Search::new(effective_batch, known);
    while let Some(batch) = search.next() {
        let died = Measured { batch, fits: false, peak: None, reserved: None, longest: longest.clone(), ms: 0.0 };
        let answer = measurer.ask(batch, stop)?;
        relay.pass_on(&mut measurer, events);
        if let Err(Ended::Failed(failure)) = &answer {
            tracing::warn!("batch {batch}: {}", failure.message);
        }
        let alive = answer.is_ok();
        let measured = answer.unwrap_or(died);
        search.record(batch, measured.peak);
        tracing::info!("batch {batch} {}", if measured.fits { "fits" } else { "does not fit" });
        let again = !alive || (!measured.fits && spec.device == Device::Cpu);
        events.emit(EventKind::Measured(measured));
        if again {
            // A process does not give host memory back.
            measurer.end();
            measurer = Measurer::start(spec_file)?;
            let is_ready = measurer.ready(stop)?.is_ok();
            relay.pass_on(&mut measurer, events);
            if !is_ready {
                break;
            }
        }
    }
    let Some(best) = search.best() else { return Ok(Searched::NothingFits) };
    Ok(Searched::Fitted(Fitted {
        batch: best.batch,
        accum: pipeline::accum(effective_batch, best.batch, spec.rank.count),
        effective_batch,
        peak: best.peak,
        capacity,
        device,
        driver,
        longest,
    }))
}

/// Passes on each warning once, however many processes give it.
struct Relay {
    wanted: bool,
    given: Vec<String>,
}

impl Relay {
    fn pass_on(&mut self, measurer: &mut Measurer, events: &mut Events) {
        for warning in measurer.warnings() {
            if self.wanted && !self.given.contains(&warning.message) {
                self.given.push(warning.message.clone());
                // The process has written it to stderr, which both share.
                events.emit(EventKind::Warning(warning));
            }
        }
    }
}

impl Failure {
    fn is_out_of_memory(&self) -> bool {
        let exit = TrainerExit::from_code(i64::from(self.exit));
        matches!(exit, Some(TrainerExit::DeviceOutOfMemory | TrainerExit::HostOutOfMemory))
    }
}
