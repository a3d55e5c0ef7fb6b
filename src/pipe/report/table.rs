//! Tables of text, and the table of attempts.

use std::collections::BTreeMap;

use pipe_spec::run::Answer;
use pipe_spec::text::human_bytes;
use pipe_spec::{Attempt, Outcome, RunState};
use textwrap::core::display_width;

use super::answer;
use super::text::{stdout_columns, times_ranks, visible_line, wrap};

/// Characters of a cell.
const LONGEST_CELL: usize = 1000;

/// The last column is wrapped where it has so many characters at least; else it stands below the others.
const LEAST_WRAPPED: usize = 16;
/// Columns whose values are compared are wrapped where they are wider than this.
const COMPARED: usize = 30;
/// The indent of a cell that stands below its row.
const INDENT: usize = 4;
const GAP: usize = 2;

/// Rows under a head, each column as wide as its widest cell; the last one is not padded. On a terminal that is too narrow,
/// cells are wrapped.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Whether the columns after the first hold values to be compared, which stay beside each other.
    compares: bool,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(ToString::to_string).collect()], compares: false }
    }

    /// A table whose columns are to be compared.
    pub fn comparing(head: &[&str]) -> Self {
        Self { compares: true, ..Self::new(head) }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| truncated(&visible_line(cell))).collect());
    }

    /// As it is printed on stdout: as wide as its terminal at most.
    pub fn on_stdout(&self) -> String {
        self.render(stdout_columns())
    }

    /// In lines of at most `columns` characters.
    pub fn render(&self, columns: Option<usize>) -> String {
        let mut widths = self.widths();
        let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let Some(columns) = columns.filter(|columns| total(&widths) > *columns) else {
            return self.lines(&widths, None);
        };
        let Some(last) = widths.pop() else { return String::new() };
        if self.compares {
            let free = columns.saturating_sub(GAP + last.min(LEAST_WRAPPED));
            shrink(&mut widths, free, COMPARED);
        }
        let others = total(&widths) + GAP;
        if others + last.min(LEAST_WRAPPED) <= columns && !widths.is_empty() {
            widths.push(last.min(columns - others));
            return self.lines(&widths, None);
        }
        shrink(&mut widths, columns, 1);
        self.lines(&widths, Some(columns))
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| display_width(cell)).max().unwrap_or(0)
        };
        (0..columns).map(width).collect()
    }

    /// Rows of these widths. With `below`, cells that have no column stand below their row, in lines of so many characters.
    fn lines(&self, widths: &[usize], below: Option<usize>) -> String {
        let mut lines = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<Vec<String>> = row.iter().zip(widths).map(|(cell, width)| wrap(cell, *width)).collect();
            for number in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let line = |cell: &Vec<String>| cell.get(number).cloned().unwrap_or_default();
                let padded: Vec<String> =
                    cells.iter().zip(widths).map(|(cell, width)| padded(&line(cell), *width)).collect();
                lines.push(padded.join(&" ".repeat(GAP)).trim_end().to_owned());
            }
            let text = row.get(widths.len()).filter(|text| index > 0 && !text.is_empty());
            if let Some((text, columns)) = text.zip(below) {
                let indent = INDENT.min(columns / 2);
                lines.extend(wrap(text, columns - indent).iter().map(|line| format!("{}{line}", " ".repeat(indent))));
            }
        }
        lines.join("\n")
    }
}

/// Makes the widest columns narrower until all fit, none less than `least`.
fn shrink(widths: &mut [usize], columns: usize, least: usize) {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > columns {
        match widths.iter_mut().max() {
            Some(widest) if *widest > least => *widest -= 1,
            _ => return,
        }
    }
}

fn padded(cell: &str, width: usize) -> String {
    format!("{cell}{}", " ".repeat(width.saturating_sub(display_width(cell))))
}

/// A cell that is too long, with a count of what is left out.
fn truncated(cell: &str) -> String {
    match cell.char_indices().nth(LONGEST_CELL) {
        None => cell.to_owned(),
        Some((end, _)) => format!("{}... ({} more characters)", &cell[..end], cell[end..].chars().count()),
    }
}

fn first_line(text: &str) -> Option<&str> {
    text.lines().next()
}

/// The steps of a run of several, with what each waits for, what it has achieved, and where it was done.
pub fn stages_table(state: &RunState, answers: &BTreeMap<String, Answer>) -> Table {
    let mut table = Table::new(&["step", "status", "time", "after", "result", "run"]);
    for step in state.stages() {
        let needs = if step.needs.is_empty() { "-".to_owned() } else { step.needs.join(", ") };
        table.row(vec![
            step.name.clone(),
            step.status.name().to_owned(),
            step.seconds.map_or("-".to_owned(), duration),
            needs,
            answers.get(&step.name).map_or("-".to_owned(), answer::score),
            step.error.as_deref().and_then(first_line).or(step.run.as_deref()).unwrap_or("-").to_owned(),
        ]);
    }
    table
}

/// Why the last attempt ended is left out where the error of the run says it.
pub fn attempts_table(state: &RunState) -> Table {
    let mut table = Table::new(&["attempt", "batch", "outcome", "steps", "loss", "peak", "time", "why"]);
    let last = state.attempts().len().saturating_sub(1);
    for (index, attempt) in state.attempts().iter().enumerate() {
        let reason = Some(&attempt.reason).filter(|_| index < last || !ends_with_error_of_last_attempt(state));
        let why = [reason.unwrap_or(&None), &attempt.action]
            .into_iter()
            .flatten()
            .cloned()
            .collect::<Vec<_>>()
            .join("; then ");
        table.row(vec![
            attempt.number.to_string(),
            match attempt.has_batch {
                true => format!("{} x {}{}", attempt.batch, attempt.accum, times_ranks(attempt.ranks)),
                false => "-".to_owned(),
            },
            attempt.outcome.map_or("running", Outcome::name).to_owned(),
            steps(attempt),
            losses(attempt),
            attempt.figures.peak_memory.map_or("-".to_owned(), human_bytes),
            duration(attempt.figures.seconds),
            why.lines().next().unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// Whether the error of a run says why its last attempt ended.
pub fn ends_with_error_of_last_attempt(state: &RunState) -> bool {
    let reason = state.attempts().last().and_then(|attempt| attempt.reason.as_ref());
    state.error.as_ref().zip(reason).is_some_and(|(error, reason)| error.contains(reason.as_str()))
}

/// The steps that an attempt did: `4`, `1-9`.
pub fn steps(attempt: &Attempt) -> String {
    match (attempt.figures.first_step, attempt.figures.last_step) {
        (Some(first), Some(last)) if first == last => first.to_string(),
        (Some(first), Some(last)) => format!("{first}-{last}"),
        _ => "-".to_owned(),
    }
}

/// The loss of its first and of its last step.
pub fn losses(attempt: &Attempt) -> String {
    match (attempt.figures.first_loss, attempt.figures.last_loss) {
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
        assert_eq!(table.render(None), "a          long head  c\nwide cell  x          y");
    }

    #[test]
    fn a_long_cell_is_truncated() {
        let mut table = Table::new(&["a", "b"]);
        table.row(vec!["ä".repeat(70_000), "x".into()]);
        table.row(vec!["\u{1b}[2J\n".into(), "y".repeat(70_000)]);
        let text = table.render(None);
        assert!(text.contains(&format!("{}... (69000 more characters)  x\n", "ä".repeat(1000))));
        assert!(text.contains("\\x1b[2J\\n  ") && text.ends_with("y... (69000 more characters)"));
    }

    #[test]
    fn a_narrow_terminal_wraps_the_last_column() {
        let mut table = Table::new(&["run", "why"]);
        table.row(vec!["one".into(), "a long reason for it".into()]);
        assert_eq!(table.render(Some(25)), "run  why\none  a long reason for it");
        assert_eq!(table.render(Some(24)), "run  why\none  a long reason for\n     it");
        assert_eq!(table.render(Some(20)), "run\none\n    a long reason\n    for it");
        let mut empty = Table::new(&["run", "status", ""]);
        empty.row(vec!["a-very-long-name".into(), "finished".into(), String::new()]);
        assert_eq!(empty.render(Some(20)), "run         status\na-very-lon  finished\ng-name");
        assert_eq!(
            table.render(Some(2)),
            "ru\nn\non\ne\n a\n l\n o\n n\n g\n r\n e\n a\n s\n o\n n\n f\n o\n r\n i\n t"
        );
    }

    #[test]
    fn compared_values_stay_beside_each_other() {
        let mut table = Table::comparing(&["setting", "a", "b"]);
        table.row(vec!["data.train".into(), "x".repeat(60), "y".repeat(60)]);
        for columns in [60, 80, 100] {
            let text = table.render(Some(columns));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert!(columns < 80 || text.lines().any(|line| line.contains('x') && line.contains('y')), "{text}");
            assert_eq!((text.matches('x').count(), text.matches('y').count()), (60, 60), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (seconds, want) in [(-0.0, "0.0s"), (0.04, "0.0s"), (59.9, "59.9s"), (200.0, "3m20s"), (7500.0, "2h05m")] {
            assert_eq!(duration(seconds), want);
        }
    }
}
