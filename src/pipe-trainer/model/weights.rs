//! The parameters of a model, in order and by name.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ops::Deref;

use pipe_model::{Init, Parameter};
use tch::{Device, Kind, TchError, Tensor};

use super::setup::{Setup, Start};
use crate::error::TrainerError;
use crate::random::{self, Purpose};
use crate::storage::TensorFiles;
use crate::torch;

pub struct Weights {
    tensors: Vec<NamedTensor>,
    indices: HashMap<String, usize>,
    /// Names that were not in the checkpoint.
    newly_initialised: Vec<String>,
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

struct NamedTensor {
    name: String,
    tensor: Tensor,
    trained: bool,
}

impl Weights {
    /// Drawn, or read one tensor at a time, each straight to its kind and device.
    pub fn start(parameters: &[Parameter], start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let (Start::Random { seed } | Start::Tensors { seed, .. }) = start;
        random::with_torch_seeded(Purpose::Weights, *seed, || Self::collect(parameters, start, setup))
    }

    fn collect(parameters: &[Parameter], start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let mut tensors = Vec::with_capacity(parameters.len());
        let mut newly_initialised = Vec::new();
        for parameter in parameters {
            let kind = match (parameter.init, parameter.trained) {
                (Init::Count, _) => Kind::Int64,
                (_, true) => setup.kinds.weights,
                (_, false) => Kind::Float,
            };
            let tensor = match start {
                Start::Random { .. } => draw(parameter, kind, setup.device)?,
                Start::Tensors { files, .. } => match stored_name(parameter, files) {
                    None if parameter.may_be_missing => {
                        newly_initialised.push(parameter.name.clone());
                        draw(parameter, kind, setup.device)?
                    }
                    found => {
                        let name = found.unwrap_or(&parameter.name);
                        files.read_shaped(name, &parameter.shape, kind, setup.device)?
                    }
                },
            };
            let tensor = tensor.f_set_requires_grad(parameter.trained)?;
            tensors.push(NamedTensor { name: parameter.name.clone(), tensor, trained: parameter.trained });
        }
        let indices = tensors.iter().enumerate().map(|(index, entry)| (entry.name.clone(), index)).collect();
        Ok(Self { tensors, indices, newly_initialised })
    }

    /// The parameters that were not in the checkpoint.
    pub fn newly_initialised(&self) -> &[String] {
        &self.newly_initialised
    }

    /// The parameter `name`, sharing its memory.
    pub fn get(&self, name: &str) -> SharedTensor {
        let index = self.indices.get(name).unwrap_or_else(|| panic!("the model has no parameter {name}"));
        self.tensors[*index].tensor.shallow_clone().into()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|entry| (entry.name.as_str(), &entry.tensor))
    }

    /// Those that are trained, in order.
    pub fn trained(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().filter(|entry| entry.trained).map(|entry| (entry.name.as_str(), &entry.tensor))
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
        self.iter().map(|(_, tensor)| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64).sum()
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

/// The name of a parameter in the files, if it is there.
fn stored_name<'a>(parameter: &'a Parameter, files: &TensorFiles) -> Option<&'a String> {
    std::iter::once(&parameter.name).chain(&parameter.aliases).find(|name| files.contains(name))
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
