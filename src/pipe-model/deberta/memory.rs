//! The memory of the passes of a training step.

use super::{ConvConfig, DebertaConfig, Relative};
use crate::bert::memory::Flow;
use crate::estimate::{Bias, Stage, StepMemory, Work};

/// The layers as `Architecture::adapts` counts them, behind those of BERT's attention.
const POSITION_KEY: usize = 3;
const POSITION_QUERY: usize = 4;
const DENSE: usize = 5;
const PROJECTION: usize = 6;

impl StepMemory for DebertaConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let [width, inner, heads] =
            [self.hidden_size, self.intermediate_size, self.num_attention_heads].map(|size| size as u128);
        // Padding too is hidden pair by pair.
        let bias = if self.relative.is_some() || work.padded { Bias::ByPair } else { Bias::None };
        let flow = Flow { work, width, inner, heads, bias, dense: DENSE };
        let distances = Distances::new(self, flow);
        let mut stages = vec![embeddings(self, &flow), distances.shared(self)];
        for number in 1..=self.num_hidden_layers as u128 {
            let attention = distances.attention(number);
            // Queries and keys are gone when the feed-forward part begins.
            stages.extend(flow.layer(number, attention, flow.unrecorded(flow.hidden()).max(distances.unrecorded())));
            if let (1, Some(conv)) = (number, self.conv) {
                stages.push(convolution(conv, &flow));
            }
        }
        let drops_first = self.pooler_dropout > 0.0 && work.drops;
        let labels = self.labels.count() as u128;
        stages.push(if self.labels_tokens { flow.token_head(labels) } else { flow.head(!drops_first, labels) });
        stages
    }
}

fn embeddings(config: &DebertaConfig, flow: &Flow<'_>) -> Stage {
    let work = flow.work;
    let [words, width] = [config.vocab_size, config.embedding_size].map(|size| size as u128);
    let positions = if config.position_biased_input { config.max_position_embeddings } else { 0 };
    let tables = (words + (positions + config.type_vocab_size) as u128) * width;
    let projection = if width == flow.width { 0 } else { work.trained(PROJECTION, width, flow.width) };
    // The embeddings with padding set to 0.
    let masked = if work.padded { flow.tokens() * flow.width * work.weight() } else { 0 };
    let mut stage = flow.embeddings(words, tables + work.own(projection), masked);
    if width != flow.width {
        let narrow = flow.tokens() * width * work.compute();
        stage.kept += narrow;
        stage.forward += narrow;
        stage.backward += narrow;
    }
    stage
}

/// The parts of scores by distance.
struct Distances<'a> {
    flow: Flow<'a>,
    /// How many there are: by the content of the query, by that of the key.
    parts: u128,
    /// Rows of the embeddings of distances; 0 without any.
    rows: u128,
    shares_projections: bool,
    /// Bytes of the mask of pairs, for all layers.
    mask: u128,
}

impl<'a> Distances<'a> {
    fn new(config: &DebertaConfig, flow: Flow<'a>) -> Self {
        let Work { batch, source, padded, .. } = *flow.work;
        let is_on = config.relative.is_some();
        Self {
            flow,
            parts: u128::from(is_on && config.c2p) + u128::from(is_on && config.p2c),
            rows: 2 * config.relative.map_or(0, Relative::span) as u128,
            shares_projections: config.share_att_key,
            mask: if padded { batch * source * source * flow.work.compute() } else { 0 },
        }
    }

    /// Bytes of the scores of all pairs of tokens.
    fn scores(&self) -> u128 {
        let Work { batch, source, .. } = *self.flow.work;
        batch * self.flow.heads * source * source.next_multiple_of(8) * self.flow.work.compute()
    }

    /// Bytes of the projections of all distances of a row, 2 for each token.
    fn projected(&self) -> u128 {
        2 * self.flow.work.source * self.flow.width * self.flow.work.compute()
    }

    /// Bytes of the embeddings that a layer keeps for its projections: each of them makes its own narrow copy.
    fn kept_embeddings(&self) -> u128 {
        let copies = match self.flow.work.mixed() {
            true => self.parts,
            false => u128::from(self.flow.work.drops).min(self.parts),
        };
        copies * self.rows * self.flow.width * self.flow.work.compute()
    }

    /// Gradients of projections that distances share with content are new sums, while the values' keeps the one piece of memory
    /// in which those of content were: so many numbers more.
    fn sums_of_gradients(&self) -> u128 {
        if self.shares_projections { self.parts * self.flow.work.own(self.flow.width * self.flow.width) } else { 0 }
    }

    /// The tensors that all layers read, and the parameters that belong to no single layer.
    fn shared(&self, config: &DebertaConfig) -> Stage {
        let Flow { work, width, .. } = self.flow;
        let table = self.rows * width * work.weight();
        let normed = if config.norms_relative { table } else { 0 };
        let mut kept = normed;
        if work.adapter.is_none() && (work.checkpointing || !(work.drops || work.mixed())) {
            kept += normed;
        }
        if work.checkpointing || self.parts == 0 {
            kept += self.mask;
        }
        // Passes before this one have left it.
        kept += work.beside(self.sums_of_gradients() * work.weight() * config.num_hidden_layers as u128);
        let parameters = work.own(self.rows * width + if config.norms_relative { 2 * width } else { 0 });
        self.flow.stage("the distances".to_owned(), [kept, kept + 2 * self.mask, kept + 2 * table], parameters)
    }

    fn attention(&self, number: u128) -> Stage {
        let Self { flow, parts, .. } = self;
        if *parts == 0 {
            let held = [flow.attention_kept(), flow.attention_forward(), flow.attention_backward(0)];
            return flow.stage(format!("the scores of layer {number}"), held, flow.attention_parameters());
        }
        let (hidden, scores, work) = (flow.hidden(), self.scores(), flow.work);
        let inside = parts * self.projected() + self.kept_embeddings();
        let kept = flow.attention_kept() + inside + scores;
        // The tensors that all layers read are held until the last has read them, and their dropped copies until all parts are there.
        let table = self.rows * flow.width * work.weight();
        let shared = if work.checkpointing { 0 } else { self.mask + table };
        let dropped = if work.drops && work.mixed() { table } else { 0 };
        // Scores of 2 distances for each token, and their sum.
        let apart = 4 * hidden + inside + (2 * parts + 1) * scores + shared + dropped;
        let forward = apart.max(flow.attention_forward());
        let own = match self.shares_projections {
            true => 0,
            // Those that are not there have none.
            false => {
                let each =
                    [POSITION_KEY, POSITION_QUERY].map(|layer| work.trained_linear(layer, flow.width, flow.width));
                each.iter().sum::<u128>() * parts / 2
            }
        };
        let parameters = flow.attention_parameters() + own + self.sums_of_gradients();
        // The input, queries, keys and values with their gradients, the residual's and that of one part's content; the gradient
        // of scores, and of those of distances. Those of parameters come after them.
        let by_distance = 9 * hidden + inside + self.projected() + 3 * scores;
        let backward = by_distance.saturating_sub(parameters * work.weight());
        let backward = backward.max(flow.attention_backward(inside + 2 * scores));
        flow.stage(format!("the scores of layer {number}"), [kept, forward, backward], parameters)
    }

    /// Bytes that the forward pass of attention holds where nothing is kept.
    fn unrecorded(&self) -> u128 {
        let embeddings = self.rows * self.flow.width * self.flow.work.weight();
        4 * self.flow.hidden() + embeddings + (2 * self.parts + 1) * self.scores()
    }
}

/// Beside the first layer: what went into the activation, what was normed, and a narrow copy of the weights.
fn convolution(config: ConvConfig, flow: &Flow<'_>) -> Stage {
    let [kernel, groups] = [config.kernel_size, config.groups].map(|size| size as u128);
    let weights = flow.width * flow.width / groups * kernel;
    let narrow = flow.work.narrow_copy(weights);
    let hidden = flow.hidden();
    let kept = 2 * hidden + narrow;
    // The output of the layer and of the convolution: masked, dropped, activated, added and normed.
    let held = [kept, kept + 6 * hidden, kept + 4 * hidden];
    let stage = flow.stage("the convolution".to_owned(), held, flow.work.own(weights + 3 * flow.width));
    if flow.work.checkpointing {
        let forward = stage.forward;
        return flow.checkpointed("the convolution".to_owned(), &[stage], forward);
    }
    stage
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::{Value, json};

    use super::*;
    use crate::deberta::parameters;

    fn config(position_types: &str, changed: Value) -> DebertaConfig {
        let mut given = json!({
            "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256,
            "relative_attention": true, "position_buckets": 32, "pos_att_type": position_types, "vocab_size": 1000,
        });
        given.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        DebertaConfig::read(given.as_object().unwrap()).unwrap()
    }

    const WORK: Work = Work {
        precision: Precision::Bf16Mixed,
        optimizer: OptimizerKind::Adamw,
        checkpointing: false,
        batch: 4,
        accum: 1,
        ranks: 1,
        sharded: false,
        source: 128,
        target: 0,
        padded: true,
        drops: true,
        adapter: None,
    };

    fn kept(config: &DebertaConfig, work: &Work) -> u128 {
        config.stages(work).iter().map(|stage| stage.kept).sum()
    }

    #[test]
    fn every_parameter_has_a_gradient() {
        let conv = json!({"conv_kernel_size": 3, "conv_groups": 4, "embedding_size": 32, "type_vocab_size": 2});
        for changed in [json!({}), json!({"norm_rel_ebd": "layer_norm", "position_biased_input": false}), conv] {
            let config = config("p2c|c2p", changed);
            for checkpointing in [false, true] {
                let stages = config.stages(&Work { checkpointing, ..WORK });
                let gradients: u128 = stages.iter().map(|stage| stage.gradients).sum();
                assert_eq!(gradients, 4 * parameters(&config).iter().map(|one| u128::from(one.count())).sum::<u128>());
            }
        }
    }

    #[test]
    fn scores_are_kept_where_distances_are_looked_at_and_layers_are_not_computed_again() {
        let [both, none] = ["p2c|c2p", ""].map(|types| config(types, json!({})));
        let scores = 3 * 4 * 4 * 128 * 128 * 2;
        assert!(kept(&both, &WORK) > kept(&none, &WORK) + scores);
        let again = Work { checkpointing: true, ..WORK };
        assert!(kept(&both, &again) < kept(&both, &WORK) - scores);
    }
}
