//! A reliability diagram: how often predictions of a confidence are right, as inline SVG.

use std::fmt::Write;

use pipe_spec::evaluation::{Calibration, CalibrationBin};

use crate::report::grouped;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 44.0;
/// Bins that are drawn, whatever a file holds.
const MOST_BINS: usize = 20;

pub fn figure(calibration: &Calibration) -> String {
    let bins = &calibration.bins[..calibration.bins.len().min(MOST_BINS)];
    if bins.iter().all(|bin| bin.rows == 0) {
        return String::new();
    }
    let error = crate::report::html::share(Some(calibration.error));
    let mut html = format!(
        "<figure id=\"figure-calibration\"><figcaption>Calibration: share right by confidence; expected calibration \
         error {error}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
         <title>Share of right predictions by confidence</title>"
    );
    axes(&mut html);
    let most = bins.iter().map(|bin| bin.rows).max().unwrap_or(1);
    for (index, bin) in bins.iter().enumerate() {
        let width = 1.0 / bins.len() as f64;
        bar(&mut html, index as f64 * width, width, bin, bin.rows as f64 / most as f64);
    }
    write!(html, "<path class=\"ideal\" d=\"M{} {}L{} {}\"/>", across(0.0), down(0.0), across(1.0), down(1.0)).ok();
    for (index, bin) in bins.iter().enumerate().filter(|(_, bin)| bin.rows > 0) {
        let (x, y) = (across((index as f64 + 0.5) / bins.len() as f64), height(bin).map_or(down(0.0), down) - 4.0);
        let rows = grouped(bin.rows);
        write!(html, "<text class=\"middle rows\" x=\"{x:.1}\" y=\"{y:.1}\">{rows}</text>").ok();
    }
    html.push_str(
        "</svg><p class=\"note\">A bar that ends below the dashed line: the model is too sure; above it: not sure enough. \
         The numbers are rows, and a bar is darker the more it has.</p></figure>\n",
    );
    html
}

fn across(x: f64) -> f64 {
    LEFT + x * (WIDTH - LEFT - RIGHT)
}

fn down(y: f64) -> f64 {
    HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)
}

fn axes(html: &mut String) {
    for tick in 0..=5 {
        let share = f64::from(tick) / 5.0;
        let (x, y) = (across(share), down(share));
        write!(html, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{:.1}\"/>", across(1.0)).ok();
        write!(html, "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{share:.1}</text>", LEFT - 7.0, y + 4.0).ok();
        write!(html, "<text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{share:.1}</text>", down(0.0) + 17.0).ok();
    }
    write!(html, "<path class=\"axis\" d=\"M{LEFT} {:.1}H{:.1}\"/>", down(0.0), across(1.0)).ok();
    write!(html, "<text class=\"end\" x=\"{:.1}\" y=\"{}\">confidence</text>", across(1.0), HEIGHT - 8.0).ok();
}

fn height(bin: &CalibrationBin) -> Option<f64> {
    bin.accuracy.filter(|accuracy| (0.0..=1.0).contains(accuracy))
}

/// `shade` is 1 for the bin with the most rows.
fn bar(html: &mut String, from: f64, width: f64, bin: &CalibrationBin, shade: f64) {
    let Some(accuracy) = height(bin) else { return };
    let (x, wide) = (across(from) + 1.5, across(width) - LEFT - 3.0);
    // A bin in which nothing is right is a line.
    let y = down(accuracy).min(down(0.0) - 1.0);
    let (high, opacity) = (down(0.0) - y, 0.3 + 0.7 * shade);
    write!(html, "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" ").ok();
    write!(html, "opacity=\"{opacity:.2}\"><title>{} rows, confidence ", grouped(bin.rows)).ok();
    write!(html, "{}, right {accuracy:.3}</title></rect>", crate::report::html::share(bin.confidence)).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(rows: u64, accuracy: Option<f64>) -> CalibrationBin {
        CalibrationBin { rows, confidence: accuracy, accuracy }
    }

    #[test]
    fn a_bar_for_each_bin_with_rows() {
        let bins = vec![bin(0, None), bin(4, Some(0.25)), bin(6, Some(1.0)), bin(2, Some(0.0)), bin(1, Some(7e200))];
        let html = figure(&Calibration { error: 0.0625, bins });
        assert_eq!(html.matches("<rect").count(), 3, "{html}");
        assert!(html.contains("error 0.062") || html.contains("error 0.063"), "{html}");
        assert!(html.contains("4 rows, confidence 0.250, right 0.250") && !html.contains("NaN"), "{html}");
    }

    #[test]
    fn nothing_to_show() {
        assert_eq!(figure(&Calibration::default()), "");
        let many = Calibration { error: 0.0, bins: vec![bin(1, Some(0.5)); 100_000] };
        assert!(figure(&many).len() < 10_000);
    }
}
