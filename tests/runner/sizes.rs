//! How large functions, structs and pages may be.

use std::path::Path;

use crate::harness::folder::repository;
use crate::harness::{Needs, Suite};
use crate::source::Source;
use crate::walls::CRATES;

const LINES_OF_A_FUNCTION: usize = 80;
const FIELDS_OF_A_STRUCT: usize = 15;
const CHARACTERS_OF_A_LINE: usize = 120;
const WORDS_OF_THE_DOCS: usize = 22_000;

/// These have a field for each key of a file: of a model's config.json, of the pipeline file and its sections, of
/// `run.json` and `spec.json`.
const KEYS_OF_A_FILE: &[&str] = &[
    "BertConfig",
    "Data",
    "DebertaConfig",
    "LlamaConfig",
    "PipelineFile",
    "Pods",
    "RunFile",
    "T5Config",
    "Train",
    "TrainFile",
    "TrainerSpec",
    "Written",
];

pub fn tests(suite: &mut Suite) {
    suite.test("sizes::functions_and_structs_are_small", Needs::Nothing, functions_and_structs);
    suite.test("sizes::long_ones_are_found", Needs::Nothing, long_ones_are_found);
    suite.test("sizes::the_docs_are_short", Needs::Nothing, docs);
}

fn functions_and_structs() {
    let (mut found, mut mirrors) = (Vec::new(), Vec::new());
    for name in CRATES {
        for source in Source::below(&repository().join("src").join(name)) {
            for large in large_items(&source.code) {
                match KEYS_OF_A_FILE.iter().find(|mirror| large.starts_with(&format!("struct {mirror} "))) {
                    Some(mirror) => mirrors.push(*mirror),
                    None => found.push(format!("src/{name}/{}: {large}", source.path.display())),
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    mirrors.sort_unstable();
    assert_eq!(mirrors, KEYS_OF_A_FILE, "each of these is there once, and large");
}

/// The functions and structs of a source that are too large, with their sizes.
fn large_items(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, keyword) in words(code).filter(|(_, word)| ["fn", "struct"].contains(word)) {
        let rest = &code[at + keyword.len()..];
        let name = rest.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let Some(body) = body(rest) else { continue };
        let (size, most, unit) = match keyword {
            "fn" => (rest[..body.end].matches('\n').count() + 1, LINES_OF_A_FUNCTION, "lines"),
            _ => (fields(&rest[body]), FIELDS_OF_A_STRUCT, "fields"),
        };
        if size > most {
            found.push(format!("{keyword} {name} has {size} {unit}, {most} are allowed"));
        }
    }
    found
}

/// The words of a source, each with its place.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.map(|word| (word.as_ptr() as usize - code.as_ptr() as usize, word))
}

/// The part in braces of the item that begins here; nothing where it has none.
fn body(item: &str) -> Option<std::ops::Range<usize>> {
    let (mut brackets, mut braces, mut start) = (0, 0, 0);
    for (at, c) in item.char_indices() {
        match c {
            '(' | '[' if braces == 0 => brackets += 1,
            ')' | ']' if braces == 0 => brackets -= 1,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' => {
                start = if braces == 0 { at } else { start };
                braces += 1;
            }
            '}' if braces == 1 => return Some(start..at + 1),
            '}' => braces -= 1,
            _ => {}
        }
    }
    None
}

/// How many single colons there are: one for each field.
fn fields(body: &str) -> usize {
    body.matches(':').count() - 2 * body.matches("::").count()
}

fn long_ones_are_found() {
    let function = |lines: usize| format!("fn f(a: [u8; 2]) -> B {{\n{}}}\n", "    g();\n".repeat(lines - 2));
    let structure = |fields: usize| format!("struct S {{\n{}}}\n", "    a: b::C<d::E>,\n".repeat(fields));
    let none: [String; 0] = [];
    assert_eq!(large_items(&(function(80) + &structure(15))), none);
    assert_eq!(large_items(&function(81)), ["fn f has 81 lines, 80 are allowed"]);
    assert_eq!(large_items(&structure(16)), ["struct S has 16 fields, 15 are allowed"]);
    assert_eq!(large_items(&format!("fn a();\nstruct U;\nstruct T(u8);\n{}", function(9))), none);
}

fn docs() {
    let mut words = 0;
    let mut long = Vec::new();
    let mut read = |path: &Path, counts: bool| {
        let text = std::fs::read_to_string(path).unwrap();
        words += if counts { text.split_whitespace().count() } else { 0 };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > CHARACTERS_OF_A_LINE);
        long.extend(lines.map(|(at, _)| format!("{}:{at}", path.display())));
    };
    for folder in ["docs", "docs/dev"] {
        for entry in std::fs::read_dir(repository().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "md") {
                read(&path, true);
            }
        }
    }
    for page in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"] {
        read(&repository().join(page), false);
    }
    assert!(long.is_empty(), "lines of over {CHARACTERS_OF_A_LINE} characters:\n{}", long.join("\n"));
    assert!((10_000..=WORDS_OF_THE_DOCS).contains(&words), "docs/ has {words} words, {WORDS_OF_THE_DOCS} are allowed");
}
