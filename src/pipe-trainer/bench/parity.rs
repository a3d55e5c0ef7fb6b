//! One batch through a model, without dropout, to compare with `transformers`; and what dropout keeps, to compare two devices.

use std::path::Path;

use pipe_model::Activation;
use pipe_spec::pipeline::{Memory, Precision, Preference};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::workload::packed;
use crate::cli::{DropoutMasksArgs, ParityArgs};
use crate::data::Part;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{FeedForward, LayerNorm, Linear, Product};
use crate::model::pass::Pass;
use crate::model::setup::Kinds;
use crate::model::{Definition, Drawn, Mode, Model, Setup, Start};
use crate::storage::{TensorFiles, tensor_files};
use crate::torch;

/// The scale of the loss, as in a training: small gradients would become 0 in fp16.
const HALF_SCALE: f64 = 1024.0;

pub fn parity(args: &ParityArgs) -> Result<(), TrainerError> {
    let definition = Definition::from_folder(&args.model)?.with_adapter_folder(args.adapter.as_deref())?;
    let definition = definition.with_quantized(super::quantize(args.quantize.as_deref())?);
    let definition = if args.beta.is_some() { definition.of_pairs() } else { definition };
    let Some(files) = definition.trained()? else { panic!("a folder has weights") };
    let setup = setup(args)?;
    let model = definition.build(&Start::Tensors { files: &files, seed: 0 }, &setup)?;
    let rows = read_batch(&args.batch, setup.device)?;
    let part = match args.packed || model.packs() {
        true => packed(&rows, &definition.task_data()?, model.as_ref(), setup.device, args.packed)?,
        false => rows.shallow_clone(),
    };
    let scale = if setup.kinds.compute == Kind::Half { HALF_SCALE } else { 1.0 };
    let mut compared = Compared::compute(model.as_ref(), &part, if args.packed { &part } else { &rows }, scale)?;
    if args.packed {
        compared.pad(&rows)?;
    }
    let fail = |source| TrainerError::Save { path: args.out.clone(), source, last: None };
    tensor_files::write(&args.out, &compared.tensors()).map_err(fail)?;
    println!("{}", json!({ "loss": compared.loss, "grad_norm": compared.grad_norm }));
    Ok(())
}

pub fn dropout_masks(args: &DropoutMasksArgs) -> Result<(), TrainerError> {
    let (kinds, device) = (Kinds::of(precision(&args.precision)?), device(args.cuda)?);
    let digest = |mask: Tensor| -> Result<String, TrainerError> {
        let bytes: Vec<u8> = Vec::try_from(mask.f_to_kind(Kind::Uint8)?.f_to_device(Device::Cpu)?.f_reshape([-1])?)?;
        Ok(blake3::hash(&bytes).to_hex()[..16].to_owned())
    };
    let all = masks(kinds.compute, device)?.into_iter().map(|(name, mask)| Ok((name, digest(mask)?.into())));
    println!("{}", serde_json::Value::Object(all.collect::<Result<_, TrainerError>>()?));
    Ok(())
}

fn setup(args: &ParityArgs) -> Result<Setup, TrainerError> {
    let precision = precision(&args.precision)?;
    let device = device(args.cuda)?;
    torch::allow_tf32(precision == Precision::Tf32)?;
    let (kinds, checkpointing) = (Kinds::of(precision), args.checkpointing);
    let preference = Preference { beta: args.beta.unwrap_or(0.1), ..Preference::default() };
    Ok(Setup { device, kinds, checkpointing, dropout: Some(0.0), preference, ..Setup::plain() })
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
    /// Loss and gradients of `part`, as a training has them with this scale of the loss, and the outputs of `rows`, which are
    /// the same samples.
    fn compute(model: &dyn Model, part: &Part, rows: &Part, scale: f64) -> Result<Self, TrainerError> {
        // The gradient is that of a training step, in which nothing is dropped.
        let mode = Mode::Train(Drawn::new(0, 0));
        let loss = match model.contrastive() {
            Some(contrastive) => contrastive.loss(&contrastive.embed(part, mode)?)?,
            None => model.loss_sum(part, mode)?.f_div_scalar(model.targets(part)?)?,
        };
        loss.f_mul_scalar(scale)?.f_backward()?;
        let gradients = wide(model.weights().gradients()?, scale)?;
        let logits = tch::no_grad(|| model.logits(rows, Mode::Eval))?.f_to_kind(Kind::Float)?;
        let mut others = Vec::new();
        if let Some(encoder) = model.encoder() {
            others.push(("last_hidden_state".to_owned(), tch::no_grad(|| encoder.last_hidden_state(rows))?));
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

    /// Pads the outputs of packed samples to rows as long as those of the file.
    fn pad(&mut self, rows: &Part) -> Result<(), TrainerError> {
        let lengths = ["labels", "input_ids", "ids"].map(|name| rows.find(name).filter(|tensor| tensor.dim() == 2));
        let [labels, ids, plain_ids] = lengths.map(|tensor| tensor.map(|tensor| tensor.size()[1]));
        let padded = |tensor: &Tensor, length: Option<i64>| match (length, tensor.size().as_slice()) {
            (Some(length), [_, rows, _]) => tensor.f_constant_pad_nd([0, 0, 0, length - rows])?.f_contiguous(),
            _ => Ok(tensor.shallow_clone()),
        };
        self.logits = padded(&self.logits, labels)?;
        for (_, tensor) in &mut self.others {
            *tensor = padded(tensor, ids.or(plain_ids))?;
        }
        Ok(())
    }

    fn tensors(&self) -> Vec<(String, &Tensor)> {
        let others = self.others.iter().chain(&self.gradients).map(|(name, tensor)| (name.clone(), tensor));
        std::iter::once(("logits".to_owned(), &self.logits)).chain(others).collect()
    }
}

/// In fp32, and without the scale of the loss.
fn wide(tensors: Vec<Tensor>, scale: f64) -> Result<Vec<Tensor>, TrainerError> {
    tensors.iter().map(|tensor| Ok(tensor.f_to_kind(Kind::Float)?.f_div_scalar(scale)?)).collect()
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

/// Names, and 1 where something is kept.
fn masks(kind: Kind, device: Device) -> Result<Vec<(String, Tensor)>, TrainerError> {
    let drawn = Drawn::new(5, 3);
    let pass = Pass { dropout: 0.1, drawn: Some(drawn), block: 2, ..Pass::quiet(kind) };
    let options = (kind, device);
    let mut all = Vec::new();
    for (sizes, number) in [&[4, 33, 64][..], &[2, 7, 301], &[3, 509, 1024], &[5, 448]].into_iter().zip(0..) {
        let ones = Tensor::f_ones(sizes, options)?;
        let pass = pass.for_block(number);
        all.push((format!("states {sizes:?}"), pass.drop_out(&ones)?.f_ne(0.0)?));
        let width = ones.size()[ones.dim() - 1];
        let layer = || -> Result<Linear, TrainerError> {
            Ok(Linear { weight: Tensor::f_eye(width, options)?.into(), bias: None, adapter: None })
        };
        let layers =
            FeedForward { first: layer()?, gate: None, second: layer()?, activation: Activation::Relu, drops: true };
        all.push((format!("between layers {sizes:?}"), layers.forward(&ones, pass)?.f_ne(0.0)?));
        let of = |value: f64| Tensor::f_full([width], value, options);
        let norm = LayerNorm { weight: of(1.0)?.into(), bias: of(0.0)?.into(), epsilon: 1e-6 };
        let residual = ones.f_zeros_like()?;
        let normed = norm.after(&Product { output: ones, bias: None }, &residual, pass)?;
        all.push((format!("before a norm {sizes:?}"), normed.f_gt(0.0)?));
    }
    for [samples, heads, queries, keys] in [[3, 4, 130, 64], [2, 12, 509, 128], [1, 2, 31, 24], [2, 3, 7, 8]] {
        let zeros = |length: i64| Tensor::f_zeros([samples, heads, length, keys], options);
        // Each key has a value of its own.
        let values = Tensor::f_eye(keys, options)?.f_expand([samples, heads, keys, keys], false)?.f_contiguous()?;
        let attended = attend([&zeros(queries)?, &zeros(keys)?, &values], Scores::default(), pass.for_block(9))?;
        all.push((format!("attention {:?}", [samples, heads, queries, keys]), attended.f_ne(0.0)?.f_contiguous()?));
    }
    Ok(all)
}
