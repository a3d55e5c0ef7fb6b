//! `pipe ledger`: lists, shows and removes the measurements of earlier runs.

use pipe_spec::text::count;

use crate::error::Error;
use crate::fit::ledger::{Ledger, LedgerEntry};
use crate::report::{Table, print, print_json, print_json_line, say};

pub fn ls(json: bool) -> Result<(), Error> {
    let entries = entries()?;
    if json {
        print_json(&entries.iter().map(named).collect::<Vec<_>>());
        return Ok(());
    }
    let mut table = Table::new(&LedgerEntry::HEAD);
    entries.iter().for_each(|entry| table.row(entry.cells().into()));
    print(&table.on_stdout());
    Ok(())
}

pub fn show(id: &str) -> Result<(), Error> {
    let found = matching(id)?;
    print_json(&found.iter().map(named).collect::<Vec<_>>());
    Ok(())
}

/// Entries whose names begin like one of `ids`, or all.
pub fn forget(ids: &[String], all: bool) -> Result<(), Error> {
    let mut names = Vec::new();
    if all {
        names.extend(entries()?.iter().map(|entry| entry.key.id()));
    }
    for id in ids {
        names.extend(matching(id)?.iter().map(|entry| entry.key.id()));
    }
    if let Some(ledger) = Ledger::find().filter(|_| !names.is_empty()) {
        ledger.forget(&names)?;
        warn(&ledger);
    }
    print(&format!("removed {}", count(names.len(), "entry")));
    Ok(())
}

/// Every entry as a line of JSON.
pub fn export() -> Result<(), Error> {
    for entry in entries()? {
        print_json_line(&named(&entry));
    }
    Ok(())
}

fn entries() -> Result<Vec<LedgerEntry>, Error> {
    let Some(ledger) = Ledger::find() else { return Ok(Vec::new()) };
    let entries = ledger.entries();
    warn(&ledger);
    entries
}

fn warn(ledger: &Ledger) {
    ledger.take_warnings().iter().for_each(|warning| say(&format!("warning: {warning}")));
}

fn matching(id: &str) -> Result<Vec<LedgerEntry>, Error> {
    let found: Vec<LedgerEntry> = entries()?.into_iter().filter(|entry| entry.key.id().starts_with(id)).collect();
    if found.is_empty() { Err(Error::NoEntry { wanted: id.to_owned() }) } else { Ok(found) }
}

fn named(entry: &LedgerEntry) -> serde_json::Value {
    serde_json::json!({ "id": entry.key.id(), "key": entry.key, "facts": entry.facts })
}
