//! Layers that several architectures have, and the functions between them.

use pipe_model::Activation;
use tch::{Kind, Tensor};

use super::attention::{Scores, attend};
use super::pass::{Block, Pass};
use super::weights::{Adapter, SharedTensor, Weight, Weights};
use crate::error::TrainerError;
use crate::torch::{self, Dropped};

pub struct Linear {
    pub weight: Weight,
    pub bias: Option<SharedTensor>,
    /// Where the layer has one, the output of `forward` has it in it.
    pub adapter: Option<Adapter>,
}

impl Linear {
    /// `<path>.weight` and `<path>.bias`.
    pub fn new(weights: &Weights, path: &str) -> Self {
        Self { bias: Some(weights.get(&format!("{path}.bias"))), ..Self::without_bias(weights, path) }
    }

    pub fn without_bias(weights: &Weights, path: &str) -> Self {
        Self { weight: weights.layer(path), bias: None, adapter: weights.adapter(path) }
    }

    /// Its weight, where nothing but that makes its product: no adapter, and it is not quantized.
    pub fn plain(&self) -> Option<&Tensor> {
        self.weight.wide().filter(|_| self.adapter.is_none())
    }

    /// In the kind that the pass computes in.
    pub fn forward(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        self.forward_with(self.bias.as_deref(), input, pass)
    }

    /// The same with its bias still to be added.
    pub fn product(&self, input: &Tensor, pass: Pass) -> Result<Product<'_>, TrainerError> {
        Ok(Product { output: self.forward_with(None, input, pass)?, bias: self.bias.as_deref() })
    }

    /// The same of rows that all samples of the step share.
    pub fn forward_shared(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let input = input.f_to_kind(pass.compute)?;
        let output = self.weight.product(&input, self.bias.as_deref(), pass)?;
        match self.adapter.as_ref().filter(|_| pass.adapts) {
            Some(adapter) => adapter.add_to_shared(&output, &input, pass),
            None => Ok(output),
        }
    }

    fn forward_with(&self, bias: Option<&Tensor>, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let input = input.f_to_kind(pass.compute)?;
        let output = self.weight.product(&input, bias, pass)?;
        match self.adapter.as_ref().filter(|_| pass.adapts) {
            Some(adapter) => adapter.add_to(&output, &input, pass),
            None => Ok(output),
        }
    }
}

pub struct LayerNorm {
    pub weight: SharedTensor,
    pub bias: SharedTensor,
    pub epsilon: f64,
}

impl LayerNorm {
    /// `<path>.weight` and `<path>.bias`.
    pub fn new(weights: &Weights, path: &str, epsilon: f64) -> Self {
        let of = |name: &str| weights.get(&format!("{path}.{name}"));
        Self { weight: of("weight"), bias: of("bias"), epsilon }
    }

    /// In the kind of the input; inside in fp32.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, TrainerError> {
        self.forward_as(input, input.kind())
    }

    /// In `kind`.
    pub fn forward_as(&self, input: &Tensor, kind: Kind) -> Result<Tensor, TrainerError> {
        if input.device().is_cuda()
            && let Some(normed) = self.fused(None, input, Dropped::NOTHING, kind).forward()?
        {
            return Ok(normed);
        }
        let (weight, bias) = (self.weight.f_to_kind(input.kind())?, self.bias.f_to_kind(input.kind())?);
        let normed = input.f_layer_norm(self.weight.size(), Some(&weight), Some(&bias), self.epsilon, true)?;
        Ok(normed.f_to_kind(kind)?)
    }

    /// A layer's product, some of it dropped, added to `residual`, and normed: the end of a block that norms last.
    pub fn after(&self, product: &Product<'_>, residual: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let output = &product.output;
        let residual = residual.f_to_kind(output.kind())?;
        if output.device().is_cuda() {
            let dropped = pass.dropped();
            let fused = self.fused(Some((output, product.bias)), &residual, dropped, output.kind());
            if let Some(normed) = fused.forward()? {
                return Ok(normed);
            }
            let sum = torch::drop_add(&product.biased()?, Some(&residual), dropped)?;
            return self.forward(&sum);
        }
        self.forward(&pass.drop_add(&product.biased()?, &residual)?)
    }

    /// The same for a block that norms first: the sum, in the kind of `residual`, and its norm in the kind of the product.
    pub fn between(
        &self,
        product: &Product<'_>,
        residual: &Tensor,
        pass: Pass,
    ) -> Result<(Tensor, Tensor), TrainerError> {
        let output = &product.output;
        let sum = if output.device().is_cuda() {
            let dropped = pass.dropped();
            let fused = self.fused(Some((output, product.bias)), residual, dropped, output.kind());
            if let Some((normed, sum)) = fused.forward_with_sum()? {
                return Ok((sum, normed));
            }
            torch::drop_add(&product.biased()?, Some(residual), dropped)?
        } else {
            pass.drop_add(&product.biased()?, residual)?
        };
        let normed = self.forward_as(&sum, output.kind())?;
        Ok((sum, normed))
    }

    fn fused<'a>(
        &'a self,
        input: Option<(&'a Tensor, Option<&'a Tensor>)>,
        residual: &'a Tensor,
        dropped: Dropped,
        kind: Kind,
    ) -> torch::AddNorm<'a> {
        let Self { weight, bias, epsilon } = self;
        torch::AddNorm { input, residual, weight, bias, eps: *epsilon, dropped, kind }
    }
}

/// Scaled by the root mean square, without mean and without bias.
pub struct RmsNorm {
    weight: SharedTensor,
    epsilon: f64,
}

impl RmsNorm {
    /// `<path>.weight`.
    pub fn new(weights: &Weights, path: &str, epsilon: f64) -> Self {
        Self { weight: weights.get(&format!("{path}.weight")), epsilon }
    }

    pub fn forward(&self, hidden: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(hidden.f_rms_norm(self.weight.size(), Some(&*self.weight), self.epsilon)?)
    }

    /// In `kind`, and `hidden` as a residual, whose gradient costs nothing of its own on a card.
    pub fn forward_and_residual(&self, hidden: &Tensor, kind: Kind) -> Result<(Tensor, Tensor), TrainerError> {
        if hidden.device().is_cuda()
            && let Some(both) = torch::rms_norm(hidden, &self.weight, kind, self.epsilon)?
        {
            return Ok(both);
        }
        Ok((self.forward(hidden)?.f_to_kind(kind)?, hidden.shallow_clone()))
    }
}

/// The product of a layer before its bias is added, so that the next operation can add it.
pub struct Product<'a> {
    pub output: Tensor,
    pub bias: Option<&'a Tensor>,
}

impl Product<'_> {
    pub fn biased(&self) -> Result<Tensor, TrainerError> {
        match self.bias {
            Some(bias) => Ok(self.output.f_add(&bias.f_to_kind(self.output.kind())?)?),
            None => Ok(self.output.shallow_clone()),
        }
    }
}

/// Several layers of one input, computed as one where none has an adapter. They all have biases, or none has.
pub fn together<const N: usize>(input: &Tensor, layers: [&Linear; N], pass: Pass) -> Result<[Tensor; N], TrainerError> {
    let biases: Vec<&Tensor> = layers.iter().filter_map(|layer| layer.bias.as_deref()).collect();
    match plain(layers) {
        Some(weights) => Ok(torch::linears(&input.f_to_kind(pass.compute)?, weights, biases.try_into().ok())?),
        None => each(input, layers, pass),
    }
}

/// Several layers of one input whose outputs live for different times: each is computed by itself.
pub fn apart<const N: usize>(input: &Tensor, layers: [&Linear; N], pass: Pass) -> Result<[Tensor; N], TrainerError> {
    let biases: Vec<&Tensor> = layers.iter().filter_map(|layer| layer.bias.as_deref()).collect();
    match plain(layers).filter(|_| input.device().is_cuda()) {
        Some(weights) => Ok(torch::linears_apart(&input.f_to_kind(pass.compute)?, weights, biases.try_into().ok())?),
        None => each(input, layers, pass),
    }
}

/// Lays the weights of layers together that are computed as one, on a card. Without the memory for that they stay where they are.
pub fn lay_together<const N: usize>(layers: [&Linear; N]) {
    let on_card = |weights: &[&Tensor; N]| weights.iter().all(|weight| weight.device().is_cuda());
    if let Some(weights) = plain(layers).filter(on_card)
        && let Err(error) = torch::lay_together(&weights)
    {
        tracing::debug!("weights lie apart: {error}");
    }
}

/// The weights alone, where nothing else makes the products.
fn plain<const N: usize>(layers: [&Linear; N]) -> Option<[&Tensor; N]> {
    let weights: Vec<&Tensor> = layers.into_iter().filter_map(Linear::plain).collect();
    weights.try_into().ok()
}

/// Three of them, and their input as a residual, whose gradient costs nothing of its own.
pub fn together_and_residual(
    input: &Tensor,
    layers: [&Linear; 3],
    pass: Pass,
) -> Result<([Tensor; 3], Tensor), TrainerError> {
    let biases: Vec<&Tensor> = layers.iter().filter_map(|layer| layer.bias.as_deref()).collect();
    match plain(layers) {
        Some(weights) => {
            Ok(torch::linears_and_residual(&input.f_to_kind(pass.compute)?, weights, biases.try_into().ok())?)
        }
        None => {
            let input = input.f_to_kind(pass.compute)?;
            Ok((each(&input, layers, pass)?, input))
        }
    }
}

/// Several layers of one input, one after the other.
pub fn each<const N: usize>(input: &Tensor, layers: [&Linear; N], pass: Pass) -> Result<[Tensor; N], TrainerError> {
    let outputs = layers.iter().map(|layer| layer.forward(input, pass)).collect::<Result<Vec<_>, _>>()?;
    Ok(outputs.try_into().expect("each layer has an output"))
}

/// Two layers with an activation between them.
pub struct FeedForward {
    pub first: Linear,
    /// Multiplied by the activation.
    pub gate: Option<Linear>,
    pub second: Linear,
    pub activation: Activation,
    /// Whether some of what lies between the layers is dropped.
    pub drops: bool,
}

impl FeedForward {
    /// `input` is in the kind that the pass computes in, and so is what comes out.
    pub fn forward(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        self.compute(input, self.second.bias.as_deref(), pass)
    }

    /// The same with the second bias still to be added, and the input as a residual.
    fn product_and_residual(&self, input: &Tensor, pass: Pass) -> Result<(Product<'_>, Tensor), TrainerError> {
        let (output, residual) = match self.fused(None, input, pass) {
            Some(fused) => fused.forward_and_residual(input)?,
            None => (self.compute(input, None, pass)?, input.shallow_clone()),
        };
        Ok((Product { output, bias: self.second.bias.as_deref() }, residual))
    }

    fn compute(&self, input: &Tensor, second_bias: Option<&Tensor>, pass: Pass) -> Result<Tensor, TrainerError> {
        if let Some(fused) = self.fused(second_bias, input, pass) {
            return Ok(fused.forward(input)?);
        }
        let inner = self.first.forward(input, pass)?;
        let inner = match &self.gate {
            Some(gate) => activate_gated(self.activation, &inner, &gate.forward(input, pass)?)?,
            None => activate(self.activation, &inner)?,
        };
        let inner = if self.drops { pass.drop_out(&inner)? } else { inner };
        self.second.forward_with(second_bias, &inner, pass)
    }

    /// Where there are kernels for it.
    fn fused<'a>(
        &'a self,
        second_bias: Option<&'a Tensor>,
        input: &Tensor,
        pass: Pass,
    ) -> Option<torch::FeedForward<'a>> {
        let (first, second) = (self.first.plain()?, self.second.plain()?);
        let gate = match &self.gate {
            Some(gate) => Some(gate.plain()?),
            None => None,
        };
        let inner = first.size()[0];
        (input.device().is_cuda() && is_fused(self.activation) && inner % 8 == 0).then(|| torch::FeedForward {
            first,
            first_bias: self.first.bias.as_deref(),
            gate,
            second,
            second_bias,
            activation: self.activation as i64,
            dropped: if self.drops { pass.dropped() } else { Dropped::NOTHING },
        })
    }
}

/// The rest of a layer of BERT or DeBERTa after its attention: a projection and a feed-forward part, each added to what came in and normed.
pub struct PostNormOutput {
    attention_output: Linear,
    attention_norm: LayerNorm,
    feed_forward: FeedForward,
    norm: LayerNorm,
}

impl PostNormOutput {
    /// Below the `path` of the layer, by the names of transformers.
    pub fn new(weights: &Weights, path: &str, activation: Activation, epsilon: f64) -> Self {
        let linear = |name: &str| Linear::new(weights, &format!("{path}.{name}"));
        let norm = |name: &str| LayerNorm::new(weights, &format!("{path}.{name}"), epsilon);
        let (first, second) = (linear("intermediate.dense"), linear("output.dense"));
        Self {
            attention_output: linear("attention.output.dense"),
            attention_norm: norm("attention.output.LayerNorm"),
            feed_forward: FeedForward { first, gate: None, second, activation, drops: false },
            norm: norm("output.LayerNorm"),
        }
    }

    /// `attended` are the merged heads, `hidden` is what came into the layer.
    pub fn forward(&self, attended: &Tensor, hidden: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let attended = self.attention_output.product(attended, pass)?;
        let hidden = self.attention_norm.after(&attended, hidden, pass)?;
        let (product, hidden) = self.feed_forward.product_and_residual(&hidden, pass)?;
        self.norm.after(&product, &hidden, pass)
    }
}

/// A layer of CLIP or ViT: self-attention and a feed-forward part, each with a norm before it and a residual connection. The pass
/// says how many attention weights are dropped.
pub struct PreNormLayer {
    pub norms: [LayerNorm; 2],
    pub queries_keys_values: [Linear; 3],
    pub attention_output: Linear,
    pub feed_forward: FeedForward,
    pub heads: i64,
    /// No position sees a later one.
    pub is_causal: bool,
    /// The share that is dropped of what either part gives.
    pub hidden_dropout: f64,
}

impl PreNormLayer {
    fn attend(&self, hidden: &Tensor, scores: Scores<'_>, pass: Pass) -> Result<Product<'_>, TrainerError> {
        let [q, k, v] = together(hidden, self.queries_keys_values.each_ref(), pass)?;
        let [q, k, v] = [split_heads(&q, self.heads)?, split_heads(&k, self.heads)?, split_heads(&v, self.heads)?];
        let is_causal = self.is_causal && scores.key_mask.is_none_or(|mask| mask.dim() == 1);
        let attended = attend([&q, &k, &v], Scores { is_causal, ..scores }, pass)?;
        self.attention_output.product(&merge_heads(&attended)?, pass)
    }
}

impl Block for PreNormLayer {
    /// `inputs` are hidden states, and where packed samples stand or a mask where there is one. What flows through keeps its kind.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let [before, after] = &self.norms;
        let normed = before.forward_as(inputs[0], pass.compute)?;
        let attended = self.attend(&normed, Scores::of_rows(&inputs[1..]), pass)?;
        let pass = pass.dropping(self.hidden_dropout);
        let (hidden, normed) = after.between(&attended, inputs[0], pass)?;
        pass.drop_add(&self.feed_forward.forward(&normed, pass)?, &hidden)
    }
}

/// Whether the kernels of torch/kernels.cu know it.
fn is_fused(activation: Activation) -> bool {
    activation as i64 <= Activation::Tanh as i64
}

/// [batch, length, width] to [batch, heads, length, width / heads]
pub fn split_heads(input: &Tensor, heads: i64) -> Result<Tensor, TrainerError> {
    let (batch, length, width) = input.size3()?;
    Ok(input.f_view([batch, length, heads, width / heads])?.f_transpose(1, 2)?)
}

/// The inverse.
pub fn merge_heads(input: &Tensor) -> Result<Tensor, TrainerError> {
    let (batch, heads, length, width) = input.size4()?;
    Ok(input.f_transpose(1, 2)?.f_reshape([batch, length, heads * width])?)
}

/// The activation, multiplied by `gate`.
pub fn activate_gated(function: Activation, input: &Tensor, gate: &Tensor) -> Result<Tensor, TrainerError> {
    if input.device().is_cuda() && is_fused(function) && input.size().last().is_some_and(|width| width % 8 == 0) {
        return Ok(torch::gated_activation(input, gate, function as i64)?);
    }
    Ok(activate(function, input)?.f_mul(gate)?)
}

pub fn activate(function: Activation, input: &Tensor) -> Result<Tensor, TrainerError> {
    Ok(match function {
        Activation::Relu => input.f_relu()?,
        Activation::Gelu => input.f_gelu("none")?,
        Activation::GeluTanh => input.f_gelu("tanh")?,
        // The same as silu, which keeps one tensor for its gradient instead of two.
        Activation::QuickGelu => input.f_mul_scalar(1.702)?.f_silu()?.f_mul_scalar(1.0 / 1.702)?,
        Activation::Silu => input.f_silu()?,
        Activation::Tanh => input.f_tanh()?,
        Activation::Sigmoid => input.f_sigmoid()?,
        Activation::Mish => input.f_mish()?,
        Activation::LeakyRelu => input.f_leaky_relu()?,
        Activation::Relu6 => input.f_relu6()?,
        Activation::SquaredRelu => input.f_relu()?.f_square()?,
        Activation::Linear => input.shallow_clone(),
    })
}

#[cfg(test)]
mod activation_tests {
    use super::*;

    #[test]
    fn values_of_torch() {
        let cases = [
            ("relu", -2.0, 0.0),
            ("gelu", 1.0, 0.841_344_7),
            ("gelu_python", 1.0, 0.841_344_7),
            ("gelu_new", 1.0, 0.841_192),
            ("gelu_fast", 1.0, 0.841_192),
            ("quick_gelu", 1.0, 0.845_795_8),
            ("silu", 1.0, 0.731_058_6),
            ("swish", 1.0, 0.731_058_6),
            ("tanh", 1.0, 0.761_594_2),
            ("sigmoid", 1.0, 0.731_058_6),
            ("mish", 1.0, 0.865_098_4),
            ("leaky_relu", -2.0, -0.02),
            ("relu6", 7.0, 6.0),
            ("relu2", 3.0, 9.0),
            ("linear", -2.0, -2.0),
        ];
        for (name, input, want) in cases {
            let function = Activation::parse("hidden_act", name).unwrap();
            let got = activate(function, &Tensor::from_slice(&[input])).unwrap().double_value(&[0]);
            assert!((got - want).abs() < 1e-6, "{name}({input}) is {got}");
        }
    }
}
