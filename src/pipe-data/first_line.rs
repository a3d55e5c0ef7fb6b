//! The first lines of a table: a title, names of columns, the values of a row, or neither. And how a missing number is written.

use csv::{ReaderBuilder, StringRecord};

/// The kind of the first line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// A title, perhaps with more lines that have a single cell, above the names.
    Title {
        bytes: usize,
        title: String,
    },
}

/// Records that are looked at.
const RECORDS: usize = 50;
/// Rows above the names at most.
const TITLE_ROWS: usize = 4;
/// Words of a sentence at least, and of the name of a column at most.
const SENTENCE_WORDS: usize = 4;
const NAME_WORDS: usize = 6;

impl FirstLine {
    /// Whole numbers that all differ may be names, as pandas numbers columns. A fraction, a negative number or one that comes twice
    /// is a value, and so is a sentence above other sentences.
    pub fn of(start: &[u8], separator: u8) -> Self {
        let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(start);
        let records: Vec<_> = reader.byte_records().map_while(Result::ok).take(RECORDS).collect();
        let Some(first) = records.first() else { return Self::Names };
        let begins = |number: usize| {
            let end = records.get(number)?.position()?.byte() as usize;
            // The reader stops between the two bytes that end a line on Windows.
            Some(end + usize::from(start[..end].ends_with(b"\r") && start[end..].starts_with(b"\n")))
        };
        let cell = |cell: &[u8]| String::from_utf8_lossy(cell).trim().to_owned();
        let cells: Vec<Vec<String>> = records.iter().map(|record| record.iter().map(cell).collect()).collect();
        if let (title @ 1.., Some(bytes)) = (title_rows(&cells), begins(title_rows(&cells))) {
            let words = cells[..title].iter().flatten().find(|cell| !cell.is_empty());
            return Self::Title { bytes, title: words.cloned().unwrap_or_default() };
        }
        let numbers: Vec<(f64, bool)> = first.iter().filter_map(number_of).collect();
        if let (Some(second), Some(bytes)) = (records.get(1), begins(1))
            && let [(_, true), (features, true)] = numbers[..]
            && [0, 1].iter().all(|cell| number_of(&first[*cell]).is_some())
            && features + 1.0 == second.len() as f64
            && first.len() > 2
        {
            return Self::Counts { bytes, columns: second.len() };
        }
        let is_twice = |(index, number): (usize, &(f64, bool))| numbers[..index].contains(number);
        let is_value = |(number, is_whole): &(f64, bool)| !is_whole || *number < 0.0;
        let has_values = numbers.iter().any(is_value) || numbers.iter().enumerate().any(is_twice);
        match has_values || is_sentence(&cells) {
            true => Self::Values { columns: first.len() },
            false => Self::Names,
        }
    }

    pub fn names(&self) -> Option<StringRecord> {
        match self {
            Self::Names | Self::Title { .. } => None,
            Self::Values { columns } | Self::Counts { columns, .. } => {
                Some((1..=*columns).map(|number| format!("column{number}")).collect::<Vec<_>>().into())
            }
        }
    }
}

/// How many of the first rows are a title: one cell each, and below them a row of names.
pub fn title_rows(rows: &[Vec<String>]) -> usize {
    let filled = |row: &[String]| row.iter().filter(|cell| !cell.trim().is_empty()).count();
    let above = rows.iter().take_while(|row| filled(row) <= 1).count();
    let Some((names, below)) = rows.get(above..).and_then(<[_]>::split_first) else { return 0 };
    let is_name = |cell: &String| number_of(cell.as_bytes()).is_none() && words(cell) <= NAME_WORDS;
    let named: Vec<&String> = names.iter().filter(|cell| !cell.trim().is_empty()).collect();
    let differ = (1..named.len()).all(|index| !named[..index].contains(&named[index]));
    let is_title = || rows[..above].iter().flatten().any(|cell| words(cell) > 1) || has_numbers_below(names, below);
    let fitting = below.iter().filter(|row| row.len() <= names.len()).count();
    let is_table = !below.is_empty() && fitting * 10 >= below.len() * 9;
    // A single name that stands further right is that of a column behind an index.
    let begins = |row: &[String]| row.iter().position(|cell| !cell.trim().is_empty());
    let has_title =
        rows.first().is_some_and(|row| filled(row) == 1 && begins(row) <= begins(names)) && above <= TITLE_ROWS;
    if has_title && is_table && differ && named.iter().all(|cell| is_name(cell)) && is_title() { above } else { 0 }
}

/// Whether a column with a word above holds numbers in most rows.
fn has_numbers_below(names: &[String], below: &[Vec<String>]) -> bool {
    let is_number = |cell: &&String| number_of(cell.as_bytes()).is_some();
    names.iter().enumerate().any(|(column, name)| {
        let values: Vec<&String> =
            below.iter().filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty()).collect();
        !is_number(&name)
            && !values.is_empty()
            && values.iter().filter(|cell| is_number(cell)).count() * 2 > values.len()
    })
}

/// Whether the first of these rows is one of sentences like the others: one of its cells ends as a sentence does, or another holds what
/// rows below repeat, as labels are. A question may be the name of a column, as forms have it.
fn is_sentence(rows: &[Vec<String>]) -> bool {
    let Some((first, below)) = rows.split_first() else { return false };
    // Files that were joined repeat their names, and all of them.
    let below: Vec<Vec<String>> = below.iter().filter(|row| *row != first).cloned().collect();
    let column = |index: usize| below.iter().filter_map(move |row| row.get(index)).filter(|cell| !cell.is_empty());
    let are_sentences = |index: usize| {
        let sentences = column(index).filter(|cell| words(cell) >= SENTENCE_WORDS).count();
        words(&first[index]) >= SENTENCE_WORDS && sentences * 2 > column(index).count()
    };
    let sentences: Vec<usize> = (0..first.len()).filter(|index| are_sentences(*index)).collect();
    let ends = |index: &usize| first[*index].ends_with(['.', '!']);
    let is_repeated = |index: usize| !first[index].is_empty() && column(index).any(|cell| *cell == first[index]);
    let others = (0..first.len()).filter(|index| !sentences.contains(index));
    !sentences.is_empty()
        && (sentences.iter().any(ends) || others.into_iter().any(is_repeated))
        && !has_numbers_below(first, &below)
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
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
            // Sentences, with a label behind each.
            (
                "I liked the soup a lot,good\nIt was cold and late,bad\nAll of it was fine,good\n",
                FirstLine::Values { columns: 2 },
            ),
            (
                "The soup was cold.,Die Suppe war kalt.\nWe ate all of it.,Wir assen alles auf.\n",
                FirstLine::Values { columns: 2 },
            ),
            (
                "I liked the soup a lot,1\nIt was cold and late,0\nI liked the soup a lot,1\nAll of it was fine,1\n",
                FirstLine::Values { columns: 2 },
            ),
            // Two files that were joined, and a form.
            (
                "text of the review,its label\nIt was cold and late,bad\ntext of the review,its label\nAll was fine and warm,good\n",
                FirstLine::Names,
            ),
            ("What did you like best?,age\nThe soup was really good.,33\nIt was all very nice.,41\n", FirstLine::Names),
            ("text,label\nIt was cold and late.,bad\nAll of it was fine.,good\n", FirstLine::Names),
        ] {
            assert_eq!(FirstLine::of(text.as_bytes(), b','), want, "{text}");
        }
    }

    #[test]
    fn titles_above_the_names() {
        let title = |text: &str| match FirstLine::of(text.as_bytes(), b',') {
            FirstLine::Title { bytes, title } => {
                format!("{title}|{}", text[bytes..].trim_start().lines().next().unwrap())
            }
            other => format!("{other:?}"),
        };
        for (text, want) in [
            ("Sales report 2024\nitem,price\nbolt,3\n", "Sales report 2024|item,price"),
            ("Sales report 2024,\r\n,\r\nitem,price\r\nbolt,3\r\n", "Sales report 2024|item,price"),
            ("\"Sales, all\"\n\nas of May\n\nitem,price\nbolt,3\n", "Sales, all|item,price"),
            ("Stock\nitem,price\nbolt,3\nnut,4\n", "Stock|item,price"),
            // One column, and rows without names.
            ("text\nHello, you\nGood, bye\n", "Names"),
            ("text\nHello you\n", "Names"),
            ("name,,\nbolt,3,4\nnut,5,6\n", "Names"),
            ("item,price\nbolt,\nnut,4\n", "Names"),
            (",customer name\na,x\nb,y\n", "Names"),
        ] {
            assert_eq!(title(text), want, "{text}");
        }
    }
}
