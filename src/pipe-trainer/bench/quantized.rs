//! Quantized matrices and what they stand for, to compare two devices.

use pipe_spec::pipeline::{Memory, Quantize};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use crate::cli::QuantizedWeightsArgs;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::model::Quantized;

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
