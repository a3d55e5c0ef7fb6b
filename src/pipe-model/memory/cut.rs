//! How the samples of a step are cut into parts that hold no more than they may.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::estimate::Estimate;
use super::lengths::Lengths;
use super::work::Work;
use crate::{ModelConfig, Parameter};

/// Rooms are computed for lengths that are multiples of this: there are fewer of them, and a part holds a little less than it may.
const LENGTH_STEP: u32 = 4;

/// Cuts steps into parts that hold at most what `batch` samples of full length would.
pub struct Cutter {
    config: Rc<dyn ModelConfig>,
    parameters: Rc<[Parameter]>,
    /// Of a part of `batch` samples of full length.
    work: Work,
    /// What that holds.
    budget: Held,
    /// Samples in a step.
    step: u32,
    /// How many samples of such lengths a part may have.
    rooms: RefCell<HashMap<Lengths, u32>>,
}

/// What a part holds.
#[derive(Clone, Copy)]
struct Held {
    /// From the forward to the backward pass: grows with every sample.
    kept: u64,
    /// At its worst moment, with gradients.
    peak: u64,
}

impl Cutter {
    /// `work` is that of a part of `batch` samples of full length, in steps of `step` samples.
    pub fn new(config: Box<dyn ModelConfig>, work: Work, step: u32) -> Self {
        let parameters = config.parameters().into();
        Self::of(config.into(), parameters, work, step)
    }

    fn of(config: Rc<dyn ModelConfig>, parameters: Rc<[Parameter]>, work: Work, step: u32) -> Self {
        let budget = held(&*config, &parameters, &work);
        Self { config, parameters, work, budget, step: step.max(1), rooms: RefCell::default() }
    }

    /// The same for another batch, in steps of so many samples.
    pub fn with_batch(&self, batch: u32, step: u32) -> Self {
        let work = Work { batch: batch.into(), accum: step.div_ceil(batch).into(), ..self.work };
        Self::of(Rc::clone(&self.config), Rc::clone(&self.parameters), work, step)
    }

    /// Sizes of the parts that samples in this order become: as few parts as there is room for, and of those the ones whose
    /// work is most alike.
    pub fn cut(&self, samples: &[Lengths]) -> Vec<usize> {
        cut(samples, |lengths| self.room(lengths) as usize)
    }

    /// How many samples of such lengths a part may have; at least one, and no more than a step has.
    pub fn room(&self, lengths: Lengths) -> u32 {
        let rounded = |length: u32, full: u128| match u128::from(length) < full {
            true => length.next_multiple_of(LENGTH_STEP).min(full as u32),
            false => length,
        };
        let lengths = Lengths {
            source: rounded(lengths.source, self.work.source),
            target: rounded(lengths.target, self.work.target),
        };
        *self.rooms.borrow_mut().entry(lengths).or_insert_with(|| {
            let (mut fitting, mut beyond) = (1, self.step + 1);
            while beyond - fitting > 1 {
                let middle = fitting + (beyond - fitting) / 2;
                let Held { kept, peak } = self.held(middle, lengths);
                if kept <= self.budget.kept && peak <= self.budget.peak { fitting = middle } else { beyond = middle }
            }
            fitting
        })
    }

    /// How much of what a part may keep is kept by one of so many samples of such lengths.
    pub fn filled(&self, samples: u32, lengths: Lengths) -> f64 {
        self.held(samples, lengths).kept as f64 / self.budget.kept.max(1) as f64
    }

    fn held(&self, samples: u32, lengths: Lengths) -> Held {
        let (source, target) = (lengths.source.into(), lengths.target.into());
        held(&*self.config, &self.parameters, &Work { batch: samples.into(), source, target, ..self.work })
    }
}

/// Tokens, where the model has no estimate.
fn held(config: &dyn ModelConfig, parameters: &[Parameter], work: &Work) -> Held {
    let bytes = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    let Some(memory) = config.step_memory() else {
        let tokens = bytes(work.batch * (work.source + work.target).max(1));
        return Held { kept: tokens, peak: tokens };
    };
    let stages = memory.stages(work);
    let kept = stages.iter().map(|stage| stage.kept).sum::<u128>()
        + stages.iter().map(|stage| stage.logits).max().unwrap_or(0);
    Held { kept: bytes(kept), peak: Estimate::of(parameters, &stages, work).allocated() }
}

/// As `Cutter::cut`, with `room` samples of such lengths in a part at most.
fn cut(samples: &[Lengths], room: impl Fn(Lengths) -> usize) -> Vec<usize> {
    let within = |most_work: u64| greedy(samples, &room, most_work);
    let all = within(u64::MAX);
    let whole = samples.iter().fold(Lengths::default(), |longest, one| longest.max(*one)).tokens();
    let (mut least, mut enough) = (0, whole * samples.len() as u64);
    while least < enough {
        let middle = least + (enough - least) / 2;
        if within(middle).len() <= all.len() { enough = middle } else { least = middle + 1 }
    }
    within(enough)
}

/// Parts that are each as large as `room` and `most_work` padded tokens allow; a sample by itself is always allowed.
fn greedy(samples: &[Lengths], room: impl Fn(Lengths) -> usize, most_work: u64) -> Vec<usize> {
    let mut sizes = Vec::new();
    let (mut count, mut longest, mut room_here) = (0, Lengths::default(), usize::MAX);
    for lengths in samples {
        let longer = longest.max(*lengths);
        let room_there = if count > 0 && longer == longest { room_here } else { room(longer) };
        let fits = count < room_there && (count as u64 + 1) * longer.tokens() <= most_work;
        if count > 0 && !fits {
            sizes.push(count);
            (count, longest, room_here) = (1, *lengths, room(*lengths));
        } else {
            (count, longest, room_here) = (count + 1, longer, room_there);
        }
    }
    sizes.extend((count > 0).then_some(count));
    sizes
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{Arch, OptimizerKind, Precision};
    use serde_json::json;

    use super::*;

    fn of(source: u32, target: u32) -> Lengths {
        Lengths { source, target }
    }

    /// So many bytes for each token and for each pair of tokens of a text.
    fn room(budget: u64) -> impl Fn(Lengths) -> usize {
        move |lengths: Lengths| {
            let square = |length: u32| u64::from(length).pow(2);
            let each = 100 * lengths.tokens() + square(lengths.source) + square(lengths.target);
            usize::try_from(budget / each).unwrap().max(1)
        }
    }

    /// So many samples of full length, not more, and half of them with half the batch, however large the state of the model is.
    #[test]
    fn a_part_of_full_length_has_the_batch() {
        let config = json!({
            "d_model": 512, "d_ff": 1024, "d_kv": 64, "num_heads": 8, "num_layers": 6, "hidden_size": 768,
            "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 250_002,
            "max_position_embeddings": 514,
        });
        for arch in [Arch::T5, Arch::Bert, Arch::XlmRoberta, Arch::DebertaV3, Arch::BagOfWords] {
            for (checkpointing, batch) in [(false, 7), (true, 12)] {
                let work = Work {
                    precision: Precision::Bf16Mixed,
                    optimizer: OptimizerKind::Adafactor,
                    checkpointing,
                    batch,
                    accum: 9,
                    source: 77,
                    target: 64,
                    padded: true,
                    drops: true,
                };
                let cutter = Cutter::new(crate::read_config(arch, config.as_object().unwrap()).unwrap(), work, 99);
                let (full, batch, name) = (of(77, 64), batch as u32, format!("{arch:?} {checkpointing}"));
                assert_eq!(cutter.room(full), batch, "{name}");
                assert_eq!(cutter.with_batch(batch / 2, 99).room(full), batch / 2, "{name}");
                assert!((cutter.filled(batch, full) - 1.0).abs() < 1e-9, "{name}");
                assert!(cutter.room(of(8, 8)) > 3 * batch, "{name}: {}", cutter.room(of(8, 8)));
            }
        }
    }

    #[test]
    fn as_few_parts_as_fit_and_all_alike() {
        let same = |count: usize| vec![of(10, 0); count];
        let table: [(usize, usize, &[usize]); 8] = [
            (256, 240, &[128, 128]),
            (256, 256, &[256]),
            (256, 255, &[128, 128]),
            (9, 4, &[3, 3, 3]),
            (10, 4, &[4, 4, 2]),
            (5, 1, &[1, 1, 1, 1, 1]),
            (1, 8, &[1]),
            (0, 8, &[]),
        ];
        for (count, fits, want) in table {
            assert_eq!(cut(&same(count), |_| fits), want, "{count} samples, {fits} fit");
        }
        // One long sample by itself: with the short ones it would make them as long.
        let mixed: Vec<Lengths> = std::iter::once(of(512, 0)).chain(same(40)).collect();
        assert_eq!(cut(&mixed, room(400_000)), [1, 40]);
        // One that is too long for any part is one.
        assert_eq!(cut(&[of(9000, 0), of(1, 0)], room(1000)), [1, 1]);
    }

    /// The fewest parts of any kind, by trying all of them.
    fn fewest(samples: &[Lengths], room: &impl Fn(Lengths) -> usize) -> usize {
        fn place(
            samples: &[Lengths],
            parts: &mut Vec<(usize, Lengths)>,
            best: &mut usize,
            room: &dyn Fn(Lengths) -> usize,
        ) {
            let Some((first, rest)) = samples.split_first() else {
                *best = parts.len().min(*best);
                return;
            };
            if parts.len() >= *best {
                return;
            }
            for index in 0..parts.len() {
                let before = parts[index];
                let after = (before.0 + 1, before.1.max(*first));
                if after.0 <= room(after.1) {
                    parts[index] = after;
                    place(rest, parts, best, room);
                    parts[index] = before;
                }
            }
            parts.push((1, *first));
            place(rest, parts, best, room);
            parts.pop();
        }
        let mut best = samples.len();
        place(samples, &mut Vec::new(), &mut best, room);
        best
    }

    /// Numbers that look random and are the same each time.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }

        /// Mostly short, some long, longest first; `targets` of their own or none.
        fn samples(&mut self, count: u64, targets: bool) -> Vec<Lengths> {
            let mut length = |most: u64| {
                let most = if self.below(4) == 0 { most } else { most / 8 };
                1 + u32::try_from(self.below(most)).unwrap()
            };
            let mut samples: Vec<Lengths> =
                (0..count).map(|_| of(length(512), if targets { length(256) } else { 0 })).collect();
            samples.sort_by_key(|lengths| std::cmp::Reverse((lengths.tokens(), lengths.source)));
            samples
        }
    }

    #[test]
    fn every_sample_once_no_part_over_its_room_and_few_parts() {
        let mut numbers = Numbers(7);
        for case in 0..3000 {
            let count = if case % 3 == 0 { 1 + numbers.below(400) } else { 1 + numbers.below(7) };
            let samples = numbers.samples(count, case % 2 == 0);
            let room = room(50_000 + numbers.below(3_000_000));
            let sizes = cut(&samples, &room);
            assert_eq!(sizes.iter().sum::<usize>(), samples.len());
            let mut rest = samples.as_slice();
            for size in &sizes {
                let (part, after) = rest.split_at(*size);
                let longest = part.iter().fold(Lengths::default(), |longest, one| longest.max(*one));
                assert!(*size > 0 && *size <= room(longest), "case {case}: {size} of {longest}");
                rest = after;
            }
            if count <= 7 {
                let fewest = fewest(&samples, &room);
                assert!(
                    sizes.len() <= fewest + 1,
                    "case {case}: {} parts, {fewest} would do: {samples:?}",
                    sizes.len()
                );
            }
        }
    }
}
