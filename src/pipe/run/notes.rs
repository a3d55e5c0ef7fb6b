//! The note and the tags that people give a run. They lie beside its record, and no command computes with them.

use std::fs::File;
use std::io::Read;
use std::str::FromStr;
use std::time::Duration;

use pipe_spec::RunFolder;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::system::files;

/// Tags of a run, at most.
pub const MAX_TAGS: usize = 20;
/// Characters of a note, and of a tag.
pub const MAX_NOTE: usize = 2000;
const MAX_TAG: usize = 40;
/// Bytes of the file that are read.
const MAX_FILE: u64 = 64 << 10;
/// How often another process that changes the same notes is waited for, and how long each time.
const TRIES: u32 = 100;
const WAIT: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Notes {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// In the order in which they were added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// A change of the notes of a run.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The new note; an empty one removes the old one.
    pub note: Option<NoteText>,
    pub add: Vec<Tag>,
    pub remove: Vec<Tag>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        self.note.is_none() && self.add.is_empty() && self.remove.is_empty()
    }
}

/// A word that runs are found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(pub String);

impl FromStr for Tag {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_allowed = |letter: char| letter.is_alphanumeric() || "-_.:/+".contains(letter);
        let is_tag = text.starts_with(char::is_alphanumeric) && text.chars().all(is_allowed);
        match is_tag && text.chars().count() <= MAX_TAG {
            true => Ok(Self(text.to_owned())),
            false => Err("allowed: up to 40 letters, digits and - _ . : / +, beginning with a letter or a digit"),
        }
    }
}

/// The text of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteText(pub String);

impl FromStr for NoteText {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        match text.chars().count() <= MAX_NOTE {
            true => Ok(Self(text.to_owned())),
            false => Err("a note has at most 2000 characters"),
        }
    }
}

impl Notes {
    /// The notes of the run in this folder; none where they cannot be read.
    pub fn read(folder: &RunFolder) -> Self {
        let mut text = Vec::new();
        let read = files::open_own(&folder.notes()).and_then(|file| file.take(MAX_FILE).read_to_end(&mut text));
        let notes: Self = read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default();
        notes.bounded()
    }

    /// Whoever can write to the folder may have written anything.
    fn bounded(self) -> Self {
        let mut notes = Self { note: self.note.chars().take(MAX_NOTE).collect(), tags: Vec::new() };
        let tags = self.tags.iter().filter_map(|tag| tag.parse().ok()).take(MAX_TAGS);
        tags.for_each(|tag| notes.add(tag));
        notes
    }

    fn add(&mut self, tag: Tag) {
        if !self.tags.contains(&tag.0) {
            self.tags.push(tag.0);
        }
    }

    /// Changes the notes of the run in this folder, and returns the new ones.
    pub fn change(folder: &RunFolder, change: Change) -> Result<Self, Error> {
        let _lock = lock(folder);
        let mut notes = Self::read(folder);
        notes.tags.retain(|tag| !change.remove.iter().any(|removed| removed.0 == *tag));
        change.add.into_iter().for_each(|tag| notes.add(tag));
        if notes.tags.len() > MAX_TAGS {
            return Err(Error::TooManyTags { count: notes.tags.len(), most: MAX_TAGS });
        }
        if let Some(note) = change.note {
            notes.note = note.0;
        }
        files::write_json(&folder.notes(), &notes)?;
        Ok(notes)
    }

    pub fn is_empty(&self) -> bool {
        self.note.is_empty() && self.tags.is_empty()
    }

    pub fn has_tag(&self, wanted: &str) -> bool {
        self.tags.iter().any(|tag| tag == wanted)
    }

    /// The first line of the note.
    pub fn first_line(&self) -> &str {
        self.note.lines().next().unwrap_or_default()
    }

    /// As a terminal shows them.
    pub fn lines(&self) -> Vec<String> {
        let tags = (!self.tags.is_empty()).then(|| format!("tags     {}", self.tags.join(", ")));
        let note = (!self.note.is_empty()).then(|| format!("note     {}", self.note.replace('\n', "\n         ")));
        tags.into_iter().chain(note).collect()
    }
}

/// Locks the folder, so that no change of another process is lost. A lock that somebody holds for long is not waited for.
fn lock(folder: &RunFolder) -> Option<File> {
    let folder = File::open(folder.path()).ok()?;
    for _ in 0..TRIES {
        match rustix::fs::flock(&folder, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(WAIT),
            _ => break,
        }
    }
    Some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_words() {
        for tag in ["a", "baseline", "lr:1e-3", "Käse", "a/b", "2026"] {
            assert!(tag.parse::<Tag>().is_ok(), "{tag}");
        }
        for tag in ["", "-a", "a b", "a,b", "<b>", "a\n", &"x".repeat(41)] {
            assert!(tag.parse::<Tag>().is_err(), "{tag}");
        }
        assert!("x".repeat(MAX_NOTE).parse::<NoteText>().is_ok() && "x".repeat(2001).parse::<NoteText>().is_err());
    }

    #[test]
    fn notes_are_bounded() {
        let folder = RunFolder::new(std::env::temp_dir().join(format!("pipe-notes-{}", std::process::id())));
        std::fs::create_dir_all(folder.path()).unwrap();
        assert_eq!(Notes::read(&folder), Notes::default());
        let tags = |names: std::ops::Range<usize>| names.map(|name| Tag(format!("t{name}"))).collect::<Vec<_>>();
        let note = Some(NoteText("good".to_owned()));
        let notes = Notes::change(&folder, Change { note, add: tags(0..20), remove: Vec::new() }).unwrap();
        assert_eq!((notes.tags.len(), Notes::read(&folder)), (MAX_TAGS, notes));
        let more = Change { add: tags(20..21), ..Change::default() };
        assert!(Notes::change(&folder, more.clone()).is_err());
        let other = Notes::change(&folder, Change { remove: tags(0..19), ..more }).unwrap();
        assert_eq!((other.tags.join(" "), other.note.as_str()), ("t19 t20".to_owned(), "good"));
        let hostile = serde_json::json!({ "note": "n".repeat(9000), "tags": ["<b>", "ok", "ok", "a b"], "more": 1 });
        std::fs::write(folder.notes(), hostile.to_string()).unwrap();
        let read = Notes::read(&folder);
        assert_eq!((read.note.len(), read.tags.join(" ")), (MAX_NOTE, "ok".to_owned()));
        for damaged in ["", "{", "[]", &" ".repeat(100_000)] {
            std::fs::write(folder.notes(), damaged).unwrap();
            assert_eq!(Notes::read(&folder), Notes::default());
        }
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}
