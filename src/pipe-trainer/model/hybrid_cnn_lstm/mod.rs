//! HybridCNNLSTM: classes of windows of a time series, by convolutions with norms, an LSTM, attention with a norm, and a head.

use std::sync::Arc;

use pipe_model::hybrid_cnn_lstm::{HybridConfig, NormKind, lstm_suffixes, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::attention::{Scores, attend};
use super::batch_norm::{BatchNorm, DEPENDS_ON_BATCH};
use super::classification;
use super::interface::Model;
use super::layers::{LayerNorm, Linear, merge_heads, split_heads};
use super::pass::{Block, Mode, Pass, Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::Part;
use crate::error::TrainerError;
use crate::ranks::SharedSum;

pub struct HybridCnnLstm {
    config: HybridConfig,
    weights: Weights,
    dropout: f64,
    setup: Setup,
    stages: Vec<Stage>,
    lstm: Arc<Lstm>,
    attention: Arc<Attention>,
    head: Head,
}

impl HybridCnnLstm {
    pub fn build(config: HybridConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.dropout),
            setup: *setup,
            stages: (0..config.conv_channels.len()).map(|index| Stage::new(&config, &weights, index)).collect(),
            lstm: Arc::new(Lstm::new(&config, &weights)),
            attention: Arc::new(Attention::new(&config, &weights)),
            head: Head::new(&weights),
            config,
            weights,
        })
    }

    /// [batch, time, features]
    fn input<'a>(&self, part: &'a Part) -> Result<&'a Tensor, TrainerError> {
        let input = part.get("x")?;
        let wanted = self.config.input_features;
        match input.size().as_slice() {
            [_, _, features] if *features == wanted => Ok(input),
            other => {
                let message = format!("found {wanted}; the data is of the shape {other:?}: samples, time, features");
                Err(TrainerError::config("input_features", message))
            }
        }
    }
}

impl Model for HybridCnnLstm {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, classes]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = Pass::new(mode, self.dropout, &self.setup);
        let training = matches!(mode, Mode::Train(_));
        let mut hidden = self.input(part)?.f_transpose(1, 2)?;
        if pass.checkpointing && !matches!(self.stages.first(), Some(Stage::Batch(..))) {
            // The input of a recomputed block must require a gradient; the data does not by itself.
            hidden = hidden.f_detach()?.f_set_requires_grad(true)?;
        }
        for (number, stage) in self.stages.iter().enumerate() {
            hidden = stage.forward(&hidden, number as u64, training, pass)?;
        }
        let next = self.stages.len() as u64;
        let hidden = pass.block(&self.lstm, next, &[&hidden.f_transpose(1, 2)?])?;
        let hidden = pass.block(&self.attention, next + 1, &[&hidden])?;
        let pooled = hidden.f_mean_dim(1, false, Kind::Float)?;
        self.head.forward(&pooled, pass.for_block(next + 2))
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        classification::part_loss_sum(&self.logits(part, mode)?, part)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn depends_on_batch(&self) -> Option<&'static str> {
        (self.config.norm == NormKind::Batch).then_some(DEPENDS_ON_BATCH)
    }

    fn share_statistics(&self, sum: &'static SharedSum) {
        self.stages.iter().for_each(|stage| stage.share_statistics(sum));
    }

    fn step_ended(&self, done: bool) -> Result<(), TrainerError> {
        self.stages.iter().try_for_each(|stage| stage.step_ended(done))
    }
}

/// The epsilon of torch's norms.
const EPSILON: f64 = 1e-5;

/// A convolution, a norm and gelu. What batch norm remembers must be seen once, so only the other kind is recomputed.
pub enum Stage {
    Layer(Arc<LayerStage>),
    Batch(Conv, BatchNorm),
}

impl Stage {
    pub fn new(config: &HybridConfig, weights: &Weights, index: usize) -> Self {
        let conv = Conv::new(config, weights, index);
        let path = format!("norm.{index}");
        match config.norm {
            NormKind::Layer => {
                Self::Layer(Arc::new(LayerStage { conv, norm: LayerNorm::new(weights, &path, EPSILON) }))
            }
            NormKind::Batch => Self::Batch(conv, BatchNorm::new(weights, &path)),
        }
    }

    /// [batch, channels, time]
    pub fn forward(&self, input: &Tensor, number: u64, training: bool, pass: Pass) -> Result<Tensor, TrainerError> {
        match self {
            Self::Layer(stage) => pass.block(stage, number, &[input]),
            Self::Batch(conv, norm) => Ok(norm.forward(&conv.forward(input, pass)?, training)?.f_gelu("none")?),
        }
    }

    pub fn share_statistics(&self, sum: &'static SharedSum) {
        if let Self::Batch(_, norm) = self {
            norm.share_statistics(sum);
        }
    }

    pub fn step_ended(&self, done: bool) -> Result<(), TrainerError> {
        match self {
            Self::Layer(_) => Ok(()),
            Self::Batch(_, norm) => norm.step_ended(done),
        }
    }
}

pub struct Conv {
    weight: SharedTensor,
    bias: SharedTensor,
    padding: i64,
}

impl Conv {
    fn new(config: &HybridConfig, weights: &Weights, index: usize) -> Self {
        let of = |name: &str| weights.get(&format!("conv.{index}.{name}"));
        Self { weight: of("weight"), bias: of("bias"), padding: config.kernel_size / 2 }
    }

    fn forward(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let (weight, bias) = (self.weight.f_to_kind(pass.compute)?, self.bias.f_to_kind(pass.compute)?);
        Ok(input.f_to_kind(pass.compute)?.f_conv1d(&weight, Some(&bias), [1], [self.padding], [1], 1)?)
    }
}

pub struct LayerStage {
    conv: Conv,
    norm: LayerNorm,
}

impl Block for LayerStage {
    /// The norm is one over all channels and times of a sample: GroupNorm with one group.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let hidden = self.conv.forward(inputs[0], pass)?;
        let LayerNorm { weight, bias, epsilon } = &self.norm;
        let (weight, bias) = (weight.f_to_kind(hidden.kind())?, bias.f_to_kind(hidden.kind())?);
        Ok(hidden.f_group_norm(1, Some(&weight), Some(&bias), *epsilon, true)?.f_gelu("none")?)
    }
}

pub struct Attention {
    qkv: Linear,
    out: Linear,
    norm: LayerNorm,
    heads: i64,
}

impl Attention {
    pub fn new(config: &HybridConfig, weights: &Weights) -> Self {
        Self {
            qkv: Linear::new(weights, "attn.qkv"),
            out: Linear::new(weights, "attn.out"),
            norm: LayerNorm::new(weights, "attn_norm", EPSILON),
            heads: config.attention_heads,
        }
    }
}

impl Block for Attention {
    /// [batch, time, width]
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        // Nothing is dropped but in the head.
        let pass = pass.dropping(0.0);
        let qkv = self.qkv.forward(inputs[0], pass)?.f_chunk(3, -1)?;
        let heads = |index: usize| split_heads(&qkv[index], self.heads);
        let attended = attend([&heads(0)?, &heads(1)?, &heads(2)?], Scores::default(), pass)?;
        self.norm.after(&self.out.product(&merge_heads(&attended)?, pass)?, inputs[0], pass)
    }
}

pub struct Head {
    first: Linear,
    second: Linear,
}

impl Head {
    pub fn new(weights: &Weights) -> Self {
        Self { first: Linear::new(weights, "head.0"), second: Linear::new(weights, "head.1") }
    }

    /// [batch, width] to [batch, classes]
    pub fn forward(&self, pooled: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let hidden = self.first.forward(pooled, pass)?.f_gelu("none")?;
        self.second.forward(&pass.drop_out(&hidden)?, pass)
    }
}

/// The LSTM, as torch computes it: fused on a card, time step by time step on the CPU.
pub struct Lstm {
    /// For each layer and direction weight_ih, weight_hh, bias_ih and bias_hh.
    parameters: Vec<SharedTensor>,
    hidden: i64,
    layers: i64,
    bidirectional: bool,
}

impl Lstm {
    pub fn new(config: &HybridConfig, weights: &Weights) -> Self {
        let names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
        let of = |suffix: &String| names.map(|name| weights.get(&format!("lstm.{name}_{suffix}")));
        Self {
            parameters: lstm_suffixes(config).iter().flat_map(of).collect(),
            hidden: config.lstm_hidden,
            layers: config.lstm_layers,
            bidirectional: config.bidirectional,
        }
    }
}

impl Block for Lstm {
    /// [batch, time, channels] to [batch, time, hidden * directions]
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let input = inputs[0].f_to_kind(pass.compute)?;
        let narrow: Vec<Tensor> =
            self.parameters.iter().map(|parameter| parameter.f_to_kind(pass.compute)).collect::<Result<_, _>>()?;
        let parameters = if input.device().is_cuda() { one_behind_the_other(&narrow)? } else { narrow };
        let directions = if self.bidirectional { 2 } else { 1 };
        let begin = [self.layers * directions, input.size()[0], self.hidden];
        let zero = Tensor::f_zeros(begin, (pass.compute, input.device()))?;
        // Always as in training: cuDNN could not compute a gradient otherwise, and nothing is dropped between layers.
        let (output, _, _) = input.f_lstm(
            &[zero.shallow_clone(), zero],
            &parameters,
            true,
            self.layers,
            0.0,
            true,
            self.bidirectional,
            true,
        )?;
        Ok(output)
    }
}

/// The same parameters as views of one row, all matrices before all biases. This is where cuDNN looks for them: otherwise it
/// copies them together itself at every call, beside those it is given, and complains.
fn one_behind_the_other(parameters: &[Tensor]) -> Result<Vec<Tensor>, TrainerError> {
    let is_matrix = |index: &usize| parameters[*index].dim() == 2;
    let (matrices, biases): (Vec<usize>, Vec<usize>) = (0..parameters.len()).partition(is_matrix);
    let order: Vec<usize> = matrices.into_iter().chain(biases).collect();
    let flat = |index: &usize| parameters[*index].f_reshape([-1]);
    let row = Tensor::f_cat(&order.iter().map(flat).collect::<Result<Vec<_>, _>>()?, 0)?;
    let sizes: Vec<i64> = order.iter().map(|index| parameters[*index].numel() as i64).collect();
    // One split: its gradient is one concatenation, that of many slices as many rows of zeros.
    let mut views: Vec<(usize, Tensor)> = order.into_iter().zip(row.f_split_with_sizes(sizes, 0)?).collect();
    views.sort_unstable_by_key(|(index, _)| *index);
    let shaped = |(index, view): (usize, Tensor)| view.f_view(parameters[index].size().as_slice());
    Ok(views.into_iter().map(shaped).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod lstm_tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn views_of_a_row_are_the_parameters_and_have_their_gradients() {
        let parameter = |shape: &[i64]| Tensor::rand(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let parameters: Vec<Tensor> =
            (0..2).flat_map(|_| [parameter(&[8, 3]), parameter(&[8, 2]), parameter(&[8]), parameter(&[8])]).collect();
        let views = one_behind_the_other(&parameters).unwrap();
        let offset = |tensor: &Tensor| tensor.data_ptr() as usize - views[0].data_ptr() as usize;
        assert_eq!(views.iter().map(offset).collect::<Vec<_>>(), [0, 96, 320, 352, 160, 256, 384, 416]);
        let mut sum = Tensor::zeros([1], (Kind::Float, Device::Cpu));
        for (number, (view, parameter)) in views.iter().zip(&parameters).enumerate() {
            assert_eq!(view, parameter);
            sum += view.sum(Kind::Float) * number as f64;
        }
        sum.backward();
        for (number, parameter) in parameters.iter().enumerate() {
            assert_eq!(parameter.grad(), parameter.full_like(number as f64).detach());
        }
    }
}
