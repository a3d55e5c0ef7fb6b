//! The training loop.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pipe_spec::event::{self, EventKind, GraphUse, RankUse};
use pipe_spec::model_folder::ADAPTER_WEIGHTS;
use pipe_spec::{LIBTORCH, Phase, Rank};
use tch::{TchError, Tensor};

use super::accumulation::{Accumulated, Accumulation};
use super::evaluation::{self, Evaluated, Evaluator};
use super::export::{self, Exported};
use super::graphs::Graphs;
use super::rehearsal::{LongestSamples, Rehearsal};
use super::session::Session;
use super::state::{State, milliseconds};
use super::step_splitter::{Prepared, StepSplitter};
use super::sums::{Pace, RankStep, Sums};
use crate::data::{self, Loaded, Loader, Reader, SampleOrder};
use crate::device::Usage;
use crate::error::TrainerError;
use crate::model::Definition;
use crate::storage::TensorFiles;
use crate::{host, optim, torch};

/// So many of the longest samples contain the longest row of every column.
pub const LONGEST_SAMPLE_COUNT: u32 = 16;

pub struct Training<'a> {
    session: &'a Session,
    order: SampleOrder,
    loader: Loader,
    /// Samples that could not be read and were reported.
    skipped: u64,
    splitter: StepSplitter,
    evaluation: Option<Evaluator>,
    longest_samples: LongestSamples,
    graphs: Option<Graphs<'a>>,
    sums: Option<Sums>,
    pace: Pace,
    ahead: Option<Result<Ahead, TrainerError>>,
    pub state: State,
}

/// The samples of the next step, and how it is cut.
type Ahead = (Loaded, Option<Prepared>);

impl<'a> Training<'a> {
    pub fn prepare(session: &'a Session) -> Result<Self, TrainerError> {
        let spec = &session.spec;
        let definition = Definition::from_spec(&spec.model)?.with_adapter(spec.adapter.as_ref())?;
        let task_data = definition.task_data()?;
        let mut sources = data::open(spec, &task_data, &session.pool)?;
        sources.notices.drain(..).for_each(|notice| session.warn(notice));
        evaluation::check_metrics(spec, &task_data, &sources)?;
        let definition = definition.with_labels(sources.labels.as_ref()).with_keys(sources.train.config_keys());
        let definition = definition.with_threshold(spec.evaluate.threshold);
        let order = SampleOrder::new(sources.train.len(), spec.data.shuffle, &spec.train);
        let evaluation = Evaluator::open(session, &sources, &definition);
        session.enter(Phase::Load, 0)?;
        let state = State::open(session, &order, &definition)?;
        session.enter(Phase::Load, state.step)?;
        let (batch, effective) = (spec.train.batch(), spec.train.effective_batch);
        let together = u64::from(batch) * u64::from(spec.rank.count);
        if let Some(why) = state.model.depends_on_batch().filter(|_| together < u64::from(effective)) {
            session.warn(format!("{why}: with batch {batch} it is not the training of {effective} samples at once"));
        }
        let reader = Reader { source: sources.train, pool: Arc::clone(&session.pool) };
        let longest_samples = LongestSamples::find(&reader)?;
        let loader = Loader::start(reader, order.clone(), state.step, spec.data.prefetch)?;
        let graphs = match spec.train.cuda_graphs {
            true => Graphs::new(&session.hardware, state.model.as_ref())?,
            false => None,
        };
        let splitter =
            StepSplitter::for_model(session, &definition, &task_data, &sources.paddings, state.model.as_ref())?;
        state.check_step(session)?;
        let weights = state.model.weights();
        // Where a model sums inside too, the order of sums must not depend on which part is the last of a rank.
        let overlaps = state.shared_sum.is_none();
        let sums = Sums::new(session, state.gradients.as_ref(), weights, overlaps)?;
        let pace = Pace::default();
        Ok(Self {
            session,
            order,
            loader,
            skipped: 0,
            splitter,
            evaluation,
            longest_samples,
            graphs,
            sums,
            pace,
            ahead: None,
            state,
        })
    }

    pub fn rehearsal(&self) -> Rehearsal<'_> {
        Rehearsal {
            session: self.session,
            state: &self.state,
            splitter: &self.splitter,
            longest_samples: &self.longest_samples,
        }
    }

    /// Each iteration evaluates and saves where that is due, then takes one step; so does the first one after a resume.
    pub fn run(&mut self) -> Result<(), TrainerError> {
        host::training_started();
        self.announce();
        self.rehearse_if_wanted()?;
        loop {
            self.evaluate_if_due()?;
            self.save_if_due()?;
            if self.is_over() {
                return self.finish();
            }
            self.step()?;
        }
    }

    /// A batch that does not fit fails now and not in an hour.
    fn rehearse_if_wanted(&self) -> Result<(), TrainerError> {
        let wanted = self.session.spec.memory.worst_first && !self.longest_samples.is_empty();
        if wanted && !self.is_over() {
            let rehearsed = self.rehearsal().run(self.session.spec.train.batch())?;
            self.session.emit(EventKind::Rehearsed(rehearsed));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), TrainerError> {
        let clock = Instant::now();
        let (loaded, mut prepared) = match self.ahead.take() {
            Some(ahead) => ahead?,
            None => (self.loader.next()?, None),
        };
        self.report_skipped(&loaded)?;
        let data_ms = milliseconds(clock);
        let lr = self.learning_rate();
        let (accumulated, ranks, grad_norm) = loop {
            let Self { session, state, splitter, graphs, sums, .. } = &*self;
            let work = Accumulation { session, state, splitter, graphs: graphs.as_ref(), sums: sums.as_ref() };
            let accumulated = match work.of(&loaded.samples, prepared.take()) {
                // The graphs may hold the memory that is missing. The step is the same again: nothing of it was updated.
                Err(TrainerError::OutOfMemory { .. }) if self.may_try_again() && self.give_graphs_up()? => {
                    work.of(&loaded.samples, None)?
                }
                accumulated => accumulated?,
            };
            let Some((accumulated, ranks)) = self.sum_over_ranks(accumulated)? else { continue };
            let norm = self.update(lr, &accumulated)?;
            self.state.model.step_ended(norm.is_some())?;
            if let Some(norm) = norm {
                break (accumulated, ranks, norm);
            }
        };
        // The one place of a step that waits for the device: everything is queued by now.
        if let Some(graphs) = &self.graphs {
            graphs.forget_used(self.state.model.weights())?;
        }
        self.ahead = self.prepare_next();
        let Accumulated { loss, targets, divisor, parts, filled, .. } = accumulated;
        let launched = Instant::now();
        let (loss, grad_norm) = (loss.f_double_value(&[])? / divisor, grad_norm.f_double_value(&[])?);
        if let Some(graphs) = &self.graphs {
            graphs.step_ended(launched.elapsed().as_secs_f64() / clock.elapsed().as_secs_f64());
        }
        self.finite("loss", loss)?;
        self.finite("gradient norm", grad_norm)?;
        self.state.step += 1;
        self.clear_cache_if_due()?;

        let step = self.state.step;
        let own = self.session.hardware.usage();
        let most = |of: fn(&RankUse) -> u64, own: u64| ranks.iter().map(of).max().unwrap_or(own);
        if let Some(message) = self.pace.falls_behind(&ranks) {
            self.session.warn(message);
        }
        tracing::info!("step {step}/{} loss {loss:.4} lr {lr:.3e} grad norm {grad_norm:.3}", self.order.steps());
        self.session.emit(EventKind::Step(event::Step {
            step,
            epoch: self.order.epochs_after(step),
            samples: self.order.samples_after(step),
            loss,
            lr,
            grad_norm,
            tokens: targets,
            ms: milliseconds(clock),
            data_ms,
            parts,
            filled,
            allocated: most(|rank| rank.allocated, own.allocated),
            reserved: most(|rank| rank.reserved, own.reserved),
            peak: most(|rank| rank.peak, own.peak),
            ranks,
        }));
        Ok(())
    }

    /// The next step, where there are graphs: elsewhere the host is ahead of the card anyway, or is what computes. What is wrong with it is said when
    /// it begins.
    fn prepare_next(&mut self) -> Option<Result<Ahead, TrainerError>> {
        self.graphs.as_ref().filter(|_| self.state.model.contrastive().is_none())?;
        let loaded = match self.loader.next_if_ready()? {
            Ok(loaded) => loaded,
            Err(error) => return Some(Err(error)),
        };
        let rank = if self.sums.is_some() { self.session.peers.rank } else { Rank::default() };
        let prepared = Prepared::ahead(&loaded.samples, &self.splitter, rank).ok();
        Some(Ok((loaded, prepared)))
    }

    /// Where there are several ranks, waits until the gradients are those of all, and adds up their losses. Nothing where the step is
    /// to be computed again, which all ranks find together.
    fn sum_over_ranks(&self, accumulated: Accumulated) -> Result<Option<(Accumulated, Vec<RankUse>)>, TrainerError> {
        let (Some(sums), Session { peers, hardware, .. }) = (&self.sums, self.session) else {
            return Ok(Some((accumulated, Vec::new())));
        };
        let mut ms = 0.0;
        peers.wait(hardware.device, || ms = milliseconds(accumulated.began))?;
        let Usage { allocated, reserved, peak } = hardware.usage();
        let own = RankStep {
            samples: accumulated.samples as f64,
            targets: accumulated.targets as f64,
            divisor: accumulated.divisor,
            loss: accumulated.loss.f_double_value(&[])?,
            must_repeat: !accumulated.sums_up,
            took: milliseconds(accumulated.began),
            used: RankUse { allocated, reserved, peak, ms, parts: accumulated.own_parts },
        };
        let all: Vec<RankStep> =
            peers.gather(&own.to_numbers())?.iter().map(|rank| RankStep::from_numbers(rank)).collect();
        // A row that one rank alone could not read would make another step of it.
        if let Some(rank) = all.iter().position(|rank| !rank.is_of_same_samples(&all[0])) {
            return Err(self.state.ranks_differ(self.session, rank, "samples"));
        }
        sums.step_took(all.iter().map(|rank| rank.took).fold(0.0, f64::max), accumulated.targets);
        if all.iter().any(|rank| rank.must_repeat) {
            sums.stop_overlapping();
            // Nothing of a step that is repeated counts.
            self.state.model.step_ended(false)?;
            return Ok(None);
        }
        let loss = all.iter().map(|rank| rank.loss).sum::<f64>();
        let ranks = all.into_iter().map(|rank| rank.used).collect();
        Ok(Some((Accumulated { loss: Tensor::f_from_slice(&[loss])?.f_squeeze()?, ..accumulated }, ranks)))
    }

    /// Gradients that are computed from now on are not summed over the ranks.
    pub fn forget_sums(&self) -> Result<(), TrainerError> {
        self.sums.as_ref().map_or(Ok(()), Sums::begin_step)
    }

    /// Whether no other rank can have anything of this step from this one.
    fn may_try_again(&self) -> bool {
        self.sums.as_ref().is_none_or(|sums| !sums.have_begun())
    }

    /// Says how many samples could not be read: of the first, then whenever there are four times as many, and at the end of the
    /// first pass over the data, when all are known.
    fn report_skipped(&mut self, loaded: &Loaded) -> Result<(), TrainerError> {
        let is_news = loaded.skipped >= 4 * self.skipped || self.order.ends_epoch(self.state.step + 1);
        if loaded.skipped > self.skipped && is_news {
            self.skipped = loaded.skipped;
            let (samples, were) = if loaded.skipped == 1 { ("sample", "was") } else { ("samples", "were") };
            let message = format!("{} {samples} could not be read so far, and {were} left out", loaded.skipped);
            self.session.warn(message);
        }
        if loaded.samples.is_empty() {
            let message = format!("no sample of step {} could be read", self.state.step + 1);
            return Err(TrainerError::Data { path: "data.train".into(), line: None, message });
        }
        Ok(())
    }

    /// Clips the gradient and updates the weights; returns the norm before clipping, or nothing when fp16 could not hold
    /// the gradient and the step is repeated with a smaller scale. Only that check waits for the device.
    fn update(&mut self, lr: f64, accumulated: &Accumulated) -> Result<Option<Tensor>, TrainerError> {
        self.session.go_on(Phase::Optimizer, self.state.step)?;
        let gradients = self.state.model.weights().gradients()?;
        let mut norm = torch::total_norm(&gradients)?;
        let mut unscale = 1.0;
        if let Some(loss_scale) = &mut self.state.loss_scale {
            unscale = 1.0 / loss_scale.factor;
            norm = norm.f_mul_scalar(unscale)?;
            if norm.f_double_value(&[])?.is_finite() {
                loss_scale.succeeded();
            } else if accumulated.loss.f_double_value(&[])?.is_finite() && loss_scale.overflowed() {
                return Ok(None);
            }
        }
        let scale = clip_factor(&norm, self.session.spec.train.clip)?.f_mul_scalar(unscale)?;
        let step = self.state.step + 1;
        let weights = self.state.model.weights();
        self.state.optimizer.update(weights, &gradients, &scale, lr, step)?;
        if let Some(owners) = self.state.share.owners() {
            let parameters: Vec<&Tensor> = weights.trained().map(|(_, parameter)| parameter).collect();
            self.session.peers.broadcast(&parameters, owners)?;
        }
        Ok(Some(norm))
    }

    fn clear_cache_if_due(&self) -> Result<(), TrainerError> {
        let every = self.session.spec.memory.empty_cache_every;
        if every > 0 && self.state.step.is_multiple_of(every) && self.session.hardware.device.is_cuda() {
            torch::empty_cache()?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        let train = &self.session.spec.train;
        train.optimizer.lr * optim::factor(&train.schedule, self.state.step, self.order.steps())
    }

    fn finite(&self, what: &'static str, value: f64) -> Result<(), TrainerError> {
        if value.is_finite() {
            return Ok(());
        }
        // Weights that were not finite when they were read are no matter of the learning rate.
        if self.state.step == 0 {
            self.check_read_weights(&format!("so that the {what} is {value}"))?;
        }
        Err(TrainerError::NotFinite { step: self.state.step + 1, what, value })
    }

    /// Names the first tensor of the files that the training began with which is not finite.
    fn check_read_weights(&self, then: &str) -> Result<(), TrainerError> {
        let spec = &self.session.spec;
        let folder = spec.model.from.as_deref().map(|folder| TensorFiles::open_folder(Path::new(folder)));
        let adapter = spec.adapter.as_ref().and_then(|adapter| adapter.from.as_deref());
        let adapter = adapter.map(|folder| TensorFiles::open_file(&Path::new(folder).join(ADAPTER_WEIGHTS)));
        for files in folder.into_iter().chain(adapter) {
            files?.check_finite(then)?;
        }
        Ok(())
    }

    fn evaluate_if_due(&mut self) -> Result<(), TrainerError> {
        let step = self.state.step;
        let due = |evaluation: &&Evaluator| evaluation.is_due(step, &self.order) && self.state.evaluated != step;
        let Some(evaluation) = self.evaluation.as_ref().filter(due) else { return Ok(()) };
        let evaluate = || evaluation.run(self.session, &self.state, &self.splitter);
        // An evaluation may hold more than a step: the graphs may be in its way. Several ranks evaluate once.
        if self.sums.is_some() {
            self.release_graphs()?;
        }
        let evaluated = match evaluate() {
            Err(TrainerError::OutOfMemory { .. }) if self.sums.is_none() && self.release_graphs()? => evaluate()?,
            evaluated => evaluated?,
        };
        let Evaluated { eval, details } = evaluated;
        self.state.evaluated = step;
        self.state.metrics.add(&eval);
        self.state.last_eval = kept(&eval);
        tracing::info!("step {step} evaluation loss {:.4}", eval.loss);
        // Before the event: who sees the event finds the details.
        if self.session.peers.leads() {
            evaluation::write_details(self.session, &details, self.state.metrics.best_step() == Some(step));
        }
        self.session.emit(EventKind::Eval(eval));
        Ok(())
    }

    /// Whether that gave memory back.
    fn give_graphs_up(&self) -> Result<bool, TrainerError> {
        let why = "a part needs the memory that they hold";
        self.graphs.as_ref().map_or(Ok(false), |graphs| graphs.give_up(self.state.model.weights(), why))
    }

    /// Whether that gave memory back.
    fn release_graphs(&self) -> Result<bool, TrainerError> {
        self.graphs.as_ref().map_or(Ok(false), Graphs::release)
    }

    /// Saves at the end, every `save.every` steps, and where the last evaluation is the best.
    fn save_if_due(&self) -> Result<(), TrainerError> {
        let (step, every) = (self.state.step, self.session.spec.save.every);
        let is_best = self.state.metrics.best_step() == Some(step);
        if self.is_over() || is_best || (every > 0 && step.is_multiple_of(every)) {
            self.session.go_on(Phase::Checkpoint, step)?;
            self.state.save_if_new(self.session)?;
        }
        Ok(())
    }

    fn announce(&self) {
        let Session { spec, hardware, .. } = self.session;
        let params = self.state.model.weights().count();
        tracing::info!("{params} parameters on {}, {} steps", hardware.name, self.order.steps());
        self.session.emit(EventKind::Started(event::Started {
            device: hardware.name.clone(),
            memory: event::StartedMemory {
                capacity: hardware.capacity,
                weights: Some(self.state.model.weights().bytes()),
                load_peak: self.state.load_peak,
                part_bytes: self.splitter.part_bytes(),
            },
            driver: hardware.driver.clone(),
            libtorch: LIBTORCH.to_owned(),
            params,
            batch: spec.train.batch(),
            accum: spec.train.accum(),
            effective_batch: spec.train.effective_batch,
            steps: self.order.steps(),
            samples: self.order.samples_after(self.order.steps()),
            ready_ms: milliseconds(self.session.began),
            longest: Some(self.splitter.longest(&self.longest_samples.part(LONGEST_SAMPLE_COUNT))),
            resumed_from: self.state.resumed_from,
            ranks: spec.rank.count,
            sums_by: self.session.peers.sums_by().map(str::to_owned),
        }));
    }

    fn finish(&self) -> Result<(), TrainerError> {
        if !self.session.peers.leads() {
            return Ok(());
        }
        let model_step = if self.session.spec.save.export { Some(self.export()?) } else { None };
        let stopped_early = self.stopped_early();
        if let Some(reason) = &stopped_early {
            tracing::info!("stopped early at step {}: {reason}", self.state.step);
        }
        let graphs = self.graphs.as_ref().and_then(Graphs::use_so_far);
        if let Some(GraphUse { recorded, launched, parts, rounding }) = graphs {
            let share = 100.0 * rounding;
            tracing::info!(
                "{launched} of {parts} parts were one of {recorded} CUDA graphs; {share:.1} % of the tokens are rounding"
            );
        }
        self.session.emit(EventKind::Finished(event::Finished {
            step: self.state.step,
            samples: self.order.samples_after(self.state.step),
            model: model_step.map(|_| "model".to_owned()),
            model_step,
            best: self.state.metrics.best_eval(),
            stopped_early,
            graphs,
        }));
        Ok(())
    }

    /// Exports the best step where `save.best` asks for it and its checkpoint is whole, else the last; returns which.
    fn export(&self) -> Result<u64, TrainerError> {
        let Session { store, .. } = self.session;
        let last = self.state.step;
        if let Some(best) = self.state.metrics.best_step().filter(|best| *best != last) {
            match store.model_file(best) {
                Ok(weights) => {
                    self.export_step(best, Some(&weights))?;
                    return Ok(best);
                }
                Err(damage) => self.session.warn(format!(
                    "the checkpoint {} of the best step is damaged ({damage}); the model is that of the last step, {last}",
                    store.path(best).display()
                )),
            }
        }
        self.state.check_finite(self.session, &self.state.named_weights())?;
        self.export_step(last, None)?;
        Ok(last)
    }

    fn export_step(&self, step: u64, weights: Option<&Path>) -> Result<(), TrainerError> {
        let eval = self.state.last_eval.as_ref().filter(|eval| eval.step == step);
        export::export(self.session, &self.state, &Exported { step, weights, rows: self.order.rows(), eval })
    }

    fn is_over(&self) -> bool {
        self.state.step >= self.order.steps() || self.stopped_early().is_some()
    }

    /// Why the training ends before its last step, if it does. Follows from saved state alone, so a resumed run ends at the
    /// same step.
    fn stopped_early(&self) -> Option<event::StoppedEarly> {
        let patience = self.session.spec.train.early_stop.as_ref()?.patience.get();
        let record = self.state.metrics.early_stop.as_ref()?;
        let over = record.without_improvement >= patience && self.state.evaluated == self.state.step;
        (over && self.state.step < self.order.steps()).then(|| event::StoppedEarly {
            metric: record.metric.clone(),
            patience,
            best_step: record.best.map(|best| best.step),
            best: record.best.map(|best| best.value),
        })
    }
}

/// The evaluation that is kept with the training: without its time, and without numbers that JSON cannot hold.
fn kept(eval: &event::Eval) -> Option<event::Eval> {
    let mut kept = event::Eval { ms: 0.0, ..eval.clone() };
    kept.scores.retain(|_, score| score.is_finite());
    Some(kept).filter(|eval| eval.loss.is_finite())
}

/// The factor that brings gradients of this norm to at most `clip`, as torch.nn.utils.clip_grad_norm_ does.
pub fn clip_factor(norm: &Tensor, clip: f64) -> Result<Tensor, TchError> {
    if clip <= 0.0 {
        return norm.f_ones_like();
    }
    norm.f_add_scalar(1e-6)?.f_reciprocal()?.f_mul_scalar(clip)?.f_clamp_max(1.0)
}
