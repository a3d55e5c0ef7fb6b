//! `pipe ledger`: what is known about what fits where.

use crate::error::Error;
use crate::ledger::{Entry, Ledger};
use crate::report::{Table, print, print_json};

pub fn ls(json: bool) -> Result<(), Error> {
    let entries = entries()?;
    if json {
        print_json(&entries.iter().map(named).collect::<Vec<_>>());
        return Ok(());
    }
    let mut table = Table::new(&["id", "model", "precision", "optimizer", "tokens", "on", "known"]);
    for entry in &entries {
        let key = &entry.key;
        let checkpointing = if key.checkpointing { " (checkpointing)" } else { "" };
        table.row(vec![
            key.id(),
            key.arch.clone(),
            format!("{}{checkpointing}", word(&key.precision)),
            word(&key.optimizer),
            if key.longest.is_empty() { "-".to_owned() } else { key.longest.clone() },
            key.gpu.clone(),
            entry.summary(),
        ]);
    }
    print(&table.to_string());
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
    }
    print(&format!("forgot {} of the ledger's entries", names.len()));
    Ok(())
}

/// Every entry as a line of JSON.
pub fn export() -> Result<(), Error> {
    for entry in entries()? {
        print(&named(&entry).to_string());
    }
    Ok(())
}

fn entries() -> Result<Vec<Entry>, Error> {
    Ledger::find().map_or(Ok(Vec::new()), |ledger| ledger.entries())
}

fn matching(id: &str) -> Result<Vec<Entry>, Error> {
    let found: Vec<Entry> = entries()?.into_iter().filter(|entry| entry.key.id().starts_with(id)).collect();
    if found.is_empty() { Err(Error::NoEntry { wanted: id.to_owned() }) } else { Ok(found) }
}

fn named(entry: &Entry) -> serde_json::Value {
    serde_json::json!({ "id": entry.key.id(), "key": entry.key, "facts": entry.facts })
}

fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
