//! The top of the page: what the study is, how far it is, and its best trials.

use std::fmt::Write;

use pipe_search::Trial;
use pipe_spec::text::human_bytes;
use serde_json::Value;

use super::StudyPage;
use super::attributes::{number as attribute, seconds};
use super::outcome::Outcome;
use super::ranking::Ranking;
use super::text::{better, number, setting, title};
use super::trials::run_link;
use crate::report::html::escape::escape;
use crate::report::html::table;
use crate::report::{bounded, duration};

/// Trials of a Pareto front that the heading shows.
const MOST: usize = 10;
/// Characters of a setting.
const SETTING: usize = 60;

pub fn heading(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    // Only a known status is a class.
    let known = ["finished", "failed", "stopped", "running"].into_iter().find(|known| *known == page.status);
    let mut facts: Vec<String> = Vec::new();
    facts.extend((!page.budget.is_empty()).then(|| escape(&page.budget)));
    facts
        .extend(page.objectives.iter().map(|(metric, direction)| format!("{}: {}", title(metric), better(*direction))));
    let mut html = format!(
        "<header><p class=\"kind\">pipe tune</p><h1>{}</h1><p><span class=\"tag {}\">{}</span> {}</p><dl class=\"tiles\">",
        escape(page.name),
        known.unwrap_or_default(),
        escape(page.status),
        facts.join(" &middot; ")
    );
    for (name, value) in counts(page.trials) {
        write!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>").ok();
    }
    writeln!(html, "</dl></header>").ok();
    html.push_str(&best(page, ranking));
    html
}

/// How many trials ended how.
fn counts(trials: &[Trial]) -> Vec<(&'static str, String)> {
    let mut counts = vec![("trials", trials.len().to_string())];
    for outcome in Outcome::ALL {
        let count = trials.iter().filter(|trial| Outcome::of(trial) == outcome).count();
        let share = match outcome == Outcome::Infeasible && count > 0 {
            true => format!(" <small>{:.0}%</small>", count as f64 / trials.len() as f64 * 100.0),
            false => String::new(),
        };
        if count > 0 || !matches!(outcome, Outcome::Running | Outcome::Waiting) {
            counts.push((outcome.name(), format!("{count}{share}")));
        }
    }
    counts
}

fn best(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    let title = if page.objectives.len() > 1 { "Best trials: the Pareto front" } else { "Best trial" };
    let mut html = format!("<section id=\"best\"><h2>{title}</h2>");
    match (page.objectives.len(), ranking.best.as_slice()) {
        (_, []) => {
            let why = if page.trials.is_empty() { "No trial has begun." } else { "No trial is complete." };
            write!(html, "<p class=\"none\">{why}</p>").ok();
        }
        (0 | 1, [trial, ..]) => html.push_str(&one(page, trial)),
        (_, front) => html.push_str(&several(page, front)),
    }
    if let Some(file) = &page.best_file {
        let whose =
            if ranking.best.len() > 1 { "Train with the settings of one of them" } else { "Train with these settings" };
        write!(html, "<p>{whose}: <code>pipe run {}</code></p>", escape(&shell_word(file))).ok();
    }
    html.push_str("</section>\n");
    html
}

/// The value and the settings of the best trial.
fn one(page: &StudyPage<'_>, trial: &Trial) -> String {
    let mut facts: Vec<String> = vec![format!("trial {}", trial.number)];
    facts.extend(seconds(trial).map(duration));
    facts.extend(attribute(trial, "peak_memory").map(|bytes| format!("peak {}", human_bytes(bytes as u64))));
    facts.extend(run_link(trial));
    let mut html = "<div class=\"winner\"><div>".to_owned();
    for ((metric, _), value) in page.objectives.iter().zip(&trial.values) {
        write!(html, "<p class=\"note\">{}</p><p class=\"value\">{}</p>", title(metric), number(*value)).ok();
    }
    write!(html, "<p class=\"note\">{}</p></div><dl>", facts.join(" &middot; ")).ok();
    for (name, value) in settings(trial) {
        write!(html, "<div><dt>{name}</dt><dd><code>{value}</code></dd></div>").ok();
    }
    html.push_str("</dl></div>");
    html
}

/// A row for each trial of the front.
fn several(page: &StudyPage<'_>, front: &[&Trial]) -> String {
    let metrics: Vec<String> = page.objectives.iter().map(|objective| bounded(&objective.0, 80)).collect();
    let mut head = vec!["trial"];
    head.extend(metrics.iter().map(String::as_str));
    head.push("settings");
    let row = |trial: &&Trial| {
        let mut cells = vec![trial.number.to_string()];
        cells.extend(trial.values.iter().map(|value| format!("<b>{}</b>", number(*value))));
        let short = |(name, value): (&String, &Value)| {
            format!("<span>{} <code>{}</code></span>", title(name), setting(Some(value)))
        };
        let settings: Vec<String> = trial.point.iter().map(short).collect();
        cells.push(format!("<div class=\"settings\">{}</div>", settings.join(" ")));
        cells
    };
    let rows: Vec<Vec<String>> = front.iter().take(MOST).map(row).collect();
    let more = match front.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!("<p class=\"note\">{more} more are first in the table of all trials.</p>"),
    };
    format!("{}{more}", table(&head, &rows))
}

/// Names and values as they can be copied into a pipeline, escaped.
fn settings(trial: &Trial) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let setting = |(name, value): (&String, &Value)| (title(name), escape(&bounded(&text(value), SETTING)));
    trial.point.iter().map(setting).collect()
}

/// A file as a word of a command line.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::samples::{Sample, infeasible, trial};
    use pipe_search::Direction;

    #[test]
    fn counts_and_the_share_that_cannot_fit() {
        let counts = counts(&[trial(0, 0.5), infeasible(1), infeasible(2), trial(3, 0.5)]);
        let text: Vec<String> = counts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        assert_eq!(text, ["trials 4", "complete 2", "pruned 0", "infeasible 2 <small>50%</small>", "failed 0"]);
    }

    #[test]
    fn the_best_trial_and_its_command() {
        let sample = Sample::of(vec![trial(0, 0.5), trial(1, 0.25)]);
        let page = StudyPage { best_file: Some("a dir/best's.yaml".to_owned()), ..sample.page() };
        let html = heading(&page, &Ranking::new(page.trials, page.objectives));
        assert!(
            html.contains("trial 1") && html.contains(">0.2500<") && html.contains("<dt>train.batch</dt>"),
            "{html}"
        );
        assert!(html.contains("pipe run &#39;a dir/best&#39;\\&#39;&#39;s.yaml&#39;"), "{html}");
        assert!(html.contains("class=\"tag running\""), "{html}");
        assert_eq!((shell_word("best.yaml"), shell_word("")), ("best.yaml".to_owned(), "''".to_owned()));
    }

    #[test]
    fn a_front_is_a_table() {
        let mut trials: Vec<Trial> = (0..15).map(|number| trial(number, number as f64)).collect();
        trials.iter_mut().for_each(|trial| trial.values.push(trial.number as f64));
        let mut sample = Sample::of(trials);
        sample.objectives.push(("accuracy".to_owned(), Direction::Maximize));
        let page = sample.page();
        let html = heading(&page, &Ranking::new(page.trials, page.objectives));
        assert_eq!(html.matches("<tr>").count(), 11, "{html}");
        assert!(html.contains("5 more are first in the table"), "{html}");
    }
}
