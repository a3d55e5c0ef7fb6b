//! What is noticed about the labels of rows while they are read once: labels with space around them, and rows without a label.

use std::sync::{Mutex, PoisonError};

use pipe_data::Rows;

/// Rows that a message names at most.
const NAMED: usize = 5;

/// Filled by threads, in any order.
#[derive(Default)]
pub struct LabelRows {
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    trimmed: Vec<(usize, String)>,
    trimmed_count: usize,
    empty: Vec<usize>,
}

impl LabelRows {
    /// A row whose label was read without the space around it.
    pub fn see_trimmed(&self, row: usize, label: &str) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.trimmed_count += 1;
        // The first of all is among the first of any number of them, however threads come.
        found.trimmed.push((row, label.to_owned()));
        found.trimmed.sort_unstable();
        found.trimmed.truncate(1);
    }

    /// A row that has no label and is left out.
    pub fn see_empty(&self, row: usize) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).empty.push(row);
    }

    /// The rows that are left out, and what is to be said of all this.
    pub fn finish(self, rows: &Rows) -> (Vec<usize>, Vec<String>) {
        let Found { trimmed, trimmed_count, mut empty } =
            self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        empty.sort_unstable();
        let mut notices = Vec::new();
        if let Some((row, label)) = trimmed.first() {
            let many = if trimmed_count == 1 { "one row has".to_owned() } else { format!("{trimmed_count} rows have") };
            notices.push(format!(
                "{many} a label with space around it, which was left out; the first is {label:?} ({})",
                place(rows, *row)
            ));
        }
        if !empty.is_empty() {
            let named: Vec<String> = empty.iter().take(NAMED).map(|row| place(rows, *row)).collect();
            let more = if empty.len() > NAMED { format!(" and {} more", empty.len() - NAMED) } else { String::new() };
            let many = if empty.len() == 1 {
                "one row without a label was".to_owned()
            } else {
                format!("{} rows without a label were", empty.len())
            };
            notices.push(format!("{many} left out: {}{more}", named.join(", ")));
        }
        (empty, notices)
    }
}

fn place(rows: &Rows, row: usize) -> String {
    let (path, line) = rows.line(row);
    format!("{} line {line}", path.display())
}
