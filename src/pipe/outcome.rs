//! How an attempt ended: from exit code, kernel, record and log to an outcome, a cause and a reason in words. Pure.

use pipe_spec::event::Memory;
use pipe_spec::text::human_bytes;
use pipe_spec::{Cause, OomRecord, Outcome, Phase, TrainerExit};

use crate::engine::Ending;

/// What is known about an attempt that is over.
pub struct Evidence<'a> {
    pub ending: &'a Ending,
    pub record: Option<&'a OomRecord>,
    /// The last lines of the log.
    pub tail: &'a [String],
    /// Whether a person asked for the end.
    pub stop_requested: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub outcome: Outcome,
    pub cause: Option<Cause>,
    pub reason: Option<String>,
}

impl Verdict {
    fn new(outcome: Outcome, cause: Cause, reason: impl Into<String>) -> Self {
        Self { outcome, cause: Some(cause), reason: Some(reason.into()) }
    }
}

pub fn judge(evidence: &Evidence<'_>) -> Verdict {
    let ending = evidence.ending;
    let Some(code) = ending.exit_code else {
        let why = ending.lost.clone().unwrap_or_else(|| "it left no exit code".to_owned());
        return if evidence.stop_requested {
            Verdict::new(Outcome::Stopped, Cause::Requested, "stopped on request")
        } else {
            Verdict::new(Outcome::Failed, Cause::Vanished, why)
        };
    };
    if ending.oom_killed {
        return Verdict::new(Outcome::Oom, Cause::HostMemory, killed_by_kernel(ending.memory_limit));
    }
    match TrainerExit::from_code(code) {
        Some(TrainerExit::Done) => Verdict { outcome: Outcome::Finished, cause: None, reason: None },
        Some(TrainerExit::DeviceOutOfMemory) => out_of_memory(Memory::Device, evidence.record),
        Some(TrainerExit::HostOutOfMemory) => out_of_memory(Memory::Host, evidence.record),
        Some(TrainerExit::Stopped) => Verdict::new(Outcome::Stopped, Cause::Requested, "stopped on request, saved"),
        Some(TrainerExit::BadInput | TrainerExit::Unexpected | TrainerExit::Usage | TrainerExit::NotFinite) => {
            Verdict::new(Outcome::Failed, Cause::Trainer, trainer_words(code, evidence.tail))
        }
        None if evidence.stop_requested => Verdict::new(Outcome::Stopped, Cause::Requested, "stopped on request"),
        None => match signal_of(code) {
            Some(signal) => Verdict::new(
                Outcome::Failed,
                Cause::Killed,
                format!("killed by {signal} (exit code {code}), not for want of memory"),
            ),
            None => Verdict::new(Outcome::Failed, Cause::Trainer, trainer_words(code, evidence.tail)),
        },
    }
}

fn killed_by_kernel(limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!("the kernel killed it at its memory limit of {}", human_bytes(limit)),
        None => "the kernel killed it for want of memory".to_owned(),
    }
}

fn out_of_memory(memory: Memory, record: Option<&OomRecord>) -> Verdict {
    let Some(record) = record else {
        let (cause, whose) = match memory {
            Memory::Device => (Cause::Capacity, "the card's"),
            Memory::Host => (Cause::HostMemory, "the host's"),
        };
        return Verdict::new(Outcome::Oom, cause, format!("{whose} memory ran out"));
    };
    let cause = match memory {
        Memory::Host => Cause::HostMemory,
        Memory::Device if is_fragmented(record) => Cause::Fragmented,
        Memory::Device => match record.phase {
            Phase::Forward | Phase::Backward => Cause::Capacity,
            Phase::Eval => Cause::EvalOnly,
            Phase::Load | Phase::Optimizer | Phase::Checkpoint | Phase::Resume => Cause::Model,
        },
    };
    Verdict::new(Outcome::Oom, cause, describe(memory, record))
}

/// Whether what the allocator held unused would have been enough, in smaller pieces.
fn is_fragmented(record: &OomRecord) -> bool {
    match (record.reserved, record.allocated, record.requested) {
        (Some(reserved), Some(allocated), Some(requested)) => reserved.saturating_sub(allocated) >= requested,
        _ => false,
    }
}

fn describe(memory: Memory, record: &OomRecord) -> String {
    let whose = match memory {
        Memory::Device => "the card's",
        Memory::Host => "the host's",
    };
    let mut text = format!("{whose} memory ran out in {} of step {}", record.phase.name(), record.step);
    if let Some(requested) = record.requested {
        text.push_str(&format!(": {} asked for", human_bytes(requested)));
        if let Some(total) = record.total {
            let used = record.total.zip(record.free).map(|(total, free)| total.saturating_sub(free));
            let used = used.map_or(String::new(), |used| format!("{} of ", human_bytes(used)));
            text.push_str(&format!(" with {used}{} in use", human_bytes(total)));
        }
    }
    text
}

/// The trainer's own error, with its hint, from the end of its log.
fn trainer_words(code: i64, tail: &[String]) -> String {
    let Some(at) = tail.iter().rposition(|line| line.starts_with("error: ")) else {
        return match tail.last() {
            Some(last) => format!("exit code {code}; the last line of its log is: {last}"),
            None => format!("exit code {code}, and it wrote nothing"),
        };
    };
    let said: Vec<&str> = tail[at..].iter().map(String::as_str).collect();
    said.join("\n").trim_start_matches("error: ").to_owned()
}

/// The signal behind an exit code above 128.
fn signal_of(code: i64) -> Option<String> {
    let name = match code.checked_sub(128)? {
        1 => "SIGHUP",
        2 => "SIGINT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        number if (1..=64).contains(&number) => return Some(format!("signal {number}")),
        _ => return None,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(exit_code: Option<i64>, oom_killed: bool) -> Ending {
        Ending { exit_code, oom_killed, memory_limit: Some(700 << 20), lost: None }
    }

    fn record(phase: Phase, reserved: u64, allocated: u64, requested: u64) -> OomRecord {
        OomRecord {
            memory: Memory::Device,
            phase,
            step: 3,
            batch: 8,
            longest_sequence: None,
            requested: Some(requested),
            allocated: Some(allocated),
            reserved: Some(reserved),
            peak: None,
            free: None,
            total: None,
            others: None,
            allocator: None,
            alloc_retries: None,
            message: String::new(),
        }
    }

    fn verdict(ending: &Ending, record: Option<&OomRecord>, tail: &[&str], stop_requested: bool) -> Verdict {
        let tail: Vec<String> = tail.iter().map(|line| (*line).to_owned()).collect();
        judge(&Evidence { ending, record, tail: &tail, stop_requested })
    }

    #[test]
    fn exit_codes() {
        use Outcome::{Failed, Finished, Oom, Stopped};
        let cases = [
            (Some(0), false, Finished, None),
            (Some(42), false, Oom, Some(Cause::Capacity)),
            (Some(43), false, Oom, Some(Cause::HostMemory)),
            (Some(137), true, Oom, Some(Cause::HostMemory)),
            (Some(137), false, Failed, Some(Cause::Killed)),
            (Some(139), false, Failed, Some(Cause::Killed)),
            (Some(134), false, Failed, Some(Cause::Killed)),
            (Some(1), false, Failed, Some(Cause::Trainer)),
            (Some(2), false, Failed, Some(Cause::Trainer)),
            (Some(3), false, Failed, Some(Cause::Trainer)),
            (Some(44), false, Failed, Some(Cause::Trainer)),
            (Some(99), false, Failed, Some(Cause::Trainer)),
            (Some(143), false, Stopped, Some(Cause::Requested)),
            (None, false, Failed, Some(Cause::Vanished)),
        ];
        for (code, oom_killed, outcome, cause) in cases {
            let got = verdict(&ending(code, oom_killed), None, &[], false);
            assert_eq!((got.outcome, got.cause), (outcome, cause), "{code:?} {oom_killed}");
        }
    }

    #[test]
    fn a_kill_on_request_is_a_stop() {
        for code in [Some(137), None] {
            assert_eq!(verdict(&ending(code, false), None, &[], true).outcome, Outcome::Stopped);
        }
    }

    #[test]
    fn the_record_tells_the_cause() {
        let cases = [
            (record(Phase::Forward, 100, 90, 20), Cause::Capacity),
            (record(Phase::Backward, 100, 100, 1), Cause::Capacity),
            (record(Phase::Backward, 100, 50, 20), Cause::Fragmented),
            (record(Phase::Eval, 100, 95, 20), Cause::EvalOnly),
            (record(Phase::Load, 100, 95, 20), Cause::Model),
            (record(Phase::Optimizer, 100, 95, 20), Cause::Model),
            (record(Phase::Resume, 100, 95, 20), Cause::Model),
            (record(Phase::Checkpoint, 100, 95, 20), Cause::Model),
        ];
        for (record, cause) in cases {
            assert_eq!(verdict(&ending(Some(42), false), Some(&record), &[], false).cause, Some(cause), "{record:?}");
        }
    }

    #[test]
    fn the_trainers_own_words() {
        let got = verdict(&ending(Some(3), false), None, &["noise", "error: no rows", "hint: add some"], false);
        assert_eq!(got.reason.as_deref(), Some("no rows\nhint: add some"));
        let got = verdict(&ending(Some(1), false), None, &["panic at the disco"], false);
        assert_eq!(got.reason.as_deref(), Some("exit code 1; the last line of its log is: panic at the disco"));
    }
}
