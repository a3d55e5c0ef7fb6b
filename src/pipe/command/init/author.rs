//! The questions of `pipe init`, and their answers from flags, from the data, or from a person on a terminal.

use std::ffi::OsStr;
use std::io::{BufRead, IsTerminal};
use std::path::Path;

use pipe_data::DataTable;
use pipe_spec::pipeline::{Arch, Task};
use pipe_spec::text::{ByteSize, Name};

use super::draft::{Answers, Draft};
use super::survey::{Field, Survey};
use super::{InitOptions, measure, pictures, roles};
use crate::error::Error;
use crate::gpu::Card;
use crate::input::data_cache;
use crate::input::hub::HubAccess;
use crate::report::{ask, say};

/// Rows up to which the trainer opens the data to count tokens.
const INSPECTED: u64 = 100_000;
/// Characters of a line with the columns of the data.
const WIDTH: usize = 80;

/// Names of files and folders that say nothing about what is in them.
const PLAIN_NAMES: [&str; 5] = ["data", "train", "training", "pictures", "dataset"];

pub struct Author<'a> {
    pub options: &'a InitOptions,
    pub dialog: Dialog,
}

impl Author<'_> {
    pub fn draft(&self) -> Result<Draft, Error> {
        let options = self.options;
        if self.dialog == Dialog::NoTerminal {
            let needed = [("--arch", options.arch.is_none()), ("--data", options.data.is_none())];
            let missing: Vec<&'static str> = needed.iter().filter(|flag| flag.1).map(|flag| flag.0).collect();
            if !missing.is_empty() {
                return Err(Error::NoTerminal { missing });
            }
        }
        let train = self.train()?;
        let survey = DataTable::read(Path::new(&train)).map(|table| Survey::of(&table));
        let survey = survey.filter(|survey| survey.rows > 0 && !survey.columns.is_empty());
        let base = options.model.as_deref().map(measure::architecture).transpose()?.flatten();
        let arch = self.arch(&train, survey.as_ref(), base)?;
        let fields = self.fields(&train, survey.as_ref(), arch)?;
        let eval = self.eval(&train, arch.task())?;
        let from = self.model(arch)?;
        let name = self.name(&train, arch)?;
        let machine = Card::of_host();
        let gpu_memory = self.gpu_memory(machine.as_ref())?;
        let card = machine.is_some() || gpu_memory.is_some();
        let mut draft =
            Draft::new(Answers { name, arch, train, eval, fields, from, gpu_memory, card }, survey.as_ref());
        if let Some(survey) = survey.as_ref().filter(|survey| survey.counted && survey.rows <= INSPECTED) {
            draft = measure::with_tokens(draft, survey)?;
        }
        let total = gpu_memory.map(|size| size.0).or(machine.map(|card| card.total));
        if let Some(batch) = total.and_then(|total| measure::largest_batch(&draft, total)) {
            draft.batch = batch;
        }
        Ok(draft)
    }

    /// The training data. For a folder of pictures it is the file that lists them.
    fn train(&self) -> Result<String, Error> {
        let usual = usual_data(self.options.arch.map_or(Task::Seq2Seq, Arch::task));
        let train = self.given("training data", self.options.data.as_ref(), usual)?;
        let is_for_others = self.options.arch.is_some_and(|arch| arch.task() != Task::Contrastive);
        if !Path::new(&train).is_dir() || is_for_others {
            return Ok(train);
        }
        let Some(list) = pictures::list(Path::new(&train))? else { return Ok(train) };
        if !self.options.quiet {
            say(&list.note);
        }
        Ok(list.file.display().to_string())
    }

    /// The value of a flag, or an answer.
    fn given(&self, question: &str, flag: Option<&String>, default: &str) -> Result<String, Error> {
        let text = |text: &str| Ok(text.to_owned());
        match flag {
            Some(value) => Ok(value.clone()),
            None => Ok(self.dialog.ask(question, default, text)?.unwrap_or_else(|| default.to_owned())),
        }
    }

    /// The architecture: a flag, that of the model, or what the data is good for; on a terminal the answer. `base` is the architecture of the model to start from.
    fn arch(&self, train: &str, survey: Option<&Survey>, base: Option<Arch>) -> Result<Arch, Error> {
        match (self.options.arch, base, &self.options.model) {
            (Some(arch), Some(base), Some(model)) if arch != base => {
                return Err(Error::OtherArchitecture { model: model.clone(), found: base.name(), asked: arch.name() });
            }
            (Some(arch), _, _) | (None, Some(arch), _) => return Ok(arch),
            (None, None, _) => {}
        }
        let guess = match survey {
            Some(survey) => roles::guess(survey, &self.options.fields),
            // Somebody who has no data yet gets an example.
            None if self.options.data.is_none() => Ok(Arch::first_for(Task::Seq2Seq)),
            None => Err(unread(train)),
        };
        match (guess, self.dialog) {
            (Err(why), Dialog::Defaults | Dialog::NoTerminal) => Err(self.unclear(train, survey, why)),
            (Ok(guess), Dialog::Defaults | Dialog::NoTerminal) => Ok(guess),
            (guess, Dialog::Person) => self.ask_arch(survey, guess),
        }
    }

    fn ask_arch(&self, survey: Option<&Survey>, guess: Result<Arch, String>) -> Result<Arch, Error> {
        if let Some(survey) = survey {
            survey.table(WIDTH - 2).lines().for_each(|line| say(&format!("  {line}")));
        }
        if let Err(why) = &guess {
            say(&format!("  {why}"));
        }
        for arch in Arch::ALL {
            say(&format!("  {:<16} {}", arch.name(), roles::describe(arch.task())));
        }
        let guess = guess.unwrap_or(Arch::first_for(Task::Seq2Seq));
        let read = |text: &str| Arch::find(text).ok_or_else(|| "one of the names above".to_owned());
        Ok(self.dialog.ask("architecture", guess.name(), read)?.unwrap_or(guess))
    }

    fn unclear(&self, train: &str, survey: Option<&Survey>, why: String) -> Error {
        let columns = survey.map_or(String::new(), |survey| format!("\n{}", survey.table(WIDTH)));
        Error::UnclearData { data: train.to_owned(), why, columns }
    }

    /// Which column feeds which role. Where nothing is known of the data, the flag decides.
    fn fields(&self, train: &str, survey: Option<&Survey>, arch: Arch) -> Result<Vec<Field>, Error> {
        let Some(survey) = survey else { return Ok(self.options.fields.clone()) };
        roles::fields(survey, arch.task(), &self.options.fields).map_err(|why| Error::OtherData {
            arch: arch.name(),
            wants: roles::wants(arch.task()),
            data: train.to_owned(),
            why,
            columns: format!("\n{}", survey.table(WIDTH)),
        })
    }

    /// A file beside the training data with a usual name, or the answer.
    fn eval(&self, train: &str, task: Task) -> Result<Option<String>, Error> {
        if self.options.eval.is_some() {
            return Ok(self.options.eval.clone());
        }
        let beside = |name: &str| {
            let train = Path::new(train);
            let ending = data_cache::full_ending(train).unwrap_or_default();
            train.with_file_name(format!("{name}.{ending}"))
        };
        let is_other = |path: &std::path::PathBuf| path.is_file() && path != Path::new(train);
        let found = ["eval", "validation", "valid", "dev", "test"].map(beside).into_iter().find(is_other);
        let default = found.map_or("none".to_owned(), |path| path.display().to_string());
        let question = match task {
            Task::TimeSeries => "evaluation data (none: hold out the end of the series)",
            _ => "evaluation data (none: hold out 10 %)",
        };
        let answer = self.dialog.ask(question, &default, |text| Ok(text.to_owned()))?.unwrap_or(default);
        Ok(Some(answer).filter(|answer| answer != "none"))
    }

    fn model(&self, arch: Arch) -> Result<Option<String>, Error> {
        if self.options.model.is_some() {
            return Ok(self.options.model.clone());
        }
        let Some(hub) = pipe_model::starter(arch).hub else { return Ok(None) };
        let default = if measure::config_folder(hub, HubAccess::CacheOnly).is_ok() { hub } else { "scratch" };
        let question = format!("model: a folder, a hub id such as {hub}, or scratch");
        let answer = self.dialog.ask(&question, default, |text| Ok(text.to_owned()))?;
        Ok(answer.filter(|answer| answer != "scratch"))
    }

    fn name(&self, train: &str, arch: Arch) -> Result<Name, Error> {
        if let Some(name) = &self.options.name {
            return Ok(name.clone());
        }
        let file = self.options.file.as_deref().and_then(Path::file_stem);
        let (data, folder) = (Path::new(train).file_name(), Path::new(train).parent().and_then(Path::file_name));
        // All endings are dropped: train.jsonl.gz is train.
        let stem = |name: &OsStr| name.to_string_lossy().split('.').next().unwrap_or_default().to_owned();
        let says_something = |name: &String| !PLAIN_NAMES.contains(&name.as_str());
        let of_data = [data, folder].into_iter().flatten().map(stem).filter(says_something);
        let names = file.map(|name| name.to_string_lossy().into_owned()).into_iter().chain(of_data);
        let name = names.chain([arch.name().to_owned()]).find_map(|name| name.parse::<Name>().ok());
        let name = name.expect("the name of an architecture is a name");
        let read = |text: &str| text.parse::<Name>().map_err(str::to_owned);
        Ok(self.dialog.ask("name", name.as_str(), read)?.unwrap_or(name))
    }

    /// The memory of the card to train on, where this machine has none.
    fn gpu_memory(&self, card: Option<&Card>) -> Result<Option<ByteSize>, Error> {
        if self.options.gpu_memory.is_some() || card.is_some() || self.dialog != Dialog::Person {
            return Ok(self.options.gpu_memory);
        }
        let read = |text: &str| match text {
            "none" => Ok(None),
            size => ByteSize::gigabytes_or(size).map(Some).map_err(str::to_owned),
        };
        Ok(self.dialog.ask("memory of the card it is for, such as 24g", "none", read)?.flatten())
    }
}

/// The reason why nothing is known of the data.
fn unread(train: &str) -> String {
    let path = Path::new(train);
    match path.file_name().and_then(|name| name.to_str()) {
        _ if !path.exists() => "it is not on this machine".to_owned(),
        Some(name) if path.is_file() && !Task::Language.takes(name) => {
            format!("it is none of the files that are read: .{}", Task::Language.endings().join(", ."))
        }
        _ => "there are no rows in it".to_owned(),
    }
}

/// The usual path of the data of a task.
fn usual_data(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq | Task::Classification | Task::Contrastive => "data/train.jsonl",
        Task::TimeSeries => "data/train.csv",
        Task::Language => "data/train.txt",
    }
}

/// Who answers the questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialog {
    Person,
    /// `--yes`: every answer is the default.
    Defaults,
    /// No terminal to ask on.
    NoTerminal,
}

impl Dialog {
    pub fn find(yes: bool) -> Self {
        match (yes, std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            (true, _) => Self::Defaults,
            (false, true) => Self::Person,
            (false, false) => Self::NoTerminal,
        }
    }

    /// The first answer that `read` accepts; nothing without a terminal.
    pub fn ask<T>(
        self,
        question: &str,
        default: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        match self {
            Self::NoTerminal => return Ok(None),
            Self::Defaults => return Ok(read(default).ok()),
            Self::Person => {}
        }
        loop {
            ask(&format!("{question} [{default}]: "));
            let mut line = String::new();
            let count = std::io::stdin()
                .lock()
                .read_line(&mut line)
                .map_err(|source| Error::Read { path: "the answer".into(), source })?;
            if count == 0 {
                say("");
                return Err(Error::Interrupted);
            }
            let answer = if line.trim().is_empty() { default } else { line.trim() };
            match read(answer) {
                Ok(value) => return Ok(Some(value)),
                Err(message) => say(&format!("  {message}")),
            }
        }
    }
}
