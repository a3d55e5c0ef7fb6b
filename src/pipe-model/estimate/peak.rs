//! The peak of a training: the state of the model, computed exactly, and the passes of a step as stages, of which one holds most. And
//! two stages that several models have.

use pipe_spec::pipeline::OptimizerKind;

use super::kernels::column_sums;
use super::{Work, owners};
use crate::parameter::{Init, Parameter};

/// One stretch of a pass: what it holds going forward and back, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub name: String,
    /// Held from its forward until its backward pass.
    pub kept: u128,
    /// The most that its forward pass holds at once beside what earlier stages keep. What it keeps itself is part of that.
    pub forward: u128,
    /// The most that its backward pass holds at once beside what earlier stages keep: what it kept, what it is given and what
    /// it makes. Gradients of parameters count only where they are held twice or in another precision.
    pub backward: u128,
    /// Gradients of its parameters, which stay after its backward pass.
    pub gradients: u128,
    /// How much of `forward` and `backward` are logits.
    pub logits: u128,
}

/// The moment in which a step holds most, and what it holds then beside weights and optimizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    pub moment: String,
    pub activations: u128,
    pub logits: u128,
    pub gradients: u128,
}

impl Peak {
    pub fn bytes(&self) -> u128 {
        self.activations + self.logits + self.gradients
    }
}

/// Forward through all stages, then back through them. With several passes in a step the later ones find the gradients of
/// all parameters there already; so do all passes of several ranks.
pub fn peak(stages: &[Stage], all_gradients: u128, work: &Work) -> Peak {
    let held_before = if work.holds_gradients() { all_gradients } else { 0 };
    let mut highest = Peak::default();
    // Named once it is known to be the highest.
    let mut moment = None;
    let mut kept = 0;
    let mut see = |index: usize, way: &'static str, activations: u128, gradients: u128| {
        if activations + gradients > highest.bytes() {
            let logits = stages[index].logits.min(activations);
            highest = Peak { moment: String::new(), activations: activations - logits, logits, gradients };
            moment = Some((way, index));
        }
    };
    for (index, stage) in stages.iter().enumerate() {
        see(index, "forward", kept + stage.forward, held_before);
        kept += stage.kept;
    }
    let mut made = 0;
    for (index, stage) in stages.iter().enumerate().rev() {
        kept -= stage.kept;
        made += stage.gradients;
        see(index, "backward", kept + stage.backward, held_before.max(made));
    }
    if let Some((way, index)) = moment {
        highest.moment = format!("{way} of {}", stages[index].name);
    }
    highest
}

/// A block as one stage. `inside` is the block without checkpointing; `hidden` is the size of what goes in, which the inside
/// counts as its own, and of what comes out.
pub fn recomputed(name: String, inside: &[Stage], hidden: u128, work: &Work) -> Stage {
    // Later passes find gradients there already.
    let new = |stage: &Stage| if work.accum > 1 { 0 } else { stage.gradients };
    let mut kept: u128 = inside.iter().map(|stage| stage.kept).sum();
    let (mut made, mut highest, mut own) = (0, 0, 0);
    for stage in inside.iter().rev() {
        kept -= stage.kept;
        made += new(stage);
        highest = highest.max(kept + stage.backward + made + own);
        // The gradient of the output belongs to the caller, so that another is made inside.
        own = hidden;
    }
    // Nothing of a stage stays but what comes out of it.
    let forward = inside.iter().map(|stage| hidden + stage.forward).max();
    Stage {
        name,
        kept: hidden,
        forward: forward.unwrap_or(hidden),
        backward: (hidden + highest).saturating_sub(inside.iter().map(new).sum()),
        gradients: inside.iter().map(|stage| stage.gradients).sum(),
        logits: 0,
    }
}

pub struct WordLoss {
    pub tokens: u128,
    pub width: u128,
    pub vocab: u128,
    /// Rows whose logits exist at a time.
    pub rows: u128,
    pub trains_head: bool,
}

impl WordLoss {
    /// The gradients of hidden states and head, which are there before the backward pass begins, and the logits.
    pub fn stages(&self, work: &Work) -> [Stage; 2] {
        let Self { tokens, width, vocab, rows, trains_head } = *self;
        let compute = work.compute();
        let hidden = tokens * width * compute;
        let [head, gradient] = [compute, work.weight()].map(|size| if trains_head { vocab * width * size } else { 0 });
        let rows = tokens.min(rows);
        // With a kernel logits become their gradient in place. Else as they are computed where that is narrow, in fp32, and their logarithms.
        let bytes = match (vocab % 8 == 0, compute < 4) {
            (true, _) => compute,
            (false, true) => 4 + 4 + compute,
            (false, false) => 4 + 4,
        };
        let logits = rows * vocab * bytes;
        // Both are there already and are multiplied by the gradient of the loss in place; that of the head is then widened, or is what
        // `gradients` says.
        let backward = if work.mixed() { hidden + head } else { hidden };
        let narrow_head = if work.mixed() && trains_head { head } else { 0 };
        [
            Stage {
                name: "the head".to_owned(),
                kept: hidden + head,
                forward: hidden + head,
                backward: backward + work.beside(gradient),
                gradients: gradient,
                logits: 0,
            },
            Stage { name: "the loss".to_owned(), forward: hidden + narrow_head + logits, logits, ..Stage::default() },
        ]
    }
}

/// Bytes that cuBLAS and cuBLASLt keep for their products, on cards that take this much.
pub const WORKSPACE: u64 = 64 << 20;

/// The share of a card that estimates may fill: they are a few percent off, and blocks do not fit into each other without gaps.
const USABLE: f64 = 0.92;

/// Parameters with fewer numbers have moments in fp32 with AdamW of 8 bits.
pub const SMALLEST_OF_8_BITS: u64 = 4096;

/// Numbers of a moment of 8 bits that share a scale.
pub const MOMENT_BLOCK: u64 = 256;

/// Bytes of a capacity that parts may hold, where `checkpointing: auto` fills them.
pub fn usable(capacity: u64) -> u64 {
    (capacity as f64 * USABLE) as u64
}

/// The peak of a training, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// How many numbers are learned.
    pub params: u64,
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    /// Bytes of the passes forward and back, without logits.
    pub activations: u64,
    /// Bytes of the logits, for a model that predicts words.
    pub logits: u64,
    pub workspace: u64,
    /// The stage of the step at that moment.
    pub moment: String,
}

impl Estimate {
    /// All of it together: what torch calls allocated.
    pub fn allocated(&self) -> u64 {
        [self.weights, self.gradients, self.optimizer, self.activations, self.logits, self.workspace]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// The estimate for a model with these parameters whose passes go through these stages.
    pub fn of(parameters: &[Parameter], stages: &[Stage], work: &Work) -> Self {
        let trained = || parameters.iter().filter(|parameter| parameter.trained);
        let params: u128 = trained().map(count).sum();
        let kept: u128 = parameters.iter().filter(|one| !one.trained).map(|one| remembered(one, work)).sum();
        let remembers = |parameter: &Parameter| match work.optimizer {
            OptimizerKind::Adamw => 2 * count(parameter) * work.weight(),
            OptimizerKind::Adamw8bit => 2 * narrow_moment(parameter),
            OptimizerKind::Adafactor => factored(parameter) * 4,
        };
        let optimizer = match work.sharded {
            false => trained().map(remembers).sum(),
            true => largest_share(&trained().collect::<Vec<_>>(), work.ranks, remembers),
        };
        let all_gradients = params * work.weight();
        let mut highest = peak(stages, all_gradients, work);
        let update = update(trained(), work);
        if all_gradients + update > highest.bytes() {
            highest = Peak { moment: "update".to_owned(), activations: update, logits: 0, gradients: all_gradients };
        }
        Self {
            params: bytes(params),
            weights: bytes(params * work.weight() + kept),
            gradients: bytes(highest.gradients),
            optimizer: bytes(optimizer),
            activations: bytes(highest.activations),
            logits: bytes(highest.logits),
            workspace: WORKSPACE,
            moment: highest.moment,
        }
    }
}

/// The optimizer's state on the rank that has most of it.
fn largest_share(trained: &[&Parameter], ranks: u32, remembers: impl Fn(&Parameter) -> u128) -> u128 {
    let sizes: Vec<u64> = trained.iter().map(|parameter| parameter.count()).collect();
    let mut shares = vec![0; ranks.max(1) as usize];
    for (parameter, owner) in trained.iter().zip(owners(&sizes, ranks)) {
        shares[owner as usize] += remembers(parameter);
    }
    shares.into_iter().max().unwrap_or(0)
}

/// More than 64 bits can count is as much as they can: no card has it.
fn bytes(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn count(parameter: &Parameter) -> u128 {
    parameter.count().into()
}

/// Bytes of what is not learned: weights beside an adapter, and what is kept whatever the precision, such as counts.
fn remembered(parameter: &Parameter, work: &Work) -> u128 {
    if let Some(bytes) = work.adapter.and_then(|adapter| adapter.quantized(parameter)) {
        return bytes;
    }
    let each = match parameter.init {
        Init::Count => 8,
        _ if parameter.frozen && parameter.shape.len() > 1 => work.compute(),
        _ if parameter.frozen => work.weight(),
        _ => 4,
    };
    count(parameter) * each
}

/// Bytes of a moment of 8 bits: a code for each number, and a scale for each block of them. A small parameter has it in fp32.
fn narrow_moment(parameter: &Parameter) -> u128 {
    match count(parameter) {
        small if small < u128::from(SMALLEST_OF_8_BITS) => 4 * small,
        count => count + 4 * count.div_ceil(u128::from(MOMENT_BLOCK)),
    }
}

/// How many numbers Adafactor remembers of a parameter.
fn factored(parameter: &Parameter) -> u128 {
    rows_and_columns(parameter).map_or(count(parameter), |[outer, rows, columns]| outer * (rows + columns))
}

/// How many matrices a parameter is, and their size.
fn rows_and_columns(parameter: &Parameter) -> Option<[u128; 3]> {
    let [outer @ .., rows, columns] = parameter.shape.as_slice() else { return None };
    Some([outer.iter().product::<i64>() as u128, *rows as u128, *columns as u128])
}

/// Bytes that an update holds for a moment beside the gradients.
fn update<'a>(parameters: impl Iterator<Item = &'a Parameter>, work: &Work) -> u128 {
    let Some(largest) = parameters.max_by_key(|parameter| parameter.count()) else { return 0 };
    match work.optimizer {
        // In place.
        OptimizerKind::Adamw | OptimizerKind::Adamw8bit => 0,
        OptimizerKind::Adafactor => {
            // The square of the gradient in fp32, and what adds up its rows; in bf16 the gradient in fp32 as well.
            let copies = if work.weight() < 4 { 2 } else { 1 };
            copies * 4 * count(largest)
                + rows_and_columns(largest).map_or(0, |[_, rows, columns]| column_sums(rows, columns))
        }
    }
}

pub trait StepMemory {
    /// The passes of a step, in the order of the forward pass.
    fn stages(&self, work: &Work) -> Vec<Stage>;

    /// A sentence on what deterministic kernels hold beyond the estimate.
    fn uncounted_when_deterministic(&self) -> Option<&'static str> {
        None
    }

    /// The peak of a training. `parameters` are those that it has, with the adapter's, which stay the same however often it is estimated.
    fn estimate(&self, parameters: &[Parameter], work: &Work) -> Estimate {
        Estimate::of(parameters, &self.stages(work), work)
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};

    use super::*;

    #[test]
    fn the_inside_is_held_only_while_its_gradient_is_computed() {
        let mut work = Work {
            precision: Precision::Fp32,
            optimizer: OptimizerKind::Adamw,
            checkpointing: true,
            batch: 1,
            accum: 1,
            ranks: 1,
            sharded: false,
            source: 1,
            target: 1,
            padded: false,
            drops: false,
            adapter: None,
        };
        let stage = |kept, gradients| Stage { kept, forward: kept, backward: kept + 20, gradients, ..Stage::default() };
        let inside = [stage(100, 7), stage(40, 5)];
        let block = recomputed(String::new(), &inside, 10, &work);
        assert_eq!((block.kept, block.forward, block.gradients), (10, 110, 12));
        // The second stage backwards, beside the output and what the first keeps.
        assert_eq!(block.backward + block.gradients, 10 + 100 + 60 + 5);
        work.accum = 2;
        assert_eq!(recomputed(String::new(), &inside, 10, &work).backward, 10 + 100 + 60);
    }
}
