//! What each rank of a training held, and how long it computed.

use pipe_spec::text::human_bytes;

use super::table;
use crate::run::{Record, result};

/// The section; nothing for one rank.
pub fn section(run: &Record) -> String {
    let figures = result::figures(&run.history.steps);
    if figures.is_empty() {
        return String::new();
    }
    let slowest = result::slowest(&figures);
    let row = |(index, rank): (usize, &result::RankFigures)| {
        let mark = if slowest == Some(index) { ", the slowest" } else { "" };
        vec![index.to_string(), human_bytes(rank.peak), format!("{:.0} ms{mark}", rank.ms)]
    };
    let rows: Vec<Vec<String>> = figures.iter().enumerate().map(row).collect();
    let table = table(&["rank", "peak memory", "median time of a step, without waiting"], &rows);
    format!("<section id=\"ranks\"><h2>Ranks</h2>{table}</section>\n")
}
