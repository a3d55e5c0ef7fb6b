//! What was found in the data, in words.

use pipe_spec::Inspection;
use pipe_spec::inspection::{Lengths, Split, StepParts};

use crate::report::grouped;

/// Classes that are listed by name at most.
const LISTED: usize = 12;

/// A line each: rows, lengths and classes of the training and of the evaluation data, and the steps.
pub fn summary(inspection: &Inspection) -> Vec<String> {
    let mut lines = split("train", &inspection.train);
    lines.extend(inspection.eval.iter().flat_map(|eval| split("eval", eval)));
    lines.push(format!("steps  {}", grouped(inspection.steps)));
    lines.extend(inspection.step_parts.map(parts));
    lines
}

fn parts(StepParts { samples, parts }: StepParts) -> String {
    let (count, each) = (parts.round().max(1.0), f64::from(samples) / parts);
    match count {
        1.0 => format!("       {} samples a step, in one part on this data", grouped(samples.into())),
        _ => {
            format!("       {} samples a step: about {count} parts of {each:.0} on this data", grouped(samples.into()))
        }
    }
}

fn split(name: &str, split: &Split) -> Vec<String> {
    let of = match split.read < split.rows {
        true => format!(", {} of them read", grouped(split.read)),
        false => String::new(),
    };
    let rows = if split.rows == 1 { "row" } else { "rows" };
    let mut lines = vec![format!("{name:<5}  {} {rows}{of}", grouped(split.rows))];
    lines.extend(split.lengths.iter().map(|lengths| format!("       {}", tokens(lengths))));
    if !split.classes.is_empty() {
        lines.push(format!("       classes: {}", classes(split)));
    }
    lines
}

fn tokens(lengths: &Lengths) -> String {
    let Lengths { column, mean, p95, longest, .. } = lengths;
    format!("{column}: {mean:.0} tokens on average, 95 % up to {}, longest {}", grouped(*p95), grouped(*longest))
}

/// The most frequent first.
fn classes(split: &Split) -> String {
    let mut counts: Vec<_> = split.classes.iter().collect();
    counts.sort_by_key(|class| std::cmp::Reverse(class.rows));
    let listed = counts.iter().take(LISTED).map(|class| format!("{} {}", class.name, grouped(class.rows)));
    let mut text = listed.collect::<Vec<_>>().join(", ");
    if counts.len() > LISTED {
        text += &format!(" and {} more", counts.len() - LISTED);
    }
    text
}

#[cfg(test)]
mod tests {
    use pipe_spec::inspection::ClassCount;

    use super::*;

    #[test]
    fn everything_that_was_found_is_listed() {
        let class = |name: &str, rows| ClassCount { name: name.to_owned(), rows };
        let lengths = Lengths { column: "text".to_owned(), mean: 23.6, p95: 61, longest: 1280, at_limit: 0 };
        let (lengths, classes) = (vec![lengths], vec![class("ham", 40), class("spam", 1960)]);
        let train = Split { rows: 150_000, read: 2000, skipped: 0, lengths, classes };
        let eval = Some(Split { rows: 1, read: 1, ..Split::default() });
        let step_parts = Some(StepParts { samples: 128, parts: 3.125 });
        assert_eq!(
            summary(&Inspection { train, eval, steps: 1200, step_parts }),
            [
                "train  150,000 rows, 2,000 of them read",
                "       text: 24 tokens on average, 95 % up to 61, longest 1,280",
                "       classes: spam 1,960, ham 40",
                "eval   1 row",
                "steps  1,200",
                "       128 samples a step: about 3 parts of 41 on this data",
            ]
        );
    }
}
