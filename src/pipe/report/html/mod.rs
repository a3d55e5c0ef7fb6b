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
        return [run::heading(run), stages::section(state, &run.stage_answers), run::files(run)].concat();
    }
    [
        run::heading(run),
        classes::section(run),
        examples::mistakes(run),
        examples::retrieved(run),
        examples::generated(run),
        figures::section(run),
        run.state.as_ref().map_or(String::new(), run::attempts),
        run::ranks(run),
        memory::section(run, variables),
        run::machine(run),
        run::warnings(run),
        run::files(run),
    ]
    .concat()
}
