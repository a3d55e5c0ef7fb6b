//! A Rust source file as the tests of the code's structure read it: without comments and without its own tests.

use std::path::{Path, PathBuf};

pub struct Source {
    /// Relative to the crate.
    pub path: PathBuf,
    /// Comments and tests are blank; places are those of the file.
    pub text: String,
    /// The same with blank string literals.
    pub code: String,
}

impl Source {
    /// Every source file below `folder` that is no test.
    pub fn below(folder: &Path) -> Vec<Self> {
        let mut sources = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(&next).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.is_dir() && name != "tests" {
                    folders.push(path);
                } else if name.ends_with(".rs") && name != "tests.rs" && name != "build.rs" {
                    sources.push(Self::read(folder, &path));
                }
            }
        }
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        sources
    }

    fn read(folder: &Path, path: &Path) -> Self {
        let file: Vec<char> = std::fs::read_to_string(path).unwrap().chars().collect();
        let (text, code) = blank(&file);
        let tests = tests_in(&code);
        let without_tests = |chars: Vec<char>| {
            let is_test = |at: usize| tests.iter().any(|range| range.contains(&at));
            let blanked = chars.into_iter().enumerate().map(|(at, c)| if is_test(at) && c != '\n' { ' ' } else { c });
            blanked.collect::<String>()
        };
        let path = path.strip_prefix(folder).unwrap().to_owned();
        Self { path, text: without_tests(text), code: without_tests(code) }
    }

    /// The modules that it lies in, outermost first; none for `main.rs` and `lib.rs`.
    pub fn module(&self) -> Vec<String> {
        let stem = self.path.with_extension("");
        let names = stem.iter().map(|name| name.to_str().unwrap().to_owned());
        names.filter(|name| !["main", "lib", "mod"].contains(&name.as_str())).collect()
    }

    /// The lines of `code` that have `word` as a word of its own: number and line.
    pub fn lines_with(&self, word: &str) -> Vec<(usize, String)> {
        let numbered = self.code.lines().zip(self.text.lines()).zip(1..);
        numbered
            .filter(|((code, _), _)| has_word(code, word))
            .map(|((_, text), at)| (at, text.trim().to_owned()))
            .collect()
    }
}

pub fn has_word(text: &str, word: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word)
        .any(|(at, _)| !is_inside(text[..at].chars().next_back()) && !is_inside(text[at + word.len()..].chars().next()))
}

/// The file without comments, and without comments and the content of strings; both as long as the file.
fn blank(file: &[char]) -> (Vec<char>, Vec<char>) {
    let (mut text, mut code) = (file.to_vec(), file.to_vec());
    let mut at = 0;
    while at < file.len() {
        let rest = &file[at..];
        let begins = |what: &str| rest.iter().copied().take(what.chars().count()).eq(what.chars());
        let is_word = at > 0 && (file[at - 1].is_alphanumeric() || file[at - 1] == '_');
        if begins("//") || begins("/*") {
            let end = at + if begins("//") { until(rest, "\n") } else { until(&rest[2..], "*/") + 4 };
            for place in at..end.min(file.len()) {
                if file[place] != '\n' {
                    (text[place], code[place]) = (' ', ' ');
                }
            }
            at = end;
        } else if rest[0] == '"' || (!is_word && (begins("r\"") || begins("r#"))) && raw_hashes(rest).is_some() {
            let (opening, closing) = match raw_hashes(rest) {
                Some(hashes) => (hashes + 2, format!("\"{}", "#".repeat(hashes))),
                None => (1, "\"".to_owned()),
            };
            let length = match opening {
                1 => escaped_length(&rest[1..]),
                _ => until(&rest[opening..], &closing),
            };
            for place in at + opening..(at + opening + length).min(file.len()) {
                if file[place] != '\n' {
                    code[place] = ' ';
                }
            }
            at += opening + length + closing.len();
        } else if begins("'\\") || (rest.len() > 2 && rest[0] == '\'' && rest[2] == '\'') {
            // A character; anything else behind the sign is a lifetime.
            let length = if rest[1] == '\\' { 2 + until(&rest[3..], "'") } else { 1 };
            (at + 1..at + 1 + length).for_each(|place| code[place] = ' ');
            at += length + 2;
        } else {
            at += 1;
        }
    }
    (text, code)
}

/// How many `#` a raw string that begins here has; none where no raw string begins.
fn raw_hashes(rest: &[char]) -> Option<usize> {
    let hashes = rest.strip_prefix(&['r'])?.iter().take_while(|c| **c == '#').count();
    (rest.get(hashes + 1) == Some(&'"')).then_some(hashes)
}

/// How far it is to `end`, or to the end of the file.
fn until(rest: &[char], end: &str) -> usize {
    let end: Vec<char> = end.chars().collect();
    rest.windows(end.len()).position(|window| window == end).unwrap_or(rest.len())
}

fn escaped_length(rest: &[char]) -> usize {
    let mut at = 0;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at
}

/// Where the items behind `#[cfg(test)]` stand.
fn tests_in(code: &[char]) -> Vec<std::ops::Range<usize>> {
    let mut tests = Vec::new();
    let mut at = 0;
    loop {
        at += until(&code[at..], "#[cfg(test)]");
        if at == code.len() {
            return tests;
        }
        let mut depth = 0;
        let length = code[at..].iter().position(|c| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 0 && (*c == '}' || *c == ';')
        });
        let end = at + length.unwrap_or(code.len() - at - 1) + 1;
        tests.push(at..end);
        at = end;
    }
}
