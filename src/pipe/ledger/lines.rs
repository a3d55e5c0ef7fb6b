//! The ledger's file: JSON lines, each with a checksum of its own, so that damage costs the lines that it hits and no others.
//!
//! A line is `{"check":"<16 hex digits>","entry":{...}}` or the same with `longest`. The checksum is the BLAKE3 hash of what
//! follows it in the line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::LedgerEntry;

const HEAD: &str = "{\"check\":\"";
const DIGITS: usize = 16;

/// What the file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// By the names of their keys.
    pub entries: BTreeMap<String, LedgerEntry>,
    /// The longest row of data that was read, by a hash of what it was read from.
    pub longest: BTreeMap<String, String>,
    /// Intact lines that another version of pipe wrote, as they are.
    pub unknown: Vec<String>,
    pub damaged: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Entry(LedgerEntry),
    Longest { data: String, tokens: String },
}

impl Lines {
    pub fn parse(bytes: &[u8]) -> Self {
        let mut lines = Self::default();
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match intact(line) {
                Some(line) => lines.add(line),
                None => lines.damaged += 1,
            }
        }
        lines
    }

    fn add(&mut self, line: &str) {
        // `check` is none of the keys of a line.
        let json = format!("{{{}", &line[HEAD.len() + DIGITS + "\",".len()..]);
        match serde_json::from_str(&json) {
            Ok(Line::Entry(entry)) => drop(self.entries.insert(entry.key.id(), entry)),
            Ok(Line::Longest { data, tokens }) => drop(self.longest.insert(data, tokens)),
            Err(_) => self.unknown.push(line.to_owned()),
        }
    }

    /// Intact lines.
    pub fn count(&self) -> usize {
        self.entries.len() + self.longest.len() + self.unknown.len()
    }

    pub fn to_text(&self) -> String {
        let entries = self.entries.values().map(|entry| Line::Entry(entry.clone()));
        let longest =
            self.longest.iter().map(|(data, tokens)| Line::Longest { data: data.clone(), tokens: tokens.clone() });
        let known = entries.chain(longest).map(|line| checked(&line));
        known.chain(self.unknown.iter().cloned()).map(|line| line + "\n").collect()
    }
}

fn checked(line: &Line) -> String {
    let json = serde_json::to_string(line).expect("a line is plain data");
    let rest = &json[1..];
    format!("{HEAD}{}\",{rest}", digest(rest))
}

fn digest(rest: &str) -> String {
    blake3::hash(rest.as_bytes()).to_hex()[..DIGITS].to_owned()
}

/// The line, if its checksum is right.
fn intact(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?;
    let (check, rest) = line.strip_prefix(HEAD)?.split_at_checked(DIGITS)?;
    (digest(rest.strip_prefix("\",")?) == check).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{entry, fact};
    use super::*;

    fn some() -> Lines {
        let mut lines = Lines::default();
        for batch in 1..20 {
            let mut entry = entry(&[fact(batch, true, 12), fact(batch * 2, false, 12)]);
            entry.key.longest = batch.to_string();
            lines.entries.insert(entry.key.id(), entry);
            lines.longest.insert(format!("data-{batch}"), format!("{batch}+7"));
        }
        lines
    }

    #[test]
    fn what_is_written_is_read() {
        let lines = some();
        assert_eq!(Lines::parse(lines.to_text().as_bytes()), lines);
        assert!(lines.to_text().lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
        assert_eq!(Lines::parse(b""), Lines::default());
        let keys =
            lines.to_text().lines().filter(|line| line[HEAD.len() + DIGITS..].starts_with("\",\"entry\":{")).count();
        assert_eq!(keys, lines.entries.len());
    }

    #[test]
    fn lines_of_another_version_are_kept() {
        let rest = "\"graph\":{\"a\":1}}";
        let line = format!("{HEAD}{}\",{rest}", digest(rest));
        let lines = Lines::parse(line.as_bytes());
        assert_eq!((lines.unknown.as_slice(), lines.damaged), ([line.clone()].as_slice(), 0));
        assert_eq!(lines.to_text(), line + "\n");
    }

    #[test]
    fn no_damage_is_read_as_truth() {
        let (whole, text) = (some(), some().to_text());
        let held = |lines: &Lines| {
            lines.entries.iter().all(|(id, entry)| whole.entries.get(id) == Some(entry))
                && lines.longest.iter().all(|(data, tokens)| whole.longest.get(data) == Some(tokens))
        };
        let mut seed = 7u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for _ in 0..2000 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..4 {
                let at = random(bytes.len());
                bytes[at] ^= 1 << random(8);
            }
            let lines = Lines::parse(&bytes);
            assert!(held(&lines) && lines.count() >= whole.count() - 8, "{} of {}", lines.count(), whole.count());
        }
        for length in 0..text.len() {
            let lines = Lines::parse(&text.as_bytes()[..length]);
            assert!(held(&lines) && lines.damaged <= 1);
        }
    }
}
