//! The search for the largest batch that fits. The batches are tried by a process of its own, `pipe-trainer measure`: what it
//! did to its weights is gone with it, and a batch that gets it killed is one that does not fit.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pipe_model::memory::Search;
use pipe_spec::event::{EventKind, Fitted, Measured};
use pipe_spec::{Device, TrainerSpec, pipeline};

use super::measure::Ready;
use crate::error::TrainerError;
use crate::events::Events;
use crate::stop::Stop;

/// The largest batch that fits, or nothing where even one sample does not, or nothing could be measured.
pub fn search(
    spec_file: &Path,
    spec: &TrainerSpec,
    events: &mut Events,
    stop: &Stop,
) -> Result<Option<Fitted>, TrainerError> {
    let effective_batch = spec.train.effective_batch;
    let Some(mut measurer) = Measurer::start(spec_file)? else { return Ok(None) };
    let capacity = measurer.ready.capacity;
    // What a process may allocate and what it is seen to hold are not the same: only trying tells.
    let tried = spec.device == Device::Cpu && spec.memory.limit.is_some();
    let told = capacity.filter(|_| !tried).map(|bytes| usable(spec.device, bytes));
    let mut search = Search::new(effective_batch, told);
    let longest = measurer.ready.longest.clone();
    while let Some(batch) = search.next() {
        if stop.requested() {
            return Err(TrainerError::Stopped { step: 0 });
        }
        let died = Measured { batch, fits: false, peak: None, reserved: None, longest: longest.clone(), ms: 0.0 };
        let answer = measurer.ask(batch);
        let alive = answer.is_some();
        let measured = answer.unwrap_or(died);
        search.saw(batch, measured.peak);
        tracing::info!("batch {batch} {}", if measured.fits { "fits" } else { "does not fit" });
        let again = !alive || (!measured.fits && spec.device == Device::Cpu);
        events.emit(EventKind::Measured(measured));
        if again {
            // What a process has once held of the host's memory it does not give back.
            measurer.end();
            let Some(next) = Measurer::start(spec_file)? else { break };
            measurer = next;
        }
    }
    let Ready { device, driver, .. } = &measurer.ready;
    // Found at the very edge, it is taken back a little.
    let taken_back =
        |batch: u32| if tried && batch < effective_batch { (batch - batch.div_ceil(20)).max(1) } else { batch };
    Ok(search.best().map(|best| (taken_back(best.batch), best)).map(|(batch, best)| Fitted {
        batch,
        accum: pipeline::accum(effective_batch, batch),
        effective_batch,
        peak: best.peak,
        capacity,
        device: device.clone(),
        driver: driver.clone(),
        longest,
    }))
}

/// What of its memory a training may come to hold. A card's can be used to the end; on the host what is read from files has
/// to make way first, and programs crawl long before they are killed.
fn usable(device: Device, bytes: u64) -> u64 {
    match device {
        Device::Cuda => bytes,
        Device::Cpu => bytes / 10 * 9,
    }
}

/// The process that tries batches.
struct Measurer {
    child: Child,
    asking: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    ready: Ready,
}

impl Measurer {
    /// Nothing where it cannot get ready: the training will find the same reason, and say it.
    fn start(spec_file: &Path) -> Result<Option<Self>, TrainerError> {
        let fail = |source| TrainerError::Io { path: PathBuf::from("pipe-trainer measure"), source };
        let program = std::env::current_exe().map_err(fail)?;
        let mut child = Command::new(program)
            .arg("measure")
            .arg("--spec")
            .arg(spec_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        let (Some(asking), Some(answers)) = (child.stdin.take(), child.stdout.take()) else { return Ok(None) };
        let mut answers = BufReader::new(answers).lines();
        let ready = answers.next().and_then(|line| serde_json::from_str(&line.ok()?).ok());
        let Some(ready) = ready else {
            let _ = child.wait();
            return Ok(None);
        };
        Ok(Some(Self { child, asking, answers, ready }))
    }

    /// Nothing when it died over it.
    fn ask(&mut self, batch: u32) -> Option<Measured> {
        writeln!(self.asking, "{batch}").ok()?;
        serde_json::from_str(&self.answers.next()?.ok()?).ok()
    }

    /// What it held is free again when it is gone.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Measurer {
    fn drop(&mut self) {
        self.end();
    }
}
