//! Time series in files of comma-separated values: a line of names, then a row for each time, all numbers but its label.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pipe_data::{CsvRecords, StringRecord, is_missing_number, line_of, uneven};
use pipe_spec::pipeline::Data;

use super::rows::{next_record, skip_hint};
use crate::error::TrainerError;

/// One file.
pub struct Series {
    pub path: PathBuf,
    /// Row by row the features.
    pub values: Vec<f64>,
    /// For each row the index of its label in `Found`, if it has a label.
    pub labels: Vec<Option<usize>>,
    /// How many numbers of each feature were missing and were filled.
    pub filled: Vec<usize>,
}

/// The labels that were found, each once, with the file and line where it was first seen.
#[derive(Default)]
pub struct Found {
    pub labels: Vec<(String, PathBuf, u64)>,
    indexes: BTreeMap<String, usize>,
}

/// Reads files that must all have the same features.
pub struct SeriesReader<'a> {
    data: &'a Data,
    /// How many features the model has.
    count: usize,
    /// The names of the features, in order; if unknown, as in the first file.
    pub features: Vec<String>,
    pub found: Found,
    /// Rows that were skipped because they have more or fewer cells than there are columns.
    pub uneven: Vec<String>,
    /// Whether labels may be missing, and columns that are no features are ignored.
    pub predicts: bool,
    /// The means of the features, which a trained model knows.
    pub means: Option<Vec<f64>>,
}

/// The indexes of the columns of a file.
struct ColumnIndexes {
    label: Option<usize>,
    time: Option<usize>,
    features: Vec<usize>,
    width: usize,
}

impl<'a> SeriesReader<'a> {
    pub fn new(data: &'a Data, count: i64) -> Self {
        let (features, found, uneven) = (Vec::new(), Found::default(), Vec::new());
        Self { data, count: count as usize, features, found, uneven, predicts: false, means: None }
    }

    pub fn read(&mut self, path: &Path) -> Result<Series, TrainerError> {
        let mut records = CsvRecords::open_trimmed(path)?;
        let (header, separator) = (records.headers()?, records.separator());
        let columns = self.columns(path, &header)?;
        let mut series = Series { path: path.to_owned(), values: Vec::new(), labels: Vec::new(), filled: Vec::new() };
        let mut before: Option<String> = None;
        while let Some(row) = next_record(&mut records) {
            let row = row?;
            let fail = |message: String| TrainerError::Data {
                path: path.to_owned(),
                line: Some(line_of(path, &row)),
                message,
            };
            // The rows of a series to predict keep their numbers.
            if row.len() != columns.width && self.data.skip_bad && !self.predicts {
                self.uneven.push(format!("{} line {}", path.display(), line_of(path, &row)));
                continue;
            }
            if row.len() != columns.width {
                let hint = if self.predicts { String::new() } else { skip_hint(false) };
                return Err(fail(uneven(row.len(), columns.width) + &hint));
            }
            for index in &columns.features {
                let number = match is_missing_number(&row[*index]) {
                    true => Some(f64::NAN),
                    false => number(&row[*index], separator).filter(|number| number.is_finite()),
                };
                let not = || fail(format!("column {:?} holds {:?}, not a number", &header[*index], &row[*index]));
                series.values.push(number.ok_or_else(not)?);
            }
            if let Some(index) = columns.time {
                let time = row[index].to_owned();
                if let Some(before) = before.filter(|before| falls(before, &time)) {
                    return Err(fail(format!("column {:?} falls from {before:?} to {time:?}", &header[index])));
                }
                before = Some(time);
            }
            series.labels.push(match columns.label.map(|index| (index, &row[index])) {
                None => None,
                Some((_, "")) if self.predicts => None,
                Some((index, "")) => return Err(fail(format!("column {:?} is empty", &header[index]))),
                Some((_, label)) => Some(self.found.index_of(label, path, &row)),
            });
        }
        series.filled = fill(&mut series.values, columns.features.len(), self.means.as_deref()).map_err(|feature| {
            let name = &header[columns.features[feature]];
            TrainerError::Data { path: path.to_owned(), line: None, message: format!("column {name:?} has no number") }
        })?;
        Ok(series)
    }

    /// Every column but label and time is a feature.
    fn columns(&mut self, path: &Path, header: &StringRecord) -> Result<ColumnIndexes, TrainerError> {
        let fail =
            |message: String| TrainerError::Data { path: path.to_owned(), line: Some(line_of(path, header)), message };
        let names: Vec<&str> = header.iter().collect();
        let is_twice = |index: &usize| !names[*index].is_empty() && names[..*index].contains(&names[*index]);
        if let Some(twice) = (1..names.len()).find(is_twice) {
            return Err(fail(format!("two columns are called {:?}", names[twice])));
        }
        let find = |name: &str| names.iter().position(|found| *found == name);
        let missing = |name: &str| fail(format!("no column {name:?}; it has: {}", names.join(", ")));
        let label = match (self.data.field("label"), self.predicts) {
            (name, true) => find(name),
            (name, false) => Some(find(name).ok_or_else(|| missing(name))?),
        };
        let time = find(self.data.field("time"));
        if let (None, Some(name)) = (time, self.data.fields.get("time")) {
            return Err(missing(name));
        }
        let others: Vec<&str> = (0..names.len())
            // A column without a name is an index.
            .filter(|index| Some(*index) != label && Some(*index) != time && !names[*index].is_empty())
            .map(|index| names[index])
            .collect();
        let takes_any = self.predicts && !self.features.is_empty();
        if others.len() != self.count && !takes_any {
            let (found, count) = (others.len(), self.count);
            let others = others.join(", ");
            return Err(fail(format!("{found} features ({others}), the model's input_features is {count}")));
        }
        if self.features.is_empty() {
            self.features = others.iter().map(|name| (*name).to_owned()).collect();
        }
        let index = |name: &String| find(name).ok_or_else(|| missing(name));
        let features = self.features.iter().map(index).collect::<Result<_, _>>()?;
        Ok(ColumnIndexes { label, time, features, width: names.len() })
    }
}

/// Fills missing numbers with the last one before them in their column, and those at the beginning with the mean: that which a
/// trained model knows, or that of the column. Returns how many there were in each column; or the column that has no number.
fn fill(values: &mut [f64], width: usize, means: Option<&[f64]>) -> Result<Vec<usize>, usize> {
    let mut filled = vec![0; width];
    for (column, filled) in filled.iter_mut().enumerate() {
        let numbers = || values.iter().skip(column).step_by(width).filter(|number| !number.is_nan());
        let count = numbers().count();
        let mean = match means {
            Some(means) => means[column],
            None if count == 0 && !values.is_empty() => return Err(column),
            None => numbers().sum::<f64>() / count as f64,
        };
        let mut last = mean;
        for value in values.iter_mut().skip(column).step_by(width) {
            if value.is_nan() {
                *value = last;
                *filled += 1;
            }
            last = *value;
        }
    }
    Ok(filled)
}

impl Found {
    fn index_of(&mut self, label: &str, path: &Path, row: &StringRecord) -> usize {
        if let Some(index) = self.indexes.get(label) {
            return *index;
        }
        let index = self.labels.len();
        self.labels.push((label.to_owned(), path.to_owned(), line_of(path, row)));
        self.indexes.insert(label.to_owned(), index);
        index
    }
}

/// Whether time goes back. Numbers are compared as numbers; dates as texts, which is right for 2025-11-27T10:00 and the like.
/// Where semicolons stand between the cells, a comma may stand in a number.
fn number(cell: &str, separator: u8) -> Option<f64> {
    let in_words = |cell: &str| cell.parse::<f64>().ok();
    in_words(cell).or_else(|| in_words(&cell.replacen(',', ".", 1)).filter(|_| separator == b';'))
}

fn falls(before: &str, now: &str) -> bool {
    match (before.parse::<f64>(), now.parse::<f64>()) {
        (Ok(before), Ok(now)) => now < before,
        _ => now < before,
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Standard {
    pub mean: Vec<f64>,
    /// 1 for a feature that never changes.
    pub std: Vec<f64>,
}

impl Standard {
    /// Mean and standard deviation of rows of `width` features, in several stretches.
    pub fn of(stretches: &[&[f64]], width: usize) -> Self {
        let rows = || stretches.iter().flat_map(|stretch| stretch.chunks_exact(width));
        let count = rows().count().max(1) as f64;
        let mut mean = vec![0.0; width];
        for row in rows() {
            mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        mean.iter_mut().for_each(|sum| *sum /= count);
        let mut std = vec![0.0; width];
        let mut changes = vec![false; width];
        let first: Vec<f64> = rows().next().map(<[f64]>::to_vec).unwrap_or_default();
        for row in rows() {
            for (index, value) in row.iter().enumerate() {
                std[index] += (value - mean[index]).powi(2);
                changes[index] |= *value != first[index];
            }
        }
        for (sum, changes) in std.iter_mut().zip(changes) {
            *sum = if changes { (*sum / count).sqrt() } else { 1.0 };
        }
        Self { mean, std }
    }

    pub fn apply(&self, values: &[f64]) -> Vec<f32> {
        let width = self.mean.len();
        let scaled = |(index, value): (usize, &f64)| {
            let feature = index % width;
            ((value - self.mean[feature]) / self.std[feature]) as f32
        };
        values.iter().enumerate().map(scaled).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(fields: &str) -> Data {
        serde_json::from_str(&format!("{{\"train\": \"a.csv\", \"fields\": {fields}}}")).unwrap()
    }

    fn read(name: &str, text: &str, data: &Data) -> Result<(Series, Found), String> {
        let path = std::env::temp_dir().join(format!("pipe-series-{name}-{}.csv", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let mut reader = SeriesReader::new(data, 2);
        let series = reader.read(&path);
        std::fs::remove_file(&path).unwrap();
        let name = path.display().to_string();
        series.map(|series| (series, reader.found)).map_err(|error| error.to_string().replace(&name, "a.csv"))
    }

    #[test]
    fn columns_are_found_by_name() {
        let text = "b, when ,what,a\n1,5,up,2\n\n3,5,down,4\n5,11,up,6\n";
        let (series, found) = read("names", text, &data(r#"{"label": "what", "time": "when"}"#)).unwrap();
        assert_eq!(
            (series.values, series.labels),
            (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![Some(0), Some(1), Some(0)])
        );
        let labels: Vec<_> = found.labels.iter().map(|(label, _, line)| (label.as_str(), *line)).collect();
        assert_eq!(labels, [("up", 2), ("down", 4)]);
    }

    #[test]
    fn missing_numbers_are_filled_forward_and_first_ones_by_the_mean() {
        let text = "a,b,label\n1,NaN,x\nnull,4,x\n,NA,y\n7,8,x\n";
        let (series, _) = read("missing", text, &data("{}")).unwrap();
        assert_eq!(series.values, [1.0, 6.0, 1.0, 4.0, 1.0, 4.0, 7.0, 8.0]);
        assert_eq!(series.filled, [2, 2]);
        let mut values = [f64::NAN, f64::NAN, 3.0, f64::NAN];
        assert_eq!(fill(&mut values, 2, Some(&[0.5, 0.25])), Ok(vec![1, 2]));
        assert_eq!(values, [0.5, 0.25, 3.0, 0.25]);
    }

    #[test]
    fn bad_files_are_named_with_their_line() {
        let cases = [
            ("a,b\n1,2\n", "{}", "a.csv line 1: no column \"label\"; it has: a, b"),
            ("a,b,label\n1,2,x\n", r#"{"time": "t"}"#, "a.csv line 1: no column \"t\"; it has: a, b, label"),
            ("a,a,label\n", "{}", "a.csv line 1: two columns are called \"a\""),
            ("a,label\n1,x\n", "{}", "a.csv line 1: 1 features (a), the model's input_features is 2"),
            ("a,b,label\n1,2,x\n1,two,x\n", "{}", "a.csv line 3: column \"b\" holds \"two\", not a number"),
            ("a,b,label\n1,inf,x\n", "{}", "a.csv line 2: column \"b\" holds \"inf\", not a number"),
            ("a,b,label\n1,,x\n2,NaN,x\n", "{}", "a.csv: column \"b\" has no number"),
            (
                "a,b,label\n1,2,x\n1,2\n",
                "{}",
                "a.csv line 3: 2 values for 3 columns; data.skip_bad: true skips such rows",
            ),
            ("a,b,label\n1,2,\n", "{}", "a.csv line 2: column \"label\" is empty"),
            (
                "time,a,b,label\n9,1,2,x\n10,1,2,x\n9.5,1,2,x\n",
                "{}",
                "a.csv line 4: column \"time\" falls from \"10\" to \"9.5\"",
            ),
            (
                "time,a,b,label\n2025-01-02,1,2,x\n2025-01-01,1,2,x\n",
                "{}",
                "a.csv line 3: column \"time\" falls from \"2025-01-02\" to \"2025-01-01\"",
            ),
        ];
        for (number, (text, fields, want)) in cases.into_iter().enumerate() {
            let found = read(&number.to_string(), text, &data(fields));
            assert_eq!(found.err().as_deref(), Some(want));
        }
    }
}

#[cfg(test)]
mod standard_tests {
    use super::*;

    #[test]
    fn each_feature_gets_mean_0_and_deviation_1() {
        let (one, two) = ([1.0, 1e9, 0.1], [3.0, 1e9 + 2.0, 0.1, 8.0, 1e9 + 4.0, 0.1]);
        let standard = Standard::of(&[&one, &two], 3);
        assert_eq!((standard.mean[0], standard.mean[1]), (4.0, 1e9 + 2.0));
        assert!((standard.std[0] - (26f64 / 3.0).sqrt()).abs() < 1e-12, "{standard:?}");
        assert_eq!(standard.std[2], 1.0);
        let all: Vec<f32> = [standard.apply(&one), standard.apply(&two)].concat();
        for feature in 0..2 {
            let values: Vec<f32> = all.iter().skip(feature).step_by(3).copied().collect();
            let mean = values.iter().sum::<f32>() / 3.0;
            let var = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 3.0;
            assert!(mean.abs() < 1e-6 && (var - 1.0).abs() < 1e-6, "{values:?}");
        }
        // It never changes, and rounding of its mean is not taken for a change.
        assert!(all.iter().skip(2).step_by(3).all(|value| value.abs() < 1e-6), "{all:?}");
    }
}
