//! What the passes of a training step hold.

use super::layer::Flow;
use super::{BertConfig, Family};
use crate::memory::{Bias, Stage, Work};

/// In the order of the forward pass.
pub fn stages(config: &BertConfig, work: &Work) -> Vec<Stage> {
    let [width, inner, heads, words] =
        [config.hidden_size, config.intermediate_size, config.num_attention_heads, config.vocab_size]
            .map(|size| size as u128);
    let flow = Flow { work, width, inner, heads, bias: Bias::None };
    let rows = words + (config.max_position_embeddings + config.type_vocab_size) as u128;
    // RoBERTa looks up a position for each token by itself.
    let positions = match config.family {
        Family::Bert => work.source,
        Family::Roberta | Family::XlmRoberta => flow.tokens(),
    };
    let mut stages = vec![flow.embeddings(words, rows * width, positions * width * work.weight())];
    for number in 1..=config.num_hidden_layers as u128 {
        stages.extend(flow.layer(number, attention(&flow, number), flow.unrecorded(4 * flow.hidden())));
    }
    let drops_first = config.family != Family::Bert && work.drops;
    stages.push(flow.head(!drops_first, config.labels.count() as u128));
    stages
}

fn attention(flow: &Flow<'_>, number: u128) -> Stage {
    let held = [flow.attention_kept(), flow.attention_forward(), flow.attention_backward(0)];
    flow.stage(format!("the scores of layer {number}"), held, flow.attention_parameters())
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{Arch, OptimizerKind, Precision};
    use serde_json::json;

    use super::*;
    use crate::bert::parameters;

    const WORK: Work = Work {
        precision: Precision::Bf16,
        optimizer: OptimizerKind::Adamw,
        checkpointing: false,
        batch: 8,
        accum: 1,
        ranks: 1,
        sharded: false,
        source: 128,
        target: 0,
        padded: true,
        drops: true,
    };

    #[test]
    fn every_parameter_has_a_gradient_and_what_is_kept_grows_with_the_batch() {
        for arch in [Arch::Bert, Arch::Roberta] {
            let config = BertConfig::read(arch, json!({"num_labels": 3}).as_object().unwrap()).unwrap();
            let kept = |work: &Work| stages(&config, work).iter().map(|stage| stage.kept).sum::<u128>();
            assert_eq!(kept(&Work { batch: 16, ..WORK }), 2 * kept(&WORK));
            assert!(kept(&Work { checkpointing: true, ..WORK }) < kept(&WORK) / 8);
            for checkpointing in [false, true] {
                let stages = stages(&config, &Work { checkpointing, ..WORK });
                let gradients: u128 = stages.iter().map(|stage| stage.gradients).sum();
                assert_eq!(gradients, 2 * parameters(&config).iter().map(|one| u128::from(one.count())).sum::<u128>());
            }
        }
    }
}
