//! Phrases that strangers stumbled over, in messages, help and pages, and that must not come back.

use std::path::Path;

use crate::harness::folder::repository;
use crate::harness::{Needs, Suite};

pub fn tests(suite: &mut Suite) {
    suite.test("words::phrases_that_strangers_stumbled_over_are_gone", Needs::Nothing, phrases);
    suite.test("words::no_comment_begins_without_a_subject", Needs::Nothing, comments);
}

/// In lower case. Each had a plainer sentence put in its place.
const PHRASES: &[&str] = &[
    "what is to be trained on it",
    "say it with --",
    "whether its result stays the same is up to it",
    "and is to end, within",
    "begins anew",
    "begin anew",
    "a number of above",
    "no such place",
    "begun and not ended",
    "what there is:",
    "the better, the stronger",
    "its own text has place",
    "every step is faint",
    "rows by their class (left)",
    "for a text or two",
    "none keeps a share of the rows",
    "so many trainer processes",
    "at most so many",
    "they know the ids of the runs",
    "brings it through out-of-memory",
    "is another one in every row",
    "is gone on with",
    "has come along",
    "weights began as",
    "multiplied with",
    "a photo of a cats",
    "label with space around it",
];

/// Every text file of these folders, with its name.
fn texts() -> Vec<(String, String)> {
    let mut texts = Vec::new();
    let mut paths: Vec<_> =
        ["src", "docs", "pipelines", "docker", "tests/snapshots", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
            .map(|name| repository().join(name))
            .into();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            texts.push((path.strip_prefix(repository()).unwrap_or(Path::new("")).display().to_string(), text));
        }
    }
    assert!(texts.len() > 400, "only {} files", texts.len());
    texts
}

fn report(found: &[String]) {
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn phrases() {
    let mut found = Vec::new();
    for (name, text) in texts() {
        // A sentence may be wrapped.
        let text = text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ").replace("\\ ", "");
        found.extend(PHRASES.iter().filter(|phrase| text.contains(**phrase)).map(|phrase| format!("{name}: {phrase}")));
    }
    report(&found);
}

fn comments() {
    let mut found = Vec::new();
    for (name, text) in texts().into_iter().filter(|(name, _)| name.ends_with(".rs")) {
        let mut before_is_comment = false;
        for (at, line) in text.lines().enumerate() {
            let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim());
            let begins = comment.is_some_and(|comment| comment.starts_with("Of ") || comment.starts_with("What "));
            if begins && !before_is_comment {
                found.push(format!("{name}:{}: {line}", at + 1));
            }
            before_is_comment = comment.is_some_and(|comment| !comment.is_empty());
        }
    }
    report(&found);
}
