//! The table of attempts, and what retrying cost.

use pipe_spec::text::{count, human_bytes};
use pipe_spec::{Attempt, Cause, Outcome, RunState};

use super::escape::escape;
use super::table;
use crate::report::{duration, steps};

const HEAD: [&str; 10] = [
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

pub fn section(state: &RunState) -> String {
    if state.attempts().is_empty() {
        return "<section><h2>Attempts</h2><p class=\"none\">None was started.</p></section>\n".to_owned();
    }
    format!("<section id=\"attempts\"><h2>Attempts</h2>{}{}</section>\n", attempts_table(state), cost(state))
}

pub fn attempts_table(state: &RunState) -> String {
    let rows: Vec<Vec<String>> = (0..state.attempts().len()).map(|index| row(state.attempts(), index)).collect();
    table(&HEAD, &rows)
}

fn row(attempts: &[Attempt], index: usize) -> Vec<String> {
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
        steps(attempt),
        known(attempt.peak_memory.map(human_bytes)),
        duration(attempt.seconds),
        known(lost_before(attempts, index).map(duration)),
    ]
}

/// A cell of sentences, which is not narrowed to a word a line.
fn prose(html: &str) -> String {
    format!("<div class=\"prose\">{html}</div>")
}

/// Seconds between the end of the attempt before and the beginning of this one.
fn lost_before(attempts: &[Attempt], index: usize) -> Option<f64> {
    let (before, this) = (attempts.get(index.checked_sub(1)?)?, attempts.get(index)?);
    let known = before.began > 0.0 && this.began > 0.0;
    known.then(|| (this.began - before.began - before.seconds).max(0.0))
}

/// What the retries cost, in a sentence.
fn cost(state: &RunState) -> String {
    let [failed @ .., _] = state.attempts() else { return String::new() };
    if failed.is_empty() {
        return String::new();
    }
    let spent: f64 = failed.iter().map(|attempt| attempt.seconds).sum();
    let between: Vec<f64> =
        (1..state.attempts().len()).filter_map(|index| lost_before(state.attempts(), index)).collect();
    let between = match between.is_empty() {
        true => String::new(),
        false => format!(", with {} between attempts", duration(between.iter().sum())),
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let cells = row(&[attempt], 0).join(" ");
        assert!(cells.contains("&lt;b&gt;&amp;&quot;") && cells.contains("&lt;i&gt;"), "{cells}");
    }
}
