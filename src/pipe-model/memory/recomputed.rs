//! Blocks of which checkpointing keeps only what goes in.

use super::stage::Stage;
use super::work::Work;

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
