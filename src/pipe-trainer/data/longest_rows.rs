//! The rows whose texts are longest, found while every row is looked at. Texts are compared by their bytes: to count their
//! tokens would take as long as an epoch of reading.

use std::cmp::Reverse;

/// How many rows are kept for each column.
pub const ROWS_PER_COLUMN: usize = 64;

/// Of each column the longest texts, as length and row, longest first.
#[derive(Clone, Debug, Default)]
pub struct LongestRows(Vec<Vec<(usize, Reverse<usize>)>>);

impl LongestRows {
    pub fn see(mut self, row: usize, lengths: &[usize]) -> Self {
        self.0.resize(lengths.len(), Vec::new());
        for (column, length) in self.0.iter_mut().zip(lengths) {
            column.push((*length, Reverse(row)));
            if column.len() > 4 * ROWS_PER_COLUMN {
                keep(column);
            }
        }
        self
    }

    pub fn merge(mut self, other: Self) -> Self {
        self.0.resize(self.0.len().max(other.0.len()), Vec::new());
        for (column, more) in self.0.iter_mut().zip(other.0) {
            column.extend(more);
            keep(column);
        }
        self
    }

    /// The rows, those that are longest in some column first.
    pub fn rows(mut self) -> Vec<usize> {
        self.0.iter_mut().for_each(keep);
        let mut rows = Vec::new();
        for index in 0..ROWS_PER_COLUMN {
            for (_, Reverse(row)) in self.0.iter().filter_map(|column| column.get(index)) {
                if !rows.contains(row) {
                    rows.push(*row);
                }
            }
        }
        rows
    }
}

fn keep(column: &mut Vec<(usize, Reverse<usize>)>) {
    column.sort_unstable_by(|a, b| b.cmp(a));
    column.truncate(ROWS_PER_COLUMN);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_every_column_however_rows_are_split() {
        let lengths = |row: usize| [row * 7 % 1000, row * 13 % 1000];
        let seen =
            |rows: std::ops::Range<usize>| rows.fold(LongestRows::default(), |all, row| all.see(row, &lengths(row)));
        let rows = seen(0..1000).rows();
        assert_eq!(rows, seen(0..300).merge(seen(300..1000)).rows());
        assert_eq!((lengths(rows[0])[0], lengths(rows[1])[1]), (999, 999));
        assert!((ROWS_PER_COLUMN..=2 * ROWS_PER_COLUMN).contains(&rows.len()), "{}", rows.len());
        assert_eq!(seen(0..3).rows().len(), 3);
    }
}
