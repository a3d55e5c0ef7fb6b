//! What the passes of the attention hold.

use super::sizes::{FLOAT, Sizes};
use crate::memory::{Stage, column_sums, has_attention_kernel, recomputed};

/// Heads beyond this are not for flash attention.
const FLASH_HEAD: u128 = 256;
/// Queries and keys that a kernel takes at once.
const QUERIES: u128 = 128;
const KEYS: u128 = 64;

pub fn stages(sizes: &Sizes) -> Vec<Stage> {
    let inside = [projection(sizes), attention(sizes)];
    match sizes.work.checkpointing {
        true => vec![recomputed("attention".to_owned(), &inside, sizes.state(sizes.width), sizes.work)],
        false => inside.into(),
    }
}

/// To queries, keys and values.
fn projection(sizes: &Sizes) -> Stage {
    let (state, weights) = (sizes.state(sizes.width), 3 * sizes.width * sizes.width);
    // Where weights are as narrow as products, a copy of what came in with samples before times.
    let copy = if sizes.work.mixed() { 0 } else { state };
    // Gradients of what comes out, of what goes in and of what goes around it, while those of the biases are added up.
    let multiplying = 5 * state + column_sums(sizes.times, 3 * sizes.width);
    Stage {
        name: "queries, keys and values".to_owned(),
        kept: 3 * state + copy,
        forward: 4 * state + sizes.narrowed(weights),
        // Gradients of the three one by one and side by side, beside that of what goes around them.
        backward: (7 * state + copy).max(multiplying + sizes.new_gradients(weights)),
        gradients: (weights + 3 * sizes.width) * sizes.work.weight(),
        logits: 0,
    }
}

/// With the product and the norm behind it.
fn attention(sizes: &Sizes) -> Stage {
    let (state, weights) = (sizes.state(sizes.width), sizes.width * sizes.width);
    let sums = sizes.times * sizes.heads * FLOAT;
    // What was attended to, and what was normed.
    let kept = 2 * state + sums;
    Stage {
        name: "attention".to_owned(),
        kept,
        forward: kept + 3 * state,
        // What was attended to, its gradient and that of what goes around it, and those of queries, keys and values.
        backward: 6 * state + sums + accumulated(sizes) + sizes.new_gradients(weights),
        gradients: (weights + 3 * sizes.width) * sizes.work.weight(),
        logits: 0,
    }
}

/// Gradients that the kernels add up in fp32, in whole blocks.
fn accumulated(sizes: &Sizes) -> u128 {
    let padded = |block: u128| sizes.work.batch * sizes.length.next_multiple_of(block) * sizes.width * FLOAT;
    let (half, flash) = (sizes.work.compute() < FLOAT, sizes.width / sizes.heads <= FLASH_HEAD);
    match half {
        // Two numbers for each row.
        true if has_attention_kernel((sizes.width / sizes.heads) as i64) => 2 * sizes.times * sizes.heads * FLOAT,
        true if flash => padded(KEYS),
        // Memory-efficient attention: of queries, and where its result is narrower of keys and values too.
        true => padded(QUERIES) + 2 * padded(KEYS),
        false => padded(QUERIES),
    }
}
