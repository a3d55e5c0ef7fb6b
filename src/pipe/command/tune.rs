//! `pipe tune`: studies, which search for good settings.

use std::path::{Path, PathBuf};

use pipe_search::{Journal, Trial, grid_size};
use pipe_spec::pipeline::WorkKind;
use pipe_spec::study::{SamplerKind, Study};
use pipe_spec::text::count;
use pipe_spec::{Problems, RunFolder, Status};
use serde_json::{Value, json};

use super::print_detached;
use super::resume;
use crate::engine::registry;
use crate::error::Error;
use crate::execute::children;
use crate::execute::launch::template;
use crate::execute::single::StartMode;
use crate::execute::study::trial::Standing;
use crate::execute::study::{OpenedStudy, directions, space, trial_json};
use crate::execute::{Plan, drive};
use crate::input::load::{self, Parsed, ParsedStudy};
use crate::report::{Output, Reporter, print, print_data, print_json, say};
use crate::run::{self, Listed, Notes, Run, RunChoices};
use crate::system::files;
use crate::system::files::write_whole;
use crate::system::interrupt::Interrupts;

pub struct TuneOptions {
    pub file: PathBuf,
    pub engine: Option<String>,
    pub set: Vec<String>,
    /// Resume the newest study of this file if it did not finish.
    pub resume: bool,
    pub detach: bool,
    pub choices: RunChoices,
    pub output: Output,
}

pub fn run(options: &TuneOptions) -> Result<(), Error> {
    let file = &options.file;
    let Some(parsed) = load::parse_study(file, &options.set)? else {
        // The problems that it has as a pipeline come first.
        load::parse(file, &[])?;
        return Err(Error::NotStudy { file: file.clone() });
    };
    check_space(&parsed.study, file)?;
    load::check_study(&parsed, file)?;
    if let Some(found) = unfinished(options, &parsed.study)? {
        return resume_found(options, &found);
    }
    super::runtime()?.block_on(start(options, &parsed))
}

async fn start(options: &TuneOptions, parsed: &ParsedStudy) -> Result<(), Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut reporter = Reporter::new(options.output);
    let ParsedStudy { study, text, variables } = parsed;
    let invalid = |problems| Error::Invalid { path: options.file.clone(), problems };
    let first = study.pipeline(study.name.as_str(), &study.first_point(), &[], variables).map_err(invalid)?;
    let wanted = options.engine.as_deref().or(first.engine.as_deref());
    let engine = registry::choose(wanted, &first.engine_request(), &reporter).await?;
    // Fails before there is a study where the engine cannot run its trials.
    template::check_new(engine.as_ref(), &first, pipe_spec::Job::Train).await?;
    // A model that is searched for may be of another architecture than the pipeline says.
    if study.parameter("model.from").is_none() {
        let parsed = Parsed { pipeline: first, text: String::new(), variables: variables.clone() };
        load::find_interruptibly(parsed, options.file.clone(), &reporter, &mut interrupts).await?;
    }
    // Fails before there is a study where its storage cannot be used.
    if let Some(path) = &study.storage {
        Journal::open(Path::new(path), study.name.as_str(), &directions(study))?;
    }
    let run = Run::create_study(study, text, engine.name(), options.choices)?;
    let (id, folder) = (run.state.id.clone(), run.folder.clone());
    if options.detach {
        drop(run);
        children::start_detached(&folder, &[])?;
        print_detached(&id, &folder.path().display().to_string(), options.output);
        return Ok(());
    }
    drive(run, Plan::Study { parsed, engine }, StartMode::New, &mut reporter, &mut interrupts).await.map(drop)
}

/// Finds what no search can do.
pub fn check_space(study: &Study, file: &Path) -> Result<(), Error> {
    if study.sampler == SamplerKind::Grid
        && let Err(name) = grid_size(&space(study))
    {
        let message =
            "has no finite number of values, which `sampler: grid` wants; give it a step, or a list of values";
        let problems = Problems::one(None, &format!("space.{name}"), message);
        return Err(Error::Invalid { path: file.to_owned(), problems });
    }
    Ok(())
}

/// Combinations that are worth a count.
const MANY: u64 = 1_000_000_000;

/// A description of a study in a few lines.
pub fn describe(study: &Study) -> Vec<String> {
    let budget = &study.budget;
    let trials = budget.trials.map_or("any number of trials".to_owned(), |trials| count(trials, "trial"));
    let hours = budget.hours.map_or(String::new(), |hours| format!(", {hours} hours at most"));
    let objectives: Vec<&str> = study.objectives.iter().map(|objective| objective.metric.as_str()).collect();
    let size = match grid_size(&space(study)) {
        Ok(size) if size > MANY => String::new(),
        Ok(size) => format!(", {} in all", count(size, "combination")),
        Err(_) => String::new(),
    };
    let mut lines = vec![
        format!(
            "{} searched{size}; {} by {}",
            count(study.parameters.len(), "setting"),
            objectives.join(", "),
            study.sampler.name()
        ),
        format!("{trials}{hours}, {} at a time", budget.parallel),
    ];
    if study.searches_cut() {
        lines.push(
            "train.batch: trials with the same effective batch are one training, which is run once; the batch decides memory and \
             speed alone"
                .to_owned(),
        );
    }
    lines
}

/// The newest study of the file, with `--resume` and if it has not finished.
fn unfinished(options: &TuneOptions, study: &Study) -> Result<Option<Listed>, Error> {
    if !options.resume {
        return Ok(None);
    }
    let is_of = |run: &Listed| {
        let is_wanted = run.state.work() == WorkKind::Study && run.state.name == study.name.as_str();
        is_wanted && run.damage.is_empty() && run.is_own()
    };
    let newest = run::list()?.into_iter().find(is_of);
    let same = |run: &Listed| files::read_own_text(&run.folder().resolved()).is_ok_and(|text| text == study.to_yaml());
    match newest.filter(|run| run.state.status != Status::Finished) {
        Some(run) if same(&run) => Ok(Some(run)),
        Some(run) => {
            say(&format!("starting a new study: the file is not that of {} any more", run.state.id));
            Ok(None)
        }
        None => Ok(None),
    }
}

fn resume_found(options: &TuneOptions, found: &Listed) -> Result<(), Error> {
    resume::run(&resume::ResumeOptions {
        run: found.state.id.clone(),
        set: Vec::new(),
        detach: options.detach,
        output: options.output,
    })
}

/// The study that `wanted` names: an id, the beginning of one, or `latest`.
pub fn find(wanted: &str) -> Result<Listed, Error> {
    if wanted == run::LATEST {
        let newest = run::list()?.into_iter().find(|run| run.state.work() == WorkKind::Study);
        return newest.ok_or_else(|| Error::NoRun { wanted: wanted.to_owned(), runs: run::runs_folder() });
    }
    let found = run::find(wanted)?;
    match found.state.work() {
        WorkKind::Study => Ok(found),
        _ => Err(Error::NotStudyRun { id: found.state.id }),
    }
}

fn open(wanted: &str) -> Result<OpenedStudy, Error> {
    OpenedStudy::open(find(wanted)?)
}

/// The page of the study in this folder.
pub fn page(folder: &RunFolder) -> Result<String, Error> {
    let none = || Error::NoRun { wanted: folder.path().display().to_string(), runs: run::runs_folder() };
    Ok(OpenedStudy::open(Listed::read(folder.path()).ok_or_else(none)?)?.view().page())
}

fn trial(study: &OpenedStudy, number: u64) -> Result<&Trial, Error> {
    let (id, trials) = (study.state.id.clone(), study.trials.len() as u64);
    study.trials.get(number as usize).ok_or(Error::NoTrial { id, number, trials })
}

/// Trials that a terminal shows.
const SHOWN: usize = 40;

pub fn status(wanted: &str, json: bool) -> Result<(), Error> {
    let opened = open(wanted)?;
    let view = opened.view();
    if json {
        print_json(&view.to_json());
        return Ok(());
    }
    print(&format!("study {}: {}, {}", opened.state.id, opened.state.status.name(), view.budget()));
    opened.state.error.iter().for_each(|error| print(error));
    Notes::read(&run::folder_of(&opened.state.id)).lines().iter().for_each(|line| print(line));
    if !opened.trials.is_empty() {
        print(&format!("\n{}\n", view.table(SHOWN).on_stdout()));
    }
    if let Some(more) = opened.trials.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        print(&format!(
            "the last {SHOWN} of {}; `pipe tune export {}` has the {more} before them",
            opened.trials.len(),
            opened.state.id
        ));
    }
    view.summary().iter().for_each(|line| print(line));
    Ok(())
}

/// The pipeline of the best trial, or of another one.
pub fn best(wanted: &str, number: Option<u64>, out: Option<&Path>, json: bool) -> Result<(), Error> {
    let opened = open(wanted)?;
    let view = opened.view();
    let best = view.best();
    let trial = match number {
        Some(number) => trial(&opened, number)?,
        None => *best.first().ok_or_else(|| view.no_best())?,
    };
    if json {
        let trials: Vec<&Trial> = if number.is_some() { vec![trial] } else { best.clone() };
        let trials: Vec<Value> = trials.into_iter().map(trial_json).collect();
        print_json(&json!({ "id": opened.state.id, "trials": trials }));
        return Ok(());
    }
    let text = view.pipeline(trial, &opened.variables).map_err(|reason| Error::NoPlan { reason })?;
    match out {
        None => print_data(text.as_bytes()),
        Some(path) => {
            write_whole(path, text.as_bytes())?;
            say(&format!("trial {}: {} -> {}", trial.number, view.values(trial).join(", "), path.display()));
        }
    }
    if best.len() > 1 && number.is_none() {
        let numbers: Vec<String> = best.iter().map(|trial| trial.number.to_string()).collect();
        say(&format!(
            "none is better than these in all objectives: {}; --trial NUMBER takes another",
            numbers.join(", ")
        ));
    }
    Ok(())
}

/// How trials are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    Json,
}

pub fn export(wanted: &str, format: Format, out: Option<&Path>) -> Result<(), Error> {
    let opened = open(wanted)?;
    let text = match format {
        Format::Json => serde_json::to_string_pretty(&opened.view().to_json()).expect("a study is plain data") + "\n",
        Format::Csv => csv(&opened),
    };
    match out {
        None => {
            print_data(text.as_bytes());
            Ok(())
        }
        Some(path) => write_whole(path, text.as_bytes()),
    }
}

fn csv(opened: &OpenedStudy) -> String {
    let metrics = opened.study.objectives.iter().map(|objective| objective.metric.clone());
    let settings: Vec<String> = opened.study.parameters.iter().map(|parameter| parameter.name.clone()).collect();
    let attributes =
        ["peak_memory", "predicted_peak", "capacity", "seconds", "attempts", "pruned_at", "same_as", "run", "error"];
    let head = ["number".to_owned(), "state".to_owned()].into_iter().chain(metrics).chain(settings.clone());
    let head: Vec<String> = head.chain(attributes.map(ToOwned::to_owned)).collect();
    let mut lines = vec![csv_line(&head)];
    for trial in &opened.trials {
        let values = (0..opened.study.objectives.len())
            .map(|index| trial.values.get(index).map_or(String::new(), f64::to_string));
        let cell = |value: Option<&Value>| match value {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let row = [trial.number.to_string(), Standing::of(trial).name().to_owned()].into_iter().chain(values);
        let row = row.chain(settings.iter().map(|name| cell(trial.point.get(name))));
        let row = row.chain(attributes.iter().map(|name| cell(trial.user_attrs.get(*name))));
        lines.push(csv_line(&row.collect::<Vec<_>>()));
    }
    lines.concat()
}

fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}
