//! The gradient of one step, added up part by part so that the size of the parts makes no difference.

use pipe_spec::Phase;
use tch::{Kind, Tensor};

use super::cut::Cut;
use super::gradient_cache::{self, Parts};
use super::graphs::Graphs;
use super::session::Session;
use super::state::State;
use crate::data::{Part, Sample};
use crate::error::TrainerError;
use crate::model::{Contrastive, Drawn, Mode};
use crate::random::{self, Purpose};

/// What the parts of a step gave.
pub struct Accumulated {
    /// Summed over the step, on the device.
    pub loss: Tensor,
    /// Target tokens, or samples.
    pub targets: u64,
    /// What the sum is divided by: the targets, or the weights of the samples where they have any. Never 0.
    pub divisor: f64,
    pub parts: u32,
    /// How much of what a part may hold the fullest one held, where that is known.
    pub filled: Option<f64>,
}

pub struct Accumulation<'a> {
    pub session: &'a Session,
    pub state: &'a State,
    pub cut: &'a Cut,
    /// Where parts may be launched as a whole.
    pub graphs: Option<&'a Graphs<'a>>,
}

impl Accumulation<'_> {
    /// Of the samples of a step, longest first.
    pub fn of(&self, samples: &[Sample]) -> Result<Accumulated, TrainerError> {
        self.session.progress.set_step(self.state.step + 1);
        let parts = self.cut.parts(samples);
        self.session.enter(Phase::Forward, self.state.step)?;
        match self.graphs {
            Some(graphs) => graphs.begin_step(self.state.model.weights(), parts.len())?,
            None => self.state.model.weights().forget_gradients()?,
        }
        let filled = self.cut.filled(&parts);
        self.session.progress.set_filled(filled);
        self.session.progress.set_part_bytes(self.cut.part_bytes());
        match self.state.model.contrastive() {
            None => self.sums(&parts, filled),
            Some(contrastive) => self.contrast(contrastive, &parts, filled),
        }
    }

    /// Every part is divided by the targets, or the weights, of the whole step.
    fn sums(&self, parts: &[&[Sample]], filled: Option<f64>) -> Result<Accumulated, TrainerError> {
        let samples = || parts.iter().flat_map(|part| part.iter());
        let targets = samples().map(|sample| sample.targets).sum::<u64>();
        let weights = samples().map(|sample| sample.loss_weight().map(f64::from)).sum::<Option<f64>>();
        let divisor = weights.filter(|weights| *weights > 0.0).unwrap_or(targets.max(1) as f64);
        let scale = self.loss_scale() / divisor;
        let mut sums = Vec::new();
        for (part, drawn) in parts.iter().zip(self.drawn(parts)) {
            self.enter(Phase::Forward, part)?;
            sums.push(self.sum(&self.cut.shape().collate(part)?, drawn, scale)?);
        }
        let loss = Tensor::f_stack(&sums, 0)?.f_sum(Kind::Double)?;
        Ok(Accumulated { loss, targets, divisor, parts: parts.len() as u32, filled })
    }

    /// The loss of a part; its gradient times `scale` is added to that of the step.
    fn sum(&self, part: &Part, drawn: Drawn, scale: f64) -> Result<Tensor, TrainerError> {
        let model = self.state.model.as_ref();
        if let Some(graphs) = self.graphs {
            let launched = graphs.launch(model, part, drawn, scale)?;
            if let Some(why) = graphs.take_refusal() {
                self.session.warn(format!("no CUDA graphs any more, kernels are launched one by one: {why}"));
            }
            if let Some(sum) = launched {
                return Ok(sum);
            }
        }
        let sum = model.loss_sum(part, Mode::Train(drawn))?;
        self.session.enter(Phase::Backward, self.state.step)?;
        sum.f_mul_scalar(scale)?.f_backward()?;
        Ok(sum.f_detach()?)
    }

    /// A loss over the whole step at once.
    fn contrast(
        &self,
        contrastive: &dyn Contrastive,
        parts: &[&[Sample]],
        filled: Option<f64>,
    ) -> Result<Accumulated, TrainerError> {
        let targets = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let step = StepParts { work: self, parts, modes: self.drawn(parts).into_iter().map(Mode::Train).collect() };
        let loss = gradient_cache::backward(contrastive, &step, self.loss_scale())?;
        let loss = loss.f_to_kind(Kind::Double)?.f_mul_scalar(targets as f64)?;
        Ok(Accumulated { loss, targets, divisor: targets.max(1) as f64, parts: parts.len() as u32, filled })
    }

    fn enter(&self, phase: Phase, samples: &[Sample]) -> Result<(), TrainerError> {
        self.session.progress.set_part(samples.len() as u32, self.cut.shape().longest(samples) as u32);
        self.session.enter(phase, self.state.step)
    }

    /// Dropout is a function of the step and of where a sample stands in it, so a resumed run and another batch drop the same.
    fn drawn(&self, parts: &[&[Sample]]) -> Vec<Drawn> {
        let seed = random::derived(Purpose::Dropout, self.session.spec.train.seed, &[self.state.step]);
        let mut first_sample = 0;
        let mut drawn = |part: &&[Sample]| {
            let drawn = Drawn { recomputes: self.cut.recomputes(part), ..Drawn::new(seed, first_sample) };
            first_sample += part.len() as u32;
            drawn
        };
        parts.iter().map(&mut drawn).collect()
    }

    fn loss_scale(&self) -> f64 {
        self.state.loss_scale.map_or(1.0, |scale| scale.factor)
    }
}

struct StepParts<'a> {
    work: &'a Accumulation<'a>,
    parts: &'a [&'a [Sample]],
    modes: Vec<Mode>,
}

impl Parts for StepParts<'_> {
    fn count(&self) -> usize {
        self.parts.len()
    }

    fn load(&self, index: usize) -> Result<(Part, Mode), TrainerError> {
        let part = self.parts[index];
        self.work.enter(Phase::Forward, part)?;
        Ok((self.work.cut.shape().collate(part)?, self.modes[index]))
    }

    fn before_backward(&self) -> Result<(), TrainerError> {
        self.work.session.enter(Phase::Backward, self.work.state.step)
    }
}
