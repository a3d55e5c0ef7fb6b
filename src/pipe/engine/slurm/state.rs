//! How a job ended, read from the state and the exit code that the cluster gives. Pure.

use crate::engine::first_process::{self, KILLED};
use crate::engine::{EndedBy, Ending};

/// A job as squeue, scontrol or sacct tell of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobState {
    /// Such as `RUNNING`, in one word.
    pub state: String,
    /// Why it waits, or has ended.
    pub reason: String,
    /// Exit code and signal of the batch script.
    pub exit: Option<(i64, i64)>,
    /// Who cancelled it, as a user number.
    pub cancelled_by: Option<u32>,
    /// The kernel killed a process of one of its steps for want of memory.
    pub step_out_of_memory: bool,
    /// It was told to make place for another one.
    pub preempted: bool,
}

impl JobState {
    /// A state may be followed by more: `CANCELLED by 1000`, `CANCELLED+`.
    pub fn new(state: &str, reason: &str, exit: &str) -> Self {
        let mut words = state.split_whitespace();
        let name = words.next().unwrap_or_default().trim_end_matches('+').to_owned();
        let cancelled_by = words.nth(1).and_then(|user| user.parse().ok());
        let exit = exit.split_once(':').and_then(|(code, signal)| Some((code.parse().ok()?, signal.parse().ok()?)));
        let reason = if reason == "None" { "" } else { reason };
        Self { state: name, reason: reason.to_owned(), exit, cancelled_by, ..Self::default() }
    }

    pub fn is_pending(&self) -> bool {
        matches!(self.state.as_str(), "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT")
    }

    /// Whether it will not run any more.
    pub fn has_ended(&self) -> bool {
        matches!(
            self.state.as_str(),
            "BOOT_FAIL"
                | "CANCELLED"
                | "COMPLETED"
                | "DEADLINE"
                | "FAILED"
                | "NODE_FAIL"
                | "OUT_OF_MEMORY"
                | "PREEMPTED"
                | "REVOKED"
                | "TIMEOUT"
        )
    }

    /// Why it cannot start, where waiting does not help: the cluster takes such jobs and lets them wait for ever.
    pub fn never_starts(&self) -> Option<&str> {
        let never = [
            "PartitionNodeLimit",
            "PartitionTimeLimit",
            "PartitionConfig",
            "BadConstraints",
            "InvalidAccount",
            "InvalidQOS",
            "AccountNotAllowed",
            "AccountingPolicy",
            "DependencyNeverSatisfied",
        ];
        // Hours that are spent come back when the account gets more.
        let spent = |reason: &str| {
            (reason.starts_with("Assoc") || reason.starts_with("QOS"))
                // Minutes of jobs that run come back when these end.
                && !reason.contains("RunMinutes")
                && (reason.contains("Minutes") || reason.contains("PerJob") || reason.contains("MaxWallDuration"))
        };
        let reason = self.reason.as_str();
        (self.is_pending() && (never.contains(&reason) || spent(reason))).then_some(reason)
    }
}

/// The files that the batch script left in the folder of its attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptResult {
    /// The exit code of the job.
    pub code: Option<i64>,
    /// Whether the job was asked to save because its time was almost over.
    pub time_was_up: bool,
    /// Processes of its nodes that the kernel killed for want of memory.
    pub oom_kills: u64,
}

/// The end of a job, from what its script left and what the cluster says. `is_trainer`: the trainer ends with 0 only when it is done, while a
/// command may also do so when it was told to stop. `own` is the number of this user.
pub fn ending(
    script: &ScriptResult,
    job: Option<&JobState>,
    is_trainer: bool,
    memory_limit: Option<u64>,
    own: u32,
) -> Ending {
    let state = job.map_or("", |job| job.state.as_str());
    let oom_killed = state == "OUT_OF_MEMORY"
        || job.is_some_and(|job| job.step_out_of_memory)
        || first_process::is_oom_killed(script.oom_kills, script.code, is_trainer, true);
    let exit_code = match script.code {
        // So srun says that a task was killed.
        Some(1) if oom_killed => Some(KILLED),
        code => code.or_else(|| job.and_then(exit_code)),
    };
    let ended_by = match state {
        "TIMEOUT" | "DEADLINE" => Some(EndedBy::TimeLimit),
        "PREEMPTED" => Some(EndedBy::Preempted),
        "NODE_FAIL" => Some(EndedBy::NodeLost { what: "a node failed".to_owned() }),
        "BOOT_FAIL" => Some(EndedBy::NodeLost { what: "a node did not boot".to_owned() }),
        "CANCELLED" | "REVOKED" => {
            Some(EndedBy::Cancelled { by_other: job.and_then(|job| job.cancelled_by).filter(|user| *user != own) })
        }
        // A trainer that is done.
        _ if is_trainer && exit_code == Some(0) => None,
        // It ended by itself when it was told.
        _ if job.is_some_and(|job| job.preempted) => Some(EndedBy::Preempted),
        _ if script.time_was_up => Some(EndedBy::TimeLimit),
        _ => None,
    };
    let lost = match (exit_code, job) {
        (Some(_), _) => None,
        (None, Some(job)) if !job.reason.is_empty() => {
            Some(format!("the cluster says {} ({}) of its job", job.state, job.reason))
        }
        (None, Some(job)) => Some(format!("the cluster says {} of its job", job.state)),
        (None, None) => Some("the cluster does not know its job any more".to_owned()),
    };
    // One that nobody knows any more was not ended by a person.
    let outage = exit_code.is_none() && job.is_none();
    Ending { exit_code, oom_killed, memory_limit, lost, outage, ended_by, completed: false }
}

/// As a shell gives it. What ends without a word of its own has none.
fn exit_code(job: &JobState) -> Option<i64> {
    match (job.state.as_str(), job.exit?) {
        ("COMPLETED", (code, _)) => Some(code),
        ("OUT_OF_MEMORY", _) => Some(KILLED),
        ("FAILED", (0, signal)) if signal > 0 => Some(128 + signal),
        ("FAILED", (code, _)) if code > 0 => Some(code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 1000;

    fn script(code: Option<i64>, time_was_up: bool) -> ScriptResult {
        ScriptResult { code, time_was_up, oom_kills: 0 }
    }

    #[test]
    fn states_and_exit_codes() {
        let by = |user| Some(EndedBy::Cancelled { by_other: user });
        for (state, exit, code, time_was_up, want_code, want_end) in [
            ("COMPLETED", "0:0", Some(0), false, Some(0), None),
            ("COMPLETED", "0:0", None, false, Some(0), None),
            // Done at the last moment.
            ("COMPLETED", "0:0", Some(0), true, Some(0), None),
            ("FAILED", "42:0", Some(42), false, Some(42), None),
            ("FAILED", "42:0", None, false, Some(42), None),
            ("FAILED", "0:9", None, false, Some(137), None),
            ("FAILED", "143:0", Some(143), true, Some(143), Some(EndedBy::TimeLimit)),
            ("TIMEOUT", "0:0", None, true, None, Some(EndedBy::TimeLimit)),
            ("TIMEOUT", "0:0", None, false, None, Some(EndedBy::TimeLimit)),
            ("PREEMPTED", "0:15", None, false, None, Some(EndedBy::Preempted)),
            ("PREEMPTED", "143:0", Some(143), false, Some(143), Some(EndedBy::Preempted)),
            ("NODE_FAIL", "0:0", None, false, None, Some(EndedBy::NodeLost { what: "a node failed".to_owned() })),
            ("BOOT_FAIL", "0:0", None, false, None, Some(EndedBy::NodeLost { what: "a node did not boot".to_owned() })),
            ("CANCELLED by 1000", "0:15", None, false, None, by(None)),
            ("CANCELLED by 0", "0:15", None, false, None, by(Some(0))),
            ("CANCELLED", "0:15", None, false, None, by(None)),
        ] {
            let job = JobState::new(state, "None", exit);
            let ending = ending(&script(code, time_was_up), Some(&job), true, None, OWN);
            assert_eq!((ending.exit_code, ending.ended_by), (want_code, want_end), "{state} {exit}");
        }
    }

    /// srun ends with 0 when a node is taken from it, and a command may when it is told to stop.
    #[test]
    fn zero_is_not_always_done() {
        let lost = JobState::new("NODE_FAIL", "NodeDown", "0:0");
        assert!(matches!(
            ending(&script(Some(0), false), Some(&lost), true, None, OWN).ended_by,
            Some(EndedBy::NodeLost { .. })
        ));
        let done = JobState::new("COMPLETED", "None", "0:0");
        for (is_trainer, time_was_up, want) in
            [(true, true, None), (false, true, Some(EndedBy::TimeLimit)), (false, false, None)]
        {
            assert_eq!(ending(&script(Some(0), time_was_up), Some(&done), is_trainer, None, OWN).ended_by, want);
        }
    }

    #[test]
    fn memory() {
        let job = JobState::new("OUT_OF_MEMORY", "OutOfMemory", "0:125");
        for code in [Some(137), None] {
            let ending = ending(&script(code, false), Some(&job), true, Some(1 << 30), OWN);
            assert!(ending.oom_killed && ending.exit_code == Some(137) && ending.memory_limit == Some(1 << 30));
        }
    }

    #[test]
    fn what_only_the_steps_tell() {
        let of_step = JobState { step_out_of_memory: true, ..JobState::new("FAILED", "NonZeroExitCode", "137:0") };
        let ended = ending(&script(Some(1), false), Some(&of_step), true, None, OWN);
        assert!(ended.oom_killed && ended.exit_code == Some(137));
        let told = JobState { preempted: true, ..JobState::new("FAILED", "NonZeroExitCode", "143:0") };
        assert_eq!(ending(&script(Some(143), false), Some(&told), true, None, OWN).ended_by, Some(EndedBy::Preempted));
        assert_eq!(ending(&script(Some(0), false), Some(&told), true, None, OWN).ended_by, None);
    }

    #[test]
    fn without_the_word_of_the_cluster() {
        assert_eq!(ending(&script(Some(42), false), None, true, None, OWN).exit_code, Some(42));
        assert_eq!(ending(&script(Some(143), true), None, true, None, OWN).ended_by, Some(EndedBy::TimeLimit));
        let lost = ending(&script(None, false), None, true, None, OWN);
        assert_eq!((lost.exit_code, lost.lost.is_some(), lost.outage), (None, true, true));
    }

    #[test]
    fn jobs_that_never_start() {
        for (state, reason, never) in [
            ("PENDING", "Priority", false),
            ("PENDING", "Resources", false),
            ("PENDING", "AssocMaxJobsLimit", false),
            ("PENDING", "PartitionTimeLimit", true),
            ("PENDING", "PartitionNodeLimit", true),
            ("PENDING", "AssocGrpCPUMinutesLimit", true),
            ("PENDING", "AssocGrpCPURunMinutesLimit", false),
            ("PENDING", "QOSMaxNodePerJobLimit", true),
            ("RUNNING", "PartitionTimeLimit", false),
        ] {
            assert_eq!(JobState::new(state, reason, "0:0").never_starts().is_some(), never, "{reason}");
        }
    }
}
