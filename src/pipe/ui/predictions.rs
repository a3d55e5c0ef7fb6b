//! Predictions of single rows: a `pipe predict` on a small file that goes away with it. One at a time, for a limited time; it can be
//! cancelled.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use pipe_spec::pipeline::CommandLine;
use tempfile::TempDir;
use tokio::sync::Notify;

use super::Ui;
use super::acts::read;
use super::folders::What;
use super::page::Asked;
use crate::report::visible;

/// How long one may take, and how long it may take to end after that.
const LIMIT: Duration = Duration::from_secs(300);
const GRACE: Duration = Duration::from_secs(20);

/// The predictions since the server began.
pub type Predictions = Asked<Prediction, 20>;

/// One prediction, and what was asked.
#[derive(Clone)]
pub struct Prediction {
    pub run: String,
    /// The values of the form, by the numbers of its fields.
    pub values: Vec<String>,
    pub on_cpu: bool,
    pub command: String,
    /// The row as the model gets it.
    pub row: String,
    /// The picture that it names, as the address of an image; absent for a large one.
    pub picture: Option<String>,
    /// Absent while it lasts.
    pub end: Option<End>,
    cancel: Arc<Notify>,
}

/// The end of a prediction.
#[derive(Clone)]
pub enum End {
    /// The predictions, one JSON object a line.
    Answer(String),
    Failed(String),
}

/// The files of a prediction.
pub struct Files {
    pub folder: TempDir,
    /// The name of the file with the row.
    pub data: &'static str,
}

impl Prediction {
    pub fn new(run: String, values: Vec<String>, on_cpu: bool, row: String) -> Self {
        let (command, cancel) = (String::new(), Arc::default());
        Self { run, values, on_cpu, command, row, picture: None, end: None, cancel }
    }

    /// Ends it, if it has not ended.
    pub fn cancel(&self) {
        self.cancel.notify_one();
    }

    /// Why another one has to wait for this one.
    fn refusal(&self) -> Option<String> {
        self.end.is_none().then(|| format!("Another prediction is not done yet, by the model of {}.", self.run))
    }
}

/// Starts it, and returns its number.
pub fn start(ui: &Arc<Ui>, form: &str, run: &Path, files: Files, mut new: Prediction) -> Result<u64, String> {
    let options: &[&str] = if new.on_cpu { &["--cpu"] } else { &[] };
    let words = |data: &str| -> Vec<String> {
        let words = ["predict", "--data", data].into_iter().chain(options.iter().copied()).chain(["--"]);
        words.map(str::to_owned).chain([run.display().to_string()]).collect()
    };
    let shown: Vec<String> = words(files.data).iter().map(|word| CommandLine::quoted(word)).collect();
    let arguments = words(&files.folder.path().join(files.data).display().to_string());
    new.command = format!("pipe {}", shown.join(" "));
    let (cancel, runs) = (new.cancel.clone(), run.parent().unwrap_or(run).to_owned());
    let (number, is_new) = ui.predictions.add(form, new, Prediction::refusal)?;
    if is_new {
        let ui = ui.clone();
        tokio::spawn(async move {
            let end = predict(&runs, &arguments, &cancel).await.unwrap_or_else(|error| End::Failed(error.to_string()));
            let end = without_folder(end, files.folder.path());
            drop(files);
            ui.predictions.change(number, |asked| asked.end = Some(end.clone()));
            let news = [(format!("prediction {number}"), What::Run)].into();
            ui.changes.news.send(Arc::new(news)).ok();
        });
    }
    Ok(number)
}

/// Messages name the file as the page shows it.
fn without_folder(end: End, folder: &Path) -> End {
    match end {
        End::Failed(why) => End::Failed(why.replace(&format!("{}/", folder.display()), "")),
        answer => answer,
    }
}

async fn predict(runs: &Path, arguments: &[String], cancel: &Notify) -> std::io::Result<End> {
    let mut command = tokio::process::Command::new(std::env::current_exe()?);
    command.args(arguments).env("PIPE_RUNS", runs).env("NO_COLOR", "1").kill_on_drop(true);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reading = async { tokio::join!(read(stdout), read(stderr)) };
    tokio::pin!(reading);
    let why = tokio::select! {
        (answer, said) = &mut reading => {
            let succeeded = child.wait().await?.success();
            let answer = String::from_utf8_lossy(&answer).into_owned();
            let said = visible(&String::from_utf8_lossy(&said)).trim().to_owned();
            return Ok(if succeeded { End::Answer(answer) } else { End::Failed(said) });
        }
        () = cancel.notified() => "It was cancelled.".to_owned(),
        () = tokio::time::sleep(LIMIT) => format!("It took longer than {} seconds.", LIMIT.as_secs()),
    };
    // As Ctrl-C does: it ends its job.
    let pid = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
    pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::INT));
    if tokio::time::timeout(GRACE, &mut reading).await.is_err() {
        child.start_kill()?;
    }
    child.wait().await?;
    Ok(End::Failed(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let all = Predictions::default();
        let add = |form: &str| {
            let new = Prediction::new("r".to_owned(), Vec::new(), false, String::new());
            all.add(form, new, Prediction::refusal)
        };
        let end = |number: u64| all.change(number, |asked| asked.end = Some(End::Answer(String::new())));
        assert_eq!((add("a"), add("a")), (Ok((1, true)), Ok((1, false))));
        assert!(add("b").is_err());
        end(1);
        assert_eq!(add("b"), Ok((2, true)));
        for number in 3..40 {
            end(number - 1);
            assert_eq!(add(&number.to_string()), Ok((number, true)));
        }
        assert!(all.get(19).is_none() && all.get(20).is_some());
    }
}
