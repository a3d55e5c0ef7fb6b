//! What the model writes: input, expected text, and what it wrote after the first evaluation and after the last.

use std::fmt::Write;

use pipe_spec::event::Sample;

use super::escape::escape;
use crate::report::bounded;
use crate::run::Record;

/// Characters of a text that the page shows.
const LONGEST: usize = 2000;
/// Rows of which texts are shown.
const MOST_ROWS: usize = 20;

pub fn section(run: &Record) -> String {
    let samples = &run.history.samples;
    let Some(last) = samples.iter().map(|sample| sample.step).max() else { return String::new() };
    let first = samples.iter().map(|sample| sample.step).min().unwrap_or(last);
    let rows = at(samples, last);
    let before = if first == last { Vec::new() } else { at(samples, first) };
    let mut html = "<section id=\"samples\"><h2>Generated texts</h2>".to_owned();
    for sample in rows.iter().take(MOST_ROWS) {
        let earlier = before.iter().find(|other| (&other.source, &other.target) == (&sample.source, &sample.target));
        row(&mut html, sample, earlier.copied());
    }
    if rows.len() > MOST_ROWS {
        let more = rows.len() - MOST_ROWS;
        write!(html, "<p class=\"note\">{more} more are in events.jsonl of the run folder.</p>").ok();
    }
    html.push_str("</section>\n");
    html
}

/// The texts after a step, each row once: an evaluation that was repeated after a resume wrote it again.
fn at(samples: &[Sample], step: u64) -> Vec<&Sample> {
    let mut rows: Vec<&Sample> = Vec::new();
    for sample in samples.iter().filter(|sample| sample.step == step) {
        match rows.iter_mut().find(|row| (&row.source, &row.target) == (&sample.source, &sample.target)) {
            Some(row) => *row = sample,
            None => rows.push(sample),
        }
    }
    rows
}

fn row(html: &mut String, sample: &Sample, earlier: Option<&Sample>) {
    html.push_str("<div class=\"sample\">");
    if !sample.source.is_empty() {
        side(html, "wide", "input", &sample.source, false);
    }
    if !sample.target.is_empty() {
        side(html, "side", "expected", &sample.target, false);
    }
    for written in earlier.into_iter().chain([sample]) {
        let title = format!("written after step {}", written.step);
        let is_right = !sample.target.is_empty() && same_words(&sample.target, &written.generated);
        side(html, "side", &title, &written.generated, is_right);
    }
    html.push_str("</div>");
}

fn side(html: &mut String, class: &str, title: &str, text: &str, is_right: bool) {
    let tag = if is_right { " <span class=\"tag finished\">as expected</span>" } else { "" };
    let text = match text.trim().is_empty() {
        true => "<span class=\"none\">nothing</span>".to_owned(),
        false => escape(&bounded(text, LONGEST)),
    };
    write!(html, "<div class=\"{class}\"><h3>{title}{tag}</h3><p>{text}</p></div>").ok();
}

fn same_words(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(step: u64, source: &str, generated: &str) -> Sample {
        Sample { step, source: source.to_owned(), target: format!("{source}!"), generated: generated.to_owned() }
    }

    fn page(samples: Vec<Sample>) -> String {
        let mut run = Record::default();
        run.history.samples = samples;
        section(&run)
    }

    #[test]
    fn the_first_stands_beside_the_last() {
        let html = page(vec![
            sample(5, "a", "early"),
            sample(5, "b", "other"),
            sample(10, "a", "middle"),
            sample(15, "a", "late"),
            sample(15, "a", "a!"),
        ]);
        assert_eq!(html.matches("class=\"sample\"").count(), 1, "{html}");
        assert!(html.contains("written after step 5</h3><p>early<") && !html.contains("middle"), "{html}");
        assert!(html.contains("written after step 15 <span") && html.contains("as expected"), "{html}");
        assert!(!html.contains("late") && !html.contains("other"), "{html}");
        assert_eq!(page(Vec::new()), "");
    }

    #[test]
    fn few_rows_and_short_texts() {
        let html = page((0..30).map(|row| sample(1, &format!("<i>{row}"), &"x".repeat(5000))).collect());
        assert_eq!(html.matches("class=\"sample\"").count(), MOST_ROWS);
        assert!(html.contains("10 more are in events.jsonl") && html.contains("&lt;i&gt;0") && !html.contains("<i>"));
        assert!(html.len() < MOST_ROWS * (LONGEST + 500), "{}", html.len());
    }
}
