//! Random numbers as functions of purpose, seed and numbers such as the step: a resumed run needs no saved generator state.

use std::sync::{Mutex, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The purpose of a stream of random numbers. Streams of different purposes share no numbers.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    Order,
    Weights,
    Dropout,
    Rounding,
    Recipes,
    Dishes,
    Pictures,
    Stories,
    Talks,
    /// The words that a language model chooses.
    Text,
    Series,
    /// Which rows are kept for evaluation.
    Split,
    Table,
    /// How a picture looks in an epoch.
    Augment,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Weights => "weights",
            Self::Dropout => "dropout",
            Self::Rounding => "rounding",
            Self::Recipes => "recipes",
            Self::Dishes => "dishes",
            Self::Pictures => "pictures",
            Self::Stories => "stories",
            Self::Talks => "talks",
            Self::Text => "text",
            Self::Series => "series",
            Self::Split => "split",
            Self::Table => "table",
            Self::Augment => "augment",
        }
    }
}

/// Seeds torch's generators, on the CPU and on the GPU, for what `draw` draws from them. They belong to the whole process, so that one
/// thread at a time draws.
pub fn with_torch_seeded<T>(purpose: Purpose, seed: u64, draw: impl FnOnce() -> T) -> T {
    static DRAWING: Mutex<()> = Mutex::new(());
    let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    // CUDA and the CPU agree on seeds that are not negative.
    tch::manual_seed((derived(purpose, seed, &[]) >> 1).cast_signed());
    draw()
}

/// A seed for something smaller.
pub fn derived(purpose: Purpose, seed: u64, numbers: &[u64]) -> u64 {
    let hash = digest(purpose, seed, numbers);
    u64::from_le_bytes(hash[..8].try_into().expect("a digest has 32 bytes"))
}

/// A generator whose numbers do not depend on the version of any crate: ChaCha8 and the arithmetic below.
pub struct Random(ChaCha8Rng);

impl Random {
    pub fn new(purpose: Purpose, seed: u64, numbers: &[u64]) -> Self {
        Self(ChaCha8Rng::from_seed(digest(purpose, seed, numbers)))
    }

    /// A number in 0..bound, each equally likely: what lies above the last whole multiple of `bound` is drawn again.
    pub fn below(&mut self, bound: u64) -> u64 {
        let whole = u64::MAX - u64::MAX % bound;
        loop {
            let number = self.0.next_u64();
            if number < whole {
                return number % bound;
            }
        }
    }

    /// A number from 0 on and below 1.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

fn digest(purpose: Purpose, seed: u64, numbers: &[u64]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(purpose.name().as_bytes()).update(&seed.to_le_bytes());
    for number in numbers {
        hasher.update(&number.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_purpose_seed_and_place() {
        let draw = |purpose, seed, index: u64| Random::new(purpose, seed, &[index]).below(u64::MAX);
        let first = draw(Purpose::Order, 1, 0);
        assert_eq!(first, draw(Purpose::Order, 1, 0));
        for other in [draw(Purpose::Recipes, 1, 0), draw(Purpose::Order, 2, 0), draw(Purpose::Order, 1, 1)] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn every_number_below_the_bound_comes_up() {
        let mut random = Random::new(Purpose::Order, 7, &[]);
        let mut counts = [0u32; 6];
        (0..6000).for_each(|_| counts[random.below(6) as usize] += 1);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
