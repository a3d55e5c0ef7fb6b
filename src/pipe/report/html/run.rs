//! The text sections of the page of one run: heading, attempts, ranks, warnings, files.

use std::fmt::Write;

use pipe_spec::text::{count, human_bytes};
use pipe_spec::{Attempt, Cause, Outcome, RunState};

use super::markup::{escape, prose, table};
use crate::report::{duration, figure, grouped, steps as attempt_steps};
use crate::run::{Record, result};
use crate::system::clock::minutes_utc;

pub fn heading(run: &Record) -> String {
    let mut html = format!("<header><p class=\"kind\">pipe run</p><h1>{}</h1>", escape(&run.id));
    if let Some(state) = &run.state {
        let status = state.status.name();
        write!(html, "<p><span class=\"tag {status}\">{status}</span> ").ok();
        let mut facts = vec![format!("engine {}", escape(&state.engine))];
        facts.extend(minutes_utc(state.created).map(|when| format!("began {when}")));
        facts.extend(run.seconds().map(|seconds| format!("took {}", duration(seconds))));
        facts.extend((state.stages().is_empty()).then(|| format!("effective batch {}", state.effective_batch())));
        if let Some((_, started)) = run.history.started.last() {
            facts.push(format!("{} parameters on {}", grouped(started.params), escape(&started.device)));
        }
        write!(html, "{}</p>", facts.join(" &middot; ")).ok();
        if let Some(why) = state.result().and_then(|result| result.stopped_early.as_ref()) {
            write!(html, "<p class=\"note\">stopped early: {}</p>", escape(why)).ok();
        }
        if let Some(error) = &state.error {
            write!(html, "<p class=\"error\">{}</p>", escape(error)).ok();
        }
    }
    html.push_str(&missing(run));
    let tiles: String = results(run)
        .iter()
        .map(|(name, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value)))
        .collect();
    writeln!(html, "<dl class=\"tiles\">{tiles}</dl></header>").ok();
    html
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

/// Names and values, the most important first. Unknown values are left out.
pub fn results(run: &Record) -> Vec<(String, String)> {
    let mut results = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            results.push((name.to_owned(), value));
        }
    };
    let history = &run.history;
    add("steps", steps(run));
    add("training loss", history.last_loss().map(figure));
    let eval = history.evals.last();
    add("eval loss", eval.map(|eval| figure(eval.loss)));
    for (name, score) in eval.iter().flat_map(|eval| eval.shown_scores()) {
        add(&format!("eval {}", name.replace('_', " ")), Some(figure(score)));
    }
    let result = run.state.as_ref().and_then(|state| state.result());
    if let Some((metric, best)) = result.and_then(|result| Some((result.metric.as_ref()?, result.best.as_ref()?))) {
        let value = best.metrics.get(metric).map(|value| format!("{} at step {}", figure(*value), best.step));
        add(&format!("best {metric}"), value);
    }
    add("model from step", result.and_then(|result| result.model_step).map(|step| step.to_string()));
    add(&format!("{} per second", run.unit().name()), run.tokens_per_second().map(figure));
    add("peak memory", run.peak_memory().map(human_bytes));
    add("time", run.seconds().map(duration));
    let attempts =
        run.state.as_ref().filter(|state| state.stages().is_empty()).map(|state| state.attempts().len().to_string());
    add("attempts", attempts);
    results
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
            1 => format!("{} &times; {}", attempt.batch, attempt.accum),
            ranks => format!("{} &times; {} &times; {ranks} ranks", attempt.batch, attempt.accum),
        },
        format!("<span class=\"tag {outcome}\">{outcome}</span>"),
        known(why),
        known(attempt.action.as_deref().map(escape).map(|action| prose(&action))),
        changes,
        attempt_steps(attempt),
        known(attempt.peak_memory.map(human_bytes)),
        duration(attempt.seconds),
        known(lost_before(attempts, index).map(duration)),
    ]
}

/// Seconds between the end of the attempt before and the beginning of this one.
fn lost_before(attempts: &[Attempt], index: usize) -> Option<f64> {
    let (before, this) = (attempts.get(index.checked_sub(1)?)?, attempts.get(index)?);
    let known = before.began > 0.0 && this.began > 0.0;
    known.then(|| (this.began - before.began - before.seconds).max(0.0))
}

/// The cost of the retries, in a sentence.
fn cost(state: &RunState) -> String {
    let [failed @ .., _] = state.attempts() else { return String::new() };
    if failed.is_empty() {
        return String::new();
    }
    let spent: f64 = failed.iter().map(|attempt| attempt.seconds).sum();
    let between: Vec<f64> =
        (1..state.attempts().len()).filter_map(|index| lost_before(state.attempts(), index)).collect();
    let between = if between.is_empty() {
        String::new()
    } else {
        format!(", with {} between attempts", duration(between.iter().sum()))
    };
    let kept = failed.iter().filter_map(|attempt| attempt.last_step).max();
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
        (attempts[0].began, attempts[0].seconds) = (100.0, 10.0);
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
