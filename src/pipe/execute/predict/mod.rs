//! Predictions of a trained model: what predicts, the rows, the job that computes them, and where they go. A prediction is no
//! run: it leaves nothing but its output.
//!
//! Predictions queue for a card as runs do.
//!
//! The rows to predict: found, read from stdin where they come from there, and prepared as those of a training are.

mod job;
mod subject;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pipe_spec::Variables;
use pipe_spec::lock::LockedFile;
use pipe_spec::pipeline::{Gpus, Paths, Task};
use subject::WORK_FOLDER;
use tempfile::TempPath;

use crate::engine::Engine;
use crate::error::Error;
use crate::execute::launch::environment;
use crate::gpu::queue::{Ticket, card_names};
use crate::input::data_cache::{self, ColumnSelection, PreparedInputs};
use crate::input::hub::{Hub, HubAccess};
use crate::input::preflight::NotFound;
use crate::input::{ADAPTER_FOLDER, Input, Inputs, load};
use crate::report::Reporter;
use crate::system::interrupt::{self, Interrupts};

pub use job::Job;
pub use subject::{Destination, Subject, work_folder};

/// How often the queue is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until no run has the cards. They are held while the tickets live.
pub async fn wait(
    engine: &dyn Engine,
    gpus: &Gpus,
    id: &str,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Vec<Ticket>, Error> {
    let mut tickets = Vec::new();
    for card in card_names(gpus, &engine.cards(&Gpus::All)) {
        let ticket = match Ticket::take(&card, id) {
            Ok((ticket, warning)) => {
                warning.iter().for_each(|warning| reporter.note(warning));
                ticket
            }
            Err(error) => {
                reporter.note(&format!("warning: {error}; the prediction does not wait for runs"));
                break;
            }
        };
        let mut reported = None;
        while let Some(first) = ticket.ahead()?.into_iter().next() {
            if reported.as_ref() != Some(&first) {
                reporter.note(&format!("waiting for {card}: {first} has it; --no-queue starts at once"));
                reported = Some(first);
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = interrupts.signal() => return Err(Error::Interrupted),
            }
        }
        tickets.push(ticket);
    }
    Ok(tickets)
}

/// The name of stdin on the command line.
const STDIN: &str = "-";

pub struct Rows {
    prepared: PreparedInputs,
    /// The file that holds what came from stdin, while this lives.
    stdin: Option<TempPath>,
}

impl Rows {
    /// Finds the rows. Those from stdin are kept in `folder`.
    pub async fn find(
        data: &[String],
        subject: &Subject,
        keep: &[String],
        folder: &Path,
        reporter: &mut Reporter,
        interrupts: &mut Interrupts,
    ) -> Result<Self, Error> {
        let task = subject.task();
        let stdin = match data.iter().any(|path| path == STDIN) {
            false => None,
            true => {
                // Paths of pictures begin in the folder of the file that names them.
                let folder =
                    if task.reads_pictures() { std::env::current_dir().unwrap_or_default() } else { folder.to_owned() };
                Some(interrupt::run_interruptibly(interrupts, move || read_stdin(&folder, task)).await?)
            }
        };
        let path = |path: &String| match &stdin {
            Some(file) if path == STDIN => file.to_string_lossy().into_owned(),
            _ => path.clone(),
        };
        let paths = Paths(data.iter().map(path).collect());
        let columns = ColumnSelection::for_prediction(task, &subject.settings.data, keep);
        let inputs = find(paths, task, columns.clone(), reporter, interrupts).await?;
        let own = folder_input(&subject.model, if subject.base.is_some() { ADAPTER_FOLDER } else { "/pipe/model" });
        let (model, adapter) = match &subject.base {
            Some(base) => (find_base(base.clone(), subject, reporter, interrupts).await?, Some(own)),
            None => (own, None),
        };
        let inputs = Inputs { model: Some(model), adapter, ..inputs };
        let prepared = data_cache::prepare_inputs(&inputs, columns, reporter, interrupts).await?;
        Ok(Self { prepared, stdin })
    }

    /// The data files, and the model.
    pub fn inputs(&self) -> &Inputs {
        &self.prepared.inputs
    }

    /// The trainer's message, with the user's own paths in place of those that it sees.
    pub fn with_host_paths(&self, said: &str) -> String {
        let said = self.inputs().with_host_paths(said);
        match &self.stdin {
            Some(file) => said.replace(&*file.to_string_lossy(), "stdin"),
            None => said,
        }
    }
}

fn folder_input(folder: &Path, mounted: &str) -> Input {
    let (host, written) = (folder.to_owned(), folder.to_owned());
    Input { host, written, mounted: PathBuf::from(mounted), mount: None, prepared: None }
}

/// The model that an adapter was trained for.
async fn find_base(
    from: String,
    subject: &Subject,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Input, Error> {
    let (progress, arch, known) = (reporter.fetch_progress(), subject.settings.model.arch, subject.variables.clone());
    let pins = subject.lock.as_ref().map_or_else(Vec::new, |lock| lock.hub.clone());
    let work = move || {
        let hub = Hub::new(&known, HubAccess::Fetch, &pins, progress);
        Inputs::find_model(&from, arch, &known, &hub).map_err(in_words)
    };
    let base = interrupt::run_interruptibly(interrupts, work).await?;
    if let Some(lock) = &subject.lock {
        let inputs = Inputs { model: Some(base.clone()), ..Inputs::none() };
        let now = environment::of_inputs(&inputs, reporter, interrupts).await?.model;
        let is_another =
            |file: &&LockedFile| lock.model.iter().any(|then| then.name == file.name && then.hash != file.hash);
        let changes: Vec<String> = now.iter().filter(is_another).map(|file| format!("model: {}", file.name)).collect();
        if !changes.is_empty() {
            return Err(Error::InputsChanged { changes });
        }
    }
    Ok(base)
}

/// Problems of paths of the command line have no place in a file.
fn in_words(error: NotFound) -> Error {
    match error {
        NotFound::Problems(problems) => {
            let messages: Vec<String> = problems.0.iter().map(|problem| problem.message.clone()).collect();
            Error::Rows { message: messages.join("\n") }
        }
        NotFound::Error(error) => error,
    }
}

async fn find(
    paths: Paths,
    task: Task,
    columns: ColumnSelection,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Inputs, Error> {
    let progress = reporter.fetch_progress();
    let work = move || {
        let hub = Hub::new(&load::variables(), HubAccess::Fetch, &[], progress);
        // Paths of the command line have no variables.
        let found = Inputs::find_rows(&paths, task, &columns, &Variables::new(None, std::iter::empty()), &hub);
        found.map_err(in_words)
    };
    interrupt::run_interruptibly(interrupts, work).await
}

/// Writes stdin to a file whose name says what it holds: by its first character JSON lines, or what else the task reads.
fn read_stdin(folder: &Path, task: Task) -> Result<TempPath, Error> {
    let mut stdin = std::io::stdin().lock();
    let fail = |source| Error::Read { path: "stdin".into(), source };
    let mut beginning = vec![0; 4096];
    let mut count = 0;
    // Blank lines may come before the first row.
    while count == 0 || (count < beginning.len() && beginning[..count].trim_ascii().is_empty()) {
        match stdin.read(&mut beginning[count..]).map_err(fail)? {
            0 => break,
            read => count += read,
        }
    }
    let beginning = &beginning[..count];
    if beginning.trim_ascii().is_empty() {
        return Err(Error::Rows { message: "stdin has no rows".to_owned() });
    }
    let suffix = format!(".{}", ending(beginning, task));
    let mut write = || {
        let mut file = tempfile::Builder::new().prefix(WORK_FOLDER).suffix(&suffix).tempfile_in(folder)?;
        file.write_all(beginning)?;
        std::io::copy(&mut stdin, &mut file)?;
        Ok(file.into_temp_path())
    };
    write().map_err(|source| Error::Output { path: folder.to_owned(), source })
}

fn ending(beginning: &[u8], task: Task) -> &'static str {
    match (beginning.trim_ascii_start().first(), task) {
        (_, Task::TimeSeries) => "csv",
        (Some(b'{'), _) => "jsonl",
        (_, Task::Language | Task::TokenLabels) => "txt",
        (
            _,
            Task::Seq2Seq
            | Task::Classification
            | Task::Contrastive
            | Task::Table
            | Task::PictureClasses
            | Task::Preference,
        ) => "csv",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdin_is_known_by_its_beginning() {
        for (beginning, task, want) in [
            (&b"\n {\"text\""[..], Task::Classification, "jsonl"),
            (b"text,label\n", Task::Classification, "csv"),
            (b"Once upon", Task::Language, "txt"),
            (b"{\"text\"", Task::Language, "jsonl"),
            (b"open,close", Task::TimeSeries, "csv"),
        ] {
            assert_eq!(ending(beginning, task), want);
        }
    }
}
