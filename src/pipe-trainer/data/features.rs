//! The features of a table: which columns are good for one, as numbers or as categories, and how a row becomes inputs of a model. Pure:
//! knows no files.

use std::collections::{BTreeMap, HashMap};

use pipe_data::{amount, is_missing_number};
use pipe_model::{Feature, FeatureKind};
use serde_json::Value;

/// Further cells of a table that say that there is no value, in lower case.
const NO_VALUE: [&str; 2] = ["<na>", "?"];

/// Categories of a column at most, and different values up to which they are counted.
const MOST_CATEGORIES: usize = 10_000;
const MOST_DISTINCT: usize = 100_000;

/// A category is a value that this many rows have, at least. Rarer ones count as unknown, which teaches a model what to make of those.
const REPEATED: usize = 2;

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Missing,
    Number(f64),
    Text(String),
    /// A list or an object.
    Nested,
}

impl Cell {
    /// `comma` where a number may have a decimal comma.
    pub fn of(value: Option<Value>, comma: bool) -> Self {
        match value {
            None | Some(Value::Null) => Self::Missing,
            Some(Value::Bool(truth)) => Self::Text(truth.to_string()),
            Some(Value::Number(number)) => number.as_f64().map_or(Self::Missing, Self::number),
            Some(Value::String(text)) => Self::of_text(text.trim(), comma),
            Some(Value::Array(_) | Value::Object(_)) => Self::Nested,
        }
    }

    fn of_text(text: &str, comma: bool) -> Self {
        if is_missing_number(text) || NO_VALUE.iter().any(|missing| text.eq_ignore_ascii_case(missing)) {
            return Self::Missing;
        }
        let decimal = || comma.then(|| text.replacen(',', ".", 1).parse::<f64>().ok()).flatten();
        match text.parse::<f64>().ok().or_else(|| amount(text)).or_else(decimal) {
            Some(number) => Self::number(number),
            None => Self::Text(text.to_owned()),
        }
    }

    fn number(number: f64) -> Self {
        // There is no -0.
        if number.is_finite() { Self::Number(number + 0.0) } else { Self::Missing }
    }

    /// The name of its category: 3 and 3.0 are one.
    pub fn category(&self) -> Option<String> {
        match self {
            Self::Number(number) => Some(number.to_string()),
            Self::Text(text) => Some(text.clone()),
            Self::Missing | Self::Nested => None,
        }
    }
}

/// The columns of a table while its rows are looked at: all of them for the kinds, those that are trained on for the statistics.
pub struct FeatureSurvey(Vec<Seen>);

#[derive(Default)]
struct Seen {
    name: String,
    rows: usize,
    filled: usize,
    numbers: usize,
    nested: bool,
    order: RowNumbers,
    statistics: Statistics,
}

/// Whether a column numbers the rows: whole numbers, each as far from the one before.
#[derive(Default)]
struct RowNumbers {
    last: Option<f64>,
    step: Option<f64>,
    broken: bool,
}

impl RowNumbers {
    fn see(&mut self, cell: &Cell) {
        let Cell::Number(number) = *cell else { return self.broken = true };
        self.broken |= number.fract() != 0.0;
        if let Some(last) = self.last.replace(number) {
            let step = number - last;
            self.broken |= step == 0.0 || *self.step.get_or_insert(step) != step;
        }
    }
}

/// Sums over the rows that are trained on, one after the other (Welford 1962).
#[derive(Default)]
struct Statistics {
    rows: usize,
    numbers: usize,
    mean: f64,
    squares: f64,
    /// The least and the greatest number.
    range: Option<(f64, f64)>,
    categories: BTreeMap<String, usize>,
}

impl Statistics {
    fn number(&mut self, number: f64) {
        self.numbers += 1;
        let apart = number - self.mean;
        self.mean += apart / self.numbers as f64;
        self.squares += apart * (number - self.mean);
        let (least, most) = self.range.unwrap_or((number, number));
        self.range = Some((least.min(number), most.max(number)));
    }

    fn category(&mut self, name: String) {
        if self.categories.len() < MOST_DISTINCT || self.categories.contains_key(&name) {
            *self.categories.entry(name).or_default() += 1;
        }
    }

    /// Its mean and spread, or why it is no feature.
    fn of_numbers(&self) -> Result<FeatureKind, &'static str> {
        let missing = self.numbers < self.rows;
        let changes = self.range.is_some_and(|(least, most)| least < most);
        let std = if changes { (self.squares / self.numbers as f64).sqrt() } else { 1.0 };
        let says_something = changes || (missing && self.numbers > 0);
        match says_something {
            false => Err("one value"),
            true if !std.is_finite() => Err("numbers that are too large"),
            true => Ok(FeatureKind::Number { mean: self.mean, std, missing }),
        }
    }

    /// The values that several rows have, by name; otherwise why there are no such.
    fn of_categories(&self) -> Result<FeatureKind, &'static str> {
        let filled: usize = self.categories.values().sum();
        let mut known: Vec<(&String, usize)> =
            self.categories.iter().map(|(name, rows)| (name, *rows)).filter(|(_, rows)| *rows >= REPEATED).collect();
        if known.is_empty() || known.iter().map(|(_, rows)| rows).sum::<usize>() * 2 < filled {
            return Err("most values differ");
        }
        if known[0].1 == self.rows {
            return Err("one value");
        }
        known.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
        let mut values: Vec<String> = known.iter().take(MOST_CATEGORIES).map(|(name, _)| (*name).clone()).collect();
        values.sort_unstable();
        Ok(FeatureKind::Category { values })
    }
}

impl Seen {
    /// Nine of ten values are numbers. A word among them says that there is no number.
    fn are_numbers(&self) -> bool {
        self.numbers * 10 >= self.filled * 9
    }

    /// Its kind as a feature, or why it is none.
    fn kind(&self) -> Result<FeatureKind, &'static str> {
        match () {
            () if self.nested => Err("lists or objects"),
            () if self.filled == 0 => Err("empty"),
            () if self.are_numbers() => self.statistics.of_numbers(),
            () => self.statistics.of_categories(),
        }
    }

    fn numbers_the_rows(&self) -> bool {
        self.rows > 2 && !self.order.broken
    }
}

impl FeatureSurvey {
    pub fn new(names: &[String]) -> Self {
        let column = |name: &String| Seen { name: name.clone(), ..Seen::default() };
        Self(names.iter().map(column).collect())
    }

    /// A row, for the kinds of the columns.
    pub fn see(&mut self, cells: &[Cell]) {
        for (column, cell) in self.0.iter_mut().zip(cells) {
            column.rows += 1;
            column.filled += usize::from(*cell != Cell::Missing);
            column.numbers += usize::from(matches!(cell, Cell::Number(_)));
            column.nested |= *cell == Cell::Nested;
            column.order.see(cell);
        }
    }

    /// A row that is trained on, after all were seen.
    pub fn count(&mut self, cells: &[Cell]) {
        for (column, cell) in self.0.iter_mut().zip(cells) {
            let are_numbers = column.are_numbers();
            column.statistics.rows += 1;
            match (cell, cell.category()) {
                (Cell::Number(number), _) if are_numbers => column.statistics.number(*number),
                (_, Some(name)) if !are_numbers => column.statistics.category(name),
                _ => {}
            }
        }
    }

    /// The features in the order of their columns, and a sentence about the columns that are none.
    pub fn decide(&self) -> (Vec<Feature>, Option<String>) {
        let kinds: Vec<_> = self.0.iter().map(Seen::kind).collect();
        let has_others =
            (0..).zip(&self.0).any(|(at, column): (usize, _)| kinds[at].is_ok() && !column.numbers_the_rows());
        let (mut features, mut others) = (Vec::new(), Vec::new());
        for (column, kind) in self.0.iter().zip(kinds) {
            match kind {
                Ok(_) if has_others && column.numbers_the_rows() => others.push((&column.name, "numbers the rows")),
                Ok(kind) => features.push(Feature { name: column.name.clone(), kind }),
                Err(why) => others.push((&column.name, why)),
            }
        }
        let names: Vec<String> = others.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        let noun = if names.len() == 1 { "this column is" } else { "these columns are" };
        (features, (!names.is_empty()).then(|| format!("{noun} not used: {}", names.join(", "))))
    }
}

/// Rows to inputs: the numbers of all features, then the categories.
pub struct FeatureEncoder {
    features: Vec<Feature>,
    /// The numbers of the categories of each feature; none for one that is a number.
    categories: Vec<HashMap<String, usize>>,
}

impl FeatureEncoder {
    pub fn new(features: Vec<Feature>) -> Self {
        let numbered = |feature: &Feature| match &feature.kind {
            FeatureKind::Number { .. } => HashMap::new(),
            FeatureKind::Category { values } => values.iter().cloned().zip(1..).collect(),
        };
        Self { categories: features.iter().map(numbered).collect(), features }
    }

    pub fn encode(&self, cells: &[Cell]) -> Vec<f32> {
        let (mut inputs, mut categories) = (Vec::with_capacity(cells.len()), Vec::new());
        for ((feature, numbers), cell) in self.features.iter().zip(&self.categories).zip(cells) {
            match (&feature.kind, cell) {
                (FeatureKind::Number { mean, std, missing }, cell) => {
                    let value = if let Cell::Number(number) = cell { Some((number - mean) / std) } else { None };
                    inputs.push(value.unwrap_or(0.0) as f32);
                    inputs.extend(missing.then_some(if value.is_none() { 1.0 } else { 0.0 }));
                }
                (FeatureKind::Category { .. }, cell) => {
                    let number = cell.category().and_then(|name| numbers.get(&name)).copied().unwrap_or(0);
                    categories.push(number as f32);
                }
            }
        }
        inputs.extend(categories);
        inputs
    }

    /// The first cell with a word where there should be a number: its column, and the word.
    pub fn stray<'a>(&'a self, cells: &'a [Cell]) -> Option<(&'a str, &'a str)> {
        self.features.iter().zip(cells).find_map(|(feature, cell)| match (&feature.kind, cell) {
            (FeatureKind::Number { .. }, Cell::Text(text)) => Some((feature.name.as_str(), text.as_str())),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cells(values: &[Value]) -> Vec<Cell> {
        values.iter().map(|value| Cell::of(Some(value.clone()), false)).collect()
    }

    /// The survey of these columns, all rows of which are trained on.
    fn decide(columns: &[(&str, Vec<Value>)]) -> (Vec<Feature>, Option<String>) {
        let names: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut survey = FeatureSurvey::new(&names);
        let rows: Vec<Vec<Cell>> = (0..columns[0].1.len())
            .map(|row| cells(&columns.iter().map(|(_, values)| values[row].clone()).collect::<Vec<_>>()))
            .collect();
        rows.iter().for_each(|row| survey.see(row));
        rows.iter().for_each(|row| survey.count(row));
        survey.decide()
    }

    #[test]
    fn cells_are_numbers_texts_or_missing() {
        let cases = [
            (json!("3.5"), false, Cell::Number(3.5)),
            (json!(" -2e3 "), false, Cell::Number(-2000.0)),
            (json!("3,5"), true, Cell::Number(3.5)),
            (json!("3,5"), false, Cell::Text("3,5".to_owned())),
            (json!(7), false, Cell::Number(7.0)),
            (json!("NaN"), false, Cell::Missing),
            (json!("inf"), false, Cell::Missing),
            (json!("?"), false, Cell::Missing),
            (json!(null), false, Cell::Missing),
            (json!(true), false, Cell::Text("true".to_owned())),
            (json!([1]), false, Cell::Nested),
        ];
        for (value, comma, want) in cases {
            assert_eq!(Cell::of(Some(value.clone()), comma), want, "{value}");
        }
        assert_eq!(Cell::of(None, false), Cell::Missing);
    }

    #[test]
    fn the_values_decide_what_a_column_is() {
        let (features, others) = decide(&[
            ("age", vec![json!(1), json!(3), json!(""), json!(5)]),
            ("id", vec![json!(10), json!(11), json!(12), json!(13)]),
            ("city", vec![json!("Ulm"), json!("Bonn"), json!("Ulm"), json!("Bonn")]),
            ("name", vec![json!("a"), json!("b"), json!("c"), json!("d")]),
            ("same", vec![json!(4); 4]),
            ("flag", vec![json!(1), json!(null), json!(1), json!(null)]),
            ("none", vec![json!(null); 4]),
            ("list", vec![json!([1]); 4]),
        ]);
        let number = |mean, std, missing| FeatureKind::Number { mean, std, missing };
        let want = [
            ("age", number(3.0, (8f64 / 3.0).sqrt(), true)),
            ("city", FeatureKind::Category { values: vec!["Bonn".to_owned(), "Ulm".to_owned()] }),
            ("flag", number(1.0, 1.0, true)),
        ];
        assert_eq!(features, want.map(|(name, kind)| Feature { name: name.to_owned(), kind }));
        assert_eq!(
            others.as_deref(),
            Some(
                "these columns are not used: id (numbers the rows), name (most values differ), same (one value), none (empty), \
                 list (lists or objects)"
            )
        );
        // Where there is nothing else, a column that counts up is a feature.
        assert_eq!(decide(&[("x", vec![json!(1), json!(2), json!(3)])]).0.len(), 1);
    }

    #[test]
    fn a_row_becomes_numbers_and_then_categories() {
        let features = decide(&[
            ("city", vec![json!("Ulm"), json!("Bonn"), json!("Ulm"), json!("Bonn"), json!("Rome")]),
            ("age", vec![json!(1), json!(3), json!(""), json!(5), json!(3)]),
            ("size", vec![json!(0), json!(2), json!(0), json!(2), json!(1)]),
        ]);
        assert_eq!(features.1, None);
        let encoder = FeatureEncoder::new(features.0);
        let encode = |values: &[Value]| encoder.encode(&cells(values));
        let close = |got: Vec<f32>, want: [f32; 4]| {
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?} {want:?}");
        };
        close(encode(&[json!("Ulm"), json!(3), json!(1)]), [0.0, 0.0, 0.0, 2.0]);
        close(encode(&[json!(""), json!(""), json!(1)]), [0.0, 1.0, 0.0, 0.0]);
        // Rome was in one row alone.
        close(encode(&[json!("Rome"), json!("x"), json!("")]), [0.0, 1.0, 0.0, 0.0]);
        let row = cells(&[json!("Ulm"), json!("x"), json!(1)]);
        assert_eq!(encoder.stray(&row), Some(("age", "x")));
    }
}
