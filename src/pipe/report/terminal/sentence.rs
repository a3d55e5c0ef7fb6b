//! Events as text, a line each.

use pipe_spec::OomRecord;
use pipe_spec::event::{Eval, Finished, Fitted, Measured, MemoryKind, Metrics, Rehearsed, Sample, Started};
use pipe_spec::text::{count, human_bytes};

use super::pace::span;
use super::view::Training;
use crate::report::{bounded, figure, grouped};

/// Characters of a sample text.
const SAMPLE: usize = 200;

pub fn start(started: &Started) -> String {
    let from = started.resumed_from.map_or(String::new(), |step| format!(", resuming from step {step}"));
    let capacity = started.capacity.map_or(String::new(), |bytes| format!(" with {}", human_bytes(bytes)));
    let parts = started.part_bytes.map_or(String::new(), |bytes| format!(" in parts of up to {}", human_bytes(bytes)));
    let sums_by = started.sums_by.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let ranks = if started.ranks > 1 { format!(", {} ranks{sums_by}", started.ranks) } else { String::new() };
    format!(
        "training {} on {}{capacity}{ranks}: {} of {}{parts}{from}",
        match started.params {
            1 => "1 parameter".to_owned(),
            more => format!("{} parameters", grouped(more)),
        },
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

/// The metrics that a command printed for a step.
pub fn metrics(metrics: &Metrics) -> String {
    let of = metrics.steps.map_or(String::new(), |steps| format!("/{steps}"));
    let values: Vec<String> = metrics.values.iter().map(|(name, value)| format!("{name} {}", figure(*value))).collect();
    format!("step {}{of}: {}", metrics.step, values.join("  "))
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
    let Eval { step, loss, samples, .. } = eval;
    let score = |(name, score): (&str, f64)| format!(", {} {score:.3}", name.replace('_', " "));
    let scores: String = eval.shown_scores().map(score).collect();
    format!("step {step}: eval loss {loss:.4}{scores}, {}", count(*samples, "sample"))
}

/// A text that the model wrote, in one line.
pub fn sample(sample: &Sample) -> String {
    let short = |text: &str| bounded(&text.split_whitespace().collect::<Vec<_>>().join(" "), SAMPLE);
    format!("{} -> {}", short(&sample.source), short(&sample.generated))
}

pub fn shortage(record: &OomRecord) -> String {
    let OomRecord { phase, step, batch, requested, free, total, .. } = record;
    let memory = match record.memory {
        MemoryKind::Device => "the card's memory",
        MemoryKind::Host => "the host's memory",
    };
    let requested = requested.map_or(String::new(), |bytes| format!(", {} requested", human_bytes(bytes)));
    let free = match (free, total) {
        (Some(free), Some(total)) => format!(", {} of {} free", human_bytes(*free), human_bytes(*total)),
        _ => String::new(),
    };
    format!("out of memory: {memory} ran out in step {step} ({}) with batch {batch}{requested}{free}", phase.name())
}

pub fn end(finished: &Finished) -> String {
    let model = finished.model.as_ref().map_or(String::new(), |model| format!("; the model is in {model}"));
    format!("finished after {} and {}{model}", count(finished.step, "step"), count(finished.samples, "sample"))
}

#[cfg(test)]
mod tests {
    use pipe_spec::Phase;

    use super::*;

    #[test]
    fn a_long_sample_is_cut() {
        let one = Sample { step: 1, source: "a\n b".into(), target: String::new(), generated: "c".repeat(500) };
        assert_eq!(sample(&one), format!("a b -> {}…", "c".repeat(199)));
    }

    #[test]
    fn ends_in_a_line() {
        let record = OomRecord {
            step: 3,
            batch: 64,
            requested: Some(600 << 20),
            free: Some(1 << 20),
            total: Some(16 << 30),
            ..OomRecord::new(MemoryKind::Device, Phase::Backward)
        };
        let want = "out of memory: the card's memory ran out in step 3 (backward) with batch 64, 600.0 MiB requested, \
                    1.0 MiB of 16.0 GiB free";
        assert_eq!(shortage(&record), want);
        let done = Finished { step: 9, samples: 1, model: Some("model".to_owned()), ..Finished::default() };
        assert_eq!(end(&done), "finished after 9 steps and 1 sample; the model is in model");
    }

    #[test]
    fn an_evaluation_in_a_line() {
        let scores = [("perplexity", 1.6487), ("exact_match", 0.125)].map(|(name, score)| (name.to_owned(), score));
        let eval = Eval { step: 4, loss: 0.5, samples: 20, ms: 1.0, headline: None, scores: scores.into() };
        let want = "step 4: eval loss 0.5000, exact match 0.125, perplexity 1.649, 20 samples";
        assert_eq!(evaluation(&eval), want);
        let scores = ["f1", "macro_f1"].map(|name| (name.to_owned(), 0.5));
        let eval = Eval { scores: scores.into(), ..eval };
        assert_eq!(evaluation(&eval), "step 4: eval loss 0.5000, macro f1 0.500, 20 samples");
    }
}
