//! `pipe note`: the note and the tags of a run.

use crate::error::Error;
use crate::report::{print, print_json};
use crate::run::{self, Notes, NotesChange};

/// Makes this change, and prints the note and the tags.
pub fn run(wanted: &str, change: NotesChange, json: bool) -> Result<(), Error> {
    let found = run::find(wanted)?;
    let notes = if change.is_empty() { found.notes.clone() } else { Notes::change(&found.folder(), change)? };
    if json {
        print_json(&notes);
        return Ok(());
    }
    print(&format!("run      {}", found.state.id));
    if notes.is_empty() {
        print("It has no note and no tags.");
    }
    notes.lines().iter().for_each(|line| print(line));
    Ok(())
}
