//! Acts on a run: each as the command would do it, by a `pipe` of its own, and none twice.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use pipe_spec::Status;
use pipe_spec::pipeline::CommandLine;
use tokio::io::AsyncReadExt;

use super::Ui;
use super::door::secret;
use super::folders::What;
use super::index::Row;
use super::page::{Asked, NotFound, Page, Params, Parts, encode, run_address};
use crate::report::html::markup::escape;
use crate::report::visible;
use crate::run;

/// Bytes of what a command says.
const MAX_OUTPUT: u64 = 64 << 10;

/// Something that can be done to a run.
struct Act {
    name: &'static str,
    button: &'static str,
    /// Whether the run can be in a state for it.
    fits: fn(Status) -> bool,
    /// The arguments before the run.
    before: &'static [&'static str],
    explanation: &'static str,
}

const ACTS: [Act; 4] = [
    Act {
        name: "stop",
        button: "Stop",
        fits: |status| matches!(status, Status::Running | Status::Orphaned),
        before: &["stop"],
        explanation: "The trainer saves a checkpoint and ends. The run can be resumed from there.",
    },
    Act {
        name: "stop-now",
        button: "Stop at once",
        fits: |status| matches!(status, Status::Running | Status::Orphaned),
        before: &["stop", "--now"],
        explanation: "The trainer ends without a checkpoint: the steps since the last one are lost.",
    },
    Act {
        name: "resume",
        button: "Resume",
        fits: |status| matches!(status, Status::Stopped | Status::Failed | Status::Orphaned),
        before: &["resume", "--detach"],
        explanation: "The run continues in the background from its last checkpoint.",
    },
    Act {
        name: "remove",
        button: "Remove",
        fits: |status| !matches!(status, Status::Running | Status::Orphaned),
        before: &["rm"],
        explanation: "The folder of the run is deleted, with its checkpoints, its model and its containers. This cannot be undone.",
    },
];

/// The acts since the server began.
pub type Acts = Asked<Done, 100>;

#[derive(Clone)]
pub struct Done {
    /// The run that it is done to; absent where it starts one.
    run: Option<String>,
    command: String,
    /// Whether it ends a run at once, which one that saves still allows.
    is_at_once: bool,
    /// Absent while it lasts.
    end: Option<End>,
}

impl Done {
    /// Why another act has to wait for this one.
    fn refusal(&self, other: &Self) -> Option<String> {
        let is_same = self.end.is_none() && self.run.is_some() && self.run == other.run;
        let is_sooner = other.is_at_once && !self.is_at_once;
        (is_same && !is_sooner).then(|| format!("`{}` is still being done.", self.command))
    }
}

#[derive(Clone)]
pub struct End {
    succeeded: bool,
    output: String,
}

/// Links to what can be done to a run.
pub fn buttons(ui: &Ui, row: &Row) -> String {
    if check_own(ui, row).is_err() {
        return String::new();
    }
    let link = |act: &Act| {
        let address = format!("act?do={}&run={}", act.name, encode(&row.key));
        format!("<a class=\"button {}\" href=\"{}\">{}</a>", act.name, escape(&address), act.button)
    };
    let links: String = ACTS.iter().filter(|act| (act.fits)(row.status)).map(link).collect();
    format!("<p class=\"acts\">{links}</p>")
}

fn find(params: &Params) -> Result<&'static Act, String> {
    let name = params.get("do").unwrap_or_default();
    ACTS.iter().find(|act| act.name == name).ok_or_else(|| format!("There is nothing called {name:?} to do."))
}

/// Arguments of the command. A name that begins like an option is none.
fn arguments(act: &Act, id: &str) -> Vec<String> {
    let run = ["--", id];
    act.before.iter().copied().chain(run).map(str::to_owned).collect()
}

fn shown_command(ui: &Ui, act: &Act, row: &Row) -> String {
    let words: Vec<&str> = ["pipe"].into_iter().chain(act.before.iter().copied()).collect();
    format!("{}{} {}", environment(ui, row), words.join(" "), row.id())
}

/// The variable that a command needs to find a run of another folder.
pub fn environment(ui: &Ui, row: &Row) -> String {
    match row.runs() == ui.runs {
        true => String::new(),
        false => format!("PIPE_RUNS={} ", CommandLine::quoted(&row.runs().display().to_string())),
    }
}

/// The page that asks whether it is meant.
pub fn ask(ui: &Ui, params: &Params) -> Result<String, NotFound> {
    let act = find(params).map_err(NotFound)?;
    let row = ui.row(params.get("run").unwrap_or_default())?;
    check(ui, act, &row).map_err(NotFound)?;
    let form = secret(8).map_err(|error| NotFound(error.to_string()))?;
    let mut parts = Parts::new(None);
    parts.fixed(|| {
        format!(
            "<p class=\"crumb\"><a href=\"{0}\">{1}</a></p><header><h1>{2} this run?</h1></header>\
             <p>{1}: <span class=\"tag {3}\">{3}</span></p><p>{4}</p><pre class=\"command\">{5}</pre>\
             <form method=\"post\" action=\"act\"><input type=\"hidden\" name=\"form\" value=\"{form}\">\
             <input type=\"hidden\" name=\"do\" value=\"{6}\"><input type=\"hidden\" name=\"run\" value=\"{1}\">\
             <p class=\"acts\"><button class=\"{6}\" type=\"submit\">{2}</button> <a class=\"button\" href=\"{0}\">Cancel</a></p></form>",
            escape(&run_address(&row.key)),
            escape(&row.key),
            act.button,
            row.status.name(),
            act.explanation,
            escape(&shown_command(ui, act, &row)),
            act.name,
        )
    });
    Ok(Page { title: act.button, entry: "Runs", events: None }.render(ui, parts))
}

/// Whether a command may do anything to the run.
pub fn check_own(ui: &Ui, row: &Row) -> Result<(), String> {
    if ui.read_only {
        return Err("This server was started with --read-only: nothing can be done to runs.".to_owned());
    }
    if let Some(address) = &row.bucket {
        return Err(format!("This is a copy from a bucket: `pipe resume {address}` takes the run over."));
    }
    if !row.is_own {
        return Err("The folder of this run has another name than the run in it: no command finds it.".to_owned());
    }
    if row.id() == run::LATEST {
        return Err(format!("A command takes {} for the run that was begun last.", run::LATEST));
    }
    Ok(())
}

fn check(ui: &Ui, act: &Act, row: &Row) -> Result<(), String> {
    check_own(ui, row)?;
    match (act.fits)(row.status) {
        true => Ok(()),
        false => Err(format!("{} is {}: it cannot be {}.", row.key, row.status.name(), past(act.name))),
    }
}

fn past(name: &str) -> &'static str {
    match name {
        "resume" => "resumed",
        "remove" => "removed",
        _ => "stopped",
    }
}

/// Begins what a form asks for, once however often it is sent; the number of the act.
pub async fn begin(ui: &Arc<Ui>, params: &Params) -> Result<u64, String> {
    let (act, key) = (find(params)?, params.get("run").unwrap_or_default());
    let form = params.get("form").ok_or("The form is not complete.")?;
    if let Some(known) = ui.acts.number_of(form) {
        return Ok(known);
    }
    let row = ui.row(key).map_err(|NotFound(why)| why)?;
    check(ui, act, &row)?;
    let command = shown_command(ui, act, &row);
    start(ui, form, Some(&row), command, arguments(act, row.id()))
}

/// Starts a `pipe` with these arguments, which goes on whoever looks.
pub fn start(
    ui: &Arc<Ui>,
    form: &str,
    row: Option<&Row>,
    command: String,
    arguments: Vec<String>,
) -> Result<u64, String> {
    let runs = row.map_or(&*ui.runs, Row::runs).to_owned();
    let is_at_once = arguments.iter().take(2).eq(["stop", "--now"]);
    let done = Done { run: row.map(|row| row.key.clone()), command, is_at_once, end: None };
    let (number, is_new) = ui.acts.add(form, done.clone(), |known| known.refusal(&done))?;
    if is_new {
        let ui = ui.clone();
        tokio::spawn(async move {
            let end = carry_out(&runs, &arguments).await;
            ui.acts.change(number, |done| done.end = Some(end.clone()));
            let news = [(format!("act {number}"), What::Run)].into();
            ui.changes.news.send(Arc::new(news)).ok();
        });
    }
    Ok(number)
}

async fn carry_out(runs: &Path, arguments: &[String]) -> End {
    match pipe(runs, arguments, false).await {
        Ok((succeeded, output)) => End { succeeded, output },
        Err(error) => End { succeeded: false, output: error.to_string() },
    }
}

/// Runs `pipe` with these arguments on this folder of runs: whether it succeeded, and what it printed. With `is_bound` it ends with who waits for it.
pub async fn pipe(runs: &Path, arguments: &[String], is_bound: bool) -> std::io::Result<(bool, String)> {
    let mut command = tokio::process::Command::new(std::env::current_exe()?);
    command.args(arguments).env("PIPE_RUNS", runs).env("NO_COLOR", "1");
    command.kill_on_drop(is_bound).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = tokio::join!(read(stdout), read(stderr));
    let status = child.wait().await?;
    let [stdout, stderr] = [stdout, stderr].map(|bytes| visible(&String::from_utf8_lossy(&bytes)).into_owned());
    Ok((status.success(), stdout + &stderr))
}

/// The beginning of what a command prints.
pub async fn read(from: Option<impl tokio::io::AsyncRead + Unpin>) -> Vec<u8> {
    let Some(mut from) = from else { return Vec::new() };
    let mut bytes = Vec::new();
    (&mut from).take(MAX_OUTPUT).read_to_end(&mut bytes).await.ok();
    // The rest is read too, so that nothing waits for a reader.
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await.ok();
    bytes
}

/// The page of an act: what it did, or that it lasts.
pub fn done(ui: &Ui, number: u64, mut parts: Parts) -> Result<String, NotFound> {
    let Some(done) = ui.acts.get(number) else { return Err(NotFound("Nothing with this number was done.".to_owned())) };
    parts.live("act", || {
        let (title, output) = match &done.end {
            None => ("Working ...".to_owned(), "<p class=\"note\">This page shows when it is done.</p>".to_owned()),
            Some(end) => (
                if end.succeeded { "Done" } else { "Not done" }.to_owned(),
                format!(
                    "<pre class=\"command {}\">{}</pre>",
                    if end.succeeded { "" } else { "failed" },
                    escape(end.output.trim())
                ),
            ),
        };
        let back = match done.run.as_ref().or(started(&done).as_ref()) {
            Some(run) => format!("<a class=\"button\" href=\"{}\">{}</a> ", escape(&run_address(run)), escape(run)),
            None => String::new(),
        };
        format!(
            "<header><h1>{title}</h1></header><pre class=\"command\">{}</pre>{output}<p class=\"acts\">{back}\
             <a class=\"button\" href=\"./\">All runs</a></p>",
            escape(&done.command)
        )
    });
    let events = Some(format!("?run={}", encode(&format!("act {number}"))));
    Ok(Page { title: "Done", entry: "Runs", events }.render(ui, parts))
}

/// The run that a command has started: the id is the first thing that it prints.
fn started(done: &Done) -> Option<String> {
    let output = &done.end.as_ref().filter(|end| end.succeeded)?.output;
    let is_id = |line: &&str| !line.is_empty() && line.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    output.lines().map(str::trim).find(is_id).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_carried_out_once() {
        let acts = Acts::default();
        let add = |form: &str, run: &str, is_at_once: bool| {
            let done = Done { run: Some(run.to_owned()), command: "pipe stop a".to_owned(), is_at_once, end: None };
            acts.add(form, done.clone(), |known| known.refusal(&done))
        };
        let end = |number: u64| {
            acts.change(number, |done| done.end = Some(End { succeeded: true, output: String::new() }));
        };
        assert_eq!(add("1", "a", false), Ok((1, true)));
        assert_eq!(add("1", "a", false), Ok((1, false)));
        assert!(add("2", "a", false).is_err());
        assert_eq!(add("2", "a", true), Ok((2, true)));
        assert!(add("4", "a", true).is_err());
        end(2);
        assert_eq!(add("5", "b", false), Ok((3, true)));
        end(1);
        assert_eq!(add("3", "a", false), Ok((4, true)));
        assert_eq!((acts.number_of("1"), acts.number_of("9")), (Some(1), None));
    }

    #[test]
    fn a_name_is_no_option() {
        assert_eq!(arguments(&ACTS[1], "--left-behind"), ["stop", "--now", "--", "--left-behind"]);
    }
}
