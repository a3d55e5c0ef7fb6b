//! The next trial: chosen by the sampler, held against what is known, and begun.
//!
//! The space of a study file as the search knows it.

use pipe_search::{
    Condition, Direction, Domain, JournalError, Parameter, Pruner, Sampler, Space, Test, Trial, TrialState, suggest,
};
use pipe_spec::pipeline::{Arch, Gpus, Pipeline};
use pipe_spec::study::{self, Goal, Objective, OomPolicy, PruneKind, SamplerKind, Study};
use serde_json::{Map, Value, json};

use super::feasibility::{self, MemoryForecast, Trainings};
use super::trial::{self, Curves};
use super::{Live, StudyDriver, refuses};
use crate::error::Error;
use crate::execute::children;
use crate::execute::launch::template;
use crate::input::load::{self, Parsed};
use crate::run::{self, Run, RunChoices};
use crate::system::clock::now;
use crate::system::interrupt;

/// So many proposals one after the other that do not fit, or that are trainings which were done before, end a study: nothing else is
/// to be expected.
const MAX_REFUSED: u64 = 200;
const MAX_REPEATED: u64 = 50;

/// Proposals one after the other that were not begun.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refused {
    count: u64,
    repeated: u64,
}

/// The pipeline of a trial, and its memory forecast.
struct Planned {
    pipeline: Pipeline,
    room: MemoryForecast,
}

impl StudyDriver<'_> {
    /// Begins the next trial, or notes why the one that was proposed is not begun.
    pub(super) async fn begin_next(&mut self) -> Result<(), Error> {
        if let Some(number) = self.claim_waiting()? {
            return self.begin_claimed(number).await;
        }
        let trials = self.journal.trials();
        let number = trials.len() as u64;
        let sampler = sampler(self.study);
        let Some(point) =
            suggest(sampler, &self.search.space, &self.search.directions, trials, number, self.study.seed)
        else {
            self.search.is_spent = true;
            return Ok(());
        };
        let mut proposed = self.trial(number, point);
        let planned = match self.plan(&proposed).await {
            Ok(planned) => planned,
            Err(Error::Interrupted) => {
                self.stop(crate::system::interrupt::StopRequest::Graceful);
                return Ok(());
            }
            Err(error) if error.is_of_machine() => {
                return Err(self.halt(number, &error.to_string(), error.exit_code()));
            }
            Err(error) => {
                proposed.state = TrialState::Failed;
                proposed.ended = Some(now());
                proposed.user_attrs.insert(trial::ERROR.to_owned(), json!(error.to_string()));
                self.journal.add(&proposed)?;
                return self.note_failure(number, &error.to_string());
            }
        };
        if let Some(first) = self.same_training(&planned.pipeline) {
            return self.add_repeated(proposed, first);
        }
        self.note_forecast(&mut proposed, &planned.room);
        if let Some(why) = self.known_too_large(&planned.pipeline) {
            proposed.user_attrs.insert(trial::ERROR.to_owned(), json!(why));
            return self.add_infeasible(proposed, feasibility::LEAST_EXCESS.max(planned.room.excess()));
        }
        if !planned.room.fits && (refuses(self.study) || planned.room.smaller.is_none()) {
            return self.add_infeasible(proposed, planned.room.excess());
        }
        // The trial is noted before its run begins, all of it in one line: the next `pipe` finds it, or nothing was done.
        let number = self.journal.add(&proposed)?;
        self.start(number, &planned.pipeline)
    }

    fn trial(&self, number: u64, point: pipe_search::Point) -> Trial {
        let domain = |name: &String| Some((name.clone(), self.search.space.parameter(name)?.domain.clone()));
        let domains = point.keys().filter_map(domain).collect();
        let mut trial = Trial { domains, began: Some(now()), ..Trial::new(number, point) };
        trial.user_attrs.insert(trial::STUDY.to_owned(), json!(self.run.state.id));
        trial
    }

    /// A trial that somebody has asked for with Optuna, if there is one.
    fn claim_waiting(&mut self) -> Result<Option<u64>, Error> {
        let waiting = |trial: &&Trial| trial.state == TrialState::Waiting;
        let numbers: Vec<u64> = self.journal.trials().iter().filter(waiting).map(|trial| trial.number).collect();
        for number in numbers {
            // Noted first: a `pipe` that is killed in between leaves a trial that still waits.
            self.journal.set_attr(number, trial::STUDY, json!(self.run.state.id))?;
            if self.journal.claim(number)? {
                return Ok(Some(number));
            }
            self.journal.set_attr(number, trial::STUDY, Value::Null)?;
        }
        Ok(None)
    }

    /// Fills in what was not asked for, and begins it whatever is known: a person wants to see it.
    async fn begin_claimed(&mut self, number: u64) -> Result<(), Error> {
        let trials = self.journal.trials();
        let fixed = trials.get(number as usize).and_then(|trial| trial.system_attrs.get("fixed_params")).cloned();
        let sampler = sampler(self.study);
        let mut point = suggest(sampler, &self.search.space, &self.search.directions, trials, number, self.study.seed)
            .unwrap_or_default();
        for (name, value) in fixed.as_ref().and_then(Value::as_object).into_iter().flatten() {
            match self.search.space.parameter(name) {
                Some(parameter) if parameter.domain.contains(value) => drop(point.insert(name.clone(), value.clone())),
                Some(_) => {
                    return self
                        .fail(number, &format!("it was asked for with {name} {value}, which is not in the space"));
                }
                None => return self.fail(number, &format!("it was asked for with {name}, which is not in the space")),
            }
        }
        let applying = self.search.space.parameters.iter().filter(|parameter| parameter.applies(&point));
        let params: Vec<(&str, &Value, &Domain)> = applying
            .filter_map(|parameter| Some((parameter.name.as_str(), point.get(&parameter.name)?, &parameter.domain)))
            .collect();
        // All in one write: a `pipe` that is killed leaves all of them or none.
        match self.journal.set_params(number, &params) {
            Ok(_) => self.begin_again(number).await,
            Err(error @ JournalError::Parameter { .. }) => self.fail(number, &error.to_string()),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins a trial that the journal has, and that has no run.
    pub(super) async fn begin_noted(&mut self, number: u64) -> Result<(), Error> {
        let was_claimed = |trial: &Trial| trial.point.is_empty() && trial.system_attrs.contains_key("fixed_params");
        match self.journal.trials().get(number as usize).is_some_and(was_claimed) {
            true => self.begin_claimed(number).await,
            false => self.begin_again(number).await,
        }
    }

    async fn begin_again(&mut self, number: u64) -> Result<(), Error> {
        let Some(known) = self.journal.trials().get(number as usize).cloned() else { return Ok(()) };
        match self.plan(&known).await {
            Ok(planned) => {
                if let Some(predicted) =
                    planned.room.predicted.filter(|_| !known.user_attrs.contains_key(trial::PREDICTED_PEAK))
                {
                    self.journal.set_attr(number, trial::PREDICTED_PEAK, json!(predicted))?;
                }
                self.start(number, &planned.pipeline)
            }
            Err(Error::Interrupted) => {
                self.stop(crate::system::interrupt::StopRequest::Graceful);
                Ok(())
            }
            Err(error) => self.give_up(number, &error),
        }
    }

    /// The pipeline of a trial, and whether it is foreseen to fit.
    async fn plan(&mut self, trial: &Trial) -> Result<Planned, Error> {
        let name = run::child_id(self.study.name.as_str(), &trial.number.to_string());
        let mut more: Vec<(&str, Value)> = Vec::new();
        let mut pipeline = self.study.pipeline(&name, &trial.point, &more, self.variables).map_err(invalid_in(self))?;
        let searches_model = trial.point.contains_key("model.from") && !trial.point.contains_key("model.arch");
        let config = self.config(&pipeline).await?;
        if searches_model && let Some(arch) = arch_of(&config) {
            more.push(("model.arch", json!(arch.name())));
        }
        if self.study.oom == OomPolicy::Prune {
            more.push(("on_oom.retries", json!(0)));
        }
        if let Some(cards) = self.free_cards(&pipeline) {
            more.push(("container.gpus", json!(cards)));
        }
        if !more.is_empty() {
            pipeline = self.study.pipeline(&name, &trial.point, &more, self.variables).map_err(invalid_in(self))?;
        }
        template::check(self.engine.as_ref(), &pipeline, pipe_spec::Job::Train)?;
        let room = feasibility::foresee(&pipeline, &config, self.engine.as_ref())?;
        if let (false, OomPolicy::Shrink, Some(batch)) = (room.fits, self.study.oom, room.smaller) {
            let effective = pipeline.work.effective_batch();
            // The same training, cut into smaller batches.
            more.extend([("train.batch", json!(batch)), ("train.effective_batch", json!(effective))]);
            let mut point = trial.point.clone();
            point.remove("train.accum");
            point.insert("train.effective_batch".to_owned(), json!(effective));
            pipeline = self.study.pipeline(&name, &point, &more, self.variables).map_err(invalid_in(self))?;
        }
        Ok(Planned { pipeline, room })
    }

    /// The config.json of the model of a training.
    async fn config(&mut self, pipeline: &Pipeline) -> Result<Map<String, Value>, Error> {
        let Some(training) = pipeline.training() else { return Ok(Map::new()) };
        let Some(from) = training.model.from.clone() else {
            return Ok(training.model.config.clone().unwrap_or_default());
        };
        if let Some(known) = self.configs.get(&from) {
            return Ok(known.clone());
        }
        let parsed = Parsed { pipeline: pipeline.clone(), text: String::new(), variables: self.variables.clone() };
        let progress = self.reporter.fetch_progress();
        let config =
            interrupt::run_interruptibly(self.interrupts, move || load::planned_config(&parsed, progress)).await?;
        self.configs.insert(from, config.clone());
        Ok(config)
    }

    /// The cards with the fewest trials, as many as a trial wants, where there are more.
    fn free_cards(&self, pipeline: &Pipeline) -> Option<Vec<String>> {
        let wanted = match pipeline.container.gpus {
            Gpus::Auto => 1,
            Gpus::Count(count) if count > 0 => count as usize,
            Gpus::Count(_) | Gpus::All | Gpus::Ids(_) => return None,
        };
        let mut cards = self.engine.cards(&Gpus::All);
        if self.study.budget.parallel < 2 || cards.len() <= wanted {
            return None;
        }
        cards.sort_by_key(|card| (self.watcher.trials_on(&card.index.to_string()), card.index));
        cards.truncate(wanted);
        cards.sort_by_key(|card| card.index);
        Some(cards.iter().map(|card| card.index.to_string()).collect())
    }

    /// The trial that is the same training, if one has come to its end.
    fn same_training(&self, pipeline: &Pipeline) -> Option<u64> {
        self.search.trainings.find(&Trainings::name(self.study, pipeline)?)
    }

    fn add_repeated(&mut self, mut proposed: Trial, first: u64) -> Result<(), Error> {
        let Some(known) = self.journal.trials().get(first as usize) else { return Ok(()) };
        proposed.values.clone_from(&known.values);
        proposed.constraints.clone_from(&known.constraints);
        proposed.state = TrialState::Complete;
        proposed.ended = Some(now());
        proposed.user_attrs.insert(trial::SAME_AS.to_owned(), json!(first));
        self.journal.add(&proposed)?;
        self.search.refused.count += 1;
        self.search.refused.repeated += 1;
        if self.search.refused.repeated >= MAX_REPEATED && self.study.sampler != SamplerKind::Grid {
            self.reporter.note(&format!(
                "the last {MAX_REPEATED} proposals were trainings that had been done before, or do not fit: the study ends"
            ));
            self.search.is_spent = true;
        }
        Ok(())
    }

    fn note_forecast(&self, proposed: &mut Trial, room: &MemoryForecast) {
        let known = [(trial::PREDICTED_PEAK, room.predicted), (trial::CAPACITY, room.capacity)];
        for (name, bytes) in known.into_iter().filter_map(|(name, bytes)| Some((name, bytes?))) {
            proposed.user_attrs.insert(name.to_owned(), json!(bytes));
        }
        // A trial that runs is allowed until it is shown not to fit; Optuna wants a constraint of every trial.
        proposed.constraints = vec![room.excess().min(0.0)];
    }

    fn add_infeasible(&mut self, mut proposed: Trial, excess: f64) -> Result<(), Error> {
        proposed.state = TrialState::Pruned;
        proposed.ended = Some(now());
        proposed.constraints = vec![excess];
        proposed.user_attrs.insert(trial::INFEASIBLE.to_owned(), json!(true));
        self.journal.add(&proposed)?;
        self.note_refused();
        Ok(())
    }

    /// Counts a proposal that does not fit.
    pub(super) fn note_refused(&mut self) {
        self.search.refused.count += 1;
        // A grid knows itself when it is spent.
        if self.search.refused.count >= MAX_REFUSED && self.study.sampler != SamplerKind::Grid {
            self.reporter.note(&format!("the last {MAX_REFUSED} proposals do not fit: the study ends"));
            self.search.is_spent = true;
        }
    }

    /// Why a trial like this is known not to fit, if it is.
    fn known_too_large(&self, pipeline: &Pipeline) -> Option<String> {
        self.search.too_large.get(&feasibility::memory_name(pipeline)?).filter(|_| refuses(self.study)).cloned()
    }

    /// Nothing of the space fits: says what the smallest of it needs.
    pub(super) fn nothing_fits(&self, tried: u64) -> Error {
        let bytes = |trial: &Trial, name: &str| trial.user_attrs.get(name).and_then(Value::as_u64);
        let known = self.journal.trials().iter();
        let known =
            known.filter_map(|trial| Some((bytes(trial, trial::PREDICTED_PEAK)?, bytes(trial, trial::CAPACITY)?)));
        let (least, capacity) = known.min().unwrap_or_default();
        Error::NothingFits { tried, least, capacity }
    }

    /// Makes the run of a trial, where there is none, and starts it.
    fn start(&mut self, number: u64, pipeline: &Pipeline) -> Result<(), Error> {
        let id = self.run_id(number);
        let folder = run::folder_of(&id);
        self.running.insert(number, Live::new(Curves::new(&folder, &self.study.objectives)));
        let begun = match children::find(&folder) {
            Ok(begun) => begun,
            Err(error) => return self.give_up(number, &error),
        };
        let created = match &begun {
            Some(_) => Ok(()),
            None => {
                let choices = RunChoices { as_asked: refuses(self.study), ..self.run.state.choices };
                let engine = (self.engine.name(), self.engine.address());
                Run::create_child(pipeline, &number.to_string(), &self.run.state.id, engine, choices).map(drop)
            }
        };
        match created.and_then(|()| children::start(&folder, begun.as_ref())) {
            Ok(()) => self.save(),
            Err(error) => self.give_up(number, &error),
        }
    }
}

fn arch_of(config: &Map<String, Value>) -> Option<Arch> {
    Arch::of_model_type(config.get("model_type")?.as_str()?)
}

fn invalid_in(driver: &StudyDriver<'_>) -> impl Fn(pipe_spec::Problems) -> Error + use<> {
    let path = driver.run.folder.pipeline();
    move |problems| Error::Invalid { path: path.clone(), problems }
}

pub fn space(study: &Study) -> Space {
    Space { parameters: study.parameters.iter().map(parameter).collect() }
}

fn parameter(parameter: &study::Parameter) -> Parameter {
    let domain = match &parameter.values {
        study::Values::Choices(choices) => Domain::Choices(choices.iter().map(|choice| choice.label.clone()).collect()),
        study::Values::Float { low, high, log, step } => {
            Domain::Float { low: *low, high: *high, log: *log, step: *step }
        }
        study::Values::Int { low, high, log, step } => Domain::Int { low: *low, high: *high, log: *log, step: *step },
    };
    let condition = |condition: &study::Condition| Condition {
        parameter: condition.parameter.clone(),
        test: match &condition.test {
            study::Test::Above(bound) => Test::Above(*bound),
            study::Test::Below(bound) => Test::Below(*bound),
            study::Test::AnyOf(values) => Test::OneOf(values.clone()),
        },
    };
    Parameter { name: parameter.name.clone(), domain, when: parameter.when.iter().map(condition).collect() }
}

pub fn direction(objective: &Objective) -> Direction {
    match objective.direction {
        Goal::Minimize => Direction::Minimize,
        Goal::Maximize => Direction::Maximize,
    }
}

pub fn directions(study: &Study) -> Vec<Direction> {
    study.objectives.iter().map(direction).collect()
}

pub fn sampler(study: &Study) -> Sampler {
    match study.sampler {
        SamplerKind::Tpe => Sampler::Tpe,
        SamplerKind::Random => Sampler::Random,
        SamplerKind::Grid => Sampler::Grid,
    }
}

pub fn pruner(study: &Study) -> Pruner {
    let prune = &study.prune;
    match prune.kind {
        PruneKind::None => Pruner::None,
        PruneKind::Median => Pruner::Median { startup_trials: prune.startup_trials, warmup_steps: prune.warmup_steps },
        PruneKind::Asha => Pruner::Asha { min_steps: prune.min_steps, reduction: prune.reduction },
    }
}
