//! `pipe show`: one run in full. `pipe note`: its note and its tags.

use pipe_spec::Status;
use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::pipeline::{LossUnit, WorkKind};
use pipe_spec::text::human_bytes;
use serde::Serialize;

use crate::error::Error;
use crate::report::{
    ResultFiles, Table, answer, answer_lines, attempts_table, class_table, metrics_table, print, print_json,
    result_lines, speed, stages_table,
};
use crate::run::result::{self, RankFigures};
use crate::run::{self, Listed, Notes, NotesChange, Record};

/// How fast the median step was; absent before the first step.
#[derive(Serialize)]
struct Throughput {
    per_second: f64,
    unit: LossUnit,
}

/// A run as JSON.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    found: Listed,
    #[serde(flatten)]
    files: ResultFiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    throughput: Option<Throughput>,
    /// The figures of each of several ranks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<RankFigures>,
    /// The result of the evaluation, without pictures.
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluation: Option<EvaluationDetails>,
}

pub fn run(wanted: &str, json: bool) -> Result<(), Error> {
    let mut found = [run::find(wanted)?];
    if found[0].state.work() == WorkKind::Study {
        return super::tune::status(&found[0].state.id, json);
    }
    super::ls::find_left_behind(&mut found)?;
    let [mut found] = found;
    found.read_result();
    let record = Record::read(&found.folder());
    let throughput = record.tokens_per_second().map(|per_second| Throughput { per_second, unit: record.unit() });
    let ranks = result::figures(&record.history.steps);
    let answer = record.answer();
    if json {
        let mut evaluation = record.evaluation;
        evaluation.iter_mut().flat_map(|details| &mut details.retrieval).for_each(|example| example.picture.clear());
        let files = ResultFiles::find(&found.state, found.folder().path());
        let files = ResultFiles { summary: answer.as_ref().map(answer::summary), ..files };
        print_json(&Shown { found, files, throughput, ranks, evaluation });
        return Ok(());
    }
    let state = &found.state;
    print(&format!("run      {}", state.id));
    print(&format!("status   {}", found.status_name()));
    if let Some(error) = &state.error {
        print(&format!("error    {}", error.replace('\n', "\n         ")));
    }
    if let Some(doing) = state.doing.as_ref().filter(|_| found.status_name() == Status::Running.name()) {
        print(&format!("doing    {doing}"));
    }
    answer.iter().flat_map(answer_lines).for_each(|line| print(&line));
    found.notes.lines().iter().for_each(|line| print(line));
    print(&format!("engine   {}", state.engine));
    if let Some(Throughput { per_second, unit }) = throughput {
        print(&format!("speed    {}", speed(per_second, unit)));
    }
    print(&format!("folder   {}", found.folder));
    result_lines(state, found.folder().path()).iter().for_each(|line| print(line));
    if !found.left_behind.is_empty() && !state.choices.supervised {
        print(&format!("left     {} (`pipe attach` continues the run)", found.left_behind.join(", ")));
    }
    if !state.stages().is_empty() {
        print(&format!("\n{}", stages_table(state, &record.stage_answers).on_stdout()));
    }
    if !state.attempts().is_empty() {
        print(&format!("\n{}", attempts_table(state).on_stdout()));
    }
    if !ranks.is_empty() {
        print(&format!("\n{}", ranks_table(&ranks).on_stdout()));
    }
    if let Some(table) = state.result().and_then(metrics_table) {
        print(&format!("\n{}", table.on_stdout()));
    }
    if let Some((table, more)) = record.evaluation.as_ref().and_then(class_table) {
        print(&format!("\n{}", table.on_stdout()));
        more.iter().for_each(|more| print(more));
    }
    Ok(())
}

/// The peak memory of each of several ranks, and the time of its steps.
fn ranks_table(ranks: &[RankFigures]) -> Table {
    let mut table = Table::new(&["rank", "peak", "time of a step"]);
    let slowest = result::slowest(ranks);
    for (index, RankFigures { peak, ms }) in ranks.iter().enumerate() {
        let mark = if slowest == Some(index) { ", the slowest" } else { "" };
        table.row(vec![index.to_string(), human_bytes(*peak), format!("{ms:.0} ms{mark}")]);
    }
    table
}

/// Makes this change, and prints the note and the tags.
pub fn note(wanted: &str, change: NotesChange, json: bool) -> Result<(), Error> {
    let found = run::find(wanted)?;
    let notes = if change.is_empty() { found.notes.clone() } else { Notes::change(&found.folder(), change)? };
    if json {
        print_json(&notes);
        return Ok(());
    }
    print(&format!("run      {}", found.state.id));
    if notes.is_empty() {
        print("It has no note and no tags.");
    }
    notes.lines().iter().for_each(|line| print(line));
    Ok(())
}
