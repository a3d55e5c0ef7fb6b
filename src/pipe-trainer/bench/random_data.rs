//! Random tokens, pictures, numbers and labels.

use pipe_model::TaskData;
use tch::{Device, Kind, TchError, Tensor};

use crate::cli::BenchArgs;
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::Mode;
use crate::train::Parts;

pub fn part(args: &BenchArgs, task_data: &TaskData, device: Device) -> Result<Part, TrainerError> {
    tch::manual_seed(1);
    let maker = Maker { batch: args.batch, padded: args.padded, device };
    Ok(match task_data {
        TaskData::Seq2Seq { vocab_size, .. } => {
            let part = maker.text(*vocab_size, args.source)?;
            part.with("labels", maker.whole(*vocab_size, &[args.batch, args.target])?)
        }
        TaskData::Classification { vocab_size, labels, .. } => {
            let classes = labels.as_ref().map_or(2, |labels| labels.count() as u64);
            maker
                .text(*vocab_size, args.source)?
                .with("labels", maker.whole(classes + 2, &[args.batch])?.f_sub_scalar(2)?)
        }
        TaskData::Contrastive { vocab_size, num_channels, image_size, max_length, .. } => {
            let pixels = maker.real(&[args.batch, *num_channels, *image_size, *image_size])?;
            let length = args.source.min(i64::from(*max_length));
            maker.text(*vocab_size, length)?.with("pixel_values", pixels)
        }
        TaskData::TimeSeries { features, sequence_length, classes, .. } => {
            let labels = maker.whole(*classes as u64 + 2, &[args.batch])?.f_sub_scalar(2)?;
            Part::default().with("x", maker.real(&[args.batch, *sequence_length, *features])?).with("labels", labels)
        }
        TaskData::Language { vocab_size, .. } => {
            let ids = maker.whole(*vocab_size, &[args.batch, args.source])?;
            Part::default().with("labels", ids.shallow_clone()).with("ids", ids)
        }
    })
}

struct Maker {
    batch: i64,
    padded: bool,
    device: Device,
}

impl Maker {
    /// Tokens, and a mask that hides the last of the first row where there is to be one.
    fn text(&self, words: u64, length: i64) -> Result<Part, TchError> {
        let part = Part::default().with("input_ids", self.whole(words, &[self.batch, length])?);
        if !self.padded {
            return Ok(part);
        }
        let mask = Tensor::f_ones([self.batch, length], (Kind::Int64, Device::Cpu))?;
        let _ = mask.f_get(0)?.f_narrow(0, length - 1, 1)?.f_zero_()?;
        part.with_mask(&mask, self.device)
    }

    /// Numbers from 2 to below `end`.
    fn whole(&self, end: u64, shape: &[i64]) -> Result<Tensor, TchError> {
        Tensor::f_randint_low(2, end as i64, shape, (Kind::Int64, Device::Cpu))?.f_to_device(self.device)
    }

    fn real(&self, shape: &[i64]) -> Result<Tensor, TchError> {
        Tensor::f_randn(shape, (Kind::Float, self.device))
    }
}

/// One part as often as a step has parts.
pub struct Repeated<'a> {
    pub part: &'a Part,
    pub count: usize,
    pub mode: Mode,
}

impl Parts for Repeated<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn load(&self, _: usize) -> Result<(Part, Mode), TrainerError> {
        Ok((self.part.shallow_clone(), self.mode))
    }

    fn before_backward(&self, _: usize) -> Result<(), TrainerError> {
        Ok(())
    }

    fn first_sample(&self, index: usize) -> i64 {
        let samples = self.part.tensors().next().map_or(0, |(_, tensor)| tensor.size()[0]);
        index as i64 * samples
    }
}
