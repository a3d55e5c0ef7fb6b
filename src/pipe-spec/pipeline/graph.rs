//! `steps`: several trainings and commands in one file, each of which begins when those that it needs have finished.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::{Value, json};

use super::check::{self, OF_COMMANDS};
use super::command::CommandLine;
use super::{Engines, Pipeline, Problems, Work, file};
use crate::text::Name;
use crate::variables::Variables;
use crate::yaml::{Entry, Node, NodeKind, Structure};

/// A pipeline of several stages that has passed every check.
#[derive(Clone, Debug, PartialEq)]
pub struct StageGraph {
    pub name: Name,
    /// In the order of the file.
    pub stages: Vec<Stage>,
    tree: Node,
}

/// A stage of a pipeline: a training or a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    pub name: String,
    /// The stages that must have finished before, as the file says.
    pub needs: Vec<String>,
    /// Files and folders that it depends on, besides those that `pipe` sees by itself.
    pub inputs: Vec<String>,
    /// Outputs that other stages may name, as paths below `{run}`.
    pub outputs: BTreeMap<String, String>,
    /// As a pipeline of its own, with the outputs of other stages below `/steps`.
    pub pipeline: Pipeline,
    /// All stages that it comes after.
    pub ancestors: Vec<String>,
    tree: Node,
    engines: Engines,
}

/// An output of a stage: everything in its `{run}` where no name is given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OutputRef {
    pub stage: String,
    pub output: Option<String>,
}

impl OutputRef {
    /// Where a container finds it.
    pub fn mounted(&self) -> String {
        match &self.output {
            Some(output) => format!("/steps/{}.{output}", self.stage),
            None => format!("/steps/{}", self.stage),
        }
    }
}

/// Stages that a pipeline may have.
const MAX_STAGES: usize = 1000;

/// The keys that only a stage has.
const OF_STAGES: [&str; 3] = ["needs", "inputs", "outputs"];

/// The output of a training.
const MODEL: &str = "model";

static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\{?)\{steps\.([A-Za-z0-9_-]+)(?:\.([A-Za-z0-9_-]+))?\}").expect("a regular expression")
});

impl StageGraph {
    /// Reads a pipeline file. Nothing where it has no `steps`.
    pub fn parse(
        text: &str,
        overrides: &[String],
        variables: &Variables,
        engines: Engines,
    ) -> Result<Option<Self>, Problems> {
        let mut tree = Node::parse(text)?;
        if tree.find("steps").is_none() {
            return Ok(None);
        }
        for pair in overrides {
            tree.set(pair)?;
        }
        Self::read(tree, variables, engines).map(Some)
    }

    fn read(tree: Node, variables: &Variables, engines: Engines) -> Result<Self, Problems> {
        let (schema, shared) = (file::schema(engines), file::shared_sections(engines));
        let mut problems = Structure::new(&schema, &super::other_names::Transformers).check(&tree);
        for key in tree.keys() {
            if !shared.contains(&key)
                && !["version", "name", "steps"].contains(&key)
                && schema["properties"].get(key).is_some()
            {
                let message = format!("belongs in a step; allowed beside steps: {}", shared.join(", "));
                problems.push(tree.line_of(key), key, message);
            }
        }
        let name =
            tree.find("name").and_then(|node| node.to_json().as_str().and_then(|name| name.parse::<Name>().ok()));
        let (Some(name), true) = (name, problems.is_empty()) else { return Err(problems.sorted()) };
        let (entries, no_entries) = (tree.find("steps").map(|node| &node.kind), Vec::new());
        let entries = if let Some(NodeKind::Map(entries)) = entries { entries } else { &no_entries };
        if entries.is_empty() {
            problems.push(
                tree.line_of("steps"),
                "steps",
                "no step in it; name at least one, with a command or a model",
            );
        }
        if entries.len() > MAX_STAGES {
            let message = format!("{} steps; at most {MAX_STAGES} are allowed", entries.len());
            problems.push(tree.line_of("steps"), "steps", message);
            return Err(problems.sorted());
        }
        let drafts: Vec<Draft<'_>> = entries.iter().map(|entry| Draft::read(&tree, entry, &shared)).collect();
        drafts.iter().for_each(|draft| draft.check(&name, &drafts, &mut problems));
        if !problems.is_empty() {
            return Err(problems.sorted());
        }
        let mut stages = Vec::new();
        for draft in &drafts {
            match draft.pipeline(&name, variables, engines) {
                Ok((tree, pipeline)) => stages.push(draft.stage(tree, pipeline, &drafts, engines)),
                Err(found) => problems.0.extend(found.0),
            }
        }
        if problems.is_empty() { Ok(Self { name, stages, tree }) } else { Err(problems.sorted()) }
    }

    pub fn stage(&self, name: &str) -> Option<&Stage> {
        self.stages.iter().find(|stage| stage.name == name)
    }

    /// The file with what was set, for the run folder.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(&self.tree.to_json()).expect("a tree holds nothing that YAML cannot")
    }
}

impl Stage {
    /// The same with the outputs of other stages where `path_of` says they are.
    pub fn placed(&self, path_of: impl Fn(&OutputRef) -> String, variables: &Variables) -> Result<Pipeline, Problems> {
        check::pipeline(&with_references(&self.tree, &path_of), variables, self.engines)
    }

    /// The outputs of other stages that it names, each once.
    pub fn references(&self) -> Vec<OutputRef> {
        references(&self.tree)
            .into_iter()
            .map(|(_, _, found)| found)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// The names of its outputs, the whole of a command's first.
    pub fn output_names(&self) -> Vec<Option<String>> {
        output_names(matches!(self.pipeline.work, Work::Command(_)), &self.outputs)
    }
}

fn output_names(is_command: bool, outputs: &BTreeMap<String, String>) -> Vec<Option<String>> {
    match is_command {
        true => std::iter::once(None).chain(outputs.keys().cloned().map(Some)).collect(),
        false => vec![Some(MODEL.to_owned())],
    }
}

/// A stage as the file has it.
struct Draft<'a> {
    name: &'a str,
    line: Option<u64>,
    needs: Vec<String>,
    inputs: Vec<String>,
    outputs: BTreeMap<String, String>,
    is_command: bool,
    /// Its sections with those that are shared.
    sections: Vec<Entry>,
}

impl<'a> Draft<'a> {
    fn read(tree: &Node, entry: &'a Entry, keys: &[&str]) -> Self {
        let given = |key: &str| entry.value.find(key).map_or(Value::Null, Node::to_json);
        let read = |key: &str| serde_json::from_value(given(key)).unwrap_or_default();
        let is_command = entry.value.find("command").is_some();
        let own: &[Entry] = if let NodeKind::Map(entries) = &entry.value.kind { entries } else { &[] };
        let own = own.iter().filter(|section| !OF_STAGES.contains(&section.key.as_str()));
        let mut sections: Vec<Entry> = own.map(|section| in_words(section.clone())).collect();
        let shared = if let NodeKind::Map(entries) = &tree.kind { entries.as_slice() } else { &[] };
        for section in shared.iter().filter(|section| keys.contains(&section.key.as_str())) {
            add_shared(&mut sections, section, "", is_command);
        }
        let outputs = serde_json::from_value(given("outputs")).unwrap_or_default();
        Self {
            name: &entry.key,
            line: entry.line,
            needs: read("needs"),
            inputs: read("inputs"),
            outputs,
            is_command,
            sections,
        }
    }

    /// Finds what is wrong with its name, and with what it says of other stages.
    fn check(&self, graph: &Name, all: &[Self], problems: &mut Problems) {
        let path = format!("steps.{}", self.name);
        let is_plain = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphanumeric())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        let mut problem = |key: &str, message: String| {
            let key_path = if key.is_empty() { path.clone() } else { format!("{path}.{key}") };
            problems.push(self.line, &key_path, message);
        };
        if !is_plain(self.name) {
            problem("", "a name has letters, digits, - and _, and begins with a letter or digit".to_owned());
        } else if format!("{graph}.{}", self.name).parse::<Name>().is_err() {
            problem("", "the names of pipeline and step have more than 63 characters together".to_owned());
        }
        let names: Vec<&str> = all.iter().map(|other| other.name).filter(|name| *name != self.name).collect();
        for needed in self.needs.iter().filter(|needed| !names.contains(&needed.as_str())) {
            let message = match needed == self.name {
                true => "a step cannot need itself".to_owned(),
                false => format!(
                    "there is no step {needed:?}{}; steps: {}",
                    crate::yaml::nearest(needed, &names),
                    names.join(", ")
                ),
            };
            problem("needs", message);
        }
        if self.ancestors(all).iter().any(|ancestor| ancestor == self.name)
            && !self.needs.iter().any(|name| name == self.name)
        {
            problem("needs", "the steps need each other in a circle".to_owned());
        }
        if !self.is_command && !self.outputs.is_empty() {
            problem("outputs", format!("only for a command; the output of a training is {MODEL}"));
        }
        for (name, output) in &self.outputs {
            if !is_plain(name) {
                problem(&format!("outputs.{name}"), "a name has letters, digits, - and _".to_owned());
            }
            if output.is_empty() || output.starts_with('/') || output.split('/').any(|part| part == "..") {
                problem(
                    &format!("outputs.{name}"),
                    "must be a file or folder below {run}, such as rows or rows/train.jsonl".to_owned(),
                );
            }
        }
        if self.tree().find("save.to").is_some() {
            problem("save.to", "not within `steps`: only a pipeline of one training is copied to a bucket".to_owned());
        }
        for (line, key_path, found) in references(&self.tree()) {
            let mut problem = |message: String| problems.push(line, &format!("{path}.{key_path}"), message);
            let OutputRef { stage, output } = &found;
            let Some(other) = all.iter().find(|other| other.name == stage) else {
                let nearest = crate::yaml::nearest(stage, &names);
                problem(format!("there is no step {stage:?}{nearest}; steps: {}", names.join(", ")));
                continue;
            };
            if !self.ancestors(all).contains(stage) {
                problem(format!("{stage} need not have finished before; add it to `needs`"));
            }
            let allowed = output_names(other.is_command, &other.outputs);
            if !allowed.contains(output) {
                let texts: Vec<String> = allowed
                    .iter()
                    .map(|name| {
                        name.as_ref().map_or(format!("{{steps.{stage}}}"), |name| format!("{{steps.{stage}.{name}}}"))
                    })
                    .collect();
                problem(format!("not an output of {stage}; allowed: {}", texts.join(", ")));
            }
        }
    }

    /// All stages that it comes after, in the order of the file.
    fn ancestors(&self, all: &[Self]) -> Vec<String> {
        let mut found: Vec<&str> = Vec::new();
        let mut next: Vec<&str> = self.needs.iter().map(String::as_str).collect();
        while let Some(name) = next.pop() {
            if !found.contains(&name) {
                found.push(name);
                let of = all.iter().find(|other| other.name == name);
                next.extend(of.iter().flat_map(|other| other.needs.iter().map(String::as_str)));
            }
        }
        all.iter().filter(|other| found.contains(&other.name)).map(|other| other.name.to_owned()).collect()
    }

    fn tree(&self) -> Node {
        Node { line: self.line, kind: NodeKind::Map(self.sections.clone()) }
    }

    /// The stage as a pipeline of its own: its tree, and what it says where containers find the outputs of other stages.
    fn pipeline(&self, graph: &Name, variables: &Variables, engines: Engines) -> Result<(Node, Pipeline), Problems> {
        let entry = |key: &str, value: Value| Entry {
            line: self.line,
            key: key.to_owned(),
            value: Node { line: self.line, kind: NodeKind::Scalar(value) },
        };
        let mut sections = vec![entry("version", json!(1)), entry("name", json!(format!("{graph}.{}", self.name)))];
        sections.extend(self.sections.iter().cloned());
        let tree = Node { line: self.line, kind: NodeKind::Map(sections) };
        let pipeline = check::pipeline(&with_references(&tree, &|found| found.mounted()), variables, engines);
        pipeline.map(|pipeline| (tree, pipeline)).map_err(|mut problems| {
            problems.0.iter_mut().for_each(|problem| problem.path = format!("steps.{}.{}", self.name, problem.path));
            problems
        })
    }

    fn stage(&self, tree: Node, pipeline: Pipeline, all: &[Self], engines: Engines) -> Stage {
        Stage {
            name: self.name.to_owned(),
            needs: self.needs.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            pipeline,
            ancestors: self.ancestors(all),
            tree,
            engines,
        }
    }
}

/// A command as a list of words, so that a path with spaces that is put into one stays one.
fn in_words(mut section: Entry) -> Entry {
    if let ("command", NodeKind::Scalar(Value::String(text))) = (section.key.as_str(), &section.value.kind) {
        let words = CommandLine::split(text).0;
        let word = |word: String| Node { line: section.value.line, kind: NodeKind::Scalar(Value::String(word)) };
        if !words.is_empty() {
            section.value.kind = NodeKind::List(words.into_iter().map(word).collect());
        }
    }
    section
}

/// Adds what is shared where a stage does not say otherwise, key by key. A training gets nothing that is for commands.
fn add_shared(own: &mut Vec<Entry>, shared: &Entry, above: &str, is_command: bool) {
    let path = if above.is_empty() { shared.key.clone() } else { format!("{above}.{}", shared.key) };
    // The image of a training has the trainer in it.
    if !is_command && (OF_COMMANDS.contains(&path.as_str()) || path == "container.image") {
        return;
    }
    let at = own.iter().position(|entry| entry.key == shared.key);
    match (&shared.value.kind, at) {
        (NodeKind::Map(entries), at) => {
            let at = at.unwrap_or_else(|| {
                own.push(Entry {
                    value: Node { kind: NodeKind::Map(Vec::new()), ..shared.value.clone() },
                    ..shared.clone()
                });
                own.len() - 1
            });
            if let NodeKind::Map(own) = &mut own[at].value.kind {
                entries.iter().for_each(|entry| add_shared(own, entry, &path, is_command));
            }
        }
        (_, None) => own.push(shared.clone()),
        (_, Some(_)) => {}
    }
}

/// The outputs that the texts of a tree name, with line and path of each text.
fn references(tree: &Node) -> Vec<(Option<u64>, String, OutputRef)> {
    let mut found = Vec::new();
    tree.for_each_text(&mut |line, path, text| {
        let all = REFERENCE.captures_iter(text).filter(|captures| captures[1].is_empty());
        found.extend(all.map(|captures| (line, path.to_owned(), reference(&captures))));
    });
    found
}

fn reference(captures: &Captures<'_>) -> OutputRef {
    OutputRef { stage: captures[2].to_owned(), output: captures.get(3).map(|output| output.as_str().to_owned()) }
}

fn with_references(tree: &Node, path_of: &dyn Fn(&OutputRef) -> String) -> Node {
    let replaced = |captures: &Captures<'_>| match captures[1].is_empty() {
        true => path_of(&reference(captures)),
        // `{{steps.x}}` is the text `{steps.x}`.
        false => captures[0].to_owned(),
    };
    let kind = match &tree.kind {
        NodeKind::Scalar(Value::String(text)) => {
            NodeKind::Scalar(Value::String(REFERENCE.replace_all(text, replaced).into_owned()))
        }
        NodeKind::Scalar(value) => NodeKind::Scalar(value.clone()),
        NodeKind::List(items) => NodeKind::List(items.iter().map(|item| with_references(item, path_of)).collect()),
        NodeKind::Map(entries) => NodeKind::Map(
            entries
                .iter()
                .map(|entry| Entry { value: with_references(&entry.value, path_of), ..entry.clone() })
                .collect(),
        ),
    };
    Node { line: tree.line, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIAMOND: &str = "
version: 1
name: diamond
container: {image: a/Dockerfile, workdir: /app, cpus: 1}
vars: {rows: 3}
steps:
  prepare:
    command: python prepare.py --rows {vars.rows} --out {run}
    outputs: {rows: rows/train.jsonl}
  left:
    needs: [prepare]
    model: {arch: t5, config: {}}
    data: {train: '{steps.prepare.rows}', fields: {source: a, target: b}}
  right:
    needs: [prepare]
    command: [cp, '{steps.prepare}/x y', '{{steps.prepare}}', '{run}']
    container: {cpus: 2}
  end:
    needs: [left, right]
    command: python end.py {steps.left.model} {steps.right}
";

    fn parse(text: &str) -> Result<StageGraph, String> {
        let variables = Variables::new(None, std::iter::empty());
        StageGraph::parse(text, &[], &variables, Engines::NONE)
            .map(|graph| graph.expect("it has steps"))
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn stages_are_pipelines_with_what_is_shared() {
        let graph = parse(DIAMOND).unwrap();
        let names: Vec<&str> = graph.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["prepare", "left", "right", "end"]);
        let [prepare, left, right, end] = graph.stages.as_slice() else { panic!("{names:?}") };
        assert_eq!(prepare.pipeline.name.as_str(), "diamond.prepare");
        assert_eq!(prepare.pipeline.container.workdir.as_deref(), Some("/app"));
        assert_eq!(left.pipeline.training().unwrap().data.train.0, ["/steps/prepare.rows"]);
        let container = &left.pipeline.container;
        assert_eq!((container.workdir.as_ref(), container.image.as_ref(), container.cpus), (None, None, Some(1.0)));
        assert_eq!(right.pipeline.container.cpus, Some(2.0));
        assert_eq!(
            right.pipeline.command().unwrap().line.0,
            ["cp", "/steps/prepare/x y", "{{steps.prepare}}", "{run}"]
        );
        assert_eq!(end.ancestors, ["prepare", "left", "right"]);
        let named =
            |stage: &str, output: Option<&str>| OutputRef { stage: stage.into(), output: output.map(Into::into) };
        assert_eq!(end.references(), [named("left", Some("model")), named("right", None)]);
        assert_eq!(parse(&graph.to_yaml()).unwrap().stages.len(), 4);
    }

    #[test]
    fn outputs_are_put_where_they_are() {
        let graph = parse(DIAMOND).unwrap();
        let path_of = |found: &OutputRef| format!("/a b/{}", found.stage);
        let variables = Variables::new(None, std::iter::empty());
        let placed = graph.stage("end").unwrap().placed(path_of, &variables).unwrap();
        assert_eq!(placed.command().unwrap().line.0, ["python", "end.py", "/a b/left", "/a b/right"]);
    }

    #[test]
    fn every_problem_is_named() {
        for (from, to, want) in [
            (
                "needs: [left, right]",
                "needs: [lefd]",
                "line 18: steps.end.needs: there is no step \"lefd\"; did you mean `left`?",
            ),
            ("needs: [left, right]", "needs: [end]", "a step cannot need itself"),
            ("    outputs:", "    needs: [end]\n    outputs:", "the steps need each other in a circle"),
            ("{steps.left.model}", "{steps.left}", "not an output of left; allowed: {steps.left.model}"),
            ("{steps.prepare.rows}", "{steps.prepare.row}", "allowed: {steps.prepare}, {steps.prepare.rows}"),
            ("{steps.prepare}/x", "{steps.left.model}/x", "left need not have finished before; add it to `needs`"),
            ("rows/train.jsonl", "../x", "must be a file or folder below {run}"),
            (
                "command: python end.py",
                "comand: python end.py",
                "line 20: steps.end.comand: unknown key; did you mean `command`?",
            ),
            ("model: {arch: t5, config: {}}", "model: {arch: t5}", "line 12: steps.left.model: give `from`"),
            ("vars: {rows: 3}", "train: {batch: 3}", "train: belongs in a step"),
            ("  right:", "  ri ght:", "a name has letters, digits, - and _"),
        ] {
            let text = DIAMOND.replacen(from, to, 1);
            assert_ne!(text, DIAMOND, "{from}");
            let found = parse(&text).expect_err(to);
            assert!(found.contains(want), "{to}:\n{found}");
        }
        let many: String = (0..=MAX_STAGES).map(|number| format!("  s{number}: {{command: echo}}\n")).collect();
        let many = parse(&format!("version: 1\nname: x\nsteps:\n{many}")).unwrap_err();
        assert!(many.contains("line 3: steps: 1001 steps; at most 1000 are allowed"), "{many}");
        let empty = parse("version: 1\nname: x\nsteps: {}\n").unwrap_err();
        assert!(empty.contains("no step in it"), "{empty}");
        let variables = Variables::new(None, std::iter::empty());
        assert_eq!(StageGraph::parse("version: 1\nname: x\ncommand: true\n", &[], &variables, Engines::NONE), Ok(None));
    }
}
