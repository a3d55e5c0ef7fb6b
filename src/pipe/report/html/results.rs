//! What came of a run, in a few figures.

use pipe_spec::event::Eval;
use pipe_spec::text::human_bytes;

use super::super::table::duration;
use super::figures::throughput;
use super::scale::figure;
use crate::run::Record;

/// Names and values, the most telling first; what is not known is left out.
pub fn results(run: &Record) -> Vec<(String, String)> {
    let mut results = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            results.push((name.to_owned(), value));
        }
    };
    let history = &run.history;
    let last = history.steps.last();
    add("steps", steps(run));
    add("training loss", last.map(|step| figure(step.loss)));
    let eval = history.evals.last();
    add("eval loss", eval.map(|eval| figure(eval.loss)));
    for (name, score) in eval.iter().flat_map(|Eval { scores, .. }| scores) {
        add(&format!("eval {}", name.replace('_', " ")), Some(figure(*score)));
    }
    add("tokens per second", median(run).map(figure));
    add("peak memory", peak(run).map(human_bytes));
    add("time", took(run).map(duration));
    add("attempts", run.state.as_ref().map(|state| state.attempts.len().to_string()));
    results
}

/// Those that were done, of those that were to be.
pub fn steps(run: &Record) -> Option<String> {
    let done = run.history.steps.last().map_or(0, |step| step.step);
    let all = run.state.as_ref().and_then(|state| state.steps);
    all.or_else(|| run.history.started.last().map(|(_, started)| started.steps)).map(|all| format!("{done} of {all}"))
}

/// Tokens per second, of half of the steps more and of half less.
pub fn median(run: &Record) -> Option<f64> {
    let mut rates: Vec<f64> = run.history.steps.iter().map(throughput).filter(|rate| rate.is_finite()).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// Of the last attempt that got as far as to have one.
pub fn peak(run: &Record) -> Option<u64> {
    let attempts = run.state.iter().flat_map(|state| state.attempts.iter().rev());
    let told = attempts.filter(|attempt| attempt.last_step.is_some()).find_map(|attempt| attempt.peak_memory);
    told.or_else(|| run.history.steps.iter().map(|step| step.peak).max())
}

/// Seconds from the run's beginning to the end of its last attempt.
pub fn took(run: &Record) -> Option<f64> {
    let state = run.state.as_ref()?;
    let last = state.attempts.last()?;
    if last.began > 0.0 {
        return Some((last.began + last.seconds - state.created).max(0.0));
    }
    Some(state.attempts.iter().map(|attempt| attempt.seconds).sum())
}
