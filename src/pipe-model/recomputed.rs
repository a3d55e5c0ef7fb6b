//! Blocks of which checkpointing keeps only what goes in.

use crate::memory::Stage;

/// A block as one stage that keeps `input`. `inside` is the block without checkpointing; forward, a stage of it holds its
/// own input as well. `beside` is held while its gradient is computed and kept by no stage; `output` is the size of what
/// comes out.
pub fn recomputed(name: String, inside: &[Stage], input: u64, beside: u64, output: u64) -> Stage {
    let gradients = inside.iter().map(|stage| stage.gradients).sum();
    // Nothing of a stage stays but what comes out of it.
    let forward =
        inside.iter().skip(1).map(|stage| input + stage.forward).chain(inside.first().map(|stage| stage.forward));
    let mut kept: u64 = inside.iter().map(|stage| stage.kept).sum();
    let (mut made, mut worst, mut given) = (0, 0, 0);
    for stage in inside.iter().rev() {
        kept -= stage.kept;
        made += stage.gradients;
        worst = worst.max(kept + stage.backward + made + given);
        // The gradient of the output belongs to the caller, so that of the input is another tensor.
        given = output;
    }
    let backward = (beside + output + worst).saturating_sub(gradients);
    Stage { name, kept: input, forward: forward.max().unwrap_or(0), backward, gradients, logits: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inside_is_held_only_while_its_gradient_is_computed() {
        let stage =
            |kept, backward, gradients| Stage { kept, forward: kept + 3, backward, gradients, ..Stage::default() };
        let block = recomputed(String::new(), &[stage(100, 150, 7), stage(40, 60, 5)], 10, 0, 10);
        assert_eq!((block.kept, block.forward, block.gradients), (10, 103, 12));
        // The first stage backwards: what it holds, the output and its gradient.
        assert_eq!(block.backward + block.gradients, 150 + 12 + 10 + 10);
    }
}
