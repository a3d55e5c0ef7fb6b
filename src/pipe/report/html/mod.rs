//! `report.html`: a run, several runs or a study on one page that loads nothing: no script, curves as inline SVG. Pure: a
//! record of a run's folder comes in, a page goes out.

mod axis;
mod chart;
mod classes;
mod compare;
mod curve;
mod examples;
mod figures;
mod markup;
mod memory;
pub mod run;
mod stages;
mod study;

use markup::escape;
use pipe_spec::Variables;

use crate::run::Record;

pub use study::StudyPage;

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
        return [run::heading(run), stages::section(state), run::files(run)].concat();
    }
    let charts = if run.history.metrics.is_empty() {
        figures::of_one(run)
    } else {
        figures::of_commands(std::slice::from_ref(run))
    };
    let charts: String = charts.iter().map(curve::Chart::svg).collect();
    let eval = if run.history.evals.is_empty() {
        ""
    } else {
        "<span class=\"curve c1\"><svg viewBox=\"0 0 14 10\" aria-hidden=\"true\">\
         <circle cx=\"7\" cy=\"5\" r=\"3.5\"/></svg> eval</span> &middot; "
    };
    let key = format!(
        "<p class=\"note\">{eval}dotted: start of an attempt, with its number &middot; {}</p>",
        curve::RUNNING_MEAN_NOTE
    );
    [
        run::heading(run),
        run.state.as_ref().map_or(String::new(), run::attempts),
        run::ranks(run),
        format!("<section id=\"curves\"><h2>Curves</h2>{key}<div class=\"figures\">{charts}</div></section>\n"),
        figures::metrics(std::slice::from_ref(run)),
        classes::section(run),
        examples::retrieved(run),
        examples::generated(run),
        memory::section(run, variables),
        run::warnings(run),
        run::files(run),
    ]
    .concat()
}
