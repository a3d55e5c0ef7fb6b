//! Parts whose kernels are launched together, as CUDA graphs: a card that computes a kernel faster than the host launches the next
//! one would wait for the host. A part whose names and shapes were seen before is recorded, and launched as one from then on.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use pipe_spec::event::GraphUse;
use tch::{Device, Kind, TchError, Tensor};

use super::sums::FlatGradients;
use crate::data::Part;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::model::{Drawn, DropoutKeys, Mode, Model, Weights};
use crate::torch::{self, CardMemory, Graph};

/// So many are kept at most; what a graph itself takes is a few megabytes.
const MOST: usize = 128;

/// Shapes whose number of parts is remembered.
const MOST_SEEN: usize = 4096;

/// A graph is recorded when a shape comes up for this time: recording takes as long as launching its kernels a few times.
const RECORDED_AT: u32 = 2;

/// The same where few shapes come up, for parts that surely fit: recording takes no longer than launching kernel by kernel, for which the card would
/// wait as well.
const RECORDED_AT_ONCE: u32 = 1;

/// The same where the host is ahead of the card anyway.
const RECORDED_ANYWAY: u32 = 4;

/// A host that waits for so much of a step is ahead of the card.
const AHEAD: f64 = 0.1;

/// The shape of a part decides which kernels it launches: names and sizes, and whether blocks are computed again.
type Shape = (Vec<(String, Vec<i64>)>, bool);

/// The graphs of one training.
pub struct Graphs<'a> {
    hardware: &'a Hardware,
    keys: &'static DropoutKeys,
    /// The rows of `keys`.
    rows: Tensor,
    /// The loss of a part is multiplied by this.
    scale: Tensor,
    few_shapes: bool,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    recorded: HashMap<Shape, Recorded>,
    seen: HashMap<Shape, u32>,
    launches: u64,
    recordings: u64,
    /// All parts, their tokens, and those that were computed.
    parts: u64,
    tokens: u64,
    computed: u64,
    /// Whether the gradients that parts add to are someone else's.
    given: bool,
    /// Gradients of a training whose steps have several parts: all parts add to these.
    gradients: Option<FlatGradients>,
    /// Whether parts of this step may be recorded.
    records: bool,
    /// Whether the host waits for the card, and not the card for the host, where kernels are launched one by one.
    waits_for_card: bool,
    /// Whether a part of this step was a graph.
    launched: bool,
    /// Numbers of the largest part that was computed kernel by kernel: what it held is known.
    largest: usize,
    /// Why there are no graphs any more.
    refused: Option<String>,
}

struct Recorded {
    graph: Graph,
    inputs: Part,
    loss: Tensor,
    /// Gradients of steps with one part: the graph leaves them there.
    gradients: Vec<Option<Left>>,
    last_launch: u64,
}

/// A gradient in the memory of the graphs. It counts until the next graph is launched or recorded.
struct Left {
    address: *mut std::ffi::c_void,
    size: Vec<i64>,
    stride: Vec<i64>,
    kind: Kind,
}

impl<'a> Graphs<'a> {
    /// Absent where there is no card, or the model cannot be recorded.
    pub fn new(hardware: &'a Hardware, model: &dyn Model) -> Result<Option<Self>, TrainerError> {
        let device = hardware.device;
        if !device.is_cuda() || !model.is_recordable() {
            return Ok(None);
        }
        let rows = Tensor::f_zeros([2 * DropoutKeys::ROWS as i64], (Kind::Int64, device))?;
        // A training has one, and blocks that are computed again hold on to it.
        let keys = Box::leak(Box::new(DropoutKeys::new(rows.data_ptr() as u64)));
        let scale = Tensor::f_ones([], (Kind::Float, device))?;
        let few_shapes = model.is_shaped_by_tokens();
        Ok(Some(Self { hardware, keys, rows, scale, few_shapes, state: RefCell::default() }))
    }

    /// Makes the gradients of a step with so many parts zero. Those that are `given` are zero already, and all parts add to them.
    pub fn begin_step(&self, weights: &Weights, parts: usize, given: bool) -> Result<(), TrainerError> {
        let mut state = self.state.borrow_mut();
        state.records = state.refused.is_none();
        state.given = given;
        state.launched = false;
        if given {
            return Ok(());
        }
        if state.gradients.is_none() {
            weights.forget_gradients()?;
            if parts > 1 {
                state.records &= self.has_room()?;
                if state.records {
                    // Those of steps with one part leave gradients elsewhere.
                    state.recorded.clear();
                    state.gradients = Some(FlatGradients::of(weights)?);
                }
            }
        }
        if let Some(gradients) = &state.gradients {
            gradients.begin(weights)?;
        }
        Ok(())
    }

    /// The loss of a part, whose gradient times `scale` is added to that of the step; nothing where it is to be computed
    /// otherwise.
    pub fn launch(
        &self,
        model: &dyn Model,
        part: &Part,
        drawn: Drawn,
        scale: f64,
    ) -> Result<Option<Tensor>, TrainerError> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if !state.records {
            return Ok(None);
        }
        let sizes = part.tensors().map(|(name, tensor)| (name.to_owned(), tensor.size())).collect();
        let shape: Shape = (sizes, drawn.recomputes);
        if !state.recorded.contains_key(&shape) {
            if state.seen.len() >= MOST_SEEN {
                state.seen.clear();
            }
            let seen = state.seen.entry(shape.clone()).or_default();
            *seen += 1;
            let size = part.tensors().map(|(_, tensor)| tensor.numel()).sum();
            let recorded_at = match state.waits_for_card {
                true => RECORDED_ANYWAY,
                false if self.few_shapes && size <= state.largest => RECORDED_AT_ONCE,
                false => RECORDED_AT,
            };
            if *seen < recorded_at || !self.has_room()? {
                state.largest = state.largest.max(size);
                return Ok(None);
            }
            let clock = Instant::now();
            match self.record(model, part, drawn.recomputes, state.given || state.gradients.is_some()) {
                Ok(recorded) => {
                    tracing::debug!("recorded a CUDA graph in {:.0?} for parts of {shape:?}", clock.elapsed());
                    state.forget_oldest();
                    state.recordings += 1;
                    state.recorded.insert(shape.clone(), recorded);
                }
                Err(error) => {
                    state.recorded.clear();
                    state.records = false;
                    state.refused = Some(error.to_string());
                    if state.gradients.is_none() && !state.given {
                        model.weights().forget_gradients()?;
                    }
                    torch::empty_cache()?;
                    return Ok(None);
                }
            }
        }
        self.write_numbers(drawn, scale)?;
        state.launches += 1;
        state.launched = true;
        let recorded = state.recorded.get_mut(&shape).expect("it was recorded");
        recorded.last_launch = state.launches;
        recorded.launch(part, model.weights(), self.hardware.device).map(Some)
    }

    /// Forgets the gradients that a graph has left, when everything of a step is queued. At its beginning the card would wait for that.
    pub fn forget_used(&self, weights: &Weights) -> Result<(), TrainerError> {
        let state = self.state.borrow();
        if state.launched && !state.given && state.gradients.is_none() {
            weights.forget_gradients()?;
        }
        Ok(())
    }

    /// Counts a part with so many tokens, of which more may be computed.
    pub fn count(&self, tokens: u64, computed: u64) {
        let mut state = self.state.borrow_mut();
        (state.parts, state.tokens, state.computed) =
            (state.parts + 1, state.tokens + tokens, state.computed + computed);
    }

    /// The counts of the parts so far. Absent where no graph was recorded.
    pub fn use_so_far(&self) -> Option<GraphUse> {
        let State { recordings: recorded, launches: launched, parts, tokens, computed, .. } = *self.state.borrow();
        let rounding = if computed > 0 { 1.0 - tokens as f64 / computed as f64 } else { 0.0 };
        (recorded > 0).then_some(GraphUse { recorded, launched, parts, rounding })
    }

    /// Takes in how much of a step the host waited for the card at its end. With graphs it always does, which says nothing of other parts.
    pub fn step_ended(&self, waited: f64) {
        let mut state = self.state.borrow_mut();
        if !state.launched {
            state.waits_for_card = waited > AHEAD;
        }
    }

    /// Why parts are launched kernel by kernel from now on, said once.
    pub fn take_refusal(&self) -> Option<String> {
        let mut state = self.state.borrow_mut();
        let refused = state.refused.as_mut().filter(|why| !why.is_empty())?;
        Some(std::mem::take(refused))
    }

    /// Does without graphs from now on, and gives all of their memory back, where there is any.
    pub fn give_up(&self, weights: &Weights, why: &str) -> Result<bool, TrainerError> {
        let mut state = self.state.borrow_mut();
        if state.recorded.is_empty() && state.gradients.is_none() {
            return Ok(false);
        }
        *state = State { refused: Some(why.to_owned()), ..State::default() };
        weights.forget_gradients()?;
        torch::empty_cache()?;
        Ok(true)
    }

    /// Gives the memory of all graphs back, if there are any. They are recorded again when they are needed.
    pub fn release(&self) -> Result<bool, TrainerError> {
        let mut state = self.state.borrow_mut();
        if state.recorded.is_empty() {
            return Ok(false);
        }
        state.recorded.clear();
        torch::empty_cache()?;
        Ok(true)
    }

    /// Graphs keep their memory to themselves: what a part holds must fit twice.
    fn has_room(&self) -> Result<bool, TrainerError> {
        let memory = self.hardware.card_memory()?;
        let needed = memory.allocated + 2 * of_a_part(&memory);
        Ok(self.hardware.available()?.is_none_or(|available| needed <= available))
    }

    fn record(&self, model: &dyn Model, part: &Part, recomputes: bool, adds: bool) -> Result<Recorded, TrainerError> {
        let inputs = part.copy()?;
        let mode = Mode::Train(Drawn { keys: Some(self.keys), recomputes, ..Drawn::new(0, 0) });
        // Blocks that are unused but not free for a graph may be in the way.
        let memory = self.hardware.card_memory()?;
        if self.hardware.available()?.is_some_and(|available| memory.reserved + of_a_part(&memory) > available) {
            torch::empty_cache()?;
        }
        let (graph, loss) = Graph::record(|| -> Result<Tensor, TrainerError> {
            let loss = model.loss_sum(&inputs, mode)?;
            loss.f_mul(&self.scale)?.f_backward()?;
            Ok(loss.f_detach()?)
        })?;
        if self.keys.are_too_many() {
            let message = format!("the model drops something in more than {} places", DropoutKeys::ROWS);
            return Err(TchError::Torch(message).into());
        }
        let mut gradients = Vec::new();
        if !adds {
            for (_, parameter) in model.weights().trained() {
                let gradient = parameter.f_grad()?;
                gradients.push(gradient.defined().then(|| Left::of(&gradient)));
            }
            model.weights().forget_gradients()?;
        }
        Ok(Recorded { graph, inputs, loss, gradients, last_launch: 0 })
    }

    /// Writes the numbers that change from launch to launch, where the kernels read them.
    fn write_numbers(&self, drawn: Drawn, scale: f64) -> Result<(), TrainerError> {
        let _ = self.scale.shallow_clone().f_fill_(scale)?;
        let rows = self.keys.rows(drawn);
        if !rows.is_empty() {
            let there = torch::to_device(&Tensor::f_from_slice(&rows)?, self.hardware.device)?;
            self.rows.f_narrow(0, 0, rows.len() as i64)?.f_copy_(&there)?;
        }
        Ok(())
    }
}

/// The most that a part held so far, and something for gaps between blocks.
fn of_a_part(memory: &CardMemory) -> u64 {
    let part = memory.peak_allocated.saturating_sub(memory.allocated);
    part + part / 16
}

impl State {
    /// Makes room for one more.
    fn forget_oldest(&mut self) {
        if self.recorded.len() >= MOST {
            let oldest = self.recorded.iter().min_by_key(|(_, recorded)| recorded.last_launch);
            if let Some(shape) = oldest.map(|(shape, _)| shape.clone()) {
                self.recorded.remove(&shape);
            }
        }
    }
}

impl Recorded {
    fn launch(&self, part: &Part, weights: &Weights, device: Device) -> Result<Tensor, TrainerError> {
        for (name, input) in self.inputs.tensors() {
            input.shallow_clone().f_copy_(part.get(name)?)?;
        }
        self.graph.replay()?;
        for ((_, parameter), left) in weights.trained().zip(&self.gradients) {
            if let Some(left) = left {
                torch::set_gradient(parameter, Some(&left.tensor(device)?))?;
            }
        }
        Ok(self.loss.f_detach_copy()?)
    }
}

impl Left {
    fn of(gradient: &Tensor) -> Self {
        Self { address: gradient.data_ptr(), size: gradient.size(), stride: gradient.stride(), kind: gradient.kind() }
    }

    fn tensor(&self, device: Device) -> Result<Tensor, TchError> {
        // SAFETY: the memory is that of the graph, which lives as long as `Recorded` does. What is there is read before anything else
        // is launched in that memory: gradients are used up within their step.
        unsafe { Tensor::f_from_blob(self.address.cast(), &self.size, &self.stride, self.kind, device) }
    }
}
