//! The search for the largest batch that fits. The batches are tried by a separate process, `pipe-trainer measure`: its changed
//! weights are gone when it exits, and a batch that gets it killed does not fit.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pipe_model::memory::Search;
use pipe_spec::event::{EventKind, Fitted, Measured};
use pipe_spec::trainer::LEASE_VARIABLE;
use pipe_spec::{Device, TrainerSpec, pipeline};

use super::capacity::usable;
use super::measure::Ready;
use crate::error::TrainerError;
use crate::events::Events;
use crate::host::Stop;

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
    // What a process may allocate and what it is seen to hold differ: only a try shows what fits.
    let only_tried = spec.device == Device::Cpu && spec.memory.limit.is_some();
    let known = capacity.filter(|_| !only_tried).map(|bytes| usable(spec.device, bytes));
    let mut search = Search::new(effective_batch, known);
    let longest = measurer.ready.longest.clone();
    while let Some(batch) = search.next() {
        if stop.requested() {
            return Err(TrainerError::Stopped { step: 0 });
        }
        let died = Measured { batch, fits: false, peak: None, reserved: None, longest: longest.clone(), ms: 0.0 };
        let answer = measurer.ask(batch);
        let alive = answer.is_some();
        let measured = answer.unwrap_or(died);
        search.record(batch, measured.peak);
        tracing::info!("batch {batch} {}", if measured.fits { "fits" } else { "does not fit" });
        let again = !alive || (!measured.fits && spec.device == Device::Cpu);
        events.emit(EventKind::Measured(measured));
        if again {
            // A process does not give host memory back.
            measurer.end();
            let Some(next) = Measurer::start(spec_file)? else { break };
            measurer = next;
        }
    }
    let Ready { device, driver, .. } = &measurer.ready;
    Ok(search.best().map(|best| Fitted {
        batch: best.batch,
        accum: pipeline::accum(effective_batch, best.batch, spec.rank.count),
        effective_batch,
        peak: best.peak,
        capacity,
        device: device.clone(),
        driver: driver.clone(),
        longest,
    }))
}

/// The process that tries batches.
struct Measurer {
    child: Child,
    asking: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    ready: Ready,
}

impl Measurer {
    /// Absent where it fails to start: the training will fail for the same reason and report it.
    fn start(spec_file: &Path) -> Result<Option<Self>, TrainerError> {
        let fail = |source| TrainerError::Io { path: PathBuf::from("pipe-trainer measure"), source };
        let program = std::env::current_exe().map_err(fail)?;
        let mut command = Command::new(program);
        command
            .arg("measure")
            .arg("--spec")
            .arg(spec_file)
            // Its stdin takes the batches.
            .env_remove(LEASE_VARIABLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        die_with_this_process(&mut command);
        let mut child = command.spawn().map_err(fail)?;
        let (Some(asking), Some(answers)) = (child.stdin.take(), child.stdout.take()) else { return Ok(None) };
        let mut answers = BufReader::new(answers).lines();
        let ready = answers.next().and_then(|line| serde_json::from_str(&line.ok()?).ok());
        let Some(ready) = ready else {
            let _ = child.wait();
            return Ok(None);
        };
        Ok(Some(Self { child, asking, answers, ready }))
    }

    /// Absent when it died.
    fn ask(&mut self, batch: u32) -> Option<Measured> {
        writeln!(self.asking, "{batch}").ok()?;
        serde_json::from_str(&self.answers.next()?.ok()?).ok()
    }

    /// Its memory is free again when it has exited.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kernel kills the other process when this one dies.
fn die_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe and touch nothing of ours.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // This process may have died before the call.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}

impl Drop for Measurer {
    fn drop(&mut self) {
        self.end();
    }
}
