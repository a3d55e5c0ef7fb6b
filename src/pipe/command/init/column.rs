//! The kind of a column of the data: its values decide, and where there are too few of them its name.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use pipe_data::compressed::ending;
use pipe_data::{amount, is_missing_number, is_picture};
use serde_json::Value;

use super::texts::{self, Lengths, counts, is_conversation, tokens, turns, vocabulary};

/// Rows below which names decide before values.
const FEW_ROWS: usize = 8;
/// How often a value of a label is repeated on average, at least.
const REPEATED: usize = 3;
/// Values of a label at most, or the square root of the rows, where its name does not say that it is one.
const FEW_CLASSES: usize = 10;
/// Characters of a label, and words, on average.
const LABEL_CHARACTERS: usize = 40;
const LABEL_WORDS: f64 = 4.0;
/// Classes that are given as numbers.
const NUMBERED_CLASSES: usize = 20;
/// Pictures that are looked for on disk.
const SOUGHT: usize = 20;

/// For each role the names that people give to its columns, the most usual first. Names decide where the values leave it open.
const NAMES: [(&str, &str); 8] = [
    ("source", "source src instruction question prompt input document article ingredients query text"),
    ("target", "target output tgt answer response completion summary translation reply directions"),
    (
        "text",
        "text sentence sentence1 premise question1 caption content review comment body message description question \
         title",
    ),
    ("text_pair", "text_pair sentence2 hypothesis question2"),
    ("label", "label labels class category sentiment target intent topic score rating stars grade points price y"),
    ("image", "image image_path img picture photo path file filename file_name"),
    ("time", "time timestamp datetime date"),
    ("id", "id uuid guid index idx key row nr no number asin sku isbn ean"),
];

/// Names of numbers that are an amount, and not the number of a class, where they are whole and begin at 1.
const AMOUNTS: [&str; 6] = ["score", "rating", "stars", "grade", "points", "price"];

/// The position of `name` among the usual names of a role: smaller is more usual.
pub fn name_rank(role: &str, name: &str) -> Option<usize> {
    let (_, known) = NAMES.iter().find(|(known, _)| *known == role)?;
    known.split(' ').position(|known| name.trim().eq_ignore_ascii_case(known))
}

/// Whether the name is one that rows are numbered with: `id`, `review_id`, `ID`.
fn is_id_name(name: &str) -> bool {
    let last = name.trim().rsplit(['_', '-', ' ', '.']).next().unwrap_or(name);
    name_rank("id", name).is_some() || ["id", "uuid", "guid", "idx"].iter().any(|id| last.eq_ignore_ascii_case(id))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    Text,
    /// Few values, each of them repeated.
    Label,
    Number,
    Time,
    /// The path of a picture.
    Picture,
    /// A value that differs in every row and says nothing about it.
    Id,
    /// A conversation.
    Messages,
    /// The same value everywhere, or none.
    Constant,
    /// Lists, objects, or a mixture.
    Other,
    /// Several labels in a row, with this mark between them or as a list.
    Several(Option<char>),
    /// Lists of words.
    Words,
    /// Lists of whole numbers, few of them different.
    Numbers,
}

impl ColumnKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Label => "label",
            Self::Number => "number",
            Self::Time => "time",
            Self::Picture => "picture",
            Self::Id => "id",
            Self::Messages => "conversation",
            Self::Constant => "same in all rows",
            Self::Other => "nested",
            Self::Several(_) => "several labels",
            Self::Words => "list of words",
            Self::Numbers => "list of numbers",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    pub kind: ColumnKind,
    /// Rows without a value.
    pub empty: usize,
    /// Different values, without space around them.
    pub distinct: usize,
    /// How often each value of a label comes, the most frequent first.
    pub classes: Vec<(String, usize)>,
    /// Lengths of a text.
    pub words: Lengths,
    /// Tokens, estimated. In a conversation those before its last turn.
    pub tokens: Lengths,
    /// The tokens of the last turn of a conversation.
    pub answer_tokens: Lengths,
    /// Values that all are numbers: the least and the greatest.
    pub range: Option<(f64, f64)>,
    /// Whether all of those are whole.
    pub whole: bool,
    /// Whether some of those have a decimal comma.
    pub comma: bool,
    /// Whether a value never falls below the one before it, as the trainer compares times.
    pub rises: bool,
    pub pictures: Pictures,
    /// Letters, and words that come often enough to be learned, of a text: the tokens that it has use for.
    pub vocabulary: usize,
    pub example: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pictures {
    /// Those that are not on disk, of the first.
    pub missing: usize,
    /// Those that are missing or broken, as far as their first and last bytes tell.
    pub broken: usize,
}

impl Column {
    /// Looks at the values. `folder` is where paths start from.
    pub fn of<'a>(name: &str, values: impl Iterator<Item = &'a Value>, folder: &Path) -> Self {
        let values: Vec<&Value> = values.collect();
        let mut filled: Vec<&Value> = values.iter().copied().filter(|value| !is_empty(value)).collect();
        // Among numbers it is a missing one, among texts a text.
        let is_missing = |value: &&Value| value.as_str().is_some_and(is_missing_number);
        let others = || filled.iter().filter(|value| !is_missing(value));
        let values_of_numbers: HashSet<u64> =
            others().filter_map(|value| number(&text_of(value))).map(f64::to_bits).collect();
        let is_number = |value: &&&Value| number(&text_of(value)).is_some();
        let count = others().filter(is_number).count();
        // The trainer takes a word among many numbers for a missing one, too.
        let mostly = values_of_numbers.len() > NUMBERED_CLASSES && count * 10 >= others().count() * 9;
        if count > 0 && (mostly || count == others().count()) {
            filled.retain(|value| is_number(&value));
        }
        let texts: Vec<String> = filled.iter().map(|value| text_of(value)).collect();
        let numbers: Vec<f64> = texts.iter().map_while(|text| number(text)).collect();
        let are_numbers = numbers.len() == texts.len() && !texts.is_empty();
        let distinct = texts.iter().collect::<HashSet<_>>().len();
        let fold = |(low, high): (f64, f64), number: &f64| (low.min(*number), high.max(*number));
        let least_and_most = || numbers.iter().fold((f64::INFINITY, f64::NEG_INFINITY), fold);
        let mut column = Self {
            name: name.to_owned(),
            kind: ColumnKind::Other,
            empty: values.len() - filled.len(),
            distinct,
            classes: Vec::new(),
            words: Lengths::of(texts.iter().map(|text| text.split_whitespace().count()).collect()),
            tokens: Lengths::of(texts.iter().map(|text| tokens(text)).collect()),
            answer_tokens: Lengths::default(),
            range: are_numbers.then(least_and_most),
            whole: are_numbers && texts.iter().all(|text| text.parse::<i64>().is_ok()),
            comma: are_numbers && texts.iter().any(|text| text.contains(',')),
            rises: texts.windows(2).all(|pair| !falls(&pair[0], &pair[1])),
            pictures: Pictures::default(),
            vocabulary: 0,
            example: texts.first().cloned().unwrap_or_default(),
        };
        column.kind = column.find_kind(&filled, &texts, &numbers);
        match column.kind {
            ColumnKind::Label => column.classes = counts(&texts),
            ColumnKind::Picture => {
                let missing = texts.iter().take(SOUGHT).filter(|path| !folder.join(path).is_file()).count();
                let is_broken = |path: &&String| is_picture(path) && !is_whole_picture(&folder.join(path));
                column.pictures = Pictures { missing, broken: texts.iter().filter(is_broken).count() };
            }
            ColumnKind::Messages => column.measure_turns(&filled),
            ColumnKind::Text => column.vocabulary = vocabulary(texts.iter().map(String::as_str)),
            ColumnKind::Several(_) | ColumnKind::Words | ColumnKind::Numbers => column.measure_lists(&filled, &texts),
            _ => {}
        }
        column
    }

    /// Whether the column can be the class or the number that is predicted.
    pub fn can_be_label(&self) -> bool {
        matches!(self.kind, ColumnKind::Label | ColumnKind::Number | ColumnKind::Several(_))
    }

    /// Whether numbers are to be predicted as numbers, and not as classes.
    pub fn is_quantity(&self) -> bool {
        let is_named = || AMOUNTS.iter().any(|known| self.name.trim().eq_ignore_ascii_case(known));
        let is_amount = |(low, _): (f64, f64)| low >= 1.0 && is_named();
        self.range.is_some_and(|range| self.kind == ColumnKind::Number || is_amount(range))
    }

    fn measure_turns(&mut self, conversations: &[&Value]) {
        let talks: Vec<Vec<&str>> = conversations.iter().map(|value| turns(value)).collect();
        let before = |talk: &Vec<&str>| talk.split_last().map_or(String::new(), |(_, before)| before.join(" "));
        let sources: Vec<String> = talks.iter().map(before).collect();
        let answers = talks.iter().filter_map(|talk| talk.last());
        self.vocabulary = vocabulary(talks.iter().flatten().copied());
        // Each turn begins with the name of its speaker.
        self.tokens =
            Lengths::of(sources.iter().zip(&talks).map(|(text, talk)| tokens(text) + 2 * talk.len()).collect());
        self.words = Lengths::of(sources.iter().map(|text| text.split_whitespace().count()).collect());
        self.answer_tokens = Lengths::of(answers.map(|text| tokens(text)).collect());
        self.example = sources.first().cloned().unwrap_or_default();
    }

    /// Counts labels, or the words of lists.
    fn measure_lists(&mut self, filled: &[&Value], texts: &[String]) {
        let owned = |labels: Vec<&str>| -> Vec<String> { labels.into_iter().map(str::to_owned).collect() };
        let rows: Vec<Vec<String>> = match self.kind {
            ColumnKind::Several(Some(mark)) => texts.iter().map(|text| owned(texts::split(text, mark))).collect(),
            ColumnKind::Numbers => filled.iter().filter_map(|list| texts::numbers(list)).collect(),
            _ => filled.iter().map(|list| owned(texts::entries(list).unwrap_or_default())).collect(),
        };
        self.words = Lengths::of(rows.iter().map(Vec::len).collect());
        self.tokens = Lengths::of(rows.iter().map(|row| row.iter().map(|word| tokens(word)).sum()).collect());
        self.classes = counts(&rows.concat());
        self.distinct = self.classes.len();
        if self.distinct > texts::MOST_LABELS {
            self.classes.clear();
        }
    }

    fn find_kind(&self, filled: &[&Value], texts: &[String], numbers: &[f64]) -> ColumnKind {
        if filled.iter().any(|value| value.is_array() || value.is_object()) {
            return match filled.iter().all(|value| is_conversation(value)) {
                true => ColumnKind::Messages,
                false => match texts::are_lists_of_labels(filled) {
                    Some(true) => ColumnKind::Several(None),
                    Some(false) => ColumnKind::Words,
                    None if texts::are_lists_of_numbers(filled) => ColumnKind::Numbers,
                    None => ColumnKind::Other,
                },
            };
        }
        if texts.is_empty() {
            // The bytes of a picture inside of a table are not read.
            return if name_rank("image", &self.name).is_some() { ColumnKind::Picture } else { ColumnKind::Constant };
        }
        if mostly(texts, is_picture) {
            return ColumnKind::Picture;
        }
        if texts.len() < FEW_ROWS {
            return self.kind_by_name(texts);
        }
        if self.distinct == 1 {
            return ColumnKind::Constant;
        }
        // A text with a usual name is a text, whatever is in it.
        let is_named = ["source", "text", "text_pair"].iter().any(|role| name_rank(role, &self.name).is_some());
        match (self.range, texts::separator(texts).filter(|_| !is_named)) {
            (Some(range), _) => self.kind_of_numbers(range, texts.len(), numbers),
            (None, Some(separator)) => ColumnKind::Several(Some(separator)),
            (None, None) => self.kind_of_texts(texts),
        }
    }

    fn kind_by_name(&self, texts: &[String]) -> ColumnKind {
        let is = |role: &str| name_rank(role, &self.name).is_some();
        let is_number = self.range.is_some();
        match () {
            () if mostly(texts, is_time) || (is("time") && is_number) => ColumnKind::Time,
            () if is_id_name(&self.name) => ColumnKind::Id,
            () if is("label") && (is_number || self.words.mean <= 1) && !is("target") => ColumnKind::Label,
            () if is("label") && is_number => ColumnKind::Label,
            () if is_number => ColumnKind::Number,
            () => ColumnKind::Text,
        }
    }

    fn kind_of_numbers(&self, (low, high): (f64, f64), rows: usize, numbers: &[f64]) -> ColumnKind {
        if name_rank("time", &self.name).is_some() && self.rises {
            return ColumnKind::Time;
        }
        let is_new = self.distinct == rows;
        let is_target = name_rank("label", &self.name).is_some();
        let steps = || numbers.windows(2).all(|pair| pair[1] - pair[0] == numbers[1] - numbers[0]);
        if self.whole && is_new && !is_target && (is_id_name(&self.name) || steps()) {
            return ColumnKind::Id;
        }
        if self.whole && is_id_name(&self.name) && !is_target && self.distinct * 2 > rows {
            return ColumnKind::Id;
        }
        let is_class = self.whole && low >= 0.0 && high <= NUMBERED_CLASSES as f64;
        match is_class && self.distinct <= NUMBERED_CLASSES && self.distinct * REPEATED <= rows {
            true => ColumnKind::Label,
            false => ColumnKind::Number,
        }
    }

    fn kind_of_texts(&self, texts: &[String]) -> ColumnKind {
        let is_named = ["text", "source", "target"].iter().any(|role| name_rank(role, &self.name).is_some());
        if mostly(texts, is_time) {
            return if is_named { ColumnKind::Text } else { ColumnKind::Time };
        }
        let rows = texts.len();
        let words = texts.iter().map(|text| text.split_whitespace().count()).sum::<usize>() as f64 / rows as f64;
        let is_short = words <= LABEL_WORDS && mostly(texts, |text| text.chars().count() <= LABEL_CHARACTERS);
        // A column that is called a label may have more classes, and fewer rows of each.
        let most = match name_rank("label", &self.name) {
            Some(_) => rows / 2,
            None => (rows / REPEATED).min(rows.isqrt().max(FEW_CLASSES)),
        };
        if is_short && self.distinct <= most {
            return ColumnKind::Label;
        }
        let is_code =
            |text: &str| !text.contains(char::is_whitespace) && text.contains(|letter: char| letter.is_ascii_digit());
        let is_id = match is_id_name(&self.name) {
            true => words <= 1.0 && self.distinct * 2 > rows,
            false => !is_named && self.distinct == rows && mostly(texts, is_code),
        };
        if is_id {
            return ColumnKind::Id;
        }
        ColumnKind::Text
    }
}

/// Nine of ten.
fn mostly(texts: &[String], is: impl Fn(&str) -> bool) -> bool {
    texts.iter().filter(|text| is(text)).count() * 10 >= texts.len() * 9
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        _ => false,
    }
}

/// A value as text without space around it, as labels are compared.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    }
}

/// A number, also with a decimal comma, which files with semicolons between the cells have.
fn number(text: &str) -> Option<f64> {
    let read = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
    read(text).or_else(|| amount(text)).or_else(|| read(&text.replacen(',', ".", 1)))
}

/// As the trainer compares times: numbers as numbers, others as texts.
fn falls(before: &str, now: &str) -> bool {
    match (number(before), number(now)) {
        (Some(before), Some(now)) => now < before,
        _ => now < before,
    }
}

/// Whether a file begins and ends like a picture; what is broken between is seen when it is decoded.
fn is_whole_picture(path: &Path) -> bool {
    let look = || -> std::io::Result<bool> {
        let mut file = File::open(path)?;
        let mut start = [0; 32];
        let read = file.read(&mut start)?;
        let length = file.metadata()?.len();
        let mut end = Vec::new();
        file.seek(SeekFrom::Start(length.saturating_sub(64)))?;
        file.take(64).read_to_end(&mut end)?;
        let ends_with = |mark: &[u8]| end.windows(mark.len()).any(|bytes| bytes == mark);
        Ok(match ending(&start[..read]) {
            Some("jpg") => ends_with(&[0xff, 0xd9]),
            Some("png") => ends_with(b"IEND"),
            other => other.is_some(),
        })
    };
    look().unwrap_or(false)
}

/// Digits with the marks of a date or a time of day between them.
fn is_time(text: &str) -> bool {
    let marks = text.chars().filter(|letter| matches!(letter, '-' | ':' | '/' | '.')).count();
    let others = |letter: char| letter.is_ascii_digit() || "-:/.TZ+ ".contains(letter);
    let groups = text.split(|letter: char| !letter.is_ascii_digit()).filter(|group| !group.is_empty()).count();
    marks >= 1 && groups >= 2 && text.len() >= 5 && text.chars().all(others) && number(text).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str, value: impl Fn(usize) -> Value) -> ColumnKind {
        let values: Vec<Value> = (0..30).map(value).collect();
        Column::of(name, values.iter(), Path::new("")).kind
    }

    #[test]
    fn values_decide() {
        let story = |row: usize| Value::from(format!("the {row}th of many stories about a fox"));
        for (want, found) in [
            (ColumnKind::Text, kind("zeta", story)),
            (ColumnKind::Text, kind("word", |row| Value::from(["fox", "Hund", "chat"][row % 3].repeat(row + 1)))),
            (ColumnKind::Label, kind("zeta", |row| Value::from(["yes", " no "][row % 2]))),
            (ColumnKind::Label, kind("zeta", |row| Value::from(row % 4))),
            (ColumnKind::Label, kind("topic", |row| Value::from(format!("class {}", row % 14)))),
            (ColumnKind::Text, kind("zeta", |row| Value::from(format!("class {}", row % 14)))),
            (ColumnKind::Number, kind("zeta", |row| Value::from(format!("{}.5", row % 4)))),
            (ColumnKind::Number, kind("zeta", |row| Value::from(format!("{row},25")))),
            (ColumnKind::Number, kind("age", |row| Value::from(row * row))),
            (ColumnKind::Number, kind("score", |row| Value::from(row + 1))),
            (ColumnKind::Id, kind("zeta", |row| Value::from(row + 100))),
            (ColumnKind::Id, kind("order_id", |row| Value::from(row * row))),
            (ColumnKind::Id, kind("zeta", |row| Value::from(format!("9f{row:04}c-77ab")))),
            (ColumnKind::Id, kind("asin", |row| Value::from(["BX", "CY"][row / 29].repeat(row / 2 + 1)))),
            (ColumnKind::Text, kind("text", |row| Value::from(format!("9f{row:04}c-77ab")))),
            (ColumnKind::Text, kind("target", |row| Value::from(format!("2025-11-{:02}", row + 1)))),
            (ColumnKind::Number, kind("zeta", |row| Value::from(["NaN", "2.5", "", "7"][row % 4]))),
            (ColumnKind::Label, kind("zeta", |row| Value::from(["NA", "EU"][row % 2]))),
            (ColumnKind::Time, kind("zeta", |row| Value::from(format!("2025-11-{:02} 10:00", row + 1)))),
            (ColumnKind::Time, kind("timestamp", |row| Value::from(1_700_000_000 + row))),
            (ColumnKind::Picture, kind("zeta", |row| Value::from(format!("cats/{row}.JPG")))),
            (ColumnKind::Messages, kind("zeta", |_| serde_json::json!([{"role": "user", "content": "hi"}]))),
            (ColumnKind::Other, kind("zeta", |_| serde_json::json!({"a": 1}))),
            (ColumnKind::Numbers, kind("ner_tags", |row| serde_json::json!([0, row % 9, 0]))),
            (ColumnKind::Other, kind("vector", |row| serde_json::json!([0.5, row]))),
            (ColumnKind::Other, kind("input_ids", |row| serde_json::json!([row * 100, row * 100 + 9]))),
            (ColumnKind::Constant, kind("zeta", |_| Value::from("en"))),
            (ColumnKind::Constant, kind("zeta", |_| Value::Null)),
        ] {
            assert_eq!(found, want);
        }
    }

    #[test]
    fn few_rows_are_named() {
        let of = |name: &str, value: Value| Column::of(name, [value].iter(), Path::new("")).kind;
        assert_eq!(of("sentiment", Value::from(1)), ColumnKind::Label);
        assert_eq!(of("review", Value::from("a")), ColumnKind::Text);
        assert_eq!(of("time", Value::from("1")), ColumnKind::Time);
        assert_eq!(of("id", Value::from("7")), ColumnKind::Id);
        assert_eq!(of("a", Value::from(1)), ColumnKind::Number);
    }

    #[test]
    fn broken_pictures_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let png = [&b"\x89PNG\r\n\x1a\n"[..], &[0; 40], b"IEND\xaeB`\x82"].concat();
        for (name, bytes) in [("a.png", &png[..]), ("b.png", &png[..30]), ("c.png", b""), ("d.jpg", b"<html>")] {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let values = ["a.png", "b.png", "c.png", "d.jpg", "e.png"].map(Value::from);
        let column = Column::of("file", values.iter(), folder.path());
        assert_eq!((column.kind, column.pictures), (ColumnKind::Picture, Pictures { missing: 1, broken: 4 }));
    }

    #[test]
    fn classes_are_counted_without_space() {
        let values = ["soup", " soup", "cake", "", "soup ", "cake", "soup", "soup", "cake"].map(Value::from);
        let column = Column::of("dish", values.iter(), Path::new(""));
        assert_eq!(column.classes, [("soup".to_owned(), 5), ("cake".to_owned(), 3)]);
        assert_eq!((column.empty, column.distinct), (1, 2));
    }

    #[test]
    fn stars_are_a_number_and_classes_are_not() {
        let quantity = |name: &str, first: usize| {
            let values: Vec<Value> = (0..30).map(|row| Value::from(row % 5 + first)).collect();
            Column::of(name, values.iter(), Path::new("")).is_quantity()
        };
        assert!(quantity("stars", 1) && !quantity("stars", 0) && !quantity("class", 1));
    }
}
