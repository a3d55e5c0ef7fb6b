//! What training changes: the weights, the optimizer and the count of steps.

use std::cell::Cell;
use std::time::Instant;

use pipe_spec::Phase;
use pipe_spec::event::{self, EventKind};
use pipe_spec::run::checkpoint_name;
use tch::Tensor;

use super::session::Session;
use crate::checkpoint::{Checkpoint, Identity, MetricRecords, SavedState};
use crate::data::SampleOrder;
use crate::error::TrainerError;
use crate::model::{Definition, Model, Setup, Start};
use crate::optim::LossScale;
use crate::optim::Optimizer;
use crate::storage::finite;

pub struct State {
    pub model: Box<dyn Model>,
    pub optimizer: Optimizer,
    /// In fp16 alone.
    pub loss_scale: Option<LossScale>,
    /// The most that the device held while the weights were loaded, where it is known.
    pub load_peak: Option<u64>,
    /// Completed steps.
    pub step: u64,
    /// The last step after which the model was evaluated.
    pub evaluated: u64,
    /// What came of that evaluation.
    pub last_eval: Option<event::Eval>,
    /// What the evaluations so far have shown.
    pub metrics: MetricRecords,
    /// The step of the checkpoint that this attempt resumed from.
    pub resumed_from: Option<u64>,
    /// The last step that this attempt has loaded or saved. A folder of that name alone may be a damaged one.
    saved: Cell<u64>,
    order: SampleOrder,
}

impl State {
    /// Resumes from the newest whole checkpoint, or starts.
    pub fn open(session: &Session, order: &SampleOrder, definition: &Definition) -> Result<Self, TrainerError> {
        let identity = identity(session, order);
        session.progress.enter(Phase::Resume);
        match session.store.newest(&identity, session.spec.maths_changed, |damage| session.warn(damage))? {
            Some(checkpoint) => Self::resume(session, order, definition, &checkpoint),
            None => Self::begin(session, order, definition),
        }
    }

    pub fn begin(session: &Session, order: &SampleOrder, definition: &Definition) -> Result<Self, TrainerError> {
        let train = &session.spec.train;
        session.progress.enter(Phase::Load);
        let trained = definition.trained()?;
        let seed = train.seed;
        let start = trained.as_ref().map_or(Start::Random { seed }, |files| Start::Tensors { files, seed });
        let model = definition.build(&start, &Setup::of(train, session.hardware.device))?;
        if !model.weights().newly_initialised().is_empty() {
            let names = model.weights().newly_initialised().join(", ");
            session.warn(format!("not in the checkpoint, newly initialised: {names}"));
        }
        let load_peak = session.hardware.card_peak();
        session.progress.enter(Phase::Optimizer);
        let optimizer = Optimizer::new(train, model.weights())?;
        Ok(Self {
            load_peak,
            model,
            optimizer,
            loss_scale: LossScale::new(train.precision),
            step: 0,
            evaluated: 0,
            last_eval: None,
            metrics: metric_records(session),
            resumed_from: None,
            saved: Cell::new(0),
            order: order.clone(),
        })
    }

    fn resume(
        session: &Session,
        order: &SampleOrder,
        definition: &Definition,
        checkpoint: &Checkpoint,
    ) -> Result<Self, TrainerError> {
        let train = &session.spec.train;
        let start = Start::Tensors { files: &checkpoint.model, seed: train.seed };
        let model = definition.build(&start, &Setup::of(train, session.hardware.device))?;
        let load_peak = session.hardware.card_peak();
        let SavedState { step, evaluated, last_eval, loss_scale, metrics, identity, .. } = &checkpoint.state;
        let (step, evaluated) = (*step, *evaluated);
        let optimizer = if identity.optimizer == train.optimizer.kind {
            Optimizer::load(train, model.weights(), &checkpoint.optimizer)?
        } else {
            session.warn(format!("the optimizer changes at step {step}: its state is newly initialised"));
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
            last_eval: last_eval.clone(),
            metrics: metric_records(session).resumed_from(metrics),
            resumed_from: Some(step),
            saved: Cell::new(step),
            order: order.clone(),
        })
    }

    /// Saves a checkpoint of the last completed step, if there is one and it is not saved already.
    pub fn save_if_new(&self, session: &Session) -> Result<(), TrainerError> {
        if self.step == self.saved.get() {
            return Ok(());
        }
        let clock = Instant::now();
        let (weights, optimizer) = (self.named_weights(), self.optimizer.tensors());
        self.check_finite(session, &weights)?;
        self.check_finite(session, &optimizer)?;
        let state = SavedState {
            version: SavedState::VERSION,
            step: self.step,
            evaluated: self.evaluated,
            last_eval: self.last_eval.clone(),
            samples: self.order.samples_after(self.step),
            total_steps: self.order.steps(),
            batch: session.spec.train.batch(),
            loss_scale: self.loss_scale,
            metrics: self.metrics.clone(),
            identity: identity(session, &self.order),
        };
        session.sync_events();
        let bytes = session.store.save(&state, &weights, &optimizer)?;
        self.saved.set(self.step);
        session.emit(EventKind::Checkpoint(event::Checkpoint {
            step: self.step,
            path: format!("checkpoints/{}", checkpoint_name(self.step)),
            bytes,
            ms: milliseconds(clock),
        }));
        Ok(())
    }

    /// Refuses to write tensors that are not finite: a checkpoint of them would replace the last good one.
    pub fn check_finite(&self, session: &Session, tensors: &[(String, &Tensor)]) -> Result<(), TrainerError> {
        match finite::first_not_finite(tensors)? {
            None => Ok(()),
            Some(name) => Err(TrainerError::WeightsNotFinite {
                step: self.step,
                tensor: name.to_owned(),
                last: session.store.newest_path(),
            }),
        }
    }

    pub fn named_weights(&self) -> Vec<(String, &Tensor)> {
        self.model.weights().iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
    }
}

fn identity(session: &Session, order: &SampleOrder) -> Identity {
    Identity {
        seed: session.spec.train.seed,
        effective_batch: session.spec.train.effective_batch,
        shuffle: session.spec.data.shuffle,
        precision: session.spec.train.precision,
        optimizer: session.spec.train.optimizer.kind,
        rows: order.rows(),
        class_weights: session.spec.train.class_weights,
    }
}

fn metric_records(session: &Session) -> MetricRecords {
    let early_stop = session.spec.train.early_stop.as_ref().map(|stop| &stop.metric);
    MetricRecords::new(session.spec.save.best.as_ref(), early_stop)
}

pub fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
