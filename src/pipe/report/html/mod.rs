//! `report.html`: a run, several runs or a study on one page that loads nothing: no script, curves as inline SVG. Pure: a
//! record of a run's folder comes in, a page goes out.
//!
//! Several runs on one page: their curves, the settings that differ, their results.

mod axis;
mod chart;
pub mod classes;
pub mod curve;
pub mod examples;
pub mod figures;
pub mod markup;
pub mod run;
pub mod stages;
mod study;

use std::collections::BTreeMap;
use std::fmt::Write;

use curve::{View, style};
use markup::{escape, table};
use pipe_spec::Variables;
use run::{attempts_table, missing, results};

use crate::report::compare::flat_settings;
use crate::run::{Notes, Record};

pub use study::StudyPage;

/// No browser loads anything for the page, whatever the texts of a run hold.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// The style of the pages, and of what `pipe ui` shows.
pub const STYLE: &str = include_str!("page.css");

/// The page of these runs. `variables` are those that their pipelines may name; no value of one is shown.
pub fn page(runs: &[Record], variables: &Variables) -> String {
    let (title, body) = match runs {
        [run] => (run.id.clone(), one(run, variables)),
        _ => (format!("{} runs compared", runs.len()), body(runs, &View::default())),
    };
    whole(&title, &body)
}

/// The page of a study.
pub fn study_page(page: &StudyPage<'_>) -> String {
    whole(page.name, &study::body(page))
}

/// The content of such a page.
pub fn study_body(page: &StudyPage<'_>) -> String {
    study::body(page)
}

fn whole(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{} - pipe</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         <footer>written by pipe {}</footer>\n</body>\n</html>\n",
        escape(title),
        env!("CARGO_PKG_VERSION")
    )
}

fn one(run: &Record, variables: &Variables) -> String {
    if let Some(state) = run.state.as_ref().filter(|state| !state.stages().is_empty()) {
        return [
            run::heading(run),
            stages::section(state, &run.stage_answers, |run| format!("../{run}/report.html")),
            run::files(run),
        ]
        .concat();
    }
    [
        run::heading(run),
        classes::section(run),
        examples::mistakes(run),
        examples::retrieved(run),
        examples::generated(run),
        figures::section(run, &View::default()),
        run.state.as_ref().map_or(String::new(), run::attempts),
        run::ranks(run),
        figures::memory_section(run, variables),
        run::machine(run),
        run::warnings(run),
        run::files(run),
    ]
    .concat()
}

/// Several runs, one over the other.
pub fn body(runs: &[Record], view: &View) -> String {
    let mut html = format!("<header><p class=\"kind\">pipe</p><h1>{} runs compared</h1></header>\n", runs.len());
    html.push_str(&legend(runs));
    let of_commands = figures::of_commands(runs);
    let charts = figures::of_all(runs);
    let charts: Vec<&curve::Chart> = charts.iter().chain(of_commands.iter().map(|(chart, _)| chart)).collect();
    let is_smoothed = charts.iter().any(|chart| chart.is_smoothed(view));
    let smoothing = if is_smoothed { format!(" &middot; {}", view.smoothing_note()) } else { String::new() };
    let charts: String = charts.iter().map(|chart| chart.draw(view)).collect();
    writeln!(
        html,
        "<section id=\"curves\"><h2>Curves</h2><p class=\"note\">Circles: eval &middot; dotted, in the colour of a run that \
         was retried: start of its attempts, with their numbers{smoothing}</p>\
         <div class=\"figures\">{charts}</div></section>"
    )
    .ok();
    html.push_str(&figures::metrics(runs, view));
    html.push_str(&outcome(runs));
    html.push_str(&settings(runs));
    for run in runs {
        let table = run.state.as_ref().map_or(String::new(), attempts_table);
        let (id, missing) = (escape(&run.id), missing(run));
        writeln!(html, "<details><summary>Attempts of {id}</summary>{table}</details>{missing}").ok();
    }
    html
}

fn legend(runs: &[Record]) -> String {
    let key = |(index, run): (usize, &Record)| {
        let line = "<svg viewBox=\"0 0 44 10\" aria-hidden=\"true\"><polyline points=\"1,5 43,5\"/></svg>";
        format!("<li class=\"curve {}\">{line}<span>{}</span></li>", style(index), escape(&run.id))
    };
    let keys: String = runs.iter().enumerate().map(key).collect();
    format!("<ul class=\"legend\">{keys}</ul>\n")
}

fn head(runs: &[Record]) -> Vec<&str> {
    std::iter::once("").chain(runs.iter().map(|run| run.id.as_str())).collect()
}

fn outcome(runs: &[Record]) -> String {
    let results: Vec<Vec<(String, String)>> = runs.iter().map(result_rows).collect();
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in results.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let rows: Vec<Vec<String>> = names
        .into_iter()
        .map(|name| {
            let value = |results: &Vec<(String, String)>| {
                results.iter().find(|result| result.0 == *name).map_or("-".to_owned(), |result| escape(&result.1))
            };
            std::iter::once(escape(name)).chain(results.iter().map(value)).collect()
        })
        .collect();
    format!("<section id=\"results\"><h2>Results</h2>{}</section>\n", table(&head(runs), &rows))
}

fn result_rows(run: &Record) -> Vec<(String, String)> {
    let status = run.state.as_ref().map_or("unknown", |state| state.status.name());
    let device = run.history.started.last().map(|(_, started)| ("device".to_owned(), started.device.clone()));
    let Notes { note, tags } = &run.notes;
    let notes = [("tags", tags.join(", ")), ("note", note.clone())];
    let notes = notes.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name.to_owned(), text));
    let first = std::iter::once(("status".to_owned(), status.to_owned())).chain(notes).chain(device);
    first.chain(results(run)).collect()
}

fn settings(runs: &[Record]) -> String {
    let all: Vec<Option<BTreeMap<String, String>>> =
        runs.iter().map(|run| flat_settings(run.resolved.as_deref()?)).collect();
    let mut keys: Vec<&String> = all.iter().flatten().flat_map(BTreeMap::keys).collect();
    keys.sort();
    keys.dedup();
    let known: Vec<&BTreeMap<String, String>> = all.iter().flatten().collect();
    keys.retain(|key| known.iter().any(|settings| settings.get(*key) != known[0].get(*key)));
    let row = |key: &String| {
        let value = |settings: &Option<BTreeMap<String, String>>| match settings {
            None => "?".to_owned(),
            Some(settings) => settings.get(key).map_or("-".to_owned(), |value| escape(value)),
        };
        std::iter::once(format!("<code>{}</code>", escape(key))).chain(all.iter().map(value)).collect()
    };
    let rows: Vec<Vec<String>> = keys.into_iter().map(row).collect();
    let content = match (rows.is_empty(), known.len() == runs.len()) {
        (false, _) => table(&head(runs), &rows),
        (true, true) => "<p class=\"none\">None: these runs have the same settings.</p>".to_owned(),
        (true, false) => "<p class=\"none\">Not known: there is no resolved.yaml that can be read.</p>".to_owned(),
    };
    format!("<section id=\"settings\"><h2>Settings that differ</h2>{content}</section>\n")
}
