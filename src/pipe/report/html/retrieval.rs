//! Pictures of the evaluation data with the texts that a contrastive model finds most similar to them.

use std::fmt::Write;

use pipe_spec::evaluation::{RetrievalExample, RetrievedCaption};

use super::escape::escape;
use crate::report::{bounded, grouped};
use crate::run::Record;

/// Characters of a caption.
const CAPTION: usize = 200;
/// Characters of a picture in base64: a picture of 96 x 96 has some 40,000 at most.
const PICTURE: usize = 64_000;

pub fn section(run: &Record) -> String {
    let Some(details) = run.evaluation.as_ref().filter(|details| !details.retrieval.is_empty()) else {
        return String::new();
    };
    let mut html = format!(
        "<section id=\"retrieval\"><h2>Pictures and their texts after step {}</h2><p class=\"note\">Of all texts of the \
         evaluation data, those most similar to each picture, with the cosine of both.</p><div class=\"examples\">",
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
        let (rank, score) = (grouped(example.rank), cosine(example.score));
        write!(html, "<p class=\"note\">Its own text has place {rank}, with {score}.</p>").ok();
    }
    html.push_str("</div></div>");
}

fn shown(caption: &str) -> String {
    escape(&bounded(caption, CAPTION))
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
    use pipe_spec::evaluation::EvaluationDetails;

    use super::*;

    fn page(example: RetrievalExample, count: usize) -> String {
        let evaluation = EvaluationDetails { step: 7, retrieval: vec![example; count], ..EvaluationDetails::default() };
        section(&Record { evaluation: Some(evaluation), ..Record::default() })
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
        let html = page(example("iVBORw0KGgo="), 3);
        assert_eq!(html.matches("src=\"data:image/png;base64,iVBORw0KGgo=\"").count(), 3, "{html}");
        assert!(html.contains("<h3>a &lt;red&gt; car</h3>") && html.contains("<b>0.88</b>"), "{html}");
        assert!(
            html.contains("a &quot;bus&quot;") && html.contains("Its own text has place 12, with -0.25."),
            "{html}"
        );
        let mut right = example("");
        right.best[1].right = true;
        assert!(!page(right, 1).contains("has place"));
    }

    #[test]
    fn what_is_no_picture_is_not_shown() {
        for picture in ["\"><script>", "a b", "data:x", &"A".repeat(PICTURE + 1)] {
            let html = page(example(picture), 1);
            assert!(!html.contains("<img") && !html.contains("<script>"), "{html}");
        }
        let many = page(example("AAAA"), 1000);
        assert_eq!(many.matches("<img").count(), RetrievalExample::MOST);
    }
}
