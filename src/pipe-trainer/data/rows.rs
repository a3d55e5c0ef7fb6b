//! The rows of a data set: its files one after the other, every row checked once.

use std::path::Path;

use pipe_spec::pipeline::{Data, Paths};
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::jsonl::{Fields, JsonlFile, Row};
use crate::error::TrainerError;

pub struct Rows {
    files: Vec<JsonlFile>,
    fields: Fields,
}

impl Rows {
    /// Opens every file and reads every row once, so that a broken one is named before the first step.
    pub fn open(paths: &Paths, data: &Data, pool: &ThreadPool) -> Result<Self, TrainerError> {
        let fields = Fields { source: data.field("source").to_owned(), target: data.field("target").to_owned() };
        let files = paths.0.iter().map(|path| open_file(Path::new(path))).collect::<Result<_, _>>()?;
        let rows = Self { files, fields };
        pool.install(|| (0..rows.len()).into_par_iter().try_for_each(|index| rows.get(index).map(drop)))
            .map_err(|found| rows.first_problem().unwrap_or(found))?;
        Ok(rows)
    }

    pub fn len(&self) -> usize {
        self.files.iter().map(JsonlFile::len).sum()
    }

    pub fn get(&self, index: usize) -> Result<Row, TrainerError> {
        let mut index = index;
        for file in &self.files {
            if index < file.len() {
                return file.row(index, &self.fields);
            }
            index -= file.len();
        }
        panic!("row {index} lies beyond the data");
    }

    /// The threads above find some bad row; people want the first.
    fn first_problem(&self) -> Option<TrainerError> {
        (0..self.len()).find_map(|index| self.get(index).err())
    }
}

fn open_file(path: &Path) -> Result<JsonlFile, TrainerError> {
    if path.is_dir() {
        return Err(TrainerError::NotAvailable { what: format!("{}: a folder of data", path.display()) });
    }
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("jsonl") => JsonlFile::open(path),
        ending => {
            let what = format!("{}: data in .{} files", path.display(), ending.unwrap_or_default());
            Err(TrainerError::NotAvailable { what })
        }
    }
}
