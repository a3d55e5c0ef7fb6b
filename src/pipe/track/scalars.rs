//! The figures of a run by step, under the names that every tracker shows.

use pipe_spec::EventKind;
use pipe_spec::event::{Eval, Metrics, Step};

/// The step of an event and its values, if it has any.
pub fn scalars(event: &EventKind) -> Option<(u64, Vec<(String, f64)>)> {
    match event {
        EventKind::Step(step) => Some((step.step, of_step(step))),
        EventKind::Eval(eval) => Some((eval.step, of_eval(eval))),
        EventKind::Metrics(metrics) => Some((metrics.step, of_command(metrics))),
        EventKind::Measured(_)
        | EventKind::Fitted(_)
        | EventKind::Started(_)
        | EventKind::Rehearsed(_)
        | EventKind::Sample(_)
        | EventKind::Checkpoint(_)
        | EventKind::Oom(_)
        | EventKind::Warning(_)
        | EventKind::Finished(_) => None,
    }
}

fn of_step(step: &Step) -> Vec<(String, f64)> {
    let rate = if step.ms > 0.0 { step.tokens as f64 * 1000.0 / step.ms } else { 0.0 };
    [
        ("train/loss", step.loss),
        ("train/lr", step.lr),
        ("train/grad_norm", step.grad_norm),
        ("train/epoch", step.epoch),
        ("speed/tokens_per_second", rate),
        ("memory/peak_bytes", step.peak as f64),
    ]
    .map(|(tag, value)| (tag.to_owned(), value))
    .into()
}

fn of_command(metrics: &Metrics) -> Vec<(String, f64)> {
    let tag = |name: &str| match name.strip_prefix("eval_") {
        Some(name) => format!("eval/{name}"),
        None => format!("train/{name}"),
    };
    metrics.values.iter().map(|(name, value)| (tag(name), *value)).collect()
}

fn of_eval(eval: &Eval) -> Vec<(String, f64)> {
    let scores = eval.scores.iter().map(|(name, score)| (format!("eval/{name}"), *score));
    std::iter::once(("eval/loss".to_owned(), eval.loss)).chain(scores).collect()
}
