//! The result of a run for people and scripts: its evaluations, its model, its report, and what to do next.
//!
//! A run in Markdown, for the page that GitHub shows of a job: where `GITHUB_STEP_SUMMARY` names a file, it is added there.
//!
//! The scores of single classes, as a table.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pipe_spec::evaluation::{ClassDetails, ClassScores, EvaluationDetails};
use pipe_spec::pipeline::WorkKind;
use pipe_spec::run::{Answer, Evaluation, RunResult};
use pipe_spec::text::{count, human_bytes};
use pipe_spec::{Attempt, Outcome, RunFolder, RunState, Status};
use serde::Serialize;

use super::table::{duration, losses, steps};
use super::text::{bounded, grouped};
use super::{Table, answer, figure};

/// The files in the folder of a run, and the commands that use them. A file that does not exist is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ResultFiles {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The folder that a command wrote to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
    /// How good the model is, in a sentence, and what to do where the run learned nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// A command that uses the model.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl ResultFiles {
    pub fn find(state: &RunState, folder: &Path) -> Self {
        let run = RunFolder::new(folder);
        let shown = |path: &Path| path.display().to_string();
        let model = Some(run.model()).filter(|model| model.join("config.json").is_file());
        let is_filled = |folder: &PathBuf| folder.read_dir().is_ok_and(|mut entries| entries.next().is_some());
        let output = Some(run.output()).filter(|output| state.work() == WorkKind::Command && is_filled(output));
        let report = Some(run.report()).filter(|report| report.is_file());
        let command = model.as_ref().map(|_| format!("pipe predict {} --data FILE", state.id));
        let summary = state.result().and_then(|result| result.answer.as_ref()).map(answer::summary);
        let [model, output, report] = [model, output, report].map(|path| path.as_deref().map(shown));
        Self { model, output, report, summary, command }
    }
}

/// The first, the best and the last evaluation, a line for each metric; nothing where there was no evaluation.
pub fn metrics_table(result: &RunResult) -> Option<Table> {
    let last = result.last.as_ref()?;
    let columns: Vec<(&str, &Evaluation)> = match (&result.first, &result.best) {
        (Some(first), _) if first.step == last.step => vec![("last", last)],
        (Some(first), Some(best)) => vec![("first", first), ("best", best), ("last", last)],
        (Some(first), None) => vec![("first", first), ("last", last)],
        (None, _) => vec![("last", last)],
    };
    let mut head = vec!["evaluation"];
    head.extend(columns.iter().map(|(name, _)| name));
    let mut table = Table::new(&head);
    let row = |name: &str, cell: &dyn Fn(&Evaluation) -> String| {
        std::iter::once(name.to_owned()).chain(columns.iter().map(|(_, eval)| cell(eval))).collect()
    };
    table.row(row("step", &|eval| eval.step.to_string()));
    let mut names: Vec<&String> = columns.iter().flat_map(|(_, eval)| eval.metrics.keys()).collect();
    // The metric that counts comes first, then the loss, then the others by name.
    names.sort_by_key(|name| (result.metric.as_ref() != Some(name), *name != "eval.loss", *name));
    names.dedup();
    let has_macro_f1 = names.iter().any(|name| *name == "eval.macro_f1");
    for name in names.into_iter().filter(|name| !(has_macro_f1 && *name == "eval.f1")) {
        table.row(row(name, &|eval| eval.metrics.get(name).map_or("-".to_owned(), |value| figure(*value))));
    }
    Some(table)
}

/// How good the model is, in lines with a word in front.
pub fn answer_lines(answer: &Answer) -> Vec<String> {
    let remark = answer::remark(answer).map(|remark| format!("note     {remark}"));
    std::iter::once(format!("result   {}", answer::sentence(answer))).chain(remark).collect()
}

/// Lines with a word in front, as `pipe show` has them.
pub fn result_lines(state: &RunState, folder: &Path) -> Vec<String> {
    let working = std::env::current_dir().unwrap_or_default();
    let files = ResultFiles::find(state, folder.strip_prefix(&working).unwrap_or(folder));
    let result = state.result();
    let mut lines = Vec::new();
    let mut add = |word: &str, text: Option<String>| lines.extend(text.map(|text| format!("{word:<9}{text}")));
    add("end", result.and_then(early_end));
    let from = result.and_then(|result| Some(from(result, result.model_step?))).unwrap_or_default();
    add("model", files.model.map(|model| format!("{model}{from}")));
    add("use", files.command);
    add("output", files.output);
    add("report", files.report);
    let continues = matches!(state.status, Status::Stopped | Status::Orphaned);
    add("resume", continues.then(|| format!("pipe resume {}", state.id)));
    lines
}

/// That the training was stopped early, where, and why.
fn early_end(result: &RunResult) -> Option<String> {
    let at = result.last.as_ref().map_or(String::new(), |last| format!(" at step {}", last.step));
    result.stopped_early.as_ref().map(|why| format!("stopped early{at}: {why}"))
}

/// Which step a model is from, and why that one.
fn from(result: &RunResult, step: u64) -> String {
    let is_best = result.best.as_ref().is_some_and(|best| best.step == step);
    match &result.save_best {
        Some(metric) if is_best => format!(" (step {step}, the best {metric})"),
        _ => format!(" (step {step})"),
    }
}

/// Adds the run to the job's summary, if there is one.
pub fn add(state: &RunState) -> io::Result<()> {
    let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) else { return Ok(()) };
    let mut file = File::options().create(true).append(true).open(PathBuf::from(path))?;
    file.write_all(markdown(state).as_bytes())
}

fn markdown(state: &RunState) -> String {
    let mut text = format!("### pipe: {} {}\n\n", cell(&state.id), state.status.name());
    if let Some(error) = &state.error {
        text.push_str(&format!("> {}\n\n", cell(error)));
    }
    if let Some(answer) = state.result().and_then(|result| result.answer.as_ref()) {
        text.push_str(&format!("{}\n\n", cell(&answer::summary(answer))));
    }
    text.push_str("| attempt | batch x accum | outcome | steps | loss | peak | time | why |\n");
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    state.attempts().iter().for_each(|attempt| text.push_str(&row(attempt)));
    text.push('\n');
    text
}

fn row(attempt: &Attempt) -> String {
    let why: Vec<&str> = [&attempt.reason, &attempt.action].into_iter().flatten().map(String::as_str).collect();
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
        attempt.number,
        if attempt.has_batch { format!("{} x {}", attempt.batch, attempt.accum) } else { "-".to_owned() },
        attempt.outcome.map_or("running", Outcome::name),
        steps(attempt),
        losses(attempt),
        attempt.figures.peak_memory.map_or("-".to_owned(), human_bytes),
        duration(attempt.figures.seconds),
        cell(&why.join("; then "))
    )
}

/// A text that stays within its cell.
fn cell(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Rows of the table.
const MOST_CLASSES: usize = 10;
/// Characters of the name of a class, so that the table fits 80 columns.
const NAME: usize = 30;

/// The classes with the most rows, and a line about those that are left out; nothing where no classes are predicted.
pub fn class_table(details: &EvaluationDetails) -> Option<(Table, Option<String>)> {
    let classes = details.classes.as_ref().filter(|classes| !classes.scores.is_empty())?;
    let head = format!("class, step {}", details.step);
    let mut table = Table::new(&[&head, "rows", "predicted", "precision", "recall", "f1"]);
    let shown = classes.largest(MOST_CLASSES);
    shown.iter().for_each(|class| table.row(class_row(class)));
    Some((table, left_out(classes, shown.len())))
}

fn class_row(class: &ClassScores) -> Vec<String> {
    let ClassScores { name, rows, predicted, precision, recall, f1, .. } = class;
    let share = |value: &Option<f64>| match value {
        Some(value) if (0.0..=1.0).contains(value) => format!("{value:.3}"),
        _ => "-".to_owned(),
    };
    let name = if name.is_empty() { class.class.to_string() } else { bounded(name, NAME) };
    vec![name, grouped(*rows), grouped(*predicted), share(precision), share(recall), share(f1)]
}

fn left_out(classes: &ClassDetails, shown: usize) -> Option<String> {
    let more = classes.count.saturating_sub(shown as u64);
    (more > 0)
        .then(|| format!("{} with fewer rows: in the report, and in `pipe show --json`", count(more, "more class")))
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Metric;

    use super::*;

    fn evaluation(step: u64, values: [f64; 4]) -> Evaluation {
        let names = ["eval.loss", "eval.macro_f1", "eval.f1", "eval.accuracy"].map(str::to_owned);
        Evaluation { step, metrics: names.into_iter().zip(values).collect() }
    }

    #[test]
    fn a_table_of_evaluations() {
        let best = Metric::named("macro_f1");
        let mut result = RunResult {
            metric: Some(best.to_string()),
            save_best: Some(best),
            first: Some(evaluation(4, [1.25, 0.5, 0.5, 0.55])),
            best: Some(evaluation(28, [1.0, 0.75, 0.75, 0.8])),
            last: Some(evaluation(48, [2.0, 0.625, 0.625, 0.7])),
            ..RunResult::default()
        };
        let want = "evaluation     first   best    last\n\
            step           4       28      48\n\
            eval.macro_f1  0.5000  0.7500  0.6250\n\
            eval.loss      1.2500  1.0000  2.0000\n\
            eval.accuracy  0.5500  0.8000  0.7000";
        assert_eq!(metrics_table(&result).unwrap().render(None), want);
        assert_eq!(
            (from(&result, 28), from(&result, 48)),
            (" (step 28, the best eval.macro_f1)".into(), " (step 48)".into())
        );
        result.first.clone_from(&result.last);
        assert!(metrics_table(&result).unwrap().render(None).starts_with("evaluation     last\nstep           48\n"));
        assert!(metrics_table(&RunResult::default()).is_none());
    }
}

#[cfg(test)]
mod summary_tests {
    use pipe_spec::Status;

    use super::*;

    #[test]
    fn a_run_as_a_table() {
        let mut failed = Attempt::new(1, 64, 2);
        failed.outcome = Some(Outcome::Oom);
        failed.reason = Some("a | b\nc".to_owned());
        failed.action = Some("batch 32 instead of 64".to_owned());
        failed.figures.seconds = 4.25;
        let mut done = Attempt::new(2, 32, 4);
        done.outcome = Some(Outcome::Finished);
        (done.figures.first_step, done.figures.last_step, done.figures.first_loss, done.figures.last_loss) =
            (Some(1), Some(9), Some(2.0), Some(0.5));
        done.figures.peak_memory = Some(3 << 30);
        use pipe_spec::run::{RunKind, SingleRun};
        let state = RunState {
            status: Status::Finished,
            kind: RunKind::Training(SingleRun { steps: Some(9), attempts: vec![failed, done], ..SingleRun::default() }),
            ..RunState::new("demo-1", "demo", "test")
        };
        let want = "### pipe: demo-1 finished\n\n\
            | attempt | batch x accum | outcome | steps | loss | peak | time | why |\n|---|---|---|---|---|---|---|---|\n\
            | 1 | 64 x 2 | oom | - | - | - | 4.2s | a \\| b c; then batch 32 instead of 64 |\n\
            | 2 | 32 x 4 | finished | 1-9 | 2.000 to 0.500 | 3.0 GiB | 0.0s |  |\n\n";
        assert_eq!(markdown(&state), want);
    }
}

#[cfg(test)]
mod classes_tests {
    use super::*;

    fn details(count: u64, name: &str) -> EvaluationDetails {
        let class = |class: u64| ClassScores {
            class,
            name: format!("{name}{class}"),
            rows: 100_000_000 + class,
            predicted: 1,
            precision: Some(1.0),
            recall: Some(0.0),
            f1: None,
        };
        let classes = ClassDetails { count, scores: (0..count).map(class).collect(), ..ClassDetails::default() };
        EvaluationDetails { step: 28, classes: Some(classes), ..EvaluationDetails::default() }
    }

    #[test]
    fn a_table_of_classes() {
        let (table, more) = class_table(&details(1, "soup")).unwrap();
        let want = "class, step 28  rows         predicted  precision  recall  f1\n\
                    soup0           100,000,000  1          1.000      0.000   -";
        assert_eq!((table.render(None).as_str(), more), (want, None));
        assert!(class_table(&EvaluationDetails::default()).is_none());
    }

    #[test]
    fn of_many_classes_the_largest() {
        let (table, more) = class_table(&details(12, &"ä".repeat(90))).unwrap();
        let text = table.render(None);
        assert_eq!(text.lines().count(), MOST_CLASSES + 1);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains("100,000,001") && text.contains("100,000,011"), "{text}");
        assert!(more.unwrap().starts_with("2 more classes with fewer rows"));
    }
}
