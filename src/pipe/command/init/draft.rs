//! The draft of a pipeline: every decision that the data and the answers lead to, as a typed pipeline with comments.

use std::num::NonZeroU32;
use std::path::Path;

use pipe_model::{ModelSize, StarterSizes};
use pipe_spec::model_folder;
use pipe_spec::pipeline::{
    Adapter, Arch, Augment, BatchSetting, COMPLETION, CONTEXT, CONVERSATION, ClassWeights, Data, Evaluate, Every,
    IGNORED_COLUMNS, Limit, Memory, Metric, Model, ModelTask, Note, Optimizer, PROMPT, Paths, PipelineFile, Precision,
    Quantize, Save, Schedule, ScheduleKind, Task, TrainFile, Warmup,
};
use pipe_spec::text::{ByteSize, Name};
use serde_json::Value;

use super::column::{Column, ColumnKind};
use super::roles;
use super::settings::{self, Facts, Limits, Settings};
use super::survey::{Field, Survey};

/// Rows of a window, and columns, of a time series that could not be read.
const UNKNOWN_WINDOW: u32 = 60;
const UNKNOWN_FEATURES: usize = 8;

/// The learning rate of an adapter: its matrices are few, and the first of them begin at 0.
const ADAPTER_LR: f64 = 2.0e-4;

/// Answers from flags, from a person and from this machine.
#[derive(Clone)]
pub struct Answers {
    pub name: Name,
    pub arch: Arch,
    /// The task, where it is not that of the architecture.
    pub task: Option<ModelTask>,
    pub train: String,
    pub eval: Option<String>,
    pub fields: Vec<Field>,
    /// A folder or a hub id; without one the model is trained from scratch.
    pub from: Option<String>,
    pub gpu_memory: Option<ByteSize>,
    /// Whether it is for a card.
    pub card: bool,
}

impl Answers {
    pub fn task(&self) -> Task {
        Model { arch: self.arch, task: self.task, from: None, config: None, quantize: Quantize::None }.task()
    }
}

/// Every decision about the pipeline that is written.
#[derive(Clone)]
pub struct Draft {
    pub answers: Answers,
    pub sizes: StarterSizes,
    pub limits: Limits,
    pub settings: Settings,
    /// Whether rows without a text or a label, and broken pictures, are skipped.
    pub skip_bad: bool,
    /// The mark between the labels of a row that can have several.
    pub separator: Option<char>,
    /// A description of the data, in lines.
    pub findings: Vec<String>,
    /// Whether a tokenizer lies beside the data.
    pub has_tokenizer: bool,
    pub batch: u32,
    /// Whether an adapter is trained, and not all weights.
    pub has_adapter: bool,
    /// How the weights beside an adapter are kept.
    pub quantize: Quantize,
}

impl Draft {
    /// Decides everything. Where the data could not be read, the sizes are those of published models.
    pub fn new(answers: Answers, survey: Option<&Survey>) -> Self {
        let (task, from_weights) = (answers.task(), answers.from.is_some());
        let starter = pipe_model::starter(answers.arch);
        let fields = &answers.fields;
        let size = survey.map_or(ModelSize::Base, |survey| ModelSize::for_rows(survey.rows));
        let is_small = size == ModelSize::Small && !from_weights;
        let limits = survey.map_or(Limits::unknown(task), |survey| Limits::of(task, survey, fields, is_small));
        let label = survey.and_then(|survey| survey.fed(fields, "label"));
        // The config of a trained model does not name its prediction; its head is made for the labels: whole numbers are classes.
        let is_number = |label: &Column| label.is_quantity() && !(from_weights && label.whole);
        let is_number = matches!(task, Task::Classification | Task::Table) && label.is_some_and(is_number);
        let separator =
            label.and_then(|label| if let ColumnKind::Several(mark) = label.kind { Some(mark) } else { None });
        let is_several = separator.is_some();
        let tags = survey.and_then(|survey| survey.fed(fields, "tags"));
        let window = survey.map_or(UNKNOWN_WINDOW, |survey| settings::window(survey.rows));
        let facts = Facts {
            task,
            samples: survey.map(|survey| settings::samples(task, survey, fields, limits, window)),
            has_eval: answers.eval.is_some(),
            from_weights,
            size,
            is_number,
            is_several,
            has_numbered_tags: tags.is_some_and(|tags| tags.kind == ColumnKind::Numbers),
            classes: label.filter(|_| !is_number && !is_several).map_or(&[], |label| label.classes.as_slice()),
            window,
        };
        let settings = Settings::new(&starter, &facts);
        let tokenizer = tokenizer_beside(&answers.train, answers.arch);
        let sizes = StarterSizes {
            model: size,
            vocabulary: tokenizer.unwrap_or_else(|| {
                let wanted =
                    survey.filter(|_| task == Task::Seq2Seq).map(|survey| settings::vocabulary(survey, fields));
                wanted.unwrap_or(u64::MAX).min(size.vocabulary(starter.vocabulary))
            }),
            length: limits.length,
            features: survey.map_or(UNKNOWN_FEATURES, |survey| survey.features(fields)),
            window,
            classes: if is_number { 1 } else { label.map_or(2, settings::classes) },
        };
        Self {
            sizes,
            limits,
            settings,
            separator: separator.flatten(),
            skip_bad: survey.is_some_and(|survey| survey.uneven > 0 || !survey.bad_rows(task, fields).is_empty()),
            findings: survey.map_or(Vec::new(), |survey| survey.findings(task, fields, None)),
            has_tokenizer: tokenizer.is_some(),
            // A row of a table is small.
            batch: settings.effective_batch.min(if is_small || task == Task::Table { u32::MAX } else { 8 }),
            has_adapter: false,
            quantize: Quantize::None,
            answers,
        }
    }

    pub fn yaml(&self) -> String {
        self.file().to_yaml(&self.notes())
    }

    fn file(&self) -> PipelineFile {
        let Answers { name, gpu_memory, .. } = &self.answers;
        let Settings { evaluate_every, best, .. } = self.settings;
        let generate = if self.answers.task().writes_text() { 3 } else { 0 };
        PipelineFile {
            model: Some(self.model()),
            adapter: self.has_adapter.then(Adapter::default),
            data: Some(self.data()),
            train: self.train(),
            memory: Memory { limit: gpu_memory.map(Limit::Size), ..Memory::default() },
            evaluate: Evaluate {
                every: evaluate_every.map_or(Every::Epoch, Every::Steps),
                generate,
                ..Evaluate::default()
            },
            save: Save { keep: not_zero(2), best: Some(Metric::named(best)), ..Save::default() },
            ..PipelineFile::new(name)
        }
    }

    fn model(&self) -> Model {
        let Answers { arch, from, .. } = &self.answers;
        let config = || (pipe_model::starter(*arch).config)(&self.sizes);
        let task = self.answers.task;
        let config = from.is_none().then(config);
        Model { arch: *arch, task, from: from.clone(), config, quantize: self.quantize }
    }

    pub fn data(&self) -> Data {
        let Answers { train, eval, fields, card, .. } = &self.answers;
        let paths = |path: &String| Paths(vec![path.clone()]);
        let mut data = Data {
            eval: eval.as_ref().map(paths),
            eval_share: self.settings.eval_share,
            fields: fields.iter().cloned().collect(),
            skip_bad: self.skip_bad,
            label_separator: self.separator.map(String::from),
            workers: not_zero(if *card { 4 } else { 2 }),
            ..Data::new(paths(train))
        };
        let Limits { source, target, length } = self.limits;
        match self.answers.task() {
            Task::Seq2Seq => (data.max_source, data.max_target) = (not_zero(source), not_zero(target)),
            Task::Classification | Task::Contrastive | Task::Language | Task::TokenLabels | Task::Preference => {
                data.max_length = not_zero(length);
            }
            Task::PictureClasses => data.augment = Some(Augment::DEFAULT),
            Task::TimeSeries | Task::Table => {}
        }
        data
    }

    fn train(&self) -> TrainFile {
        let Settings { epochs, effective_batch, lr, balanced, .. } = self.settings;
        let schedule = match pipe_model::starter(self.answers.arch).schedule {
            "linear" => ScheduleKind::Linear,
            _ => ScheduleKind::Cosine,
        };
        let mixes = self.answers.card && self.answers.arch.task() != Task::Table;
        TrainFile {
            epochs: Some(epochs as f64),
            batch: BatchSetting::Fixed(not_zero(self.batch)),
            effective_batch: Some(not_zero(effective_batch)),
            precision: if mixes { Precision::Bf16Mixed } else { Precision::Fp32 },
            optimizer: Optimizer { lr: if self.has_adapter { ADAPTER_LR } else { lr }, ..Optimizer::default() },
            schedule: Schedule { kind: schedule, warmup: Warmup::Share(0.1) },
            class_weights: if balanced { ClassWeights::Balanced } else { ClassWeights::None },
            ..TrainFile::default()
        }
    }

    /// The keys that a person is likely to change, in the order of the file, each with its comment.
    fn notes(&self) -> Vec<Note> {
        let mut notes = self.notes_on_model();
        notes.extend(self.notes_on_data());
        notes.extend(self.notes_on_training());
        notes.extend(self.notes_on_the_rest());
        notes
    }

    fn notes_on_model(&self) -> Vec<Note> {
        let Answers { arch, from, .. } = &self.answers;
        let task = self.answers.task();
        let header = vec![
            format!("{}: {}.", arch.name(), roles::describe(task)),
            "`pipe check` checks this file, `pipe plan` says what memory it needs, `pipe run` runs it; `pipe schema` has every key."
                .to_owned(),
        ];
        let fits = match task {
            Task::Table => "the data decides the features and the classes",
            Task::TimeSeries => "input_features and num_classes are those of the data",
            Task::PictureClasses => "image_size: the height and width that pictures are scaled to",
            _ => "vocab_size is at least that of the tokenizer",
        };
        let weights = match from {
            Some(_) => "a folder in Hugging Face layout, or a hub id: owner/name, owner/name@revision",
            None => "instead of config: start from trained weights",
        };
        let mut notes = vec![
            Note::new("version", "").above(header),
            Note::new("name", "the name of its runs"),
            Note::new("model.arch", others(*arch, task)),
            Note::new(
                "model.task",
                match self.answers.task {
                    Some(ModelTask::Preference) => "the better of two answers (DPO)",
                    Some(_) => "a label for each token; or text-classification",
                    None => "",
                },
            ),
            Note::new("model.config", format!("from scratch; keys as in config.json. {fits}")),
            Note::new("model.from", weights).example(pipe_model::starter(*arch).hub.unwrap_or_default()),
        ];
        if !self.quantize.is_none() {
            notes.push(Note::new("model.quantize", "4 bits a weight: 16 would not fit; or int8, none"));
        }
        if self.has_adapter {
            let why = "small matrices are trained beside the weights: all of them would not fit";
            notes.push(Note::new("adapter.rank", why));
        }
        notes
    }

    fn notes_on_data(&self) -> Vec<Note> {
        let Answers { eval, fields, from, .. } = &self.answers;
        let task = self.answers.task();
        const CUT: &str = "tokens; longer texts are cut, a smaller value needs less memory";
        let mut notes = vec![
            Note::new("data.train", "relative to where pipe is started; or a list, or a folder")
                .above(self.findings.clone()),
        ];
        notes.push(match (eval, task) {
            (Some(_), _) => Note::new("data.eval", "the evaluation data"),
            (None, Task::TimeSeries) => {
                Note::new("data.eval_share", "the end of each series is held out for evaluation; or eval: FILE")
            }
            (None, _) => Note::new("data.eval_share", "share of the rows held out for evaluation; or eval: FILE"),
        });
        if !fields.is_empty() {
            notes.push(Note::new("data.fields", "columns of the data"));
            notes.extend(fields.iter().map(|(role, _)| Note::new(&format!("data.fields.{role}"), "")));
        } else if task != Task::Language {
            notes.push(Note::new("data.fields", "columns of the data, if their names differ").example(example(task)));
        }
        notes.extend(match task {
            Task::Seq2Seq => vec![Note::new("data.max_source", CUT), Note::new("data.max_target", "")],
            Task::Classification | Task::TokenLabels => vec![Note::new("data.max_length", CUT)],
            Task::Contrastive => vec![
                Note::new("data.max_length", "tokens of a text"),
                Note::new("data.skip_bad", "true: skip pictures that cannot be read and rows without a text"),
            ],
            Task::Language => vec![Note::new("data.max_length", "tokens; a smaller value needs less memory")],
            Task::Preference => {
                vec![Note::new(
                    "data.max_length",
                    "tokens of a prompt with an answer; longer ones are cut at their end",
                )]
            }
            Task::PictureClasses => vec![
                Note::new("data.augment", "none | flip | crop | crop-flip: how pictures change at random in training"),
                Note::new("data.skip_bad", "true: skip pictures that cannot be read, and rows without a label"),
            ],
            Task::TimeSeries | Task::Table => Vec::new(),
        });
        if self.separator.is_some() {
            notes.push(Note::new("data.label_separator", "between the labels of a text"));
        }
        if !task.reads_pictures() && self.skip_bad {
            notes.push(Note::new(
                "data.skip_bad",
                "skip rows without a text or a label, or with too few or too many cells",
            ));
        }
        if task.reads_text() {
            let which = match (from, self.has_tokenizer) {
                (Some(_), _) => "default: that of model.from",
                (None, true) => "default: the one beside the training data",
                (None, false) => "default: one is trained on the texts of the training data, once",
            };
            notes.push(Note::new("data.tokenizer", which).example("tokenizer.json"));
        }
        notes.push(Note::new("data.workers", "threads that prepare batches"));
        notes
    }

    fn notes_on_training(&self) -> Vec<Note> {
        let mut notes = table(&[
            ("train.epochs", "passes over the data; or steps: 1000"),
            ("train.batch", "samples per pass, reduced on out-of-memory; or auto: the largest that fits"),
            ("train.effective_batch", "samples per step, kept when the batch changes"),
            ("train.precision", "fp32 | tf32 | bf16 | bf16-mixed | fp16-mixed (cards before 2020)"),
            ("train.optimizer", "try another lr first; adafactor needs less memory"),
            ("train.optimizer.kind", ""),
            ("train.optimizer.lr", ""),
            ("train.optimizer.weight_decay", ""),
            ("train.schedule", "constant | linear | cosine, after a warm-up of a tenth of the steps"),
            ("train.schedule.kind", ""),
            ("train.schedule.warmup", ""),
        ]);
        if self.settings.balanced {
            let comment = "every class counts the same, however many rows it has";
            notes.push(Note::new("train.class_weights", comment));
        }
        notes.extend(table(&[
            ("train.clip", "the largest gradient norm"),
            ("train.checkpointing", "true: much less memory, about a third more time; auto: where it is needed"),
            ("train.seed", ""),
        ]));
        notes
    }

    fn notes_on_the_rest(&self) -> Vec<Note> {
        let writes_text = self.answers.task().writes_text();
        let mut notes = vec![match self.answers.gpu_memory {
            Some(_) => Note::new("memory.limit", "limit on card memory"),
            None => Note::new("memory", "share of the card, or a size such as 12g").example("{limit: 0.95}"),
        }];
        notes.extend(table(&[
            ("on_oom", "when memory runs out"),
            ("on_oom.retries", ""),
            ("on_oom.reduce", "the largest batch that fits; or halve, or a ladder: [16, 8, 4]"),
            (
                "on_oom.then",
                "changes to the training result that are allowed when no batch fits: [checkpointing, precision=bf16]",
            ),
            (
                "evaluate",
                if writes_text { "a number of steps, or epoch; texts to show" } else { "a number of steps, or epoch" },
            ),
            ("evaluate.every", ""),
        ]));
        if writes_text {
            notes.push(Note::new("evaluate.generate", ""));
        }
        notes.extend(table(&[
            ("save", "steps between checkpoints, how many stay, and the metric of the model that is kept"),
            ("save.every", ""),
            ("save.keep", ""),
            ("save.best", ""),
            (
                "track",
                "true: event files for `tensorboard --logdir runs`; wandb: PROJECT, an offline run for `wandb sync`",
            ),
            ("track.tensorboard", ""),
            ("container.gpus", "0 for the CPU, a number, all, [ids], or auto: a GPU where there is one"),
        ]));
        notes.push(Note::new("container.memory", "limit on host memory").example("24g"));
        notes.push(Note::new("container.cpus", "").example("8"));
        notes
    }
}

fn table(notes: &[(&str, &str)]) -> Vec<Note> {
    notes.iter().map(|(path, comment)| Note::new(path, *comment)).collect()
}

fn not_zero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

/// Other architectures for the same task.
fn others(arch: Arch, task: Task) -> String {
    let same = Arch::ALL.iter().filter(|other| **other != arch && other.can(task));
    let names: Vec<&str> = same.map(|other| other.name()).collect();
    if names.is_empty() { String::new() } else { format!("or {}", names.join(", ")) }
}

/// The roles of a task, each fed by the column of its name.
fn example(task: Task) -> String {
    let usual = task.roles().iter().filter(|role| {
        ![CONVERSATION, CONTEXT, IGNORED_COLUMNS, COMPLETION].contains(role)
            && (task == Task::Preference || **role != PROMPT)
    });
    let roles: Vec<String> = usual.map(|role| format!("{role}: {role}")).collect();
    format!("{{{}}}", roles.join(", "))
}

/// How many tokens a tokenizer beside the data has, if there is one.
fn tokenizer_beside(train: &str, arch: Arch) -> Option<u64> {
    let path = Path::new(train);
    let folder = if path.is_dir() { path } else { path.parent()? };
    let first = model_folder::find_tokenizer(folder, arch)?[0];
    let size = if first == model_folder::TOKENIZER_JSON { tokens_of(&folder.join(first)) } else { None };
    Some(size.unwrap_or(pipe_model::starter(arch).vocabulary))
}

/// How many tokens a tokenizer.json knows.
fn tokens_of(tokenizer: &Path) -> Option<u64> {
    let tokenizer: Value = serde_json::from_slice(&std::fs::read(tokenizer).ok()?).ok()?;
    let known = match tokenizer.get("model")?.get("vocab")? {
        Value::Object(tokens) => tokens.len(),
        Value::Array(tokens) => tokens.len(),
        _ => return None,
    };
    let added = tokenizer.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let last = added.filter_map(|token| token.get("id")?.as_u64()).map(|id| id.saturating_add(1)).max();
    Some((known as u64).max(last.unwrap_or(0))).filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;

    use super::*;
    use crate::engine::registry;

    fn draft(arch: Arch, from: Option<&str>, model: ModelSize) -> Draft {
        let answers = Answers {
            name: "x".parse().unwrap(),
            arch,
            task: None,
            train: "a folder/train: 1.jsonl".to_owned(),
            eval: None,
            fields: Vec::new(),
            from: from.map(str::to_owned),
            gpu_memory: None,
            card: true,
        };
        Draft {
            has_adapter: false,
            quantize: Quantize::None,
            answers,
            sizes: StarterSizes { model, vocabulary: 300, length: 64, features: 4, window: 20, classes: 3 },
            limits: Limits::unknown(arch.task()),
            settings: Settings {
                epochs: 3,
                effective_batch: 32,
                lr: 2.0e-5,
                eval_share: 0.12,
                evaluate_every: Some(10),
                balanced: arch.task().classifies(),
                best: "loss",
            },
            skip_bad: matches!(arch.task(), Task::Classification | Task::Contrastive | Task::Table),
            separator: (arch.task() == Task::Classification).then_some('|'),
            findings: vec!["found: 3 rows".to_owned()],
            has_tokenizer: false,
            batch: 4,
        }
    }

    #[test]
    fn every_architecture_parses() {
        for arch in Arch::ALL.iter().copied() {
            for (from, model) in [
                (None, ModelSize::Small),
                (None, ModelSize::Medium),
                (None, ModelSize::Base),
                (Some("owner/name"), ModelSize::Base),
            ] {
                for eval in [None, Some("e.csv".to_owned())] {
                    let mut draft = draft(arch, from, model);
                    draft.answers.gpu_memory = "7.5g".parse().ok().filter(|_| eval.is_some());
                    draft.settings.eval_share = if eval.is_some() { 0.0 } else { 0.12 };
                    draft.answers.eval = eval;
                    check(&draft);
                }
            }
        }
    }

    fn check(draft: &Draft) {
        let (text, answers) = (draft.yaml(), &draft.answers);
        let (name, variables) = (answers.arch.name(), Variables::new(None, std::iter::empty()));
        let pipeline = registry::parse_pipeline(&text, &[], &variables)
            .unwrap_or_else(|problems| panic!("{name}: {problems}\n{text}"));
        let training = pipeline.training().unwrap();
        assert_eq!(training.data.train.0, ["a folder/train: 1.jsonl"]);
        assert_eq!((training.model.arch, &training.model.from), (answers.arch, &answers.from), "{text}");
        assert_eq!(training.train.optimizer.lr, 2.0e-5);
        if let Some(config) = &training.model.config {
            let config =
                pipe_model::read_config(answers.arch, config).unwrap_or_else(|error| panic!("{name}: {error}"));
            let count: i64 = config.parameters().iter().map(|one| one.shape.iter().product::<i64>()).sum();
            assert!(draft.sizes.model != ModelSize::Small || count < 5_000_000, "{name}: {count}");
        }
        // Every note is about a key of the file, or shows one that may be added.
        let file = serde_json::to_value(draft.file()).unwrap();
        for note in draft.notes() {
            let pointer = format!("/{}", note.path.replace('.', "/"));
            let is_written = file.pointer(&pointer).is_some_and(|value| !value.is_null());
            assert!(is_written || !note.example.is_empty() || note.path.starts_with("model."), "{name}: {}", note.path);
            if !note.example.is_empty() {
                let with = registry::parse_pipeline(&text, &[format!("{}={}", note.path, note.example)], &variables);
                let message = with.err().map_or(String::new(), |problems| problems.to_string());
                assert!(message.is_empty() || note.path == "model.from", "{}: {message}", note.path);
            }
        }
    }
}
