//! The rows of data files, read by `pipe-data`: watched so that an error about memory names the row, and each read once before
//! the first step. The rows whose texts are longest are found meanwhile, by their bytes: to count tokens would take as long as
//! an epoch of reading.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pipe_data::{CsvRecords, Documents, Place, Rows, StringRecord, open_pictures};
use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::{Arch, Pad, Paths};
use pipe_spec::text::count;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::Value;

use super::part_shape::Padding;
use super::source::{ROWS_PER_COLUMN, Source};
use super::tensors::TensorRows;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::{boundary, host};

/// Without rows that have more or fewer cells than there are columns: `Opener::rows` says so, or refuses them.
pub fn open_rows(paths: &Paths, columns: &[&str]) -> Result<Rows, TrainerError> {
    let mut rows = Rows::open(paths, columns, next_record)?;
    let uneven = rows.uneven();
    if uneven.len() < rows.len() {
        rows.leave_out(&uneven);
    }
    Ok(rows)
}

/// `column` holds the texts where the file has columns.
pub fn open_documents(path: &str, column: &str) -> Result<Documents, TrainerError> {
    Documents::open(path, column, next_record)
}

/// The text of a document; of a row without one it is empty where such rows are skipped.
pub fn text_of(documents: &Documents, index: usize, skip_bad: bool) -> Result<Cow<'_, str>, TrainerError> {
    Ok(match skip_bad {
        true => documents.text_if_any(index)?.unwrap_or_default(),
        false => documents.text(index).map_err(|mut error| {
            if documents.is_uneven(index) {
                error.message += &skip_hint(false);
            }
            error
        })?,
    })
}

/// Whether a row has nothing in a column.
pub fn is_lacking(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.trim().is_empty(),
        Some(_) => false,
    }
}

/// The error of a row without a text in `column`, which says how to skip it.
pub fn no_text(rows: &Rows, row: usize, column: usize, found: Option<&Value>, predicts: bool) -> TrainerError {
    let mut error = rows.not_a_text(row, column, found);
    if is_lacking(found) {
        error.message += &skip_hint(predicts);
    }
    error.into()
}

pub fn skip_hint(predicts: bool) -> String {
    format!("; {} skips such rows", if predicts { "--skip-bad" } else { "data.skip_bad: true" })
}

/// Rows that a message names at most.
const NAMED: usize = 5;

/// Rows that `data.skip_bad` skips, with what they lack. Filled by threads, in any order.
#[derive(Default)]
pub struct SkippedRows(Mutex<BTreeMap<usize, &'static str>>);

impl SkippedRows {
    pub fn add(&self, row: usize, lacks: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(row, lacks);
    }

    /// Adds a row that lacks one of its values. Its lengths are then 0.
    pub fn look<const N: usize>(&self, row: usize, values: &[Option<Value>], lacks: &'static str) -> [usize; N] {
        if values.iter().any(|value| is_lacking(value.as_ref())) {
            self.add(row, lacks);
        }
        [0; N]
    }

    /// Leaves them out of `rows`. Returns what is to be said about it.
    pub fn leave_out(self, rows: &mut Rows) -> Result<Vec<String>, TrainerError> {
        let found = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, lacks)) = found.first_key_value().filter(|_| found.len() == rows.len()) {
            return Err(rows.fail(0, format!("it is without {lacks}, and so is every other row")).into());
        }
        let (skipped, notices) = Self(Mutex::new(found)).finish(|row| file_and_line(rows, row));
        rows.leave_out(&skipped);
        Ok(notices)
    }

    /// The rows, and what is to be said about them. `name` is what a message calls a row.
    pub fn finish(self, name: impl Fn(usize) -> String) -> (Vec<usize>, Vec<String>) {
        let found = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut by_lack: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        found.iter().for_each(|(row, lacks)| by_lack.entry(lacks).or_default().push(*row));
        let notices = by_lack.iter().map(|(lacks, skipped)| {
            let named: Vec<String> = skipped.iter().take(NAMED).map(|row| name(*row)).collect();
            let more = skipped.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("skipped {} without {lacks}: {}{more}", count(skipped.len(), "row"), named.join(", "))
        });
        let notices = notices.collect();
        (found.into_keys().collect(), notices)
    }
}

/// Rows that were read once: the longest, and the bad ones.
pub struct CheckedRows {
    longest: Vec<usize>,
    skipped: SkippedRows,
}

impl CheckedRows {
    /// Leaves the bad ones out of `rows`. Returns the longest as they are counted then, and what is to be said.
    pub fn leave_out(self, rows: &mut Rows) -> Result<(Vec<usize>, Vec<String>), TrainerError> {
        let notices = self.skipped.leave_out(rows)?;
        Ok((self.longest.into_iter().filter_map(|row| rows.index_of(row)).collect(), notices))
    }
}

/// A sentence about rows that are skipped because they have more or fewer cells than there are columns; nothing where there are none.
pub fn uneven_rows(rows: &[String]) -> Option<String> {
    let named = rows[..rows.len().min(NAMED)].join(", ");
    let more = if rows.len() > NAMED { format!(" and {} more", rows.len() - NAMED) } else { String::new() };
    let count = count(rows.len(), "row");
    (!rows.is_empty()).then(|| format!("skipped {count} with too few or too many cells: {named}{more}"))
}

pub fn file_and_line(rows: &Rows, row: usize) -> String {
    let (path, line) = rows.line(row);
    format!("{} line {line}", path.display())
}

/// The next record of a table, which an out-of-memory error names.
pub fn next_record(records: &mut CsvRecords<'_>) -> Option<Result<StringRecord, TrainerError>> {
    let (path, number) = (records.path(), records.number());
    let record = host::during(format_args!("row {number} of {}", path.display()), || records.next())?;
    Some(record.map_err(TrainerError::from).and_then(|record| boundary::check_host_memory().map(|()| record)))
}

/// Does `work` on a row or a text, which an out-of-memory error names.
pub fn during<T>(place: Place<'_>, work: impl FnOnce() -> Result<T, TrainerError>) -> Result<T, TrainerError> {
    if host::stopped_while_opening() {
        return Err(TrainerError::Stopped { step: 0 });
    }
    host::during(format_args!("{place}"), || {
        let done = work()?;
        boundary::check_host_memory().map(|()| done)
    })
}

/// The names that occur in any row; the first bad row is the error.
pub fn collect_names(
    rows: &Rows,
    pool: &ThreadPool,
    read: impl Fn(usize) -> Result<BTreeSet<String>, TrainerError> + Sync,
) -> Result<BTreeSet<String>, TrainerError> {
    check_rows(rows, pool, |row| read(row).map(|_| []))?;
    let join = |mut one: BTreeSet<String>, mut other: BTreeSet<String>| {
        one.append(&mut other);
        Ok(one)
    };
    pool.install(|| (0..rows.len()).into_par_iter().map(&read).try_reduce(BTreeSet::new, join))
}

/// Whether an error is not of the row at which it came up.
fn ends_reading(error: &TrainerError) -> bool {
    matches!(error, TrainerError::OutOfMemory { .. } | TrainerError::Stopped { .. })
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
        found if ends_reading(&found) => found,
        found => (0..rows.len()).find_map(|index| read(index).err()).unwrap_or(found),
    })
}

/// The longest texts of each column, as length and row, longest first.
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

pub type Opened = Result<Arc<dyn Source>, TrainerError>;

pub struct Opener<'a> {
    pub spec: &'a TrainerSpec,
    pub pool: &'a ThreadPool,
    /// Whether rows are read to be predicted: what is to be predicted may be missing.
    pub predicts: bool,
    /// Sentences about rows with more or fewer cells than there are columns, each once however often a file is opened.
    pub uneven: Mutex<BTreeSet<String>>,
}

impl Opener<'_> {
    /// Opens rows. Those with more or fewer cells than there are columns are skipped where bad rows are, and otherwise refused.
    pub fn rows(&self, paths: &Paths, columns: &[&str]) -> Result<Rows, TrainerError> {
        let mut rows = Rows::open(paths, columns, next_record)?;
        let uneven = rows.uneven();
        let Some(first) = uneven.first().copied() else { return Ok(rows) };
        if !self.spec.data.skip_bad || uneven.len() == rows.len() {
            let mut error = rows.values(first).err().unwrap_or_else(|| rows.fail(first, String::new()));
            error.message += &match uneven.len() == rows.len() {
                true => ", as in every other row".to_owned(),
                false => skip_hint(self.predicts),
            };
            return Err(error.into());
        }
        let names: Vec<String> = uneven.iter().map(|row| file_and_line(&rows, *row)).collect();
        self.uneven.lock().unwrap_or_else(PoisonError::into_inner).extend(uneven_rows(&names));
        rows.leave_out(&uneven);
        Ok(rows)
    }

    /// Reads every row once. Where bad rows are skipped, those without one of their first `needed` values are noted with what they
    /// lack, and so are those that cannot be read where there is a word for it.
    pub fn check_rows<const N: usize>(
        &self,
        rows: &Rows,
        needed: usize,
        (no_value, no_sense): (&'static str, Option<&'static str>),
        read: impl Fn(usize) -> Result<[usize; N], TrainerError> + Sync,
    ) -> Result<CheckedRows, TrainerError> {
        let skipped = SkippedRows::default();
        let skips = self.spec.data.skip_bad;
        let longest = check_rows(rows, self.pool, |index| {
            if skips && rows.values(index)?.iter().take(needed).any(|value| is_lacking(value.as_ref())) {
                skipped.add(index, no_value);
                return Ok([0; N]);
            }
            match (read(index), no_sense) {
                (Err(error), Some(lacks)) if skips && !ends_reading(&error) => {
                    tracing::debug!("{error}");
                    skipped.add(index, lacks);
                    Ok([0; N])
                }
                (read, _) => read,
            }
        })?;
        Ok(CheckedRows { longest: longest.rows(), skipped })
    }

    /// Files of tensors need nothing more; others are for the task to open.
    pub fn part(&self, paths: &Paths, open: &dyn Fn(&Paths) -> Opened) -> Result<Arc<dyn Source>, TrainerError> {
        if holds_tensors(paths) {
            return Ok(Arc::new(TensorRows::open(paths)?));
        }
        open(paths)
    }

    pub fn tokenizer(&self) -> Result<&Path, TrainerError> {
        let missing = || TrainerError::Tokenizer { path: "".into(), message: "none is given".to_owned() };
        self.spec.tokenizer.as_deref().ok_or_else(missing)
    }

    pub fn arch(&self) -> Arch {
        self.spec.model.arch
    }

    /// The padding of a column whose rows have at most `most` tokens, as `data.pad` says.
    pub fn padding(&self, column: &'static str, with: i64, most: u32) -> Padding {
        let most = most as usize;
        let length = match self.spec.data.pad {
            Pad::Longest => None,
            Pad::Max => Some(most),
        };
        Padding { column, with, length, most }
    }
}

/// The rows of these classes that are held out for evaluation, in their order; an error where there are none.
pub fn choose_held_out(classes: &[Option<i64>], share: f64, seed: u64) -> Result<Vec<usize>, TrainerError> {
    let chosen = choose(classes, share, seed);
    if chosen.is_empty() {
        let message =
            "no row can be kept for evaluation: there is one of each class at most; give data.eval".to_owned();
        return Err(TrainerError::Data { path: PathBuf::from("data.eval_share"), line: None, message });
    }
    Ok(chosen)
}

/// The rows for evaluation, in their order. Of each class with two rows or more, one at least is on either side.
fn choose(classes: &[Option<i64>], share: f64, seed: u64) -> Vec<usize> {
    let mut by_class: BTreeMap<Option<i64>, Vec<usize>> = BTreeMap::new();
    for (row, class) in classes.iter().enumerate() {
        by_class.entry(*class).or_default().push(row);
    }
    let mut chosen = Vec::new();
    for (class, mut rows) in by_class {
        let count = match rows.len() {
            0 | 1 => 0,
            many => ((many as f64 * share).round() as usize).clamp(1, many - 1),
        };
        let number = class.map_or(0, |class| class.cast_unsigned().wrapping_add(1));
        Random::new(Purpose::Split, seed, &[number]).shuffle(&mut rows);
        chosen.extend(rows.into_iter().take(count));
    }
    chosen.sort_unstable();
    chosen
}

/// Whether samples are ready for the model.
pub fn holds_tensors(paths: &Paths) -> bool {
    paths.0.iter().all(|path| path.ends_with(".safetensors"))
}

const ID: &str = "id";

pub struct KeptColumns {
    /// Absent where nothing is kept.
    rows: Option<Rows>,
    names: Vec<String>,
    /// The names of pictures, where rows are pictures in folders.
    pictures: Vec<String>,
}

impl KeptColumns {
    /// The first row must have every column of `keep`.
    pub fn open(paths: &Paths, keep: &[String]) -> Result<Self, TrainerError> {
        if let ([], Some(pictures)) = (keep, open_pictures(paths)?) {
            let pictures = pictures.into_iter().map(|picture| picture.name).collect();
            return Ok(Self { rows: None, names: Vec::new(), pictures });
        }
        let mut names = keep.to_vec();
        if !names.iter().any(|name| name == ID) && may_have_id(paths)? {
            names.push(ID.to_owned());
        }
        if names.is_empty() {
            return Ok(Self { rows: None, names, pictures: Vec::new() });
        }
        if let Some(path) = paths.0.iter().find(|path| !has_columns(path)) {
            let message = format!("it has no columns, and so no {:?} to keep", names[0]);
            return Err(TrainerError::Data { path: path.into(), line: None, message });
        }
        let rows = open_rows(paths, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let first = rows.values(0)?;
        match first.iter().take(keep.len()).position(Option::is_none) {
            Some(missing) => Err(rows.problem(0, missing, None, "").into()),
            None => Ok(Self { rows: Some(rows), names, pictures: Vec::new() }),
        }
    }

    /// Those that a row has, `id` first.
    pub fn values(&self, row: usize) -> Result<Vec<(String, Value)>, TrainerError> {
        if let Some(picture) = self.pictures.get(row) {
            return Ok(vec![("image".to_owned(), Value::from(picture.as_str()))]);
        }
        let Some((rows, row)) = self.rows.as_ref().and_then(|rows| Some((rows, rows.index_of(row)?))) else {
            return Ok(Vec::new());
        };
        let named = self.names.iter().zip(rows.values(row)?);
        let mut kept: Vec<(String, Value)> =
            named.filter_map(|(name, value)| value.map(|value| (name.clone(), value))).collect();
        kept.sort_by_key(|(name, _)| name != ID);
        Ok(kept)
    }
}

fn has_columns(path: &str) -> bool {
    [".jsonl", ".csv", ".tsv"].iter().any(|ending| path.ends_with(ending))
}

/// A CSV file is read whole, which is not done a second time for a column that it does not have.
fn may_have_id(paths: &Paths) -> Result<bool, TrainerError> {
    for path in &paths.0 {
        let has = match path.rsplit('.').next() {
            Some("csv" | "tsv") => {
                let header = CsvRecords::open(Path::new(path))?.headers()?;
                header.iter().any(|name| name.trim() == ID)
            }
            _ => path.ends_with(".jsonl"),
        };
        if !has {
            return Ok(false);
        }
    }
    Ok(true)
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

#[cfg(test)]
mod kept_columns_tests {
    use super::*;

    #[test]
    fn what_is_asked_for_and_the_id_are_kept() {
        let folder = std::env::temp_dir().join(format!("pipe-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            Paths(vec![folder.join(name).display().to_string()])
        };
        let kept = |paths: &Paths, keep: &[&str], row: usize| {
            let keep: Vec<String> = keep.iter().map(|name| (*name).to_owned()).collect();
            let kept = KeptColumns::open(paths, &keep).map_err(|error| error.to_string())?;
            let values = kept.values(row).map_err(|error| error.to_string())?;
            Ok::<_, String>(values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
        };
        let rows = write("a.jsonl", "{\"b\":1,\"id\":\"x\"}\n{\"b\":2,\"c\":[3]}\n");
        assert_eq!(kept(&rows, &[], 0).unwrap(), "id=\"x\"");
        assert_eq!(kept(&rows, &["b"], 0).unwrap(), "id=\"x\" b=1");
        assert_eq!(kept(&rows, &["b"], 1).unwrap(), "b=2");
        assert!(kept(&rows, &["c"], 0).unwrap_err().ends_with("line 1: no field \"c\"; it has: b, id"));
        let table = write("a.csv", "text,n\nhello,7\n");
        assert_eq!(kept(&table, &[], 0).unwrap(), "");
        assert_eq!(kept(&table, &["n"], 0).unwrap(), "n=\"7\"");
        let text = write("a.txt", "hello\n");
        assert_eq!(kept(&text, &[], 0).unwrap(), "");
        assert!(kept(&text, &["n"], 0).unwrap_err().contains("no \"n\" to keep"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[cfg(test)]
mod split_tests {
    use super::*;

    fn of(counts: &[usize]) -> Vec<Option<i64>> {
        (0i64..).zip(counts).flat_map(|(class, count)| vec![Some(class); *count]).collect()
    }

    #[test]
    fn every_class_is_on_both_sides_where_it_can_be() {
        for share in [0.01, 0.1, 0.5, 0.9] {
            let classes = of(&[100, 7, 2, 1]);
            let eval = choose(&classes, share, 3);
            let count = |class: i64| eval.iter().filter(|row| classes[**row] == Some(class)).count();
            assert!((1..100).contains(&count(0)) && (1..7).contains(&count(1)), "{share}");
            assert_eq!((count(2), count(3)), (1, 0), "{share}");
            assert!((count(0) as f64 - 100.0 * share).abs() <= 1.0, "{share}");
        }
    }

    #[test]
    fn the_seed_decides() {
        let classes = vec![None; 50];
        assert_eq!(choose(&classes, 0.2, 1), choose(&classes, 0.2, 1));
        assert_ne!(choose(&classes, 0.2, 1), choose(&classes, 0.2, 2));
        // For all time: a run that goes on must find the same rows.
        assert_eq!(choose(&classes, 0.1, 42), [0, 18, 30, 45, 49]);
        assert_eq!(choose(&[None], 0.5, 1), [] as [usize; 0]);
    }
}
