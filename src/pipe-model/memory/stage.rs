//! The passes of a step as stages, and the moment in which they hold most.

use super::Work;

/// One stretch of a pass: what it holds going forward and back, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub name: String,
    /// Held from its forward until its backward pass.
    pub kept: u64,
    /// The most that its forward pass holds at once beside what earlier stages keep. What it keeps itself is part of that.
    pub forward: u64,
    /// The most that its backward pass holds at once beside what earlier stages keep: what it kept, what it is given and what
    /// it makes. Gradients of parameters count only where they are held twice or in another precision.
    pub backward: u64,
    /// Gradients of its parameters, which stay after its backward pass.
    pub gradients: u64,
    /// How much of `forward` and `backward` are logits.
    pub logits: u64,
}

/// The moment in which a step holds most, and what it holds then beside weights and optimizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    pub moment: String,
    pub activations: u64,
    pub logits: u64,
    pub gradients: u64,
}

impl Peak {
    pub fn bytes(&self) -> u64 {
        self.activations + self.logits + self.gradients
    }
}

/// Forward through all stages, then back through them. With several passes in a step the later ones find the gradients of
/// all parameters there already.
pub fn peak(stages: &[Stage], all_gradients: u64, work: &Work) -> Peak {
    let held_before = if work.accum > 1 { all_gradients } else { 0 };
    let mut worst = Peak::default();
    let mut kept = 0;
    let mut see = |stage: &Stage, way: &str, activations: u64, gradients: u64| {
        let logits = stage.logits.min(activations);
        let seen =
            Peak { moment: format!("{way} of {}", stage.name), activations: activations - logits, logits, gradients };
        if seen.bytes() > worst.bytes() {
            worst = seen;
        }
    };
    for stage in stages {
        see(stage, "forward", kept + stage.forward, held_before);
        kept += stage.kept;
    }
    let mut made = 0;
    for stage in stages.iter().rev() {
        kept -= stage.kept;
        made += stage.gradients;
        see(stage, "backward", kept + stage.backward, held_before.max(made));
    }
    worst
}
