//! One batch through a model, without dropout, to compare with `transformers`; what dropout keeps and what quantized matrices stand for, to
//! compare two devices; and the times of products with such matrices.

use std::path::Path;
use std::time::Instant;

use pipe_model::Activation;
use pipe_spec::pipeline::{Memory, Precision, Preference, Quantize};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, TchError, Tensor};

use super::workload::packed;
use crate::cli::{DropoutMasksArgs, ParityArgs, QuantizedWeightsArgs};
use crate::data::Part;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{FeedForward, LayerNorm, Linear, Product};
use crate::model::pass::{Kinds, Pass};
use crate::model::{Definition, Drawn, Mode, Model, Quantized, Setup, Start};
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

/// Some end within a block of 64, or of eight.
const SHAPES: [[i64; 2]; 6] = [[5, 13], [7, 30], [96, 176], [1024, 4096], [3000, 1500], [2560, 4104]];

pub fn quantized_weights(args: &QuantizedWeightsArgs) -> Result<(), TrainerError> {
    let device = if args.cuda { Hardware::cuda(0, &Memory::default())?.device } else { Device::Cpu };
    let mut digests = Map::new();
    tch::manual_seed(1);
    for shape in SHAPES {
        // Drawn on the CPU, with rows of other sizes and one of zeros.
        let sizes = Tensor::f_rand([shape[0], 1], (Kind::Float, Device::Cpu))?;
        let matrix = Tensor::f_randn(shape, (Kind::Float, Device::Cpu))?.f_mul(&sizes.f_square()?)?;
        let _ = matrix.f_select(0, 2)?.f_zero_()?;
        let there = matrix.f_to_device(device)?;
        for kind in [Quantize::Nf4, Quantize::Int8] {
            let Some(quantized) = Quantized::new(&there, kind)? else { continue };
            for wide in [Kind::Float, Kind::BFloat16, Kind::Half] {
                digests.insert(format!("{kind:?} {shape:?} {wide:?}"), json!(digest(&quantized.wide(wide)?)?));
            }
        }
    }
    println!("{}", Value::Object(digests));
    Ok(())
}

/// Products of as many rows as are generated at a time.
const ROWS: [i64; 5] = [1, 2, 3, 4, 5];

/// One beside the other: the matrix as it is where that is done for so many rows, and made wide for the product.
pub fn quantized_products() -> Result<(), TrainerError> {
    let hardware = Hardware::cuda(0, &Memory::default())?;
    let _guard = tch::no_grad_guard();
    let options = (Kind::BFloat16, hardware.device);
    for [outputs, columns] in [[4096, 4096], [14336, 4096], [4096, 14336]] {
        let matrix = Tensor::f_randn([outputs, columns], options)?;
        let quantized = Quantized::new(&matrix, Quantize::Nf4)?.expect("it has four bits");
        for rows in ROWS {
            let x = Tensor::f_randn([rows, columns], options)?;
            let made_wide = || quantized.wide(Kind::BFloat16).and_then(|mut wide| x.f_matmul(&wide.f_t_()?));
            let (ms, product) = timed(&hardware, || quantized.linear(&x, None))?;
            let (wide_ms, want) = timed(&hardware, made_wide)?;
            let apart = product.f_sub(&want)?.f_norm()?.double_value(&[]) / want.f_norm()?.double_value(&[]);
            println!(
                "{}",
                json!({"matrix": [outputs, columns], "rows": rows, "ms": ms, "wide_ms": wide_ms, "apart": apart})
            );
        }
    }
    Ok(())
}

/// The mean time of a hundred, after some that are not counted.
fn timed(hardware: &Hardware, product: impl Fn() -> Result<Tensor, TchError>) -> Result<(f64, Tensor), TrainerError> {
    for _ in 0..10 {
        let _ = product()?;
    }
    hardware.synchronize();
    let clock = Instant::now();
    for _ in 0..100 {
        let _ = product()?;
    }
    hardware.synchronize();
    Ok((clock.elapsed().as_secs_f64() * 10.0, product()?))
}

/// A hash of every bit.
fn digest(tensor: &Tensor) -> Result<String, TrainerError> {
    let bits = match tensor.kind() {
        Kind::Float => Kind::Int,
        _ => Kind::Int16,
    };
    let bits: Vec<i32> =
        Vec::try_from(tensor.f_view_dtype(bits)?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Int)?.f_reshape([-1])?)?;
    let bytes: Vec<u8> = bits.into_iter().flat_map(i32::to_le_bytes).collect();
    Ok(blake3::hash(&bytes).to_hex()[..16].to_owned())
}
