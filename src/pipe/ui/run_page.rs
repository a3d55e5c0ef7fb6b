//! The page of one run: the answer first, curves that grow, attempts and why, examples, the log, and the commands.

use pipe_spec::pipeline::{CommandLine, WorkKind};
use pipe_spec::{RunState, Status};

use super::Ui;
use super::acts;
use super::folders::key_beside;
use super::index::Row;
use super::log;
use super::notes;
use super::page::{NotFound, Page, Parts, meter, run_address};
use super::predict_page;
use super::request::{Params, encode};
use crate::execute::study::OpenedStudy;
use crate::report::html::curve::{Smoothing, View};
use crate::report::html::markup::escape;
use crate::report::html::{classes, examples, figures, memory, run, stages};
use crate::report::{duration, grouped, span};
use crate::run::{Listed, Record};

pub fn page(ui: &Ui, key: &str, params: &Params, parts: Parts) -> Result<String, NotFound> {
    let row = ui.row(key)?;
    let attempt = row.attempts as u32;
    if attempt > 0 {
        ui.changes.watch_attempt(key, pipe_spec::RunFolder::new(&row.path).attempt(attempt).path());
    }
    Ok(ui.opened.with(&row.path, |record| render(ui, &row, record, params, parts)))
}

fn render(ui: &Ui, row: &Row, record: &Record, params: &Params, mut parts: Parts) -> String {
    let view = view(params);
    let state = record.state.as_ref();
    parts.fixed(|| "<p class=\"crumb\"><a href=\"./\">All runs</a></p>".to_owned());
    let is_study = row.work == WorkKind::Study;
    parts.live("head", || if is_study { study(row) } else { run::heading(record) + &now(row, state) });
    parts.live("acts", || predict_page::link(ui, row) + &acts::buttons(ui, row));
    parts.fixed(|| notes::form(ui, row));
    if let Some(state) = state.filter(|state| !state.stages().is_empty()) {
        parts.live("steps", || stages::section(state, &record.stage_answers, beside(row)));
    } else if !is_study {
        of_training(ui, record, params, &view, &mut parts);
        parts.live("log", || log::section(row, state, params));
    }
    parts.live("files", || run::files(record));
    parts.fixed(|| commands(ui, row));
    let events = Some(format!("?run={}", encode(&row.key)));
    Page { title: &row.key, entry: "", events }.render(ui, parts)
}

fn of_training(ui: &Ui, record: &Record, params: &Params, view: &View, parts: &mut Parts) {
    parts.fixed(|| controls(params));
    parts.live("curves", || figures::section(record, view));
    parts.live("attempts", || record.state.as_ref().map_or(String::new(), run::attempts));
    parts.live("examples", || {
        [classes::section(record), examples::mistakes(record), examples::retrieved(record), examples::generated(record)]
            .concat()
    });
    parts.live("machine", || {
        [run::ranks(record), memory::section(record, &ui.variables), run::machine(record), run::warnings(record)]
            .concat()
    });
}

/// The view that the address asks for.
pub fn view(params: &Params) -> View {
    let steps = params.number("from").or(params.number("to")).map(|_| {
        let from = params.number("from").unwrap_or(0.0).clamp(0.0, 1e14);
        (from, params.number("to").unwrap_or(f64::MAX).clamp(from + 1.0, 1e15))
    });
    let smoothing = smoothing(params).map_or(Smoothing::Mean, Smoothing::Exponential);
    View { steps, smoothing, values: true }
}

/// The weight of the exponential mean; absent for the usual curves.
fn smoothing(params: &Params) -> Option<f64> {
    params.number("smooth").map(|weight| weight.clamp(0.0, Smoothing::MOST))
}

/// The choice of steps and smoothing; with a script, a stretch can be drawn with the pointer too.
pub fn controls(params: &Params) -> String {
    let smooth = smoothing(params).map_or(String::new(), |weight| weight.to_string());
    let slider = if smooth.is_empty() { "0" } else { smooth.as_str() };
    let number = |name: &str| params.number(name).map_or(String::new(), |number| format!("{number:.0}"));
    let hidden: String = params
        .all("run")
        .map(|run| format!("<input type=\"hidden\" name=\"run\" value=\"{}\">", escape(run)))
        .collect();
    format!(
        "<form class=\"filter view\" method=\"get\" data-auto data-here>{hidden}\
         <label>From step <input type=\"number\" name=\"from\" min=\"0\" value=\"{1}\"></label>\
         <label>to step <input type=\"number\" name=\"to\" min=\"0\" value=\"{2}\"></label>\
         <label>Smoothing <input type=\"number\" name=\"smooth\" min=\"0\" max=\"{0}\" step=\"any\" value=\"{smooth}\" \
         placeholder=\"auto\" title=\"0: off; closer to 1: smoother; empty: a running mean over long curves\">\
         <input type=\"range\" class=\"with-script\" data-sets=\"smooth\" min=\"0\" max=\"{0}\" step=\"0.001\" value=\"{slider}\" \
         aria-label=\"Smoothing\"></label>\
         <button type=\"submit\">Show</button> <small class=\"with-script\">Drag over a curve to zoom; double-click shows all. \
         With the keyboard: arrows move, + and - zoom, 0 shows all.</small></form>",
        Smoothing::MOST,
        number("from"),
        number("to")
    )
}

/// How far a run is that has not ended.
fn now(row: &Row, state: Option<&RunState>) -> String {
    let Some(state) = state.filter(|state| state.status == Status::Running) else { return String::new() };
    let found = &row.progress;
    let doing =
        state.doing.as_deref().map_or(String::new(), |doing| format!("<p class=\"doing\">{}</p>", escape(doing)));
    let (Some(steps), step) = (found.steps, found.step.unwrap_or(0)) else { return doing };
    let label = format!("step {} of {}", grouped(step), grouped(steps));
    let left = found.left.map_or(String::new(), |left| format!(" &middot; {} left", span(left)));
    let ran = duration(found.seconds);
    format!(
        "{doing}<p class=\"now\">{}<span>{label}{left} &middot; {ran} so far</span></p>",
        meter(step as f64 / steps.max(1) as f64, "wide", &label)
    )
}

/// The addresses of the pages of runs beside this one.
fn beside(row: &Row) -> impl Fn(&str) -> String {
    |run| run_address(&key_beside(&row.key, run))
}

/// Bytes of the storage of a study that is read.
const MAX_STORAGE: u64 = 64 << 20;

/// History, importances, parallel coordinates, fronts, memory and trials of a study.
fn study(row: &Row) -> String {
    let found = Listed::read(&row.path).ok_or_else(|| "its folder cannot be read".to_owned());
    let opened = found.and_then(|found| OpenedStudy::open_up_to(MAX_STORAGE, found).map_err(|error| error.to_string()));
    match opened {
        Ok(opened) => opened.view().body(&beside(row), row.notes.clone()),
        Err(why) => format!("<header><h1>{}</h1></header><p class=\"missing\">{}</p>", escape(&row.key), escape(&why)),
    }
}

/// The commands for this run.
fn commands(ui: &Ui, row: &Row) -> String {
    if !row.is_own {
        let why = "Its folder has another name than the run in it, so that commands do not find it.";
        return format!("<p class=\"missing\">{why}</p>");
    }
    if let Some(address) = &row.bucket {
        let command = format!("pipe resume {}", CommandLine::quoted(address));
        return format!(
            "<details><summary>Commands <small>takes the run over, where it has stopped</small></summary><pre>{}</pre></details>",
            escape(&command)
        );
    }
    let id = row.id();
    let commands = [
        format!("pipe show {id}"),
        format!("pipe logs {id} --follow"),
        format!("pipe resume {id}"),
        format!("pipe reproduce {id}"),
        format!("pipe predict {id} --data rows.jsonl --out predictions.jsonl"),
        format!("pipe report {id} --out report.html"),
    ];
    let environment = acts::environment(ui, row);
    let commands = commands.map(|command| format!("{environment}{command}"));
    let text = escape(&commands.join("\n"));
    format!("<details><summary>Commands <small>for a terminal</small></summary><pre>{text}</pre></details>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_an_address() {
        let steps = |query: &str| view(&Params::read(query)).steps;
        assert_eq!(steps(""), None);
        assert_eq!(steps("from=10&to=20"), Some((10.0, 20.0)));
        assert_eq!(steps("to=20"), Some((0.0, 20.0)));
        assert_eq!(steps("from=20&to=10"), Some((20.0, 21.0)));
        assert_eq!(steps("from=-5&to=NaN"), Some((0.0, 1e15)));
        let smoothing = |query: &str| view(&Params::read(query)).smoothing;
        assert_eq!((smoothing(""), smoothing("smooth=much")), (Smoothing::Mean, Smoothing::Mean));
        assert_eq!(
            (smoothing("smooth=0.9"), smoothing("smooth=7")),
            (Smoothing::Exponential(0.9), Smoothing::Exponential(0.999))
        );
    }
}
