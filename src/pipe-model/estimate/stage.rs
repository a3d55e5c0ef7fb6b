//! The passes of a step as stages, the moment in which they hold most, and two stages that several models have.

use super::work::Work;

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
