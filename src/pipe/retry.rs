//! What to do after out of memory: one pure function from what happened to what happens next.

use pipe_spec::pipeline::{OnOom, Reduce};
use pipe_spec::{Cause, Device, Phase};

/// What a retry may change without changing the training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub batch: u32,
    pub prefetch: u32,
    pub eval_batch: u32,
    pub expandable_segments: bool,
}

/// An attempt that ran out of memory.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    pub policy: &'a OnOom,
    pub device: Device,
    pub settings: &'a Settings,
    /// Retries made before this one.
    pub retries_used: u32,
    pub cause: Cause,
    /// What the trainer was doing, where it lived to say so.
    pub phase: Option<Phase>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go on from the last checkpoint with these settings; `action` says what changed.
    Retry { settings: Settings, action: String },
    /// Nothing that keeps the training would help; `hint` says what the user could change.
    Stop { reason: String, hint: String },
}

/// Every retry changes something, so the same failure cannot come back in the same way for ever.
pub fn decide(situation: &Situation<'_>) -> Decision {
    let Situation { policy, device, settings, retries_used, cause, phase } = situation;
    if *retries_used >= policy.retries {
        return Decision::Stop {
            reason: format!("all {} retries are used", policy.retries),
            hint: "raise on_oom.retries, or start with a smaller train.batch".to_owned(),
        };
    }
    match cause {
        Cause::Fragmented if !settings.expandable_segments => Decision::Retry {
            settings: Settings { expandable_segments: true, ..(*settings).clone() },
            action: "same batch, expandable_segments on".to_owned(),
        },
        Cause::Fragmented | Cause::Capacity => smaller_batch(situation),
        Cause::EvalOnly => smaller_eval_batch(settings),
        Cause::Model => no_batch_helps(phase, "use a larger card or a smaller model"),
        Cause::HostMemory => match (device, phase) {
            (_, Some(Phase::Load | Phase::Optimizer | Phase::Checkpoint | Phase::Resume)) => {
                no_batch_helps(phase, "raise container.memory (or memory.limit), or use a smaller model")
            }
            (Device::Cpu, Some(Phase::Eval)) => smaller_eval_batch(settings),
            (Device::Cpu, Some(Phase::Forward | Phase::Backward) | None) => smaller_batch(situation),
            (Device::Cuda, _) if settings.prefetch > 1 => Decision::Retry {
                settings: Settings { prefetch: 1, ..(*settings).clone() },
                action: format!("same batch, 1 batch prefetched instead of {}", settings.prefetch),
            },
            (Device::Cuda, _) => Decision::Stop {
                reason: "the host's memory does not hold the job, whatever its batch".to_owned(),
                hint: "raise container.memory".to_owned(),
            },
        },
        Cause::Killed | Cause::Trainer | Cause::Vanished | Cause::Requested => Decision::Stop {
            reason: "this was not for want of memory".to_owned(),
            hint: "see the log of the attempt".to_owned(),
        },
    }
}

fn smaller_batch(situation: &Situation<'_>) -> Decision {
    let Situation { policy, settings, .. } = situation;
    let least = policy.min_batch.get();
    let next = match &policy.reduce {
        Reduce::Halve | Reduce::Fit => Some((settings.batch / 2).max(least)),
        Reduce::Ladder(rungs) => rungs.iter().copied().find(|rung| *rung < settings.batch),
    };
    match next.filter(|next| *next < settings.batch && *next >= least) {
        Some(batch) => Decision::Retry {
            settings: Settings { batch, eval_batch: settings.eval_batch.min(batch), ..(*settings).clone() },
            action: format!("batch {} instead of {}", batch, settings.batch),
        },
        None => Decision::Stop {
            reason: format!("a batch of {} does not fit, and on_oom allows none smaller", settings.batch),
            hint: match &policy.reduce {
                Reduce::Ladder(_) => "add lower rungs to on_oom.reduce, or give the job more memory".to_owned(),
                Reduce::Halve | Reduce::Fit if least > 1 => {
                    "lower on_oom.min_batch, or give the job more memory".to_owned()
                }
                Reduce::Halve | Reduce::Fit => {
                    "give the job more memory, shorten data.max_source and data.max_target, or use a smaller model"
                        .to_owned()
                }
            },
        },
    }
}

fn smaller_eval_batch(settings: &Settings) -> Decision {
    if settings.eval_batch <= 1 {
        return Decision::Stop {
            reason: "evaluation does not fit even with a batch of 1".to_owned(),
            hint: "give the job more memory, or leave out data.eval".to_owned(),
        };
    }
    let eval_batch = settings.eval_batch / 2;
    Decision::Retry {
        settings: Settings { eval_batch, ..settings.clone() },
        action: format!("evaluation batch {eval_batch} instead of {}, training unchanged", settings.eval_batch),
    }
}

fn no_batch_helps(phase: &Option<Phase>, hint: &str) -> Decision {
    let during = phase.map_or(String::new(), |phase| format!(" (it ran out in {})", phase.name()));
    Decision::Stop {
        reason: format!("the model itself does not fit{during}: no batch would help"),
        hint: hint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn settings(batch: u32) -> Settings {
        Settings { batch, prefetch: 2, eval_batch: 8, expandable_segments: false }
    }

    fn policy(reduce: Reduce, min_batch: u32) -> OnOom {
        OnOom { reduce, min_batch: NonZeroU32::new(min_batch).unwrap(), ..OnOom::default() }
    }

    /// In one word: what the decision changes.
    fn changed(decision: &Decision, before: &Settings) -> String {
        match decision {
            Decision::Stop { .. } => "stop".to_owned(),
            Decision::Retry { settings, .. } => {
                let mut words = Vec::new();
                if settings.batch != before.batch {
                    words.push(format!("batch {}", settings.batch));
                } else if settings.eval_batch != before.eval_batch {
                    words.push(format!("eval {}", settings.eval_batch));
                }
                if settings.prefetch != before.prefetch {
                    words.push(format!("prefetch {}", settings.prefetch));
                }
                if settings.expandable_segments != before.expandable_segments {
                    words.push("segments".to_owned());
                }
                words.join(" ")
            }
        }
    }

    fn decide_for(policy: &OnOom, device: Device, settings: &Settings, cause: Cause, phase: Option<Phase>) -> String {
        let situation = Situation { policy, device, settings, retries_used: 0, cause, phase };
        changed(&decide(&situation), settings)
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
                        (Cause::Killed | Cause::Trainer | Cause::Vanished | Cause::Requested, _, _) => "stop",
                    };
                    let got = decide_for(&policy, device, &settings(64), cause, *phase);
                    assert_eq!(got, want, "{cause:?} {device:?} {phase:?}");
                }
            }
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
    fn retries_are_counted() {
        let policy = OnOom { retries: 2, ..policy(Reduce::Halve, 1) };
        let settings = settings(64);
        for (used, stops) in [(0, false), (1, false), (2, true), (9, true)] {
            let situation = Situation {
                policy: &policy,
                device: Device::Cpu,
                settings: &settings,
                retries_used: used,
                cause: Cause::HostMemory,
                phase: None,
            };
            assert_eq!(matches!(decide(&situation), Decision::Stop { .. }), stops, "{used} used");
        }
    }

    /// Followed to its end, every path stops, and no settings come twice.
    #[test]
    fn no_settings_twice() {
        let policy = OnOom { retries: 1000, ..policy(Reduce::Halve, 1) };
        for cause in Cause::ALL {
            for device in [Device::Cpu, Device::Cuda] {
                let mut seen = vec![settings(100)];
                while let Decision::Retry { settings, .. } = decide(&Situation {
                    policy: &policy,
                    device,
                    settings: seen.last().unwrap(),
                    retries_used: 0,
                    cause,
                    phase: None,
                }) {
                    assert!(!seen.contains(&settings), "{cause:?}: {settings:?} again");
                    seen.push(settings);
                }
            }
        }
    }
}
