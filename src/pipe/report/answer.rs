//! How good a model is, in a sentence, and what to do where the run learned nothing. Pure.

use pipe_spec::pipeline::Metric;
use pipe_spec::run::Answer;

use super::text::{bounded, grouped};

/// Characters of the name of a baseline, which a job has written.
const NAME: usize = 80;

/// `95 % right on 90 held-out rows; always answering Billing would be 35 %`.
pub fn sentence(answer: &Answer) -> String {
    let Answer { metric, rows, baseline, trained_on, .. } = answer;
    let score = score(answer);
    if metric == TRAINING_LOSS {
        return format!("{score} at step {}", answer.step);
    }
    let counted = rows.map_or(String::new(), |rows| match trained_on {
        false => format!(" on {} held-out {}", grouped(rows), counted(metric, rows)),
        true => format!(" on {} {}, some of them trained on", grouped(rows), counted(metric, rows)),
    });
    let against = baseline.as_ref().map_or(String::new(), |baseline| {
        format!("; {} would be {}", bounded(&baseline.name, NAME), number(metric, baseline.value))
    });
    format!("{score}{counted}{against}")
}

/// The meaning of the sentence where it is not good news.
pub fn remark(answer: &Answer) -> Option<String> {
    if answer.classes == Some(1) {
        let why = "All held-out rows have the same class, so this is no result.";
        return Some(format!("{why} Evaluate on rows of every class (data.eval)."));
    }
    if answer.learned != Some(false) {
        return None;
    }
    let why = match (answer.baseline.is_some(), answer.metric.as_str()) {
        (true, _) => "The model is no better than that: the run learned nothing.",
        (false, EXACT_MATCH) => "No held-out text is right: the run learned nothing.",
        (false, _) => "The training loss did not fall: the run learned nothing.",
    };
    let whether = match answer.metric.as_str() {
        TRAINING_LOSS => "Check the data and the learning rate.",
        _ => {
            "Check the data, then try another learning rate (train.optimizer.lr), more epochs (train.epochs) or a \
              pretrained model (model.from)."
        }
    };
    Some(format!("{why} {whether}"))
}

/// Both sentences.
pub fn summary(answer: &Answer) -> String {
    [Some(sentence(answer)), remark(answer)].into_iter().flatten().collect::<Vec<_>>().join(". ")
}

/// The score with its name: `95 % right`, or `mean squared error 0.027`.
pub fn score(answer: &Answer) -> String {
    match answer.metric.as_str() {
        ACCURACY => format!("{} right", value(answer)),
        TRAINING_LOSS => format!("training loss {}", value(answer)),
        SQUARED_ERROR => format!("root mean squared error {}", value(answer)),
        metric => format!("{} {}", Metric::title(metric), value(answer)),
    }
}

/// The score alone: `95 %`, or `0.027`.
pub fn value(answer: &Answer) -> String {
    number(&answer.metric, answer.value)
}

const ACCURACY: &str = "eval.accuracy";
const EXACT_MATCH: &str = "eval.exact_match";
const TRAINING_LOSS: &str = "loss";
const SQUARED_ERROR: &str = "eval.mse";
/// Larger numbers are written with an exponent.
const LARGEST: f64 = 1e15;

/// The thing that a metric is counted over, of which there are so many.
fn counted(metric: &str, rows: u64) -> &'static str {
    let many = Metric::counted(metric);
    if rows == 1 { many.strip_suffix('s').unwrap_or(many) } else { many }
}

/// A value of a metric as people read it: a squared error in the unit of the label.
pub fn shown(metric: &str, value: f64) -> f64 {
    if metric == SQUARED_ERROR { value.max(0.0).sqrt() } else { value }
}

/// A value of a metric to three digits; a share of rows in percent.
pub fn number(metric: &str, value: f64) -> String {
    let value = shown(metric, value);
    if metric == ACCURACY {
        let percent = value * 100.0;
        // Not all and not none, though it rounds to it.
        let digits = usize::from(percent > 0.0 && percent < 100.0 && !(0.5..99.5).contains(&percent));
        return format!("{percent:.digits$} %");
    }
    match value.abs() {
        size if !(1e-4..LARGEST).contains(&size) && size > 0.0 => format!("{value:.1e}"),
        size if size >= 1000.0 => format!("{}{}", if value < 0.0 { "-" } else { "" }, grouped(size.round() as u64)),
        size => {
            let digits = if size > 0.0 { (2 - size.log10().floor() as i32).clamp(0, 6) as usize } else { 0 };
            let text = format!("{value:.digits$}");
            if digits > 0 { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::Baseline;

    use super::*;

    fn answer(metric: &str, value: f64, rows: u64, baseline: Option<(&str, f64)>) -> Answer {
        let baseline = baseline.map(|(name, value)| Baseline { name: name.to_owned(), value });
        let learned = baseline.as_ref().map(|baseline| Metric::named(metric).is_better(value, Some(baseline.value)));
        let metric = Metric::named(metric).to_string();
        Answer { metric, value, step: 9, rows: Some(rows), baseline, learned, ..Answer::default() }
    }

    #[test]
    fn one_sentence_for_every_task() {
        let billing = Some(("always answering Billing", 0.352));
        for (answer, want) in [
            (
                answer("accuracy", 0.95, 90, billing),
                "95 % right on 90 held-out rows; always answering Billing would be 35 %",
            ),
            (
                answer("mse", 0.0268, 500, Some(("always answering the mean", 1.0312))),
                "root mean squared error 0.164 on 500 held-out rows; always answering the mean would be 1.02",
            ),
            (
                answer("mse", 2.6e9, 500, Some(("always answering the mean", 7.5e12))),
                "root mean squared error 50,990 on 500 held-out rows; always answering the mean would be 2,738,613",
            ),
            (answer("exact_match", 17.0 / 32.0, 32, None), "exact match 0.531 on 32 held-out texts"),
            (
                answer("text_recall_1", 0.38, 1, Some(("guessing", 1.0))),
                "text recall@1 0.38 on 1 held-out picture; guessing would be 1",
            ),
            (
                answer("perplexity", 2.6, 12_345, Some(("guessing by token frequency", 52.04))),
                "perplexity 2.6 on 12,345 held-out tokens; guessing by token frequency would be 52",
            ),
            (
                answer("entity_f1", 0.875, 40, Some(("labelling nothing", 0.0))),
                "entity F1 0.875 on 40 held-out texts; labelling nothing would be 0",
            ),
            (answer("my_score", 1234.4, 2, None), "my score 1,234 on 2 held-out rows"),
        ] {
            assert_eq!((sentence(&answer).as_str(), answer.learned != Some(false)), (want, answer.value != 0.38));
        }
        let loss = Answer { metric: "loss".to_owned(), value: 0.5, step: 60, ..Answer::default() };
        assert_eq!(summary(&loss), "training loss 0.5 at step 60");
        let trained_on = Answer { trained_on: true, ..answer("accuracy", 0.95, 90, None) };
        assert_eq!(sentence(&trained_on), "95 % right on 90 rows, some of them trained on");
        let old = Answer { rows: None, ..answer("accuracy", 0.95, 0, None) };
        assert_eq!(sentence(&old), "95 % right");
        let long = answer("accuracy", 0.5, 2, Some((&"x".repeat(5000), 0.0)));
        assert!(sentence(&long).len() < 200);
    }

    #[test]
    fn shares_are_not_rounded_to_all_or_none() {
        for (value, want) in [(1.0, "100 %"), (0.999, "99.9 %"), (0.9949, "99 %"), (0.001, "0.1 %"), (0.0, "0 %")] {
            assert_eq!(number("eval.accuracy", value), want);
        }
        for (value, want) in [(1e-7, "1.0e-7"), (-2.5, "-2.5"), (100.0, "100"), (0.000_512, "0.000512")] {
            assert_eq!(number("eval.my_error", value), want);
        }
    }

    #[test]
    fn bad_news_in_a_sentence() {
        let said = |answer: &Answer| remark(answer).unwrap_or_default();
        let good = answer("accuracy", 0.95, 90, Some(("always answering Billing", 0.35)));
        assert_eq!(said(&good), "");
        let bad = answer("mse", 1.5, 90, Some(("always answering the mean", 1.0)));
        assert!(said(&bad).starts_with("The model is no better than that: the run learned nothing. Check"), "{bad:?}");
        let none = Answer { learned: Some(false), ..answer("exact_match", 0.0, 32, None) };
        assert!(said(&none).starts_with("No held-out text is right: the run learned nothing."));
        let flat = Answer { learned: Some(false), metric: "loss".to_owned(), ..Answer::default() };
        assert_eq!(
            said(&flat),
            "The training loss did not fall: the run learned nothing. Check the data and the learning rate."
        );
        let one = Answer { classes: Some(1), learned: None, ..good };
        assert!(said(&one).contains("no result") && summary(&one).contains("35 %. All held-out rows"));
    }
}
