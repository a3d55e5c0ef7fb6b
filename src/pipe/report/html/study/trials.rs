//! The table of all trials.

use pipe_search::{Domain, Trial};
use pipe_spec::text::{count, human_bytes};
use serde_json::Value;

use super::StudyPage;
use super::attributes::{flag, number as attribute, same_as, seconds, text};
use super::outcome::Outcome;
use super::ranking::Ranking;
use super::text::{end_of, number, setting};
use crate::report::html::escape::escape;
use crate::report::html::table;
use crate::report::{bounded, duration};

/// Rows of the table, and cells.
const MOST: usize = 500;
const MOST_CELLS: usize = 15_000;
/// Characters of a note.
const NOTE: usize = 300;
/// Characters of a name in the head, and of a run.
const HEAD: usize = 30;
const RUN: usize = 60;

pub fn section(page: &StudyPage<'_>, ranking: &Ranking<'_>, parameters: &[(String, Domain)]) -> String {
    if page.trials.is_empty() {
        return String::new();
    }
    let names = page.objectives.iter().map(|objective| &objective.0).chain(parameters.iter().map(|one| &one.0));
    let names: Vec<String> = names.map(|name| end_of(name, HEAD)).collect();
    let mut head = vec!["trial", "state"];
    head.extend(names.iter().map(String::as_str));
    head.extend(["peak", "time", "attempts", "run", "note"]);
    let most = (MOST_CELLS / head.len()).clamp(20, MOST);
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

/// Those that are ranked, the best first, then the others by their number.
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
    cells.push(known(run_link(trial)));
    cells.push(known(note(trial).map(|note| format!("<div class=\"prose\">{note}</div>"))));
    cells
}

fn peak(trial: &Trial) -> Option<String> {
    let bytes = |name: &str| attribute(trial, name).map(|bytes| human_bytes(bytes as u64));
    bytes("peak_memory").or_else(|| bytes("predicted_peak").map(|bytes| format!("{bytes} <small>predicted</small>")))
}

/// The page of its run; only the name where that is none of a folder.
pub fn run_link(trial: &Trial) -> Option<String> {
    let run = text(trial, "run")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_folder = run.starts_with(|c: char| c.is_ascii_alphanumeric()) && run.chars().all(plain);
    let name = escape(&bounded(run, RUN));
    Some(if is_folder { format!("<a href=\"../{}/report.html\">{name}</a>", escape(run)) } else { name })
}

/// Why it ended as it did, in a few words, escaped.
fn note(trial: &Trial) -> Option<String> {
    let mut notes: Vec<String> = Vec::new();
    notes.extend(same_as(trial).map(|other| format!("same training as trial {other}, values taken over")));
    let bytes = |name: &str| attribute(trial, name).map(|bytes| human_bytes(bytes as u64));
    if flag(trial, "infeasible") {
        notes.push(match (bytes("predicted_peak"), bytes("capacity")) {
            (Some(peak), Some(capacity)) => format!("cannot fit: needs {peak}, and there is {capacity}"),
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
    notes.extend(text(trial, "error").map(|error| escape(&bounded(error.trim(), NOTE))));
    (!notes.is_empty()).then(|| notes.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::parameters;
    use crate::report::html::study::samples::{Sample, infeasible, trial};
    use pipe_search::TrialState;
    use serde_json::json;

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
        assert!(rows[3].contains("cannot fit: needs 48.0 GiB, and there is 24.0 GiB") && rows[3].contains("tag oom"));
        assert!(rows[4].contains("ran out of memory; &lt;b&gt;boom") && rows[4].contains("<td>3</td>"), "{}", rows[4]);
    }

    #[test]
    fn at_most_five_hundred_rows() {
        let html = html((0..502).map(|number| trial(number, 1.0)).collect());
        assert_eq!(html.matches("<tr>").count(), MOST + 1);
        assert!(html.contains("Not shown: 2 more trials.") && html.contains("pipe tune export"), "{html}");
    }

    #[test]
    fn only_folders_are_links() {
        let mut one = trial(0, 0.5);
        for (run, is_link) in [("a-b_1.2", true), ("../x", false), ("javascript:alert(1)", false), ("", false)] {
            one.user_attrs.insert("run".to_owned(), json!(run));
            assert_eq!(run_link(&one).is_some_and(|text| text.contains("<a ")), is_link, "{run}");
        }
    }
}
