//! How an attempt ended: from exit code, kernel, record and log to an outcome, a cause and a reason. Pure.

use pipe_spec::event::MemoryKind;
use pipe_spec::pipeline::OnOom;
use pipe_spec::text::human_bytes;
use pipe_spec::trainer::WHILE_READING;
use pipe_spec::{Cause, OomRecord, Outcome, Phase, TrainerExit};

use crate::engine::{EndedBy, Ending};
use crate::gpu::Card;

/// The facts about an attempt that is over.
pub struct Evidence<'a> {
    pub ending: &'a Ending,
    pub record: Option<&'a OomRecord>,
    /// The card, once the attempt has left it.
    pub card: Option<&'a Card>,
    /// The last lines of the log.
    pub tail: &'a [String],
    /// The pipeline's `on_oom` for a command. Its exit codes are its own.
    pub command: Option<&'a OnOom>,
    /// Whether the job had a card.
    pub on_card: bool,
    /// Trainer processes that shared its steps.
    pub ranks: u32,
    /// Whether a person requested the stop.
    pub stop_requested: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Diagnosis {
    pub outcome: Outcome,
    pub cause: Option<Cause>,
    pub reason: Option<String>,
}

impl Diagnosis {
    fn new(outcome: Outcome, cause: Cause, reason: impl Into<String>) -> Self {
        Self { outcome, cause: Some(cause), reason: Some(reason.into()) }
    }
}

pub fn diagnose(evidence: &Evidence<'_>) -> Diagnosis {
    let ending = evidence.ending;
    // Killed while the engine was away: not by a person, and not because of memory.
    if ending.outage
        && !evidence.stop_requested
        && !ending.oom_killed
        && matches!(ending.exit_code, None | Some(137 | 143 | 255))
    {
        return Diagnosis::new(Outcome::Stopped, Cause::Interrupted, "the engine or the machine stopped while it ran");
    }
    if let Some(ended_by) = ending.ended_by.as_ref().filter(|_| !evidence.stop_requested && !says_more(evidence)) {
        let saved = evidence.command.is_none() && ending.exit_code == Some(i64::from(TrainerExit::Stopped.code()));
        return of_engine(ended_by, saved);
    }
    let Some(code) = ending.exit_code else {
        let why = ending.lost.clone().unwrap_or_else(|| "it left no exit code".to_owned());
        return if evidence.stop_requested {
            Diagnosis::new(Outcome::Stopped, Cause::Requested, "stopped on request")
        } else {
            Diagnosis::new(Outcome::Failed, Cause::Vanished, why)
        };
    };
    if let Some(policy) = evidence.command {
        return of_command(code, policy, evidence);
    }
    // The kernel may have killed a child of the trainer, which continued without it.
    if ending.oom_killed && TrainerExit::from_code(code).is_none() {
        let rank = lost_rank(evidence).map_or(String::new(), |said| format!("; {said}"));
        let reason = format!("{}{rank}", killed_by_kernel(ending.memory_limit));
        return Diagnosis::new(Outcome::Oom, Cause::HostMemory, reason);
    }
    match TrainerExit::from_code(code) {
        Some(TrainerExit::Done) => Diagnosis { outcome: Outcome::Finished, cause: None, reason: None },
        Some(TrainerExit::DeviceOutOfMemory) => out_of_memory(MemoryKind::Device, evidence),
        Some(TrainerExit::HostOutOfMemory) => out_of_memory(MemoryKind::Host, evidence),
        Some(TrainerExit::Stopped) => Diagnosis::new(Outcome::Stopped, Cause::Requested, "stopped on request, saved"),
        Some(TrainerExit::BadInput | TrainerExit::Unexpected | TrainerExit::Usage | TrainerExit::NotFinite) => {
            Diagnosis::new(Outcome::Failed, Cause::Trainer, trainer_error(code, evidence.tail))
        }
        None if evidence.stop_requested => Diagnosis::new(Outcome::Stopped, Cause::Requested, "stopped on request"),
        None => match signal_of(code) {
            Some(signal) => {
                let what = lost_rank(evidence).map_or_else(|| format!("killed by {signal}"), str::to_owned);
                let advice = if signal == SIGBUS { UNREADABLE } else { "" };
                let reason = format!("{what} (exit code {code}), not because of memory{advice}");
                Diagnosis::new(Outcome::Failed, Cause::Killed, reason)
            }
            None => Diagnosis::new(Outcome::Failed, Cause::Trainer, trainer_error(code, evidence.tail)),
        },
    }
}

/// Whether the job itself says how it ended, whatever was done to it then.
fn says_more(evidence: &Evidence<'_>) -> bool {
    let out_of_memory =
        [TrainerExit::DeviceOutOfMemory, TrainerExit::HostOutOfMemory].map(|exit| i64::from(exit.code()));
    match evidence.ending.exit_code {
        _ if evidence.ending.completed => true,
        Some(code) => evidence.ending.oom_killed || (evidence.command.is_none() && out_of_memory.contains(&code)),
        None => evidence.ending.oom_killed,
    }
}

/// The end of a job that the cluster did not let come to its end.
fn of_engine(ended_by: &EndedBy, saved: bool) -> Diagnosis {
    let saved = if saved { ", saved" } else { "" };
    let cause = match ended_by {
        EndedBy::TimeLimit => Cause::TimeLimit,
        EndedBy::Preempted => Cause::Preempted,
        EndedBy::NodeLost { .. } => Cause::NodeLost,
        EndedBy::Requested => Cause::Requested,
        EndedBy::Cancelled { .. } => Cause::Cancelled,
    };
    Diagnosis::new(Outcome::Stopped, cause, format!("{ended_by}{saved}"))
}

/// The end of a command: what it printed and survived is no out-of-memory.
fn of_command(code: i64, policy: &OnOom, evidence: &Evidence<'_>) -> Diagnosis {
    // A command that had done its work before has nothing left to do.
    if evidence.stop_requested && !evidence.ending.completed {
        return Diagnosis::new(Outcome::Stopped, Cause::Requested, "stopped on request");
    }
    if code == 0 {
        return Diagnosis { outcome: Outcome::Finished, cause: None, reason: None };
    }
    // The kernel may have killed one of its processes long before it ended for another reason.
    if evidence.ending.oom_killed && (evidence.record.is_none() || code == 137) {
        return Diagnosis::new(Outcome::Oom, Cause::HostMemory, killed_by_kernel(evidence.ending.memory_limit));
    }
    if let Some(record) = evidence.record {
        return out_of_memory(record.memory, evidence);
    }
    if policy.exit_codes.iter().any(|each| i64::from(*each) == code) {
        let cause = if evidence.on_card { Cause::Capacity } else { Cause::HostMemory };
        return Diagnosis::new(Outcome::Oom, cause, format!("exit code {code}, which on_oom.exit_codes names"));
    }
    match signal_of(code) {
        Some(signal) => {
            let reason = format!("killed by {signal} (exit code {code}), not because of memory");
            Diagnosis::new(Outcome::Failed, Cause::Killed, reason)
        }
        None => Diagnosis::new(Outcome::Failed, Cause::Trainer, format!("the command ended with exit code {code}")),
    }
}

fn killed_by_kernel(limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!("the kernel killed it at its memory limit of {}", human_bytes(limit)),
        None => "the kernel killed it because memory ran out".to_owned(),
    }
}

fn out_of_memory(memory: MemoryKind, evidence: &Evidence<'_>) -> Diagnosis {
    let card = evidence.card.filter(|_| memory == MemoryKind::Device);
    let Some(record) = evidence.record else {
        return match (memory, card) {
            (MemoryKind::Host, _) => {
                let said = evidence.tail.iter().rev().find_map(|line| reading_position(line.strip_prefix("error: ")?));
                let position = said.unwrap_or_default();
                Diagnosis::new(Outcome::Oom, Cause::HostMemory, format!("the host's memory ran out{position}"))
            }
            // The card had no room for the CUDA context.
            (MemoryKind::Device, Some(card)) if card.free < CONTEXT_BYTES => {
                Diagnosis::new(Outcome::Oom, Cause::Neighbour, format!("the card is full{}", held_by(Some(card))))
            }
            (MemoryKind::Device, _) => Diagnosis::new(Outcome::Oom, Cause::Capacity, "the card's memory ran out"),
        };
    };
    let cause = match memory {
        MemoryKind::Host => Cause::HostMemory,
        MemoryKind::Device if is_crowded(record, card) => {
            let reason = format!("{}{}", describe(memory, record, evidence.ranks), held_by(card));
            return Diagnosis::new(Outcome::Oom, Cause::Neighbour, reason);
        }
        MemoryKind::Device if is_fragmented(record) => Cause::Fragmented,
        MemoryKind::Device => match record.phase {
            Phase::Forward | Phase::Backward => Cause::Capacity,
            Phase::Eval => Cause::EvalOnly,
            Phase::Load | Phase::Optimizer | Phase::Checkpoint | Phase::Resume => Cause::Model,
        },
    };
    Diagnosis::new(Outcome::Oom, cause, describe(memory, record, evidence.ranks))
}

/// Bytes that a process needs on a card before it has allocated anything.
const CONTEXT_BYTES: u64 = 1 << 30;

/// Whether other processes hold the requested memory: the run is below its limit, the card has too little free memory, and
/// would have enough without them.
fn is_crowded(record: &OomRecord, card: Option<&Card>) -> bool {
    let (Some(requested), Some(free)) = (record.sizes.requested, record.sizes.card_free) else { return false };
    let others = record.sizes.others.into_iter().chain(card.map(Card::used)).max().unwrap_or(0);
    let allowed = match (record.sizes.total, record.sizes.reserved) {
        (Some(total), Some(reserved)) => reserved.saturating_add(requested) <= total,
        _ => true,
    };
    allowed && requested > free && free.saturating_add(others) >= requested
}

/// The processes that use the card.
fn held_by(card: Option<&Card>) -> String {
    let Some(card) = card.filter(|card| card.used() > 0) else { return String::new() };
    let holders: Vec<String> = card.holders.iter().take(3).map(ToString::to_string).collect();
    let processes = if holders.is_empty() { "other processes".to_owned() } else { holders.join(", ") };
    format!("; {} of the card held by {processes}", human_bytes(card.used()))
}

/// Whether what the allocator held unused would have been enough, in smaller pieces.
fn is_fragmented(record: &OomRecord) -> bool {
    // A torch that writes so refuses the setting that would help.
    if record.message.contains("reserved in total by PyTorch") {
        return false;
    }
    match (record.sizes.reserved, record.sizes.allocated, record.sizes.requested) {
        (Some(reserved), Some(allocated), Some(requested)) => reserved.saturating_sub(allocated) >= requested,
        _ => false,
    }
}

/// Which row or file the trainer was reading when memory ran out, if its message says so.
fn reading_position(message: &str) -> Option<&str> {
    message.find(WHILE_READING).map(|start| &message[start..])
}

fn describe(memory: MemoryKind, record: &OomRecord, ranks: u32) -> String {
    let mut text = match (ranks, memory) {
        (0 | 1, MemoryKind::Device) => "the card's memory ran out".to_owned(),
        (0 | 1, MemoryKind::Host) => "the host's memory ran out".to_owned(),
        (_, MemoryKind::Device) => format!("rank {} ran out of memory on its card", record.rank),
        (_, MemoryKind::Host) => format!("rank {} ran out of memory of the host", record.rank),
    };
    if let (MemoryKind::Host, Some(position)) = (memory, reading_position(&record.message)) {
        text.push_str(position);
        return text;
    }
    // A command does not say what it was doing.
    if record.step > 0 || record.phase != Phase::Forward {
        text.push_str(&format!(" in {} of step {}", record.phase.name(), record.step));
    }
    if let Some(requested) = record.sizes.requested {
        text.push_str(&format!(": {} requested", human_bytes(requested)));
        if let Some(total) = record.sizes.total {
            let used = record.sizes.total.zip(record.sizes.free).map(|(total, free)| total.saturating_sub(free));
            let used = used.map_or(String::new(), |used| format!("{} of ", human_bytes(used)));
            text.push_str(&format!(" with {used}{} in use", human_bytes(total)));
        }
    }
    text
}

/// The error of a trainer that lost a rank: it is the first process of several, and ends as that rank did.
fn lost_rank<'a>(evidence: &Evidence<'a>) -> Option<&'a str> {
    let said = evidence.tail.iter().rev().find_map(|line| line.strip_prefix("error: "))?;
    Some(said).filter(|said| evidence.ranks > 1 && said.starts_with("rank "))
}

/// The trainer's own error, with its hint, from the end of its log.
fn trainer_error(code: i64, tail: &[String]) -> String {
    let Some(at) = tail.iter().rposition(|line| line.starts_with("error: ")) else {
        return match tail.last() {
            Some(last) => format!("exit code {code}; the last line of its log is: {last}"),
            None => format!("exit code {code}, and it wrote nothing"),
        };
    };
    let said: Vec<&str> = tail[at..].iter().map(String::as_str).collect();
    said.join("\n").trim_start_matches("error: ").to_owned()
}

const SIGBUS: &str = "SIGBUS";

/// The meaning of that signal where a trainer reads files that are mapped into memory.
const UNREADABLE: &str = ": a file that it read became shorter, its disk failed, or /dev/shm is full\n\
    hint: bring the file back as it was, or set container.shm, then continue with `pipe resume`; \
    for changed data start a new run";

/// The signal behind an exit code above 128.
fn signal_of(code: i64) -> Option<String> {
    let name = match code.checked_sub(128)? {
        1 => "SIGHUP",
        2 => "SIGINT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => SIGBUS,
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
    use pipe_spec::event::OomSizes;

    use super::*;
    use crate::gpu::Holder;

    fn ending(exit_code: Option<i64>, oom_killed: bool) -> Ending {
        Ending { oom_killed, memory_limit: Some(700 << 20), ..Ending::exited(exit_code) }
    }

    fn record(phase: Phase, reserved: u64, allocated: u64, requested: u64) -> OomRecord {
        OomRecord {
            step: 3,
            batch: 8,
            sizes: OomSizes {
                requested: Some(requested),
                allocated: Some(allocated),
                reserved: Some(reserved),
                ..OomSizes::default()
            },
            ..OomRecord::new(MemoryKind::Device, phase)
        }
    }

    fn diagnosis(ending: &Ending, record: Option<&OomRecord>, tail: &[&str], stop_requested: bool) -> Diagnosis {
        let tail: Vec<String> = tail.iter().map(|line| (*line).to_owned()).collect();
        diagnose(&Evidence {
            ending,
            record,
            card: None,
            tail: &tail,
            command: None,
            on_card: false,
            ranks: 1,
            stop_requested,
        })
    }

    #[test]
    fn the_row_at_which_the_hosts_memory_ran_out_is_told() {
        let said =
            "error: out of host memory: the memory limit and its reserve are used up while reading row 2 of a.jsonl";
        let want = Some("the host's memory ran out while reading row 2 of a.jsonl".to_owned());
        assert_eq!(diagnosis(&ending(Some(43), false), None, &["step 1", said, "hint: none"], false).reason, want);
        let message = "the memory limit was reached while reading row 2 of a.jsonl".to_owned();
        let record = OomRecord { memory: MemoryKind::Host, message, ..record(Phase::Load, 0, 0, 0) };
        assert_eq!(diagnosis(&ending(Some(43), false), Some(&record), &[], false).reason, want);
        let silent = diagnosis(&ending(Some(43), false), None, &["error: out of host memory: std::bad_alloc"], false);
        assert_eq!(silent.reason.as_deref(), Some("the host's memory ran out"));
    }

    #[test]
    fn exit_codes() {
        use Outcome::{Failed, Finished, Oom, Stopped};
        let cases = [
            (Some(0), false, Finished, None),
            (Some(42), false, Oom, Some(Cause::Capacity)),
            (Some(43), false, Oom, Some(Cause::HostMemory)),
            (Some(137), true, Oom, Some(Cause::HostMemory)),
            (Some(0), true, Finished, None),
            (Some(42), true, Oom, Some(Cause::Capacity)),
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
            let got = diagnosis(&ending(code, oom_killed), None, &[], false);
            assert_eq!((got.outcome, got.cause), (outcome, cause), "{code:?} {oom_killed}");
        }
    }

    #[test]
    fn a_kill_on_request_is_a_stop() {
        for code in [Some(137), None] {
            assert_eq!(diagnosis(&ending(code, false), None, &[], true).outcome, Outcome::Stopped);
        }
    }

    #[test]
    fn an_end_while_the_engine_was_away_is_an_interruption() {
        let away = |code, oom_killed| Ending { outage: true, ..ending(code, oom_killed) };
        for code in [Some(137), Some(143), None] {
            assert_eq!(diagnosis(&away(code, false), None, &[], false).cause, Some(Cause::Interrupted), "{code:?}");
            assert_eq!(diagnosis(&away(code, false), None, &[], true).cause, Some(Cause::Requested), "{code:?}");
        }
        assert_eq!(diagnosis(&away(Some(0), false), None, &[], false).outcome, Outcome::Finished);
        assert_eq!(diagnosis(&away(Some(137), true), None, &[], false).cause, Some(Cause::HostMemory));
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
            assert_eq!(diagnosis(&ending(Some(42), false), Some(&record), &[], false).cause, Some(cause), "{record:?}");
        }
    }

    #[test]
    fn a_neighbour_is_told_from_a_card_that_is_too_small() {
        let crowded = |reserved, requested, total, free, others| {
            let mut record = record(Phase::Load, reserved, reserved, requested);
            (record.sizes.total, record.sizes.card_total) = (Some(total), Some(100));
            (record.sizes.card_free, record.sizes.others) = (Some(free), Some(others));
            record
        };
        let cases = [
            // Others hold half of the card.
            (crowded(40, 20, 100, 8, 50), Cause::Neighbour),
            // No other process uses the card.
            (crowded(90, 20, 100, 8, 0), Cause::Model),
            // Another process uses it, but its memory would not be enough.
            (crowded(80, 30, 120, 8, 10), Cause::Model),
            // The run's own limit was in the way, not the card.
            (crowded(40, 20, 50, 30, 30), Cause::Model),
            (crowded(40, 20, 50, 8, 50), Cause::Model),
        ];
        for (record, cause) in cases {
            assert_eq!(diagnosis(&ending(Some(42), false), Some(&record), &[], false).cause, Some(cause), "{record:?}");
        }
    }

    #[test]
    fn who_holds_the_card_is_said() {
        let holder = |pid, bytes| Holder { pid, name: Some("python3".to_owned()), bytes: Some(bytes) };
        let mut card =
            Card { total: 24 << 30, free: 512 << 20, holders: vec![holder(77, 20 << 30)], ..Card::example(0) };
        let ended = ending(Some(42), false);
        let judged = |card: &Card| {
            let (record, card) = (None, Some(card));
            let (command, on_card, stop_requested) = (None, true, false);
            diagnose(&Evidence { ending: &ended, record, card, tail: &[], command, on_card, ranks: 1, stop_requested })
        };
        let diagnosis = judged(&card);
        assert_eq!(diagnosis.cause, Some(Cause::Neighbour));
        assert!(diagnosis.reason.unwrap().contains("held by python3 (77, 20"));
        card.free = 20 << 30;
        assert_eq!(judged(&card).cause, Some(Cause::Capacity));
    }

    #[test]
    fn the_trainers_own_words() {
        let got = diagnosis(&ending(Some(3), false), None, &["noise", "error: no rows", "hint: add some"], false);
        assert_eq!(got.reason.as_deref(), Some("no rows\nhint: add some"));
        let got = diagnosis(&ending(Some(1), false), None, &["panic at the disco"], false);
        assert_eq!(got.reason.as_deref(), Some("exit code 1; the last line of its log is: panic at the disco"));
    }

    #[test]
    fn the_rank_is_named() {
        let tail = ["error: rank 3 was killed by SIGKILL".to_owned(), "hint: none".to_owned()];
        let of = |ending: &Ending, record: Option<&OomRecord>, ranks: u32| {
            let (card, command, on_card, stop_requested) = (None, None, true, false);
            let evidence = Evidence { ending, record, card, tail: &tail, command, on_card, ranks, stop_requested };
            let found = diagnose(&evidence);
            (found.cause, found.reason.unwrap_or_default())
        };
        let record = OomRecord { rank: 2, ..record(Phase::Backward, 100, 100, 20) };
        let (cause, reason) = of(&ending(Some(42), false), Some(&record), 4);
        assert_eq!(cause, Some(Cause::Capacity));
        assert_eq!(reason, "rank 2 ran out of memory on its card in backward of step 3: 20 B requested");
        let (_, reason) = of(&ending(Some(42), false), Some(&record), 1);
        assert_eq!(reason, "the card's memory ran out in backward of step 3: 20 B requested");
        let (cause, reason) = of(&ending(Some(43), false), Some(&record), 4);
        assert_eq!(
            (cause, reason.starts_with("rank 2 ran out of memory of the host in backward")),
            (Some(Cause::HostMemory), true)
        );
        // The trainer ends as its rank did.
        let (cause, reason) = of(&ending(Some(137), true), None, 4);
        assert_eq!(cause, Some(Cause::HostMemory));
        assert!(reason.ends_with("limit of 700.0 MiB; rank 3 was killed by SIGKILL"), "{reason}");
        let (cause, reason) = of(&ending(Some(137), false), None, 4);
        assert_eq!(cause, Some(Cause::Killed));
        assert!(reason == "rank 3 was killed by SIGKILL (exit code 137), not because of memory", "{reason}");
        let (cause, reason) = of(&ending(Some(135), false), None, 1);
        assert_eq!(cause, Some(Cause::Killed));
        assert!(reason.contains("became shorter") && reason.contains("\nhint: bring the file back"), "{reason}");
        let (cause, reason) = of(&ending(Some(1), false), None, 4);
        assert_eq!((cause, reason.as_str()), (Some(Cause::Trainer), "rank 3 was killed by SIGKILL\nhint: none"));
    }

    /// Exit codes of a command are its own: what its log, the kernel and the pipeline say decides.
    #[test]
    fn ends_of_commands() {
        let policy = OnOom { exit_codes: vec![42], ..OnOom::default() };
        let sizes = OomSizes { requested: Some(2 << 30), ..OomSizes::default() };
        let record = OomRecord { sizes, ..OomRecord::new(MemoryKind::Device, Phase::Forward) };
        let of = |ending: &Ending, record, stop_requested| {
            let (command, on_card) = (Some(&policy), true);
            diagnose(&Evidence { ending, record, card: None, tail: &[], command, on_card, ranks: 1, stop_requested })
        };
        use Outcome::{Failed, Finished, Oom, Stopped};
        for (code, killed, record, stop, outcome, cause) in [
            (0, false, None, false, Finished, None),
            (1, false, Some(&record), false, Oom, Some(Cause::Capacity)),
            (1, false, None, false, Failed, Some(Cause::Trainer)),
            (3, false, None, false, Failed, Some(Cause::Trainer)),
            (42, false, None, false, Oom, Some(Cause::Capacity)),
            (43, false, None, false, Failed, Some(Cause::Trainer)),
            (137, false, None, false, Failed, Some(Cause::Killed)),
            (137, true, None, false, Oom, Some(Cause::HostMemory)),
            (0, false, None, true, Stopped, Some(Cause::Requested)),
            (143, false, None, true, Stopped, Some(Cause::Requested)),
        ] {
            let found = of(&ending(Some(code), killed), record, stop);
            assert_eq!((found.outcome, found.cause), (outcome, cause), "{code} {killed} {stop}");
        }
        // It had ended before the request.
        let completed = Ending { completed: true, ..ending(Some(0), false) };
        assert_eq!(of(&completed, None, true).outcome, Finished);
        let cancelled = Ending { ended_by: Some(EndedBy::Cancelled { by_other: None }), ..completed };
        assert_eq!(of(&cancelled, None, false).outcome, Finished);
        let found = of(&ending(Some(1), false), Some(&record), false);
        assert_eq!(found.reason.as_deref(), Some("the card's memory ran out: 2.0 GiB requested"));
    }
}
