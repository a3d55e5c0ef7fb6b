//! Functions that keep less for the backward pass than torch would: fused layers, attention, chunks, checkpointed blocks.

use std::ffi::{CString, c_char, c_int, c_void};

use tch::{Device, Kind, TchError, Tensor};
use torch_sys::C_tensor;

use super::dropout::Dropped;
use super::{checked, optional, pointer, pointers, returned};
use crate::error::TrainerError;

unsafe extern "C" {
    fn pipe_add_norm(
        input: *mut C_tensor,
        input_bias: *mut C_tensor,
        residual: *mut C_tensor,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        kind: c_int,
        eps: f64,
        dropped: *const Dropped,
        out: *mut *mut C_tensor,
        sum: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_rms_norm(
        input: *mut C_tensor,
        weight: *mut C_tensor,
        kind: c_int,
        eps: f64,
        out: *mut *mut C_tensor,
        past: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_linears(
        input: *mut C_tensor,
        layers: *const *mut C_tensor,
        total: usize,
        count: usize,
        passes: bool,
        apart: bool,
        outs: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_lay_together(weights: *const *mut C_tensor, count: usize) -> *mut c_char;
    fn pipe_linear(
        input: *mut C_tensor,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_gated_activation(
        input: *mut C_tensor,
        gate: *mut C_tensor,
        kind: i64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_turn(
        heads: *mut C_tensor,
        cosines: *mut C_tensor,
        sines: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_feed_forward(
        input: *mut C_tensor,
        layers: *const *mut C_tensor,
        kind: i64,
        dropped: *const Dropped,
        out: *mut *mut C_tensor,
        past: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// The norm of `residual` plus what a layer gave, some of it dropped.
pub struct AddNorm<'a> {
    /// The layer's output, and the bias that is still to be added. Absent, the residual itself is normed.
    pub input: Option<(&'a Tensor, Option<&'a Tensor>)>,
    pub residual: &'a Tensor,
    pub weight: &'a Tensor,
    pub bias: &'a Tensor,
    pub eps: f64,
    pub dropped: Dropped,
    /// The kind of the result; the sum has that of the residual.
    pub kind: Kind,
}

impl AddNorm<'_> {
    /// Nothing where there is no kernel for such tensors.
    pub fn forward(&self) -> Result<Option<Tensor>, TchError> {
        self.compute(None)
    }

    /// The norm, and the sum as well.
    pub fn forward_with_sum(&self) -> Result<Option<(Tensor, Tensor)>, TchError> {
        let mut sum = std::ptr::null_mut();
        let normed = self.compute(Some(&mut sum))?;
        // SAFETY: where there is a norm there is a sum, a new tensor that no one else owns.
        Ok(normed.map(|normed| (normed, unsafe { Tensor::from_ptr(sum) })))
    }

    fn compute(&self, sum: Option<&mut *mut C_tensor>) -> Result<Option<Tensor>, TchError> {
        let (input, input_bias) = self.input.map_or((None, None), |(input, bias)| (Some(input), bias));
        let mut out = std::ptr::null_mut();
        let kind = scalar_type(self.kind)?;
        // SAFETY: the pointers are of living tensors, or null; the results have room.
        checked(unsafe {
            pipe_add_norm(
                optional(input),
                optional(input_bias),
                pointer(self.residual),
                pointer(self.weight),
                pointer(self.bias),
                kind,
                self.eps,
                &raw const self.dropped,
                &raw mut out,
                sum.map_or(std::ptr::null_mut(), |sum| sum),
            )
        })?;
        // SAFETY: without an error it is null, or a new tensor that no one else owns.
        Ok((!out.is_null()).then(|| unsafe { Tensor::from_ptr(out) }))
    }
}

/// The norm of `input` by its root mean square, in `kind`, and the input as a residual: whatever its gradient is, the norm's own kernel adds it.
/// Nothing where there is no kernel for such tensors.
pub fn rms_norm(input: &Tensor, weight: &Tensor, kind: Kind, eps: f64) -> Result<Option<(Tensor, Tensor)>, TchError> {
    let (mut out, mut past) = (std::ptr::null_mut(), std::ptr::null_mut());
    let kind = scalar_type(kind)?;
    // SAFETY: the pointers are of living tensors; the results have room.
    checked(unsafe { pipe_rms_norm(pointer(input), pointer(weight), kind, eps, &raw mut out, &raw mut past) })?;
    // SAFETY: without an error both are null, or new tensors that no one else owns.
    Ok((!out.is_null()).then(|| unsafe { (Tensor::from_ptr(out), Tensor::from_ptr(past)) }))
}

/// Several products of one input as one, with all their biases or none. What comes out are slices of one tensor.
pub fn linears<const N: usize>(
    input: &Tensor,
    weights: [&Tensor; N],
    biases: Option<[&Tensor; N]>,
) -> Result<[Tensor; N], TchError> {
    let mut outs = [std::ptr::null_mut(); N];
    compute_linears(input, weights, biases, false, false, &mut outs)?;
    // SAFETY: without an error each is a new tensor that no one else owns.
    Ok(outs.map(|out| unsafe { Tensor::from_ptr(out) }))
}

/// Several products of one input, each by itself, whose gradients of the input are added up in the products that make them.
pub fn linears_apart<const N: usize>(
    input: &Tensor,
    weights: [&Tensor; N],
    biases: Option<[&Tensor; N]>,
) -> Result<[Tensor; N], TchError> {
    let mut outs = [std::ptr::null_mut(); N];
    compute_linears(input, weights, biases, false, true, &mut outs)?;
    // SAFETY: as above.
    Ok(outs.map(|out| unsafe { Tensor::from_ptr(out) }))
}

/// The same, and the input as a residual: its gradient is added by the product that makes the other one.
pub fn linears_and_residual(
    input: &Tensor,
    weights: [&Tensor; 3],
    biases: Option<[&Tensor; 3]>,
) -> Result<([Tensor; 3], Tensor), TchError> {
    let mut outs = [std::ptr::null_mut(); 4];
    compute_linears(input, weights, biases, true, false, &mut outs)?;
    // SAFETY: as above.
    let [q, k, v, residual] = outs.map(|out| unsafe { Tensor::from_ptr(out) });
    Ok(([q, k, v], residual))
}

fn compute_linears<const N: usize>(
    input: &Tensor,
    weights: [&Tensor; N],
    biases: Option<[&Tensor; N]>,
    passes: bool,
    apart: bool,
    outs: &mut [*mut C_tensor],
) -> Result<(), TchError> {
    let layers: Vec<*mut C_tensor> = weights.into_iter().chain(biases.into_iter().flatten()).map(pointer).collect();
    assert_eq!(outs.len(), N + usize::from(passes), "there is room for every result");
    // SAFETY: the pointers are of living tensors, there are N weights among them, and all results have room.
    checked(unsafe { pipe_linears(pointer(input), layers.as_ptr(), layers.len(), N, passes, apart, outs.as_mut_ptr()) })
}

/// Makes weights parts of one piece of memory, where their sizes allow it. Products with all of them need no copy then.
pub fn lay_together(weights: &[&Tensor]) -> Result<(), TchError> {
    let weights: Vec<*mut C_tensor> = weights.iter().map(|weight| pointer(weight)).collect();
    // SAFETY: the pointers are of living tensors, which nothing else reads meanwhile.
    checked(unsafe { pipe_lay_together(weights.as_ptr(), weights.len()) })
}

/// A product with weights that are wider than `input`: no narrow copy of them is kept for the backward pass.
pub fn linear(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
    // SAFETY: as above.
    returned(|out| unsafe { pipe_linear(pointer(input), pointer(weight), optional(bias), out) })
}

/// `activation` of `input`, multiplied by `gate`. On a card only.
pub fn gated_activation(input: &Tensor, gate: &Tensor, activation: i64) -> Result<Tensor, TchError> {
    // SAFETY: the pointers are of living tensors, and the result has room.
    returned(|out| unsafe { pipe_gated_activation(pointer(input), pointer(gate), activation, out) })
}

/// Heads [batch, heads, length, width] with each feature of their first half turned with the one of the second. Nothing where there is no
/// kernel for such tensors.
pub fn turn(heads: &Tensor, [cosines, sines]: [&Tensor; 2]) -> Result<Option<Tensor>, TchError> {
    let mut out = std::ptr::null_mut();
    // SAFETY: as above.
    checked(unsafe { pipe_turn(pointer(heads), pointer(cosines), pointer(sines), &raw mut out) })?;
    // SAFETY: without an error it is null, or a new tensor that no one else owns.
    Ok((!out.is_null()).then(|| unsafe { Tensor::from_ptr(out) }))
}

/// Two products with an activation between them, some of which is dropped; with a gate the activation is multiplied by a
/// third product. On a card only.
pub struct FeedForward<'a> {
    pub first: &'a Tensor,
    pub first_bias: Option<&'a Tensor>,
    pub gate: Option<&'a Tensor>,
    pub second: &'a Tensor,
    pub second_bias: Option<&'a Tensor>,
    /// As `Activation` counts them.
    pub activation: i64,
    pub dropped: Dropped,
}

impl FeedForward<'_> {
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, TchError> {
        returned(|out| self.compute(input, out, std::ptr::null_mut()))
    }

    /// The same, and the input as a residual, as `linears_and_residual` has it.
    pub fn forward_and_residual(&self, input: &Tensor) -> Result<(Tensor, Tensor), TchError> {
        let mut past = std::ptr::null_mut();
        let output = returned(|out| self.compute(input, out, &raw mut past))?;
        // SAFETY: where there is an output it is a new tensor that no one else owns.
        Ok((output, unsafe { Tensor::from_ptr(past) }))
    }

    /// `past` is null, or has room for a tensor.
    fn compute(&self, input: &Tensor, out: *mut *mut C_tensor, past: *mut *mut C_tensor) -> *mut c_char {
        let layers = [
            pointer(self.first),
            optional(self.first_bias),
            optional(self.gate),
            pointer(self.second),
            optional(self.second_bias),
        ];
        // SAFETY: the pointers are of living tensors, or null; there are five layers, and the results have room.
        unsafe {
            pipe_feed_forward(pointer(input), layers.as_ptr(), self.activation, &raw const self.dropped, out, past)
        }
    }
}

/// The number of a kind in torch, of those that the kernels know.
pub(super) fn scalar_type(kind: Kind) -> Result<c_int, TchError> {
    match kind {
        Kind::Half => Ok(5),
        Kind::Float => Ok(6),
        Kind::BFloat16 => Ok(15),
        other => Err(TchError::Kind(format!("no kernel computes in {other:?}"))),
    }
}

unsafe extern "C" {
    fn pipe_linear_cross_entropy(
        hidden: *mut C_tensor,
        weight: *mut C_tensor,
        labels: *mut C_tensor,
        ignored: i64,
        rows: i64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_gelu_feed_forward(
        x: *mut C_tensor,
        w1: *mut C_tensor,
        b1: *mut C_tensor,
        w2: *mut C_tensor,
        b2: *mut C_tensor,
        rows: i64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// The cross-entropy of `hidden` [n, d] through the head `weight` [words, d], summed over the labels [n] that are not
/// `ignored`; the logits of only `rows` rows exist at a time.
pub fn linear_cross_entropy(
    hidden: &Tensor,
    weight: &Tensor,
    labels: &Tensor,
    ignored: i64,
    rows: i64,
) -> Result<Tensor, TchError> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    // SAFETY: as above.
    returned(|out| unsafe {
        pipe_linear_cross_entropy(pointer(hidden), pointer(weight), pointer(labels), ignored, rows, out)
    })
}

/// gelu(input w1^T + b1) w2^T + b2 for `input` [n, d], with the exact gelu. What is inside exists for `rows` rows at a time,
/// and is recomputed for the gradient instead of being kept.
pub fn gelu_feed_forward(input: &Tensor, [w1, b1, w2, b2]: [&Tensor; 4], rows: i64) -> Result<Tensor, TchError> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    // SAFETY: as above.
    returned(|out| unsafe {
        pipe_gelu_feed_forward(pointer(input), pointer(w1), pointer(b1), pointer(w2), pointer(b2), rows, out)
    })
}

unsafe extern "C" {
    fn pipe_select_rows(
        input: *mut C_tensor,
        from: *mut C_tensor,
        back: *mut C_tensor,
        lost: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// Rows of `input` [rows, width] by their numbers `from`. The gradient is selected as well, by `back`, and is zero where `lost` is true: of the places
/// that a row stands in one counts.
pub fn select_rows(input: &Tensor, from: &Tensor, back: &Tensor, lost: &Tensor) -> Result<Tensor, TchError> {
    // SAFETY: the pointers are of living tensors.
    returned(|out| unsafe { pipe_select_rows(pointer(input), pointer(from), pointer(back), pointer(lost), out) })
}

unsafe extern "C" {
    fn pipe_attention(
        q: *mut C_tensor,
        k: *mut C_tensor,
        v: *mut C_tensor,
        bias: *mut C_tensor,
        lengths: *mut C_tensor,
        packing: *const *mut C_tensor,
        is_causal: bool,
        scale: f64,
        dropped: *const Dropped,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_has_attention(card: i64, has: *mut bool) -> *mut c_char;
}

/// Whether a device has the instructions that the kernels are made of.
pub fn has_attention(device: Device) -> bool {
    let Device::Cuda(card) = device else { return false };
    let mut has = false;
    // SAFETY: the result has room.
    checked(unsafe { pipe_has_attention(card as i64, &raw mut has) }).is_ok() && has
}

/// Heads of queries, keys and values: [batch, heads, length, width], bf16 or fp16.
pub struct Attention<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    /// Added to the scores: [heads, queries + keys - 1], at key - query + queries - 1. Of packed samples [heads, 2 * longest - 1], at
    /// key - query + longest - 1.
    pub bias: Option<&'a Tensor>,
    /// The number of visible keys of each sample, int32.
    pub lengths: Option<&'a Tensor>,
    /// Where samples are packed in a batch of 1: offsets and tiles of the queries, and of the keys.
    pub packed: Option<[&'a Tensor; 4]>,
    /// Hides key j from query i where j > i + keys - queries.
    pub is_causal: bool,
    pub scale: f64,
    pub dropped: Dropped,
}

impl Attention<'_> {
    /// [batch, queries, heads, width]; nothing where there is no kernel for such tensors.
    pub fn forward(&self) -> Result<Option<Tensor>, TchError> {
        let mut out = std::ptr::null_mut();
        let packing = self.packed.map_or([std::ptr::null_mut(); 4], |tensors| tensors.map(pointer));
        // SAFETY: the pointers are of living tensors, or null; the result has room.
        checked(unsafe {
            pipe_attention(
                pointer(self.q),
                pointer(self.k),
                pointer(self.v),
                optional(self.bias),
                optional(self.lengths),
                packing.as_ptr(),
                self.is_causal,
                self.scale,
                &raw const self.dropped,
                &raw mut out,
            )
        })?;
        // SAFETY: without an error it is null, or a new tensor that no one else owns.
        Ok((!out.is_null()).then(|| unsafe { Tensor::from_ptr(out) }))
    }
}

/// Called on the thread of the backward pass, and dropped on any.
type Block = dyn Fn(&[&Tensor]) -> Result<Tensor, TrainerError> + Send + Sync;

unsafe extern "C" {
    fn strdup(text: *const c_char) -> *mut c_char;
    fn pipe_checkpoint(
        block: unsafe extern "C" fn(*mut c_void, *mut *mut C_tensor, usize, *mut *mut C_tensor) -> *mut c_char,
        data: *mut c_void,
        drop: unsafe extern "C" fn(*mut c_void),
        inputs: *const *mut C_tensor,
        count: usize,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// `block` of the inputs. It is called once now, and once more when the gradient is computed: it must do the same both
/// times, its random numbers included.
pub fn checkpoint(
    inputs: &[&Tensor],
    block: impl Fn(&[&Tensor]) -> Result<Tensor, TrainerError> + Send + Sync + 'static,
) -> Result<Tensor, TchError> {
    let block: Box<Box<Block>> = Box::new(Box::new(block));
    let inputs = pointers(inputs);
    // SAFETY: the other side owns the box from here on and gives it back to `drop_block` once.
    returned(|out| unsafe {
        pipe_checkpoint(call_block, Box::into_raw(block).cast(), drop_block, inputs.as_ptr(), inputs.len(), out)
    })
}

/// The other side calls this, on whichever thread the backward pass runs.
unsafe extern "C" fn call_block(
    data: *mut c_void,
    inputs: *mut *mut C_tensor,
    count: usize,
    output: *mut *mut C_tensor,
) -> *mut c_char {
    let work = || -> Result<Tensor, TrainerError> {
        // SAFETY: `data` is the box of `checkpoint`, and there are `count` inputs. They belong to the other side, so what is
        // made of them here is a second handle on each.
        let (block, inputs): (_, Vec<Tensor>) = unsafe {
            let inputs = std::slice::from_raw_parts(inputs, count);
            (&*data.cast::<Box<Block>>(), inputs.iter().map(|input| Tensor::clone_from_ptr(*input)).collect())
        };
        block(&inputs.iter().collect::<Vec<_>>())
    };
    match crate::boundary::guard(work) {
        Ok(tensor) => {
            // SAFETY: the other side deletes the handle; ours must not.
            unsafe { *output = tensor.as_ptr().cast_mut() };
            std::mem::forget(tensor);
            std::ptr::null_mut()
        }
        Err(error) => {
            let message = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
            // Where there is no memory for the copy the other side sees neither an error nor a tensor, and knows why.
            // SAFETY: it is a C string; the other side frees the copy.
            unsafe { strdup(message.as_ptr()) }
        }
    }
}

unsafe extern "C" fn drop_block(data: *mut c_void) {
    // SAFETY: it is the box of `checkpoint`, given back once.
    drop(unsafe { Box::from_raw(data.cast::<Box<Block>>()) });
}

#[cfg(test)]
mod checkpoint_tests {
    use super::*;

    #[test]
    fn a_block_without_an_answer_is_an_error() {
        let input = Tensor::from_slice(&[1.0f32]).set_requires_grad(true);
        let fails = |_: &[&Tensor]| Err(TrainerError::Panic { message: "on purpose".to_owned() });
        let error = checkpoint(&[&input], fails).unwrap_err().to_string();
        assert!(error.contains("on purpose"), "{error}");
    }
}

#[cfg(test)]
mod weight_gradient_tests {
    use super::*;
    use crate::torch::set_gradient;

    fn random(shape: &[i64], kind: Kind) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
    }

    fn parameter(shape: &[i64]) -> Tensor {
        random(shape, Kind::Float).set_requires_grad(true)
    }

    /// The gradients of what `outs` would be with `weight` and `bias`, in fp64: of the weight, the bias and the input.
    fn expected(inputs: &[Tensor], d_outs: &[Tensor], weight: &Tensor) -> [Tensor; 3] {
        let rows = |tensor: &Tensor| tensor.to_kind(Kind::Double).reshape([-1, tensor.size()[2]]);
        let sum = |terms: Vec<Tensor>| Tensor::stack(&terms, 0).sum_dim_intlist(0, false, Kind::Double);
        let pairs = || inputs.iter().zip(d_outs).map(|(input, d_out)| (rows(input), rows(d_out)));
        [
            sum(pairs().map(|(input, d_out)| d_out.tr().matmul(&input)).collect()),
            sum(pairs().map(|(_, d_out)| d_out.sum_dim_intlist(0, false, Kind::Double)).collect()),
            rows(d_outs.last().unwrap()).matmul(&weight.to_kind(Kind::Double)),
        ]
    }

    fn assert_close(got: &Tensor, want: &Tensor, tolerance: f64, what: &str) {
        let error = (got.to_kind(Kind::Double).reshape(want.size()) - want).norm() / want.norm();
        assert!(error.double_value(&[]) < tolerance, "{what}: {error:?}");
    }

    /// A gradient that is there is added to where it lies; without one there is a new one.
    #[test]
    fn parts_of_a_step_add_up() {
        for (kind, tolerance) in [(Kind::Float, 1e-6), (Kind::BFloat16, 1e-2)] {
            for given in [false, true] {
                let (weight, bias) = (parameter(&[6, 10]), parameter(&[6]));
                let place = Tensor::zeros([6, 10], (Kind::Float, Device::Cpu));
                if given {
                    set_gradient(&weight, Some(&place)).unwrap();
                }
                let inputs = [0, 1].map(|_| random(&[2, 4, 10], kind).set_requires_grad(true));
                let d_outs = [0, 1].map(|_| random(&[2, 4, 6], kind));
                for (input, d_out) in inputs.iter().zip(&d_outs) {
                    let out = linear(input, &weight, Some(&bias)).unwrap();
                    (out * d_out).sum(Kind::Float).backward();
                }
                let [d_weight, d_bias, d_input] = expected(&inputs, &d_outs, &weight);
                assert_close(&weight.grad(), &d_weight, tolerance, "the weight");
                assert_close(&bias.grad(), &d_bias, tolerance, "the bias");
                assert_close(&inputs[1].grad(), &d_input, tolerance, "the input");
                assert_eq!(weight.grad().data_ptr() == place.data_ptr(), given);
            }
        }
    }

    #[test]
    fn a_weight_that_is_not_trained_has_no_gradient() {
        let weight = random(&[6, 10], Kind::Float);
        let input = random(&[2, 4, 10], Kind::BFloat16).set_requires_grad(true);
        linear(&input, &weight, None).unwrap().sum(Kind::Float).backward();
        assert!(input.grad().defined() && !weight.grad().defined());
    }

    /// Gradients that lie beside each other are taken as they are, and others are put together; a residual's is added.
    #[test]
    fn several_products_take_their_gradients_however_they_lie() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let tolerance = if kind == Kind::Float { 1e-6 } else { 1e-2 };
            for beside in [false, true] {
                let weights = [0, 1, 2].map(|_| parameter(&[6, 10]));
                let biases = [0, 1, 2].map(|_| parameter(&[6]));
                let input = random(&[2, 4, 10], kind).set_requires_grad(true);
                let d_out = random(&[2, 4, 18], kind);
                let d_outs = [0, 6, 12].map(|start| d_out.narrow(2, start, 6));
                let d_outs = if beside { d_outs } else { d_outs.map(|one| one.contiguous()) };
                let d_residual = random(&[2, 4, 10], kind);
                let (outs, residual) =
                    linears_and_residual(&input, weights.each_ref(), Some(biases.each_ref())).unwrap();
                assert_eq!(residual, input);
                let outs: Vec<Tensor> = outs.into_iter().chain([residual]).collect();
                let given: Vec<Tensor> = d_outs.iter().chain([&d_residual]).map(Tensor::shallow_clone).collect();
                let scalars: Vec<Tensor> = outs.iter().zip(&given).map(|(out, d)| (out * d).sum(Kind::Float)).collect();
                Tensor::stack(&scalars, 0).sum(Kind::Float).backward();
                let mut d_input = d_residual.to_kind(Kind::Double).reshape([-1, 10]);
                for ((weight, bias), d_out) in weights.iter().zip(&biases).zip(&d_outs) {
                    let [d_weight, d_bias, d_in] =
                        expected(&[input.detach()], &[d_out.shallow_clone()], &weight.to_kind(kind));
                    assert_close(&weight.grad(), &d_weight, tolerance, "a weight");
                    assert_close(&bias.grad(), &d_bias, tolerance, "a bias");
                    d_input += d_in;
                }
                assert_close(&input.grad(), &d_input, tolerance, "the input");
            }
        }
    }
}
