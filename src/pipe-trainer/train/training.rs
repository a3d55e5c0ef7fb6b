//! The training loop.

use std::sync::Arc;
use std::time::Instant;

use pipe_spec::Phase;
use pipe_spec::event::{self, EventKind};
use tch::{Kind, TchError, Tensor};

use super::evaluation::Evaluation;
use super::export;
use super::session::Session;
use super::state::{State, milliseconds};
use crate::data::{Encoder, Loader, PartShape, Plan, Reader, Rows, Sample};
use crate::device::LIBTORCH;
use crate::error::TrainerError;
use crate::model::Mode;
use crate::random::{self, Purpose};
use crate::{schedule, torch};

pub struct Training<'a> {
    session: &'a Session,
    plan: Plan,
    loader: Loader,
    shape: PartShape,
    evaluation: Option<Evaluation>,
    pub state: State,
}

/// What the parts of a step gave.
struct Accumulated {
    /// Summed over the step, on the device.
    loss: Tensor,
    tokens: u64,
}

impl<'a> Training<'a> {
    pub fn prepare(session: &'a Session) -> Result<Self, TrainerError> {
        let spec = &session.spec;
        let encoder = Arc::new(Encoder::open(&spec.tokenizer, &spec.data)?);
        let rows = Arc::new(Rows::open(&spec.data.train, &spec.data, &session.pool)?);
        let plan = Plan::new(rows.len(), spec.data.shuffle, &spec.train);
        let reader = Reader { rows, encoder: Arc::clone(&encoder), pool: Arc::clone(&session.pool) };
        let evaluation = Evaluation::open(session, &reader)?;
        session.enter(Phase::Load, 0)?;
        let state = State::open(session, &plan)?;
        check_vocabulary(&encoder, &state, session)?;
        session.enter(Phase::Load, state.step)?;
        let loader = Loader::start(reader, plan.clone(), state.step, spec.data.prefetch)?;
        let shape = PartShape::new(&spec.data, state.model.pad_token_id(), session.hardware.device);
        Ok(Self { session, plan, loader, shape, evaluation, state })
    }

    /// Each turn does what is due after the steps so far, then one more step; so does the first turn after a resume.
    pub fn run(&mut self) -> Result<(), TrainerError> {
        self.announce();
        loop {
            self.evaluate_if_due()?;
            self.save_if_due()?;
            if self.state.step >= self.plan.steps() {
                return self.finish();
            }
            self.step()?;
        }
    }

    fn step(&mut self) -> Result<(), TrainerError> {
        let clock = Instant::now();
        let samples = self.loader.next()?;
        let data_ms = milliseconds(clock);
        let lr = self.learning_rate();
        let (accumulated, grad_norm) = loop {
            let accumulated = self.accumulate(&samples)?;
            if let Some(norm) = self.update(lr, &accumulated)? {
                break (accumulated, norm);
            }
        };
        // The one place of a step that waits for the device: by now everything is under way.
        let Accumulated { loss, tokens } = accumulated;
        let (loss, grad_norm) = (loss.f_double_value(&[])? / tokens.max(1) as f64, grad_norm.f_double_value(&[])?);
        self.finite("loss", loss)?;
        self.finite("gradient norm", grad_norm)?;
        self.state.step += 1;
        self.clear_cache_if_due()?;

        let step = self.state.step;
        let usage = self.session.hardware.usage();
        tracing::info!("step {step}/{} loss {loss:.4} lr {lr:.3e} grad norm {grad_norm:.3}", self.plan.steps());
        self.session.emit(EventKind::Step(event::Step {
            step,
            epoch: self.plan.epochs_after(step),
            samples: self.plan.samples_after(step),
            loss,
            lr,
            grad_norm,
            tokens,
            ms: milliseconds(clock),
            data_ms,
            allocated: usage.allocated,
            reserved: usage.reserved,
            peak: usage.peak,
        }));
        Ok(())
    }

    /// Adds up the gradient of the step, part by part. Every part is divided by the tokens of the whole step, so the size
    /// of the parts makes no difference.
    fn accumulate(&self, samples: &[Sample]) -> Result<Accumulated, TrainerError> {
        let train = &self.session.spec.train;
        let tokens = samples.iter().map(|sample| sample.target.len() as u64).sum::<u64>();
        self.session.situation.set_step(self.state.step + 1);
        self.state.model.weights().forget_gradients()?;
        let mut sums = Vec::new();
        for (index, part) in samples.chunks(train.batch as usize).enumerate() {
            // Dropout is a function of step and part, so that a resumed run drops the same.
            let seed = random::derived(Purpose::Dropout, train.seed, &[self.state.step, index as u64]);
            sums.push(self.accumulate_part(part, tokens, seed)?);
        }
        Ok(Accumulated { loss: Tensor::f_stack(&sums, 0)?.f_sum(Kind::Double)?, tokens })
    }

    fn accumulate_part(&self, samples: &[Sample], tokens: u64, seed: u64) -> Result<Tensor, TrainerError> {
        let (source, target) = self.shape.lengths(samples);
        self.session.situation.set_part(samples.len() as u32, source.max(target) as u32);
        self.session.enter(Phase::Forward, self.state.step)?;
        let sum = self.state.model.loss_sum(&self.shape.collate(samples)?, Mode::Train { seed })?;
        self.session.enter(Phase::Backward, self.state.step)?;
        let scale = self.state.loss_scale.map_or(1.0, |scale| scale.factor) / tokens.max(1) as f64;
        sum.f_mul_scalar(scale)?.f_backward()?;
        Ok(sum.f_detach()?)
    }

    /// Clips the gradient and updates the weights; returns the norm before clipping, or nothing when fp16 could not hold
    /// the gradient and the step is to be done over with a smaller scale. Nothing but that look waits for the device.
    fn update(&mut self, lr: f64, accumulated: &Accumulated) -> Result<Option<Tensor>, TrainerError> {
        self.session.enter(Phase::Optimizer, self.state.step)?;
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
        self.state.optimizer.update(self.state.model.weights(), &gradients, &scale, lr, step)?;
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
        train.optimizer.lr * schedule::factor(&train.schedule, self.state.step, self.plan.steps())
    }

    fn finite(&self, what: &'static str, value: f64) -> Result<(), TrainerError> {
        if value.is_finite() { Ok(()) } else { Err(TrainerError::NotFinite { step: self.state.step + 1, what, value }) }
    }

    fn evaluate_if_due(&mut self) -> Result<(), TrainerError> {
        let step = self.state.step;
        let due = |evaluation: &&Evaluation| evaluation.is_due(step, self.plan.steps()) && self.state.evaluated != step;
        let Some(evaluation) = self.evaluation.as_ref().filter(due) else { return Ok(()) };
        let result = evaluation.run(self.session, &self.state, &self.shape)?;
        self.state.evaluated = step;
        tracing::info!("step {step} evaluation loss {:.4} perplexity {:.2}", result.loss, result.perplexity);
        self.session.emit(EventKind::Eval(result));
        Ok(())
    }

    fn save_if_due(&self) -> Result<(), TrainerError> {
        let (step, every) = (self.state.step, self.session.spec.save.every);
        if step == self.plan.steps() || (every > 0 && step.is_multiple_of(every)) {
            self.session.situation.enter(Phase::Checkpoint);
            self.state.save_if_new(self.session)?;
        }
        Ok(())
    }

    fn announce(&self) {
        let Session { spec, hardware, .. } = self.session;
        let params = self.state.model.weights().count();
        tracing::info!("{params} parameters on {}, {} steps", hardware.name, self.plan.steps());
        self.session.emit(EventKind::Started(event::Started {
            device: hardware.name.clone(),
            capacity: hardware.capacity,
            driver: hardware.driver.clone(),
            libtorch: LIBTORCH.to_owned(),
            params,
            batch: spec.train.batch,
            accum: spec.train.accum(),
            effective_batch: spec.train.effective_batch,
            steps: self.plan.steps(),
            samples: self.plan.samples_after(self.plan.steps()),
            weights: Some(self.state.model.weights().bytes()),
            load_peak: self.state.load_peak,
            resumed_from: self.state.resumed_from,
        }));
    }

    fn finish(&self) -> Result<(), TrainerError> {
        let exported = self.session.spec.save.export;
        if exported {
            export::export(self.session, &self.state)?;
        }
        self.session.emit(EventKind::Finished(event::Finished {
            step: self.state.step,
            samples: self.plan.samples_after(self.state.step),
            model: exported.then(|| "model".to_owned()),
        }));
        Ok(())
    }
}

/// What gradients of this norm are multiplied with so that it is at most `clip`, as torch.nn.utils.clip_grad_norm_ does.
pub fn clip_factor(norm: &Tensor, clip: f64) -> Result<Tensor, TchError> {
    if clip <= 0.0 {
        return norm.f_ones_like();
    }
    norm.f_add_scalar(1e-6)?.f_reciprocal()?.f_mul_scalar(clip)?.f_clamp_max(1.0)
}

/// A token beyond the vocabulary would be read from memory that is no embedding.
fn check_vocabulary(encoder: &Encoder, state: &State, session: &Session) -> Result<(), TrainerError> {
    let (tokens, room) = (encoder.vocabulary(), state.model.vocab_size());
    if tokens <= room {
        return Ok(());
    }
    let message = format!("it has {tokens} tokens, the model's vocab_size is {room}");
    Err(TrainerError::Tokenizer { path: session.spec.tokenizer.clone(), message })
}
