//! The launch of an attempt: where it runs, its spec and the job that an engine starts.
//!
//! Where a job computes: on which device, on how many cards, with how many ranks. Decided once, before there is a run.

pub mod environment;
pub mod job_spec;
pub mod template;
pub mod workload;

use std::num::NonZeroU32;

use pipe_spec::Device;
use pipe_spec::pipeline::{Gpus, Pipeline, Ranks, share};
use workload::workload;

use crate::engine::{Engine, FoundJob, Launch, StartedJob, registry, remove_jobs_of};
use crate::error::Error;
use crate::gpu::{self, Card};
use crate::system::interrupt::Interrupts;

/// Starts a job. An engine with a queue may have to wait until it can take the job: a signal then removes what was submitted.
pub async fn start(engine: &dyn Engine, launch: &Launch, interrupts: &mut Interrupts) -> Result<StartedJob, Error> {
    if !engine.has_queue() {
        return engine.start(launch).await;
    }
    tokio::select! {
        started = engine.start(launch) => started,
        () = interrupts.signal() => {
            if let FoundJob::Job(job) = engine.find(launch, None, None).await? {
                engine.remove(&job.id).await?;
            }
            remove_jobs_of(engine, &launch.run_id, None).await?;
            Err(Error::Interrupted)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub device: Device,
    /// That the job sees on each of its machines; 1 on the CPU.
    pub cards: u32,
    /// Machines that the job runs on.
    pub nodes: u32,
    /// Trainer processes that share a step, on all machines together; 1 for a command.
    pub ranks: u32,
}

impl Placement {
    /// Refuses cards that are not there, and ranks that would have no card or no sample.
    pub fn find(engine: &dyn Engine, pipeline: &Pipeline) -> Result<Self, Error> {
        let gpus = &pipeline.container.gpus;
        let device = engine.device(gpus)?;
        let cards = match device {
            Device::Cpu => 1,
            Device::Cuda => {
                let present = engine.cards_of_node(gpus).unwrap_or_else(|| engine.cards(&Gpus::All).len() as u32);
                count_cards(gpus, present, &engine.cards(gpus))?
            }
        };
        let asked = workload(pipeline).ranks();
        let nodes = if asked.is_some() { engine.nodes() } else { 1 };
        let on_each = match (asked, device) {
            (None, _) | (Some(Ranks::Auto), Device::Cpu) => 1,
            (Some(Ranks::Auto), Device::Cuda) => cards,
            (Some(Ranks::Count(ranks)), Device::Cuda) if ranks.get() < cards => {
                return Err(Error::IdleGpus { ranks: ranks.get(), cards });
            }
            (Some(Ranks::Count(ranks)), _) => ranks.get(),
        };
        let ranks = on_each * nodes;
        let effective_batch = pipeline.work.effective_batch();
        match asked.is_some() && ranks > effective_batch {
            true => Err(Error::IdleRanks { ranks, effective_batch }),
            false => Ok(Self { device, cards, nodes, ranks }),
        }
    }

    /// The same on so many machines.
    pub fn on_nodes(self, nodes: u32) -> Self {
        Self { nodes, ranks: self.ranks_on_node() * nodes, ..self }
    }

    pub fn ranks_on_node(self) -> u32 {
        (self.ranks / self.nodes.max(1)).max(1)
    }

    /// The number of ranks as a trainer spec has it.
    pub fn rank_setting(self) -> Ranks {
        NonZeroU32::new(self.ranks).map_or(Ranks::Auto, Ranks::Count)
    }

    /// Samples of a step that a rank has at most. A larger batch is the same work.
    pub fn share(self, effective_batch: u32) -> u32 {
        share(effective_batch, self.ranks)
    }

    /// Which of the cards of the job a rank has.
    pub fn card_of(self, rank: u32) -> usize {
        (rank % self.ranks_on_node() % self.cards.max(1)) as usize
    }
}

/// How many ranks a run would have on this machine, as far as that can be said without an engine.
pub fn expected_ranks(pipeline: &Pipeline) -> u32 {
    let on_each = match (workload(pipeline).ranks(), &pipeline.container.gpus) {
        (Some(Ranks::Auto), Gpus::All) => Card::read(&Gpus::All).len().max(1) as u32,
        _ => pipeline.work.ranks(),
    };
    on_each * registry::nodes(pipeline)
}

/// How many cards a job gets. The machine has `present`, of which `named` are those that were asked for; where the driver does not
/// tell, the pipeline is believed.
fn count_cards(gpus: &Gpus, present: u32, named: &[Card]) -> Result<u32, Error> {
    match gpus {
        Gpus::Auto => Ok(1),
        Gpus::All if present == 0 => Err(Error::UncountedGpus),
        Gpus::All => Ok(present),
        Gpus::Count(asked) if present > 0 && *asked > present => Err(Error::TooFewGpus { asked: *asked, present }),
        Gpus::Count(asked) => Ok(*asked),
        Gpus::Ids(ids) => {
            let card = |id: &String| named.iter().position(|card| card.is_called(id));
            let whole = |id: &&String| gpu::is_whole(id);
            let missing: Vec<String> = ids.iter().filter(whole).filter(|id| card(id).is_none()).cloned().collect();
            if present > 0 && !missing.is_empty() {
                return Err(Error::NoSuchGpu { ids: missing, present });
            }
            for (position, id) in ids.iter().enumerate() {
                let same = |other: &&String| **other == *id || (card(id).is_some() && card(other) == card(id));
                if let Some(other) = ids[..position].iter().find(same) {
                    return Err(Error::GpuTwice { first: other.clone(), second: id.clone() });
                }
            }
            Ok(ids.len() as u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cards(count: u32) -> Vec<Card> {
        (0..count).map(|index| Card { uuid: Some(format!("GPU-{index}aaa")), ..Card::example(index) }).collect()
    }

    fn ids(ids: &[&str]) -> Gpus {
        Gpus::Ids(ids.iter().map(|id| (*id).to_owned()).collect())
    }

    #[test]
    fn cards_that_are_there() {
        for (gpus, present, want) in [
            (Gpus::Auto, 0, 1),
            (Gpus::Auto, 4, 1),
            (Gpus::All, 4, 4),
            (Gpus::Count(2), 4, 2),
            // Without the driver's word.
            (Gpus::Count(2), 0, 2),
            (ids(&["7", "GPU-x"]), 0, 2),
            (ids(&["1", "GPU-2"]), 4, 2),
            // Parts of a card are the driver's matter.
            (ids(&["MIG-a", "0:1"]), 1, 2),
        ] {
            assert_eq!(count_cards(&gpus, present, &cards(present)).unwrap(), want, "{gpus:?} of {present}");
        }
    }

    #[test]
    fn cards_that_are_not() {
        for (gpus, present, want) in [
            (Gpus::Count(4), 1, "container.gpus asks for 4 GPUs; this machine has 1"),
            (ids(&["0", "4"]), 2, "container.gpus names GPU 4; this machine has GPUs 0 to 1"),
            (ids(&["GPU-9", "3"]), 1, "container.gpus names GPU-9 and GPU 3; this machine has GPU 0"),
            (ids(&["1", "1"]), 2, "container.gpus names one GPU twice: 1 and 1"),
            (ids(&["1", "GPU-1aaa"]), 2, "container.gpus names one GPU twice: 1 and GPU-1aaa"),
            (Gpus::All, 0, "container.gpus is all, but the driver does not tell how many GPUs there are"),
        ] {
            let error = count_cards(&gpus, present, &cards(present)).unwrap_err().to_string();
            assert_eq!(error, want, "{gpus:?} of {present}");
        }
    }
}
