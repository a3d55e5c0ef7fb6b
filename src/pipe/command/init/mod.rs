//! `pipe init`: writes a new pipeline, from the data and the answers to a few questions.

pub mod architecture;
mod columns;
mod dialog;
mod draft;
mod schema_file;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::{Arch, BatchSetting, Pipeline, Task};
use pipe_spec::text::{ByteSize, Name};

use crate::error::Error;
use crate::forecast::{Forecaster, Target};
use crate::gpu::Card;
use crate::hub::{Failure, Hub, HubAccess};
use crate::input::data_cache;
use crate::input::load;
use crate::input::{preflight, read_config};
use crate::report::{Reporter, print, print_data, say};
use columns::Columns;
use dialog::Dialog;
use draft::Draft;

pub struct Options {
    pub file: Option<PathBuf>,
    pub arch: Option<Arch>,
    pub data: Option<String>,
    pub eval: Option<String>,
    pub model: Option<String>,
    pub name: Option<Name>,
    pub gpu_memory: Option<ByteSize>,
    pub yes: bool,
    pub force: bool,
    pub stdout: bool,
    pub quiet: bool,
}

pub fn run(options: &Options) -> Result<(), Error> {
    if let Some(file) = &options.file {
        check_free(file, options)?;
    }
    let draft = Author { options, dialog: Dialog::find(options.yes) }.draft()?;
    let text = format!("{}{}", schema_file::editor_line(), draft.yaml());
    if options.stdout {
        print_data(format!("{}\n", text.trim_end()).as_bytes());
        return Ok(());
    }
    let file = options.file.clone().unwrap_or_else(|| PathBuf::from(format!("{}.yaml", draft.name)));
    check_free(&file, options)?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
    }
    std::fs::write(&file, text).map_err(|source| Error::Write { path: file.clone(), source })?;
    print(&file.display().to_string());
    if !options.quiet {
        if !Path::new(&draft.train).exists() {
            say(&format!("note: {} does not exist yet: its columns are guessed", draft.train));
        }
        let file = file.display();
        say(&format!(
            "next:\n  pipe check {file}   check the file and its data\n  pipe plan {file}    how much memory it needs\n  pipe run {file}     train"
        ));
    }
    Ok(())
}

/// Fails if the file exists, unless it may be overwritten.
fn check_free(file: &Path, options: &Options) -> Result<(), Error> {
    match file.exists() && !options.force && !options.stdout {
        true => Err(Error::Exists { path: file.to_owned() }),
        false => Ok(()),
    }
}

struct Author<'a> {
    options: &'a Options,
    dialog: Dialog,
}

impl Author<'_> {
    fn draft(&self) -> Result<Draft, Error> {
        let options = self.options;
        if self.dialog == Dialog::NoTerminal {
            let needed = [("--arch", options.arch.is_none()), ("--data", options.data.is_none())];
            let missing: Vec<&'static str> = needed.iter().filter(|flag| flag.1).map(|flag| flag.0).collect();
            if !missing.is_empty() {
                return Err(Error::NoTerminal { missing });
            }
        }
        let usual = architecture::data(options.arch.unwrap_or(Arch::T5).task());
        let train = self.given("training data", options.data.as_ref(), usual)?;
        let columns = Columns::read(Path::new(&train));
        let arch = self.arch(columns.as_ref())?;
        let task = arch.task();
        let eval = self.eval(&train, task)?;
        let from = self.model(arch)?;
        let name = self.name(&train, arch)?;
        let card = Card::of_host();
        let gpu_memory = self.gpu_memory(card.as_ref())?;
        let columns = columns.unwrap_or_default();
        let defaults = architecture::defaults(arch);
        let tokenizer = Path::new(&train).with_file_name("tokenizer.json");
        let draft = Draft {
            fields: columns.fields(task),
            vocabulary: vocabulary(&tokenizer).unwrap_or(defaults.vocabulary),
            features: Some(columns.features().len()).filter(|count| *count > 0).unwrap_or(8),
            classes: Some(columns.classes()).filter(|count| *count > 1).unwrap_or(2),
            card: card.is_some() || gpu_memory.is_some(),
            batch: 8.min(defaults.effective_batch),
            name,
            arch,
            train,
            eval,
            from,
            gpu_memory,
        };
        let total = gpu_memory.map(|size| size.0).or(card.map(|card| card.total));
        Ok(match total.and_then(|total| largest_batch(&draft, total)) {
            Some(batch) => Draft { batch, ..draft },
            None => draft,
        })
    }

    /// What a flag says, or an answer.
    fn given(&self, question: &str, flag: Option<&String>, default: &str) -> Result<String, Error> {
        let text = |text: &str| Ok(text.to_owned());
        match flag {
            Some(value) => Ok(value.clone()),
            None => Ok(self.dialog.ask(question, default, text)?.unwrap_or_else(|| default.to_owned())),
        }
    }

    fn arch(&self, columns: Option<&Columns>) -> Result<Arch, Error> {
        if let Some(arch) = self.options.arch {
            return Ok(arch);
        }
        let guess = columns.and_then(Columns::guess).unwrap_or(Arch::T5);
        if self.dialog == Dialog::Person {
            if let Some(columns) = columns.filter(|columns| !columns.names.is_empty()) {
                say(&format!("  columns: {}", columns.names.join(", ")));
            }
            for arch in Arch::ALL {
                say(&format!("  {:<16} {}", arch.name(), architecture::describe(arch.task())));
            }
        }
        let read = |text: &str| Arch::find(text).ok_or_else(|| "one of the names above".to_owned());
        Ok(self.dialog.ask("architecture", guess.name(), read)?.unwrap_or(guess))
    }

    /// A file beside the training data with a usual name, or the answer.
    fn eval(&self, train: &str, task: Task) -> Result<Option<String>, Error> {
        if self.options.eval.is_some() {
            return Ok(self.options.eval.clone());
        }
        let beside = |name: &str| {
            let place = Path::new(train);
            let ending = data_cache::full_ending(place).unwrap_or_default();
            place.with_file_name(format!("{name}.{ending}"))
        };
        let found = ["eval", "validation", "valid", "dev", "test"].map(beside).into_iter().find(|path| path.is_file());
        let default = found.map_or("none".to_owned(), |path| path.display().to_string());
        let question =
            if task == Task::TimeSeries { "evaluation data (none keeps a tenth)" } else { "evaluation data" };
        let answer = self.dialog.ask(question, &default, |text| Ok(text.to_owned()))?.unwrap_or(default);
        Ok(Some(answer).filter(|answer| answer != "none"))
    }

    fn model(&self, arch: Arch) -> Result<Option<String>, Error> {
        if self.options.model.is_some() {
            return Ok(self.options.model.clone());
        }
        let Some(hub) = architecture::defaults(arch).hub else { return Ok(None) };
        let default = if config_folder(hub, HubAccess::CacheOnly).is_ok() { hub } else { "scratch" };
        let question = format!("model: a folder, a hub id such as {hub}, or scratch");
        let answer = self.dialog.ask(&question, default, |text| Ok(text.to_owned()))?;
        Ok(answer.filter(|answer| answer != "scratch"))
    }

    fn name(&self, train: &str, arch: Arch) -> Result<String, Error> {
        if let Some(name) = &self.options.name {
            return Ok(name.to_string());
        }
        let file = self.options.file.as_deref().and_then(Path::file_stem);
        let folder = Path::new(train).parent().and_then(Path::file_name).filter(|name| *name != "data");
        let names = [file, folder].into_iter().flatten().map(|name| name.to_string_lossy().into_owned());
        let name = names.chain([arch.name().to_owned()]).find(|name| name.parse::<Name>().is_ok());
        let name = name.unwrap_or_default();
        let read = |text: &str| text.parse::<Name>().map(|name| name.to_string()).map_err(str::to_owned);
        Ok(self.dialog.ask("name", &name, read)?.unwrap_or(name))
    }

    /// Where a card is, it is taken as it is.
    fn gpu_memory(&self, card: Option<&Card>) -> Result<Option<ByteSize>, Error> {
        if self.options.gpu_memory.is_some() || card.is_some() || self.dialog != Dialog::Person {
            return Ok(self.options.gpu_memory);
        }
        let read = |text: &str| match text {
            "none" => Ok(None),
            size => size.parse().map(Some).map_err(str::to_owned),
        };
        Ok(self.dialog.ask("memory of the card it is for, such as 24g", "none", read)?.flatten())
    }
}

/// The folder with the config.json of a model, or why there is none.
fn config_folder(from: &str, access: HubAccess) -> Result<PathBuf, String> {
    let variables = load::variables();
    let hub = Hub::new(&variables, access, &[], Reporter::new(false, false).fetch_progress());
    preflight::config_folder(from, &variables, &hub).map_err(|failure| match failure {
        Failure::Named(message) => message,
        Failure::Error(error) => error.to_string(),
    })
}

/// The largest batch that divides a step and is expected to fit; nothing if there is no estimate.
fn largest_batch(draft: &Draft, total: u64) -> Option<u32> {
    let mut pipeline = Pipeline::parse(&draft.yaml(), &[], &load::variables()).ok()?;
    let training = pipeline.training_mut()?;
    let config = match &draft.from {
        None => training.model.config.clone()?,
        Some(from) => {
            let folder = config_folder(from, HubAccess::Check)
                .inspect_err(|reason| say(&format!("note: no batch computed: {reason}")));
            read_config(&folder.ok()?)?
        }
    };
    let mut batch = training.train.effective_batch;
    loop {
        training.train.batch = BatchSetting::Fixed(NonZeroU32::new(batch)?);
        let target = Target { name: String::new(), total };
        let forecast = Forecaster::new(training, &config)
            .forecast(Some(target))
            .inspect_err(|error| say(&format!("note: no batch computed: {error}")))
            .ok()?;
        match forecast.fits? {
            true => return Some(batch),
            false => batch /= 2,
        }
    }
}

/// How many tokens a tokenizer.json knows.
fn vocabulary(path: &Path) -> Option<u64> {
    let tokenizer: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let known = match tokenizer.get("model")?.get("vocab")? {
        serde_json::Value::Object(tokens) => tokens.len(),
        serde_json::Value::Array(tokens) => tokens.len(),
        _ => return None,
    };
    let added = tokenizer.get("added_tokens").and_then(serde_json::Value::as_array).into_iter().flatten();
    let last = added.filter_map(|token| token.get("id")?.as_u64()).map(|id| id.saturating_add(1)).max();
    Some((known as u64).max(last.unwrap_or(0))).filter(|size| *size > 0)
}
