//! `README.md` of an exported model: what it is, what it was trained on and how, and how good it is. It holds nothing of the
//! machine, the attempt or the time, so that the same training writes the same text.

use std::fmt::Write;
use std::path::Path;

use pipe_model::architecture;
use pipe_spec::TrainerSpec;
use pipe_spec::event::Eval;
use pipe_spec::pipeline::Paths;
use serde::Serialize;
use serde_json::{Map, Value};

pub struct ModelCard<'a> {
    pub spec: &'a TrainerSpec,
    pub config: &'a Map<String, Value>,
    pub parameters: u64,
    pub steps: u64,
    /// Rows, or windows, that were trained on.
    pub rows: u64,
    /// The last evaluation.
    pub eval: Option<&'a Eval>,
}

impl ModelCard<'_> {
    pub fn text(&self) -> String {
        let Self { spec, .. } = self;
        let mut text = String::from("---\n");
        if architecture(spec.model.arch).in_transformers {
            text += "library_name: transformers\n";
        }
        let _ = writeln!(
            text,
            "tags:\n- pipe\n- {}\n---\n\n# A {} model\n",
            spec.model.arch.name(),
            spec.model.arch.name()
        );
        text += "Trained with `pipe`.\n";
        section(&mut text, "Model", &self.model());
        section(&mut text, "Data", &self.data());
        section(&mut text, "Training", &self.training());
        match self.eval {
            Some(eval) => section(&mut text, "Evaluation", &evaluation(eval)),
            None => text += "\n## Evaluation\n\nIt was not evaluated.\n",
        }
        text
    }

    fn model(&self) -> Vec<(&str, String)> {
        let mut rows = vec![
            ("architecture", self.spec.model.arch.name().to_owned()),
            ("task", self.spec.model.task().name().to_owned()),
            ("parameters", self.parameters.to_string()),
            ("weights from", origin(self.spec.model.from.as_deref())),
        ];
        if let Some(Value::Object(names)) = self.config.get("id2label").filter(|_| !self.predicts_a_number()) {
            let listed: Vec<String> = (0..names.len().min(20))
                .filter_map(|number| names.get(&number.to_string())?.as_str().map(quote))
                .collect();
            let more = if names.len() > listed.len() { " and more" } else { "" };
            rows.push(("classes", format!("{}: {}{more}", names.len(), listed.join(", "))));
        }
        rows
    }

    fn predicts_a_number(&self) -> bool {
        self.config.get("problem_type").is_some_and(|kind| kind == "regression")
    }

    fn data(&self) -> Vec<(&str, String)> {
        let data = &self.spec.data;
        let mut rows = vec![("trained on", names(&data.train)), ("rows trained on", self.rows.to_string())];
        match &data.eval {
            Some(eval) => rows.push(("evaluated on", names(eval))),
            None if data.eval_share > 0.0 => {
                rows.push(("evaluated on", format!("a share of {} of the same data", data.eval_share)));
            }
            None => {}
        }
        if let Some(eval) = self.eval {
            rows.push(("rows evaluated", eval.samples.to_string()));
        }
        let fields: Vec<String> =
            data.fields.iter().map(|(role, column)| format!("{role}: {}", quote(column))).collect();
        if !fields.is_empty() {
            rows.push(("columns", fields.join(", ")));
        }
        rows
    }

    fn training(&self) -> Vec<(&str, String)> {
        let train = &self.spec.train;
        let mut rows = vec![
            ("steps", self.steps.to_string()),
            ("samples in a step", train.effective_batch.to_string()),
            ("optimizer", word(train.optimizer.kind)),
            ("learning rate", train.optimizer.lr.to_string()),
            ("weight decay", train.optimizer.weight_decay.to_string()),
            ("schedule", format!("{}, warm-up of {}", word(train.schedule.kind), train.schedule.warmup)),
            ("gradient norm at most", if train.clip > 0.0 { train.clip.to_string() } else { "any".to_owned() }),
            ("precision", word(train.precision)),
            ("seed", train.seed.to_string()),
        ];
        if let Some(dropout) = train.dropout {
            rows.push(("dropout", dropout.to_string()));
        }
        if !train.class_weights.is_none() {
            rows.push(("class weights", word(train.class_weights)));
        }
        rows
    }
}

/// A setting that is written as one word.
fn word(setting: impl Serialize) -> String {
    let value = serde_json::to_value(setting).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn evaluation(eval: &Eval) -> Vec<(&str, String)> {
    let mut rows = vec![("after step", eval.step.to_string()), ("loss", format!("{:.4}", eval.loss))];
    rows.extend(eval.scores.iter().map(|(name, score)| (name.as_str(), format!("{score:.4}"))));
    rows
}

fn section(text: &mut String, title: &str, rows: &[(&str, String)]) {
    let _ = write!(text, "\n## {title}\n\n| | |\n|---|---|\n");
    for (key, value) in rows {
        let _ = writeln!(text, "| {key} | {value} |");
    }
}

/// The names of files, without their folders.
fn names(paths: &Paths) -> String {
    const LISTED: usize = 8;
    let name = |path: &String| quote(&Path::new(path).file_name().unwrap_or_default().to_string_lossy());
    let listed: Vec<String> = paths.0.iter().take(LISTED).map(name).collect();
    let more = if paths.0.len() > LISTED { format!(" and {} more", paths.0.len() - LISTED) } else { String::new() };
    listed.join(", ") + &more
}

/// Where the weights came from. A folder of the hub's cache says which repository and commit it is of.
fn origin(from: Option<&str>) -> String {
    let Some(from) = from else { return "none: trained from scratch".to_owned() };
    let parts: Vec<&str> = from.split('/').filter(|part| !part.is_empty()).collect();
    let repository = parts.windows(3).find_map(|window| match window {
        [repository, "snapshots", commit] => Some((repository.strip_prefix("models--")?, *commit)),
        _ => None,
    });
    match repository {
        Some((name, commit)) => format!("{} at commit {}", quote(&name.replace("--", "/")), quote(commit)),
        None => format!("the folder {}", quote(parts.last().unwrap_or(&""))),
    }
}

/// As code in a cell of a table, whatever characters it has.
fn quote(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|one| if one.is_control() || matches!(one, '`' | '|' | '<' | '>') { '_' } else { one })
        .take(200)
        .collect();
    format!("`{plain}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_an_origin() {
        for (from, want) in [
            (None, "none: trained from scratch"),
            (Some("models/tiny/"), "the folder `tiny`"),
            (Some("/c/hub/models--sentence--MiniLM/snapshots/0a1b"), "`sentence/MiniLM` at commit `0a1b`"),
        ] {
            assert_eq!(origin(from), want);
        }
    }

    #[test]
    fn names_stay_in_their_cell() {
        assert_eq!(quote("a|b`c\n<i>"), "`a_b_c__i_`");
        assert_eq!(names(&Paths(vec!["/data/a b.csv".to_owned(), "c.csv".to_owned()])), "`a b.csv`, `c.csv`");
    }
}
