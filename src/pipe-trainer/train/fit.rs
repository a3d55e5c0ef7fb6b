//! The search for the largest batch that fits, by the process `pipe-trainer measure`.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use pipe_model::memory::Search;
use pipe_spec::event::{EventKind, Fitted, Measured, Warning};
use pipe_spec::trainer::LEASE_VARIABLE;
use pipe_spec::{Device, Event, TrainerExit, TrainerSpec, pipeline};

use super::measure::{Answer, Failure, Ready, usable};
use crate::error::TrainerError;
use crate::host::{Stop, cpu_time, die_with_this_process};
use crate::session::events::Events;

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
    // The memory that a process may allocate and that it is seen to hold differ: only a try shows what fits.
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

/// How often a requested stop is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// So long may the process neither write a line nor use the CPU.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(600);

pub struct Measurer {
    child: Child,
    batches: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    silence_timeout: Duration,
    /// Warnings that no one has taken yet.
    warnings: Vec<Warning>,
}

/// The end of the measuring process, instead of an answer.
#[derive(Debug)]
pub enum Ended {
    /// It reported an error.
    Failed(Failure),
    /// It died without a word: the kernel kills a process for its memory so.
    Died,
}

impl Measurer {
    pub fn start(spec_file: &Path) -> Result<Self, TrainerError> {
        let mut command = Command::new(std::env::current_exe().map_err(fail)?);
        command.arg("measure").arg("--spec").arg(spec_file);
        Self::spawn(command, SILENCE_TIMEOUT)
    }

    fn spawn(mut command: Command, silence_timeout: Duration) -> Result<Self, TrainerError> {
        // Its stdin takes the batches.
        command.env_remove(LEASE_VARIABLE).stdin(Stdio::piped()).stdout(Stdio::piped());
        die_with_this_process(&mut command);
        let mut child = command.spawn().map_err(fail)?;
        let (sender, lines) = sync_channel(16);
        let batches = child.stdin.take();
        let stdout = child.stdout.take();
        let this = Self { child, batches, lines, silence_timeout, warnings: Vec::new() };
        if let Some(stdout) = stdout {
            let reader = thread::Builder::new().name("measurer".to_owned());
            reader.spawn(move || forward(stdout, &sender)).map_err(fail)?;
        }
        Ok(this)
    }

    /// Waits until the process is ready to try batches.
    pub fn ready(&mut self, stop: &Stop) -> Result<Result<Ready, Ended>, TrainerError> {
        self.wait(stop, |answer| if let Answer::Ready(ready) = answer { Some(ready) } else { None })
    }

    /// Has it try a batch.
    pub fn ask(&mut self, batch: u32, stop: &Stop) -> Result<Result<Measured, Ended>, TrainerError> {
        // A process that has died says so below: its stdout has ended.
        if let Some(batches) = &mut self.batches {
            let _ = writeln!(batches, "{batch}");
        }
        self.wait(stop, |answer| match answer {
            Answer::Measured(measured) if measured.batch == batch => Some(measured),
            _ => None,
        })
    }

    /// The warnings that came since this was last called.
    pub fn warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }

    /// Waits for the answer that `wanted` takes. Every other line is skipped, but warnings are kept.
    fn wait<T>(&mut self, stop: &Stop, wanted: impl Fn(Answer) -> Option<T>) -> Result<Result<T, Ended>, TrainerError> {
        let mut active = (Instant::now(), cpu_time(self.child.id()));
        loop {
            if stop.requested() {
                self.end();
                return Err(TrainerError::Stopped { step: 0 });
            }
            let line = match self.lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    let now = (Instant::now(), cpu_time(self.child.id()));
                    if now.1 != active.1 {
                        active = now;
                    } else if now.0.duration_since(active.0) >= self.silence_timeout {
                        self.end();
                        return Err(TrainerError::MeasurerSilent { seconds: self.silence_timeout.as_secs() });
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.end();
                    return Ok(Err(Ended::Died));
                }
            };
            active = (Instant::now(), cpu_time(self.child.id()));
            match serde_json::from_slice(&line) {
                Ok(Answer::Failed(failure)) => {
                    self.end();
                    return match TrainerExit::from_code(i64::from(failure.exit)) {
                        Some(TrainerExit::Stopped) => Err(TrainerError::Stopped { step: 0 }),
                        _ => Ok(Err(Ended::Failed(failure))),
                    };
                }
                Ok(answer) => {
                    if let Some(answer) = wanted(answer) {
                        return Ok(Ok(answer));
                    }
                }
                Err(_) => self.keep_warning(&line),
            }
        }
    }

    fn keep_warning(&mut self, line: &[u8]) {
        let event = std::str::from_utf8(line).ok().and_then(Event::parse);
        if let Some(Event { kind: EventKind::Warning(warning), .. }) = event {
            self.warnings.push(warning);
        }
    }

    /// Its memory is free again when it has exited.
    pub fn end(&mut self) {
        self.batches = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Measurer {
    fn drop(&mut self) {
        self.end();
    }
}

fn fail(source: io::Error) -> TrainerError {
    TrainerError::Io { path: PathBuf::from("pipe-trainer measure"), source }
}

/// Line by line, until the process closes its stdout or no one listens.
fn forward(stdout: ChildStdout, sender: &SyncSender<Vec<u8>>) {
    for line in BufReader::new(stdout).split(b'\n') {
        let Ok(line) = line else { return };
        if sender.send(line).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod measurer_tests {
    use super::*;

    const READY: &str = r#"echo '{"ready":{"device":"cpu","driver":null,"capacity":7,"longest":"3"}}'"#;

    /// A process that runs a shell script instead of measuring.
    fn script(text: &str, silence_timeout: Duration) -> Measurer {
        let mut command = Command::new("sh");
        command.arg("-c").arg(text);
        Measurer::spawn(command, silence_timeout).unwrap()
    }

    fn patient(text: &str) -> Measurer {
        script(text, SILENCE_TIMEOUT)
    }

    fn measured(batch: u32) -> String {
        let measured = format!(r#"{{"batch":{batch},"fits":true,"peak":1,"reserved":1,"longest":"3","ms":1.0}}"#);
        format!(r#"echo '{{"measured":{measured}}}'"#)
    }

    #[test]
    fn other_lines_are_skipped_and_warnings_kept() {
        let warning = r#"echo '{"seq":1,"ts":1.0,"type":"warning","message":"a new head"}'"#;
        let noise = format!(r"{warning}; echo 'a text'; printf '\377\n'; echo; echo '{{}}'");
        let text = format!("{noise}; {READY}; read batch; {noise}; {}; {}; cat", measured(9), measured(4));
        let (mut measurer, stop) = (patient(&text), Stop::default());
        assert_eq!(measurer.ready(&stop).unwrap().unwrap().capacity, Some(7));
        let warnings: Vec<String> = measurer.warnings().into_iter().map(|warning| warning.message).collect();
        assert_eq!(warnings, ["a new head"]);
        assert_eq!(measurer.ask(4, &stop).unwrap().unwrap().batch, 4);
        assert_eq!((measurer.warnings().len(), measurer.warnings().len()), (1, 0));
    }

    #[test]
    fn a_process_that_dies_or_fails_is_an_answer() {
        let stop = Stop::default();
        for text in ["exit 1", "kill -9 $$", "exec 1>&-; cat"] {
            assert!(matches!(patient(text).ready(&stop), Ok(Err(Ended::Died))), "{text}");
            let mut measurer = patient(&format!("{READY}; {text}"));
            measurer.ready(&stop).unwrap().unwrap();
            assert!(matches!(measurer.ask(1, &stop), Ok(Err(Ended::Died))), "{text}");
        }
        let failed = r#"echo '{"failed":{"message":"no such file","hint":null,"exit":3}}'; cat"#;
        let Ok(Err(Ended::Failed(failure))) = patient(failed).ready(&stop) else { panic!("it failed") };
        assert_eq!((failure.message.as_str(), failure.exit), ("no such file", 3));
    }

    #[test]
    fn a_silent_process_is_killed_and_one_that_computes_is_not() {
        let stop = Stop::default();
        let short = Duration::from_secs(1);
        let mut silent = script("exec sleep 1000", short);
        assert!(matches!(silent.ready(&stop), Err(TrainerError::MeasurerSilent { .. })));
        assert!(silent.child.try_wait().unwrap().is_some());
        // Several times as long as the timeout, however fast the machine is.
        let busy = "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; done";
        assert!(script(&format!("{busy}; {READY}; cat"), short).ready(&stop).unwrap().is_ok());
    }

    #[test]
    fn a_stop_is_heard_while_waiting() {
        let stop = Stop::default();
        let mut measurer = patient(&format!("{READY}; exec sleep 1000"));
        measurer.ready(&stop).unwrap().unwrap();
        let request = stop.clone();
        thread::spawn(move || request.request());
        assert!(matches!(measurer.ask(1, &stop), Err(TrainerError::Stopped { step: 0 })));
        assert!(measurer.child.try_wait().unwrap().is_some());
    }
}
