//! From the labels in the data to the numbers that the loss takes, and what is noticed about labels while rows are read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use pipe_data::{is_missing_number, kind};
use pipe_model::Labels;
use serde_json::Value;

use super::rows::skip_hint;
use super::{Column, IGNORED};

/// Names of classes that a message lists at most.
const LISTED: usize = 20;

pub struct Labelling {
    labels: Labels,
    /// By the names as they are, and by those without space around them.
    numbers: HashMap<String, i64>,
    trimmed: HashMap<String, i64>,
    /// Whether all names are whole numbers, so that a number is a name and not a place.
    numeric: bool,
    /// Between the labels of a text that can have several.
    separator: Option<String>,
}

impl Labelling {
    pub fn new(labels: Labels, separator: Option<&str>) -> Self {
        let names = match &labels {
            Labels::Classes(names) | Labels::Several(names) => names.as_slice(),
            Labels::Number => &[],
        };
        // The first of several classes of one name is meant.
        let numbered = || names.iter().enumerate().rev();
        Self {
            numbers: numbered().map(|(number, name)| (name.clone(), number as i64)).collect(),
            numeric: !names.is_empty() && names.iter().all(|name| name.parse::<i64>().is_ok()),
            trimmed: numbered().map(|(number, name)| (name.trim().to_owned(), number as i64)).collect(),
            separator: separator.map(str::to_owned),
            labels,
        }
    }

    /// Whether a text can have any number of labels, none too.
    pub fn is_several(&self) -> bool {
        matches!(self.labels, Labels::Several(_))
    }

    /// Whether space around `value` is left out to find its class.
    pub fn trims(&self, value: &Value) -> bool {
        let has_space = |name: &str| name != name.trim() && !self.numbers.contains_key(name);
        matches!(self.labels, Labels::Classes(_)) && value.as_str().is_some_and(has_space)
    }

    /// The label of a row that says nothing, which no loss counts: the ignored class, or no number.
    pub fn unknown(&self) -> Column {
        match self.labels {
            Labels::Number => Column::Real(f32::NAN),
            Labels::Classes(_) => Column::Whole(IGNORED),
            Labels::Several(ref names) => flags(vec![f32::NAN; names.len()]),
        }
    }

    /// The label that a row gives as `value`; otherwise what is wrong with it.
    pub fn column(&self, value: &Value) -> Result<Column, String> {
        match &self.labels {
            Labels::Number => match Given::of(value).number() {
                Some(number) if number.is_finite() => Ok(Column::Real(number as f32)),
                _ => {
                    let hint = skip_hint(false);
                    Err(format!("the label {value} is no number, and a number is what the model predicts{hint}"))
                }
            },
            Labels::Classes(names) => self.class(value, names).map(Column::Whole),
            Labels::Several(names) => {
                let mut applies = vec![0.0; names.len()];
                for label in names_of(&labels_of(value, self.separator.as_deref())?) {
                    applies[self.class(&Value::from(label), names)? as usize] = 1.0;
                }
                Ok(flags(applies))
            }
        }
    }

    /// Whether a number is predicted and `value` is none.
    pub fn lacks_number(&self, value: &Value) -> bool {
        self.labels == Labels::Number && self.column(value).is_err()
    }

    /// The number of a class by its name or its number.
    fn class(&self, value: &Value, names: &[String]) -> Result<i64, String> {
        let find = |name: &str| self.numbers.get(name).or_else(|| self.trimmed.get(name.trim())).copied();
        let whole = Given::of(value).whole();
        let by_number = || match self.numeric {
            true => find(&whole?.to_string()),
            false => whole,
        };
        let named = name(value).and_then(find).or_else(by_number);
        named
            .filter(|class| (0..names.len() as i64).contains(class))
            .ok_or_else(|| format!("the label {value} is no class of the model; allowed: {}", allowed(names)))
    }
}

/// 1 for each label that applies.
fn flags(values: Vec<f32>) -> Column {
    Column::Values { shape: vec![values.len() as i64], values }
}

/// The labels of a text that can have several: those of a list, or what stands between separators. Otherwise what is wrong.
pub fn labels_of(value: &Value, separator: Option<&str>) -> Result<Vec<Value>, String> {
    let parts = match (value, separator) {
        (Value::Null, _) => Vec::new(),
        (Value::Array(list), _) => list.clone(),
        (Value::String(text), Some(separator)) => text.split(separator).map(|part| Value::from(part.trim())).collect(),
        (other, _) => vec![other.clone()],
    };
    let is_label = |part: &Value| matches!(part, Value::String(_) | Value::Number(_) | Value::Bool(_));
    match parts.iter().find(|part| !is_label(part)) {
        Some(part) => Err(format!("one of the labels is {}; allowed: texts or numbers", kind(part))),
        None => Ok(parts.into_iter().filter(|part| part.as_str().is_none_or(|text| !text.trim().is_empty())).collect()),
    }
}

/// The name of a class. True and false are names too.
fn name(value: &Value) -> Option<&str> {
    match value {
        Value::Bool(true) => Some("true"),
        Value::Bool(false) => Some("false"),
        other => other.as_str(),
    }
}

fn allowed(names: &[String]) -> String {
    let listed: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
    let more = if names.len() > LISTED { format!(" and {} more", names.len() - LISTED) } else { String::new() };
    format!("{}{more}, or their numbers, 0 to {}", listed.join(", "), names.len() - 1)
}

/// A label as a row has it. Texts that are numbers are how some files write those.
enum Given {
    Whole(i64),
    Decimal(f64),
    Name,
    Other,
}

impl Given {
    fn of(value: &Value) -> Self {
        match value {
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Self::Whole(whole),
                (None, Some(decimal)) => Self::Decimal(decimal),
                (None, None) => Self::Other,
            },
            Value::String(text) => match (text.trim().parse(), text.trim().parse()) {
                (Ok(whole), _) => Self::Whole(whole),
                // "inf" and "nan" are names like any other.
                (_, Ok(decimal)) if f64::is_finite(decimal) => Self::Decimal(decimal),
                _ => Self::Name,
            },
            Value::Bool(_) => Self::Name,
            Value::Null | Value::Array(_) | Value::Object(_) => Self::Other,
        }
    }

    fn whole(&self) -> Option<i64> {
        if let Self::Whole(whole) = self { Some(*whole) } else { None }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Whole(whole) => Some(*whole as f64),
            Self::Decimal(decimal) => Some(*decimal),
            Self::Name | Self::Other => None,
        }
    }
}

/// The labels that were found in the data; of each kind the first row that has it.
#[derive(Default)]
pub struct Seen {
    rows: usize,
    /// Texts without space around them, numbers among them.
    texts: BTreeMap<String, usize>,
    name: Option<usize>,
    number: Option<usize>,
    decimal: Option<usize>,
    /// Rows whose label is a number, and those whose label says that there is none.
    numbers: usize,
    missing: usize,
    negative: Option<usize>,
    largest: Option<(i64, usize)>,
    /// Whole numbers, as far as they can be classes.
    whole: BTreeSet<i64>,
}

/// Different numbers that are no classes where a few words stand among them.
const MANY_NUMBERS: usize = 20;

/// Whether labels are numbers, nine of ten and many of them different, though some are words.
pub fn are_mostly_numbers(numbers: usize, words: usize, distinct: usize) -> bool {
    distinct > MANY_NUMBERS && numbers * 10 >= (numbers + words) * 9
}

/// Classes that are counted where they are numbers.
const MOST_NUMBERS: usize = 4096;

impl Seen {
    pub fn of(row: usize, value: &Value) -> Self {
        let mut seen = Self { rows: 1, ..Self::default() };
        match name(value) {
            Some(text) => drop(seen.texts.insert(text.trim().to_owned(), row)),
            None => seen.number = Some(row),
        }
        match Given::of(value) {
            Given::Whole(whole) => {
                seen.whole.insert(whole);
                match whole < 0 {
                    true => seen.negative = Some(row),
                    false => seen.largest = Some((whole, row)),
                }
            }
            Given::Decimal(_) => seen.decimal = Some(row),
            Given::Name | Given::Other => seen.name = Some(row),
        }
        match seen.name {
            None => seen.numbers = 1,
            Some(_) => seen.missing = usize::from(name(value).is_some_and(is_missing_number)),
        }
        seen
    }

    pub fn and(mut self, other: Self) -> Self {
        let first = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
        for (text, row) in other.texts {
            let known = self.texts.entry(text).or_insert(row);
            *known = row.min(*known);
        }
        if self.whole.len() <= MOST_NUMBERS {
            self.whole.extend(other.whole);
        }
        let earlier = |(class, row): (i64, usize)| (class, std::cmp::Reverse(row));
        Self {
            rows: self.rows + other.rows,
            texts: self.texts,
            name: first(self.name, other.name),
            number: first(self.number, other.number),
            decimal: first(self.decimal, other.decimal),
            numbers: self.numbers + other.numbers,
            missing: self.missing + other.missing,
            negative: first(self.negative, other.negative),
            largest: self.largest.into_iter().chain(other.largest).max_by_key(|seen| earlier(*seen)),
            whole: self.whole,
        }
    }

    /// The classes of a model that has so many and no names for them, where the data has as many labels: their names, or numbers
    /// that do not begin at 0.
    pub fn names(&self, count: usize) -> Option<Labels> {
        let names: Vec<String> = match (self.name, self.decimal) {
            (Some(_), None) if self.number.is_none() => self.texts.keys().cloned().collect(),
            (None, None) if self.whole.iter().any(|class| !(0..count as i64).contains(class)) => {
                self.whole.iter().map(i64::to_string).collect()
            }
            _ => return None,
        };
        (names.len() == count).then_some(Labels::Classes(names))
    }

    /// Whether a few words stand among many different numbers: a price that is `on request` is still a number.
    fn are_mostly_numbers(&self) -> bool {
        let words = self.rows - self.numbers - self.missing;
        let numbers = self.texts.keys().filter(|text| text.parse::<f64>().is_ok_and(f64::is_finite)).count();
        are_mostly_numbers(self.numbers, words, numbers.max(self.whole.len()))
    }

    /// The labels that follow from the data; otherwise the row that leaves them open, and why.
    pub fn decide(self) -> Result<Labels, (usize, String)> {
        let one = |row| Err((row, "every row has this label; a classifier needs two classes".to_owned()));
        match (self.name, self.number) {
            (Some(_), _) if self.are_mostly_numbers() => Ok(Labels::Number),
            (Some(_), Some(row)) => {
                Err((row, "this label is a number, and those of other rows are names; give all as names".to_owned()))
            }
            (Some(row), None) if self.texts.len() == 1 => one(row),
            (Some(_), None) => Ok(Labels::Classes(self.texts.into_keys().collect())),
            (None, _) if self.decimal.is_some() => Ok(Labels::Number),
            (None, _) => match (self.negative, self.largest) {
                (Some(row), _) => Err((row, "a class is numbered from 0, and this label is negative".to_owned())),
                (None, Some((0, row))) => one(row),
                (None, Some((class, row))) if class >= self.rows as i64 => {
                    Err((row, format!("label {class} in {} rows; classes are numbered from 0 without gaps", self.rows)))
                }
                (None, Some((class, _))) => Ok(Labels::numbered(class as usize + 1)),
                (None, None) => Err((0, "there are no labels".to_owned())),
            },
        }
    }
}

/// The names of labels, where a text can have several.
pub fn names_of(labels: &[Value]) -> impl Iterator<Item = String> {
    labels.iter().map(|label| name(label).map_or_else(|| label.to_string(), |name| name.trim().to_owned()))
}

/// Labels of which something is to be said: how many, and the first. Filled by threads, in any order.
#[derive(Default)]
pub struct NoticedLabels(Mutex<(usize, Option<(usize, String)>)>);

impl NoticedLabels {
    pub fn see(&self, row: usize, label: &str) {
        let (count, first) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        if first.as_ref().is_none_or(|(known, _)| row < *known) {
            *first = Some((row, label.to_owned()));
        }
    }

    /// A sentence about labels that were read without the space around them; nothing where there are none.
    pub fn trimmed(self, name: impl Fn(usize) -> String) -> Option<String> {
        let (count, row, label) = self.first()?;
        let labels = if count == 1 { "one label".to_owned() } else { format!("{count} labels") };
        Some(format!("removed spaces around {labels}; the first is {label:?} ({})", name(row)))
    }

    /// The same about labels in rows to predict that the model does not know.
    pub fn unknown(self, name: impl Fn(usize) -> String) -> Option<String> {
        let (count, row, label) = self.first()?;
        let labels = if count == 1 { "one label does".to_owned() } else { format!("{count} labels do") };
        let place = name(row);
        Some(format!("{labels} not count: the model does not predict such; the first is {label:?} ({place})"))
    }

    fn first(self) -> Option<(usize, usize, String)> {
        let (count, first) = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map(|(row, label)| (count, row, label))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decide(labels: &[Value]) -> Result<Labels, (usize, String)> {
        let all = labels.iter().enumerate().map(|(row, label)| Seen::of(row, label));
        all.reduce(Seen::and).unwrap().decide()
    }

    #[test]
    fn the_data_decides() {
        let classes = |names: &[&str]| Labels::Classes(names.iter().map(|name| (*name).to_owned()).collect());
        let cases = [
            (vec![json!("soup"), json!("cake"), json!("soup")], classes(&["cake", "soup"])),
            (vec![json!(2), json!(0), json!(1)], Labels::numbered(3)),
            (vec![json!("2"), json!("0"), json!("0")], Labels::numbered(3)),
            (vec![json!("2"), json!("b")], classes(&["2", "b"])),
            (vec![json!("soup "), json!("\tcake"), json!("soup")], classes(&["cake", "soup"])),
            (vec![json!(" 1"), json!("0")], Labels::numbered(2)),
            (vec![json!(1), json!(0.5)], Labels::Number),
            (vec![json!(true), json!(false)], classes(&["false", "true"])),
            (vec![json!("1.0"), json!("-3")], Labels::Number),
        ];
        for (labels, want) in cases {
            assert_eq!(decide(&labels), Ok(want), "{labels:?}");
        }
        let prices: Vec<Value> = (0..40).map(|row| json!(format!("{}.5", row * 7))).collect();
        for word in ["on request", "n/a"] {
            assert_eq!(decide(&[prices.clone(), vec![json!(word); 3]].concat()), Ok(Labels::Number), "{word}");
        }
        let undecided = [
            (vec![json!("a"), json!("b"), json!(1)], (2, "this label is a number")),
            (vec![json!("a"), json!("a")], (0, "every row has this label")),
            (vec![json!("a"), json!(" a ")], (0, "every row has this label")),
            (vec![json!(0), json!(0)], (0, "every row has this label")),
            (vec![json!(0), json!(-1)], (1, "negative")),
            (vec![json!(0), json!(7), json!(7)], (1, "label 7 in 3 rows")),
        ];
        for (labels, (row, why)) in undecided {
            let (at, message) = decide(&labels).unwrap_err();
            assert!(at == row && message.contains(why), "{labels:?}: row {at}, {message}");
        }
    }

    #[test]
    fn classes_without_names_get_those_of_the_data() {
        let names = |labels: &[Value], count: usize| {
            let all = labels.iter().enumerate().map(|(row, label)| Seen::of(row, label));
            match all.reduce(Seen::and).unwrap().names(count) {
                Some(Labels::Classes(names)) => names.join(" "),
                _ => String::new(),
            }
        };
        let stars = [json!(5), json!(1), json!("3"), json!(2), json!(4), json!(5)];
        assert_eq!(names(&stars, 5), "1 2 3 4 5");
        assert_eq!((names(&stars, 6), names(&stars, 4)), (String::new(), String::new()));
        assert_eq!(names(&[json!("soup"), json!("cake")], 2), "cake soup");
        assert_eq!(names(&[json!("soup"), json!("cake"), json!("pie")], 2), "");
        assert_eq!(
            (names(&[json!(0), json!(1)], 2), names(&[json!(0.5), json!(3)], 2)),
            (String::new(), String::new())
        );
        // A number is the name of a class before it is its place.
        let labelling = Labelling::new(Labels::Classes(["1", "2"].map(str::to_owned).to_vec()), None);
        for value in [json!(1), json!("1")] {
            assert!(matches!(labelling.column(&value), Ok(Column::Whole(0))), "{value}");
        }
    }

    #[test]
    fn labels_are_classes_by_name_or_number() {
        let names = ["cake", "soup", "1"].map(str::to_owned).to_vec();
        let labelling = Labelling::new(Labels::Classes(names), None);
        let class = |value: Value| match labelling.column(&value) {
            Ok(Column::Whole(class)) => Ok(class),
            Ok(_) => panic!("{value}"),
            Err(message) => Err(message),
        };
        for (value, want) in [(json!("soup"), 1), (json!(0), 0), (json!(1), 1), (json!("1"), 2), (json!("0"), 0)] {
            assert_eq!(class(value.clone()), Ok(want), "{value}");
        }
        for value in [json!("pie"), json!(3), json!(-1), json!(0.5), json!("3")] {
            let message = class(value.clone()).unwrap_err();
            assert!(message.ends_with("allowed: cake, soup, 1, or their numbers, 0 to 2"), "{message}");
        }
    }

    #[test]
    fn space_around_a_label_is_left_out() {
        // A trained model may have names with spaces of its own.
        let labelling = Labelling::new(Labels::Classes([" soup", "cake", "soup"].map(str::to_owned).to_vec()), None);
        let cases = [
            ("cake ", 1, true),
            ("\u{a0}cake\n", 1, true),
            (" soup", 0, false),
            ("soup", 2, false),
            ("soup ", 0, true),
        ];
        for (label, want, trimmed) in cases {
            let found = labelling.column(&json!(label));
            assert!(matches!(found, Ok(Column::Whole(class)) if class == want), "{label:?} {found:?}");
            assert_eq!(labelling.trims(&json!(label)), trimmed, "{label:?}");
        }
        assert!(!Labelling::new(Labels::Number, None).trims(&json!(" 1")));
    }

    #[test]
    fn any_number_of_labels_applies() {
        let labelling =
            Labelling::new(Labels::Several(["billing", "late", "urgent"].map(str::to_owned).to_vec()), Some("|"));
        let cases = [
            (json!("billing|urgent"), [1.0, 0.0, 1.0]),
            (json!(" urgent | billing |"), [1.0, 0.0, 1.0]),
            (json!(["late", "late"]), [0.0, 1.0, 0.0]),
            (json!([0, "2"]), [1.0, 0.0, 1.0]),
            (json!(""), [0.0; 3]),
            (json!(null), [0.0; 3]),
            (json!([]), [0.0; 3]),
        ];
        for (value, want) in cases {
            let found = labelling.column(&value);
            assert!(matches!(&found, Ok(Column::Values { values, .. }) if *values == want), "{value}: {found:?}");
        }
        assert!(
            labelling.column(&json!("billing|refund")).unwrap_err().starts_with("the label \"refund\" is no class")
        );
        assert!(labelling.column(&json!([["late"]])).unwrap_err().starts_with("one of the labels is a list"));
    }

    #[test]
    fn labels_are_numbers_where_a_number_is_predicted() {
        let labelling = Labelling::new(Labels::Number, None);
        for (value, want) in [(json!(2), 2.0), (json!(-0.5), -0.5), (json!(" 3.25"), 3.25)] {
            assert!(matches!(labelling.column(&value), Ok(Column::Real(number)) if number == want), "{value}");
        }
        for value in [json!("good"), json!(null), json!("nan")] {
            assert!(labelling.column(&value).is_err(), "{value}");
        }
    }
}
