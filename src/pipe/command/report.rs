//! `pipe report`: a run, or several, as a page.

use std::path::Path;

use pipe_spec::pipeline::WorkKind;
use pipe_spec::{RunFolder, Variables};

use crate::error::Error;
use crate::report::{html, print, print_data};
use crate::run::{self, Listed, Record};
use crate::system::files::{absolute, write_whole};

pub fn run(wanted: &[String], out: Option<&Path>) -> Result<(), Error> {
    let mut folders: Vec<RunFolder> = Vec::new();
    for wanted in wanted {
        let folder = find(wanted)?;
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    let out = match (out, folders.as_slice()) {
        (Some(out), _) => out.to_owned(),
        (None, [folder]) => folder.report(),
        (None, _) => return Err(Error::NoReportPath),
    };
    let page = match folders.as_slice() {
        [folder] if is_study(folder) => super::tune::page(folder)?,
        _ => {
            let records: Vec<Record> = folders.iter().map(Record::read).collect();
            html::page(&records, &Variables::of_process(None))
        }
    };
    if out == Path::new("-") {
        print_data(format!("{}\n", page.trim_end()).as_bytes());
        return Ok(());
    }
    write(&out, &page)?;
    print(&absolute(&out).display().to_string());
    Ok(())
}

fn is_study(folder: &RunFolder) -> bool {
    Listed::read(folder.path()).is_some_and(|found| found.state.work() == WorkKind::Study)
}

/// The folder of a run, which may also be given as a path.
fn find(wanted: &str) -> Result<RunFolder, Error> {
    match run::find(wanted) {
        Ok(found) => Ok(found.folder()),
        Err(error @ Error::NoRun { .. }) => {
            let folder = absolute(Path::new(wanted));
            let named = Listed::read(&folder).filter(|_| !wanted.is_empty());
            named.map(|found| found.folder()).ok_or(error)
        }
        Err(error) => Err(error),
    }
}

/// Whole, except into what is no file, such as a pipe.
fn write(out: &Path, page: &str) -> Result<(), Error> {
    if out.metadata().is_ok_and(|found| !found.is_file()) {
        return std::fs::write(out, page).map_err(|source| Error::Write { path: out.to_owned(), source });
    }
    write_whole(out, page.as_bytes())
}
