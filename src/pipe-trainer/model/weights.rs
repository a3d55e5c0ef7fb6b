//! The parameters of a model, in order and by name.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use pipe_model::adapter::{self, Lora};
use pipe_model::{Init, Parameter};
use pipe_spec::pipeline::Quantize;
use tch::{Device, Kind, TchError, Tensor};

use super::pass::{Pass, Setup, Start};
use super::quantized::Quantized;
use crate::error::TrainerError;
use crate::random::{self, Purpose};
use crate::storage::TensorFiles;
use crate::torch;

pub struct Weights {
    weights: Vec<NamedWeight>,
    indices: HashMap<String, usize>,
    /// Names that were not in the checkpoint.
    newly_initialised: Vec<String>,
    /// The adapter whose matrices are among them.
    adapter: Option<&'static Lora>,
    /// The kind that quantized weights are computed in.
    compute: Kind,
}

/// A parameter as the layers of a model hold it. A block that is recomputed reads it on the thread of the backward pass.
pub struct SharedTensor(Tensor);

// SAFETY: nothing but reads go through it, which libtorch allows from several threads at once. Optimizers write through `Weights`, and
// no pass runs meanwhile.
unsafe impl Sync for SharedTensor {}

impl From<Tensor> for SharedTensor {
    fn from(tensor: Tensor) -> Self {
        Self(tensor)
    }
}

impl Deref for SharedTensor {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl Borrow<Tensor> for SharedTensor {
    fn borrow(&self) -> &Tensor {
        &self.0
    }
}

/// The matrix of a linear layer, which may be quantized where it is not trained.
pub enum Weight {
    Wide(SharedTensor),
    Quantized(Arc<Quantized>),
}

impl From<Tensor> for Weight {
    fn from(tensor: Tensor) -> Self {
        Self::Wide(tensor.into())
    }
}

impl Weight {
    /// Where it is not quantized.
    pub fn wide(&self) -> Option<&Tensor> {
        match self {
            Self::Wide(tensor) => Some(tensor),
            Self::Quantized(_) => None,
        }
    }

    /// The product of `input` with it, in the kind of `input`.
    pub fn product(&self, input: &Tensor, bias: Option<&Tensor>, pass: Pass) -> Result<Tensor, TrainerError> {
        match self {
            Self::Wide(tensor) => pass.linear(input, tensor, bias),
            Self::Quantized(matrix) => Ok(matrix.linear(input, bias)?),
        }
    }

    /// Sharing its memory.
    fn share(&self) -> Self {
        match self {
            Self::Wide(tensor) => Self::Wide(tensor.shallow_clone().into()),
            Self::Quantized(matrix) => Self::Quantized(Arc::clone(matrix)),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Wide(tensor) => (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64,
            Self::Quantized(matrix) => matrix.bytes(),
        }
    }
}

struct NamedWeight {
    name: String,
    weight: Weight,
    trained: bool,
    frozen: bool,
}

impl NamedWeight {
    /// Only linear layers may have quantized ones, and they ask for these.
    fn tensor(&self) -> &Tensor {
        self.weight.wide().unwrap_or_else(|| panic!("{} is quantized", self.name))
    }
}

impl Weights {
    /// Drawn, or read one tensor at a time, each straight to its kind and device.
    pub fn start(parameters: &[Parameter], start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let (Start::Random { seed } | Start::Tensors { seed, .. }) = start;
        let adapted = setup.adapter.map(|adapter| adapter.parameters(parameters));
        let parameters = adapted.as_deref().unwrap_or(parameters);
        random::with_torch_seeded(Purpose::Weights, *seed, || Self::collect(parameters, start, setup))
    }

    fn collect(parameters: &[Parameter], start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let mut weights = Vec::with_capacity(parameters.len());
        let mut newly_initialised = Vec::new();
        for parameter in parameters {
            let quantize = setup.quantized.of(parameter);
            let kind = match parameter.init {
                Init::Count => Kind::Int64,
                _ if quantize != Quantize::None => Kind::Float,
                // Nothing is added to them that a narrow kind would lose.
                _ if parameter.frozen && parameter.shape.len() > 1 => setup.kinds.compute,
                _ if parameter.frozen || parameter.trained => setup.kinds.weights,
                _ => Kind::Float,
            };
            let tensor = match start {
                Start::Random { .. } => draw(parameter, kind, setup.device)?,
                Start::Tensors { files, .. } => match stored_name(parameter, files) {
                    None if parameter.may_be_missing => {
                        if !adapter::is_matrix(&parameter.name) {
                            newly_initialised.push(parameter.name.clone());
                        }
                        draw(parameter, kind, setup.device)?
                    }
                    found => {
                        let name = found.unwrap_or(&parameter.name);
                        match quantize {
                            Quantize::None => files.read_shaped(name, &parameter.shape, kind, setup.device)?,
                            // So that its codes are the same in every precision.
                            _ => files.read_as_stored(name, &parameter.shape, setup.device)?,
                        }
                    }
                },
            };
            let weight = match Quantized::new(&tensor, quantize)? {
                Some(matrix) => Weight::Quantized(Arc::new(matrix)),
                None => tensor.f_set_requires_grad(parameter.trained)?.into(),
            };
            let Parameter { name, trained, frozen, .. } = parameter;
            weights.push(NamedWeight { name: name.clone(), weight, trained: *trained, frozen: *frozen });
        }
        let indices = weights.iter().enumerate().map(|(index, entry)| (entry.name.clone(), index)).collect();
        let Setup { adapter, kinds, .. } = *setup;
        Ok(Self { weights, indices, newly_initialised, adapter, compute: kinds.compute })
    }

    /// The parameters that were not in the checkpoint.
    pub fn newly_initialised(&self) -> &[String] {
        &self.newly_initialised
    }

    /// The parameter `name`, sharing its memory.
    pub fn get(&self, name: &str) -> SharedTensor {
        self.named(name).tensor().shallow_clone().into()
    }

    /// The weight of the layer at `path`, sharing its memory.
    pub fn layer(&self, path: &str) -> Weight {
        self.named(&format!("{path}.weight")).weight.share()
    }

    fn named(&self, name: &str) -> &NamedWeight {
        let index = self.indices.get(name).unwrap_or_else(|| panic!("the model has no parameter {name}"));
        &self.weights[*index]
    }

    /// The matrices beside the layer at `path`, where it has an adapter.
    pub fn adapter(&self, path: &str) -> Option<Adapter> {
        let lora = self.adapter?;
        let [down, up] = adapter::MATRICES.map(|name| format!("{path}.{name}.weight"));
        let has_one = self.indices.contains_key(&down);
        has_one.then(|| Adapter {
            down: self.get(&down),
            up: self.get(&up),
            scale: lora.scale(),
            dropout: lora.dropout,
        })
    }

    /// Those that a checkpoint holds, by their names there: all that are not frozen.
    pub fn stored(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let name = |entry: &NamedWeight| match self.adapter {
            Some(lora) if entry.trained => lora.stored_name(&entry.name),
            _ => entry.name.clone(),
        };
        self.weights.iter().filter(|entry| !entry.frozen).map(move |entry| (name(entry), entry.tensor()))
    }

    /// The same weights, with those of a checkpoint in the place of those that checkpoints hold.
    pub fn with_stored(&self, files: &TensorFiles) -> Result<Self, TrainerError> {
        let replaced = |entry: &NamedWeight| -> Result<NamedWeight, TrainerError> {
            let stored =
                self.adapter.map_or_else(|| adapter::stored_name(&entry.name), |lora| lora.stored_name(&entry.name));
            let weight = match entry.weight.wide().filter(|_| entry.trained && files.contains(&stored)) {
                Some(old) => files.read_shaped(&stored, &old.size(), old.kind(), old.device())?.into(),
                None => entry.weight.share(),
            };
            Ok(NamedWeight { name: entry.name.clone(), weight, trained: entry.trained, frozen: entry.frozen })
        };
        let weights = self.weights.iter().map(replaced).collect::<Result<_, _>>()?;
        let (indices, adapter, compute) = (self.indices.clone(), self.adapter, self.compute);
        Ok(Self { weights, indices, newly_initialised: Vec::new(), adapter, compute })
    }

    /// The model with the adapter in its weights: each as it is, or with the product of its matrices added. What is quantized is made
    /// wide, and lies on the host: a card that needs it quantized has no room for it.
    pub fn merged(&self) -> Result<Vec<(String, Tensor)>, TrainerError> {
        let merged = |entry: &NamedWeight| -> Result<(String, Tensor), TrainerError> {
            let adapter = entry.name.strip_suffix(".weight").and_then(|path| self.adapter(path));
            let tensor = match (&entry.weight, adapter) {
                (Weight::Wide(tensor), Some(adapter)) => adapter.merged(tensor, tensor.kind())?,
                (Weight::Wide(tensor), None) => tensor.shallow_clone(),
                (Weight::Quantized(matrix), Some(adapter)) => {
                    adapter.merged(&matrix.wide(Kind::Float)?, self.compute)?.f_to_device(Device::Cpu)?
                }
                (Weight::Quantized(matrix), None) => matrix.wide(self.compute)?.f_to_device(Device::Cpu)?,
            };
            Ok((entry.name.clone(), tensor))
        };
        self.weights.iter().filter(|entry| !adapter::is_matrix(&entry.name)).map(merged).collect()
    }

    /// All that are not quantized, in order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.weights.iter().filter_map(|entry| Some((entry.name.as_str(), entry.weight.wide()?)))
    }

    /// Those that are trained, in order.
    pub fn trained(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.weights.iter().filter(|entry| entry.trained).map(|entry| (entry.name.as_str(), entry.tensor()))
    }

    pub fn count(&self) -> u64 {
        self.trained().map(|(_, tensor)| tensor.numel() as u64).sum()
    }

    /// Gradients of trained parameters, zero where a parameter took no part.
    pub fn gradients(&self) -> Result<Vec<Tensor>, TchError> {
        let gradient = |tensor: &Tensor| {
            let gradient = tensor.f_grad()?;
            if gradient.defined() { Ok(gradient) } else { tensor.f_zeros_like() }
        };
        self.trained().map(|(_, tensor)| gradient(tensor)).collect()
    }

    pub fn forget_gradients(&self) -> Result<(), TchError> {
        self.trained().try_for_each(|(_, tensor)| torch::set_gradient(tensor, None))
    }

    /// Bytes of all parameters together.
    pub fn bytes(&self) -> u64 {
        self.weights.iter().map(|entry| entry.weight.bytes()).sum()
    }
}

/// Two small matrices beside a layer (LoRA), which alone are trained.
pub struct Adapter {
    /// [rank, inputs]
    down: SharedTensor,
    /// [outputs, rank]
    up: SharedTensor,
    scale: f64,
    dropout: f64,
}

impl Adapter {
    /// The output of its layer with what it adds for `input`. Scaled where it is narrow, and added by the product itself: nothing else
    /// as large as the output is written.
    pub fn add_to(&self, output: &Tensor, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        self.add_product(output, &pass.dropping(self.dropout).drop_out(input)?, pass)
    }

    /// The same for rows that all samples of the step share.
    pub fn add_to_shared(&self, output: &Tensor, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        self.add_product(output, &pass.dropping(self.dropout).drop_out_shared(input)?, pass)
    }

    fn add_product(&self, output: &Tensor, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let inner = pass.linear(input, &self.down, None)?.f_mul_scalar(self.scale)?;
        let (sizes, up) = (output.size(), self.up.f_to_kind(pass.compute)?);
        let rows = |tensor: &Tensor| tensor.f_reshape([-1, tensor.size()[tensor.dim() - 1]]);
        Ok(rows(output)?.f_addmm(&rows(&inner)?, &up.f_tr()?)?.f_reshape(sizes)?)
    }

    /// The weight of its layer with the adapter in it, rounded once.
    fn merged(&self, weight: &Tensor, kind: Kind) -> Result<Tensor, TrainerError> {
        let _guard = tch::no_grad_guard();
        let wide = |tensor: &Tensor| tensor.f_to_kind(Kind::Float);
        let product = wide(&self.up)?.f_mm(&wide(&self.down)?)?.f_mul_scalar(self.scale)?;
        Ok(wide(weight)?.f_add(&product)?.f_to_kind(kind)?)
    }
}

/// Whether files have what a model needs of them.
pub fn check(parameters: &[Parameter], files: &TensorFiles) -> Result<(), TrainerError> {
    for parameter in parameters {
        match stored_name(parameter, files) {
            None if parameter.may_be_missing => {}
            found => files.check_shape(found.unwrap_or(&parameter.name), &parameter.shape)?,
        }
    }
    Ok(())
}

/// The name of a parameter in the files, if it is there. What was trained beside an adapter may be in the files of its model as well.
pub fn stored_name<'a>(parameter: &'a Parameter, files: &TensorFiles) -> Option<&'a String> {
    let trained = parameter.aliases.iter().filter(|name| adapter::is_stored_name(name));
    trained.chain([&parameter.name]).chain(&parameter.aliases).find(|name| files.contains(name))
}

/// In fp32 whatever `kind` is, so that every precision begins with the same weights.
fn draw(parameter: &Parameter, kind: Kind, device: Device) -> Result<Tensor, TrainerError> {
    let mut tensor = Tensor::f_empty(parameter.shape.as_slice(), (Kind::Float, device))?;
    let _ = match parameter.init {
        Init::Constant(value) => tensor.f_fill_(value)?,
        Init::Normal { std } => tensor.f_normal_(0.0, std)?,
        Init::Uniform { bound } => tensor.f_uniform_(-bound, bound)?,
        Init::Count => tensor.f_zero_()?,
    };
    Ok(tensor.f_to_kind(kind)?)
}
