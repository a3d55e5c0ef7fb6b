//! The text sections of the page of one run: heading, scores, attempts, ranks, machine, warnings, files.

use std::collections::BTreeMap;
use std::fmt::Write;

use pipe_spec::pipeline::Metric;
use pipe_spec::run::{Evaluation, RunResult};
use pipe_spec::text::{count, human_bytes};
use pipe_spec::{Attempt, Cause, Outcome, RunState};

use super::markup::{escape, prose, table};
use crate::report::{answer, bounded, duration, figure, grouped, steps as attempt_steps};
use crate::run::{Notes, Record, result};
use crate::system::clock::minutes_utc;

pub fn heading(run: &Record) -> String {
    let mut html = format!("<header><p class=\"kind\">pipe run</p><h1>{}</h1>", escape(&run.id));
    if let Some(state) = &run.state {
        let status = state.status.name();
        write!(html, "<p><span class=\"tag {status}\">{status}</span> ").ok();
        let mut facts = vec![format!("engine {}", escape(&state.engine))];
        facts.extend(minutes_utc(state.created).map(|when| format!("began {when}")));
        facts.extend(run.seconds().map(|seconds| format!("took {}", duration(seconds))));
        facts.extend((state.stages().is_empty()).then(|| escape(&effective_batch(state))));
        facts.extend(steps(run).map(|steps| format!("steps: {steps}")));
        facts.extend(Some(state.attempts().len()).filter(|count| *count > 1).map(|count| format!("{count} attempts")));
        write!(html, "{}</p>", facts.join(" &middot; ")).ok();
        if let Some(error) = &state.error {
            write!(html, "<p class=\"error\">{}</p>", escape(error)).ok();
        }
    }
    html.push_str(&notes(&run.notes));
    html.push_str(&missing(run));
    html.push_str(&hero(run));
    html.push_str("</header>\n");
    html
}

/// The tags and the note of a run; empty where it has none.
pub fn notes(notes: &Notes) -> String {
    let tags: String = notes.tags.iter().map(|tag| format!("<li>{}</li>", escape(tag))).collect();
    let tags = if tags.is_empty() { tags } else { format!("<ul class=\"topics\">{tags}</ul>") };
    let note = match notes.note.as_str() {
        "" => String::new(),
        note => format!("<p class=\"remarks\">{}</p>", escape(note)),
    };
    tags + &note
}

/// How good the model is, in a sentence, with bars for it and for an answer that ignores the input.
fn hero(run: &Record) -> String {
    let Some(found) = run.answer() else { return String::new() };
    let mut html = format!("<div class=\"hero\"><p class=\"sentence\">{}.</p>", escape(&answer::sentence(&found)));
    if let Some(baseline) = found.baseline.as_ref().filter(|baseline| baseline.value >= 0.0 && found.value >= 0.0) {
        let less = Metric::less_is_better(&found.metric);
        let shown = |value: f64| answer::shown(&found.metric, value);
        let larger = shown(baseline.value).max(shown(found.value));
        let most = if less { larger } else { larger.max(1.0) };
        for (class, name, value) in
            [("own", "this model", found.value), ("other", baseline.name.as_str(), baseline.value)]
        {
            let share = if most > 0.0 { shown(value) / most * 100.0 } else { 0.0 };
            write!(
                html,
                "<div class=\"against {class}\" style=\"--share:{share:.1}%\"><span>{}</span>",
                escape(&bounded(name, NAME))
            )
            .ok();
            write!(html, "<i></i><b>{}</b></div>", answer::number(&found.metric, value)).ok();
        }
        html.push_str(if less { "<p class=\"note\">lower is better</p>" } else { "" });
    }
    if let Some(remark) = answer::remark(&found) {
        write!(html, "<p class=\"missing\">{}</p>", escape(&remark)).ok();
    }
    let result = run.state.as_ref().and_then(|state| state.result());
    let mut notes: Vec<String> = Vec::new();
    notes.extend(result.and_then(|result| model_note(result, found.step)));
    let stopped = result.and_then(|result| result.stopped_early.as_ref());
    notes.extend(stopped.map(|why| format!("stopped early: {}", escape(why))));
    if !notes.is_empty() {
        write!(html, "<p class=\"note\">{}</p>", notes.join(" &middot; ")).ok();
    }
    html.push_str("</div>");
    html
}

/// Characters of the name of a baseline.
const NAME: usize = 60;

/// Which step the exported model is from, and why that one.
fn model_note(result: &RunResult, shown: u64) -> Option<String> {
    let step = result.model_step?;
    let best = result.save_best.as_ref().filter(|_| result.best.as_ref().is_some_and(|best| best.step == step));
    let why = best.map_or(String::new(), |metric| format!(" (best {})", escape(&Metric::title(&metric.to_string()))));
    let other = if shown == step { String::new() } else { format!("; measured after step {shown}") };
    Some(format!("exported model: step {step}{why}{other}"))
}

/// The effective batch, and whether it was changed.
fn effective_batch(state: &RunState) -> String {
    let changes = state.attempts().last().map(|attempt| attempt.changes.as_slice()).unwrap_or_default();
    let changed = changes.iter().find(|change| change.starts_with("effective batch "));
    changed.cloned().unwrap_or_else(|| format!("effective batch {}", state.effective_batch()))
}

/// The list of files that could not be read; empty where all could.
pub fn missing(run: &Record) -> String {
    if run.missing.is_empty() {
        return String::new();
    }
    let items: String = run.missing.iter().map(|what| format!("<li>{}</li>", escape(what))).collect();
    format!("<div class=\"missing\"><b>This page is not complete.</b><ul>{items}</ul></div>")
}

/// Warnings, each text once, with the attempts that gave it.
pub fn warnings(run: &Record) -> String {
    let mut texts: Vec<(&str, Vec<String>)> = Vec::new();
    for (attempt, text) in &run.history.warnings {
        let attempt = attempt.to_string();
        match texts.iter_mut().find(|known| known.0 == text) {
            Some((_, attempts)) if attempts.contains(&attempt) => {}
            Some((_, attempts)) => attempts.push(attempt),
            None => texts.push((text, vec![attempt])),
        }
    }
    if texts.is_empty() {
        return String::new();
    }
    let items: String = texts
        .iter()
        .map(|(text, attempts)| {
            let noun = if attempts.len() == 1 { "attempt" } else { "attempts" };
            format!("<li>{} <small>{noun} {}</small></li>", escape(text), attempts.join(", "))
        })
        .collect();
    format!("<section id=\"warnings\"><h2>Warnings</h2><ul class=\"warnings\">{items}</ul></section>\n")
}

/// Whole files, folded away.
pub fn files(run: &Record) -> String {
    let file = |name: &str, what: &str, text: &Option<String>| {
        let Some(text) = text else { return String::new() };
        let text = escape(text.trim_end());
        format!("<details><summary>{what} <small>{name}</small></summary><pre>{text}</pre></details>")
    };
    let settings = run.resolved.as_deref().map(without_addresses);
    let (settings, lock) =
        (file("resolved.yaml", "All settings", &settings), file("lock.json", "What it ran on", &run.lock));
    format!("<section id=\"files\">{settings}{lock}</section>\n")
}

/// A page is shown to others, and an address that messages are sent to is often a secret.
fn without_addresses(settings: &str) -> String {
    let line = |line: &str| {
        let key = line.trim_start_matches([' ', '-']);
        let is_address = ["discord:", "webhook:", "mlflow:"].iter().any(|name| key.starts_with(name));
        match line.split_once(": ").filter(|(_, value)| is_address && !value.contains("${")) {
            Some((key, _)) => format!("{key}: (not shown)\n"),
            None => format!("{line}\n"),
        }
    };
    settings.lines().map(line).collect()
}

/// The evaluation of the exported model, or else the last.
fn shown_evaluation(result: &RunResult) -> Option<&Evaluation> {
    let of_model = |eval: &&Evaluation| Some(eval.step) == result.model_step;
    result.best.as_ref().filter(of_model).or(result.last.as_ref())
}

/// Names and values, the most important first. Unknown values are left out; scores are of the exported model.
pub fn results(run: &Record) -> Vec<(String, String)> {
    let mut results = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            results.push((name.to_owned(), value));
        }
    };
    let result = run.state.as_ref().and_then(|state| state.result());
    add("result", run.answer().as_ref().map(answer::score));
    let eval = result.and_then(shown_evaluation);
    add("evaluated after step", eval.map(|eval| eval.step.to_string()));
    for (name, score) in eval.iter().flat_map(|eval| shown_metrics(&eval.metrics)) {
        add(&format!("eval {}", Metric::title(name)), Some(figure(*score)));
    }
    add("steps", steps(run));
    add("training loss of the last step", run.history.last_loss().map(figure));
    results.extend(speed(run));
    results
}

/// The metrics without those that are there under another name too.
fn shown_metrics(metrics: &BTreeMap<String, f64>) -> impl Iterator<Item = (&String, &f64)> {
    let has_macro_f1 = metrics.contains_key("eval.macro_f1");
    metrics.iter().filter(move |(name, _)| *name != "eval.f1" || !has_macro_f1)
}

/// Speed and memory.
fn speed(run: &Record) -> Vec<(String, String)> {
    let attempts = run.state.as_ref().map(|state| state.attempts().len()).filter(|count| *count > 0);
    let known = [
        (format!("{} per second", run.unit().name()), run.tokens_per_second().map(figure)),
        ("peak memory".to_owned(), run.peak_memory().map(human_bytes)),
        ("time".to_owned(), run.seconds().map(duration)),
        ("attempts".to_owned(), attempts.map(|count| count.to_string())),
    ];
    known.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The scores of the first evaluation, of the exported model and of the last step, side by side.
pub fn scores(run: &Record) -> String {
    let Some(result) = run.state.as_ref().and_then(|state| state.result()) else { return String::new() };
    let (Some(last), Some(shown)) = (&result.last, shown_evaluation(result)) else { return String::new() };
    let mut columns: Vec<(&str, &Evaluation)> = Vec::new();
    columns.extend(result.first.as_ref().filter(|first| first.step != shown.step).map(|first| ("first", first)));
    let is_model = result.model_step == Some(shown.step);
    columns.push((if is_model { "exported model" } else { "last" }, shown));
    columns.extend(Some(last).filter(|last| last.step != shown.step).map(|last| ("last", last)));
    let head = columns.iter().map(|(name, eval)| format!("{name}, step {}", eval.step));
    let head: Vec<String> = std::iter::once("evaluation".to_owned()).chain(head).collect();
    let row = |(name, _): (&String, &f64)| {
        let cell =
            |(_, eval): &(&str, &Evaluation)| eval.metrics.get(name).map_or("-".to_owned(), |value| figure(*value));
        std::iter::once(escape(&Metric::title(name))).chain(columns.iter().map(cell)).collect()
    };
    let mut metrics: Vec<(&String, &f64)> = shown_metrics(&shown.metrics).collect();
    let first = run.answer().map(|answer| answer.metric);
    metrics.sort_by_key(|(name, _)| (first.as_ref() != Some(name), name.as_str() != "eval.loss"));
    let rows: Vec<Vec<String>> = metrics.into_iter().map(row).collect();
    table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

/// The device, speed and memory.
pub fn machine(run: &Record) -> String {
    let mut facts: Vec<(String, String)> = Vec::new();
    if let Some((_, started)) = run.history.started.last() {
        facts.push(("device".to_owned(), started.device.clone()));
        facts.extend(
            started.memory.capacity.map(|bytes| ("memory that the run may use".to_owned(), human_bytes(bytes))),
        );
        facts.push(("parameters".to_owned(), grouped(started.params)));
    }
    let batch = run.state.as_ref().map(|state| state.effective_batch()).filter(|batch| *batch > 0);
    facts.extend(batch.map(|batch| ("effective batch".to_owned(), batch.to_string())));
    facts.extend(run.history.last_loss().map(|loss| ("training loss of the last step".to_owned(), figure(loss))));
    facts.extend(speed(run));
    let rows: Vec<Vec<String>> = facts.iter().map(|(name, value)| vec![escape(name), escape(value)]).collect();
    format!("<section id=\"machine\"><h2>Machine</h2>{}</section>\n", table(&["", ""], &rows))
}

/// The steps that were done, of all: `500 of 2000`.
pub fn steps(run: &Record) -> Option<String> {
    let done = run.history.last_step().unwrap_or(0);
    let all = run.state.as_ref().and_then(|state| state.steps());
    all.or_else(|| run.history.started.last().map(|(_, started)| started.steps)).map(|all| format!("{done} of {all}"))
}

const ATTEMPT_HEAD: [&str; 10] = [
    "attempt",
    "batch x accum",
    "outcome",
    "why",
    "retry",
    "changes to the training result",
    "steps",
    "peak",
    "time",
    "delay before",
];

/// The table of attempts, and the cost of the retries.
pub fn attempts(state: &RunState) -> String {
    if state.attempts().is_empty() {
        return "<section><h2>Attempts</h2><p class=\"none\">None was started.</p></section>\n".to_owned();
    }
    format!("<section id=\"attempts\"><h2>Attempts</h2>{}{}</section>\n", attempts_table(state), cost(state))
}

pub fn attempts_table(state: &RunState) -> String {
    let rows: Vec<Vec<String>> =
        (0..state.attempts().len()).map(|index| attempt_row(state.attempts(), index)).collect();
    table(&ATTEMPT_HEAD, &rows)
}

fn attempt_row(attempts: &[Attempt], index: usize) -> Vec<String> {
    let attempt = &attempts[index];
    let outcome = attempt.outcome.map_or("running", Outcome::name);
    let cause = || attempt.cause.map(|cause| describe_cause(cause).to_owned());
    let why = attempt.reason.as_deref().map(escape).or_else(cause).map(|why| prose(&why));
    let known = |text: Option<String>| text.unwrap_or("-".to_owned());
    let changes = if attempt.changes.is_empty() { "none".to_owned() } else { escape(&attempt.changes.join(", ")) };
    vec![
        attempt.number.to_string(),
        match attempt.ranks {
            _ if !attempt.has_batch => "-".to_owned(),
            1 => format!("{} &times; {}", attempt.batch, attempt.accum),
            ranks => format!("{} &times; {} &times; {ranks} ranks", attempt.batch, attempt.accum),
        },
        format!("<span class=\"tag {outcome}\">{outcome}</span>"),
        known(why),
        known(attempt.action.as_deref().map(escape).map(|action| prose(&action))),
        changes,
        attempt_steps(attempt),
        known(attempt.figures.peak_memory.map(human_bytes)),
        duration(attempt.figures.seconds),
        known(lost_before(attempts, index).map(duration)),
    ]
}

/// Seconds between the end of the attempt before and the beginning of this one.
fn lost_before(attempts: &[Attempt], index: usize) -> Option<f64> {
    let (before, this) = (attempts.get(index.checked_sub(1)?)?, attempts.get(index)?);
    let known = before.began > 0.0 && this.began > 0.0;
    known.then(|| (this.began - before.began - before.figures.seconds).max(0.0))
}

/// The cost of the retries, in a sentence.
fn cost(state: &RunState) -> String {
    let [failed @ .., _] = state.attempts() else { return String::new() };
    if failed.is_empty() {
        return String::new();
    }
    let spent: f64 = failed.iter().map(|attempt| attempt.figures.seconds).sum();
    let between: Vec<f64> =
        (1..state.attempts().len()).filter_map(|index| lost_before(state.attempts(), index)).collect();
    let between = if between.is_empty() {
        String::new()
    } else {
        format!(", with {} between attempts", duration(between.iter().sum()))
    };
    let kept = failed.iter().filter_map(|attempt| attempt.figures.last_step).max();
    let kept = kept.map_or("no step".to_owned(), |step| format!("the steps up to {step}"));
    format!(
        "<p>{} before the last took {} and did {kept}{between}.</p>",
        count(failed.len(), "attempt"),
        duration(spent)
    )
}

fn describe_cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Fragmented => "memory is fragmented",
        Cause::Capacity => "the batch does not fit",
        Cause::Neighbour => "other processes use the card",
        Cause::EvalOnly => "only evaluation does not fit",
        Cause::Model => "the model does not fit",
        Cause::HostMemory => "the host's memory ran out",
        Cause::Killed => "killed, not because of memory",
        Cause::Trainer => "the trainer reported an error",
        Cause::Vanished => "ended without an exit code",
        Cause::Requested => "stopped on request",
        Cause::Interrupted => "the engine or the machine stopped",
        Cause::TimeLimit => "the time limit of the job",
        Cause::Preempted => "another job took its place",
        Cause::NodeLost => "a node was lost",
        Cause::Cancelled => "the job was cancelled",
    }
}

/// The table of ranks: the memory and the time of a step of each; empty for one rank.
pub fn ranks(run: &Record) -> String {
    let figures = result::figures(&run.history.steps);
    if figures.is_empty() {
        return String::new();
    }
    let slowest = result::slowest(&figures);
    let row = |(index, rank): (usize, &result::RankFigures)| {
        let mark = if slowest == Some(index) { ", the slowest" } else { "" };
        vec![index.to_string(), human_bytes(rank.peak), format!("{:.0} ms{mark}", rank.ms)]
    };
    let rows: Vec<Vec<String>> = figures.iter().enumerate().map(row).collect();
    let table = table(&["rank", "peak memory", "median time of a step, without waiting"], &rows);
    format!("<section id=\"ranks\"><h2>Ranks</h2>{table}</section>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_not_shown() {
        let settings = "name: x\nnotify:\n- discord: https://a/b\n  on: []\n- webhook: \"${HOOK}\"\ntrack:\n  mlflow: http://u:p@h\n";
        let want = "name: x\nnotify:\n- discord: (not shown)\n  on: []\n- webhook: \"${HOOK}\"\ntrack:\n  mlflow: (not shown)\n";
        assert_eq!(without_addresses(settings), want);
    }

    #[test]
    fn time_between_attempts() {
        let mut attempts = [Attempt::new(1, 8, 1), Attempt::new(2, 4, 2), Attempt::new(3, 2, 4)];
        (attempts[0].began, attempts[0].figures.seconds) = (100.0, 10.0);
        attempts[1].began = 112.5;
        assert_eq!(lost_before(&attempts, 0), None);
        assert_eq!(lost_before(&attempts, 1), Some(2.5));
        assert_eq!(lost_before(&attempts, 2), None);
    }

    #[test]
    fn words_are_escaped() {
        let mut attempt = Attempt::new(1, 8, 1);
        attempt.reason = Some("<b>&\"".to_owned());
        attempt.action = Some("<i>".to_owned());
        let cells = attempt_row(&[attempt], 0).join(" ");
        assert!(cells.contains("&lt;b&gt;&amp;&quot;") && cells.contains("&lt;i&gt;"), "{cells}");
    }
}
