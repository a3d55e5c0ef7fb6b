//! Tables of text, and the table of attempts.

use pipe_spec::text::human_bytes;
use pipe_spec::{Attempt, Outcome, RunState};

use super::visible::visible_line;

/// Characters of a cell.
const LONGEST_CELL: usize = 1000;

/// Rows under a head, each column as wide as its widest cell; the last one is not padded.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(ToString::to_string).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| cut(&visible_line(cell))).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let lines: Vec<String> = self
            .rows
            .iter()
            .map(|row| {
                let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| padded(cell, *width)).collect();
                cells.join("  ").trim_end().to_owned()
            })
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

fn padded(cell: &str, width: usize) -> String {
    format!("{cell}{}", " ".repeat(width.saturating_sub(cell.chars().count())))
}

/// A cell that is too long, with a count of what is left out.
fn cut(cell: &str) -> String {
    match cell.char_indices().nth(LONGEST_CELL) {
        None => cell.to_owned(),
        Some((end, _)) => format!("{}... ({} more characters)", &cell[..end], cell[end..].chars().count()),
    }
}

/// Why the last attempt ended is left out where the error of the run says it.
pub fn attempts_table(state: &RunState) -> Table {
    let mut table = Table::new(&["attempt", "batch", "outcome", "steps", "loss", "peak", "time", "why"]);
    let last = state.attempts.len().saturating_sub(1);
    for (index, attempt) in state.attempts.iter().enumerate() {
        let reason = Some(&attempt.reason).filter(|_| index < last || !ends_with_error_of_last_attempt(state));
        let why = [reason.unwrap_or(&None), &attempt.action]
            .into_iter()
            .flatten()
            .cloned()
            .collect::<Vec<_>>()
            .join("; then ");
        table.row(vec![
            attempt.number.to_string(),
            format!("{} x {}", attempt.batch, attempt.accum),
            attempt.outcome.map_or("running", Outcome::name).to_owned(),
            steps(attempt),
            losses(attempt),
            attempt.peak_memory.map_or("-".to_owned(), human_bytes),
            duration(attempt.seconds),
            why.lines().next().unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// Whether the error of a run says why its last attempt ended.
pub fn ends_with_error_of_last_attempt(state: &RunState) -> bool {
    let reason = state.attempts.last().and_then(|attempt| attempt.reason.as_ref());
    state.error.as_ref().zip(reason).is_some_and(|(error, reason)| error.contains(reason.as_str()))
}

/// The steps that an attempt did: `4`, `1-9`.
pub fn steps(attempt: &Attempt) -> String {
    match (attempt.first_step, attempt.last_step) {
        (Some(first), Some(last)) if first == last => first.to_string(),
        (Some(first), Some(last)) => format!("{first}-{last}"),
        _ => "-".to_owned(),
    }
}

/// The loss of its first and of its last step.
pub fn losses(attempt: &Attempt) -> String {
    match (attempt.first_loss, attempt.last_loss) {
        (Some(first), Some(last)) => format!("{first:.3} to {last:.3}"),
        _ => "-".to_owned(),
    }
}

/// Seconds for people: `4.2s`, `3m20s`, `2h05m`.
pub fn duration(seconds: f64) -> String {
    // The sum of nothing is less than nothing.
    let seconds = seconds.max(0.0) + 0.0;
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        _ => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["a", "long head", "c"]);
        table.row(vec!["wide cell".into(), "x".into(), "y".into()]);
        assert_eq!(table.to_string(), "a          long head  c\nwide cell  x          y");
    }

    #[test]
    fn a_long_cell_is_cut() {
        let mut table = Table::new(&["a", "b"]);
        table.row(vec!["ä".repeat(70_000), "x".into()]);
        table.row(vec!["\u{1b}[2J\n".into(), "y".repeat(70_000)]);
        let text = table.to_string();
        assert!(text.contains(&format!("{}... (69000 more characters)  x\n", "ä".repeat(1000))));
        assert!(text.contains("\\x1b[2J\\n  ") && text.ends_with("y... (69000 more characters)"));
    }

    #[test]
    fn durations() {
        for (seconds, want) in [(-0.0, "0.0s"), (0.04, "0.0s"), (59.9, "59.9s"), (200.0, "3m20s"), (7500.0, "2h05m")] {
            assert_eq!(duration(seconds), want);
        }
    }
}
