//! Weights that are not trained, in 4 or 8 bits for each number, with the numbers of bitsandbytes: NormalFloat in blocks of 64 whose scales
//! are quantized themselves (Dettmers et al., 2023), and whole numbers scaled by row (Dettmers et al., 2022).

use pipe_model::{Adaptable, Parameter};
use pipe_spec::pipeline::Quantize;
use tch::{Device, Kind, TchError, Tensor};

use crate::dynamic_map::{self, Codes, Sign};
use crate::torch::{self, OuterScales, QuantizedMatrix};

/// Numbers that share a scale, of 4 bits.
const BLOCK: i64 = 64;

/// Numbers that are quantized at a time: what that holds besides is small however large a matrix is.
const CHUNK: i64 = 1 << 22;

/// Which layers of a model have quantized weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedLayers {
    pub kind: Quantize,
    pub layers: Adaptable,
}

impl QuantizedLayers {
    pub const NONE: Self = Self { kind: Quantize::None, layers: Adaptable::NONE };

    /// How the weights of a parameter are kept.
    pub fn of(&self, parameter: &Parameter) -> Quantize {
        let layer = parameter.name.strip_suffix(".weight").filter(|_| parameter.frozen && parameter.shape.len() == 2);
        match layer.and_then(|path| self.layers.position(path)) {
            Some(_) => self.kind,
            None => Quantize::None,
        }
    }
}

/// A matrix [rows, columns].
pub struct Quantized {
    codes: Tensor,
    scales: Tensor,
    outer: Option<Outer>,
    rows: i64,
    columns: i64,
}

/// The scales of scales, of 4 bits alone.
struct Outer {
    scales: Tensor,
    map: Tensor,
    offset: f32,
}

// SAFETY: nothing but reads go through it, which libtorch allows from several threads at once.
unsafe impl Sync for Quantized {}

impl Quantized {
    /// Quantizes a matrix of any kind, on its device.
    pub fn new(matrix: &Tensor, kind: Quantize) -> Result<Option<Self>, TchError> {
        let _guard = tch::no_grad_guard();
        match kind {
            Quantize::None => Ok(None),
            Quantize::Int8 => Self::by_row(matrix).map(Some),
            Quantize::Nf4 => Self::by_block(matrix).map(Some),
        }
    }

    /// The matrix as `kind`.
    pub fn wide(&self, kind: Kind) -> Result<Tensor, TchError> {
        self.matrix().wide(kind)
    }

    /// The product of `input` with it, in the kind of `input`.
    pub fn linear(&self, input: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
        self.matrix().linear(input, bias)
    }

    pub fn bytes(&self) -> u64 {
        let of = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        of(&self.codes) + of(&self.scales) + self.outer.as_ref().map_or(0, |outer| of(&outer.scales) + of(&outer.map))
    }

    fn matrix(&self) -> QuantizedMatrix<'_> {
        let Self { codes, scales, outer, rows, columns } = self;
        let outer = outer.as_ref().map(|Outer { scales, map, offset }| OuterScales { scales, map, offset: *offset });
        QuantizedMatrix { codes, scales, outer, rows: *rows, columns: *columns }
    }

    /// LLM.int8(): fp16 divided by the largest of its row.
    fn by_row(matrix: &Tensor) -> Result<Self, TchError> {
        let (rows, columns) = matrix.size2()?;
        let codes = Tensor::f_empty([rows, columns], (Kind::Int8, matrix.device()))?;
        let scales = Tensor::f_empty([rows], (Kind::Float, matrix.device()))?;
        let at_once = (CHUNK / columns).max(1);
        for first in (0..rows).step_by(at_once as usize) {
            let count = at_once.min(rows - first);
            let part = matrix.f_narrow(0, first, count)?.f_to_kind(Kind::Half)?;
            let largest = part.f_abs()?.f_amax([1].as_slice(), false)?.f_to_kind(Kind::Float)?;
            let factor = largest.f_reciprocal()?.f_mul_scalar(127.0)?.f_unsqueeze(1)?;
            // A row of zeros is none by infinity.
            let rounded = part.f_to_kind(Kind::Float)?.f_mul(&factor)?.f_nan_to_num(0.0, None, None)?.f_round()?;
            codes.f_narrow(0, first, count)?.f_copy_(&rounded.f_to_kind(Kind::Int8)?)?;
            scales.f_narrow(0, first, count)?.f_copy_(&largest)?;
        }
        Ok(Self { codes, scales, outer: None, rows, columns })
    }

    /// The scales are few: they are quantized on the host.
    fn by_block(matrix: &Tensor) -> Result<Self, TchError> {
        let (rows, columns) = matrix.size2()?;
        let device = matrix.device();
        let flat = matrix.f_contiguous()?.f_reshape([-1])?;
        let count = rows * columns;
        let middles: Vec<f32> = torch::nf4_numbers().windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
        let middles = Tensor::f_from_slice(&middles)?.f_to_device(device)?;
        let codes = Tensor::f_empty([(count + 1) / 2], (Kind::Uint8, device))?;
        let mut scales = Vec::new();
        for first in (0..count).step_by(CHUNK as usize) {
            let part = flat.f_narrow(0, first, CHUNK.min(count - first))?.f_to_kind(Kind::Float)?;
            let (largest, scaled) = dynamic_map::scaled_by_block(&part, BLOCK)?;
            let scaled = if scaled.size()[0] % 2 == 0 { scaled } else { scaled.f_constant_pad_nd([0, 1])? };
            let pairs = scaled.f_bucketize(&middles, true, false)?.f_view([-1, 2])?;
            let packed = pairs.f_select(1, 0)?.f_mul_scalar(16)?.f_add(&pairs.f_select(1, 1)?)?;
            codes.f_narrow(0, first / 2, packed.size()[0])?.f_copy_(&packed.f_to_kind(Kind::Uint8)?)?;
            scales.push(largest.f_to_device(Device::Cpu)?);
        }
        let scales = Tensor::f_cat(&scales, 0)?;
        let offset = mean(&scales)?;
        let Codes { codes: scale_codes, scales: outer } =
            dynamic_map::quantize(&scales.f_sub_scalar(f64::from(offset))?, Sign::Either)?;
        let there = |tensor: Tensor| tensor.f_to_device(device);
        let map = Tensor::f_from_slice(&dynamic_map::numbers(Sign::Either))?;
        let outer = Outer { scales: there(outer)?, map: there(map)?, offset };
        Ok(Self { codes, scales: there(scale_codes)?, outer: Some(outer), rows, columns })
    }
}

/// Added up in double precision and one by one, so that it is the same on every machine.
fn mean(values: &Tensor) -> Result<f32, TchError> {
    let values: Vec<f32> = Vec::try_from(values)?;
    Ok((values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64) as f32)
}

#[cfg(test)]
mod tests {
    use pipe_model::Init;

    use super::*;
    use crate::storage::TensorFiles;

    /// The matrices of bitsandbytes: make_quantized.py.
    fn fixture() -> TensorFiles {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/quantized/weights.safetensors");
        TensorFiles::open_file(path.as_ref()).unwrap()
    }

    fn same_bits(what: &str, got: &Tensor, want: &Tensor) {
        assert_eq!((got.size(), got.kind()), (want.size(), want.kind()), "{what}");
        let differ = got.ne_tensor(want).sum(Kind::Int64).int64_value(&[]);
        assert_eq!(differ, 0, "{what}: {differ} of {} numbers differ", want.numel());
    }

    #[test]
    fn four_bits_are_those_of_bitsandbytes() {
        let files = fixture();
        let read = |name: &str| files.read(name).unwrap();
        for name in ["whole", "tail", "odd"] {
            let of = |what: &str| read(&format!("{name}.nf4.{what}"));
            let made = Quantized::by_block(&read(&format!("{name}.weight"))).unwrap();
            let outer = made.outer.as_ref().unwrap();
            same_bits(name, &made.codes, &of("packed"));
            same_bits(&format!("scales of {name}"), &made.scales, &of("scales"));
            same_bits(&format!("scales of scales of {name}"), &outer.scales, &of("scales_of_scales"));
            assert_eq!(f64::from(outer.offset), of("offset").double_value(&[0]), "{name}");
            same_bits(&format!("{name} in fp32"), &made.wide(Kind::Float).unwrap(), &of("fp32"));
            if name != "whole" {
                same_bits(&format!("{name} in bf16"), &made.wide(Kind::BFloat16).unwrap(), &of("bf16"));
            }
        }
    }

    #[test]
    fn eight_bits_are_those_of_bitsandbytes() {
        let files = fixture();
        let read = |name: &str| files.read(&format!("int8.{name}")).unwrap();
        let made = Quantized::by_row(&read("weight")).unwrap();
        same_bits("codes", &made.codes, &read("codes"));
        same_bits("scales", &made.scales, &read("stats"));
        same_bits("fp32", &made.wide(Kind::Float).unwrap(), &read("fp32"));
        same_bits("bf16", &made.wide(Kind::BFloat16).unwrap(), &read("bf16"));
    }

    /// Quantized a chunk at a time a matrix has the codes of the whole.
    #[test]
    fn chunks_leave_no_mark() {
        let rows = 3 * CHUNK / 4096 + 1;
        let matrix = Tensor::randn([rows, 4096], (Kind::Float, Device::Cpu));
        let first = |kind| {
            let whole = Quantized::new(&matrix, kind).unwrap().unwrap();
            let last = Quantized::new(&matrix.narrow(0, rows - 16, 16), kind).unwrap().unwrap();
            (whole, last)
        };
        let (whole, last) = first(Quantize::Int8);
        same_bits("rows", &whole.codes.narrow(0, rows - 16, 16), &last.codes);
        let (whole, last) = first(Quantize::Nf4);
        let count = last.codes.size()[0];
        same_bits("blocks", &whole.codes.narrow(0, whole.codes.size()[0] - count, count), &last.codes);
        // A number, and with it a scale of 8 bits for 64 of them and one of fp32 for 256 of these.
        assert_eq!(whole.bytes() as i64, rows * 4096 / 2 + rows * 64 + (rows + 3) / 4 * 4 + 1024);
    }

    #[test]
    fn a_product_and_its_gradient_are_those_of_the_wide_matrix() {
        for (kind, precision) in
            [(Quantize::Nf4, Kind::Float), (Quantize::Int8, Kind::Float), (Quantize::Nf4, Kind::BFloat16)]
        {
            let options = (precision, Device::Cpu);
            let matrix = Tensor::randn([24, 40], options);
            let made = Quantized::new(&matrix, kind).unwrap().unwrap();
            let wide = made.wide(precision).unwrap();
            let bias = Tensor::randn([24], options);
            let [one, other] = [(); 2].map(|()| Tensor::ones([2, 3, 40], options).set_requires_grad(true));
            let (got, want) = (made.linear(&one, Some(&bias)).unwrap(), other.linear(&wide, Some(&bias)));
            let near = |got: &Tensor, want: &Tensor| {
                got.allclose(want, 1e-2, if precision == Kind::Float { 1e-5 } else { 0.1 }, false)
            };
            assert!(near(&got, &want), "{kind:?}");
            let weight = Tensor::randn(got.size(), options);
            (&got * &weight).sum(precision).backward();
            (&want * &weight).sum(precision).backward();
            assert_eq!(one.grad().size(), [2, 3, 40]);
            assert!(near(&one.grad(), &other.grad()), "{kind:?}");
        }
    }

    #[test]
    fn only_frozen_matrices_of_named_layers_are_quantized() {
        let layers = QuantizedLayers { kind: Quantize::Nf4, layers: Adaptable::named(&["q_proj"]) };
        let of = |name: &str, shape: &[i64], frozen| {
            layers.of(&Parameter { frozen, ..Parameter::new(name, shape, Init::Constant(0.0)) })
        };
        assert_eq!(of("layers.0.q_proj.weight", &[2, 2], true), Quantize::Nf4);
        assert_eq!(of("layers.0.q_proj.weight", &[2, 2], false), Quantize::None);
        assert_eq!(of("layers.0.q_proj.bias", &[2], true), Quantize::None);
        assert_eq!(of("embed_tokens.weight", &[2, 2], true), Quantize::None);
        assert_eq!(of("layers.0.my_q_proj.weight", &[2, 2], true), Quantize::None);
    }
}
