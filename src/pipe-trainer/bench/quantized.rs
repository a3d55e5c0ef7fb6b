//! Quantized matrices: what they stand for, to compare two devices, and the times of products with them.

use std::time::Instant;

use pipe_spec::pipeline::{Memory, Quantize};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, TchError, Tensor};

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
