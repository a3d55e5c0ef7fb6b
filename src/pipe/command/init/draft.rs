//! A pipeline file for people: every key that one is likely to change, each with a few comment.

use pipe_model::{Starter, StarterSizes};
use pipe_spec::pipeline::{Arch, Task};
use pipe_spec::text::ByteSize;

use super::architecture;
use super::limits::Limits;
use super::page::{Page, scalar, split_pairs};
use super::settings::Settings;
use super::survey::Field;

/// What is known of the pipeline that is written.
#[derive(Clone)]
pub struct Draft {
    pub name: String,
    pub arch: Arch,
    pub train: String,
    pub eval: Option<String>,
    pub fields: Vec<Field>,
    /// A folder or a hub id; without one the model begins from scratch.
    pub from: Option<String>,
    pub sizes: StarterSizes,
    pub limits: Limits,
    pub settings: Settings,
    /// Whether rows without a label are left out.
    pub skip_bad: bool,
    /// What was found in the data, as comments.
    pub findings: Vec<String>,
    /// Whether a tokenizer lies beside the data.
    pub has_tokenizer: bool,
    pub gpu_memory: Option<ByteSize>,
    /// Whether it is for a card.
    pub card: bool,
    pub batch: u32,
}

impl Draft {
    pub fn yaml(&self) -> String {
        let starter = pipe_model::starter(self.arch);
        let mut page = Page::default();
        let task = self.arch.task();
        let arch = self.arch.name();
        page.text(&format!("# {arch}: {}.", architecture::describe(task)));
        page.text("# `pipe check` checks this file, `pipe plan` says what memory it needs, `pipe run` runs it; `pipe schema` has every key.");
        page.line("version: 1", "");
        page.line(&format!("name: {}", self.name), "the name of its runs");
        self.model(&mut page, &starter);
        self.data(&mut page, task);
        self.train(&mut page, &starter, task);
        self.memory(&mut page);
        self.watch(&mut page, task);
        page.line("container:", "");
        page.line("  gpus: auto", "0 for the CPU, a number, all, [ids], or auto: a GPU where there is one");
        page.line("  # memory: 24g", "limit on host memory");
        page.line("  # cpus: 8", "");
        page.0
    }

    fn model(&self, page: &mut Page, starter: &Starter) {
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
            _ => "vocab_size is at least that of the tokenizer",
        };
        page.line("  config:", &format!("from scratch; keys as in config.json. {fits}"));
        for line in (starter.config)(&self.sizes) {
            // A mapping in a mapping stays as it is.
            let pairs: Vec<&str> = if line.contains('{') { vec![&line] } else { split_pairs(&line) };
            pairs.iter().for_each(|pair| page.text(&format!("    {pair}")));
        }
        if let Some(hub) = starter.hub {
            page.line(&format!("  # from: {hub}"), "instead of config: start from trained weights");
        }
    }

    fn data(&self, page: &mut Page, task: Task) {
        page.line("data:", "");
        self.findings.iter().for_each(|line| page.text(&format!("  # {line}")));
        page.line(
            &format!("  train: {}", scalar(&self.train)),
            "relative to where pipe is started; or a list, or a folder",
        );
        match &self.eval {
            Some(eval) => page.line(&format!("  eval: {}", scalar(eval)), "the evaluation data"),
            None => {
                let which = match task {
                    Task::TimeSeries => "the end of each series is kept for evaluation; or eval: FILE",
                    _ => "of the rows are kept for evaluation; or eval: FILE",
                };
                page.line(&format!("  eval_share: {}", self.settings.eval_share), which);
            }
        }
        let fields: Vec<String> =
            self.fields.iter().map(|(role, column)| format!("{role}: {}", scalar(column))).collect();
        match fields.is_empty() {
            true if task == Task::Language => {}
            true => {
                page.line(&format!("  # fields: {{{}}}", example(task)), "columns of the data, if their names differ")
            }
            false => page.line(&format!("  fields: {{{}}}", fields.join(", ")), "columns of the data"),
        }
        self.lengths(page, task);
        if task.reads_text() {
            let which = match (&self.from, self.has_tokenizer) {
                (Some(_), _) => "default: that of model.from",
                (None, true) => "default: the one beside the training data",
                (None, false) => "default: one is trained on the texts of the training data, once",
            };
            page.line("  # tokenizer: tokenizer.json", which);
        }
        page.line(&format!("  workers: {}", if self.card { 4 } else { 2 }), "threads that prepare batches");
    }

    fn lengths(&self, page: &mut Page, task: Task) {
        let Limits { source, target, length } = self.limits;
        const CUT: &str = "tokens; longer texts are cut, a smaller value needs less memory";
        match task {
            Task::Seq2Seq => {
                page.line(&format!("  max_source: {source}"), CUT);
                page.line(&format!("  max_target: {target}"), "");
            }
            Task::Classification => page.line(&format!("  max_length: {length}"), CUT),
            Task::Contrastive => page.line(&format!("  max_length: {length}"), "tokens of a text"),
            Task::Language => {
                page.line(&format!("  max_length: {length}"), "tokens; a smaller value needs less memory")
            }
            Task::TimeSeries => {}
        }
        match task {
            Task::Contrastive => {
                page.line(&format!("  skip_bad: {}", self.skip_bad), "true: leave out pictures that cannot be read");
            }
            Task::Classification if self.skip_bad => page.line("  skip_bad: true", "leave out rows without a label"),
            _ => {}
        }
    }

    fn train(&self, page: &mut Page, starter: &Starter, task: Task) {
        let Settings { epochs, effective_batch, lr, balanced, .. } = self.settings;
        page.line("train:", "");
        page.line(&format!("  epochs: {epochs}"), "passes over the data; or steps: 1000");
        page.line(
            &format!("  batch: {}", self.batch),
            "samples per pass, reduced on out-of-memory; or auto: the largest that fits",
        );
        page.line(&format!("  effective_batch: {effective_batch}"), "samples per step, kept when the batch changes");
        let precision = if self.card { "bf16-mixed" } else { "fp32" };
        page.line(
            &format!("  precision: {precision}"),
            "fp32 | tf32 | bf16 | bf16-mixed | fp16-mixed (cards before 2020)",
        );
        page.line(
            &format!("  optimizer: {{kind: adamw, lr: {lr:.1e}, weight_decay: 0.01}}"),
            "try another lr first; adafactor needs less memory",
        );
        page.line(
            &format!("  schedule: {{kind: {}, warmup: 0.1}}", starter.schedule),
            "constant | linear | cosine, after a warm-up of a tenth of the steps",
        );
        if task.classifies() && balanced {
            page.line("  class_weights: balanced", "every class counts the same, however many rows it has");
        }
        page.line("  clip: 1.0", "the largest gradient norm");
        page.line("  checkpointing: auto", "true: much less memory, about a third more time; auto: where it is needed");
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
        let every = self.settings.evaluate_every.map_or("epoch".to_owned(), |steps| steps.to_string());
        let generate = if task.writes_text() { ", generate: 3" } else { "" };
        let texts = if generate.is_empty() { "" } else { "; texts to show" };
        page.line(&format!("evaluate: {{every: {every}{generate}}}"), &format!("a number of steps, or epoch{texts}"));
        page.line(
            &format!("save: {{every: 500, keep: 2, best: {}}}", self.settings.best),
            "steps between checkpoints, how many stay, and the metric of the model that is kept",
        );
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
    let usual = task.roles().iter().filter(|role| **role != "messages");
    let roles = usual.map(|role| format!("{role}: {role}"));
    roles.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use pipe_model::ModelSize;
    use pipe_spec::Variables;

    use super::*;
    use crate::engine::registry;

    fn draft(arch: Arch, from: Option<&str>, model: ModelSize) -> Draft {
        Draft {
            name: "x".to_owned(),
            arch,
            train: "a folder/train: 1.jsonl".to_owned(),
            eval: None,
            fields: Vec::new(),
            from: from.map(str::to_owned),
            sizes: StarterSizes { model, vocabulary: 300, length: 64, features: 4, window: 20, classes: 3 },
            limits: Limits::unknown(arch.task()),
            settings: Settings {
                epochs: 3,
                effective_batch: 32,
                lr: 2.0e-5,
                eval_share: 0.12,
                evaluate_every: Some(10),
                balanced: true,
                best: "eval.loss",
            },
            skip_bad: true,
            findings: vec!["found: 3 rows".to_owned()],
            has_tokenizer: false,
            gpu_memory: None,
            card: true,
            batch: 4,
        }
    }

    #[test]
    fn every_architecture_parses() {
        for arch in Arch::ALL.iter().copied() {
            let name = arch.name();
            for (from, model) in [
                (None, ModelSize::Small),
                (None, ModelSize::Medium),
                (None, ModelSize::Base),
                (Some("owner/name"), ModelSize::Base),
            ] {
                for eval in [None, Some("e.csv".to_owned())] {
                    let size = "7.5g".parse().ok().filter(|_| eval.is_some());
                    let text = Draft { eval, gpu_memory: size, ..draft(arch, from, model) }.yaml();
                    let pipeline = registry::parse_pipeline(&text, &[], &Variables::new(None, std::iter::empty()))
                        .unwrap_or_else(|problems| panic!("{name}: {problems}\n{text}"));
                    let training = pipeline.training().unwrap();
                    assert_eq!(training.data.train.0, ["a folder/train: 1.jsonl"]);
                    assert_eq!((training.model.arch, training.model.from.as_deref()), (arch, from), "{text}");
                    if let Some(config) = &training.model.config {
                        let config =
                            pipe_model::read_config(arch, config).unwrap_or_else(|error| panic!("{name}: {error}"));
                        let count: i64 = config.parameters().iter().map(|one| one.shape.iter().product::<i64>()).sum();
                        assert!(model != ModelSize::Small || count < 5_000_000, "{name}: {count}");
                    }
                }
            }
        }
    }
}
