//! One batch through a model, in fp32 on the CPU and without dropout: what `transformers` is compared with.

use std::path::Path;

use serde_json::json;
use tch::Tensor;

use crate::cli::ParityArgs;
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::{Definition, Mode, Model, Setup, Start};
use crate::tensor_files::TensorFiles;
use crate::{tensor_writer, torch};

pub fn parity(args: &ParityArgs) -> Result<(), TrainerError> {
    let definition = Definition::from_folder(&args.model)?;
    let files = TensorFiles::open_folder(&args.model)?;
    let model = definition.build(&Start::Tensors { files: &files, seed: 0 }, &Setup::plain())?;
    let part = read_batch(&args.batch)?;
    let compared = Compared::compute(model.as_ref(), &part)?;
    let fail = |source| TrainerError::Save { path: args.out.clone(), source, last: None };
    tensor_writer::write(&args.out, &compared.tensors()).map_err(fail)?;
    println!("{}", json!({ "loss": compared.loss, "grad_norm": compared.grad_norm }));
    Ok(())
}

struct Compared {
    loss: f64,
    grad_norm: f64,
    logits: Tensor,
    gradients: Vec<(String, Tensor)>,
}

impl Compared {
    fn compute(model: &dyn Model, part: &Part) -> Result<Self, TrainerError> {
        let loss = match model.contrast() {
            Some(contrast) => contrast.loss(&contrast.embed(part, Mode::Eval)?)?,
            None => model.loss_sum(part, Mode::Eval)?.f_div_scalar(model.targets(part)?)?,
        };
        loss.f_backward()?;
        let gradients = model.weights().gradients()?;
        let logits = tch::no_grad(|| model.logits(part, Mode::Eval))?;
        Ok(Self {
            loss: loss.f_double_value(&[])?,
            grad_norm: torch::total_norm(&gradients)?.f_double_value(&[])?,
            logits,
            gradients: model.weights().trained().map(|(name, _)| format!("grad.{name}")).zip(gradients).collect(),
        })
    }

    fn tensors(&self) -> Vec<(String, &Tensor)> {
        let gradients = self.gradients.iter().map(|(name, tensor)| (name.clone(), tensor));
        std::iter::once(("logits".to_owned(), &self.logits)).chain(gradients).collect()
    }
}

/// Every tensor of the file, by the name that the model knows it by.
fn read_batch(path: &Path) -> Result<Part, TrainerError> {
    let files = TensorFiles::open_file(path)?;
    files.names().try_fold(Part::default(), |part, name| Ok(part.with(name, files.read(name)?)))
}
