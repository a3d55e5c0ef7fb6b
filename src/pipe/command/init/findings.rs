//! What was found in the data, as comments of the draft.

use pipe_spec::Inspection;
use pipe_spec::pipeline::Task;

use super::column::{Column, Kind, Lengths};
use super::survey::{Field, Survey};
use crate::report::{bounded, grouped, visible_line};

/// Classes and columns that are listed by name at most.
const LISTED: usize = 8;
/// Characters of a name.
const NAME: usize = 40;

/// Comments without their `# `.
pub fn findings(survey: &Survey, task: Task, fields: &[Field], inspection: Option<&Inspection>) -> Vec<String> {
    let mut lines = vec![format!("found: {}", survey.count())];
    for (role, name) in fields {
        let Some(column) = survey.column(name) else { continue };
        lines.push(format!("  {role}: {}", describe(column, role, task, inspection)));
    }
    if fields.is_empty() {
        let texts = survey.columns.iter().filter(|column| column.kind == Kind::Text);
        lines.extend(texts.map(|column| format!("  {}", words(column.words))));
    }
    let is_used = |column: &&Column| fields.iter().any(|(_, name)| *name == column.name);
    let others: Vec<&Column> = survey.columns.iter().filter(|column| !is_used(column)).collect();
    match task {
        Task::TimeSeries => {
            lines.push(format!("  features: {}", listed(&others, |column| shown(&column.name))));
        }
        _ if !others.is_empty() && !fields.is_empty() => {
            let other = |column: &&Column| format!("{} ({})", shown(&column.name), column.kind.name());
            lines.push(format!("  not used: {}", listed(&others, other)));
        }
        _ => {}
    }
    lines
}

fn describe(column: &Column, role: &str, task: Task, inspection: Option<&Inspection>) -> String {
    let empty = match column.empty {
        0 => String::new(),
        empty => format!("; {} rows without one", grouped(empty as u64)),
    };
    let name = shown(&column.name);
    match (role, column.kind) {
        ("label", _) if column.is_quantity() && task == Task::Classification => match column.range {
            Some((low, high)) => format!("{name}, a number from {low} to {high}{empty}"),
            None => format!("{name}{empty}"),
        },
        ("label", _) if !column.classes.is_empty() => {
            let class = |(class, rows): &(String, usize)| format!("{} {}", shown(class), grouped(*rows as u64));
            let noun = if column.classes.len() == 1 { "class" } else { "classes" };
            format!("{name}, {} {noun}: {}{empty}", column.classes.len(), listed(&column.classes, class))
        }
        ("image" | "time" | "label", _) => format!("{name}{empty}"),
        _ => match inspection.and_then(|found| found.train.lengths.iter().find(|lengths| lengths.column == role)) {
            Some(lengths) => format!(
                "{name}, {:.0} tokens on average, 95 % up to {}, longest {}",
                lengths.mean,
                grouped(lengths.p95),
                grouped(lengths.longest)
            ),
            None => format!("{name}, {}{empty}", words(column.words)),
        },
    }
}

fn words(lengths: Lengths) -> String {
    let Lengths { mean, p95, longest } = lengths;
    let noun = if mean == 1 { "word" } else { "words" };
    format!(
        "{} {noun} on average, 95 % up to {}, longest {}",
        grouped(mean as u64),
        grouped(p95 as u64),
        grouped(longest as u64)
    )
}

/// On one line, whatever is in it.
fn shown(name: &str) -> String {
    bounded(&visible_line(name), NAME)
}

fn listed<T>(items: &[T], name: impl Fn(&T) -> String) -> String {
    let mut text = items.iter().take(LISTED).map(name).collect::<Vec<_>>().join(", ");
    if items.len() > LISTED {
        text += &format!(" and {} more", items.len() - LISTED);
    }
    text
}
