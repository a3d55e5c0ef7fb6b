//! The database: one small file that is opened for each question and closed again, so that many runs can share it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Entry, Fact, Key};
use crate::error::Error;

/// Entries by the names of their keys, as JSON.
const ENTRIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("entries");
/// The longest row of data that was read, by a hash of what it was read from.
const LONGEST: TableDefinition<'_, &str, &str> = TableDefinition::new("longest");

/// How long to wait for another process to be done with it.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Ledger {
    path: PathBuf,
}

impl Ledger {
    /// `PIPE_LEDGER`, or a file in the user's data folder; nothing where there is neither.
    pub fn find() -> Option<Self> {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let path = var("PIPE_LEDGER")
            .or_else(|| var("XDG_DATA_HOME").map(|home| home.join("pipe/ledger.redb")))
            .or_else(|| var("HOME").map(|home| home.join(".local/share/pipe/ledger.redb")))?;
        Some(Self { path })
    }

    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Every entry, by name.
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        self.with(|database| {
            let read = database.begin_read()?;
            let table = match read.open_table(ENTRIES) {
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                table => table?,
            };
            let mut entries = Vec::new();
            for row in table.iter()? {
                // What another version wrote is passed over.
                entries.extend(serde_json::from_slice::<Entry>(row?.1.value()).ok());
            }
            Ok(entries)
        })
    }

    pub fn tell(&self, key: &Key, facts: Vec<Fact>) -> Result<(), Error> {
        self.with(|database| {
            let write = database.begin_write()?;
            {
                let mut table = write.open_table(ENTRIES)?;
                let id = key.id();
                let known = table.get(id.as_str())?.and_then(|value| serde_json::from_slice(value.value()).ok());
                let mut entry: Entry = known.unwrap_or(Entry { key: key.clone(), facts: Vec::new() });
                facts.iter().for_each(|fact| entry.learn(fact.clone()));
                let json = serde_json::to_vec(&entry).expect("an entry is plain data");
                table.insert(id.as_str(), json.as_slice())?;
            }
            Ok(write.commit()?)
        })
    }

    pub fn longest(&self, data: &str) -> Result<Option<String>, Error> {
        if !self.path.exists() {
            return Ok(None);
        }
        self.with(|database| match database.begin_read()?.open_table(LONGEST) {
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            table => Ok(table?.get(data)?.map(|value| value.value().to_owned())),
        })
    }

    pub fn tell_longest(&self, data: &str, longest: &str) -> Result<(), Error> {
        self.with(|database| {
            let write = database.begin_write()?;
            write.open_table(LONGEST)?.insert(data, longest)?;
            Ok(write.commit()?)
        })
    }

    /// Removes the entries of these names.
    pub fn forget(&self, ids: &[String]) -> Result<(), Error> {
        self.with(|database| {
            let write = database.begin_write()?;
            {
                let mut table = write.open_table(ENTRIES)?;
                for id in ids {
                    table.remove(id.as_str())?;
                }
            }
            Ok(write.commit()?)
        })
    }

    /// Opens the database, alone, for as long as `work` takes.
    fn with<T>(&self, work: impl Fn(&Database) -> Result<T, redb::Error>) -> Result<T, Error> {
        let fail = |reason: String| Error::Ledger { path: self.path.clone(), reason };
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| fail(error.to_string()))?;
        }
        let began = Instant::now();
        loop {
            match Database::create(&self.path) {
                Ok(database) => return work(&database).map_err(|error| fail(error.to_string())),
                Err(DatabaseError::DatabaseAlreadyOpen) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(fail(error.to_string())),
            }
        }
    }
}
