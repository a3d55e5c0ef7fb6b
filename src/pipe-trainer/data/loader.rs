//! Prepares the samples of steps ahead of the training, in order. Knows nothing of tensors.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rayon::ThreadPool;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::{Sample, SampleOrder, Source, sort_longest_first};
use crate::boundary;
use crate::error::TrainerError;

/// Small, because stacks count against the memory limit.
const STACK_BYTES: usize = 1 << 20;

/// More threads than this, or than four for each core where that is more, only waste memory.
const USEFUL_WORKERS: usize = 64;

fn most_workers() -> usize {
    thread::available_parallelism().map_or(1, usize::from).saturating_mul(4).max(USEFUL_WORKERS)
}

/// Threads that read and tokenise rows: `count`, or as many as are useful.
pub fn workers(count: u32) -> Result<Arc<ThreadPool>, TrainerError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads((count as usize).min(most_workers()))
        .stack_size(STACK_BYTES)
        .thread_name(|index| format!("data-{index}"))
        .build()
        .map(Arc::new)
        .map_err(|error| TrainerError::Panic { message: format!("cannot start the data workers: {error}") })
}

/// Rows to samples, in parallel and in order.
#[derive(Clone)]
pub struct Reader {
    pub source: Arc<dyn Source>,
    pub pool: Arc<ThreadPool>,
}

impl Reader {
    pub fn read(&self, indices: &[usize]) -> Result<Vec<Sample>, TrainerError> {
        self.each(indices, |index| self.source.sample(index))
    }

    /// The same, without counting skipped samples.
    pub fn peek(&self, indices: &[usize]) -> Result<Vec<Sample>, TrainerError> {
        self.each(indices, |index| self.source.peek(index))
    }

    fn each(
        &self,
        indices: &[usize],
        read: impl Fn(usize) -> Result<Option<Sample>, TrainerError> + Sync,
    ) -> Result<Vec<Sample>, TrainerError> {
        let read = |index: &usize| {
            let sample = read(*index)?;
            boundary::check_host_memory().map(|()| sample)
        };
        let read: Result<Vec<Option<Sample>>, _> = self.pool.install(|| indices.par_iter().map(read).collect());
        Ok(read?.into_iter().flatten().collect())
    }
}

/// What a step is made of.
pub struct Loaded {
    /// Longest first, so that rows of a part are alike. Where a sample stands here decides what dropout drops of it.
    pub samples: Vec<Sample>,
    /// Samples that could not be read up to this step, however far ahead the loader is.
    pub skipped: u64,
}

pub struct Loader(Receiver<Result<Loaded, TrainerError>>);

impl Loader {
    /// Begins with step `first`, which counts from 0; holds at most `prefetch` steps that are not taken yet.
    pub fn start(reader: Reader, order: SampleOrder, first: u64, prefetch: u32) -> Result<Self, TrainerError> {
        let (sender, receiver) = sync_channel(prefetch as usize);
        thread::Builder::new()
            .name("loader".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || prepare(&reader, order, first, &sender))
            .map_err(|error| boundary::from_thread("the loader", &error))?;
        Ok(Self(receiver))
    }

    pub fn next(&mut self) -> Result<Loaded, TrainerError> {
        let ended = |_| TrainerError::Panic { message: "the loader ended before the training".to_owned() };
        self.0.recv().map_err(ended)?
    }
}

fn prepare(reader: &Reader, mut order: SampleOrder, first: u64, sender: &SyncSender<Result<Loaded, TrainerError>>) {
    for step in first..order.steps() {
        let samples = reader.read(&order.step(step));
        let loaded = samples.map(|mut samples| {
            sort_longest_first(&mut samples);
            Loaded { samples, skipped: reader.source.skipped() }
        });
        let failed = loaded.is_err();
        if sender.send(loaded).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_than_are_useful() {
        assert_eq!(workers(3).unwrap().current_num_threads(), 3);
        assert_eq!(workers(1_000_000).unwrap().current_num_threads(), most_workers());
    }
}
