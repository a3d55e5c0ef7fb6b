//! How the samples of a step are cut into parts that hold no more than they may.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::estimate::Estimate;
use super::lengths::Lengths;
use super::owners::owners;
use super::work::Work;
use crate::{ModelConfig, Parameter};

/// Rooms are computed for lengths that are multiples of this: there are fewer of them, and a part holds a little less than it may.
const LENGTH_STEP: u32 = 4;

/// The largest number of samples that parts have a multiple of.
const MOST_ROUND: usize = 16;

/// So many times as many parts as there have to be are tried for several ranks.
const MOST_ROUNDS: usize = 3;

/// What a part costs whatever it has, in tokens: its launches, and reading all weights.
const PART_COST: u64 = 512;

/// Of the memory that there is, what estimates may fill: they are a few percent off, and blocks do not fit into each other without gaps.
const USABLE: f64 = 0.92;

/// What parts may hold of so many bytes, where `checkpointing: auto` fills them.
pub fn usable(capacity: u64) -> u64 {
    (capacity as f64 * USABLE) as u64
}

/// Whether parts are computed again for the backward pass, instead of being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    Never,
    Always,
    /// In parts that would hold more than so many bytes otherwise.
    Beyond(u64),
}

/// Cuts steps into parts that hold at most what `batch` samples of full length would.
#[derive(Clone)]
pub struct Cutter {
    config: Rc<dyn ModelConfig>,
    parameters: Rc<[Parameter]>,
    /// Of a part of `batch` samples of full length.
    work: Work,
    asked: Recompute,
    /// What that comes to: never, where `batch` samples of full length hold little enough.
    recompute: Recompute,
    /// What a part may hold.
    budget: Held,
    /// What `batch` samples of full length hold beside the state of the model, however parts are computed.
    full: u64,
    /// Samples in a step.
    step: u32,
    /// How many samples of such lengths a part may have that is computed again, or is not.
    rooms: RefCell<HashMap<(Lengths, bool), u32>>,
}

/// What a part holds.
#[derive(Clone, Copy)]
struct Held {
    /// From the forward to the backward pass: grows with every sample.
    kept: u64,
    /// At its worst moment, with gradients.
    peak: u64,
    /// Of that, what is not the state of the model.
    passing: u64,
}

impl Cutter {
    /// `work` is that of a part of `batch` samples of full length, in steps of `step` samples; `recompute` decides whether it is
    /// computed again.
    pub fn new(config: Box<dyn ModelConfig>, work: Work, recompute: Recompute, step: u32) -> Self {
        let parameters = config.parameters().into();
        Self::of(config.into(), parameters, work, recompute, step)
    }

    fn of(config: Rc<dyn ModelConfig>, parameters: Rc<[Parameter]>, work: Work, asked: Recompute, step: u32) -> Self {
        let whole = |again: bool| held(&*config, &parameters, &Work { checkpointing: again, ..work });
        let kept = whole(false);
        let (recompute, budget, full) = match asked {
            Recompute::Never => (asked, kept, kept.passing),
            Recompute::Always => (asked, whole(true), whole(true).passing),
            Recompute::Beyond(most) if kept.peak <= most || config.step_memory().is_none() => {
                (Recompute::Never, kept, kept.passing)
            }
            // Down to what the same samples hold when they are computed again: the batch was asked for.
            Recompute::Beyond(most) => {
                let peak = most.max(whole(true).peak);
                let passing = peak.saturating_sub(kept.peak - kept.passing);
                (asked, Held { kept: u64::MAX, peak, passing }, kept.passing)
            }
        };
        Self { config, parameters, work, asked, recompute, budget, full, step: step.max(1), rooms: RefCell::default() }
    }

    /// The same for another batch, in steps of so many samples.
    pub fn with_batch(&self, batch: u32, step: u32) -> Self {
        self.changed(batch, self.asked, step)
    }

    /// The same for passes without gradients, which keep nothing that could be computed again.
    pub fn without_gradients(&self, batch: u32, step: u32) -> Self {
        self.changed(batch, Recompute::Never, step)
    }

    fn changed(&self, batch: u32, recompute: Recompute, step: u32) -> Self {
        let work = Work { batch: batch.into(), accum: step.div_ceil(batch).into(), ..self.work };
        Self::of(Rc::clone(&self.config), Rc::clone(&self.parameters), work, recompute, step)
    }

    /// Sizes of the parts that samples in this order become, for so many ranks: as few parts as there is room for and as give
    /// each rank the same number, and of those the ones whose work is most alike. Where parts may be computed again, they are if
    /// that is less work than parts that are not.
    pub fn cut(&self, samples: &[Lengths], ranks: u32) -> Vec<usize> {
        let cut = |again: bool| cut(samples, ranks, |lengths| self.room_for(lengths, again) as usize);
        match self.recompute {
            Recompute::Never => cut(false),
            Recompute::Always => cut(true),
            Recompute::Beyond(_) => {
                let (kept, again) = (cut(false), cut(true));
                if self.cost(samples, &again) < self.cost(samples, &kept) { again } else { kept }
            }
        }
    }

    /// Padded tokens of all parts, those of parts that are computed again once more.
    fn cost(&self, samples: &[Lengths], sizes: &[usize]) -> u64 {
        let mut rest = samples;
        let mut cost = 0;
        for size in sizes {
            let (part, after) = rest.split_at(*size);
            rest = after;
            let longest = part.iter().fold(Lengths::default(), |longest, one| longest.max(*one));
            let tokens = part.len() as u64 * longest.tokens();
            // The forward pass is a third of the work.
            let again = if self.recomputes(part.len() as u32, longest) { tokens / 3 } else { 0 };
            cost += tokens + again + PART_COST;
        }
        cost
    }

    /// Whether a part of so many samples of such lengths is computed again for its gradient.
    pub fn recomputes(&self, samples: u32, lengths: Lengths) -> bool {
        match self.recompute {
            Recompute::Never => false,
            Recompute::Always => true,
            Recompute::Beyond(_) => self.held(samples, lengths, false).peak > self.budget.peak,
        }
    }

    /// How many samples of such lengths a part may have; at least one, and no more than a step has.
    pub fn room(&self, lengths: Lengths) -> u32 {
        self.room_for(lengths, self.recompute != Recompute::Never)
    }

    fn room_for(&self, lengths: Lengths, again: bool) -> u32 {
        let rounded = |length: u32, full: u128| match u128::from(length) < full {
            true => length.next_multiple_of(LENGTH_STEP).min(full as u32),
            false => length,
        };
        let lengths = Lengths {
            source: rounded(lengths.source, self.work.source),
            target: rounded(lengths.target, self.work.target),
        };
        *self.rooms.borrow_mut().entry((lengths, again)).or_insert_with(|| {
            let (mut fitting, mut beyond) = (1, self.step + 1);
            while beyond - fitting > 1 {
                let middle = fitting + (beyond - fitting) / 2;
                let Held { kept, peak, .. } = self.held(middle, lengths, again);
                if kept <= self.budget.kept && peak <= self.budget.peak { fitting = middle } else { beyond = middle }
            }
            fitting
        })
    }

    /// How much of what the batch allows is held by a part of so many samples of such lengths.
    pub fn filled(&self, samples: u32, lengths: Lengths) -> f64 {
        let held = self.held(samples, lengths, self.recomputes(samples, lengths));
        match self.recompute {
            Recompute::Beyond(_) => held.passing as f64 / self.full.max(1) as f64,
            Recompute::Never | Recompute::Always => held.kept as f64 / self.budget.kept.max(1) as f64,
        }
    }

    /// What a part may hold beside the state of the model, in bytes. Absent where the model has no estimate.
    pub fn part_bytes(&self) -> Option<u64> {
        self.config.step_memory().map(|_| self.budget.passing)
    }

    fn held(&self, samples: u32, lengths: Lengths, again: bool) -> Held {
        let (source, target) = (lengths.source.into(), lengths.target.into());
        let work = Work { batch: samples.into(), source, target, checkpointing: again, ..self.work };
        held(&*self.config, &self.parameters, &work)
    }
}

/// Tokens, where the model has no estimate.
fn held(config: &dyn ModelConfig, parameters: &[Parameter], work: &Work) -> Held {
    let bytes = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    let Some(memory) = config.step_memory() else {
        let tokens = bytes(work.batch * (work.source + work.target).max(1));
        return Held { kept: tokens, peak: tokens, passing: tokens };
    };
    let stages = memory.stages(work);
    let kept = stages.iter().map(|stage| stage.kept).sum::<u128>()
        + stages.iter().map(|stage| stage.logits).max().unwrap_or(0);
    let estimate = Estimate::of(parameters, &stages, work);
    let passing = estimate.activations.saturating_add(estimate.logits);
    Held { kept: bytes(kept), peak: estimate.allocated(), passing }
}

/// As `Cutter::cut`, with `room` samples of such lengths in a part at most. Several ranks may have more parts than they need, where
/// that makes their work more alike.
pub fn cut(samples: &[Lengths], ranks: u32, room: impl Fn(Lengths) -> usize) -> Vec<usize> {
    let rounds = if ranks > 1 { MOST_ROUNDS } else { 1 };
    let cuts = (1..=rounds).map(|rounds| {
        let any = alike(samples, &room, 1, ranks, rounds);
        let round = alike(samples, &room, round_size(samples.len() / ranks.max(1) as usize), ranks, rounds);
        if round.len() <= any.len() { round } else { any }
    });
    cuts.min_by_key(|sizes| slowest(samples, sizes, ranks)).unwrap_or_default()
}

/// The work of the rank that has most.
fn slowest(samples: &[Lengths], sizes: &[usize], ranks: u32) -> u64 {
    let mut rest = samples;
    let work: Vec<u64> = sizes
        .iter()
        .map(|size| {
            let (part, after) = rest.split_at(*size);
            rest = after;
            let longest = part.iter().fold(Lengths::default(), |longest, one| longest.max(*one));
            *size as u64 * longest.tokens() + PART_COST
        })
        .collect();
    let mut each = vec![0; ranks.max(1) as usize];
    for (owner, work) in owners(&work, ranks).into_iter().zip(work) {
        each[owner as usize] += work;
    }
    each.into_iter().max().unwrap_or(0)
}

/// Sizes of parts of `room` samples at most that are all alike: as few as give each rank the same number.
pub fn even(samples: usize, ranks: u32, room: usize) -> Vec<usize> {
    let parts = samples.div_ceil(room.max(1)).next_multiple_of(ranks.max(1) as usize).min(samples);
    (0..parts).map(|part| samples / parts + usize::from(part < samples % parts)).collect()
}

/// Parts have a multiple of this many samples where that costs no part more, so that few sizes come up again and again.
fn round_size(samples: usize) -> usize {
    1 << (samples / 8).clamp(1, MOST_ROUND).ilog2()
}

/// The parts whose work is most alike, of so many times as few as there is room for, and as many for each rank. All but the last have a multiple
/// of `round` samples, or fewer.
fn alike(samples: &[Lengths], room: impl Fn(Lengths) -> usize, round: usize, ranks: u32, rounds: usize) -> Vec<usize> {
    let within = |most_work: u64| greedy(samples, &room, round, most_work);
    let all = within(u64::MAX).len().next_multiple_of(ranks.max(1) as usize) * rounds;
    let whole = samples.iter().fold(Lengths::default(), |longest, one| longest.max(*one)).tokens();
    let (mut least, mut enough) = (0, whole * samples.len() as u64);
    while least < enough {
        let middle = least + (enough - least) / 2;
        if within(middle).len() <= all { enough = middle } else { least = middle + 1 }
    }
    within(enough)
}

/// Parts that are each as large as `room` and `most_work` padded tokens allow; a sample by itself is always allowed.
fn greedy(samples: &[Lengths], room: impl Fn(Lengths) -> usize, round: usize, most_work: u64) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut rest = samples;
    while !rest.is_empty() {
        let count = first_part(rest, &room, most_work);
        let count = if count < rest.len() && count > round { count - count % round } else { count };
        sizes.push(count);
        rest = &rest[count..];
    }
    sizes
}

/// How many of the first samples make a part.
fn first_part(samples: &[Lengths], room: impl Fn(Lengths) -> usize, most_work: u64) -> usize {
    let (mut longest, mut room_here) = (Lengths::default(), 0);
    for (count, lengths) in samples.iter().enumerate() {
        let longer = longest.max(*lengths);
        if count == 0 || longer != longest {
            room_here = room(longer);
        }
        let fits = count < room_here && (count as u64 + 1) * longer.tokens() <= most_work;
        if count > 0 && !fits {
            return count;
        }
        longest = longer;
    }
    samples.len()
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

    const WORK: Work = Work {
        precision: Precision::Bf16Mixed,
        optimizer: OptimizerKind::Adafactor,
        checkpointing: false,
        batch: 7,
        accum: 9,
        ranks: 1,
        sharded: false,
        source: 77,
        target: 64,
        padded: true,
        drops: true,
    };

    fn cutter(arch: Arch, work: Work, recompute: Recompute) -> Cutter {
        let config = json!({
            "d_model": 512, "d_ff": 1024, "d_kv": 64, "num_heads": 8, "num_layers": 6, "hidden_size": 768,
            "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 250_002,
            "max_position_embeddings": 514,
        });
        Cutter::new(crate::read_config(arch, config.as_object().unwrap()).unwrap(), work, recompute, 99)
    }

    /// So many samples of full length, not more, and half of them with half the batch, however large the state of the model is.
    #[test]
    fn a_part_of_full_length_has_the_batch() {
        for arch in [Arch::T5, Arch::Bert, Arch::XlmRoberta, Arch::DebertaV3, Arch::BagOfWords] {
            for (recompute, batch) in [(Recompute::Never, 7), (Recompute::Always, 12), (Recompute::Beyond(u64::MAX), 7)]
            {
                let cutter = cutter(arch, Work { batch, ..WORK }, recompute);
                let (full, batch, name) = (of(77, 64), batch as u32, format!("{arch:?} {recompute:?}"));
                assert_eq!(cutter.room(full), batch, "{name}");
                assert_eq!(cutter.with_batch(batch / 2, 99).room(full), batch / 2, "{name}");
                assert!((cutter.filled(batch, full) - 1.0).abs() < 1e-9, "{name}");
                assert!(cutter.room(of(8, 8)) > 3 * batch, "{name}: {}", cutter.room(of(8, 8)));
                assert_eq!(cutter.recomputes(batch, full), recompute == Recompute::Always, "{name}");
            }
        }
    }

    /// Where a batch of full length would hold too much, parts are computed again or are small enough to be kept, whichever is less
    /// work; and a smaller batch allows less after all.
    #[test]
    fn what_does_not_fit_is_computed_again() {
        let work = Work { batch: 60, source: 512, target: 128, ..WORK };
        let whole = cutter(Arch::T5, work, Recompute::Never).budget.peak;
        let again = cutter(Arch::T5, work, Recompute::Always).budget.peak;
        let most = again + (whole - again) / 2;
        let cutter = cutter(Arch::T5, work, Recompute::Beyond(most));
        let (long, short) = (of(512, 128), of(32, 32));
        assert!(cutter.recomputes(60, long) && !cutter.recomputes(20, long) && !cutter.recomputes(60, short));
        // Two parts that are kept are less work than one that is computed again.
        assert_eq!(cutter.cut(&[long; 60], 1), [32, 28]);
        assert_eq!(cutter.cut(&[short; 60], 1), [60]);
        let mixed: Vec<Lengths> = [[long; 33].as_slice(), &[short; 27]].concat();
        let sizes = cutter.cut(&mixed, 1);
        let mut rest = mixed.as_slice();
        for size in &sizes {
            let (part, after) = rest.split_at(*size);
            rest = after;
            let longest = part.iter().fold(Lengths::default(), |longest, one| longest.max(*one));
            let held = cutter.held(*size as u32, longest, cutter.recomputes(*size as u32, longest));
            assert!(held.peak <= most, "{sizes:?}");
        }
        // A retry halves what the fullest part held, as a share of the batch.
        let held = (60.0 * cutter.filled(60, long)).ceil() as u32;
        let less = cutter.with_batch(held / 2, 99);
        assert!(held < 60 && less.budget.peak < most, "{held}");
        // Less than it takes when computed again is not on offer: the batch was asked for.
        assert_eq!(self::cutter(Arch::T5, work, Recompute::Beyond(0)).room(long), 60);
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
            assert_eq!(cut(&same(count), 1, |_| fits), want, "{count} samples, {fits} fit");
        }
        // Sizes that come up again, where they cost no part more.
        assert_eq!(cut(&same(90), 1, |_| 50), [48, 42]);
        assert_eq!(cut(&same(100), 1, |_| 50), [50, 50]);
        // One long sample by itself: with the short ones it would make them as long.
        let mixed: Vec<Lengths> = std::iter::once(of(512, 0)).chain(same(40)).collect();
        assert_eq!(cut(&mixed, 1, room(400_000)), [1, 40]);
        // One that is too long for any part is one.
        assert_eq!(cut(&[of(9000, 0), of(1, 0)], 1, room(1000)), [1, 1]);
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
            let sizes = cut(&samples, 1, &room);
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

    /// However many ranks there are: every sample once, no part with more than there is room for, and work that is alike.
    #[test]
    fn ranks_have_alike_work() {
        let samples: Vec<Lengths> = (0..256u32).map(|index| of(12 + (256 - index) * (256 - index) / 300, 20)).collect();
        for ranks in 1..=8 {
            for fits in [4usize, 23, 64, 300] {
                let sizes = cut(&samples, ranks, |_| fits);
                assert_eq!(sizes.iter().sum::<usize>(), samples.len());
                assert!(sizes.iter().all(|size| (1..=fits).contains(size)), "{ranks} ranks, {fits} fit: {sizes:?}");
                let mut start = 0;
                let work: Vec<u64> = sizes
                    .iter()
                    .map(|size| {
                        let longest = samples[start..start + size].iter().fold(Lengths::default(), |a, b| a.max(*b));
                        start += size;
                        *size as u64 * longest.tokens()
                    })
                    .collect();
                let mut each = vec![0; ranks as usize];
                for (owner, work) in owners(&work, ranks).into_iter().zip(&work) {
                    each[owner as usize] += work;
                }
                // The slowest decides.
                let (most, mean) = (each.iter().max().unwrap(), each.iter().sum::<u64>() as f64 / f64::from(ranks));
                assert!(*most as f64 <= 1.2 * mean, "{ranks} ranks, {fits} fit: {each:?}");
            }
        }
    }

    #[test]
    fn parts_of_one_length_are_even() {
        for (samples, ranks, room, want) in [
            (10, 4, 100, vec![3, 3, 2, 2]),
            (9, 4, 100, vec![3, 2, 2, 2]),
            (10, 2, 2, vec![2, 2, 2, 2, 1, 1]),
            (2, 4, 8, vec![1, 1]),
            (8, 1, 8, vec![8]),
        ] {
            assert_eq!(even(samples, ranks, room), want, "{samples} over {ranks}");
        }
    }
}
