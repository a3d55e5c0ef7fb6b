//! Events as text, a line each.

use pipe_spec::event::{Eval, Fitted, Measured, Rehearsed, Started};
use pipe_spec::text::{count, human_bytes};

use super::pace::span;
use super::view::Training;
use crate::report::grouped;

pub fn start(started: &Started) -> String {
    let from = started.resumed_from.map_or(String::new(), |step| format!(", resuming from step {step}"));
    let capacity = started.capacity.map_or(String::new(), |bytes| format!(" with {}", human_bytes(bytes)));
    format!(
        "training {} parameters on {}{capacity}: {} of {}{from}",
        grouped(started.params),
        started.device,
        count(started.steps, "step"),
        count(started.effective_batch, "sample")
    )
}

/// The latest step.
pub fn step(training: &Training) -> Option<String> {
    let step = training.last.as_ref()?;
    let speed = training.speed().map_or(String::new(), |speed| format!("  {speed}"));
    let left =
        training.left().filter(|left| *left >= 1.0).map_or(String::new(), |left| format!("  {} left", span(left)));
    Some(format!(
        "step {}/{}: loss {:.4}  lr {:.1e}{speed}  {}{left}",
        step.step,
        training.started.steps,
        step.loss,
        step.lr,
        human_bytes(step.peak)
    ))
}

pub fn measurement(measured: &Measured) -> String {
    let Measured { batch, longest, peak, .. } = measured;
    let held = peak.map_or("does not fit".to_owned(), |peak| format!("peak {}", human_bytes(peak)));
    format!("measured batch {batch}{}: {held}", tokens(longest))
}

pub fn finding(fitted: &Fitted) -> String {
    let Fitted { batch, accum, peak, .. } = fitted;
    if fitted.is_whole_step() {
        let peak = human_bytes(*peak);
        return format!("{batch} fits, and it is the whole effective batch; larger was not tried (peak {peak})");
    }
    format!("the largest batch that fits is {batch} (x accum {accum}), with a peak of {}", human_bytes(*peak))
}

pub fn rehearsal(rehearsed: &Rehearsed) -> String {
    format!("the longest samples{} fit: peak {}", tokens(&rehearsed.longest), human_bytes(rehearsed.peak))
}

/// How long rows are, where they are of tokens.
fn tokens(longest: &str) -> String {
    if longest.is_empty() { String::new() } else { format!(" ({longest} tokens)") }
}

pub fn evaluation(eval: &Eval) -> String {
    let Eval { step, loss, samples, scores, .. } = eval;
    let scores: String =
        scores.iter().map(|(name, score)| format!(", {} {score:.3}", name.replace('_', " "))).collect();
    format!("step {step}: eval loss {loss:.4}{scores}, {}", count(*samples, "sample"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_in_a_line() {
        let scores = [("perplexity", 1.6487), ("exact_match", 0.125)].map(|(name, score)| (name.to_owned(), score));
        let eval = Eval { step: 4, loss: 0.5, samples: 20, ms: 1.0, scores: scores.into() };
        let want = "step 4: eval loss 0.5000, exact match 0.125, perplexity 1.649, 20 samples";
        assert_eq!(evaluation(&eval), want);
    }
}
