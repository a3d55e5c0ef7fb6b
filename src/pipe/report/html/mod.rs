//! `report.html`: a run, or several, on one page that needs nothing from anywhere: no script, curves as inline SVG. Pure:
//! what is in a run's folder comes in, a page goes out.

mod attempts;
mod calibration;
mod classes;
mod compare;
mod confusion;
mod curve;
mod escape;
mod figures;
mod memory;
mod ranks;
pub mod results;
mod retrieval;
mod scale;
mod sections;
mod steps;
mod study;
mod texts;
mod thin;

use escape::escape;
use pipe_spec::Variables;

use crate::run::Record;

pub use study::StudyPage;

/// The legend of long curves.
const RUNNING_MEAN_NOTE: &str = "in long runs every step is faint and the running mean is strong";

/// No browser loads anything for the page, whatever the texts of a run hold.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

const STYLE: &str = include_str!("page.css");

/// The page of these runs. `variables` are those that their pipelines may name; no value of one is shown.
pub fn page(runs: &[Record], variables: &Variables) -> String {
    let (title, body) = match runs {
        [run] => (run.id.clone(), one(run, variables)),
        _ => (format!("{} runs compared", runs.len()), compare::body(runs)),
    };
    whole(&title, &body)
}

/// The page of a study.
pub fn study_page(page: &StudyPage<'_>) -> String {
    whole(page.name, &study::body(page))
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
        return [sections::heading(run), steps::section(state), sections::files(run)].concat();
    }
    let charts = match run.history.metrics.is_empty() {
        true => figures::of_one(run),
        false => figures::of_commands(std::slice::from_ref(run)),
    };
    let charts: String = charts.iter().map(curve::Chart::svg).collect();
    let eval = match run.history.evals.is_empty() {
        true => "",
        false => {
            "<span class=\"curve c1\"><svg viewBox=\"0 0 14 10\" aria-hidden=\"true\">\
                  <circle cx=\"7\" cy=\"5\" r=\"3.5\"/></svg> eval</span> &middot; "
        }
    };
    let key = format!(
        "<p class=\"note\">{eval}dotted: where an attempt begins, with its number &middot; {RUNNING_MEAN_NOTE}</p>"
    );
    [
        sections::heading(run),
        run.state.as_ref().map_or(String::new(), attempts::section),
        ranks::section(run),
        format!("<section id=\"curves\"><h2>Curves</h2>{key}<div class=\"figures\">{charts}</div></section>\n"),
        metrics(std::slice::from_ref(run)),
        classes::section(run),
        retrieval::section(run),
        texts::section(run),
        memory::section(run, variables),
        sections::warnings(run),
        sections::files(run),
    ]
    .concat()
}

/// A curve for each metric of the evaluations; nothing where there are none.
fn metrics(runs: &[Record]) -> String {
    let charts: String = figures::of_metrics(runs).iter().map(curve::Chart::svg).collect();
    match charts.is_empty() {
        true => String::new(),
        false => format!(
            "<section id=\"metrics\"><h2>Evaluation metrics</h2><div class=\"figures small\">{charts}</div></section>\n"
        ),
    }
}

/// A share such as 0.8333 as text; a number that is none has no text.
fn share(value: Option<f64>) -> String {
    let value = value.filter(|value| (0.0..=1.0).contains(value));
    value.map_or("-".to_owned(), |value| format!("{value:.3}"))
}

/// A table that scrolls within itself. The head is text, the cells are HTML.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: String = head.iter().map(|cell| format!("<th scope=\"col\">{}</th>", escape(cell))).collect();
    let row = |cells: &Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr>{cells}</tr>")
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<div class=\"table\" tabindex=\"0\"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
}
