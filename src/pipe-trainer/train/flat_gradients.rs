//! The gradients of all trained parameters in one bucket of memory, so that parts add to the same place and ranks sum few large buckets.

use tch::Tensor;

use crate::error::TrainerError;
use crate::model::Weights;
use crate::torch;

/// Gradients begin at multiples of so many elements, as kernels want them.
const ALIGNED: i64 = 16;

/// Of a bucket that is summed at a time, at most: large enough for the whole of a link, and several of them, so that the first are summed
/// while the last are computed.
const BUCKET_BYTES: usize = 25 << 20;
const LEAST_BUCKETS: usize = 8;

pub struct FlatGradients {
    whole: Tensor,
    /// By parameter, in their order.
    each: Vec<Tensor>,
    /// What is summed at a time. The gradients of the last parameters, which are complete first, come first.
    pub buckets: Vec<Tensor>,
    /// The bucket of each parameter.
    pub bucket_of: Vec<usize>,
}

impl FlatGradients {
    pub fn of(weights: &Weights) -> Result<Self, TrainerError> {
        let all: Vec<&Tensor> = weights.trained().map(|(_, tensor)| tensor).collect();
        let Some(first) = all.first() else { return Err(TrainerError::Panic { message: "nothing is trained".into() }) };
        let room = |tensor: &Tensor| (tensor.numel() as i64 + ALIGNED - 1) / ALIGNED * ALIGNED;
        let total = all.iter().map(|tensor| room(tensor)).sum::<i64>();
        let whole = Tensor::f_zeros([total], (first.kind(), first.device()))?;
        let bytes = |elements: i64| elements as usize * first.kind().elt_size_in_bytes();
        let most = BUCKET_BYTES.min(bytes(total).div_ceil(LEAST_BUCKETS));
        let mut flat = Self { whole, each: Vec::new(), buckets: Vec::new(), bucket_of: vec![0; all.len()] };
        let (mut start, mut begun) = (0, 0);
        for (index, tensor) in all.iter().enumerate().rev() {
            flat.each.push(flat.whole.f_narrow(0, start, tensor.numel() as i64)?.f_view(&tensor.size()[..])?);
            flat.bucket_of[index] = flat.buckets.len();
            start += room(tensor);
            if bytes(start - begun) >= most || index == 0 {
                flat.buckets.push(flat.whole.f_narrow(0, begun, start - begun)?);
                begun = start;
            }
        }
        flat.each.reverse();
        Ok(flat)
    }

    /// Makes them zero and those of the parameters.
    pub fn begin(&self, weights: &Weights) -> Result<(), TrainerError> {
        let _ = self.whole.shallow_clone().f_zero_()?;
        for ((_, parameter), gradient) in weights.trained().zip(&self.each) {
            torch::set_gradient(parameter, Some(gradient))?;
        }
        Ok(())
    }
}
