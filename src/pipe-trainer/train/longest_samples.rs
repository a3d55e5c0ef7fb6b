//! The samples whose step needs the most memory: the longest ones.

use crate::data::{Column, Reader, Sample, sort_longest_first};
use crate::error::TrainerError;

/// The longest samples, those that are longest in some column first.
pub struct LongestSamples(Vec<Sample>);

impl LongestSamples {
    pub fn find(reader: &Reader) -> Result<Self, TrainerError> {
        let mut samples = reader.peek(&reader.source.longest())?;
        sort_longest_first(&mut samples);
        // A part is as long as its longest row in each column: after the longest sample come those.
        for column in 0..samples.first().map_or(0, |sample| sample.columns.len()) {
            let length = |position: usize| samples[position].lengths().nth(column).unwrap_or(0);
            let longest = (0..samples.len()).rev().max_by_key(|position| length(*position)).unwrap_or(0);
            if length(longest) > length(0) {
                let sample = samples.remove(longest);
                samples.insert(1, sample);
            }
        }
        Ok(Self(samples))
    }

    /// Whether no sample could be read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As many samples as a pass has, over and over where there are fewer. One of them is a little shorter, so that there is
    /// padding as there is in the training.
    pub fn part(&self, batch: u32) -> Vec<Sample> {
        let mut part: Vec<Sample> = self.0.iter().cycle().take(batch as usize).cloned().collect();
        if let [_, .., last] = part.as_mut_slice() {
            shorten(last);
        }
        part
    }
}

fn shorten(sample: &mut Sample) {
    for (name, column) in &mut sample.columns {
        if let (Column::Tokens(tokens), true) = (column, *name != "labels")
            && tokens.len() > 1
        {
            tokens.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(source: usize, target: usize) -> Sample {
        let tokens = |length| Column::Tokens(vec![1; length]);
        let columns =
            vec![("input_ids", tokens(source)), ("attention_mask", tokens(source)), ("labels", tokens(target))];
        Sample { columns, targets: 1 }
    }

    struct Rows(Vec<(usize, usize)>);

    impl crate::data::Source for Rows {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
            Ok(Some(sample(self.0[index].0, self.0[index].1)))
        }
    }

    #[test]
    fn a_part_is_as_long_as_any_can_be() {
        let rows = Rows(vec![(9, 9), (30, 2), (29, 4), (31, 1), (3, 12), (2, 2)]);
        let reader = Reader { source: std::sync::Arc::new(rows), pool: crate::data::workers(1).unwrap() };
        let longest_samples = LongestSamples::find(&reader).unwrap();
        let longest = |batch: u32, column: usize| {
            longest_samples.part(batch).iter().map(|sample| sample.lengths().nth(column).unwrap()).max().unwrap()
        };
        assert_eq!((longest(1, 0), longest(1, 2)), (29, 4), "one sample is the longest in all");
        assert_eq!((longest(4, 0), longest(4, 2)), (31, 12), "several have the longest of each column");
        assert_eq!(longest_samples.part(20).len(), 20);
        let part = longest_samples.part(4);
        assert!(part[3].lengths().next() < Some(31), "there is padding");
    }
}
