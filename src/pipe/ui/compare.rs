//! Two to twenty runs, one over the other: curves, results, settings that differ, and for two what `pipe diff` says.

use pipe_spec::RunFolder;
use pipe_spec::text::count;

use super::Ui;
use super::page::{NotFound, Page, Params, Parts, encode, run_address};
use super::run_page::{controls, view};
use crate::report::compare::Comparison;
use crate::report::html;
use crate::report::html::markup::{escape, table};
use crate::run::Record;
use crate::run::lock::Effect;

/// Runs that are laid over one another, at most.
const MOST: usize = 20;

pub fn page(ui: &Ui, params: &Params, mut parts: Parts) -> Result<String, NotFound> {
    let mut keys: Vec<&str> = params.all("run").collect();
    keys.sort_unstable();
    keys.dedup();
    if !(2..=MOST).contains(&keys.len()) {
        return Err(NotFound(format!("Select two to {MOST} runs in the list of all runs, then compare them.")));
    }
    let rows = keys.iter().map(|key| ui.row(key)).collect::<Result<Vec<_>, _>>()?;
    parts.fixed(|| "<p class=\"crumb\"><a href=\"./\">All runs</a></p>".to_owned());
    parts.fixed(|| {
        let link = |key: &&str| format!("<li><a href=\"{}\">{}</a></li>", escape(&run_address(key)), escape(key));
        format!("<ul class=\"links\">{}</ul>", keys.iter().map(link).collect::<String>())
    });
    parts.fixed(|| controls(params));
    parts.live("curves", || {
        let records: Vec<Record> = rows.iter().map(|row| Record::read(&RunFolder::new(&row.path))).collect();
        html::body(&records, &view(params))
    });
    if let [first, second] = &rows[..]
        && first.work.is_single()
        && second.work.is_single()
    {
        parts.fixed(|| verdict(&Comparison::read(&RunFolder::new(&first.path), &RunFolder::new(&second.path))));
    }
    let events = keys.iter().map(|key| format!("run={}", encode(key))).collect::<Vec<_>>().join("&");
    Ok(Page {
        title: &format!("{} compared", count(keys.len(), "run")),
        entry: "Runs",
        events: Some(format!("?{events}")),
    }
    .render(ui, parts))
}

/// The sentences of `pipe diff`, and its table of locks.
fn verdict(found: &Comparison) -> String {
    let mut sentences = vec![found.curves.sentence()];
    sentences.push(crate::report::compare::Files::sentence(found.model.as_ref()));
    let lock = match &found.lock {
        None => "<p class=\"none\">Not both runs have a lock that can be read.</p>".to_owned(),
        Some(same) if same.is_empty() => "<p class=\"none\">They ran on the same: their locks agree.</p>".to_owned(),
        Some(differences) => {
            let effect = |effect: Effect| match effect {
                Effect::Forbids => "another computation",
                Effect::Rounding => "other rounding",
                Effect::None => "",
            };
            let rows: Vec<Vec<String>> = differences
                .iter()
                .map(|one| {
                    vec![escape(&one.what), escape(&one.first), escape(&one.second), effect(one.effect).to_owned()]
                })
                .collect();
            table(&["lock", &found.runs[0], &found.runs[1], "effect"], &rows)
        }
    };
    let sentences: String = sentences.iter().map(|sentence| format!("<li>{}</li>", escape(sentence))).collect();
    format!("<section id=\"verdict\"><h2>What pipe diff says</h2><ul>{sentences}</ul>{lock}</section>\n")
}
