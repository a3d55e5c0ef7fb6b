//! The passes of a step as stages, and the moment in which they hold most.

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
