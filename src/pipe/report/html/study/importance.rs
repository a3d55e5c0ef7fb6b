//! How much of an objective each parameter explains.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::StudyPage;
use super::ranking::Ranking;
use super::scatter::{WIDTH, empty};
use super::text::{end_of, title};
use crate::report::html::escape::escape;

/// Bars of one objective.
const MOST: usize = 12;
const ROW: f64 = 40.0;
const BAR: f64 = 400.0;

/// A block for each objective.
pub fn figures(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    let nothing = BTreeMap::new();
    let block = |index: usize| {
        let metric = &page.objectives[index].0;
        let known = page.importances.iter().find(|(name, _)| name == metric);
        block(index, metric, known.map_or(&nothing, |known| &known.1), ranking.ranked.len())
    };
    (0..page.objectives.len()).map(block).collect()
}

fn block(index: usize, metric: &str, shares: &BTreeMap<String, f64>, complete: usize) -> String {
    let key = format!("importance-{index}");
    let caption = format!("Parameter importance for {}", title(metric));
    let mut bars: Vec<(&String, f64)> =
        shares.iter().map(|(name, share)| (name, *share)).filter(|bar| bar.1.is_finite() && bar.1 >= 0.0).collect();
    bars.sort_by(|a, b| b.1.total_cmp(&a.1));
    let sum: f64 = bars.iter().map(|bar| bar.1).sum();
    if !(sum > 0.0 && sum.is_finite()) {
        let why = format!("Too few trials to tell: {complete} complete.");
        return empty(&key, &caption, &why);
    }
    let left_out = bars.len().saturating_sub(MOST);
    bars.truncate(MOST);
    let height = bars.len() as f64 * ROW + 4.0;
    let label = format!("Importance of each parameter for {}", title(metric));
    let mut html = format!(
        "<figure id=\"figure-{key}\"><figcaption>{caption}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{label}\"><title>{label}</title>"
    );
    for (row, (name, share)) in bars.iter().enumerate() {
        bar(&mut html, row as f64 * ROW, name, share / sum);
    }
    let left_out = if left_out > 0 { format!(" {left_out} with smaller shares left out.") } else { String::new() };
    let note = format!("How much of the differences between trials each parameter explains.{left_out}");
    writeln!(html, "</svg><p class=\"note\">{note}</p></figure>").ok();
    html
}

fn bar(html: &mut String, top: f64, name: &str, share: f64) {
    let (width, percent) = ((share * BAR).max(1.0), share * 100.0);
    let percent = if percent > 0.0 && percent < 1.0 { "&lt; 1%".to_owned() } else { format!("{percent:.0}%") };
    write!(html, "<g><title>{}: {percent}</title>", escape(name)).ok();
    write!(html, "<text class=\"strong\" x=\"2\" y=\"{:.1}\">{}</text>", top + 15.0, escape(&end_of(name, 44))).ok();
    write!(html, "<rect class=\"bar\" x=\"2\" y=\"{:.1}\" width=\"{width:.1}\" height=\"12\" rx=\"2\"/>", top + 21.0)
        .ok();
    write!(html, "<text x=\"{:.1}\" y=\"{:.1}\">{percent}</text></g>", width + 9.0, top + 32.0).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_shares() {
        let shares = [("lr", 3.0), ("<b>", 1.0), ("none", 0.0), ("odd", f64::NAN)];
        let shares = shares.map(|(name, share)| (name.to_owned(), share)).into();
        let html = block(0, "loss", &shares, 9);
        assert_eq!(html.matches("<rect").count(), 3, "{html}");
        assert!(html.contains("75%") && html.contains("&lt;b&gt;: 25%") && !html.contains("NaN"), "{html}");
        assert!(html.find("lr: 75%") < html.find("&lt;b&gt;: 25%"));
    }

    #[test]
    fn too_few_trials() {
        assert!(block(0, "loss", &BTreeMap::new(), 2).contains("Too few trials to tell: 2 complete"));
        let odd = [("lr".to_owned(), f64::INFINITY), ("b".to_owned(), 0.0)].into();
        assert!(block(0, "loss", &odd, 0).contains("Too few trials"));
        let many = (0..30).map(|index| (format!("p{index}"), 1.0)).collect();
        assert!(block(0, "loss", &many, 40).contains("18 with smaller shares left out"));
    }
}
