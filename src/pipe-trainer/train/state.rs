//! The state that training changes: the weights, the optimizer and the count of steps. Several ranks must have the same weights, to the
//! bit: each has computed every update by itself.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Instant;

use pipe_model::adapter::Lora;
use pipe_spec::Phase;
use pipe_spec::event::{self, EventKind};
use pipe_spec::run::checkpoint_name;
use tch::{Device, Tensor};

use super::session::Session;
use super::sums::{self, FlatGradients, OptimizerShares};
use crate::checkpoint::{Checkpoint, Identity, MetricRecords, SavedState};
use crate::data::SampleOrder;
use crate::error::TrainerError;
use crate::model::{Definition, Model, Setup, Start};
use crate::optim::{LossScale, Optimizer, Share};
use crate::ranks::SharedSum;
use crate::storage::tensor_files;

/// Bytes of a hash in each of the numbers that are compared: a double holds them exactly.
const HASH_BYTES_EACH: usize = 5;

pub struct State {
    pub model: Box<dyn Model>,
    /// The adapter that is trained in place of the model's weights.
    pub adapter: Option<&'static Lora>,
    /// The parameters that each of several ranks updates.
    pub share: Share,
    pub optimizer: Optimizer,
    /// Where several ranks add theirs up.
    pub gradients: Option<FlatGradients>,
    /// The sum inside a model that compares the samples of all ranks.
    pub shared_sum: Option<&'static SharedSum>,
    /// In fp16 alone.
    pub loss_scale: Option<LossScale>,
    /// The most that the device held while the weights were loaded, where it is known.
    pub load_peak: Option<u64>,
    /// Completed steps.
    pub step: u64,
    /// The last step after which the model was evaluated.
    pub evaluated: u64,
    /// The event of that evaluation.
    pub last_eval: Option<event::Eval>,
    /// The best and the latest metrics of the evaluations so far.
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
            Some(checkpoint) => Self::resume(session, order, definition, checkpoint),
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
        let share = Share::of(train, session.spec.rank, model.weights());
        let optimizer = Optimizer::new(train, model.weights(), &share)?;
        Ok(Self {
            load_peak,
            gradients: gradients(session, model.as_ref())?,
            shared_sum: shared_sum(session, model.as_ref()),
            model,
            adapter: definition.adapter(),
            share,
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
        checkpoint: Checkpoint,
    ) -> Result<Self, TrainerError> {
        let train = &session.spec.train;
        let files = definition.with_frozen(checkpoint.model)?;
        let start = Start::Tensors { files: &files, seed: train.seed };
        let model = definition.build(&start, &Setup::of(train, session.hardware.device))?;
        let load_peak = session.hardware.card_peak();
        let SavedState { step, evaluated, last_eval, loss_scale, metrics, identity, .. } = &checkpoint.state;
        let (step, evaluated) = (*step, *evaluated);
        let share = Share::of(train, session.spec.rank, model.weights());
        let optimizer = if identity.optimizer == train.optimizer.kind {
            Optimizer::load(train, model.weights(), &share, &checkpoint.optimizer)?
        } else {
            session.warn(format!("the optimizer changes at step {step}: its state is newly initialised"));
            Optimizer::new(train, model.weights(), &share)?
        };
        let loss_scale =
            if identity.precision == train.precision { *loss_scale } else { LossScale::new(train.precision) };
        Ok(Self {
            load_peak,
            gradients: gradients(session, model.as_ref())?,
            shared_sum: shared_sum(session, model.as_ref()),
            model,
            adapter: definition.adapter(),
            share,
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

    /// Saves a checkpoint of the last completed step, if there is one and it is not saved already. Of several ranks all come here
    /// together, and have the same weights.
    pub fn save_if_new(&self, session: &Session) -> Result<(), TrainerError> {
        if self.step == self.saved.get() {
            return Ok(());
        }
        self.check_weights(session)?;
        let shares = sums::hand_in(session, &self.share, &self.optimizer, self.step)?;
        session.peers.barrier()?;
        self.save(session, shares)
    }

    /// The same when this rank ends, whatever the others do.
    pub fn save_at_the_end(&self, session: &Session) -> Result<(), TrainerError> {
        if self.step == self.saved.get() {
            return Ok(());
        }
        let shares = sums::hand_in(session, &self.share, &self.optimizer, self.step)?;
        if session.peers.leads() && !shares.await_all(&session.peers) {
            let message =
                format!("step {} is not saved: not all ranks could hand in their share of the optimizer", self.step);
            session.warn(message);
            return Ok(());
        }
        self.save(session, shares)
    }

    fn save(&self, session: &Session, shares: OptimizerShares) -> Result<(), TrainerError> {
        self.saved.set(self.step);
        if !session.peers.leads() {
            return Ok(());
        }
        let clock = Instant::now();
        let shares = shares.read()?;
        let others = &shares.tensors;
        let (weights, optimizer) = (self.named_weights(), self.whole_optimizer(others));
        self.check_finite(session, &weights)?;
        // Those of other ranks are not on the card.
        self.check_finite(session, &self.optimizer.tensors())?;
        self.check_finite(session, &others.iter().map(|(name, tensor)| (name.clone(), tensor)).collect::<Vec<_>>())?;
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
        session.emit(EventKind::Checkpoint(event::Checkpoint {
            step: self.step,
            path: format!("checkpoints/{}", checkpoint_name(self.step)),
            bytes,
            ms: milliseconds(clock),
        }));
        Ok(())
    }

    /// The optimizer's tensors in the order of the parameters, whichever rank has them.
    fn whole_optimizer<'a>(&'a self, others: &'a [(String, Tensor)]) -> Vec<(String, &'a Tensor)> {
        let mut all = self.optimizer.tensors();
        all.extend(others.iter().map(|(name, tensor)| (name.clone(), tensor)));
        if !others.is_empty() {
            let order: HashMap<&str, usize> =
                self.model.weights().trained().enumerate().map(|(index, (name, _))| (name, index)).collect();
            let position = |name: &str| {
                let (kind, parameter) = name.split_once('.').unwrap_or_default();
                (order.get(parameter).copied(), Optimizer::KINDS.iter().position(|one| *one == kind))
            };
            all.sort_by_key(|(name, _)| position(name));
        }
        all
    }

    /// Whether all ranks have the same weights.
    fn check_weights(&self, session: &Session) -> Result<(), TrainerError> {
        if session.peers.is_nobody() {
            return Ok(());
        }
        let all = session.peers.gather(&self.weights_hash()?)?;
        self.check_equal(session, &all, "weights")
    }

    /// Whether all ranks go on from the same step: each has looked for a whole checkpoint by itself.
    pub fn check_step(&self, session: &Session) -> Result<(), TrainerError> {
        let all = session.peers.gather(&[self.step as f64])?;
        self.check_equal(session, &all, "checkpoints")
    }

    fn check_equal(&self, session: &Session, all: &[Vec<f64>], what: &'static str) -> Result<(), TrainerError> {
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(rank) => Err(self.ranks_differ(session, rank, what)),
        }
    }

    fn weights_hash(&self) -> Result<Vec<f64>, TrainerError> {
        let mut hasher = blake3::Hasher::new();
        for (_, weight) in self.model.weights().stored() {
            let host = weight.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
            let bytes = host.numel() * host.kind().elt_size_in_bytes();
            // SAFETY: a contiguous tensor on the CPU is so many bytes in a row, and `host` outlives the slice.
            hasher.update(unsafe { std::slice::from_raw_parts(host.data_ptr().cast::<u8>(), bytes) });
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte)) as f64;
        Ok(hasher.finalize().as_bytes().chunks(HASH_BYTES_EACH).map(number).collect())
    }

    /// The error that a rank has something else than the first.
    pub fn ranks_differ(&self, session: &Session, rank: usize, what: &'static str) -> TrainerError {
        TrainerError::RanksDiffer { step: self.step, rank: rank as u32, what, last: session.store.newest_path() }
    }

    /// Refuses to write tensors that are not finite: a checkpoint of them would replace the last good one.
    pub fn check_finite(&self, session: &Session, tensors: &[(String, &Tensor)]) -> Result<(), TrainerError> {
        match tensor_files::first_not_finite(tensors)? {
            None => Ok(()),
            Some(name) => Err(TrainerError::WeightsNotFinite {
                step: self.step,
                tensor: name.to_owned(),
                last: session.store.newest_path(),
            }),
        }
    }

    /// The weights that a checkpoint holds.
    pub fn named_weights(&self) -> Vec<(String, &Tensor)> {
        self.model.weights().stored().collect()
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
        preference: session.spec.train.preference,
    }
}

/// Where there are several ranks, also where one of them measures alone what it will hold.
fn gradients(session: &Session, model: &dyn Model) -> Result<Option<FlatGradients>, TrainerError> {
    let needed = session.spec.rank.count > 1 || !session.peers.is_nobody();
    needed.then(|| FlatGradients::of(model.weights())).transpose()
}

fn shared_sum(session: &Session, model: &dyn Model) -> Option<&'static SharedSum> {
    let shared = model.depends_on_batch().and_then(|_| session.peers.shared_sum(session.hardware.device))?;
    model.share_statistics(shared);
    Some(shared)
}

fn metric_records(session: &Session) -> MetricRecords {
    let early_stop = session.spec.train.early_stop.as_ref().map(|stop| &stop.metric);
    MetricRecords::new(session.spec.save.best.as_ref(), early_stop)
}

pub fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
