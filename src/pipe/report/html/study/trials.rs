//! The trials as text: the top of the page with the best ones, and the table of all of them.

use std::fmt::Write;

use pipe_search::{Domain, Trial};
use pipe_spec::text::{count, human_bytes};
use serde_json::Value;

use super::StudyPage;
use super::ranking::{Outcome, Ranking, attribute, flag, same_as, seconds, text_attribute};
use crate::report::html::markup::{better, end_of, escape, number, prose, setting, table, title};
use crate::report::html::run;
use crate::report::{bounded, duration};

/// Trials of a Pareto front that the heading shows.
const MOST_OF_FRONT: usize = 10;
/// Characters of a setting.
const SETTING_LETTERS: usize = 60;

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
    writeln!(html, "</dl>{}</header>", run::notes(&page.notes)).ok();
    html.push_str(&best(page, ranking));
    html
}

/// The number of trials with each outcome.
fn counts(trials: &[Trial]) -> Vec<(&'static str, String)> {
    let mut counts = vec![("trials", trials.len().to_string())];
    for outcome in Outcome::ALL {
        let count = trials.iter().filter(|trial| Outcome::of(trial) == outcome).count();
        let share = if outcome == Outcome::Infeasible && count > 0 {
            format!(" <small>{:.0}%</small>", count as f64 / trials.len() as f64 * 100.0)
        } else {
            String::new()
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
    facts.extend(run_link(trial, page.link));
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
    let rows: Vec<Vec<String>> = front.iter().take(MOST_OF_FRONT).map(row).collect();
    let more = match front.len().saturating_sub(MOST_OF_FRONT) {
        0 => String::new(),
        more => format!("<p class=\"note\">{more} more are first in the table of all trials.</p>"),
    };
    format!("{}{more}", table(&head, &rows))
}

/// Names and values as they can be copied into a pipeline, escaped.
fn settings(trial: &Trial) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let setting = |(name, value): (&String, &Value)| (title(name), escape(&bounded(&text(value), SETTING_LETTERS)));
    trial.point.iter().map(setting).collect()
}

/// A file as a word of a command line.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Rows of the table, and cells.
const MOST_ROWS: usize = 500;
const MOST_CELLS: usize = 15_000;
/// Characters of a note.
const NOTE: usize = 300;
/// Characters of a name in the head, and of a run.
const HEAD_LETTERS: usize = 30;
const RUN: usize = 60;

pub fn section(page: &StudyPage<'_>, ranking: &Ranking<'_>, parameters: &[(String, Domain)]) -> String {
    if page.trials.is_empty() {
        return String::new();
    }
    let names = page.objectives.iter().map(|objective| &objective.0).chain(parameters.iter().map(|one| &one.0));
    let names: Vec<String> = names.map(|name| end_of(name, HEAD_LETTERS)).collect();
    let mut head = vec!["trial", "state"];
    head.extend(names.iter().map(String::as_str));
    head.extend(["peak", "time", "attempts", "run", "note"]);
    let most = (MOST_CELLS / head.len()).clamp(20, MOST_ROWS);
    let order = order(page.trials, ranking);
    let rows: Vec<Vec<String>> = order.iter().take(most).map(|trial| row(page, ranking, parameters, trial)).collect();
    let more = match order.len().saturating_sub(most) {
        0 => String::new(),
        more => format!(
            "<p class=\"note\">Not shown: {}. <code>pipe tune export</code> writes all of them.</p>",
            count(more, "more trial")
        ),
    };
    format!(
        "<section id=\"trials\"><h2>Trials</h2><p class=\"note\">The best first; after them those without a value, by \
         number.</p>{}{more}</section>\n",
        table(&head, &rows)
    )
}

/// The ranked trials, the best first, then the others by their number.
fn order<'a>(trials: &'a [Trial], ranking: &Ranking<'a>) -> Vec<&'a Trial> {
    let mut others: Vec<&Trial> = trials.iter().filter(|trial| ranking.level(trial).is_none()).collect();
    others.sort_by_key(|trial| trial.number);
    ranking.ranked.iter().copied().chain(others).collect()
}

fn row(page: &StudyPage<'_>, ranking: &Ranking<'_>, parameters: &[(String, Domain)], trial: &Trial) -> Vec<String> {
    let known = |text: Option<String>| text.unwrap_or("-".to_owned());
    let is_best = ranking.is_best(trial);
    let strong = |text: String| if is_best { format!("<b>{text}</b>") } else { text };
    let mut cells = vec![strong(trial.number.to_string()), Outcome::of(trial).tag()];
    let value = |index: usize| trial.values.get(index).map(|value| strong(number(*value)));
    cells.extend((0..page.objectives.len()).map(|index| known(value(index))));
    cells.extend(parameters.iter().map(|(name, _)| setting(trial.point.get(name))));
    cells.push(known(peak(trial)));
    cells.push(known(seconds(trial).map(duration)));
    cells.push(known(attribute(trial, "attempts").map(|attempts| attempts.to_string())));
    cells.push(known(run_link(trial, page.link)));
    cells.push(known(note(trial).map(|note| prose(&note))));
    cells
}

fn peak(trial: &Trial) -> Option<String> {
    let bytes = |name: &str| attribute(trial, name).map(|bytes| human_bytes(bytes as u64));
    bytes("peak_memory").or_else(|| bytes("predicted_peak").map(|bytes| format!("{bytes} <small>predicted</small>")))
}

/// A link to the page of its run; only the name where that is not the name of a folder.
pub fn run_link(trial: &Trial, link: &dyn Fn(&str) -> String) -> Option<String> {
    let run = text_attribute(trial, "run")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_folder = run.starts_with(|c: char| c.is_ascii_alphanumeric()) && run.chars().all(plain);
    let name = escape(&bounded(run, RUN));
    Some(if is_folder { format!("<a href=\"{}\">{name}</a>", escape(&link(run))) } else { name })
}

/// Why it ended as it did, in a few words, escaped.
fn note(trial: &Trial) -> Option<String> {
    let mut notes: Vec<String> = Vec::new();
    notes.extend(same_as(trial).map(|other| format!("same training as trial {other}, values taken over")));
    let bytes = |name: &str| attribute(trial, name).map(|bytes| human_bytes(bytes as u64));
    if flag(trial, "infeasible") {
        notes.push(match (bytes("predicted_peak"), bytes("capacity")) {
            (Some(peak), Some(capacity)) => format!("cannot fit: needs {peak} of {capacity}"),
            (Some(peak), None) => format!("cannot fit: needs {peak}"),
            _ => "cannot fit".to_owned(),
        });
    } else if !trial.is_feasible() {
        notes.push(format!("outside a constraint by {}", number(trial.violation())));
    }
    let at = trial.user_attrs.get("pruned_at").and_then(Value::as_u64);
    notes.extend(at.map(|step| format!("pruned at step {step}")));
    let ran_out = trial.user_attrs.get("oom").is_some_and(|oom| !oom.is_null() && *oom != Value::Bool(false));
    notes.extend(ran_out.then(|| "ran out of memory".to_owned()));
    notes.extend(text_attribute(trial, "error").map(|error| escape(&bounded(error.trim(), NOTE))));
    (!notes.is_empty()).then(|| notes.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::parameters;
    use crate::report::html::study::samples::{Sample, infeasible, trial};
    use pipe_search::{Direction, TrialState};
    use serde_json::json;

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

    fn html(trials: Vec<Trial>) -> String {
        let sample = Sample::of(trials);
        let page = sample.page();
        section(&page, &Ranking::new(page.trials, page.objectives), &parameters(&page))
    }

    #[test]
    fn the_best_first_and_why_others_ended() {
        let mut trials = vec![trial(0, 0.5), infeasible(1), trial(2, 0.25), trial(3, 0.0), trial(4, 0.5)];
        let attributes = [("error", json!("<b>boom")), ("oom", json!({"step": 3})), ("attempts", json!(3))];
        trials[3].user_attrs = attributes.map(|(name, value)| (name.to_owned(), value)).into();
        (trials[3].state, trials[3].values) = (TrialState::Failed, Vec::new());
        trials[4].user_attrs = [("same_as".to_owned(), json!(0)), ("run".to_owned(), json!("2024-sweep.1"))].into();
        let html = html(trials);
        let rows: Vec<&str> = html.split("<tr>").skip(2).collect();
        assert_eq!(rows.len(), 5);
        assert!(rows[0].starts_with("<td><b>2</b></td>") && rows[1].starts_with("<td>0</td>"), "{html}");
        assert!(rows[2].contains("same training as trial 0") && rows[2].contains("../2024-sweep.1/report.html"));
        assert!(rows[3].contains("cannot fit: needs 48.0 GiB of 24.0 GiB") && rows[3].contains("tag oom"));
        assert!(rows[4].contains("ran out of memory; &lt;b&gt;boom") && rows[4].contains("<td>3</td>"), "{}", rows[4]);
    }

    #[test]
    fn at_most_five_hundred_rows() {
        let html = html((0..502).map(|number| trial(number, 1.0)).collect());
        assert_eq!(html.matches("<tr>").count(), MOST_ROWS + 1);
        assert!(html.contains("Not shown: 2 more trials.") && html.contains("pipe tune export"), "{html}");
    }

    #[test]
    fn only_folders_are_links() {
        let mut one = trial(0, 0.5);
        for (run, is_link) in [("a-b_1.2", true), ("../x", false), ("javascript:alert(1)", false), ("", false)] {
            one.user_attrs.insert("run".to_owned(), json!(run));
            assert_eq!(run_link(&one, &str::to_owned).is_some_and(|text| text.contains("<a ")), is_link, "{run}");
        }
    }
}
