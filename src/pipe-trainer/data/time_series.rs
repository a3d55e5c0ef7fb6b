//! Windows of time series: consecutive rows, with the class of the last.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pipe_model::{Labels, TaskData};
use pipe_spec::pipeline::Paths;
use pipe_spec::text::count;
use serde_json::{Map, Value, json};

use super::rows::{Opener, holds_tensors, uneven_rows};
use super::series::{Found, Series, SeriesReader, Standard};
use super::source::Sources;
use super::{Column, IGNORED, Sample, Source};
use crate::error::TrainerError;

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::TimeSeries { features, sequence_length, classes, names, scale } = task_data else {
        panic!("not for time series: {task_data:?}")
    };
    let data = &opener.spec.data;
    if holds_tensors(&data.train) {
        return ready_made(opener, *classes);
    }
    if opener.predicts && scale.is_none() {
        let message = "missing: how the features are scaled is not known; give the windows as .safetensors".to_owned();
        return Err(TrainerError::config("feature_mean", message));
    }
    let window_shape = WindowShape { length: *sequence_length as usize, width: *features as usize };
    let mut reader = SeriesReader::new(data, *features);
    reader.predicts = opener.predicts;
    reader.features = scale.as_ref().map(|scale| scale.names.clone()).unwrap_or_default();
    reader.means = scale.as_ref().map(|scale| scale.mean.clone());
    let all = read(&mut reader, &data.train)?;
    let mut notices: Vec<String> = filled(&all, &reader.features).into_iter().collect();
    notices.extend(uneven_rows(&reader.uneven));
    let naming = Naming::decide(&reader.found, names.as_deref(), *classes)?;
    let numbers = naming.numbers(&reader.found, opener.predicts)?;
    let (train, kept) = window_shape.split(&all, data.eval_share);
    let standard = match scale {
        Some(scale) => Standard { mean: scale.mean.clone(), std: scale.std.clone() },
        None => Standard::of(&train.iter().map(|stretch| stretch.values).collect::<Vec<_>>(), window_shape.width),
    };
    let windows = |stretches: &[Stretch<'_>], numbers: &[i64]| {
        window_shape.windows(stretches, numbers, &standard, &reader.features)
    };
    let train = Arc::new(windows(&train, &numbers)?);
    let more = RefCell::new(Vec::new());
    let eval: Option<Arc<dyn Source>> = match &data.eval {
        Some(paths) => {
            let open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
                let mut again = SeriesReader::new(data, *features);
                again.features.clone_from(&reader.features);
                again.means = Some(standard.mean.clone());
                let all = read(&mut again, paths)?;
                more.borrow_mut().extend(filled(&all, &again.features).into_iter().chain(uneven_rows(&again.uneven)));
                let numbers = naming.numbers(&again.found, false)?;
                Ok(Arc::new(windows(&window_shape.split(&all, 0.0).0, &numbers)?))
            };
            Some(opener.part(paths, &open)?)
        }
        None if data.eval_share > 0.0 => Some(Arc::new(windows(&kept, &numbers)?)),
        None => None,
    };
    notices.extend(more.take());
    Ok(Sources {
        train,
        eval,
        paddings: Vec::new(),
        tokens: None,
        labels: naming.labels(),
        classes: Some(*classes as usize),
        notices,
    })
}

/// A sentence about the numbers that were missing in files; nothing where none were.
fn filled(all: &[Series], features: &[String]) -> Option<String> {
    let total = |feature: usize| all.iter().map(|series| series.filled[feature]).sum::<usize>();
    let missing: Vec<(&String, usize)> =
        features.iter().enumerate().map(|(index, name)| (name, total(index))).filter(|(_, count)| *count > 0).collect();
    let named: Vec<String> = missing.iter().take(LISTED).map(|(name, count)| format!("{name} {count}")).collect();
    let more = if missing.len() > LISTED { format!(" and {} more", missing.len() - LISTED) } else { String::new() };
    let count = count(missing.iter().map(|(_, count)| *count).sum::<usize>(), "missing number");
    (!missing.is_empty()).then(|| {
        format!("filled {count} with the last one before, or the mean where there is none: {}{more}", named.join(", "))
    })
}

/// Columns that a message names at most.
const LISTED: usize = 8;

/// Windows that were cut before.
fn ready_made(opener: &Opener<'_>, classes: i64) -> Result<Sources, TrainerError> {
    let data = &opener.spec.data;
    let refuse = |key: &str, message: &str| TrainerError::Data {
        path: PathBuf::from(key),
        line: None,
        message: message.to_owned(),
    };
    if data.eval_share > 0.0 {
        return Err(refuse("data.eval_share", "for .csv alone; which ready-made windows overlap is not known"));
    }
    let open = |_: &Paths| {
        Err(refuse("data.eval", "allowed: .safetensors, as data.train; the scale of ready-made windows is not known"))
    };
    Ok(Sources {
        train: opener.part(&data.train, &open)?,
        eval: data.eval.as_ref().map(|paths| opener.part(paths, &open)).transpose()?,
        paddings: Vec::new(),
        tokens: None,
        labels: None,
        classes: Some(classes as usize),
        notices: Vec::new(),
    })
}

fn read(reader: &mut SeriesReader<'_>, paths: &Paths) -> Result<Vec<Series>, TrainerError> {
    paths.0.iter().map(|path| reader.read(Path::new(path))).collect()
}

/// The content of the column of labels.
enum Naming {
    /// The numbers of classes.
    Numbers { classes: i64 },
    /// Their names, in the order of their numbers.
    Names(Vec<String>),
}

impl Naming {
    /// `known` are the names that a trained model has.
    fn decide(found: &Found, known: Option<&[String]>, classes: i64) -> Result<Self, TrainerError> {
        let labels = || found.labels.iter().map(|(label, _, _)| label);
        if let Some(known) = known.filter(|known| labels().all(|label| known.contains(label))) {
            return Ok(Self::Names(known.to_vec()));
        }
        let fits = |label: &String| label.parse::<i64>().is_ok_and(|class| class < classes);
        let are_numbers = labels().all(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
        // As many numbers as there are classes, which do not begin at 0, are their names.
        if are_numbers && (labels().all(fits) || found.labels.len() as i64 != classes) {
            return Ok(Self::Numbers { classes });
        }
        if let Some(known) = known {
            return Ok(Self::Names(known.to_vec()));
        }
        let mut names: Vec<String> = labels().cloned().collect();
        names.sort_unstable();
        if names.len() as i64 > classes {
            let (path, shown) = (found.labels[0].1.clone(), names[..names.len().min(8)].join(", "));
            let message = format!("{} classes ({shown}), the model's num_classes is {classes}", names.len());
            return Err(TrainerError::Data { path, line: None, message });
        }
        Ok(Self::Names(names))
    }

    /// The class of each label that was found. In rows to predict, one that the model does not know does not count.
    fn numbers(&self, found: &Found, predicts: bool) -> Result<Vec<i64>, TrainerError> {
        let number = |(label, path, line): &(String, PathBuf, u64)| {
            let (number, allowed) = match self {
                Self::Numbers { classes } => {
                    (label.parse().ok().filter(|number| number < classes), format!("0 to {}", classes - 1))
                }
                Self::Names(names) => {
                    (names.iter().position(|name| name == label).map(|position| position as i64), names.join(", "))
                }
            };
            let message = || format!("found the label {label:?}; allowed: {allowed}");
            let number = number.or(predicts.then_some(IGNORED));
            number.ok_or_else(|| TrainerError::Data { path: path.clone(), line: Some(*line), message: message() })
        };
        found.labels.iter().map(number).collect()
    }

    fn labels(self) -> Option<Labels> {
        match self {
            Self::Numbers { .. } => None,
            Self::Names(names) => Some(Labels::Classes(names)),
        }
    }
}

/// Rows of one series, one after the other.
struct Stretch<'a> {
    path: &'a Path,
    /// Which part of the series, in words.
    part: &'static str,
    /// Its first row, counted from 0 over all files.
    first: usize,
    values: &'a [f64],
    labels: &'a [Option<usize>],
}

struct WindowShape {
    length: usize,
    width: usize,
}

impl WindowShape {
    /// The rows to train on, and the end of each series for evaluation. No window lies in both.
    fn split<'a>(&self, all: &'a [Series], share: f64) -> (Vec<Stretch<'a>>, Vec<Stretch<'a>>) {
        let mut before = 0;
        let halves = |series: &'a Series| {
            let rows = series.labels.len();
            let trained = rows - (rows as f64 * share).round() as usize;
            let (values, kept_values) = series.values.split_at(trained * self.width);
            let (labels, kept_labels) = series.labels.split_at(trained);
            let stretch = |part, first, values, labels| Stretch { path: &series.path, part, first, values, labels };
            let [train, kept] = if share > 0.0 { [" to train on", " kept for evaluation"] } else { [""; 2] };
            let first = before;
            before += rows;
            (stretch(train, first, values, labels), stretch(kept, first + trained, kept_values, kept_labels))
        };
        all.iter().map(halves).unzip()
    }

    fn windows(
        &self,
        stretches: &[Stretch<'_>],
        numbers: &[i64],
        standard: &Standard,
        names: &[String],
    ) -> Result<Windows, TrainerError> {
        let Self { length, width } = *self;
        let firsts = stretches.iter().map(|stretch| stretch.first).collect();
        let mut windows = Windows { length, width, rows: Vec::new(), firsts, ends: Vec::new(), learned: Map::new() };
        let mut end = 0;
        for Stretch { path, part, values, labels, .. } in stretches {
            let rows = labels.len();
            if rows < length {
                let message = format!("{rows} rows{part}, a window takes {length}");
                return Err(TrainerError::Data { path: path.to_path_buf(), line: None, message });
            }
            end += rows - length + 1;
            windows.ends.push(end);
            let labels = labels.iter().map(|position| position.map_or(IGNORED, |position| numbers[position])).collect();
            windows.rows.push((standard.apply(values), labels));
        }
        windows.learned = Map::from_iter([
            ("feature_names".to_owned(), json!(names)),
            ("feature_mean".to_owned(), json!(standard.mean)),
            ("feature_std".to_owned(), json!(standard.std)),
        ]);
        Ok(windows)
    }
}

struct Windows {
    /// Rows of a window.
    length: usize,
    /// Features of a row.
    width: usize,
    /// The features of each series, standardised, and its classes.
    rows: Vec<(Vec<f32>, Vec<i64>)>,
    /// The first row of each series in the data.
    firsts: Vec<usize>,
    /// How many windows there are up to the end of each series.
    ends: Vec<usize>,
    learned: Map<String, Value>,
}

impl Windows {
    /// The series of a window, and the row there with which it begins.
    fn locate(&self, index: usize) -> (usize, usize) {
        let series = self.ends.partition_point(|end| *end <= index);
        (series, if series == 0 { index } else { index - self.ends[series - 1] })
    }
}

impl Source for Windows {
    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (series, start) = self.locate(index);
        let (values, labels) = &self.rows[series];
        let values = values[start * self.width..(start + self.length) * self.width].to_vec();
        let shape = vec![self.length as i64, self.width as i64];
        Ok(Some(Sample {
            columns: vec![
                ("x", Column::Values { shape, values }),
                ("labels", Column::Whole(labels[start + self.length - 1])),
            ],
            targets: 1,
        }))
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        let (series, start) = self.locate(index);
        let first = self.firsts[series] + start;
        [first, first + self.length - 1]
    }

    fn class_of(&self, index: usize) -> Result<Option<i64>, TrainerError> {
        let (series, start) = self.locate(index);
        Ok(Some(self.rows[series].1[start + self.length - 1]))
    }

    fn config_keys(&self) -> Map<String, Value> {
        self.learned.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rows: usize, from: f64) -> Series {
        let values = (0..rows).map(|row| from + row as f64).collect();
        let labels = (0..rows).map(|row| Some(row % 2)).collect();
        Series { path: "a.csv".into(), values, labels, filled: vec![0] }
    }

    fn found(labels: &[&str]) -> Found {
        let mut found = Found::default();
        let position = |(line, label): (usize, &&str)| ((*label).to_owned(), PathBuf::from("a.csv"), line as u64 + 2);
        found.labels = labels.iter().enumerate().map(position).collect();
        found
    }

    fn window(windows: &Windows, index: usize) -> (Vec<f32>, i64) {
        let sample = windows.sample(index).unwrap().unwrap();
        let [(_, Column::Values { shape, values }), (_, Column::Whole(label))] = &sample.columns[..] else { panic!() };
        assert_eq!(shape, &[3, 1]);
        (values.clone(), *label)
    }

    #[test]
    fn windows_lie_within_a_series_and_have_the_class_of_their_last_row() {
        let all = [series(5, 0.0), series(3, 10.0)];
        let window_shape = WindowShape { length: 3, width: 1 };
        let plain = Standard { mean: vec![0.0], std: vec![1.0] };
        let windows = window_shape.windows(&window_shape.split(&all, 0.0).0, &[7, 8], &plain, &[]).unwrap();
        assert_eq!(windows.len(), 4);
        assert_eq!(window(&windows, 0), (vec![0.0, 1.0, 2.0], 7));
        assert_eq!(window(&windows, 2), (vec![2.0, 3.0, 4.0], 7));
        assert_eq!(window(&windows, 3), (vec![10.0, 11.0, 12.0], 7));
        assert_eq!([windows.rows(2), windows.rows(3)], [[2, 4], [5, 7]]);
        // Those that are kept for evaluation have the numbers that they have in the data.
        let all = [series(8, 0.0), series(6, 10.0)];
        let kept = window_shape.windows(&window_shape.split(&all, 0.5).1, &[7, 8], &plain, &[]).unwrap();
        assert_eq!([kept.rows(0), kept.rows(2)], [[4, 6], [11, 13]]);
        let error =
            window_shape.windows(&window_shape.split(&[series(2, 0.0)], 0.0).0, &[7, 8], &plain, &[]).err().unwrap();
        assert!(error.to_string().starts_with("a.csv: 2 rows"), "{error}");
    }

    #[test]
    fn the_end_of_each_series_is_kept_and_its_rows_are_in_no_window_that_is_trained_on() {
        let all = [series(20, 0.0), series(10, 100.0)];
        let window_shape = WindowShape { length: 3, width: 1 };
        let (train, kept) = window_shape.split(&all, 0.3);
        let standard = Standard::of(&train.iter().map(|stretch| stretch.values).collect::<Vec<_>>(), 1);
        // 0 to 13 and 100 to 106.
        assert_eq!(standard.mean[0], (91.0 + 721.0) / 21.0);
        let plain = Standard { mean: vec![0.0], std: vec![1.0] };
        let rows = |stretches| {
            let windows = window_shape.windows(stretches, &[0, 1], &plain, &[]).unwrap();
            let mut rows: Vec<i64> =
                (0..windows.len()).flat_map(|index| window(&windows, index).0).map(|value| value as i64).collect();
            rows.sort_unstable();
            rows.dedup();
            rows
        };
        assert_eq!(rows(&train), (0..14).chain(100..107).collect::<Vec<_>>());
        assert_eq!(rows(&kept), (14..20).chain(107..110).collect::<Vec<_>>());
    }

    #[test]
    fn labels_are_numbers_or_names() {
        let numbers = |labels: &[&str], known: Option<&[String]>| {
            let found = found(labels);
            Naming::decide(&found, known, 3)
                .and_then(|naming| naming.numbers(&found, false))
                .map_err(|error| error.to_string())
        };
        let known = ["up".to_owned(), "down".to_owned()];
        assert_eq!(numbers(&["2", "0"], None), Ok(vec![2, 0]));
        assert_eq!(numbers(&["up", "flat", "down"], None), Ok(vec![2, 1, 0]));
        assert_eq!(numbers(&["1", "0", "-1"], None), Ok(vec![2, 1, 0]));
        assert_eq!(numbers(&["3", "1", "2"], None), Ok(vec![2, 0, 1]));
        assert_eq!(numbers(&["down", "up"], Some(&known)), Ok(vec![1, 0]));
        assert_eq!(numbers(&["1", "0"], Some(&known)), Ok(vec![1, 0]));
        for (labels, known, want) in [
            (vec!["1", "3"], None, "a.csv line 3: found the label \"3\"; allowed: 0 to 2"),
            (vec!["a", "b", "c", "d"], None, "a.csv: 4 classes (a, b, c, d), the model's num_classes is 3"),
            (vec!["up", "flat"], Some(&known[..]), "a.csv line 3: found the label \"flat\"; allowed: up, down"),
        ] {
            assert_eq!(numbers(&labels, known), Err(want.to_owned()));
        }
    }
}
