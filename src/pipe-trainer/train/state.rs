//! What training changes: the weights, the optimizer and the count of steps.

use std::cell::Cell;
use std::time::Instant;

use pipe_spec::Phase;
use pipe_spec::event::{self, EventKind};
use pipe_spec::run::checkpoint_name;
use tch::Tensor;

use super::session::Session;
use crate::checkpoint::{Checkpoint, Identity, SavedState};
use crate::data::Plan;
use crate::error::TrainerError;
use crate::loss_scale::LossScale;
use crate::model::{Definition, Model, Setup, Start};
use crate::optimizer::Optimizer;

pub struct State {
    pub model: Box<dyn Model>,
    pub optimizer: Optimizer,
    /// In fp16 alone.
    pub loss_scale: Option<LossScale>,
    /// The most that the device held while the weights were loaded, where it can tell.
    pub load_peak: Option<u64>,
    /// Completed steps.
    pub step: u64,
    /// The last step after which the model was evaluated.
    pub evaluated: u64,
    /// The step of the checkpoint that this attempt went on from.
    pub resumed_from: Option<u64>,
    /// The last step that this attempt has loaded or saved. A folder of that name alone may be a damaged one.
    saved: Cell<u64>,
    plan: Plan,
}

impl State {
    /// Goes on from the newest whole checkpoint, or begins.
    pub fn open(session: &Session, plan: &Plan, definition: &Definition) -> Result<Self, TrainerError> {
        let identity = identity(session, plan);
        session.situation.enter(Phase::Resume);
        match session.store.newest(&identity, session.spec.maths_changed, |damage| session.warn(damage))? {
            Some(checkpoint) => Self::resume(session, plan, definition, &checkpoint),
            None => Self::begin(session, plan, definition),
        }
    }

    pub fn begin(session: &Session, plan: &Plan, definition: &Definition) -> Result<Self, TrainerError> {
        let train = &session.spec.train;
        session.situation.enter(Phase::Load);
        let trained = definition.trained()?;
        let seed = train.seed;
        let start = trained.as_ref().map_or(Start::Random { seed }, |files| Start::Tensors { files, seed });
        let model = definition.build(&start, &Setup::of(train, session.hardware.device))?;
        if !model.weights().begun().is_empty() {
            let names = model.weights().begun().join(", ");
            session.warn(format!("the model's file has not: {names}; these parameters begin anew"));
        }
        let load_peak = session.hardware.card_peak();
        session.situation.enter(Phase::Optimizer);
        let optimizer = Optimizer::new(train, model.weights())?;
        Ok(Self {
            load_peak,
            model,
            optimizer,
            loss_scale: LossScale::new(train.precision),
            step: 0,
            evaluated: 0,
            resumed_from: None,
            saved: Cell::new(0),
            plan: plan.clone(),
        })
    }

    fn resume(
        session: &Session,
        plan: &Plan,
        definition: &Definition,
        checkpoint: &Checkpoint,
    ) -> Result<Self, TrainerError> {
        let train = &session.spec.train;
        let start = Start::Tensors { files: &checkpoint.model, seed: train.seed };
        let model = definition.build(&start, &Setup::of(train, session.hardware.device))?;
        let load_peak = session.hardware.card_peak();
        let SavedState { step, evaluated, loss_scale, identity, .. } = &checkpoint.state;
        let (step, evaluated) = (*step, *evaluated);
        let optimizer = if identity.optimizer == train.optimizer.kind {
            Optimizer::load(train, model.weights(), &checkpoint.optimizer)?
        } else {
            session
                .warn(format!("the optimizer is another one from step {step} on: it begins with nothing remembered"));
            Optimizer::new(train, model.weights())?
        };
        let loss_scale =
            if identity.precision == train.precision { *loss_scale } else { LossScale::new(train.precision) };
        Ok(Self {
            load_peak,
            model,
            optimizer,
            loss_scale,
            step,
            evaluated,
            resumed_from: Some(step),
            saved: Cell::new(step),
            plan: plan.clone(),
        })
    }

    /// Saves a checkpoint of the last completed step, if there is one and it is not saved already.
    pub fn save_if_new(&self, session: &Session) -> Result<(), TrainerError> {
        if self.step == self.saved.get() {
            return Ok(());
        }
        let clock = Instant::now();
        let state = SavedState {
            version: SavedState::VERSION,
            step: self.step,
            evaluated: self.evaluated,
            samples: self.plan.samples_after(self.step),
            total_steps: self.plan.steps(),
            batch: session.spec.train.batch(),
            loss_scale: self.loss_scale,
            identity: identity(session, &self.plan),
        };
        let bytes = session.store.save(&state, &self.named_weights(), &self.optimizer.tensors())?;
        self.saved.set(self.step);
        session.emit(EventKind::Checkpoint(event::Checkpoint {
            step: self.step,
            path: format!("checkpoints/{}", checkpoint_name(self.step)),
            bytes,
            ms: milliseconds(clock),
        }));
        Ok(())
    }

    pub fn named_weights(&self) -> Vec<(String, &Tensor)> {
        self.model.weights().iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
    }
}

fn identity(session: &Session, plan: &Plan) -> Identity {
    Identity {
        seed: session.spec.train.seed,
        effective_batch: session.spec.train.effective_batch,
        shuffle: session.spec.data.shuffle,
        precision: session.spec.train.precision,
        optimizer: session.spec.train.optimizer.kind,
        rows: plan.rows(),
    }
}

pub fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
