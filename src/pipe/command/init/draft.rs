//! A pipeline file for people: every key that one is likely to change, each with a few comment.

use pipe_spec::pipeline::{Arch, Task};
use pipe_spec::text::ByteSize;

use super::architecture::{self, Defaults};

/// What is known of the pipeline that is written.
pub struct Draft {
    pub name: String,
    pub arch: Arch,
    pub train: String,
    pub eval: Option<String>,
    pub fields: Vec<(&'static str, String)>,
    /// A folder or a hub id; without one the model begins from scratch.
    pub from: Option<String>,
    pub vocabulary: u64,
    pub features: usize,
    pub classes: usize,
    pub gpu_memory: Option<ByteSize>,
    /// Whether it is for a card.
    pub card: bool,
    pub batch: u32,
}

/// Where comments begin.
const MARGIN: usize = 33;

impl Draft {
    pub fn yaml(&self) -> String {
        let defaults = architecture::defaults(self.arch);
        let mut page = Page::default();
        let task = self.arch.task();
        let arch = self.arch.name();
        page.text(&format!("# {arch}: {}.", architecture::describe(task)));
        page.text("# `pipe check` checks this file, `pipe plan` says what memory it needs, `pipe run` runs it; `pipe schema` has every key.");
        page.line("version: 1", "");
        page.line(&format!("name: {}", self.name), "the name of its runs");
        self.model(&mut page, &defaults);
        self.data(&mut page, task);
        self.train(&mut page, &defaults);
        self.memory(&mut page);
        self.watch(&mut page, task);
        page.line("container:", "");
        page.line("  gpus: auto", "0 for the CPU, 1, [id], or auto: a GPU where there is one");
        page.line("  # memory: 24g", "limit on host memory");
        page.line("  # cpus: 8", "");
        page.0
    }

    fn model(&self, page: &mut Page, defaults: &Defaults) {
        page.line("model:", "");
        page.line(&format!("  arch: {}", self.arch.name()), &others(self.arch));
        if let Some(from) = &self.from {
            page.line(
                &format!("  from: {}", scalar(from)),
                "a folder in Hugging Face layout, or a hub id: owner/name, owner/name@revision",
            );
            return;
        }
        let fits = match self.arch.task() {
            Task::TimeSeries => "input_features and num_classes are those of the data",
            _ => "vocab_size is that of the tokenizer",
        };
        page.line("  config:", &format!("from scratch; keys as in config.json. {fits}"));
        for line in architecture::config(self.arch, self.vocabulary, self.features, self.classes) {
            // A mapping in a mapping stays as it is.
            let pairs: Vec<&str> = if line.contains('{') { vec![&line] } else { split_pairs(&line) };
            pairs.iter().for_each(|pair| page.text(&format!("    {pair}")));
        }
        if let Some(hub) = defaults.hub {
            page.line(&format!("  # from: {hub}"), "instead of config: start from trained weights");
        }
    }

    fn data(&self, page: &mut Page, task: Task) {
        page.line("data:", "");
        page.line(
            &format!("  train: {}", scalar(&self.train)),
            "relative to where pipe is started; or a list, or a folder",
        );
        match (&self.eval, task) {
            (Some(eval), _) => page.line(&format!("  eval: {}", scalar(eval)), "the evaluation data"),
            (None, Task::TimeSeries) => {
                page.line("  eval_share: 0.1", "the end of each series is kept for evaluation; or eval: FILE")
            }
            (None, _) => {
                let place = std::path::Path::new(&self.train);
                let ending = place.extension().map_or("jsonl".into(), |ending| ending.to_string_lossy());
                let eval = place.with_file_name(format!("eval.{ending}"));
                page.line(&format!("  # eval: {}", scalar(&eval.display().to_string())), "the evaluation data");
            }
        }
        let fields: Vec<String> =
            self.fields.iter().map(|(role, column)| format!("{role}: {}", scalar(column))).collect();
        match fields.is_empty() {
            true => {
                page.line(&format!("  # fields: {{{}}}", example(task)), "columns of the data, if their names differ")
            }
            false => page.line(&format!("  fields: {{{}}}", fields.join(", ")), "columns of the data"),
        }
        match task {
            Task::Seq2Seq => {
                page.line("  max_source: 512", "tokens; longer texts are cut, shorter limits need less memory");
                page.line("  max_target: 256", "");
            }
            Task::Classification => {
                page.line("  max_length: 256", "tokens; longer texts are cut, a smaller value needs less memory")
            }
            Task::Contrastive => {
                page.line("  max_length: 77", "tokens of a text");
                page.line("  skip_bad: false", "true: leave out pictures that cannot be read");
            }
            Task::Language => page.line("  max_length: 512", "tokens; a smaller value needs less memory"),
            Task::TimeSeries => {}
        }
        if task.reads_text() {
            page.line(
                "  # tokenizer: tokenizer.json",
                "default: that of model.from, else the one beside the training data",
            );
        }
        page.line("  workers: 4", "threads that prepare batches");
    }

    fn train(&self, page: &mut Page, defaults: &Defaults) {
        page.line("train:", "");
        page.line(&format!("  epochs: {}", defaults.epochs), "passes over the data; or steps: 1000");
        page.line(
            &format!("  batch: {}", self.batch),
            "samples per pass, reduced on out-of-memory; or auto: the largest that fits",
        );
        page.line(
            &format!("  effective_batch: {}", defaults.effective_batch),
            "samples per step, kept when the batch changes",
        );
        let precision = if self.card { "bf16-mixed" } else { "fp32" };
        page.line(
            &format!("  precision: {precision}"),
            "fp32 | tf32 | bf16 | bf16-mixed | fp16-mixed (cards before 2020)",
        );
        page.line(
            &format!("  optimizer: {{kind: adamw, lr: {}, weight_decay: 0.01}}", defaults.lr),
            "try another lr first; adafactor needs less memory",
        );
        page.line(
            &format!("  schedule: {{kind: {}, warmup: {}}}", defaults.schedule, defaults.warmup),
            "constant | linear | cosine, after the warm-up",
        );
        page.line("  clip: 1.0", "the largest gradient norm");
        page.line("  checkpointing: false", "true: much less memory, about a third more time");
        page.line("  seed: 42", "");
    }

    fn memory(&self, page: &mut Page) {
        match self.gpu_memory {
            Some(size) => {
                page.line("memory:", "");
                page.line(&format!("  limit: {size}"), "limit on card memory");
            }
            None => page.line("# memory: {limit: 0.95}", "share of the card, or a size such as 12g"),
        }
        page.line("on_oom:", "what happens when memory runs out");
        page.line("  retries: 6", "");
        page.line("  reduce: fit", "the largest batch that fits; or halve, or a ladder: [16, 8, 4]");
        page.line(
            "  then: []",
            "changes to the training result that are allowed when no batch fits: [checkpointing, precision=bf16]",
        );
    }

    fn watch(&self, page: &mut Page, task: Task) {
        let evaluates = self.eval.is_some() || task == Task::TimeSeries;
        let generate = if task.writes_text() { ", generate: 3" } else { "" };
        let mark = if evaluates { "" } else { "# " };
        let comment = if generate.is_empty() { "or a number of steps" } else { "or a number of steps; texts to show" };
        page.line(&format!("{mark}evaluate: {{every: epoch{generate}}}"), comment);
        page.line("save: {every: 500, keep: 3}", "steps between checkpoints, and how many stay");
        let comment =
            "true: event files for `tensorboard --logdir runs`; wandb: PROJECT, an offline run for `wandb sync`";
        page.line("track: {tensorboard: false}", comment);
    }
}

/// Other architectures for the same task.
fn others(arch: Arch) -> String {
    let same = Arch::ALL.iter().filter(|other| **other != arch && other.task() == arch.task());
    let names: Vec<&str> = same.map(|other| other.name()).collect();
    if names.is_empty() { String::new() } else { format!("or {}", names.join(", ")) }
}

fn example(task: Task) -> String {
    let roles = task.roles().iter().map(|role| format!("{role}: {role}"));
    roles.collect::<Vec<_>>().join(", ")
}

/// `a: 1, b: [2, 3]` into its pairs.
fn split_pairs(line: &str) -> Vec<&str> {
    let mut pairs = Vec::new();
    let mut begin = 0;
    let mut depth = 0;
    for (place, letter) in line.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                pairs.push(line[begin..place].trim());
                begin = place + 1;
            }
            _ => {}
        }
    }
    pairs.push(line[begin..].trim());
    pairs
}

/// A text as a value of YAML: as it is where nothing in it means anything.
fn scalar(text: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '/' | '.' | '_' | '-');
    let is_plain = text.starts_with(|letter: char| letter.is_alphabetic() || matches!(letter, '/' | '.' | '_'))
        && text.chars().all(plain)
        && text.parse::<f64>().is_err()
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn text(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn line(&mut self, text: &str, comment: &str) {
        match comment.is_empty() {
            true => self.text(text),
            false => self.text(&format!("{:<MARGIN$}# {comment}", format!("{text}  "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;
    use pipe_spec::pipeline::Pipeline;

    use super::*;

    fn draft(arch: Arch, from: Option<&str>) -> Draft {
        Draft {
            name: "x".to_owned(),
            arch,
            train: "a folder/train: 1.jsonl".to_owned(),
            eval: None,
            fields: Vec::new(),
            from: from.map(str::to_owned),
            vocabulary: 300,
            features: 4,
            classes: 3,
            gpu_memory: None,
            card: true,
            batch: 4,
        }
    }

    #[test]
    fn every_architecture_parses() {
        for arch in Arch::ALL.iter().copied() {
            let name = arch.name();
            for from in [None, Some("owner/name")] {
                for eval in [None, Some("e.csv".to_owned())] {
                    let size = "7.5g".parse().ok().filter(|_| eval.is_some());
                    let text = Draft { eval, gpu_memory: size, ..draft(arch, from) }.yaml();
                    let pipeline = Pipeline::parse(&text, &[], &Variables::new(None, std::iter::empty()))
                        .unwrap_or_else(|problems| panic!("{name}: {problems}\n{text}"));
                    let training = pipeline.training().unwrap();
                    assert_eq!(training.data.train.0, ["a folder/train: 1.jsonl"]);
                    assert_eq!((training.model.arch, training.model.from.as_deref()), (arch, from), "{text}");
                }
            }
        }
    }

    #[test]
    fn texts_that_mean_something_are_quoted() {
        for (text, want) in [
            ("data/train.jsonl", "data/train.jsonl"),
            ("../x", "../x"),
            ("no", "\"no\""),
            ("a b", "\"a b\""),
            ("a: b", "\"a: b\""),
            ("1", "\"1\""),
            ("-x", "\"-x\""),
            ("$HOME\"", "\"$HOME\\\"\""),
        ] {
            assert_eq!(scalar(text), want);
        }
    }
}
