//! The gradient of one step, added up part by part so that the size of the parts and the number of ranks make no difference.

use std::cell::RefCell;
use std::time::Instant;

use pipe_spec::{Phase, Rank};
use tch::{Kind, Tensor};

use super::gradient_cache::{self, Parts};
use super::graphs::Graphs;
use super::session::Session;
use super::state::State;
use super::step_splitter::{Prepared, StepPart, StepSplitter};
use super::sums::{self, Sums};
use crate::data::{Part, Sample};
use crate::error::TrainerError;
use crate::model::{Contrastive, Drawn, Embeddings, Mode};
use crate::random::{self, Purpose};

/// The sums over the parts of a step.
pub struct Accumulated {
    /// Summed over the parts of this rank, on the device.
    pub loss: Tensor,
    /// Samples of the whole step.
    pub samples: u64,
    /// Target tokens, or samples, of the whole step.
    pub targets: u64,
    /// The divisor of the sum: the targets, or the weights of the samples where they have any. Never 0.
    pub divisor: f64,
    /// Parts of all ranks.
    pub parts: u32,
    /// Parts of this rank.
    pub own_parts: u32,
    /// How much of what a part may hold the fullest one held, where that is known.
    pub filled: Option<f64>,
    /// Whether the sum over the ranks is right, as far as this rank knows.
    pub sums_up: bool,
    pub began: Instant,
}

pub struct Accumulation<'a> {
    pub session: &'a Session,
    pub state: &'a State,
    pub splitter: &'a StepSplitter,
    /// Where parts may be launched as a whole.
    pub graphs: Option<&'a Graphs<'a>>,
    /// Where a step is shared with other ranks.
    pub sums: Option<&'a Sums>,
}

/// A step as this rank sees it.
struct Step<'a> {
    own: Vec<StepPart<'a>>,
    /// The samples of all ranks.
    samples: &'a [Sample],
    /// The parts of all ranks.
    parts: u32,
    filled: Option<f64>,
    /// The first of `own`, where it was made ahead.
    first: RefCell<Option<Part>>,
    began: Instant,
}

impl Accumulation<'_> {
    /// The rank that computes: the only one where nothing is summed over ranks.
    fn rank(&self) -> Rank {
        if self.sums.is_some() { self.session.peers.rank } else { Rank::default() }
    }

    /// Adds up the gradient of the samples of a step, longest first, which may be `prepared`.
    pub fn of(&self, samples: &[Sample], prepared: Option<Prepared>) -> Result<Accumulated, TrainerError> {
        let began = Instant::now();
        self.session.progress.set_step(self.state.step + 1);
        let prepared = prepared.unwrap_or_else(|| Prepared::new(samples, self.splitter, self.rank()));
        self.session.enter(Phase::Forward, self.state.step)?;
        let own = prepared.share(samples, self.rank().index);
        let (parts, filled, first) = (prepared.parts(), prepared.filled, RefCell::new(prepared.first));
        let step = Step { own, samples, parts, filled, first, began };
        self.begin_gradients(step.own.len())?;
        self.session.progress.set_filled(filled);
        self.session.progress.set_part_bytes(self.splitter.part_bytes());
        let accumulated = match self.state.model.contrastive() {
            None => self.sum_up(&step),
            Some(contrastive) => self.contrast(contrastive, &step),
        }?;
        match self.sums {
            None => Ok(accumulated),
            Some(sums) => Ok(Accumulated { sums_up: sums.finish()?, ..accumulated }),
        }
    }

    fn begin_gradients(&self, parts: usize) -> Result<(), TrainerError> {
        let weights = self.state.model.weights();
        if let Some(sums) = self.sums {
            sums.begin_step()?;
        }
        if let Some(gradients) = &self.state.gradients {
            gradients.begin(weights)?;
        }
        let given = self.state.gradients.is_some();
        match self.graphs {
            Some(graphs) => graphs.begin_step(weights, parts, given),
            None if given => Ok(()),
            None => Ok(weights.forget_gradients()?),
        }
    }

    /// Every part is divided by the targets, or the weights, of the whole step.
    fn sum_up(&self, step: &Step<'_>) -> Result<Accumulated, TrainerError> {
        let targets = step.samples.iter().map(|sample| sample.targets).sum::<u64>();
        let weights = step.samples.iter().map(|sample| sample.loss_weight().map(f64::from)).sum::<Option<f64>>();
        let divisor = weights.filter(|weights| *weights > 0.0).unwrap_or(targets.max(1) as f64);
        let scale = self.loss_scale() / divisor;
        let mut sums = Vec::new();
        let rounds = self.rounds(step);
        for round in 0..rounds {
            let is_last = round + 1 == rounds;
            match step.own.get(round) {
                Some(part) => {
                    self.enter(Phase::Forward, part.samples)?;
                    let ahead = step.first.take().filter(|_| round == 0);
                    let collated = ahead.map_or_else(|| self.splitter.shape().collate(part.samples), Ok)?;
                    if let (Some(graphs), Some(first)) = (self.graphs, part.samples.first()) {
                        let tokens = part.samples.iter().map(|sample| sample.tokens() as u64).sum();
                        graphs.count(tokens, collated.tokens(first));
                    }
                    sums.push(self.sum(&collated, self.drawn(part), scale, is_last)?);
                }
                None => self.take_part_silently(step)?,
            }
        }
        // A rank may have nothing to do in a small step.
        let loss = match sums.is_empty() {
            true => Tensor::f_zeros([], (Kind::Double, self.session.hardware.device))?,
            false => Tensor::f_stack(&sums, 0)?.f_sum(Kind::Double)?,
        };
        Ok(self.accumulated(step, loss, targets, divisor))
    }

    /// How many parts this rank computes. Where the ranks of a round are compared with each other, all take part in each.
    fn rounds(&self, step: &Step<'_>) -> usize {
        match self.sums.is_some() && self.state.shared_sum.is_some() {
            true => step.parts.div_ceil(self.session.peers.rank.count) as usize,
            false => step.own.len(),
        }
    }

    /// Other ranks have a part more in this round, and sum with this one inside the model.
    fn take_part_silently(&self, step: &Step<'_>) -> Result<(), TrainerError> {
        let (Some(shared), Some(sample)) = (self.state.shared_sum, step.samples.first()) else { return Ok(()) };
        let part = StepPart { samples: std::slice::from_ref(sample), first_sample: 0 };
        shared.set_silent(true);
        let done = self.sum(&self.splitter.shape().collate(part.samples)?, self.drawn(&part), 0.0, false);
        shared.set_silent(false);
        done.map(drop)
    }

    /// The loss of a part; its gradient times `scale` is added to that of the step. The gradients of the last part are summed over
    /// the ranks as they come.
    fn sum(&self, part: &Part, drawn: Drawn, scale: f64, is_last: bool) -> Result<Tensor, TrainerError> {
        let model = self.state.model.as_ref();
        let watched = self.sums.filter(|_| is_last);
        if let Some(graphs) = self.graphs.filter(|_| watched.is_none_or(Sums::last_part_is_a_graph)) {
            let launched = graphs.launch(model, part, drawn, scale)?;
            if let Some(why) = graphs.take_refusal() {
                self.session.warn(format!("no CUDA graphs any more, kernels are launched one by one: {why}"));
            }
            if let Some(sum) = launched {
                return Ok(sum);
            }
        }
        let sum = model.loss_sum(part, Mode::Train(drawn))?;
        self.before_backward(watched, drawn.recomputes)?;
        sum.f_mul_scalar(scale)?.f_backward()?;
        Ok(sum.f_detach()?)
    }

    /// From here on others may count on this rank to complete the step.
    fn before_backward(&self, watched: Option<&Sums>, recomputes: bool) -> Result<(), TrainerError> {
        match watched {
            None => self.session.enter(Phase::Backward, self.state.step),
            Some(sums) => {
                self.session.enter(Phase::Backward, self.state.step)?;
                sums.watch(recomputes)
            }
        }
    }

    /// A loss over the whole step at once.
    fn contrast(&self, contrastive: &dyn Contrastive, step: &Step<'_>) -> Result<Accumulated, TrainerError> {
        let targets = step.samples.len() as u64;
        let parts = StepParts { work: self, step, drawn: step.own.iter().map(|part| self.drawn(part)).collect() };
        let loss = gradient_cache::backward(contrastive, &parts, self.loss_scale())?;
        let loss = loss.f_to_kind(Kind::Double)?.f_mul_scalar(targets as f64)?;
        // All ranks have computed the same.
        let loss = if self.sums.is_none() || self.session.peers.leads() { loss } else { loss.f_zeros_like()? };
        Ok(self.accumulated(step, loss, targets, targets.max(1) as f64))
    }

    fn accumulated(&self, step: &Step<'_>, loss: Tensor, targets: u64, divisor: f64) -> Accumulated {
        Accumulated {
            loss,
            samples: step.samples.len() as u64,
            targets,
            divisor,
            parts: step.parts,
            own_parts: step.own.len() as u32,
            filled: step.filled,
            sums_up: true,
            began: step.began,
        }
    }

    fn enter(&self, phase: Phase, samples: &[Sample]) -> Result<(), TrainerError> {
        self.session.progress.set_part(samples.len() as u32, self.splitter.shape().longest(samples) as u32);
        self.session.enter(phase, self.state.step)
    }

    /// Dropout is a function of the step and of where a sample stands in it, so a resumed run, another batch and another number of
    /// ranks drop the same.
    fn drawn(&self, part: &StepPart<'_>) -> Drawn {
        let seed = random::derived(Purpose::Dropout, self.session.spec.train.seed, &[self.state.step]);
        Drawn { recomputes: self.splitter.recomputes(part.samples), ..Drawn::new(seed, part.first_sample) }
    }

    fn loss_scale(&self) -> f64 {
        self.state.loss_scale.map_or(1.0, |scale| scale.factor)
    }
}

struct StepParts<'a> {
    work: &'a Accumulation<'a>,
    step: &'a Step<'a>,
    drawn: Vec<Drawn>,
}

impl Parts for StepParts<'_> {
    fn count(&self) -> usize {
        self.step.own.len()
    }

    fn load(&self, index: usize) -> Result<(Part, Mode), TrainerError> {
        let part = &self.step.own[index];
        self.work.enter(Phase::Forward, part.samples)?;
        Ok((self.work.splitter.shape().collate(part.samples)?, Mode::Train(self.drawn[index])))
    }

    fn before_backward(&self, index: usize) -> Result<(), TrainerError> {
        let watched = self.work.sums.filter(|_| index + 1 == self.count());
        self.work.before_backward(watched, self.drawn[index].recomputes)
    }

    fn are_all(&self) -> bool {
        self.work.sums.is_none()
    }

    fn first_sample(&self, index: usize) -> i64 {
        self.step.own[index].first_sample.into()
    }

    fn of_all_ranks(&self, own: &[Embeddings]) -> Result<Embeddings, TrainerError> {
        if self.are_all() {
            return gradient_cache::concatenated(own);
        }
        let rows = |side: fn(&Embeddings) -> &Tensor| {
            let own: Vec<(i64, &Tensor)> =
                own.iter().enumerate().map(|(index, part)| (self.first_sample(index), side(part))).collect();
            sums::exchange_rows(
                &self.work.session.peers,
                self.step.samples.len() as i64,
                &own,
                self.work.session.hardware.device,
            )
        };
        Ok(Embeddings { images: rows(|part| &part.images)?, texts: rows(|part| &part.texts)? })
    }

    fn forget_gradients_of_the_loss(&self) -> Result<(), TrainerError> {
        match &self.work.state.gradients {
            Some(gradients) if !self.are_all() && !self.work.session.peers.leads() => {
                gradients.begin(self.work.state.model.weights())
            }
            _ => Ok(()),
        }
    }
}
