//! What the passes of a training step hold.

use super::layer::Flow;
use super::{BertConfig, Family};
use crate::memory::{Stage, Work};

/// In the order of the forward pass.
pub fn stages(config: &BertConfig, work: &Work) -> Vec<Stage> {
    let [width, inner, heads, words] =
        [config.hidden_size, config.intermediate_size, config.num_attention_heads, config.vocab_size]
            .map(|size| size as u64);
    let flow = Flow { work, width, inner, heads };
    let rows = words + (config.max_position_embeddings + config.type_vocab_size) as u64;
    // RoBERTa looks up a position for each token by itself.
    let positions = match config.family {
        Family::Bert => work.source,
        Family::Roberta | Family::XlmRoberta => flow.tokens(),
    };
    let mut stages = vec![flow.embeddings(words, rows * width, positions * width * work.weight())];
    for number in 1..=config.num_hidden_layers as u64 {
        stages.extend(flow.layer(number, attention(&flow, number), flow.unrecorded(4 * flow.hidden())));
    }
    let drops_first = config.family != Family::Bert && work.drops;
    stages.push(flow.head(!drops_first, config.labels.count() as u64));
    stages
}

fn attention(flow: &Flow<'_>, number: u64) -> Stage {
    let held = [flow.attention_kept(), flow.attention_forward(), flow.attention_backward(0)];
    flow.stage(format!("the scores of layer {number}"), held, flow.attention_parameters())
}
