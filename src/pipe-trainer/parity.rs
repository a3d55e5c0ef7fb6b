//! One batch through a model, without dropout, to compare with `transformers`.

use std::path::Path;

use pipe_spec::pipeline::{Memory, Precision};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use crate::cli::{DropoutMasksArgs, ParityArgs};
use crate::data::Part;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::model::{self, Definition, Drawn, Mode, Model, Setup, Start};
use crate::precision::Kinds;
use crate::storage::TensorFiles;
use crate::storage::tensor_writer;
use crate::torch;

pub fn parity(args: &ParityArgs) -> Result<(), TrainerError> {
    let definition = Definition::from_folder(&args.model)?;
    let files = TensorFiles::open_folder(&args.model)?;
    let setup = setup(args)?;
    let model = definition.build(&Start::Tensors { files: &files, seed: 0 }, &setup)?;
    let part = read_batch(&args.batch, setup.device)?;
    // The gradient is that of a training step, in which nothing is dropped.
    let mode = Mode::Train(Drawn::new(0, 0));
    let compared = Compared::compute(model.as_ref(), &part, mode)?;
    let fail = |source| TrainerError::Save { path: args.out.clone(), source, last: None };
    tensor_writer::write(&args.out, &compared.tensors()).map_err(fail)?;
    println!("{}", json!({ "loss": compared.loss, "grad_norm": compared.grad_norm }));
    Ok(())
}

pub fn dropout_masks(args: &DropoutMasksArgs) -> Result<(), TrainerError> {
    let (kinds, device) = (Kinds::of(precision(&args.precision)?), device(args.cuda)?);
    let digest = |mask: Tensor| -> Result<String, TrainerError> {
        let bytes: Vec<u8> = Vec::try_from(mask.f_to_kind(Kind::Uint8)?.f_to_device(Device::Cpu)?.f_reshape([-1])?)?;
        Ok(blake3::hash(&bytes).to_hex()[..16].to_owned())
    };
    let all =
        model::dropout_masks(kinds.compute, device)?.into_iter().map(|(name, mask)| Ok((name, digest(mask)?.into())));
    println!("{}", serde_json::Value::Object(all.collect::<Result<_, TrainerError>>()?));
    Ok(())
}

fn setup(args: &ParityArgs) -> Result<Setup, TrainerError> {
    let precision = precision(&args.precision)?;
    let device = device(args.cuda)?;
    torch::allow_tf32(precision == Precision::Tf32)?;
    Ok(Setup { device, kinds: Kinds::of(precision), checkpointing: args.checkpointing, dropout: Some(0.0) })
}

fn precision(name: &str) -> Result<Precision, TrainerError> {
    serde_json::from_value(name.into()).map_err(|error| TrainerError::config("--precision", error.to_string()))
}

fn device(cuda: bool) -> Result<Device, TrainerError> {
    Ok(if cuda { Hardware::cuda(0, &Memory::default())?.device } else { Device::Cpu })
}

struct Compared {
    loss: f64,
    grad_norm: f64,
    logits: Tensor,
    /// The last hidden state of an encoder; of a model that compares two sides, the logits as either side sees them.
    others: Vec<(String, Tensor)>,
    gradients: Vec<(String, Tensor)>,
}

impl Compared {
    fn compute(model: &dyn Model, part: &Part, mode: Mode) -> Result<Self, TrainerError> {
        let loss = match model.contrastive() {
            Some(contrastive) => contrastive.loss(&contrastive.embed(part, mode)?)?,
            None => model.loss_sum(part, mode)?.f_div_scalar(model.targets(part)?)?,
        };
        loss.f_backward()?;
        let gradients = wide(model.weights().gradients()?)?;
        let logits = tch::no_grad(|| model.logits(part, Mode::Eval))?.f_to_kind(Kind::Float)?;
        let mut others = Vec::new();
        if let Some(encoder) = model.encoder() {
            others.push(("last_hidden_state".to_owned(), tch::no_grad(|| encoder.last_hidden_state(part))?));
        }
        if model.contrastive().is_some() {
            others.push(("logits_per_image".to_owned(), logits.shallow_clone()));
            others.push(("logits_per_text".to_owned(), logits.f_transpose(0, 1)?.f_contiguous()?));
        }
        Ok(Self {
            loss: loss.f_double_value(&[])?,
            grad_norm: torch::total_norm(&gradients)?.f_double_value(&[])?,
            logits,
            others,
            gradients: model.weights().trained().map(|(name, _)| format!("grad.{name}")).zip(gradients).collect(),
        })
    }

    fn tensors(&self) -> Vec<(String, &Tensor)> {
        let others = self.others.iter().chain(&self.gradients).map(|(name, tensor)| (name.clone(), tensor));
        std::iter::once(("logits".to_owned(), &self.logits)).chain(others).collect()
    }
}

fn wide(tensors: Vec<Tensor>) -> Result<Vec<Tensor>, TrainerError> {
    tensors.iter().map(|tensor| Ok(tensor.f_to_kind(Kind::Float)?)).collect()
}

/// Every tensor of the file, by the name that the model knows it by.
fn read_batch(path: &Path, device: Device) -> Result<Part, TrainerError> {
    let files = TensorFiles::open_file(path)?;
    files.names().try_fold(Part::default(), |part, name| {
        let tensor = files.read(name)?;
        Ok(match name {
            "attention_mask" => part.with_mask(&tensor, device)?,
            name => part.with(name, tensor.f_to_device(device)?),
        })
    })
}
