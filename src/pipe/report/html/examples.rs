//! Examples of the evaluation data: rows that a classifier got wrong, texts that the model wrote, and pictures with the texts
//! that it finds most similar.

use std::fmt::Write;

use pipe_spec::evaluation::{Mistake, RetrievalExample, RetrievedCaption};
use pipe_spec::event::Sample;

use super::markup::escape;
use crate::report::{bounded, grouped};
use crate::run::Record;

/// Characters of a text that the page shows.
const LONGEST: usize = 2000;
/// Rows of which texts are shown.
const MOST_ROWS: usize = 20;

/// The rows of the evaluation data for which a classifier was surest of a wrong class.
pub fn mistakes(run: &Record) -> String {
    let Some(details) = run.evaluation.as_ref().filter(|details| !details.mistakes.is_empty()) else {
        return String::new();
    };
    let mut html =
        "<section id=\"mistakes\"><h2>Most confident mistakes</h2><p class=\"note\">Held-out rows for which the model \
                    gave the highest probability to a wrong class. Wrong labels in the data show up here too.</p>\
                    <div class=\"examples\">"
            .to_owned();
    details.mistakes.iter().take(Mistake::MOST).for_each(|mistake| wrong_card(&mut html, mistake));
    html.push_str("</div></section>\n");
    html
}

fn wrong_card(html: &mut String, mistake: &Mistake) {
    let Mistake { rows: [first, last], text, picture, class, predicted, confidence } = mistake;
    let rows = if first == last { format!("row {first}") } else { format!("rows {first} to {last}") };
    html.push_str("<div class=\"example\">");
    if is_base64(picture) {
        write!(html, "<img alt=\"{rows}\" src=\"data:image/png;base64,{picture}\">").ok();
    }
    let sure = if (0.0..=1.0).contains(confidence) { format!("{:.0} %", confidence * 100.0) } else { "-".to_owned() };
    let (class, predicted) = (shown(class), shown(predicted));
    write!(html, "<div><h3><span class=\"wrong\">{predicted} <small>{sure}</small></span> instead of {class}</h3>")
        .ok();
    // The trainer has cut a text of this length.
    let text = escape(&bounded(text, Mistake::TEXT - 1));
    write!(html, "<p>{text}</p><p class=\"note\">{rows} of the data</p></div></div>").ok();
}

/// The texts that the model wrote: input, expected text, and its text after the first evaluation and after the last.
pub fn generated(run: &Record) -> String {
    let samples = &run.history.samples;
    let Some(last) = samples.iter().map(|sample| sample.step).max() else { return String::new() };
    let first = samples.iter().map(|sample| sample.step).min().unwrap_or(last);
    let rows = at(samples, last);
    let before = if first == last { Vec::new() } else { at(samples, first) };
    let mut html = "<section id=\"samples\"><h2>Generated texts</h2>".to_owned();
    for sample in rows.iter().take(MOST_ROWS) {
        let earlier = before.iter().find(|other| (&other.source, &other.target) == (&sample.source, &sample.target));
        generated_row(&mut html, sample, earlier.copied());
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

fn generated_row(html: &mut String, sample: &Sample, earlier: Option<&Sample>) {
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
    let text = if text.trim().is_empty() {
        "<span class=\"none\">nothing</span>".to_owned()
    } else {
        escape(&bounded(text, LONGEST))
    };
    write!(html, "<div class=\"{class}\"><h3>{title}{tag}</h3><p>{text}</p></div>").ok();
}

fn same_words(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

/// Characters of a caption.
const CAPTION: usize = 200;
/// Characters of a picture in base64: a picture of 96 x 96 has some 40,000 at most.
const PICTURE: usize = 64_000;

/// Pictures of the evaluation data with the texts that a contrastive model finds most similar to them.
pub fn retrieved(run: &Record) -> String {
    let Some(details) = run.evaluation.as_ref().filter(|details| !details.retrieval.is_empty()) else {
        return String::new();
    };
    let mut html = format!(
        "<section id=\"retrieval\"><h2>Pictures and their texts after step {}</h2><p class=\"note\">The texts of the \
         evaluation data that are most similar to each picture, with the cosine of both.</p><div class=\"examples\">",
        details.step
    );
    details.retrieval.iter().take(RetrievalExample::MOST).for_each(|example| card(&mut html, example));
    html.push_str("</div></section>\n");
    html
}

fn card(html: &mut String, example: &RetrievalExample) {
    let caption = shown(&example.caption);
    html.push_str("<div class=\"example\">");
    if is_base64(&example.picture) {
        let picture = &example.picture;
        write!(html, "<img alt=\"{caption}\" src=\"data:image/png;base64,{picture}\">").ok();
    }
    write!(html, "<div><h3>{caption}</h3><ol>").ok();
    for found in example.best.iter().take(RetrievalExample::MOST_CAPTIONS) {
        let RetrievedCaption { caption, score, right } = found;
        let class = if *right { " class=\"right\"" } else { "" };
        write!(html, "<li{class}><div><span>{}</span> <b>{}</b></div></li>", shown(caption), cosine(*score)).ok();
    }
    html.push_str("</ol>");
    if !example.best.iter().any(|found| found.right) {
        let (rank, score) = (ordinal(example.rank), cosine(example.score));
        write!(html, "<p class=\"note\">Its own text ranks {rank} ({score}).</p>").ok();
    }
    html.push_str("</div></div>");
}

fn shown(caption: &str) -> String {
    escape(&bounded(caption, CAPTION))
}

/// `1st`, `12th`, `1,003rd`.
fn ordinal(number: u64) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{}{ending}", grouped(number))
}

fn cosine(score: f64) -> String {
    if score.abs() <= 1.01 { format!("{score:.2}") } else { "-".to_owned() }
}

/// Whether it is a picture and nothing else: text in an attribute must not end it.
fn is_base64(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    !text.is_empty() && text.len() <= PICTURE && text.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipe_spec::evaluation::EvaluationDetails;

    fn sample(step: u64, source: &str, generated: &str) -> Sample {
        Sample { step, source: source.to_owned(), target: format!("{source}!"), generated: generated.to_owned() }
    }

    fn generated_page(samples: Vec<Sample>) -> String {
        let mut run = Record::default();
        run.history.samples = samples;
        generated(&run)
    }

    #[test]
    fn the_first_stands_beside_the_last() {
        let html = generated_page(vec![
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
        assert_eq!(generated_page(Vec::new()), "");
    }

    #[test]
    fn few_rows_and_short_texts() {
        let html = generated_page((0..30).map(|row| sample(1, &format!("<i>{row}"), &"x".repeat(5000))).collect());
        assert_eq!(html.matches("class=\"sample\"").count(), MOST_ROWS);
        assert!(html.contains("10 more are in events.jsonl") && html.contains("&lt;i&gt;0") && !html.contains("<i>"));
        assert!(html.len() < MOST_ROWS * (LONGEST + 500), "{}", html.len());
    }

    #[test]
    fn the_surest_mistakes() {
        let mistake = |text: &str, rows| Mistake {
            rows,
            text: text.to_owned(),
            class: "<a>".to_owned(),
            predicted: "b".to_owned(),
            confidence: 0.987,
            ..Mistake::default()
        };
        let all =
            [mistake("x < y", [3, 3]), mistake(&"z".repeat(90_000), [4, 9])].into_iter().cycle().take(50).collect();
        let evaluation = Some(EvaluationDetails { mistakes: all, ..EvaluationDetails::default() });
        let html = mistakes(&Record { evaluation, ..Record::default() });
        assert_eq!(html.matches("class=\"example\"").count(), Mistake::MOST);
        assert!(html.contains("b <small>99 %</small></span> instead of &lt;a&gt;</h3><p>x &lt; y</p>"), "{html}");
        assert!(html.contains("row 3 of the data") && html.contains("rows 4 to 9 of the data"), "{html}");
        assert!(html.len() < 10_000, "{}", html.len());
        assert_eq!(mistakes(&Record::default()), "");
    }

    fn retrieved_page(example: RetrievalExample, count: usize) -> String {
        let evaluation = EvaluationDetails { step: 7, retrieval: vec![example; count], ..EvaluationDetails::default() };
        retrieved(&Record { evaluation: Some(evaluation), ..Record::default() })
    }

    fn example(picture: &str) -> RetrievalExample {
        let found = |caption: &str, right| RetrievedCaption { caption: caption.to_owned(), score: 0.876, right };
        RetrievalExample {
            picture: picture.to_owned(),
            caption: "a <red> car".to_owned(),
            rank: 12,
            score: -0.25,
            best: vec![found("a van", false), found("a \"bus\"", false)],
        }
    }

    #[test]
    fn a_card_for_each_picture() {
        let html = retrieved_page(example("iVBORw0KGgo="), 3);
        assert_eq!(html.matches("src=\"data:image/png;base64,iVBORw0KGgo=\"").count(), 3, "{html}");
        assert!(html.contains("<h3>a &lt;red&gt; car</h3>") && html.contains("<b>0.88</b>"), "{html}");
        assert!(html.contains("a &quot;bus&quot;") && html.contains("Its own text ranks 12th (-0.25)."), "{html}");
        let mut right = example("");
        right.best[1].right = true;
        assert!(!retrieved_page(right, 1).contains("ranks"));
        assert_eq!([1, 2, 13, 1003].map(ordinal), ["1st", "2nd", "13th", "1,003rd"]);
    }

    #[test]
    fn what_is_no_picture_is_not_shown() {
        for picture in ["\"><script>", "a b", "data:x", &"A".repeat(PICTURE + 1)] {
            let html = retrieved_page(example(picture), 1);
            assert!(!html.contains("<img") && !html.contains("<script>"), "{html}");
        }
        let many = retrieved_page(example("AAAA"), 1000);
        assert_eq!(many.matches("<img").count(), RetrievalExample::MOST);
    }
}
