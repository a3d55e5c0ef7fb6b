//! A part of a step as tensors.

use pipe_spec::pipeline::{Data, Pad};
use tch::{Device, TchError, Tensor};

use super::Sample;

/// The label that no loss is taken of.
pub const IGNORED: i64 = -100;

/// What a model is given, each [batch, length].
pub struct Part {
    pub input_ids: Tensor,
    /// 1 where there is a token, 0 where there is padding.
    pub attention_mask: Tensor,
    /// `IGNORED` where there is padding.
    pub labels: Tensor,
}

/// How samples become tensors.
#[derive(Clone, Copy, Debug)]
pub struct PartShape {
    pad_token_id: i64,
    /// Lengths that every part has; absent pads to its longest sample.
    fixed: Option<(usize, usize)>,
    device: Device,
}

impl PartShape {
    pub fn new(data: &Data, pad_token_id: i64, device: Device) -> Self {
        let fixed = match data.pad {
            Pad::Longest => None,
            Pad::Max => Some((data.max_source.get() as usize, data.max_target.get() as usize)),
        };
        Self { pad_token_id, fixed, device }
    }

    /// The lengths of source and target in a part of these samples. On a card they are rounded up: attention kernels want
    /// rows that begin at whole 32 bytes, and copy the bias otherwise.
    pub fn lengths(&self, samples: &[Sample]) -> (usize, usize) {
        let multiple = if self.device.is_cuda() { 16 } else { 1 };
        let longest = |length: fn(&Sample) -> usize| {
            samples.iter().map(length).max().unwrap_or(0).max(1).next_multiple_of(multiple)
        };
        self.fixed.unwrap_or_else(|| (longest(|sample| sample.source.len()), longest(|sample| sample.target.len())))
    }

    pub fn collate(&self, samples: &[Sample]) -> Result<Part, TchError> {
        let (source, target) = self.lengths(samples);
        let tensor = |rows: Vec<i64>, length: usize| {
            Tensor::f_from_slice(&rows)?.f_reshape([samples.len() as i64, length as i64])?.f_to_device(self.device)
        };
        let rows = |length: usize, row: &dyn Fn(&Sample) -> Vec<i64>, padding: i64| {
            samples.iter().flat_map(|sample| padded(row(sample), length, padding)).collect::<Vec<i64>>()
        };
        Ok(Part {
            input_ids: tensor(rows(source, &|sample| sample.source.clone(), self.pad_token_id), source)?,
            attention_mask: tensor(rows(source, &|sample| vec![1; sample.source.len()], 0), source)?,
            labels: tensor(rows(target, &|sample| sample.target.clone(), IGNORED), target)?,
        })
    }
}

fn padded(mut row: Vec<i64>, length: usize, padding: i64) -> Vec<i64> {
    row.resize(length, padding);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_to_the_longest_or_to_the_given_lengths() {
        let samples =
            [Sample { source: vec![5, 1], target: vec![7, 8, 1] }, Sample { source: vec![1], target: vec![1] }];
        let shape = PartShape { pad_token_id: 0, fixed: None, device: Device::Cpu };
        let part = shape.collate(&samples).unwrap();
        assert_eq!(Vec::<Vec<i64>>::try_from(&part.input_ids).unwrap(), [[5, 1], [1, 0]]);
        assert_eq!(Vec::<Vec<i64>>::try_from(&part.attention_mask).unwrap(), [[1, 1], [1, 0]]);
        assert_eq!(Vec::<Vec<i64>>::try_from(&part.labels).unwrap(), [[7, 8, 1], [1, IGNORED, IGNORED]]);
        let fixed = PartShape { fixed: Some((4, 6)), ..shape }.collate(&samples).unwrap();
        assert_eq!((fixed.input_ids.size(), fixed.labels.size()), (vec![2, 4], vec![2, 6]));
    }
}
