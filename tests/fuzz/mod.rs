//! Mutated bytes for the readers of foreign files. `fuzz` runs a reader on the seeds of tests/fuzz/corpus and on
//! mutations of them: a fixed number, or for PIPE_FUZZ_SECONDS seconds with a new seed. An input that makes the reader panic or
//! take too long is kept, and its path is in the failure: put it into the corpus once the reader is fixed.

mod mutation;
mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use mutation::mutate;
pub use random::Random;

/// An input that takes longer than this hangs the reader, however busy the machine is.
const HANG: Duration = Duration::from_secs(60);

/// Runs `read` on the corpus of this kind, on `more` seeds, and on `iterations` mutations of them.
pub fn fuzz(kind: &str, more: &[PathBuf], iterations: u64, read: impl Fn(&[u8])) {
    let seeds = seeds(kind, more);
    assert!(!seeds.is_empty(), "tests/fuzz/corpus/{kind} is empty");
    let seconds = std::env::var("PIPE_FUZZ_SECONDS").ok().and_then(|text| text.parse::<f64>().ok());
    let seed = std::env::var("PIPE_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| seconds.map_or(1, |_| Random::fresh()));
    let mut random = Random::new(seed);
    let began = Instant::now();
    seeds.iter().for_each(|input| run(kind, seed, 0, input, &read));
    let mut count = 0;
    while seconds.map_or(count < iterations, |seconds| began.elapsed().as_secs_f64() < seconds) {
        count += 1;
        let input = mutate(&seeds[random.below(seeds.len())], &seeds[random.below(seeds.len())], &mut random);
        run(kind, seed, count, &input, &read);
    }
    eprintln!("{kind}: {} seeds, {count} mutations, PIPE_FUZZ_SEED={seed}", seeds.len());
}

fn run(kind: &str, seed: u64, count: u64, input: &[u8], read: &impl Fn(&[u8])) {
    let began = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| read(input)));
    let took = began.elapsed();
    if ended.is_err() || took > HANG {
        let kept = std::env::temp_dir().join(format!("pipe-fuzz-{kind}-{seed}-{count}"));
        std::fs::write(&kept, input).ok();
        let how = if ended.is_err() { "panicked".to_owned() } else { format!("took {took:?}") };
        panic!("{kind}: the reader {how} on {} (PIPE_FUZZ_SEED={seed}, mutation {count})", kept.display());
    }
}

fn seeds(kind: &str, more: &[PathBuf]) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(repository().join("tests/fuzz/corpus").join(kind)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).chain(more.iter().cloned()).collect();
    // The order of a folder is that of the disk.
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// The top of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}
