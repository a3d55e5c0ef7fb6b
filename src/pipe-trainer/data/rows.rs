//! The rows of a training: read by `pipe-data`, watched so that an error about memory names the row, and each read once before
//! the first step. The rows whose texts are longest are found meanwhile. Texts are compared by their bytes: to count their
//! tokens would take as long as an epoch of reading.

use std::cmp::Reverse;

use pipe_data::{CsvRecords, Documents, Place, Rows, StringRecord};
use pipe_spec::pipeline::Paths;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::boundary;
use crate::error::TrainerError;
use crate::host::activity;

pub fn open_rows(paths: &Paths, columns: &[&str]) -> Result<Rows, TrainerError> {
    Rows::open(paths, columns, next_record)
}

/// `column` holds the texts where the file has columns.
pub fn open_documents(path: &str, column: &str) -> Result<Documents, TrainerError> {
    Documents::open(path, column, next_record)
}

/// The next record of a table, which an out-of-memory error names.
pub fn next_record(records: &mut CsvRecords<'_>) -> Option<Result<StringRecord, TrainerError>> {
    let (path, number) = (records.path(), records.number());
    let record = activity::during(format_args!("row {number} of {}", path.display()), || records.next())?;
    Some(record.map_err(TrainerError::from).and_then(|record| boundary::check_host_memory().map(|()| record)))
}

/// Does `work` on a row or a text, which an out-of-memory error names.
pub fn during<T>(place: Place<'_>, work: impl FnOnce() -> Result<T, TrainerError>) -> Result<T, TrainerError> {
    activity::during(format_args!("{place}"), || {
        let done = work()?;
        boundary::check_host_memory().map(|()| done)
    })
}

/// Reads every row once, which gives the lengths of its texts; the first bad one is the error.
pub fn check_rows<const N: usize>(
    rows: &Rows,
    pool: &ThreadPool,
    read: impl Fn(usize) -> Result<[usize; N], TrainerError> + Sync,
) -> Result<LongestRows, TrainerError> {
    let read = |index: usize| during(rows.place(index), || read(index));
    let see = |longest: LongestRows, index: usize| read(index).map(|lengths| longest.see(index, &lengths));
    let merge = |one: LongestRows, other: LongestRows| Ok(one.merge(other));
    // The threads find any bad row; the error names the first.
    pool.install(|| {
        let all = (0..rows.len()).into_par_iter();
        all.try_fold(LongestRows::default, see).try_reduce(LongestRows::default, merge)
    })
    .map_err(|found| match found {
        // The error already says where memory ran out.
        TrainerError::OutOfMemory { .. } => found,
        _ => (0..rows.len()).find_map(|index| read(index).err()).unwrap_or(found),
    })
}

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
