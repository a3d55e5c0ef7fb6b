//! The decision after out of memory: one pure function from what happened to what happens next.

use pipe_model::memory;
use pipe_spec::event::Point;
use pipe_spec::pipeline::{BatchSetting, Data, EffectiveBatch, Evaluate, Memory, OnOom, Reduce, Train};
use pipe_spec::text::human_bytes;
use pipe_spec::{Cause, Device, Phase};

/// Settings in which attempts of a run differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub batch: u32,
    /// Whether the trainer is to find the batch itself.
    pub auto: bool,
    pub prefetch: u32,
    pub eval_batch: u32,
    pub expandable_segments: bool,
    /// How many entries of `on_oom.then` apply.
    pub changes: usize,
}

impl Settings {
    /// The settings of a training.
    pub fn of_trainer(train: &Train, data: &Data, evaluate: &Evaluate, memory: &Memory) -> Self {
        let batch = train.batch();
        Self {
            batch,
            auto: train.batch == BatchSetting::Auto,
            prefetch: data.prefetch,
            eval_batch: evaluate.batch.map_or(batch, u32::from),
            expandable_segments: memory.allocator.expandable_segments,
            changes: 0,
        }
    }

    /// The settings of a command, which has none but its batch.
    pub fn of_command(batch: u32) -> Self {
        Self { batch, auto: false, prefetch: 1, eval_batch: batch, expandable_segments: false, changes: 0 }
    }
}

/// An attempt that ran out of memory.
#[derive(Clone, Debug)]
pub struct OomContext<'a> {
    pub policy: &'a OnOom,
    /// Whether the batch is all that can be changed, as in a command of the user.
    pub only_batch_changes: bool,
    /// The effect of a smaller batch on the effective batch.
    pub effective_batch: EffectiveBatch,
    pub device: Device,
    pub settings: &'a Settings,
    /// Retries made before this one.
    pub retries_used: u32,
    pub cause: Cause,
    /// The phase of the trainer, where it lived to report it.
    pub phase: Option<Phase>,
    /// Whether the run already waited for another process, and the card stayed in use.
    pub waited: bool,
    /// How much of what its batch allows the largest part held, where parts are filled.
    pub filled: Option<f64>,
    /// Bytes that a part may hold, where parts are filled.
    pub part_bytes: Option<u64>,
    /// Peak memory of batches that fitted.
    pub points: &'a [Point],
    /// Bytes that there are for them.
    pub capacity: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go on from the last checkpoint with these settings; `action` says what changed.
    Retry { settings: Settings, action: String },
    /// The same again, once another process has left the card, or the time is over.
    Wait { action: String },
    /// Nothing that is allowed would help; `hint` says what the user could change.
    Stop { reason: String, hint: String },
}

/// Every retry changes something or waits, and nothing waits twice, so the same failure cannot come back for ever.
pub fn decide(context: &OomContext<'_>) -> Decision {
    let OomContext { policy, device, settings, retries_used, .. } = context;
    if *retries_used >= policy.retries {
        return Decision::Stop {
            reason: format!("no retry is left (on_oom.retries: {})", policy.retries),
            hint: "raise on_oom.retries, or start with a smaller train.batch".to_owned(),
        };
    }
    let (cause, phase) = cause_and_phase(context);
    match cause {
        Cause::Fragmented if !settings.expandable_segments => Decision::Retry {
            settings: Settings { expandable_segments: true, ..(*settings).clone() },
            action: "same batch, expandable_segments on".to_owned(),
        },
        Cause::Neighbour if !context.waited && policy.wait > 0 => {
            Decision::Wait { action: "same batch, once the card is free".to_owned() }
        }
        Cause::Neighbour => match phase {
            Some(Phase::Forward | Phase::Backward) | None => smaller_batch(context),
            Some(Phase::Eval) => smaller_eval_batch(context),
            Some(Phase::Load | Phase::Optimizer | Phase::Checkpoint | Phase::Resume) => {
                no_batch_helps(context, "end the other processes on the card, or raise on_oom.wait")
            }
        },
        Cause::Fragmented | Cause::Capacity => smaller_batch(context),
        Cause::EvalOnly => smaller_eval_batch(context),
        Cause::Model => no_batch_helps(context, "use a larger card or a smaller model"),
        Cause::HostMemory => match (device, phase) {
            (_, Some(Phase::Load | Phase::Optimizer | Phase::Checkpoint | Phase::Resume)) => {
                let during = during(context);
                let reason = format!("the host's memory is too small for any batch{during}");
                let hint = "the log says what was read; raise container.memory (or memory.limit), or use less data or a smaller model";
                next_change(context, reason, hint)
            }
            (Device::Cpu, Some(Phase::Eval)) => smaller_eval_batch(context),
            (Device::Cpu, Some(Phase::Forward | Phase::Backward) | None) => smaller_batch(context),
            // A command's use of the host's memory may go by its batch too.
            (Device::Cuda, _) if context.only_batch_changes => smaller_batch(context),
            (Device::Cuda, _) if settings.prefetch > 1 => Decision::Retry {
                settings: Settings { prefetch: 1, ..(*settings).clone() },
                action: format!("same batch, 1 batch prefetched instead of {}", settings.prefetch),
            },
            (Device::Cuda, _) => Decision::Stop {
                reason: "the host's memory is too small for the job, with any batch".to_owned(),
                hint: "raise container.memory".to_owned(),
            },
        },
        Cause::Killed
        | Cause::Trainer
        | Cause::Vanished
        | Cause::Requested
        | Cause::Interrupted
        | Cause::TimeLimit
        | Cause::Preempted
        | Cause::NodeLost
        | Cause::Cancelled => Decision::Stop {
            reason: "the attempt did not run out of memory".to_owned(),
            hint: "see the log of the attempt".to_owned(),
        },
    }
}

/// The cause and the phase that a decision goes by. A command has one batch, with which it evaluates too, and it may still hold it
/// while its optimizer works.
fn cause_and_phase(context: &OomContext<'_>) -> (Cause, Option<Phase>) {
    match (context.phase, context.cause) {
        (Some(Phase::Eval | Phase::Optimizer), cause) if context.only_batch_changes => {
            let by_batch = matches!(cause, Cause::EvalOnly | Cause::Model);
            (if by_batch { Cause::Capacity } else { cause }, Some(Phase::Forward))
        }
        (phase, cause) => (cause, phase),
    }
}

fn smaller_batch(context: &OomContext<'_>) -> Decision {
    let OomContext { policy, settings, .. } = context;
    let least = policy.min_batch.get();
    let held = held(context);
    let half = (held / 2).max(least);
    let (next, how) = match &policy.reduce {
        Reduce::Halve => (Some(half), ""),
        Reduce::Fit => match fitting(context) {
            Some(batch) => (Some(batch.max(least)), ", which fits according to smaller batches"),
            None => (Some(half), ""),
        },
        Reduce::Ladder(rungs) => (rungs.iter().copied().find(|rung| *rung < held), ""),
    };
    if let Some(batch) = next.filter(|next| *next < settings.batch && *next >= least) {
        if context.effective_batch == EffectiveBatch::MustNotFall {
            let (reason, hint) = must_not_fall(&format!("a batch of {} does not fit", settings.batch));
            return Decision::Stop { reason, hint };
        }
        let parts = match context.part_bytes {
            Some(bytes) => format!(", whose parts could hold {}", human_bytes(bytes)),
            None => String::new(),
        };
        return Decision::Retry {
            settings: Settings { batch, eval_batch: settings.eval_batch.min(batch), ..(*settings).clone() },
            action: format!("batch {batch} instead of {}{parts}{how}", settings.batch),
        };
    }
    let reason = format!("a batch of {} does not fit, and on_oom allows none smaller", settings.batch);
    let hint = match &policy.reduce {
        Reduce::Ladder(_) => "add lower rungs to on_oom.reduce, or give the job more memory",
        Reduce::Halve | Reduce::Fit if least > 1 => "lower on_oom.min_batch, or give the job more memory",
        Reduce::Halve | Reduce::Fit if context.only_batch_changes => {
            "give the job more memory, or make its samples smaller"
        }
        Reduce::Halve | Reduce::Fit => {
            "give the job more memory, shorten data.max_source and data.max_target, or use a smaller model"
        }
    };
    next_change(context, reason, hint)
}

/// Reason and hint for the end of a job whose effective batch must not fall with its batch.
pub fn must_not_fall(why: &str) -> (String, String) {
    let reason = format!("{why}, and a smaller one would change the effective batch: the command has no {{accum}}");
    let hint = "let the command accumulate: add {accum} to it, or set on_oom.accumulates: true if it reads PIPE_ACCUM; \
                or allow a smaller effective batch: on_oom.then: [effective_batch]";
    (reason, hint.to_owned())
}

/// The batch that allows what the fullest part held: with any batch from there on the parts would be the same.
fn held(context: &OomContext<'_>) -> u32 {
    let batch = context.settings.batch;
    context.filled.map_or(batch, |filled| ((f64::from(batch) * filled).ceil() as u32).clamp(1, batch))
}

/// The largest batch on the line through what was measured, below the one that failed.
fn fitting(context: &OomContext<'_>) -> Option<u32> {
    let batch = memory::largest(context.points, context.capacity?)?;
    // A line that was wrong about one batch is not to be trusted about the next below it.
    let failed = held(context);
    Some(batch.min(failed - (failed / 16).max(1))).filter(|batch| *batch > 0)
}

/// The next entry of `on_oom.then`, or the end.
fn next_change(context: &OomContext<'_>, reason: String, hint: &str) -> Decision {
    let OomContext { policy, settings, .. } = context;
    // The one change of a command comes with its smaller batches.
    match policy.then.get(settings.changes).filter(|_| !context.only_batch_changes) {
        Some(change) => Decision::Retry {
            settings: Settings { changes: settings.changes + 1, ..(*settings).clone() },
            action: format!("{} (changes the training result)", change.0),
        },
        None => {
            let may_change = policy.then.is_empty() && !context.only_batch_changes;
            let more = if may_change { "; on_oom.then may name changes to the training result" } else { "" };
            Decision::Stop { reason, hint: format!("{hint}{more}") }
        }
    }
}

fn smaller_eval_batch(context: &OomContext<'_>) -> Decision {
    let settings = context.settings;
    if settings.eval_batch <= 1 {
        let reason = "evaluation does not fit even with a batch of 1".to_owned();
        return next_change(context, reason, "give the job more memory, or leave out data.eval");
    }
    let eval_batch = settings.eval_batch / 2;
    Decision::Retry {
        settings: Settings { eval_batch, ..settings.clone() },
        action: format!("evaluation batch {eval_batch} instead of {}, training unchanged", settings.eval_batch),
    }
}

fn no_batch_helps(context: &OomContext<'_>, hint: &str) -> Decision {
    let reason = format!("the model itself does not fit{}: no batch would help", during(context));
    next_change(context, reason, hint)
}

fn during(context: &OomContext<'_>) -> String {
    context.phase.map_or(String::new(), |phase| format!(" (it ran out in {})", phase.name()))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use pipe_spec::pipeline::Change;

    use super::*;

    fn settings(batch: u32) -> Settings {
        Settings { batch, auto: false, prefetch: 2, eval_batch: 8, expandable_segments: false, changes: 0 }
    }

    fn policy(reduce: Reduce, min_batch: u32) -> OnOom {
        OnOom { reduce, min_batch: NonZeroU32::new(min_batch).unwrap(), ..OnOom::default() }
    }

    /// The change that the decision makes.
    fn changed(decision: &Decision, before: &Settings) -> String {
        match decision {
            Decision::Stop { .. } => "stop".to_owned(),
            Decision::Wait { .. } => "wait".to_owned(),
            Decision::Retry { settings, .. } => {
                let mut changes = Vec::new();
                if settings.batch != before.batch {
                    changes.push(format!("batch {}", settings.batch));
                } else if settings.eval_batch != before.eval_batch {
                    changes.push(format!("eval {}", settings.eval_batch));
                }
                if settings.prefetch != before.prefetch {
                    changes.push(format!("prefetch {}", settings.prefetch));
                }
                if settings.expandable_segments != before.expandable_segments {
                    changes.push("segments".to_owned());
                }
                if settings.changes != before.changes {
                    changes.push("result".to_owned());
                }
                changes.join(" ")
            }
        }
    }

    fn context<'a>(policy: &'a OnOom, settings: &'a Settings, cause: Cause) -> OomContext<'a> {
        OomContext {
            policy,
            only_batch_changes: false,
            effective_batch: EffectiveBatch::Kept,
            device: Device::Cuda,
            settings,
            retries_used: 0,
            cause,
            phase: None,
            waited: false,
            filled: None,
            part_bytes: None,
            points: &[],
            capacity: None,
        }
    }

    fn decide_for(policy: &OnOom, device: Device, settings: &Settings, cause: Cause, phase: Option<Phase>) -> String {
        changed(&decide(&OomContext { device, phase, ..context(policy, settings, cause) }), settings)
    }

    #[test]
    fn a_part_that_was_not_full_is_halved_from_what_it_held() {
        let (policy, settings) = (policy(Reduce::Fit, 1), settings(64));
        for (filled, want) in
            [(None, "batch 32"), (Some(1.0), "batch 32"), (Some(0.3), "batch 10"), (Some(0.01), "batch 1")]
        {
            let context = OomContext { filled, ..context(&policy, &settings, Cause::Capacity) };
            assert_eq!(changed(&decide(&context), &settings), want, "{filled:?}");
        }
        let context = OomContext { part_bytes: Some(3 << 30), ..context(&policy, &settings, Cause::Capacity) };
        let Decision::Retry { action, .. } = decide(&context) else { panic!("{context:?}") };
        assert_eq!(action, "batch 32 instead of 64, whose parts could hold 3.0 GiB");
    }

    /// With a batch that allows as much as the fullest part held, the parts would be the same.
    #[test]
    fn the_next_batch_allows_less_than_was_held() {
        let settings = settings(64);
        let points = [(8, 100), (16, 140)].map(|(batch, peak)| Point { batch, peak });
        let ladder = policy(Reduce::Ladder(vec![48, 32, 16, 8]), 1);
        let fit = policy(Reduce::Fit, 1);
        for (policy, filled, want) in
            [(&ladder, None, "batch 48"), (&ladder, Some(0.5), "batch 16"), (&fit, Some(0.5), "batch 30")]
        {
            let given = context(policy, &settings, Cause::Capacity);
            let context = OomContext { filled, points: &points, capacity: Some(1000), ..given };
            assert_eq!(changed(&decide(&context), &settings), want, "{filled:?}");
        }
    }

    /// Every cause, in every phase, on both devices.
    #[test]
    fn the_whole_table() {
        let policy = policy(Reduce::Halve, 1);
        let phases: Vec<Option<Phase>> = std::iter::once(None).chain(Phase::ALL.into_iter().map(Some)).collect();
        for cause in Cause::ALL {
            for device in [Device::Cpu, Device::Cuda] {
                for phase in &phases {
                    let want = match (cause, device, phase) {
                        (Cause::Fragmented, _, _) => "segments",
                        (Cause::Capacity, _, _) => "batch 32",
                        (Cause::Neighbour, _, _) => "wait",
                        (Cause::EvalOnly, _, _) => "eval 4",
                        (Cause::Model, _, _) => "stop",
                        (
                            Cause::HostMemory,
                            _,
                            Some(Phase::Load | Phase::Optimizer | Phase::Checkpoint | Phase::Resume),
                        ) => "stop",
                        (Cause::HostMemory, Device::Cpu, Some(Phase::Eval)) => "eval 4",
                        (Cause::HostMemory, Device::Cpu, _) => "batch 32",
                        (Cause::HostMemory, Device::Cuda, _) => "prefetch 1",
                        (
                            Cause::Killed
                            | Cause::Trainer
                            | Cause::Vanished
                            | Cause::Requested
                            | Cause::Interrupted
                            | Cause::TimeLimit
                            | Cause::Preempted
                            | Cause::NodeLost
                            | Cause::Cancelled,
                            _,
                            _,
                        ) => "stop",
                    };
                    let got = decide_for(&policy, device, &settings(64), cause, *phase);
                    assert_eq!(got, want, "{cause:?} {device:?} {phase:?}");
                }
            }
        }
    }

    /// A command evaluates with its one batch, and may hold it while its optimizer works; what it loads has none.
    #[test]
    fn phases_of_commands() {
        let policy = policy(Reduce::Halve, 1);
        let settings = Settings::of_command(8);
        for (cause, phase, want) in [
            (Cause::EvalOnly, Phase::Eval, "batch 4"),
            (Cause::Model, Phase::Optimizer, "batch 4"),
            (Cause::HostMemory, Phase::Eval, "batch 4"),
            (Cause::HostMemory, Phase::Optimizer, "batch 4"),
            (Cause::Neighbour, Phase::Eval, "wait"),
            (Cause::Model, Phase::Resume, "stop"),
            (Cause::HostMemory, Phase::Load, "stop"),
        ] {
            for device in [Device::Cpu, Device::Cuda] {
                let (only_batch_changes, phase) = (true, Some(phase));
                let given = context(&policy, &settings, cause);
                let got = decide(&OomContext { only_batch_changes, phase, device, ..given });
                assert_eq!(changed(&got, &settings), want, "{cause:?} {phase:?} {device:?}");
            }
        }
    }

    /// A command has only its batch: no hint speaks of what a pipeline with one cannot say.
    #[test]
    fn commands_get_smaller_batches() {
        let policy = policy(Reduce::Fit, 1);
        let of = |settings: &Settings| {
            decide(&OomContext { only_batch_changes: true, ..context(&policy, settings, Cause::HostMemory) })
        };
        let (many, one) = (Settings::of_command(8), Settings::of_command(1));
        assert_eq!(changed(&of(&many), &many), "batch 4");
        let Decision::Stop { hint, .. } = of(&one) else { panic!("{:?}", of(&one)) };
        assert_eq!(hint, "give the job more memory, or make its samples smaller");
    }

    /// Where a smaller batch would change the effective batch, only a pipeline that allows it gets one. Whatever else helps is done.
    #[test]
    fn effective_batches_of_commands() {
        use EffectiveBatch::{Kept, MayFall, MustNotFall};
        let policy = OnOom { then: vec![Change("effective_batch".to_owned())], ..policy(Reduce::Halve, 1) };
        for (cause, batch, rule, want) in [
            (Cause::Capacity, 64, Kept, "batch 32"),
            (Cause::Capacity, 64, MayFall, "batch 32"),
            (Cause::Capacity, 64, MustNotFall, "stop"),
            (Cause::HostMemory, 64, MayFall, "batch 32"),
            (Cause::HostMemory, 64, MustNotFall, "stop"),
            (Cause::Fragmented, 64, MustNotFall, "segments"),
            (Cause::Neighbour, 64, MustNotFall, "wait"),
            (Cause::Capacity, 1, MayFall, "stop"),
        ] {
            let settings = Settings::of_command(batch);
            let of = |rule| {
                let given = context(&policy, &settings, cause);
                decide(&OomContext { only_batch_changes: true, effective_batch: rule, ..given })
            };
            assert_eq!(changed(&of(rule), &settings), want, "{cause:?} {batch} {rule:?}");
        }
        let settings = Settings::of_command(64);
        let given = context(&policy, &settings, Cause::Capacity);
        let stop = decide(&OomContext { only_batch_changes: true, effective_batch: MustNotFall, ..given });
        let Decision::Stop { reason, hint } = stop else { panic!("{stop:?}") };
        assert_eq!(
            reason,
            "a batch of 64 does not fit, and a smaller one would change the effective batch: the command has no {accum}"
        );
        for way in ["{accum}", "on_oom.accumulates: true", "on_oom.then: [effective_batch]"] {
            assert!(hint.contains(way), "{hint}");
        }
    }

    #[test]
    fn second_resorts() {
        let policy = policy(Reduce::Halve, 1);
        let with = |settings: &Settings, device, cause| decide_for(&policy, device, settings, cause, None);
        let segments = Settings { expandable_segments: true, ..settings(64) };
        assert_eq!(with(&segments, Device::Cuda, Cause::Fragmented), "batch 32");
        let prefetched = Settings { prefetch: 1, ..settings(64) };
        assert_eq!(with(&prefetched, Device::Cuda, Cause::HostMemory), "stop");
        let evaluated = Settings { eval_batch: 1, ..settings(64) };
        assert_eq!(with(&evaluated, Device::Cuda, Cause::EvalOnly), "stop");
    }

    #[test]
    fn batches_fall_to_the_minimum_and_no_further() {
        let ladder = Reduce::Ladder(vec![128, 96, 64, 32]);
        let cases = [
            (Reduce::Halve, 1, 64, "batch 32"),
            (Reduce::Halve, 1, 5, "batch 2"),
            (Reduce::Halve, 1, 1, "stop"),
            (Reduce::Halve, 24, 64, "batch 32"),
            (Reduce::Halve, 24, 32, "batch 24"),
            (Reduce::Halve, 24, 24, "stop"),
            (ladder.clone(), 1, 256, "batch 128"),
            (ladder.clone(), 1, 128, "batch 96"),
            (ladder.clone(), 1, 100, "batch 96"),
            (ladder.clone(), 1, 32, "stop"),
            (ladder.clone(), 64, 64, "stop"),
        ];
        for (reduce, least, batch, want) in cases {
            let policy = policy(reduce.clone(), least);
            let got = decide_for(&policy, Device::Cpu, &settings(batch), Cause::HostMemory, None);
            assert_eq!(got, want, "{reduce:?} at {batch}, least {least}");
        }
    }

    #[test]
    fn a_neighbour_that_stays_is_taken_for_a_smaller_card() {
        let policy = policy(Reduce::Halve, 1);
        let settings = settings(64);
        for (phase, want) in
            [(Some(Phase::Backward), "batch 32"), (Some(Phase::Eval), "eval 4"), (Some(Phase::Load), "stop")]
        {
            let waited = OomContext { waited: true, phase, ..context(&policy, &settings, Cause::Neighbour) };
            assert_eq!(changed(&decide(&waited), &settings), want);
        }
        let impatient = OnOom { wait: 0, ..policy.clone() };
        assert_eq!(changed(&decide(&context(&impatient, &settings, Cause::Neighbour)), &settings), "batch 32");
    }

    #[test]
    fn fit_names_the_largest_batch_that_fits() {
        let point = |batch, peak| Point { batch, peak };
        let line = [point(8, 200), point(16, 300)];
        // Measured points, capacity, the batch that failed: what comes next.
        let cases: [(&[Point], Option<u64>, u32, &str); 7] = [
            (&line, Some(1000), 128, "batch 70"),
            (&line, Some(1000), 64, "batch 60"),
            (&line, Some(310), 128, "batch 16"),
            (&line, Some(100), 128, "batch 64"),
            (&line, None, 128, "batch 64"),
            (&line[..1], Some(1000), 128, "batch 64"),
            (&[], Some(1000), 1, "stop"),
        ];
        for (points, capacity, batch, want) in cases {
            let (policy, settings) = (policy(Reduce::Fit, 1), settings(batch));
            let fit = OomContext { points, capacity, ..context(&policy, &settings, Cause::Capacity) };
            assert_eq!(changed(&decide(&fit), &settings), want, "{points:?} in {capacity:?} after {batch}");
        }
    }

    #[test]
    fn changes_to_the_result_come_last_and_one_by_one() {
        let then = ["checkpointing", "precision=bf16"].map(|text| Change(text.to_owned())).to_vec();
        let policy = OnOom { then, ..policy(Reduce::Halve, 32) };
        let mut now = settings(64);
        let mut path = Vec::new();
        while let Decision::Retry { settings, action } = decide(&context(&policy, &now, Cause::Capacity)) {
            path.push(action);
            now = settings;
        }
        assert_eq!(
            path,
            [
                "batch 32 instead of 64",
                "checkpointing (changes the training result)",
                "precision=bf16 (changes the training result)"
            ]
        );
        assert_eq!(decide_for(&policy, Device::Cuda, &settings(64), Cause::Model, Some(Phase::Load)), "result");
    }

    #[test]
    fn retries_are_counted() {
        let policy = OnOom { retries: 2, ..policy(Reduce::Halve, 1) };
        let settings = settings(64);
        for (used, stops) in [(0, false), (1, false), (2, true), (9, true)] {
            let used = OomContext { retries_used: used, ..context(&policy, &settings, Cause::Capacity) };
            assert_eq!(matches!(decide(&used), Decision::Stop { .. }), stops, "{used:?}");
        }
    }

    /// Llama with 8 billion parameters in nf4 within 12 GiB had batches of 16, 6 and 6: what was reserved at 6 would have held the request,
    /// so that the third attempt differed from the second by its segments.
    #[test]
    fn a_batch_stays_where_memory_was_fragmented() {
        let policy = policy(Reduce::Fit, 1);
        let points = [(2, 8_000), (4, 9_800)].map(|(batch, peak)| Point { batch, peak });
        let mut now = settings(16);
        let mut path = Vec::new();
        for cause in [Cause::Capacity, Cause::Fragmented, Cause::Fragmented, Cause::Fragmented] {
            let context = OomContext { points: &points, capacity: Some(12_288), ..context(&policy, &now, cause) };
            let decision = decide(&context);
            path.push(changed(&decision, &now));
            let Decision::Retry { settings, .. } = decision else { panic!("{path:?}") };
            now = settings;
        }
        assert_eq!(path, ["batch 6", "segments", "batch 5", "batch 4"]);
    }

    /// However causes follow one another, in whatever phase, no settings come twice.
    #[test]
    fn no_settings_twice_after_any_causes() {
        let policy = OnOom { retries: 1000, ..policy(Reduce::Halve, 1) };
        let phases = [Phase::Forward, Phase::Eval, Phase::Load].map(Some);
        let causes =
            [Cause::Capacity, Cause::Fragmented, Cause::Neighbour, Cause::EvalOnly, Cause::HostMemory, Cause::Model];
        let records: Vec<(Cause, Option<Phase>)> =
            causes.into_iter().flat_map(|cause| phases.map(|phase| (cause, phase))).collect();
        for device in [Device::Cpu, Device::Cuda] {
            for number in 0..records.len().pow(4) {
                let mut seen = vec![settings(6)];
                for place in 0..4 {
                    let (cause, phase) = records[number / records.len().pow(place) % records.len()];
                    let given = context(&policy, seen.last().unwrap(), cause);
                    let decision = decide(&OomContext { device, phase, waited: true, ..given });
                    let Decision::Retry { settings, .. } = decision else { break };
                    assert!(!seen.contains(&settings), "{number}: {settings:?} again");
                    seen.push(settings);
                }
            }
        }
    }

    /// Followed to its end, every path stops, and no settings come twice.
    #[test]
    fn no_settings_twice() {
        let policy = OnOom { retries: 1000, ..policy(Reduce::Halve, 1) };
        for cause in Cause::ALL {
            for device in [Device::Cpu, Device::Cuda] {
                let mut seen = vec![settings(100)];
                while let Decision::Retry { settings, .. } =
                    decide(&OomContext { device, waited: true, ..context(&policy, seen.last().unwrap(), cause) })
                {
                    assert!(!seen.contains(&settings), "{cause:?}: {settings:?} again");
                    seen.push(settings);
                }
            }
        }
    }
}
