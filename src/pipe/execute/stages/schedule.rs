//! Which stages may begin now. Pure.

use pipe_spec::pipeline::Container;
use pipe_spec::run::{StageState, StageStatus};

use crate::system::files::Space;

/// The resources that stages share: the processors and the memory of this machine. For cards they queue like all runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resources {
    pub cpus: f64,
    /// Bytes.
    pub memory: u64,
}

impl Resources {
    pub const NOTHING: Self = Self { cpus: 0.0, memory: 0 };

    /// The resources of this machine. Memory that cannot be read is not counted.
    pub fn of_machine() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { cpus: cpus as f64, memory: Space::of_memory().map_or(u64::MAX, |space| space.total) }
    }

    /// The share that a stage takes. One that does not say takes a processor, and no memory.
    pub fn of_stage(container: &Container) -> Self {
        Self { cpus: container.cpus.unwrap_or(1.0), memory: container.memory.map_or(0, |size| size.0) }
    }
}

/// The stages to begin, in their order. One that is larger than the machine begins when it would be alone.
pub fn startable(stages: &[StageState], takes: &[Resources], room: Resources) -> Vec<usize> {
    let done = |name: &String| stages.iter().any(|stage| stage.name == *name && stage.status.is_done());
    let mut used: Vec<Resources> = stages
        .iter()
        .zip(takes)
        .filter(|(stage, _)| stage.status == StageStatus::Running)
        .map(|(_, takes)| *takes)
        .collect();
    let mut starting = Vec::new();
    for (index, (stage, takes)) in stages.iter().zip(takes).enumerate() {
        if stage.status != StageStatus::Waiting || !stage.needs.iter().all(done) {
            continue;
        }
        let cpus: f64 = used.iter().map(|other| other.cpus).sum();
        let memory: u64 = used.iter().map(|other| other.memory).fold(0, u64::saturating_add);
        if used.is_empty() || (cpus + takes.cpus <= room.cpus && memory.saturating_add(takes.memory) <= room.memory) {
            used.push(*takes);
            starting.push(index);
        }
    }
    starting
}

#[cfg(test)]
mod tests {
    use super::*;
    use StageStatus::{Failed, Finished, LeftOut, Running, Unchanged, Waiting};

    fn stages(all: &[(&str, &[&str], StageStatus)]) -> Vec<StageState> {
        let stage = |(name, needs, status): &(&str, &[&str], StageStatus)| StageState {
            status: *status,
            ..StageState::new(*name, needs.iter().map(ToString::to_string).collect())
        };
        all.iter().map(stage).collect()
    }

    #[test]
    fn a_stage_begins_after_those_that_it_needs() {
        let room = Resources { cpus: 8.0, memory: 8 };
        let takes = [Resources { cpus: 1.0, memory: 1 }; 4];
        for (first, left, right, want) in [
            (Waiting, Waiting, Waiting, &[0][..]),
            (Running, Waiting, Waiting, &[]),
            (Finished, Waiting, Waiting, &[1, 2]),
            (Unchanged, Running, Waiting, &[2]),
            (Finished, Finished, Running, &[]),
            (Finished, Failed, Waiting, &[2]),
            (Finished, Failed, Finished, &[]),
            (Finished, LeftOut, Finished, &[]),
            (Finished, Finished, Unchanged, &[3]),
        ] {
            let graph =
                stages(&[("a", &[], first), ("b", &["a"], left), ("c", &["a"], right), ("d", &["b", "c"], Waiting)]);
            assert_eq!(startable(&graph, &takes, room), want, "{first:?} {left:?} {right:?}");
        }
    }

    #[test]
    fn stages_run_side_by_side_where_there_is_room() {
        let graph = stages(&[("a", &[], Waiting), ("b", &[], Waiting), ("c", &[], Waiting)]);
        let takes = |cpus: [f64; 3], memory: [u64; 3]| -> Vec<Resources> {
            cpus.into_iter().zip(memory).map(|(cpus, memory)| Resources { cpus, memory }).collect()
        };
        let room = Resources { cpus: 2.0, memory: 10 };
        for (cpus, memory, want) in [
            ([1.0; 3], [0; 3], &[0, 1][..]),
            ([0.5; 3], [0; 3], &[0, 1, 2]),
            ([0.5; 3], [6, 6, 4], &[0, 2]),
            ([4.0, 1.0, 1.0], [0; 3], &[0]),
            ([2.0, 1.0, 0.5], [20, 1, 1], &[0]),
            ([1.5, 1.0, 0.5], [0; 3], &[0, 2]),
        ] {
            assert_eq!(startable(&graph, &takes(cpus, memory), room), want, "{cpus:?} {memory:?}");
        }
    }
}
