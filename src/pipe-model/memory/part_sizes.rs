//! How samples are split into parts, given how many of them a part has room for. Pure.

use std::fmt;
use std::num::NonZeroU32;

use pipe_spec::pipeline::{Data, Pad};

use crate::estimate::owners;
use crate::task_data::TaskData;

/// Parts have a multiple of at most this many samples.
const MOST_ROUND: usize = 16;

/// With several ranks there may be up to this many times as many parts as fit.
const MOST_TIMES: usize = 3;

/// The fixed cost of a part in tokens: its kernel launches, and reading all weights.
pub(super) const PART_COST: u64 = 512;

/// How many tokens a row has: `source` of its only text, or of a source and its target. 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lengths {
    pub source: u32,
    pub target: u32,
}

impl Lengths {
    /// The lengths of the longest row that there may be. Rows that are padded to the longest of their part are padded to a multiple
    /// of `multiple`.
    pub fn full(task: &TaskData, data: &Data, multiple: u32) -> Self {
        let padded = |length: NonZeroU32| match data.pad {
            Pad::Longest => length.get().next_multiple_of(multiple),
            Pad::Max => length.get(),
        };
        let at_most = |most: u32| data.max_length.min(NonZeroU32::new(most).unwrap_or(NonZeroU32::MIN));
        let one = |source| Self { source, target: 0 };
        match task {
            TaskData::Seq2Seq { .. } => Self { source: padded(data.max_source), target: padded(data.max_target) },
            TaskData::Classification { max_length, .. }
            | TaskData::Contrastive { max_length, .. }
            | TaskData::TokenLabels { max_length, .. } => one(padded(at_most(*max_length))),
            TaskData::Language { max_length, joins_texts: true, .. } => one(at_most(*max_length).get()),
            TaskData::Language { max_length, joins_texts: false, .. } => one(padded(at_most(*max_length))),
            // A picture has no tokens.
            TaskData::PictureClasses { .. } => Self::default(),
            TaskData::TimeSeries { sequence_length, .. } => one(u32::try_from(*sequence_length).unwrap_or(u32::MAX)),
            TaskData::Table { .. } => one(1),
        }
    }

    /// The lengths to which two rows are padded when they are in one part.
    pub fn max(self, other: Self) -> Self {
        Self { source: self.source.max(other.source), target: self.target.max(other.target) }
    }

    /// The longest source and the longest target of several rows.
    pub fn longest(rows: &[Self]) -> Self {
        rows.iter().fold(Self::default(), |longest, row| longest.max(*row))
    }

    /// Tokens of a row; at least 1, because a row without any is work too.
    pub fn tokens(self) -> u64 {
        (u64::from(self.source) + u64::from(self.target)).max(1)
    }
}

/// `480`, or `512+128` where there is a target.
impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            0 => write!(f, "{}", self.source),
            target => write!(f, "{}+{target}", self.source),
        }
    }
}

/// Sizes of the parts that samples in this order become, for so many ranks. A part has at most `room` samples of its lengths. There
/// are as few parts as fit and as give each rank the same number; several ranks may get more parts than they need, where that makes
/// their work more alike.
pub fn part_sizes(samples: &[Lengths], ranks: u32, room: impl Fn(Lengths) -> usize) -> Vec<usize> {
    let most_times = if ranks > 1 { MOST_TIMES } else { 1 };
    let candidates = (1..=most_times).map(|times| {
        let any = alike(samples, &room, 1, ranks, times);
        let round = alike(samples, &room, round_size(samples.len() / ranks.max(1) as usize), ranks, times);
        if round.len() <= any.len() { round } else { any }
    });
    candidates.min_by_key(|sizes| slowest(samples, sizes, ranks)).unwrap_or_default()
}

/// The samples of each part.
pub(super) fn parts<'a>(samples: &'a [Lengths], sizes: &'a [usize]) -> impl Iterator<Item = &'a [Lengths]> {
    let mut rest = samples;
    sizes.iter().map(move |size| {
        let (part, after) = rest.split_at(*size);
        rest = after;
        part
    })
}

/// Tokens of a part whose samples are padded to its longest.
pub(super) fn padded_tokens(part: &[Lengths]) -> u64 {
    part.len() as u64 * Lengths::longest(part).tokens()
}

/// The work of the rank that has most.
fn slowest(samples: &[Lengths], sizes: &[usize], ranks: u32) -> u64 {
    let work: Vec<u64> = parts(samples, sizes).map(|part| padded_tokens(part) + PART_COST).collect();
    let mut each = vec![0; ranks.max(1) as usize];
    for (owner, work) in owners(&work, ranks).into_iter().zip(work) {
        each[owner as usize] += work;
    }
    each.into_iter().max().unwrap_or(0)
}

/// Sizes of parts of `room` samples at most that are all alike: as few as give each rank the same number.
pub fn even_part_sizes(samples: usize, ranks: u32, room: usize) -> Vec<usize> {
    let parts = samples.div_ceil(room.max(1)).next_multiple_of(ranks.max(1) as usize).min(samples);
    (0..parts).map(|part| samples / parts + usize::from(part < samples % parts)).collect()
}

/// Parts have a multiple of this many samples where that costs no part more, so that few sizes come up again and again.
fn round_size(samples: usize) -> usize {
    1 << (samples / 8).clamp(1, MOST_ROUND).ilog2()
}

/// The parts whose work is most alike, with at most `times` as many parts as fit, and as many for each rank. All but the last have a
/// multiple of `round` samples, or fewer than `round`.
fn alike(samples: &[Lengths], room: impl Fn(Lengths) -> usize, round: usize, ranks: u32, times: usize) -> Vec<usize> {
    let within = |most_work: u64| greedy(samples, &room, round, most_work);
    let most_parts = within(u64::MAX).len().next_multiple_of(ranks.max(1) as usize) * times;
    // The least work of a part that gives no more parts than that, by bisection.
    let (mut least, mut enough) = (0, padded_tokens(samples));
    while least < enough {
        let middle = least + (enough - least) / 2;
        if within(middle).len() <= most_parts { enough = middle } else { least = middle + 1 }
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
            assert_eq!(part_sizes(&same(count), 1, |_| fits), want, "{count} samples, {fits} fit");
        }
        // Sizes that come up again, where they cost no part more.
        assert_eq!(part_sizes(&same(90), 1, |_| 50), [48, 42]);
        assert_eq!(part_sizes(&same(100), 1, |_| 50), [50, 50]);
        // One long sample by itself: with the short ones it would make them as long.
        let mixed: Vec<Lengths> = std::iter::once(of(512, 0)).chain(same(40)).collect();
        assert_eq!(part_sizes(&mixed, 1, room(400_000)), [1, 40]);
        // One that is too long for any part is one.
        assert_eq!(part_sizes(&[of(9000, 0), of(1, 0)], 1, room(1000)), [1, 1]);
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
            let sizes = part_sizes(&samples, 1, &room);
            assert_eq!(sizes.iter().sum::<usize>(), samples.len());
            for part in parts(&samples, &sizes) {
                let (size, longest) = (part.len(), Lengths::longest(part));
                assert!(size > 0 && size <= room(longest), "case {case}: {size} of {longest}");
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
                let sizes = part_sizes(&samples, ranks, |_| fits);
                assert_eq!(sizes.iter().sum::<usize>(), samples.len());
                assert!(sizes.iter().all(|size| (1..=fits).contains(size)), "{ranks} ranks, {fits} fit: {sizes:?}");
                let work: Vec<u64> = parts(&samples, &sizes).map(padded_tokens).collect();
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
            assert_eq!(even_part_sizes(samples, ranks, room), want, "{samples} over {ranks}");
        }
    }
}
