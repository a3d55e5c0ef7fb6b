//! Starting a run from a pipeline file: what `pipe check` and `pipe plan` say is shown first.

use std::sync::Arc;
use std::time::Duration;

use super::door::secret;
use super::page::{NotFound, Page, Params, Parts};
use super::{Ui, acts};
use crate::report::html::markup::escape;

/// How long a check may take.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pipeline files that are suggested, and folders that are searched for them.
const MAX_FILES: usize = 50;
const FOLDERS: [&str; 2] = [".", "pipelines"];
const ENDINGS: [&str; 2] = [".yaml", ".yml"];

/// The answer to a form.
pub enum Answer {
    Page(String),
    /// The number of what was begun.
    Act(u64),
}

/// The page with the empty form.
pub fn form(ui: &Ui, parts: Parts) -> Result<String, NotFound> {
    if ui.read_only {
        return Err(NotFound("This server was started with --read-only: no run can be started.".to_owned()));
    }
    Ok(page(ui, parts, &Params::default(), String::new()))
}

fn page(ui: &Ui, mut parts: Parts, params: &Params, more: String) -> String {
    let suggestion = |name: &String| format!("<option value=\"{}\">", escape(name));
    let suggestions: String = files().iter().map(suggestion).collect();
    parts.fixed(|| {
        format!(
            "<header><h1>Start a run</h1><p class=\"note\">Paths begin at {}.</p></header>\
             <form class=\"start\" method=\"post\" action=\"start\"><input type=\"hidden\" name=\"step\" value=\"check\">\
             <label>Pipeline file <input name=\"file\" list=\"files\" required value=\"{}\" autocomplete=\"off\"></label>\
             <datalist id=\"files\">{suggestions}</datalist>\
             <label>Other values, one a line: <code>train.epochs=2</code> <textarea name=\"set\" rows=\"3\">{}</textarea></label>\
             <p class=\"acts\"><button type=\"submit\">Check and plan</button></p></form>{more}",
            escape(&std::env::current_dir().unwrap_or_default().display().to_string()),
            escape(params.get("file").unwrap_or_default()),
            escape(params.get("set").unwrap_or_default())
        )
    });
    Page { title: "Start a run", entry: "Start a run", events: None }.render(ui, parts)
}

/// Pipeline files near here.
fn files() -> Vec<String> {
    let of = |folder: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(10_000);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let names = names.filter(|name| ENDINGS.iter().any(|ending| name.ends_with(ending)) && !name.starts_with('.'));
        let place = |name: String| if folder == "." { name } else { format!("{folder}/{name}") };
        names.map(place).collect::<Vec<_>>()
    };
    let mut files: Vec<String> = FOLDERS.iter().flat_map(|folder| of(folder)).collect();
    files.sort();
    files.truncate(MAX_FILES);
    files
}

/// Checks what the form names, or starts it.
pub async fn begin(ui: &Arc<Ui>, params: &Params) -> Result<Answer, String> {
    if ui.read_only {
        return Err("This server was started with --read-only: no run can be started.".to_owned());
    }
    let file = params.get("file").ok_or("Name a pipeline file.")?;
    let sets: Vec<String> = params.get("set").unwrap_or_default().lines().map(str::trim).map(str::to_owned).collect();
    let sets: Vec<String> = sets.into_iter().filter(|set| !set.is_empty()).map(|set| format!("--set={set}")).collect();
    let arguments = |words: &[&str]| -> Vec<String> {
        let words = words.iter().map(|word| (*word).to_owned());
        words.chain(sets.iter().cloned()).chain(["--".to_owned(), file.to_owned()]).collect()
    };
    if params.get("step") == Some("run") {
        let form = params.get("form").ok_or("The form is not complete.")?;
        let command = ["pipe run --detach", &sets.join(" "), file].join(" ");
        return acts::start(ui, form, None, command, arguments(&["run", "--detach"])).map(Answer::Act);
    }
    let (is_valid, checked) = ask(ui, &arguments(&["check"])).await;
    let planned = if is_valid { Some(ask(ui, &arguments(&["plan"])).await.1) } else { None };
    let more = result(params, is_valid, &checked, planned.as_deref())?;
    Ok(Answer::Page(page(ui, Parts::new(None), params, more)))
}

async fn ask(ui: &Ui, arguments: &[String]) -> (bool, String) {
    match tokio::time::timeout(TIMEOUT, acts::pipe(&ui.runs, arguments, true)).await {
        Ok(Ok(said)) => said,
        Ok(Err(error)) => (false, error.to_string()),
        Err(_) => (false, format!("it took longer than {} s", TIMEOUT.as_secs())),
    }
}

/// The output of both commands, and the button that starts the run.
fn result(params: &Params, is_valid: bool, checked: &str, planned: Option<&str>) -> Result<String, String> {
    let class = if is_valid { "" } else { " failed" };
    let mut html = format!(
        "<section id=\"checked\"><h2>pipe check</h2><pre class=\"command{class}\">{}</pre></section>",
        escape(checked.trim())
    );
    let Some(planned) = planned else { return Ok(html) };
    let form = secret(8).map_err(|error| error.to_string())?;
    html.push_str(&format!(
        "<section id=\"planned\"><h2>pipe plan</h2><pre class=\"command\">{}</pre></section>\
         <form method=\"post\" action=\"start\"><input type=\"hidden\" name=\"step\" value=\"run\">\
         <input type=\"hidden\" name=\"form\" value=\"{form}\"><input type=\"hidden\" name=\"file\" value=\"{}\">\
         <input type=\"hidden\" name=\"set\" value=\"{}\"><p class=\"acts\"><button type=\"submit\">Start this run</button></p></form>",
        escape(planned.trim()),
        escape(params.get("file").unwrap_or_default()),
        escape(params.get("set").unwrap_or_default())
    ));
    Ok(html)
}
