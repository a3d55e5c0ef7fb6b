//! A pipeline for a command line: which of its options are the batch, the accumulation, the output and the checkpoint.

use std::num::NonZeroU32;
use std::path::Path;

use pipe_spec::pipeline::{
    BatchSetting, Change, Checkpoints, CommandLine, Container, Image, MetricsFormat, Note, OnOom, PipelineFile,
    TrainFile,
};
use pipe_spec::text::Name;

use super::Dialog;
use crate::engine::registry;
use crate::error::Error;
use crate::system::files;

/// Names of options, as many programs have them, with `-` for `_`.
const BATCH: [&str; 10] = [
    "per-device-train-batch-size",
    "train-batch-size",
    "micro-batch-size",
    "batch-size-per-gpu",
    "train-batch",
    "batch-size",
    "batchsize",
    "batch",
    "bs",
    "b",
];
const ACCUM: [&str; 8] = [
    "gradient-accumulation-steps",
    "grad-accumulation-steps",
    "grad-accum-steps",
    "accumulate-grad-batches",
    "accumulation-steps",
    "grad-accum",
    "accumulate",
    "accum",
];
const OUTPUT: [&str; 11] = [
    "output-dir",
    "output-folder",
    "output",
    "outdir",
    "out-dir",
    "out",
    "save-dir",
    "save-path",
    "checkpoint-dir",
    "default-root-dir",
    "project",
];
const RESUME: [&str; 5] = ["resume-from-checkpoint", "resume-from", "resume", "ckpt-path", "load-checkpoint"];

/// The option of the transformers Trainer, whose scripts can all accumulate and resume.
const OF_TRANSFORMERS: &str = "per-device-train-batch-size";

/// Bytes of a script that is searched for the variables that it reads.
const LARGEST_SCRIPT: u64 = 1 << 20;

/// Samples in a batch where the command does not say.
pub const DEFAULT_BATCH: NonZeroU32 = NonZeroU32::new(8).unwrap();

/// The name under which an image of the folder is looked for.
const DOCKERFILE: &str = "Dockerfile";

#[derive(Debug)]
pub struct CommandDraft {
    pub name: Name,
    pub yaml: String,
    /// The options that were found, for people.
    pub findings: Vec<String>,
}

/// `dialog` answers whether the effective batch may change, of a command that does not accumulate. `batch` is that of a command that
/// does not say.
pub fn draft(
    line: &str,
    name: Option<&Name>,
    folder: &Path,
    dialog: Dialog,
    batch: NonZeroU32,
) -> Result<CommandDraft, Error> {
    let words = CommandLine::split(line).0;
    let first = words.iter().position(|word| assignment(word).is_none());
    let Some(first) = first else {
        return Err(Error::NotACommand { line: line.to_owned() });
    };
    let (env, words) = words.split_at(first);
    let mut arguments = Arguments::read(words);
    let options = Options::take(&mut arguments);
    let accumulation = Accumulation::find(&options, words, folder, dialog)?;
    let mut findings = options.findings(accumulation);
    let number = |found: &Option<Found>, default: NonZeroU32| {
        found.as_ref().and_then(|found| found.value.parse().ok()).unwrap_or(default)
    };
    let image = folder.join(DOCKERFILE).is_file().then(|| Image::Dockerfile(DOCKERFILE.to_owned()));
    let engine = registry::without_images();
    if image.is_none() {
        findings.push(format!("engine    {engine}: there is no {DOCKERFILE} here"));
    }
    let name = name.map_or_else(|| name_of(words), Clone::clone);
    let env = env.iter().filter_map(|word| assignment(word));
    let of_transformers = options.of_transformers;
    let file = PipelineFile {
        train: TrainFile {
            batch: BatchSetting::Fixed(number(&options.batch, batch)),
            accum: Some(number(&options.accum, NonZeroU32::MIN)),
            ..TrainFile::default()
        },
        on_oom: accumulation.on_oom(),
        metrics: if of_transformers { MetricsFormat::Transformers } else { MetricsFormat::default() },
        checkpoints: Some(Checkpoints {
            complete: of_transformers.then(|| "trainer_state.json".to_owned()),
            ..Checkpoints::default()
        }),
        engine: if image.is_none() { serde_json::from_value(engine.into()).ok() } else { None },
        container: Container {
            image,
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            ..Container::default()
        },
        command: Some(CommandLine(arguments.words.clone())),
        ..PipelineFile::new(&name)
    };
    let yaml = file.to_yaml(&notes(&arguments.words, &options, accumulation));
    Ok(CommandDraft { yaml, name, findings })
}

fn notes(words: &[String], options: &Options, accumulation: Accumulation) -> Vec<Note> {
    let from = options.batch.as_ref().map_or("as PIPE_BATCH".to_owned(), |found| format!("from {}", found.option));
    let resumed = "`{resume}` names one of these files or folders below `{run}`.".to_owned();
    let without =
        "Without a container. For one, leave this out and give container.image a Dockerfile or name:tag.".to_owned();
    let mut notes = vec![
        Note::new("version", ""),
        Note::new("name", ""),
        Note::new("command", "").folded(folded(words)),
        Note::new("train.batch", from),
        Note::new("train.accum", ""),
    ];
    notes.extend(accumulation.notes());
    notes.extend([
        Note::new("checkpoints", "").above(if options.of_transformers { Vec::new() } else { vec![resumed] }),
        Note::new("checkpoints.pattern", ""),
        Note::new("container", ""),
        Note::new("engine", "").above(vec![without]),
    ]);
    notes
}

/// The options of a command line that `pipe` sets.
struct Options {
    batch: Option<Found>,
    accum: Option<Found>,
    output: Option<Found>,
    resume: Option<Found>,
    of_transformers: bool,
}

impl Options {
    /// Finds them, and puts placeholders in place of their values. Those that every script with the Trainer of transformers has are
    /// added.
    fn take(arguments: &mut Arguments) -> Self {
        let batch = arguments.take(&BATCH, "{batch}", is_count);
        let accum = arguments.take(&ACCUM, "{accum}", is_count);
        let output = arguments.take(&OUTPUT, "{run}", is_path);
        let resume = arguments.take(&RESUME, "{resume}", is_path);
        let of_transformers = batch.as_ref().is_some_and(|found| plain(&found.option) == OF_TRANSFORMERS);
        if of_transformers && accum.is_none() {
            arguments.words.extend(["--gradient_accumulation_steps".to_owned(), "{accum}".to_owned()]);
        }
        if of_transformers && resume.is_none() {
            arguments.words.extend(["--resume_from_checkpoint".to_owned(), "{resume}".to_owned()]);
        }
        Self { batch, accum, output, resume, of_transformers }
    }

    /// The options that were found, for people.
    fn findings(&self, accumulation: Accumulation) -> Vec<String> {
        let finding = |what: &str, found: &Option<Found>, without: &str| match found {
            Some(Found { option, value }) => format!("{what:<9} {option} {value}"),
            None => format!("{what:<9} {without}"),
        };
        let added = |option: &str| format!("{option} was added: scripts with the Trainer of transformers have it");
        let (no_accum, no_resume) = match self.of_transformers {
            true => (added("--gradient_accumulation_steps"), added("--resume_from_checkpoint")),
            false => (
                accumulation.finding().to_owned(),
                "no option found: the command finds its checkpoint in PIPE_RESUME".to_owned(),
            ),
        };
        vec![
            finding("batch", &self.batch, "no option found: the command finds it in PIPE_BATCH"),
            finding("accum", &self.accum, &no_accum),
            finding("output", &self.output, "no option found: the command may write to PIPE_RUN"),
            finding("resume", &self.resume, &no_resume),
        ]
    }
}

/// How a command keeps its effective batch with a smaller batch, or that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accumulation {
    /// It has an option.
    Option,
    /// It reads the variable.
    Variable,
    /// It does not, and its effective batch may fall.
    Shrinks,
    None,
}

impl Accumulation {
    fn find(options: &Options, words: &[String], folder: &Path, dialog: Dialog) -> Result<Self, Error> {
        Ok(if options.accum.is_some() || options.of_transformers {
            Self::Option
        } else if reads_accum(words, folder) {
            Self::Variable
        } else if options.batch.is_some() && may_shrink(dialog)? {
            Self::Shrinks
        } else {
            Self::None
        })
    }

    fn finding(self) -> &'static str {
        match self {
            Self::Option => "",
            Self::Variable => "no option found: the script reads PIPE_ACCUM",
            Self::Shrinks => "no option found: after out of memory a smaller batch makes the effective batch smaller",
            Self::None => {
                "no option found: a smaller batch would change the effective batch, so out of memory ends the run; \
                 on_oom in the file says how to allow it"
            }
        }
    }

    fn on_oom(self) -> OnOom {
        let then = match self {
            Self::Shrinks => vec![Change("effective_batch".to_owned())],
            Self::Option | Self::Variable | Self::None => Vec::new(),
        };
        OnOom { accumulates: self == Self::Variable, then, ..OnOom::default() }
    }

    /// The comments on what the file says of it.
    fn notes(self) -> Vec<Note> {
        let above: &[&str] = match self {
            Self::Option => return Vec::new(),
            Self::Variable => &["The program reads PIPE_ACCUM, so a smaller batch keeps its effective batch."],
            Self::Shrinks => &["The command has no {accum}: a smaller batch makes its effective batch smaller."],
            Self::None => &[
                "The command has no {accum}: a smaller batch would change its effective batch, so out of",
                "memory ends the run. `accumulates: true` says that the program reads PIPE_ACCUM;",
                "`then: [effective_batch]` allows a smaller batch and a smaller effective batch.",
            ],
        };
        let above = above.iter().map(|&line| line.to_owned()).collect();
        let key = if self == Self::Variable { "on_oom.accumulates" } else { "on_oom.then" };
        vec![Note::new("on_oom", "").above(above), Note::new(key, "")]
    }
}

/// Whether a script that the words name reads the variable with the accumulation.
fn reads_accum(words: &[String], folder: &Path) -> bool {
    let reads = |word: &String| {
        let text = files::read(&folder.join(word), LARGEST_SCRIPT).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let reads = |name: &str| text.contains(name);
        word.contains("PIPE_ACCUM")
            || ["PIPE_ACCUM", "PIPE_EFFECTIVE_BATCH", "import pipe_train"].into_iter().any(reads)
    };
    words.iter().any(reads)
}

fn may_shrink(dialog: Dialog) -> Result<bool, Error> {
    let read = |text: &str| match text.to_lowercase().as_str() {
        "yes" | "y" => Ok(true),
        "no" | "n" => Ok(false),
        _ => Err("yes or no".to_owned()),
    };
    let question = "the command has no option for gradient accumulation: may pipe use a smaller batch after out of memory, \
                    which makes the effective batch smaller?";
    Ok(dialog.ask(question, "no", read)?.unwrap_or(false))
}

/// An option that was found, with what stood behind it.
#[derive(Debug)]
struct Found {
    option: String,
    value: String,
}

struct Arguments {
    words: Vec<String>,
}

impl Arguments {
    /// Braces of the command itself are kept as text.
    fn read(words: &[String]) -> Self {
        Self { words: words.iter().map(|word| CommandLine::escape_braces(word)).collect() }
    }

    /// The first option of these names, in the order of the names, whose value is one: the value is replaced.
    fn take(&mut self, names: &[&str], with: &str, is_value: fn(&str) -> bool) -> Option<Found> {
        names.iter().find_map(|name| self.take_one(name, with, is_value))
    }

    fn take_one(&mut self, name: &str, with: &str, is_value: fn(&str) -> bool) -> Option<Found> {
        for at in 1..self.words.len() {
            if let Some((option, value)) = self.words[at].clone().split_once('=')
                && plain(option) == name
                && is_value(value)
            {
                self.words[at] = format!("{option}={with}");
                return Some(Found { option: option.to_owned(), value: value.to_owned() });
            }
            let option = self.words[at].clone();
            let value = self.words.get(at + 1).cloned().unwrap_or_default();
            if option.starts_with('-') && plain(&option) == name && is_value(&value) {
                with.clone_into(&mut self.words[at + 1]);
                return Some(Found { option, value });
            }
        }
        None
    }
}

fn plain(option: &str) -> String {
    option.trim_start_matches('-').replace('_', "-").to_lowercase()
}

fn is_count(value: &str) -> bool {
    value.parse::<u32>().is_ok_and(|count| count > 0)
}

/// Not another option, and no truth value.
fn is_path(value: &str) -> bool {
    !value.is_empty() && !value.starts_with('-') && !matches!(value.to_lowercase().as_str(), "true" | "false" | "auto")
}

/// `NAME=value` before a program.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, value))
}

/// After the script, or else the program.
fn name_of(words: &[String]) -> Name {
    let script = words.iter().find(|word| word.ends_with(".py") || word.ends_with(".sh")).or(words.first());
    let file =
        Path::new(script.map_or("", String::as_str)).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name: String =
        file.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    name.parse().unwrap_or_else(|_| "command".parse().expect("a name"))
}

/// The words in lines, one for each option.
fn folded(words: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut().filter(|_| !word.starts_with('-')) {
            Some(line) => *line += &format!(" {}", CommandLine::quoted(word)),
            None => lines.push(CommandLine::quoted(word)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;
    use pipe_spec::pipeline::EffectiveBatch;

    use super::*;

    fn drafted(line: &str) -> (CommandDraft, String) {
        let nowhere = Path::new("/nowhere");
        let draft = draft(line, None, nowhere, Dialog::Defaults, DEFAULT_BATCH).unwrap();
        let pipeline = registry::parse_pipeline(&draft.yaml, &[], &Variables::default())
            .unwrap_or_else(|error| panic!("{error}\n{}", draft.yaml));
        let command = pipeline.command().unwrap();
        let words = command.line.0.join("|");
        let batches =
            format!("{words} {}x{}", command.train.batch, command.train.effective_batch / command.train.batch);
        (draft, batches)
    }

    #[test]
    fn options_that_many_programs_have() {
        for (line, want, name) in [
            (
                "python run_glue.py --model_name_or_path x --per_device_train_batch_size 16 --per_device_eval_batch_size 64 \
                 --gradient_accumulation_steps 4 --output_dir out",
                "python|run_glue.py|--model_name_or_path|x|--per_device_train_batch_size|{batch}|--per_device_eval_batch_size|64|\
                 --gradient_accumulation_steps|{accum}|--output_dir|{run}|--resume_from_checkpoint|{resume} 16x4",
                "run_glue",
            ),
            (
                "python3 train.py --batch-size=32 --resume a.pt",
                "python3|train.py|--batch-size={batch}|--resume|{resume} 32x1",
                "train",
            ),
            ("yolo detect train batch=16 project=runs", "yolo|detect|train|batch={batch}|project={run} 16x1", "yolo"),
            ("./fit -b 4 --resume --out 'a b'", "./fit|-b|{batch}|--resume|--out|{run} 4x1", "fit"),
            (r#"a --config '{"batch": 3, "x": {y}}'"#, r#"a|--config|{"batch": 3, "x": {{y}}} 8x1"#, "a"),
            ("python -m pkg.train --batch_size auto", "python|-m|pkg.train|--batch_size|auto 8x1", "python"),
        ] {
            let (draft, found) = drafted(line);
            assert_eq!((found.as_str(), draft.name.as_str()), (want, name), "{}", draft.yaml);
        }
    }

    #[test]
    fn accumulation_is_found_or_not_promised() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("reads.py"), "int(os.environ['PIPE_ACCUM'])").unwrap();
        std::fs::write(folder.path().join("plain.py"), "pass").unwrap();
        std::fs::write(folder.path().join("loop.py"), "import torch\nimport pipe_train\n").unwrap();
        for (line, rule, written) in [
            ("python plain.py --batch-size 64", EffectiveBatch::MustNotFall, "on_oom: {then: []}"),
            ("python reads.py --batch-size 64", EffectiveBatch::Kept, "on_oom: {accumulates: true}"),
            ("python loop.py", EffectiveBatch::Kept, "on_oom: {accumulates: true}"),
            ("python plain.py --batch-size 64 --accum 2", EffectiveBatch::Kept, "--accum {accum}"),
            ("python plain.py --per_device_train_batch_size 8", EffectiveBatch::Kept, "metrics: transformers"),
            ("python plain.py", EffectiveBatch::MustNotFall, "then: [effective_batch]` allows"),
        ] {
            let draft = draft(line, None, folder.path(), Dialog::Defaults, DEFAULT_BATCH).unwrap();
            let pipeline = registry::parse_pipeline(&draft.yaml, &[], &Variables::default()).unwrap();
            assert_eq!(pipeline.effective_batch_rule(), rule, "{line}\n{}", draft.yaml);
            assert!(draft.yaml.contains(written), "{}", draft.yaml);
        }
        let allowed = Accumulation::Shrinks.on_oom();
        assert!(allowed.may_change_effective_batch() && !Accumulation::Shrinks.notes().is_empty());
    }

    #[test]
    fn variables_before_the_program() {
        let (draft, found) = drafted("CUDA_VISIBLE_DEVICES=0 X='a b' python t.py");
        assert_eq!(found, "python|t.py 8x1");
        assert!(draft.yaml.contains(r#"env: {CUDA_VISIBLE_DEVICES: "0", X: "a b"}"#), "{}", draft.yaml);
    }

    #[test]
    fn what_is_no_command() {
        for line in ["", "  ", "a 'b", "A=1"] {
            assert!(draft(line, None, Path::new("."), Dialog::Defaults, DEFAULT_BATCH).is_err(), "{line:?}");
        }
    }
}
