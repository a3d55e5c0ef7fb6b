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
            TaskData::Preference { max_length, .. } => {
                let length = padded(at_most(*max_length));
                Self { source: length, target: length }
            }
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

/// How the samples of a part stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each in a row that is padded to the longest of the part.
    Padded,
    /// One behind the other.
    Packed,
}

/// The samples of a part, added up.
#[derive(Clone, Copy, Default)]
pub(super) struct PartTotals {
    count: u64,
    longest: Lengths,
    source: u64,
    target: u64,
}

impl PartTotals {
    pub fn of(part: &[Lengths]) -> Self {
        part.iter().fold(Self::default(), |totals, lengths| totals.with(*lengths))
    }

    fn with(self, lengths: Lengths) -> Self {
        Self {
            count: self.count + 1,
            longest: self.longest.max(lengths),
            source: self.source + u64::from(lengths.source),
            target: self.target + u64::from(lengths.target),
        }
    }

    /// The lengths of as many samples that are all alike and hold as much.
    pub fn lengths(&self, layout: Layout) -> Lengths {
        let mean = |total: u64| u32::try_from(total.div_ceil(self.count.max(1))).unwrap_or(u32::MAX);
        match layout {
            Layout::Padded => self.longest,
            Layout::Packed => Lengths { source: mean(self.source), target: mean(self.target) },
        }
    }

    /// Tokens that are computed.
    pub fn tokens(&self, layout: Layout) -> u64 {
        match layout {
            Layout::Padded => self.count * self.longest.tokens(),
            Layout::Packed => (self.source + self.target).max(self.count),
        }
    }
}

/// So many tokens are computed where a part of packed samples has `tokens`: few numbers come up again and again, each at most an eighth more, or 63.
/// No more than `most`, unless there are more already.
pub fn rounded_tokens(tokens: u64, most: u64) -> u64 {
    let rounded = tokens.max(1).next_multiple_of((tokens / 16).next_power_of_two().max(64));
    rounded.min(most.max(tokens).max(1))
}

/// Sizes of the parts that samples in this order become, for so many ranks. A part has at most `room` samples of its lengths. There
/// are as few parts as fit and as give each rank the same number; several ranks may get more parts than they need, where that makes
/// their work more alike.
pub fn part_sizes(samples: &[Lengths], ranks: u32, layout: Layout, room: impl Fn(Lengths) -> usize) -> Vec<usize> {
    let most_times = if ranks > 1 { MOST_TIMES } else { 1 };
    let cut = Cut { samples, layout, room };
    let candidates = (1..=most_times).map(|times| {
        let any = cut.alike(1, ranks, times);
        let round = cut.alike(round_size(samples.len() / ranks.max(1) as usize), ranks, times);
        if round.len() <= any.len() { round } else { any }
    });
    candidates.min_by_key(|sizes| cut.slowest(sizes, ranks)).unwrap_or_default()
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

/// Sizes of parts of `room` samples at most that are all alike: as few as give each rank the same number.
pub fn even_part_sizes(samples: usize, ranks: u32, room: usize) -> Vec<usize> {
    let parts = samples.div_ceil(room.max(1)).next_multiple_of(ranks.max(1) as usize).min(samples);
    (0..parts).map(|part| samples / parts + usize::from(part < samples % parts)).collect()
}

/// Parts have a multiple of this many samples where that costs no part more, so that few sizes come up again and again.
fn round_size(samples: usize) -> usize {
    1 << (samples / 8).clamp(1, MOST_ROUND).ilog2()
}

/// Samples that are to be cut into parts.
struct Cut<'a, R> {
    samples: &'a [Lengths],
    layout: Layout,
    /// How many samples of such lengths a part may have.
    room: R,
}

impl<R: Fn(Lengths) -> usize> Cut<'_, R> {
    /// The parts whose work is most alike, with at most `times` as many parts as fit, and as many for each rank. All but the last have a
    /// multiple of `round` samples, or fewer than `round`.
    fn alike(&self, round: usize, ranks: u32, times: usize) -> Vec<usize> {
        let within = |most_work: u64| self.greedy(round, most_work);
        let most_parts = within(u64::MAX).len().next_multiple_of(ranks.max(1) as usize) * times;
        // The least work of a part that gives no more parts than that, by bisection.
        let (mut least, mut enough) = (0, PartTotals::of(self.samples).tokens(self.layout));
        while least < enough {
            let middle = least + (enough - least) / 2;
            if within(middle).len() <= most_parts { enough = middle } else { least = middle + 1 }
        }
        within(enough)
    }

    /// Parts that are each as large as there is room and `most_work` tokens allow; a sample by itself is always allowed.
    fn greedy(&self, round: usize, most_work: u64) -> Vec<usize> {
        let mut sizes = Vec::new();
        let mut rest = self.samples;
        while !rest.is_empty() {
            let count = self.first_part(rest, most_work);
            let count = if count < rest.len() && count > round { count - count % round } else { count };
            let count = self.with_room(rest, count);
            sizes.push(count);
            rest = &rest[count..];
        }
        sizes
    }

    /// How many of the first samples make a part, where there is more room for shorter ones.
    fn first_part(&self, samples: &[Lengths], most_work: u64) -> usize {
        let mut totals = PartTotals::default();
        let mut room = 0;
        for (count, lengths) in samples.iter().enumerate() {
            let (before, more) = (totals.lengths(self.layout), totals.with(*lengths));
            let longer = more.lengths(self.layout);
            // Lengths that only become shorter have no less room.
            if count >= room || longer.max(before) != before {
                room = (self.room)(longer);
            }
            if count > 0 && (count >= room || more.tokens(self.layout) > most_work) {
                return count;
            }
            totals = more;
        }
        samples.len()
    }

    /// So many of the first samples or, where they have no room, fewer.
    fn with_room(&self, samples: &[Lengths], mut count: usize) -> usize {
        while count > 1 && count > (self.room)(PartTotals::of(&samples[..count]).lengths(self.layout)) {
            count -= 1;
        }
        count
    }

    /// The work of the rank that has most.
    fn slowest(&self, sizes: &[usize], ranks: u32) -> u64 {
        let tokens = |part: &[Lengths]| PartTotals::of(part).tokens(self.layout) + PART_COST;
        let work: Vec<u64> = parts(self.samples, sizes).map(tokens).collect();
        let mut each = vec![0; ranks.max(1) as usize];
        for (owner, work) in owners(&work, ranks).into_iter().zip(work) {
            each[owner as usize] += work;
        }
        each.into_iter().max().unwrap_or(0)
    }
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
            assert_eq!(part_sizes(&same(count), 1, Layout::Padded, |_| fits), want, "{count} samples, {fits} fit");
        }
        // Sizes that come up again, where they cost no part more.
        assert_eq!(part_sizes(&same(90), 1, Layout::Padded, |_| 50), [48, 42]);
        assert_eq!(part_sizes(&same(100), 1, Layout::Padded, |_| 50), [50, 50]);
        // One long sample by itself: with the short ones it would make them as long.
        let mixed: Vec<Lengths> = std::iter::once(of(512, 0)).chain(same(40)).collect();
        assert_eq!(part_sizes(&mixed, 1, Layout::Padded, room(400_000)), [1, 40]);
        // Packed, it does not.
        assert_eq!(part_sizes(&mixed, 1, Layout::Packed, room(400_000)), [41]);
        // One that is too long for any part is one.
        assert_eq!(part_sizes(&[of(9000, 0), of(1, 0)], 1, Layout::Padded, room(1000)), [1, 1]);
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
            let layout = if case % 5 < 2 { Layout::Packed } else { Layout::Padded };
            let sizes = part_sizes(&samples, 1, layout, &room);
            assert_eq!(sizes.iter().sum::<usize>(), samples.len());
            for part in parts(&samples, &sizes) {
                let (size, lengths) = (part.len(), PartTotals::of(part).lengths(layout));
                assert!(size == 1 || size > 1 && size <= room(lengths), "case {case}: {size} of {lengths}");
            }
            if count <= 7 && layout == Layout::Padded {
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
                let sizes = part_sizes(&samples, ranks, Layout::Padded, |_| fits);
                assert_eq!(sizes.iter().sum::<usize>(), samples.len());
                assert!(sizes.iter().all(|size| (1..=fits).contains(size)), "{ranks} ranks, {fits} fit: {sizes:?}");
                let work: Vec<u64> =
                    parts(&samples, &sizes).map(|part| PartTotals::of(part).tokens(Layout::Padded)).collect();
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
    fn few_numbers_of_tokens_that_are_little_more() {
        let all: Vec<u64> = (1..=20_000).map(|tokens| rounded_tokens(tokens, u64::MAX)).collect();
        assert!(
            all.iter().zip(1..).all(|(rounded, tokens)| *rounded >= tokens && *rounded <= tokens + tokens / 8 + 63)
        );
        assert_eq!(
            [1, 1000, 1600, 3200, 16_384].map(|tokens| rounded_tokens(tokens, u64::MAX)),
            [64, 1024, 1664, 3328, 16_384]
        );
        assert_eq!(
            [rounded_tokens(10_101, 10_101), rounded_tokens(10_000, 10_101), rounded_tokens(9, 5)],
            [10_101, 10_101, 9]
        );
        let mut different = all;
        different.dedup();
        assert!(different.len() < 80, "{}", different.len());
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
