//! The stages of a run that has several: a drawing of their order, and a table.

use std::collections::BTreeMap;

use pipe_spec::RunState;
use pipe_spec::run::{Answer, StageState};

use super::markup::{escape, prose, table};
use crate::report::{answer, duration};

const WIDTH: usize = 150;
const HEIGHT: usize = 44;
const GAP_ACROSS: usize = 56;
const GAP_DOWN: usize = 16;

/// The section. `link` is the address of the page of a run.
pub fn section(state: &RunState, answers: &BTreeMap<String, Answer>, link: impl Fn(&str) -> String) -> String {
    let row = |stage: &StageState| {
        let status = stage.status.name();
        let run = stage
            .run
            .as_deref()
            .map_or("-".to_owned(), |run| format!("<a href=\"{}\">{}</a>", escape(&link(run)), escape(run)));
        vec![
            escape(&stage.name),
            format!("<span class=\"tag {}\">{status}</span>", class(stage)),
            stage.seconds.map_or("-".to_owned(), duration),
            if stage.needs.is_empty() { "-".to_owned() } else { escape(&stage.needs.join(", ")) },
            answers.get(&stage.name).map_or("-".to_owned(), |found| prose(&escape(&answer::sentence(found)))),
            run,
            stage.error.as_deref().map_or("-".to_owned(), |error| prose(&escape(error))),
        ]
    };
    let rows: Vec<Vec<String>> = state.stages().iter().map(row).collect();
    let head = ["step", "status", "time", "after", "result", "run", "why"];
    format!("<section id=\"steps\"><h2>Steps</h2>{}{}</section>\n", drawing(state.stages()), table(&head, &rows))
}

/// The class with which the page colours this outcome.
fn class(stage: &StageState) -> &'static str {
    use pipe_spec::run::StageStatus::{Failed, Finished, LeftOut, Running, Stopped, Unchanged, Waiting};
    match stage.status {
        Finished | Unchanged => "finished",
        Failed => "failed",
        Stopped => "stopped",
        Running => "running",
        Waiting | LeftOut => "waiting",
    }
}

/// The number of stages that come before each stage, one after the other.
fn depths(stages: &[StageState]) -> Vec<usize> {
    let mut depths = vec![0; stages.len()];
    // A graph has no circle, so that after as many rounds as there are stages nothing changes any more.
    for _ in stages {
        for (index, stage) in stages.iter().enumerate() {
            let before = stages
                .iter()
                .zip(&depths)
                .filter(|(other, _)| stage.needs.contains(&other.name))
                .map(|(_, depth)| depth + 1);
            let depth = before.max().unwrap_or(0);
            depths[index] = depth;
        }
    }
    depths
}

fn drawing(stages: &[StageState]) -> String {
    let depths = depths(stages);
    let mut filled: Vec<usize> = Vec::new();
    let positions: Vec<(usize, usize)> = depths
        .iter()
        .map(|&depth| {
            filled.resize(filled.len().max(depth + 1), 0);
            let row = filled[depth];
            filled[depth] += 1;
            (depth * (WIDTH + GAP_ACROSS), row * (HEIGHT + GAP_DOWN))
        })
        .collect();
    let width = filled.len() * (WIDTH + GAP_ACROSS) - GAP_ACROSS.min(filled.len() * (WIDTH + GAP_ACROSS));
    let height = filled.iter().max().copied().unwrap_or(0) * (HEIGHT + GAP_DOWN);
    let mut svg = format!(
        "<svg class=\"graph\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"steps\" style=\"max-width:{width}px\">",
        width + 2,
        height + 2
    );
    for (stage, &(x, y)) in stages.iter().zip(&positions) {
        for (_, &(from_x, from_y)) in
            stages.iter().zip(&positions).filter(|(other, _)| stage.needs.contains(&other.name))
        {
            let (begin, end) = (from_x + WIDTH, (from_y + HEIGHT / 2, y + HEIGHT / 2));
            let middle = (begin + x) / 2;
            svg.push_str(&format!(
                "<path d=\"M{begin} {} C{middle} {} {middle} {} {x} {}\" fill=\"none\" stroke=\"currentColor\" opacity=\"0.45\"/>",
                end.0, end.0, end.1, end.1
            ));
        }
    }
    for (stage, (x, y)) in stages.iter().zip(positions) {
        let dashed = if class(stage) == "waiting" { " stroke-dasharray=\"4 3\"" } else { "" };
        let weight = if matches!(class(stage), "failed" | "running") { "2.5" } else { "1" };
        svg.push_str(&format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\" fill=\"none\" stroke=\"currentColor\" \
             stroke-width=\"{weight}\"{dashed}/><text x=\"{}\" y=\"{}\" fill=\"currentColor\" font-weight=\"600\">{}</text>\
             <text x=\"{}\" y=\"{}\" fill=\"currentColor\" opacity=\"0.7\" font-size=\"12\">{}</text>",
            x + 1,
            y + 1,
            x + 12,
            y + 19,
            escape(&shortened(&stage.name)),
            x + 12,
            y + 35,
            stage.status.name()
        ));
    }
    svg.push_str("</svg>");
    svg
}

/// The name, cut to what fits into a box.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(17) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_stands_after_all_that_it_needs() {
        let stage = |name: &str, needs: &[&str]| StageState::new(name, needs.iter().map(ToString::to_string).collect());
        let graph = [
            stage("end", &["left", "right"]),
            stage("left", &["first"]),
            stage("right", &["left"]),
            stage("first", &[]),
        ];
        assert_eq!(depths(&graph), [3, 1, 2, 0]);
        let answer = Answer { metric: "eval.accuracy".to_owned(), value: 0.5, ..Answer::default() };
        let state =
            RunState { kind: pipe_spec::run::RunKind::Stages(graph.to_vec()), ..RunState::new("x", "x<", "toy") };
        let page = section(&state, &[("end".to_owned(), answer)].into(), |run| format!("../{run}/report.html"));
        assert_eq!(page.matches("50 % right").count(), 1, "{page}");
        assert_eq!(page.matches("<rect").count(), 4);
        assert_eq!(page.matches("<path").count(), 4);
    }
}
