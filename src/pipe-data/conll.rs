//! CoNLL files: a line for each token, its tag in the last column, blank lines between sentences. A plain text that is no such file
//! has a text on each line.

use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use pipe_spec::text::human_bytes;
use serde_json::Value;

use crate::row::{BYTE_ORDER_MARK, DataError, LONGEST_ROW, line_at, map_file};

/// The columns that such a file has.
pub const TOKENS: &str = "tokens";
pub const TAGS: &str = "tags";
const TEXT: &str = "text";

/// The line that stands between documents.
pub const DOCUMENT: &str = "-DOCSTART-";
/// Lines that tell a CoNLL file from a plain text.
const LOOKED_AT: usize = 200;

/// The tokens of a sentence and their tags, where every line has one.
pub type Sentence = (Vec<Value>, Option<Vec<Value>>);

pub struct ConllFile {
    path: PathBuf,
    bytes: Mmap,
    rows: Vec<Range<usize>>,
    /// Whether each line is a text.
    is_plain: bool,
}

impl ConllFile {
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let fail = |message: String| DataError::new(path, None, message);
        let bytes = map_file(path)?;
        let is_text = path.extension().is_some_and(|ending| ending == "txt");
        let is_plain = is_text && !is_conll(bytes.split(|byte| *byte == b'\n').map(String::from_utf8_lossy));
        let rows = rows(&bytes, is_plain);
        if rows.is_empty() {
            return Err(fail("the file has no rows".to_owned()));
        }
        let opened = Self { path: path.to_owned(), bytes, rows, is_plain };
        match opened.rows.iter().position(|row| row.len() as u64 > LONGEST_ROW) {
            Some(row) => {
                let (found, most) = (human_bytes(opened.rows[row].len() as u64), human_bytes(LONGEST_ROW));
                let message = format!("the sentence has {found}; allowed: at most {most}, blank lines part sentences");
                Err(DataError::new(path, Some(opened.line_number(row)), message))
            }
            None => Ok(opened),
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its columns.
    pub fn names(&self) -> Vec<String> {
        let names: &[&str] = if self.is_plain { &[TEXT] } else { &[TOKENS, TAGS] };
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    pub fn line_number(&self, index: usize) -> u64 {
        line_at(&self.bytes, self.rows[index].start)
    }

    /// The columns of a row, each absent where the row has none.
    pub fn row(&self, index: usize, columns: &[String]) -> Result<Vec<Option<Value>>, DataError> {
        let range = self.rows[index].clone();
        let text = std::str::from_utf8(&self.bytes[range.clone()]).map_err(|error| {
            DataError::new(&self.path, Some(line_at(&self.bytes, range.start + error.valid_up_to())), "not UTF-8")
        })?;
        if self.is_plain {
            let text = |name: &String| (name == TEXT).then(|| Value::from(text));
            return Ok(columns.iter().map(text).collect());
        }
        let (tokens, tags) = sentence(text.lines()).map_err(|(line, message)| {
            DataError::new(&self.path, Some(self.line_number(index) + line as u64), message)
        })?;
        let column = |name: &String| match name.as_str() {
            TOKENS => Some(Value::Array(tokens.clone())),
            TAGS => tags.clone().map(Value::Array),
            _ => None,
        };
        Ok(columns.iter().map(column).collect())
    }
}

/// Where each row stands, without the end of its last line: sentences with a token, or lines with a text.
fn rows(bytes: &[u8], is_plain: bool) -> Vec<Range<usize>> {
    let mut rows: Vec<Range<usize>> = Vec::new();
    let mut start = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let mut goes_on = false;
    for line in bytes[start..].split_inclusive(|byte| *byte == b'\n') {
        let is_blank = line.iter().all(u8::is_ascii_whitespace) || line.starts_with(DOCUMENT.as_bytes());
        let end = start + line.trim_ascii_end().len();
        match rows.last_mut() {
            _ if is_blank => {}
            Some(last) if goes_on => last.end = end,
            _ => rows.push(start..end),
        }
        goes_on = !is_blank && !is_plain;
        start += line.len();
    }
    // A comment alone is no sentence.
    rows.retain(|row| is_plain || !bytes[row.clone()].split(|byte| *byte == b'\n').all(is_comment_bytes));
    rows
}

fn is_comment_bytes(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(is_comment)
}

/// `# id = 7`, as some files have it before a sentence. A token may be `#` too.
fn is_comment(line: &str) -> bool {
    line.starts_with("# ") && line.contains('=')
}

fn columns(line: &str) -> Vec<&str> {
    match line.contains('\t') {
        true => line.trim_end().split('\t').map(str::trim).collect(),
        false => line.split_whitespace().collect(),
    }
}

/// The tokens and tags of the lines of a sentence; otherwise the line that has no tag though others have, and why.
pub fn sentence<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Sentence, (usize, String)> {
    let (mut tokens, mut tags) = (Vec::new(), Vec::new());
    let is_token = |(_, line): &(usize, &str)| !is_comment(line) && !line.trim().is_empty();
    for (number, line) in lines.enumerate().filter(is_token) {
        let columns = columns(line);
        let (first, last) = (columns[0], columns[columns.len() - 1]);
        if (columns.len() > 1) != (tags.len() == tokens.len()) && !tokens.is_empty() {
            return Err((number, format!("the line {line:?} and those before it do not have the same columns")));
        }
        tokens.push(Value::from(first));
        if columns.len() > 1 {
            tags.push(Value::from(last));
        }
    }
    let tags = (tags.len() == tokens.len()).then_some(tags);
    Ok((tokens, tags))
}

/// Whether lines are those of a CoNLL file: each has a token and ends with a tag such as `O` or `B-PER`.
pub fn is_conll(lines: impl Iterator<Item = impl AsRef<str>>) -> bool {
    let mut tokens = 0;
    for line in lines.take(LOOKED_AT) {
        let line = line.as_ref().trim_start_matches('\u{feff}');
        if line.trim().is_empty() || is_comment(line) || line.starts_with(DOCUMENT) {
            continue;
        }
        let columns = columns(line);
        if columns.len() < 2 || !is_tag(columns[columns.len() - 1]) {
            return false;
        }
        tokens += 1;
    }
    tokens > 0
}

fn is_tag(text: &str) -> bool {
    let mut letters = text.chars();
    text == "O" || (letters.next().is_some_and(|first| "BIESLUM".contains(first)) && letters.next() == Some('-'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn open(name: &str, text: &str) -> (tempfile::TempDir, Result<ConllFile, DataError>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let file = ConllFile::open(&path);
        (folder, file)
    }

    fn read(name: &str, text: &str) -> Result<Vec<Value>, String> {
        let (_folder, file) = open(name, text);
        let file = file.map_err(|error| error.in_file())?;
        let names = ["tokens", "tags", "text"].map(str::to_owned);
        let row = |index| file.row(index, &names).map(|values| json!(values)).map_err(|error| error.in_file());
        (0..file.len()).map(row).collect()
    }

    #[test]
    fn sentences_of_tokens_with_tags() {
        let conll = "\u{feff}-DOCSTART- -X- -X- O\r\n\r\nEU NNP B-NP B-ORG\r\nrejects VBZ B-VP O\r\n\r\n\r\nPeter NNP B-NP B-PER\n";
        let want = [json!([["EU", "rejects"], ["B-ORG", "O"], null]), json!([["Peter"], ["B-PER"], null])];
        for name in ["a.conll", "a.bio", "a.txt"] {
            assert_eq!(read(name, conll).unwrap(), want, "{name}");
        }
        let tabs = "# id = 1\nNew York\tB-LOC\n# x\tO\n\n# text = alone\n\n";
        assert_eq!(read("a.conll", tabs).unwrap(), [json!([["New York", "# x"], ["B-LOC", "O"], null])]);
        assert_eq!(read("a.conll", "a\nb\n").unwrap(), [json!([["a", "b"], null, null])]);
    }

    #[test]
    fn a_plain_text_has_a_text_on_each_line() {
        let want = [json!([null, null, "He lives in Paris."]), json!([null, null, "O"])];
        assert_eq!(read("a.txt", "He lives in Paris.\n\nO\n").unwrap(), want);
        assert!(!is_conll("Vitamin B-12\nis good O\nfor you\n".lines()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = read("a.conll", "a O\n\nb O\nc\n").unwrap_err();
        assert_eq!(error, "line 4: the line \"c\" and those before it do not have the same columns");
        assert!(read("a.conll", "c\na O\n").unwrap_err().starts_with("line 2: "));
        assert_eq!(read("a.conll", "\n-DOCSTART- O\n").unwrap_err(), "the file has no rows");
        assert_eq!(read("a.conll", "").unwrap_err(), "the file is empty");
    }
}
