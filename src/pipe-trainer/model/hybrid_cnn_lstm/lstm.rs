//! The LSTM, as torch computes it: fused on a card, time step by time step on the CPU.

use pipe_model::hybrid_cnn_lstm::HybridConfig;
use pipe_model::hybrid_cnn_lstm::lstm_suffixes;
use tch::Tensor;

use crate::error::TrainerError;
use crate::model::pass::{Block, Pass};
use crate::model::weights::{SharedTensor, Weights};

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
mod tests {
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
