//! The results of a run, in a few figures.

use pipe_spec::text::human_bytes;

use crate::report::{duration, figure};
use crate::run::Record;

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

/// Those that were done, of those that were to be.
pub fn steps(run: &Record) -> Option<String> {
    let done = run.history.last_step().unwrap_or(0);
    let all = run.state.as_ref().and_then(|state| state.steps());
    all.or_else(|| run.history.started.last().map(|(_, started)| started.steps)).map(|all| format!("{done} of {all}"))
}
