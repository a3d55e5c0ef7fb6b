//! The study file: a pipeline, the settings that are tried, and what makes one trial better than another. Parsed, checked as a whole,
//! and turned into types that can be trusted.

mod file;
mod space;

pub use file::{Budget, Goal, Keep, Objective, OomPolicy, Prune, PruneKind, SamplerKind, Which, schema};
pub use space::{Choice, Condition, Parameter, Test, Values};

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::pipeline::{BatchSetting, Engines, OtherNamesOfPipelines, Pipeline, Problems, TrainFile, pipeline_of};
use crate::text::Name;
use crate::variables::Variables;
use crate::yaml::{Node, NodeKind, Structure};
use file::{BasePipeline, Objectives, StudyFile};

/// A study that has passed every check.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    pub name: Name,
    pub objectives: Vec<Objective>,
    /// Those that conditions name come before those that have them.
    pub parameters: Vec<Parameter>,
    pub budget: Budget,
    pub sampler: SamplerKind,
    pub prune: Prune,
    pub oom: OomPolicy,
    pub keep: Keep,
    pub seed: u64,
    pub storage: Option<String>,
    /// The pipeline as every trial has it.
    base: Node,
    file: StudyFile,
    engines: Engines,
}

/// Objectives that are not metrics of the training.
pub const MEASURED: [&str; 3] = ["peak_memory", "seconds", "samples_per_second"];

/// The most trials of a study that says nothing of it.
pub const DEFAULT_TRIALS: u64 = 100;

impl Study {
    /// Whether a text is a study file at all.
    pub fn is_one(text: &str) -> bool {
        Node::parse(text).is_ok_and(|tree| tree.find("tune").is_some())
    }

    /// Reads a study file. `overrides` are `path=value` pairs that replace what it says, `read` gives the text of the pipeline file
    /// that it names.
    pub fn parse(
        text: &str,
        overrides: &[String],
        read: impl FnOnce(&str) -> Result<String, String>,
        variables: &Variables,
        engines: Engines,
    ) -> Result<Self, Problems> {
        let mut tree = Node::parse(text)?;
        // Settings of a pipeline in a file of its own are set once it is read.
        let is_file = tree.find("pipeline").is_some_and(|pipeline| !matches!(pipeline.kind, NodeKind::Map(_)));
        let (of_pipeline, own): (Vec<&String>, Vec<&String>) =
            overrides.iter().partition(|pair| is_file && pair.starts_with("pipeline."));
        for pair in own {
            tree.set(pair)?;
        }
        let schema = schema();
        let problems = Structure::new(&schema, &OtherNamesOfPipelines).check(&tree);
        if !problems.is_empty() {
            return Err(problems.sorted());
        }
        let file: StudyFile = serde_json::from_value(tree.to_json())
            .map_err(|error| Problems::one(tree.line, "", format!("not a study: {error}")))?;
        let mut base = base(&file, &tree, read)?;
        for pair in of_pipeline {
            base.set(pair.trim_start_matches("pipeline."))?;
        }
        let mut problems = Problems::default();
        let parameters = space::read(&file.space, &tree, &mut problems);
        check(&file, &tree, &mut problems);
        if !problems.is_empty() {
            return Err(problems.sorted());
        }
        let study = Self {
            name: file.tune.clone(),
            objectives: objectives(&file),
            parameters,
            budget: Budget {
                trials: file.budget.trials.or(file.budget.hours.is_none().then_some(DEFAULT_TRIALS)),
                ..file.budget.clone()
            },
            sampler: file.sampler,
            prune: file.prune.clone(),
            oom: file.oom,
            keep: file.keep,
            seed: file.seed,
            storage: file.storage.clone(),
            base,
            file,
            engines,
        };
        study.check_values(&tree, variables)?;
        Ok(study)
    }

    /// The same with its storage at this path, wherever it is read from again.
    pub fn with_storage(mut self, path: String) -> Self {
        self.file.storage = Some(path.clone());
        self.storage = Some(path);
        self
    }

    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The pipeline of a trial: the values of `point`, by the names of their settings, and those of `more` beside them.
    pub fn pipeline(
        &self,
        name: &str,
        point: &BTreeMap<String, Value>,
        more: &[(&str, Value)],
        variables: &Variables,
    ) -> Result<Pipeline, Problems> {
        let mut tree = self.base.clone();
        tree.put("name", NodeKind::Scalar(json!(name)));
        if point.contains_key("train.accum") && !point.contains_key("train.effective_batch") {
            tree.remove("train.effective_batch");
        }
        if point.contains_key("train.effective_batch") && !point.contains_key("train.accum") {
            tree.remove("train.accum");
        }
        let values = point.iter().map(|(path, value)| {
            let written = self.parameter(path).map_or_else(|| value.clone(), |parameter| parameter.written(value));
            (path.as_str(), written)
        });
        for (path, value) in values.chain(more.iter().map(|(path, value)| (*path, value.clone()))) {
            tree.put(path, NodeKind::of_json(&value))
                .ok_or_else(|| Problems::one(None, path, "the pipeline has no such key"))?;
        }
        let sets_batch = point.contains_key("train.batch") || more.iter().any(|(path, _)| *path == "train.batch");
        if let (false, Some(effective)) = (sets_batch, point.get("train.effective_batch").and_then(Value::as_u64)) {
            cap_batch(&mut tree, effective);
        }
        pipeline_of(&tree, variables, self.engines)
    }

    /// Finds values that no pipeline may have: each is tried once, beside the first values of the others.
    fn check_values(&self, tree: &Node, variables: &Variables) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let first = self.first_point();
        if let Err(found) = self.pipeline(self.name.as_str(), &first, &[], variables) {
            for problem in found.0 {
                // A problem within a setting of the space, or around it, comes from there.
                let around = |name: &&String| {
                    let (long, short) = if name.len() > problem.path.len() {
                        (name.as_str(), problem.path.as_str())
                    } else {
                        (problem.path.as_str(), name.as_str())
                    };
                    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                };
                let (line, section) = match first.keys().find(around) {
                    Some(name) => (space::line(tree, name), "space"),
                    None => (tree.line_of("pipeline"), "pipeline"),
                };
                problems.push(line, &format!("{section}.{}", problem.path), problem.message);
            }
            return Err(problems.sorted());
        }
        for parameter in &self.parameters {
            for value in parameter.values.examples() {
                let mut point = first.clone();
                point.insert(parameter.name.clone(), value);
                let Err(found) = self.pipeline(self.name.as_str(), &point, &[], variables) else { continue };
                for problem in found.0 {
                    let at = if problem.path == parameter.name { String::new() } else { format!("{}: ", problem.path) };
                    let path = format!("space.{}", parameter.name);
                    problems.push(space::line(tree, &parameter.name), &path, format!("{at}{}", problem.message));
                }
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.sorted()) }
    }

    /// The first value of each setting that every trial has.
    pub fn first_point(&self) -> BTreeMap<String, Value> {
        let unconditional = self.parameters.iter().filter(|parameter| parameter.when.is_empty());
        unconditional
            .filter_map(|parameter| Some((parameter.name.clone(), parameter.values.examples().first()?.clone())))
            .collect()
    }

    /// Whether trials that differ in nothing but how a step is cut are one training: the batch is searched beside an effective batch
    /// that stays, or that the point says.
    pub fn searches_cut(&self) -> bool {
        let is_measured = |objective: &Objective| MEASURED.contains(&objective.metric.as_str());
        self.parameter("train.batch").is_some()
            && self.base.find("command").is_none()
            && !self.objectives.iter().any(is_measured)
            && (self.parameter("train.accum").is_some()
                || self.parameter("train.effective_batch").is_some()
                || self.base.find("train.effective_batch").is_some())
    }

    /// The study with the pipeline in it, for the run folder.
    pub fn to_yaml(&self) -> String {
        let mut file = self.file.clone();
        if let Value::Object(map) = self.base.to_json() {
            file.pipeline = BasePipeline::Inline(map);
        }
        serde_saphyr::to_string(&file).expect("a study holds nothing that YAML cannot")
    }
}

/// The pipeline as a tree, without a name: each trial has its own.
fn base(file: &StudyFile, tree: &Node, read: impl FnOnce(&str) -> Result<String, String>) -> Result<Node, Problems> {
    let problem = |message: String| Problems::one(tree.line_of("pipeline"), "pipeline", message);
    let base = match &file.pipeline {
        BasePipeline::File(path) => {
            let text = read(path).map_err(problem)?;
            Node::parse(&text).map_err(|problems| problem(format!("{path}: {problems}")))?
        }
        BasePipeline::Inline(map) => Node { line: None, kind: NodeKind::of_json(&Value::Object(map.clone())) },
    };
    if base.find("steps").is_some() {
        return Err(problem(
            "a pipeline of several steps cannot be searched; name one with a model or a command".to_owned(),
        ));
    }
    if base.find("save.to").is_some() {
        return Err(problem(
            "save.to is not for a study, whose trials stay on this machine; train the best one again with `pipe run`"
                .to_owned(),
        ));
    }
    Ok(base)
}

/// A batch that the study does not search is at most the effective batch of the trial.
fn cap_batch(tree: &mut Node, effective_batch: u64) {
    let batch = match (tree.find("train.batch").map(|node| &node.kind), TrainFile::default().batch) {
        (Some(NodeKind::Scalar(value)), _) => value.as_u64(),
        (None, BatchSetting::Fixed(batch)) => Some(u64::from(batch.get())),
        _ => None,
    };
    if batch.is_some_and(|batch| effective_batch > 0 && effective_batch < batch) {
        tree.put("train.batch", NodeKind::Scalar(json!(effective_batch)));
    }
}

fn objectives(file: &StudyFile) -> Vec<Objective> {
    match &file.objective {
        Objectives::One(one) => vec![one.clone()],
        Objectives::Several(several) => several.clone(),
    }
}

/// Finds what serde cannot know.
fn check(file: &StudyFile, tree: &Node, problems: &mut Problems) {
    let objectives = objectives(file);
    let mut problem = |path: &str, message: String| problems.push(tree.line_of(path), path, message);
    if file.space.is_empty() {
        problem("space", "empty; name at least one setting with its values".to_owned());
    }
    if objectives.is_empty() {
        problem("objective", "empty; name at least one metric".to_owned());
    }
    for (index, objective) in objectives.iter().enumerate() {
        if objectives[..index].iter().any(|other| other.metric == objective.metric) {
            problem("objective", format!("{} is given twice", objective.metric));
        }
        if objective.value == Which::Best && MEASURED.contains(&objective.metric.as_str()) {
            problem("objective", format!("{} is measured once: `value: best` is for metrics", objective.metric));
        }
    }
    let pruned = file.prune.kind != PruneKind::None;
    if pruned && objectives.len() > 1 {
        problem(
            "prune",
            "with several objectives no trial can be told to be worse on the way; allowed: kind: none".to_owned(),
        );
    }
    let first = objectives.first().map(|objective| objective.metric.as_str());
    if let Some(metric) = first.filter(|metric| pruned && MEASURED.contains(metric)) {
        problem("prune", format!("{metric} is known at the end only; allowed: kind: none"));
    }
    if file.budget.hours.is_some_and(|hours| hours <= 0.0) {
        problem("budget.hours", "must be above 0".to_owned());
    }
    if format!("{}.1000000", file.tune.as_str()).parse::<Name>().is_err() {
        problem("tune", "the name must have 56 characters at most: those of the trials are longer".to_owned());
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            (pipeline.name.as_str(), training.train.batch(), training.train.effective_batch),
            ("search.3", 16, 64)
        );
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
        let pipeline =
            set("pipeline.train.epochs=3").unwrap().pipeline("x", &BTreeMap::new(), &[], &Variables::default());
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
            Study::parse(text, &[], |_| Ok(base.to_owned()), &Variables::default(), Engines::NONE)
                .unwrap_err()
                .to_string()
        };
        assert!(
            parse(&BASE.replace("train.jsonl", "\"${NOWHERE}\"")).contains("line 3: pipeline.data.train"),
            "{}",
            parse(&BASE.replace("train.jsonl", "\"${NOWHERE}\""))
        );
        assert!(parse("version: 1\nname: a\nsteps: {}\n").contains("several steps"));
    }
}
