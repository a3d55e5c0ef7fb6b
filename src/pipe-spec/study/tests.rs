//! Study files that are accepted, and the problems of those that are not.

use serde_json::json;

use super::*;

const BASE: &str = "version: 1\nname: base\nmodel: {arch: bert, config: {}}\ndata: {train: train.jsonl}\ntrain: {batch: 8, effective_batch: 64}\n";

fn parse(space: &str) -> Result<Study, Problems> {
    let text = format!(
        "version: 1\ntune: search\npipeline: base.yaml\nobjective: {{metric: eval.loss, direction: minimize}}\nspace:\n{space}"
    );
    Study::parse(&text, &[], |_| Ok(BASE.to_owned()), &Variables::default(), Engines::NONE)
}

fn problem(space: &str) -> String {
    parse(space).unwrap_err().to_string()
}

#[test]
fn every_kind_of_values() {
    let study = parse(
        "  train.optimizer.lr: {low: 1.0e-6, high: 1.0e-4, log: true}\n  data.max_length: {low: 128, high: 500, step: 32}\n\
         \x20 train.checkpointing: {values: [true, false], when: {data.max_length: {above: 256}}}\n\
         \x20 model.config: {values: {small: {hidden_size: 64}, large: {hidden_size: 1024}}}\n  train.batch: [8, 16]\n",
    )
    .unwrap();
    let values = |name: &str| study.parameter(name).unwrap().values.clone();
    assert_eq!(values("train.optimizer.lr"), Values::Float { low: 1e-6, high: 1e-4, log: true, step: None });
    // The last value is one that the steps reach.
    assert_eq!(values("data.max_length"), Values::Int { low: 128, high: 480, log: false, step: 32 });
    let order: Vec<&str> = study.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    let position = |name: &str| order.iter().position(|other| *other == name);
    assert!(position("data.max_length") < position("train.checkpointing"), "{order:?}");
    let point = [("model.config".to_owned(), json!("large")), ("train.batch".to_owned(), json!(16))].into();
    let pipeline = study.pipeline("search.3", &point, &[], &Variables::default()).unwrap();
    let training = pipeline.training().unwrap();
    assert_eq!(training.model.config.as_ref().unwrap()["hidden_size"], 1024);
    assert_eq!((pipeline.name.as_str(), training.train.batch(), training.train.effective_batch), ("search.3", 16, 64));
}

#[test]
fn accum_takes_the_place_of_an_effective_batch() {
    let study = parse("  train.accum: [1, 3]\n").unwrap();
    let pipeline =
        study.pipeline("x", &[("train.accum".to_owned(), json!(3))].into(), &[], &Variables::default()).unwrap();
    assert_eq!(pipeline.work.effective_batch(), 24);
}

#[test]
fn the_batch_is_at_most_the_effective_batch_of_a_trial() {
    let study = parse("  train.effective_batch: [4, 32]\n").unwrap();
    for (effective, batch) in [(4, 4), (32, 8)] {
        let point = [("train.effective_batch".to_owned(), json!(effective))].into();
        let pipeline = study.pipeline("x", &point, &[], &Variables::default()).unwrap();
        assert_eq!((pipeline.work.batch(), pipeline.work.effective_batch()), (batch, effective));
    }
    // A batch that is searched is not changed.
    assert!(problem("  train.effective_batch: [4]\n  train.batch: [8]\n").contains("at most the effective batch"));
}

#[test]
fn settings_of_the_pipeline_file_are_set() {
    let text = "version: 1\ntune: search\npipeline: base.yaml\nobjective: {metric: eval.loss, direction: minimize}\n\
                space: {train.batch: [8]}\n";
    let set = |pair: &str| {
        let read = |_: &str| Ok(BASE.to_owned());
        Study::parse(text, &[pair.to_owned()], read, &Variables::default(), Engines::NONE)
    };
    let pipeline = set("pipeline.train.epochs=3").unwrap().pipeline("x", &BTreeMap::new(), &[], &Variables::default());
    assert_eq!(pipeline.unwrap().training().unwrap().train.epochs, Some(3.0));
    assert!(set("pipeline.train.epoch=3").unwrap_err().to_string().contains("did you mean `epochs`?"));
    assert!(set("pipeline=other.yaml").is_ok());
}

#[test]
fn a_study_of_the_run_folder_needs_no_other_file() {
    let study = parse("  train.batch: [8, 16]\n").unwrap();
    let none = |_: &str| Err("there is no file".to_owned());
    let again =
        Study::parse(&study.to_yaml(), &["budget.trials=7".to_owned()], none, &Variables::default(), Engines::NONE)
            .unwrap();
    assert_eq!((again.budget.trials, &again.parameters), (Some(7), &study.parameters));
    assert_eq!(study.budget.trials, Some(DEFAULT_TRIALS));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    for (space, said) in [
        ("  train.batch: [8, 0]\n", "line 6: space.train.batch: "),
        ("  train.bach: [8]\n", "line 6: space.train.bach: unknown key; did you mean `batch`?"),
        ("  train.batch: []\n", "no value in it"),
        ("  train.batch: [8, 8]\n", "8 is given twice"),
        ("  train.batch: {low: 8, high: 4}\n", "low (8) must be below high (4)"),
        ("  train.batch: {low: 8, high: 16, step: 0}\n", "step must be above 0"),
        ("  train.dropout: {low: 0.0, high: 0.5, log: true}\n", "with `log` low must be above 0"),
        ("  train.batch: {low: 8}\n", "give `low` and `high`, or `values`"),
        ("  train.batch: {values: [8], step: 1}\n", "`step` and `log` are for a range"),
        ("  model.config: [{a: 1}]\n", "need names"),
        ("  name: [a, b]\n", "cannot be searched"),
        (
            "  train.batch: {values: [8], when: {train.acum: {above: 1}}}\n  train.accum: [1]\n",
            "did you mean `train.accum`?",
        ),
        ("  train.batch: {values: [8], when: {train.accum: {}}}\n  train.accum: [1]\n", "has no condition"),
        ("  train: {values: {a: {}}}\n  train.batch: [8]\n", "holds train.batch, which is searched too"),
    ] {
        assert!(problem(space).contains(said), "{space}{}", problem(space));
    }
}

#[test]
fn a_pipeline_is_no_study() {
    assert!(!Study::is_one(BASE) && Study::is_one("tune: x\n") && !Study::is_one("{"));
}

#[test]
fn a_pipeline_that_is_wrong_is_named() {
    let text = "version: 1\ntune: search\npipeline: base.yaml\nobjective: {metric: loss, direction: minimize}\nspace: {train.batch: [1]}\n";
    let parse = |base: &str| {
        Study::parse(text, &[], |_| Ok(base.to_owned()), &Variables::default(), Engines::NONE).unwrap_err().to_string()
    };
    assert!(
        parse(&BASE.replace("train.jsonl", "\"${NOWHERE}\"")).contains("line 3: pipeline.data.train"),
        "{}",
        parse(&BASE.replace("train.jsonl", "\"${NOWHERE}\""))
    );
    assert!(parse("version: 1\nname: a\nsteps: {}\n").contains("several steps"));
}
