//! Looks at the data of a pipeline through the trainer, for `pipe check`: what it holds, and what to be warned of.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use pipe_spec::pipeline::{Gpus, Task, Training};
use pipe_spec::text::count;
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE, error_message};
use pipe_spec::trainer::{Lengths, Split, StepParts};
use pipe_spec::{Device, Inspection, Problems, TrainerExit};
use serde::Serialize;
use tokio::process::Command;

use super::launch::expected_ranks;
use super::launch::template::trainer_spec;
use crate::error::Error;
use crate::fit::ledger::{Ledger, LedgerJob, LedgerSession};
use crate::gpu::Card;
use crate::image;
use crate::input::data_cache::{self, ColumnSelection};
use crate::input::load::Loaded;
use crate::input::{Input, Inputs, data_hash, model_config};
use crate::report::{Reporter, grouped};
use crate::system::interrupt::Interrupts;

/// The result of opening the data.
pub enum Opened {
    /// With the time that the training takes, where the ledger knows it.
    Data(Box<Inspection>, Option<ExpectedTime>),
    /// It cannot be opened here, which says nothing about the data.
    Not { why: String },
}

/// How long a training will take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedTime {
    pub seconds: f64,
    /// `cpu`, or the name of the card.
    pub device: String,
    /// The run that it is computed from.
    pub run: String,
}

/// Opens the data of a pipeline that was read from `file`.
pub async fn inspect(
    file: &Path,
    loaded: &Loaded,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Opened, Error> {
    if !loaded.inputs.all_local {
        return Ok(Opened::Not { why: "some of it is still to be fetched from the hub".to_owned() });
    }
    let trainer = match image::check_libtorch().and_then(|()| image::find_trainer()) {
        Ok(trainer) => trainer,
        Err(error) => return Ok(Opened::Not { why: error.to_string() }),
    };
    let wrong = |key: &str, message: String| Error::Invalid {
        path: file.to_owned(),
        problems: Problems::one(None, key, message),
    };
    let training = loaded.training()?;
    let columns = ColumnSelection::new(training.model.task(), &training.data);
    let prepared = data_cache::prepare_inputs(&loaded.inputs, columns, reporter, interrupts).await;
    let prepared = prepared.map_err(|error| match error {
        Error::NoTokenizer { message, is_input: true } => wrong("data.tokenizer", message),
        other => other,
    })?;
    let answer = tokio::select! {
        answer = ask_trainer(&trainer, training, &prepared.inputs) => answer?,
        () = interrupts.signal() => return Err(Error::Interrupted),
    };
    match answer {
        Answer::Found(mut inspection) => {
            for notice in &mut inspection.notices {
                *notice = prepared.inputs.with_host_paths(notice);
            }
            let time = expected_time(loaded, &prepared.inputs, inspection.steps);
            Ok(Opened::Data(Box::new(inspection), time))
        }
        Answer::Wrong(message) => Err(wrong("", prepared.inputs.with_host_paths(&message))),
        Answer::Unable(why) => Ok(Opened::Not { why }),
    }
}

/// On the device that a run on this machine would have.
fn expected_time(loaded: &Loaded, inputs: &Inputs, steps: u64) -> Option<ExpectedTime> {
    let training = loaded.training().ok()?;
    let card = Card::of_host().filter(|_| loaded.pipeline.container.gpus != Gpus::Count(0));
    let device = card.map_or("cpu".to_owned(), |card| card.name);
    let config = model_config(training, inputs)?;
    let mut spec = trainer_spec(training, inputs, PathBuf::new(), |input: &Input| input.host.clone());
    spec.rank.count = expected_ranks(&loaded.pipeline);
    let session = LedgerSession::open(Ledger::find()?, "", String::new(), data_hash(&spec, inputs));
    let pace = session.pace(&LedgerJob::of_training(&spec, &config), &device).ok()??;
    Some(ExpectedTime { seconds: pace.seconds(steps, training.train.effective_batch), device, run: pace.run })
}

/// The answer of the trainer.
enum Answer {
    Found(Inspection),
    /// The data, the tokenizer or the model cannot be used.
    Wrong(String),
    /// The trainer is one that cannot inspect.
    Unable(String),
}

async fn ask_trainer(trainer: &Path, training: &Training, inputs: &Inputs) -> Result<Answer, Error> {
    let fail = |source| Error::Write { path: "a temporary folder".into(), source };
    let folder = tempfile::tempdir().map_err(fail)?;
    let mut spec = trainer_spec(training, inputs, folder.path().to_owned(), |input: &Input| input.read_at().0);
    // Nothing is computed: neither card nor memory matters.
    spec.device = Device::Cpu;
    spec.memory.limit = None;
    let spec_file = folder.path().join("spec.json");
    let text = serde_json::to_vec(&spec).map_err(|error| fail(error.into()))?;
    std::fs::write(&spec_file, text).map_err(fail)?;
    let mut command = Command::new(trainer);
    command.arg("inspect").arg("--spec").arg(&spec_file).envs(image::trainer_variable(None));
    // It ends with this process.
    command.env(LEASE_VARIABLE, LEASE_ON_STDIN).stdin(Stdio::piped()).kill_on_drop(true);
    let cannot = |source| Error::Spawn { program: trainer.to_owned(), source };
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
    let _lease = child.stdin.take();
    let output = child.wait_with_output().await.map_err(cannot)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success()
        && let Ok(inspection) = serde_json::from_slice(&output.stdout)
    {
        return Ok(Answer::Found(inspection));
    }
    let message = error_message(&said).to_owned();
    match output.status.code().and_then(|code| TrainerExit::from_code(code.into())) {
        Some(TrainerExit::BadInput) => Ok(Answer::Wrong(message)),
        Some(TrainerExit::Usage) => Ok(Answer::Unable(format!("{} cannot inspect data", trainer.display()))),
        _ => Err(Error::Inspection { status: output.status.to_string(), message }),
    }
}

/// Classes that are listed by name at most.
const LISTED: usize = 12;

/// A line each: rows, lengths and classes of the training and of the evaluation data, and the steps.
pub fn summary(inspection: &Inspection) -> Vec<String> {
    let mut lines = split("train", &inspection.train);
    lines.extend(inspection.eval.iter().flat_map(|eval| split("eval", eval)));
    lines.push(format!("steps  {}", grouped(inspection.steps)));
    lines.extend(inspection.step_parts.map(parts));
    lines.extend(example(&inspection.example));
    lines.extend(inspection.notices.iter().map(|notice| format!("note   {notice}")));
    lines
}

/// Lines of a conversation that are shown, and characters of each.
const SHOWN_LINES: usize = 12;
const SHOWN_CHARS: usize = 160;

/// The first conversation, with marks around what the loss counts.
fn example(pieces: &[(String, bool)]) -> Vec<String> {
    if pieces.is_empty() {
        return Vec::new();
    }
    let marked = |(text, counts): &(String, bool)| if *counts { format!("»{text}«") } else { text.clone() };
    let text: String = pieces.iter().map(marked).collect();
    let plain = |line: &str| line.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect::<String>();
    let mut lines = vec!["first  conversation; the loss counts what is between » and «".to_owned()];
    lines.extend(text.lines().take(SHOWN_LINES).map(|line| format!("       {}", plain(line))));
    if text.lines().count() > SHOWN_LINES {
        lines.push("       ...".to_owned());
    }
    lines
}

fn parts(StepParts { samples, parts }: StepParts) -> String {
    let (count, each) = (parts.round().max(1.0), f64::from(samples) / parts);
    match count {
        1.0 => format!("       {} samples a step, in one part on this data", grouped(samples.into())),
        _ => {
            format!("       {} samples a step: about {count} parts of {each:.0} on this data", grouped(samples.into()))
        }
    }
}

fn split(name: &str, split: &Split) -> Vec<String> {
    let of = match split.read < split.rows {
        true => format!(", {} of them read", grouped(split.read)),
        false => String::new(),
    };
    let rows = if split.rows == 1 { "row" } else { "rows" };
    let mut lines = vec![format!("{name:<5}  {} {rows}{of}", grouped(split.rows))];
    lines.extend(split.lengths.iter().map(|lengths| format!("       {}", tokens(lengths))));
    if !split.classes.is_empty() {
        lines.push(format!("       classes: {}", classes(split)));
    }
    lines
}

fn tokens(lengths: &Lengths) -> String {
    let Lengths { column, mean, p95, longest, .. } = lengths;
    format!("{column}: {mean:.0} tokens on average, 95 % up to {}, longest {}", grouped(*p95), grouped(*longest))
}

/// The most frequent first.
fn classes(split: &Split) -> String {
    let mut counts: Vec<_> = split.classes.iter().collect();
    counts.sort_by_key(|class| std::cmp::Reverse(class.rows));
    let listed = counts.iter().take(LISTED).map(|class| format!("{} {}", class.name, grouped(class.rows)));
    let mut text = listed.collect::<Vec<_>>().join(", ");
    if counts.len() > LISTED {
        text += &format!(" and {} more", counts.len() - LISTED);
    }
    text
}

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
    warnings.extend(truncation_warnings(training, train));
    if train.skipped > 0 {
        warnings.push(format!("data.train: {} cannot be read and will be skipped", count(train.skipped, "row")));
    }
    warnings.extend(class_warnings(train, eval.as_ref()));
    warnings
}

fn truncation_warnings(training: &Training, train: &Split) -> Vec<String> {
    let is_cut = |at_limit: u64| at_limit as f64 > CUT_SHARE * train.read as f64;
    let key = |column: &str| match (training.model.task(), column) {
        (Task::Seq2Seq, "target") => ("max_target", training.data.max_target),
        (Task::Seq2Seq, _) => ("max_source", training.data.max_source),
        _ => ("max_length", training.data.max_length),
    };
    let warn = |lengths: &pipe_spec::trainer::Lengths| {
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
mod summary_tests {
    use pipe_spec::trainer::ClassCount;

    use super::*;

    #[test]
    fn a_conversation_is_shown_with_what_counts() {
        let piece = |text: &str, counts| (text.to_owned(), counts);
        let pieces =
            [piece("<user>\nhi\u{1b}[2J\n<assistant>\n", false), piece("hello<end>", true), piece("\n", false)];
        let lines = example(&pieces);
        assert_eq!(lines[1..], ["       <user>", "       hi[2J", "       <assistant>", "       »hello<end>«"]);
        assert_eq!(example(&[piece(&"a\n".repeat(40), true)]).len(), 14);
        assert!(example(&[]).is_empty());
    }

    #[test]
    fn everything_that_was_found_is_listed() {
        let class = |name: &str, rows| ClassCount { name: name.to_owned(), rows };
        let lengths = Lengths { column: "text".to_owned(), mean: 23.6, p95: 61, longest: 1280, at_limit: 0 };
        let (lengths, classes) = (vec![lengths], vec![class("ham", 40), class("spam", 1960)]);
        let train = Split { rows: 150_000, read: 2000, skipped: 0, lengths, classes };
        let eval = Some(Split { rows: 1, read: 1, ..Split::default() });
        let step_parts = Some(StepParts { samples: 128, parts: 3.125 });
        assert_eq!(
            summary(&Inspection { train, eval, steps: 1200, step_parts, example: Vec::new(), notices: Vec::new() }),
            [
                "train  150,000 rows, 2,000 of them read",
                "       text: 24 tokens on average, 95 % up to 61, longest 1,280",
                "       classes: spam 1,960, ham 40",
                "eval   1 row",
                "steps  1,200",
                "       128 samples a step: about 3 parts of 41 on this data",
            ]
        );
    }
}

#[cfg(test)]
mod warnings_tests {
    use pipe_spec::Variables;
    use pipe_spec::trainer::{ClassCount, Lengths};

    use super::*;
    use crate::engine::registry;

    const FILE: &str = "{version: 1, name: t, model: {arch: bert, config: {}}, data: {train: a.csv, max_length: 16}, \
                        train: {epochs: 1, effective_batch: 8, batch: 8, schedule: {warmup: 5}}}";

    fn split(rows: u64, classes: [u64; 2]) -> Split {
        let class = |(name, rows): (&str, u64)| ClassCount { name: name.to_owned(), rows };
        let classes = ["ham", "spam"].into_iter().zip(classes).map(class).collect();
        Split { rows, read: rows, classes, ..Split::default() }
    }

    fn found(train: Split, eval: Option<Split>, steps: u64) -> Vec<String> {
        let pipeline = registry::parse_pipeline(FILE, &[], &Variables::new(None, std::iter::empty())).unwrap();
        let mut found = warnings(
            pipeline.training().unwrap(),
            &Inspection { train, eval, steps, step_parts: None, example: Vec::new(), notices: Vec::new() },
        );
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
