//! The first line of a table: names of columns, the values of a row, or neither. And how a missing number is written.

use csv::{ReaderBuilder, StringRecord};

/// The kind of the first line of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstLine {
    Names,
    /// The values of a row, in so many columns: 5.1,3.5,setosa.
    Values {
        columns: usize,
    },
    /// The counts of rows and of features, then the classes, as scikit-learn's own files begin: 150,4,setosa,versicolor.
    Counts {
        bytes: usize,
        columns: usize,
    },
}

impl FirstLine {
    /// Whole numbers that all differ may be names, as pandas numbers columns. A fraction, a negative number or one that comes twice
    /// is a value.
    pub fn of(start: &[u8], separator: u8) -> Self {
        let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(start);
        let mut records = reader.byte_records();
        let Some(Ok(first)) = records.next() else { return Self::Names };
        let second = records.next().and_then(Result::ok);
        let numbers: Vec<(f64, bool)> = first.iter().filter_map(number_of).collect();
        if let Some(second) = &second
            && let [(_, true), (features, true)] = numbers[..]
            && [0, 1].iter().all(|cell| number_of(&first[*cell]).is_some())
            && features + 1.0 == second.len() as f64
            && first.len() > 2
            && let Some(position) = second.position()
        {
            let end = position.byte() as usize;
            // The reader stops between the two bytes that end a line on Windows.
            let bytes = end + usize::from(start[..end].ends_with(b"\r") && start[end..].starts_with(b"\n"));
            return Self::Counts { bytes, columns: second.len() };
        }
        let is_twice = |(index, number): (usize, &(f64, bool))| numbers[..index].contains(number);
        let is_value = |(number, is_whole): &(f64, bool)| !is_whole || *number < 0.0;
        match numbers.iter().any(is_value) || numbers.iter().enumerate().any(is_twice) {
            true => Self::Values { columns: first.len() },
            false => Self::Names,
        }
    }

    pub fn names(self) -> Option<StringRecord> {
        match self {
            Self::Names => None,
            Self::Values { columns } | Self::Counts { columns, .. } => {
                Some((1..=columns).map(|number| format!("column{number}")).collect::<Vec<_>>().into())
            }
        }
    }
}

/// The number in a cell, and whether it is whole.
fn number_of(cell: &[u8]) -> Option<(f64, bool)> {
    let text = std::str::from_utf8(cell).ok()?.trim();
    let number: f64 = text.parse().ok().filter(|number: &f64| number.is_finite())?;
    Some((number, text.bytes().all(|byte| byte.is_ascii_digit())))
}

/// Whether a cell is one of the ways to write that a number is missing.
pub fn is_missing_number(cell: &str) -> bool {
    let cell = cell.trim();
    cell.is_empty()
        || ["nan", "na", "n/a", "null", "none", "#n/a"].iter().any(|missing| cell.eq_ignore_ascii_case(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_values_and_counts() {
        for (text, want) in [
            ("a,b\n1,2\n", FirstLine::Names),
            ("0,1,2,label\n5.1,3.5,1,x\n", FirstLine::Names),
            ("name,2019,2020\nx,1,2\n", FirstLine::Names),
            ("great,good\n", FirstLine::Names),
            ("", FirstLine::Names),
            ("5.1,3.5,1.4,0.2,setosa\n4.9,3.0,1.4,0.2,setosa\n", FirstLine::Values { columns: 5 }),
            ("6,148,72,0,0\n1,85,66,0,1\n", FirstLine::Values { columns: 5 }),
            ("150,4,setosa,versicolor,virginica\n5.1,3.5,1.4,0.2,0\n", FirstLine::Counts { bytes: 34, columns: 5 }),
            ("569,3,malignant,benign\r\n1,2,3,0\r\n", FirstLine::Counts { bytes: 24, columns: 4 }),
        ] {
            assert_eq!(FirstLine::of(text.as_bytes(), b','), want, "{text}");
        }
    }
}
