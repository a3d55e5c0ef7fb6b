//! The result of a run for people and scripts: its evaluations, its model, its report, and what to do next.

use std::path::Path;

use pipe_spec::run::{Evaluation, RunResult};
use pipe_spec::{RunFolder, RunState, Status};
use serde::Serialize;

use super::{Table, figure};

/// What lies in the folder of a run and how it is used. What is not there is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ResultFiles {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
    /// A command that uses the model.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl ResultFiles {
    pub fn find(state: &RunState, folder: &Path) -> Self {
        let run = RunFolder::new(folder);
        let shown = |path: &Path| path.display().to_string();
        let model = Some(run.model()).filter(|model| model.join("config.json").is_file());
        let report = Some(run.report()).filter(|report| report.is_file());
        let command = model.as_ref().map(|_| format!("pipe predict {} --data FILE", state.id));
        Self { model: model.as_deref().map(shown), report: report.as_deref().map(shown), command }
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

/// Lines with a word in front, as `pipe show` has them.
pub fn result_lines(state: &RunState, folder: &Path) -> Vec<String> {
    let working = std::env::current_dir().unwrap_or_default();
    let files = ResultFiles::find(state, folder.strip_prefix(&working).unwrap_or(folder));
    let result = state.result.as_ref();
    let mut lines = Vec::new();
    let mut add = |word: &str, text: Option<String>| lines.extend(text.map(|text| format!("{word:<9}{text}")));
    add("end", result.and_then(early_end));
    let from = result.and_then(|result| Some(from(result, result.model_step?))).unwrap_or_default();
    add("model", files.model.map(|model| format!("{model}{from}")));
    add("use", files.command);
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
