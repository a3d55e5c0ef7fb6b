//! The parameters of a model, in order and by name.

use std::collections::HashMap;

use tch::{Device, Kind, TchError, Tensor};

use crate::error::TrainerError;
use crate::random::{self, Purpose};
use crate::tensor_files::TensorFiles;
use crate::torch;

/// What a model says about one of its parameters before it exists.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub shape: Vec<i64>,
    pub init: Init,
}

/// How a parameter begins when nothing was trained before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Constant(f64),
    /// Normal around 0.
    Normal {
        std: f64,
    },
}

pub struct Weights {
    entries: Vec<(String, Tensor)>,
    places: HashMap<String, usize>,
}

impl Weights {
    /// Drawn in fp32 whatever `kind` is, so that every precision begins with the same weights.
    pub fn initialise(parameters: &[Parameter], seed: u64, kind: Kind, device: Device) -> Result<Self, TrainerError> {
        random::seed_torch(Purpose::Weights, seed, &[]);
        Self::build(parameters, |parameter| {
            let mut tensor = Tensor::f_empty(parameter.shape.as_slice(), (Kind::Float, device))?;
            let _ = match parameter.init {
                Init::Constant(value) => tensor.f_fill_(value)?,
                Init::Normal { std } => tensor.f_normal_(0.0, std)?,
            };
            Ok(tensor.f_to_kind(kind)?)
        })
    }

    /// One tensor at a time, each straight to its kind and device.
    pub fn load(
        parameters: &[Parameter],
        files: &TensorFiles,
        kind: Kind,
        device: Device,
    ) -> Result<Self, TrainerError> {
        Self::build(parameters, |parameter| files.read_shaped(&parameter.name, &parameter.shape, kind, device))
    }

    fn build(
        parameters: &[Parameter],
        mut make: impl FnMut(&Parameter) -> Result<Tensor, TrainerError>,
    ) -> Result<Self, TrainerError> {
        let mut entries = Vec::with_capacity(parameters.len());
        for parameter in parameters {
            entries.push((parameter.name.clone(), make(parameter)?.f_set_requires_grad(true)?));
        }
        let places = entries.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
        Ok(Self { entries, places })
    }

    /// The parameter `name`, sharing its memory.
    pub fn get(&self, name: &str) -> Tensor {
        let place = self.places.get(name).unwrap_or_else(|| panic!("the model has no parameter {name}"));
        self.entries[*place].1.shallow_clone()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    pub fn count(&self) -> u64 {
        self.entries.iter().map(|(_, tensor)| tensor.numel() as u64).sum()
    }

    /// Gradients, zero where a parameter took no part.
    pub fn gradients(&self) -> Result<Vec<Tensor>, TchError> {
        let gradient = |tensor: &Tensor| {
            let gradient = tensor.f_grad()?;
            if gradient.defined() { Ok(gradient) } else { tensor.f_zeros_like() }
        };
        self.entries.iter().map(|(_, tensor)| gradient(tensor)).collect()
    }

    pub fn forget_gradients(&self) -> Result<(), TchError> {
        self.entries.iter().try_for_each(|(_, tensor)| torch::forget_gradient(tensor))
    }

    /// Bytes of all parameters together.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|(_, tensor)| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64).sum()
    }
}
