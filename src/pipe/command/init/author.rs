//! The questions of `pipe init`, and their answers from flags, from the data, or from a person on a terminal.

use std::ffi::OsStr;
use std::io::{BufRead, IsTerminal};
use std::path::Path;

use pipe_data::DataTable;
use pipe_spec::pipeline::{Arch, CHOSEN, CONTEXT, CONVERSATION, Model, ModelTask, Quantize, REJECTED, Task};
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
/// How often a person is asked for the columns.
const TRIES: usize = 2;
/// The answer that names nothing.
const NONE: &str = "none";
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
        if let Some(model) = options.model.as_ref().filter(|model| model.contains("://") && options.arch.is_none()) {
            let (why, how) = ("`pipe init` downloads nothing", "name its architecture with --arch");
            return Err(Error::UnreadData { data: model.clone(), why: why.to_owned(), how: how.to_owned() });
        }
        let base = options.model.as_deref().map(measure::architecture).transpose()?.flatten();
        let train = self.train(options.arch.or(base))?;
        let survey = DataTable::read(Path::new(&train)).map(|table| Survey::of(&table));
        let survey = survey.filter(|survey| survey.rows > 0 && !survey.columns.is_empty());
        let arch = self.arch(&train, survey.as_ref(), base)?;
        let task = self.task(arch, survey.as_ref());
        let model = Model { arch, task, from: None, config: None, quantize: Quantize::None };
        let fields = self.fields(&train, survey.as_ref(), &model)?;
        let eval = self.eval(&train, model.task())?;
        let from = self.model(arch)?;
        let name = self.name(&train, arch)?;
        let machine = Card::of_host();
        let gpu_memory = self.gpu_memory(machine.as_ref())?;
        let card = machine.is_some() || gpu_memory.is_some();
        let mut draft =
            Draft::new(Answers { name, arch, task, train, eval, fields, from, gpu_memory, card }, survey.as_ref());
        if let Some(survey) = survey.as_ref().filter(|survey| survey.counted && survey.rows <= INSPECTED) {
            draft = measure::with_tokens(draft, survey)?;
        }
        let total = gpu_memory.map(|size| size.0).or(machine.map(|card| card.total));
        draft.has_adapter = measure::wants_adapter(&draft, total);
        if draft.has_adapter {
            draft.quantize = measure::quantize(&draft, total);
        }
        if let Some(batch) = total.and_then(|total| measure::largest_batch(&draft, total)) {
            draft.batch = batch;
        }
        Ok(draft)
    }

    /// The training data. For a folder of pictures it may be a file that lists them. `wanted` is the architecture, if it is known.
    fn train(&self, wanted: Option<Arch>) -> Result<String, Error> {
        let usual = usual_data(self.options.arch.map_or(Task::Seq2Seq, Arch::task));
        let train = self.given("training data", self.options.data.as_ref(), usual)?;
        let task = wanted.map(Arch::task);
        if !Path::new(&train).is_dir() || task.is_some_and(|task| !task.reads_pictures()) {
            return Ok(train);
        }
        let as_texts = task == Some(Task::Contrastive);
        let Some(list) = pictures::list(Path::new(&train), as_texts)? else { return Ok(train) };
        if !self.options.quiet {
            say(&list.note);
        }
        Ok(list.path.display().to_string())
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
            None if self.dialog == Dialog::Person => Err(unread(train).0),
            None => {
                let (why, how) = unread(train);
                return Err(Error::UnreadData { data: train.to_owned(), why, how });
            }
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
        let guess = guess.unwrap_or_else(|_| survey.map_or(Arch::first_for(Task::Seq2Seq), roles::propose));
        let read = |text: &str| Arch::find(text).ok_or_else(|| "one of the names above".to_owned());
        Ok(self.dialog.ask("architecture", guess.name(), read)?.unwrap_or(guess))
    }

    /// The task, where the architecture leaves a choice: the data decides.
    fn task(&self, arch: Arch, survey: Option<&Survey>) -> Option<ModelTask> {
        let given = &self.options.fields;
        let is_given = |roles: [&str; 2]| given.iter().any(|(role, _)| roles.contains(&role.as_str()));
        let has = |found: fn(&Survey) -> bool| given.is_empty() && survey.is_some_and(found);
        let labels_tokens = is_given(["tokens", "tags"]) || has(|survey| survey.token_columns().is_some());
        let prefers = is_given([CHOSEN, REJECTED]) || has(|survey| roles::pair_of_answers(survey).is_some());
        match () {
            () if arch.labels_tokens() && labels_tokens => Some(ModelTask::TokenClassification),
            () if arch.prefers() && prefers => Some(ModelTask::Preference),
            () => None,
        }
    }

    fn unclear(&self, train: &str, survey: Option<&Survey>, why: String) -> Error {
        let columns = survey.map_or(String::new(), |survey| {
            let notes: String = survey.notes.iter().map(|note| format!("\n{note}")).collect();
            format!("{notes}\n{}", survey.table(WIDTH))
        });
        Error::UnclearData { data: train.to_owned(), why, columns }
    }

    /// Which column feeds which role. Where nothing is known of the data, the flag decides.
    fn fields(&self, train: &str, survey: Option<&Survey>, model: &Model) -> Result<Vec<Field>, Error> {
        let Some(survey) = survey else { return Ok(self.options.fields.clone()) };
        let found = roles::fields(survey, model.task(), &self.options.fields);
        if self.dialog == Dialog::Person && self.options.fields.is_empty() && survey.columns.len() > 1 {
            let found = self.ask_fields(survey, model.task(), found)?;
            return found.map_err(|why| other_data(train, survey, model, why));
        }
        found.map_err(|why| other_data(train, survey, model, why))
    }

    /// Which column feeds which role, as a person says; after a few answers that are wrong, what is wrong with the last.
    fn ask_fields(
        &self,
        survey: &Survey,
        task: Task,
        guess: Result<Vec<Field>, String>,
    ) -> Result<Result<Vec<Field>, String>, Error> {
        let usual = task.roles().iter().filter(|role| ![CONVERSATION, CONTEXT].contains(role));
        let roles = usual.map(|role| format!("{role}=COLUMN")).collect::<Vec<_>>().join(", ");
        let (question, default) = match &guess {
            Ok(found) => ("columns".to_owned(), roles::shown(found)),
            Err(why) => {
                say(&format!("  {why}"));
                (format!("columns, as {roles}; none: they are called as the roles"), NONE.to_owned())
            }
        };
        let read = |text: &str| {
            if text == NONE {
                return Ok(Vec::new());
            }
            let field = |part: &str| {
                let (role, column) = part.split_once('=').ok_or("write them as ROLE=COLUMN, ROLE=COLUMN")?;
                Ok((role.trim().to_owned(), column.trim().to_owned()))
            };
            let given = text.split(',').map(field).collect::<Result<Vec<Field>, &str>>()?;
            roles::fields(survey, task, &given)
        };
        let mut wrong = String::new();
        for _ in 0..TRIES {
            let answer = self.dialog.ask(&question, &default, |text| Ok(text.to_owned()))?.unwrap_or_default();
            match read(&answer) {
                Ok(fields) => return Ok(Ok(fields)),
                Err(why) => wrong = why,
            }
            let names: Vec<&str> = survey.columns.iter().map(|column| column.name.as_str()).collect();
            say(&format!("  {wrong}; the columns: {}", names.join(", ")));
        }
        Ok(Err(wrong))
    }

    /// A file beside the training data with a usual name, or the answer.
    fn eval(&self, train: &str, task: Task) -> Result<Option<String>, Error> {
        if self.options.eval.is_some() {
            return Ok(self.options.eval.clone());
        }
        let is_folder = Path::new(train).is_dir();
        let beside = |name: &str| {
            let train = Path::new(train);
            if is_folder {
                return train.with_file_name(name);
            }
            let ending = data_cache::full_ending(train).unwrap_or_default();
            train.with_file_name(format!("{name}.{ending}"))
        };
        // A folder of this name beside any other one may hold something else.
        let is_split = !is_folder || Path::new(train).file_name().is_some_and(|name| name == "train");
        let is_other = |path: &std::path::PathBuf| {
            is_split && path.is_dir() == is_folder && path.exists() && path != Path::new(train)
        };
        let found = ["eval", "validation", "valid", "val", "dev", "test"].map(beside).into_iter().find(is_other);
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
        let whole = std::path::absolute(train).unwrap_or_else(|_| train.into());
        let (data, folder) = (whole.file_name(), whole.parent().and_then(Path::file_name));
        // All endings are dropped: train.jsonl.gz is train.
        let stem = |name: &OsStr| name.to_string_lossy().split('.').next().unwrap_or_default().to_owned();
        let says_something = |name: &String| !PLAIN_NAMES.contains(&name.as_str());
        let of_data = [data, folder].into_iter().flatten().map(stem).filter(says_something);
        let names = file.map(|name| name.to_string_lossy().into_owned()).into_iter().chain(of_data);
        let others = data.map(stem).into_iter().chain([arch.name().to_owned()]);
        let name = names.chain(others).find_map(|name| name.parse::<Name>().ok());
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

fn other_data(train: &str, survey: &Survey, model: &Model, why: String) -> Error {
    Error::OtherData {
        arch: model.arch.name(),
        wants: roles::wants(model.task()),
        data: train.to_owned(),
        why,
        columns: format!("\n{}", survey.table(WIDTH)),
    }
}

/// Why nothing is known of the data, and what to do about it.
fn unread(train: &str) -> (String, String) {
    let path = Path::new(train);
    let own = |why: &str, how: &str| (why.to_owned(), how.to_owned());
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if train.contains("://") {
        return own("`pipe init` downloads nothing", "choose a model with --arch and its columns with --fields");
    }
    if !path.exists() {
        return own("no such file", "check the path; it starts in the folder that pipe runs in");
    }
    if path.is_dir() {
        return own("the folder has no data files", "give a data file, or a folder of pictures");
    }
    if !path.is_file() {
        return own("it is neither a file nor a folder", "give a data file");
    }
    if !Task::Language.takes(name) && !Task::TokenLabels.takes(name) {
        let ending = name.rsplit_once('.').map_or("this", |(_, ending)| ending);
        return (format!("pipe does not read .{ending} files"), conversion(ending));
    }
    let why = pipe_data::unreadable(path).unwrap_or_else(|| "there are no rows in it".to_owned());
    (why, "check that the file is whole and that its name says what it is".to_owned())
}

/// How to turn a file into one that is read.
fn conversion(ending: &str) -> String {
    let pandas = |read: &str| {
        format!(
            "convert it: python3 -c 'import pandas; pandas.read_{read}(\"FILE\").to_csv(\"data.csv\", index=False)'"
        )
    };
    match ending.to_ascii_lowercase().as_str() {
        "xls" | "ods" | "xlsb" | "numbers" => "open it and save it as .xlsx or .csv".to_owned(),
        "feather" | "arrow" | "ipc" => pandas("feather"),
        "pkl" | "pickle" => pandas("pickle"),
        "dta" => pandas("stata"),
        "sav" => pandas("spss"),
        "orc" => pandas("orc"),
        "zip" | "tar" | "tgz" | "7z" | "rar" | "bz2" | "xz" => "unpack it first".to_owned(),
        _ => format!("save it as one of: .{}", Task::Language.endings().join(", .")),
    }
}

/// The usual path of the data of a task.
fn usual_data(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq | Task::Classification | Task::Contrastive | Task::PictureClasses | Task::Preference => {
            "data/train.jsonl"
        }
        Task::TimeSeries | Task::Table => "data/train.csv",
        Task::Language => "data/train.txt",
        Task::TokenLabels => "data/train.conll",
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
