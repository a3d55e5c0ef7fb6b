//! Settings that are allowed and will disappoint, seen from what is in the data. Pure.

use pipe_spec::Inspection;
use pipe_spec::inspection::Split;
use pipe_spec::pipeline::{Task, Training};
use pipe_spec::text::count;

/// Texts that are cut are mentioned from this share on.
const CUT_SHARE: f64 = 0.05;

/// A sentence each, which begins with the key that it is about.
pub fn warnings(training: &Training, inspection: &Inspection) -> Vec<String> {
    let Inspection { train, eval, steps, .. } = inspection;
    let mut warnings = Vec::new();
    let warmup = training.train.schedule.warmup.steps(*steps);
    if warmup >= *steps && warmup > 0 {
        warnings.push(format!(
            "train.schedule.warmup: the warm-up of {} is not shorter than the training ({}): the learning rate never reaches \
             train.optimizer.lr",
            count(warmup, "step"),
            count(*steps, "step")
        ));
    }
    if *steps == 1 {
        warnings.push(format!(
            "train: the training is a single step; {} are fewer than one effective batch after another needs: lower \
             train.effective_batch ({}) or raise train.epochs",
            count(train.rows, "row"),
            training.train.effective_batch
        ));
    }
    if eval.is_none() {
        warnings.push("data.eval: there is none, so nothing shows how good the model is".to_owned());
    }
    warnings.extend(cut(training, train));
    if train.skipped > 0 {
        warnings.push(format!("data.train: {} cannot be read and will be skipped", count(train.skipped, "row")));
    }
    warnings.extend(class_warnings(train, eval.as_ref()));
    warnings
}

fn cut(training: &Training, train: &Split) -> Vec<String> {
    let is_cut = |at_limit: u64| at_limit as f64 > CUT_SHARE * train.read as f64;
    let key = |column: &str| match (training.model.arch.task(), column) {
        (Task::Seq2Seq, "target") => ("max_target", training.data.max_target),
        (Task::Seq2Seq, _) => ("max_source", training.data.max_source),
        _ => ("max_length", training.data.max_length),
    };
    let warn = |lengths: &pipe_spec::inspection::Lengths| {
        let (key, limit) = key(&lengths.column);
        let texts = count(lengths.at_limit, "text");
        format!("data.{key}: {texts} of {} are as long as the limit of {limit} tokens or are cut there", train.read)
    };
    train.lengths.iter().filter(|lengths| is_cut(lengths.at_limit)).map(warn).collect()
}

fn class_warnings(train: &Split, eval: Option<&Split>) -> Vec<String> {
    let mut warnings = Vec::new();
    let present = || train.classes.iter().filter(|class| class.rows > 0);
    if let (Some(only), 1) = (present().next(), present().count()) {
        warnings.push(format!("data.train: every row is of the class {:?}: there is nothing to learn", only.name));
    }
    let missing = |split: &Split| -> Vec<String> {
        split.classes.iter().filter(|class| class.rows == 0).map(|class| format!("{:?}", class.name)).take(5).collect()
    };
    for (key, split) in [("data.train", Some(train)), ("data.eval", eval)] {
        let missing = split.filter(|split| split.read == split.rows).map(missing).unwrap_or_default();
        if !missing.is_empty() {
            warnings.push(format!("{key}: no row of {}", missing.join(", ")));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use pipe_spec::inspection::{ClassCount, Lengths};
    use pipe_spec::{Pipeline, Variables};

    use super::*;

    const FILE: &str = "{version: 1, name: t, model: {arch: bert, config: {}}, data: {train: a.csv, max_length: 16}, \
                        train: {epochs: 1, effective_batch: 8, batch: 8, schedule: {warmup: 5}}}";

    fn split(rows: u64, classes: [u64; 2]) -> Split {
        let class = |(name, rows): (&str, u64)| ClassCount { name: name.to_owned(), rows };
        let classes = ["ham", "spam"].into_iter().zip(classes).map(class).collect();
        Split { rows, read: rows, classes, ..Split::default() }
    }

    fn found(train: Split, eval: Option<Split>, steps: u64) -> Vec<String> {
        let pipeline = Pipeline::parse(FILE, &[], &Variables::new(None, std::iter::empty())).unwrap();
        let mut found = warnings(pipeline.training().unwrap(), &Inspection { train, eval, steps, step_parts: None });
        found.iter_mut().for_each(|text| text.truncate(text.find(": ").unwrap()));
        found
    }

    #[test]
    fn what_will_disappoint_is_said_and_nothing_else() {
        let good = || split(80, [40, 40]);
        assert_eq!(found(good(), Some(good()), 10), [""; 0]);
        assert_eq!(found(good(), None, 5), ["train.schedule.warmup", "data.eval"]);
        assert_eq!(found(good(), Some(good()), 1), ["train.schedule.warmup", "train"]);
        assert_eq!(found(split(80, [80, 0]), Some(good()), 10), ["data.train", "data.train"]);
        assert_eq!(found(good(), Some(split(9, [9, 0])), 10), ["data.eval"]);
        let mut long = good();
        long.lengths = vec![Lengths { column: "text".to_owned(), mean: 9.0, p95: 16, longest: 16, at_limit: 5 }];
        assert_eq!(found(long, Some(good()), 10), ["data.max_length"]);
        assert_eq!(found(Split { skipped: 1, ..good() }, Some(good()), 10), ["data.train"]);
    }
}
