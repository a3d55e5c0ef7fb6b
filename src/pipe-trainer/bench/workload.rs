//! The workload of a benchmark: models of published sizes, random data, and sums that stand in for those of other ranks.

use std::thread;

use pipe_model::{Labels, TaskData};
use serde_json::{Value, json};
use tch::{Device, Kind, TchError, Tensor};

use crate::cli::BenchArgs;
use crate::data::{Column, IGNORED, Packed, Padding, Part, PartShape, REJECTED_PREFIX, Sample};
use crate::error::TrainerError;
use crate::model::{Mode, Model, Weights};
use crate::torch::{BucketSums, Link};
use crate::train::{FlatGradients, Parts};

pub struct Bench {
    pub arch: String,
    pub config: Value,
    /// Instead of what the config says.
    pub dropout: Option<f64>,
}

const MODELS: &str = "t5-small, t5-base, t5-large, t5-xl, bert-base, bert-large, deberta-v3-base, clip-vit-b-32, mu-sota, llama-1b, llama-8b";

impl Bench {
    /// The model that the command line asks for: any architecture with its config, or one of a published size.
    pub fn asked(args: &BenchArgs) -> Result<Self, TrainerError> {
        let fail = |key: &str, message: String| TrainerError::config(key, message);
        match (&args.model.name, &args.model.arch) {
            (Some(name), _) => Self::named(name),
            (None, Some(arch)) => {
                let config = args.model.config.as_deref().unwrap_or("{}");
                let config = serde_json::from_str(config).map_err(|error| fail("--config", error.to_string()))?;
                Ok(Self { arch: arch.clone(), config, dropout: None })
            }
            (None, None) => Err(fail("--model", format!("missing; give one of {MODELS}, or --arch and --config"))),
        }
    }

    fn named(name: &str) -> Result<Self, TrainerError> {
        let t5 = |d_model: i64, d_ff: i64, layers: i64, heads: i64| Self {
            arch: "t5".to_owned(),
            // Version 1.1.
            config: json!({
                "d_model": d_model, "d_ff": d_ff, "d_kv": 64, "num_layers": layers, "num_heads": heads,
                "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
            }),
            dropout: Some(0.1),
        };
        let bert = |width: i64, layers: i64, heads: i64| Self {
            arch: "bert".to_owned(),
            config: json!({
                "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
                "num_attention_heads": heads, "vocab_size": 30522,
            }),
            dropout: Some(0.1),
        };
        let llama = |width: i64, inner: i64, layers: i64, tied: bool| Self {
            arch: "llama".to_owned(),
            // Version 3.
            config: json!({
                "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 32,
                "num_key_value_heads": 8, "vocab_size": 128_256, "max_position_embeddings": 8192, "tie_word_embeddings": tied,
            }),
            dropout: Some(0.0),
        };
        Ok(match name {
            "t5-small" => t5(512, 1024, 8, 6),
            "t5-base" => t5(768, 2048, 12, 12),
            "t5-large" => t5(1024, 2816, 24, 16),
            "t5-xl" => t5(2048, 5120, 24, 32),
            "bert-base" => bert(768, 12, 12),
            "bert-large" => bert(1024, 24, 16),
            "deberta-v3-base" => Self {
                arch: "deberta-v3".to_owned(),
                config: json!({
                    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
                    "vocab_size": 128_100, "relative_attention": true, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
                    "share_att_key": true, "pos_att_type": "p2c|c2p", "position_biased_input": false, "type_vocab_size": 0,
                }),
                dropout: Some(0.1),
            },
            // The defaults of its config are this size; it drops nothing.
            "clip-vit-b-32" => Self { arch: "clip".to_owned(), config: json!({}), dropout: Some(0.0) },
            "mu-sota" => Self { arch: "mu-sota".to_owned(), config: json!({}), dropout: Some(0.1) },
            "llama-1b" => llama(2048, 8192, 16, true),
            "llama-8b" => llama(4096, 14_336, 32, false),
            _ => {
                let message = format!("found {name:?}; allowed: {MODELS}");
                return Err(TrainerError::config("--model", message));
            }
        })
    }
}

/// The part of a timed step.
pub struct Workload {
    pub part: Part,
    /// How its samples stand.
    pub rows: &'static str,
    /// The share of the rows that would be padding.
    pub padding: f64,
    /// Tokens that are no padding.
    pub tokens: i64,
}

impl Workload {
    /// Full rows as in a training; or for each share that is to be tokens, the same samples in both forms.
    pub fn all(
        args: &BenchArgs,
        task_data: &TaskData,
        model: &dyn Model,
        device: Device,
    ) -> Result<Vec<Self>, TrainerError> {
        const PADDED: &str = "padded";
        const PACKED: &str = "packed";
        let of = |part: &Part, rows, fill: Option<f64>| -> Result<Self, TrainerError> {
            let (tokens, whole) = counted(part, task_data)?;
            let part =
                if rows == PACKED { packed(part, task_data, model, device, false)? } else { part.shallow_clone() };
            let padding = fill.map_or(0.0, |_| 1.0 - tokens as f64 / whole.max(1) as f64);
            Ok(Self { part, rows, padding, tokens })
        };
        if args.rows.fill_of_rows.is_empty() {
            let rows = if model.packs() { PACKED } else { PADDED };
            return Ok(vec![of(&part(args, task_data, None, device)?, rows, None)?]);
        }
        let mut all = Vec::new();
        for fill in args.rows.fill_of_rows.iter().copied() {
            if !(fill > 0.0 && fill <= 1.0) {
                let message = format!("found {fill}; allowed: above 0, at most 1");
                return Err(TrainerError::config("--fill-of-rows", message));
            }
            let part = part(args, task_data, Some(fill), device)?;
            for rows in [PADDED, PACKED] {
                all.push(of(&part, rows, Some(fill))?);
            }
        }
        Ok(all)
    }
}

/// A part with a row for each sample. `fill` is the share of the rows that are tokens, where they have many lengths.
fn part(args: &BenchArgs, task_data: &TaskData, fill: Option<f64>, device: Device) -> Result<Part, TrainerError> {
    tch::manual_seed(1);
    let maker = Maker { batch: args.batch, padded: args.rows.padded, fill, device };
    Ok(match task_data {
        TaskData::Seq2Seq { vocab_size, .. } => {
            let part = maker.text(*vocab_size, args.rows.source)?;
            let labels = maker.whole(*vocab_size, &[args.batch, args.rows.target])?;
            part.with("labels", maker.ignored_behind(&labels, args.batch / 2)?)
        }
        TaskData::Classification { vocab_size, labels, .. } => {
            let classes = labels.as_ref().map_or(2, |labels| labels.count() as u64);
            maker
                .text(*vocab_size, args.rows.source)?
                .with("labels", maker.whole(classes + 2, &[args.batch])?.f_sub_scalar(2)?)
        }
        TaskData::TokenLabels { vocab_size, names, .. } => {
            let labels = names.as_ref().map_or(2, |names| names.len() as u64);
            let part = maker.text(*vocab_size, args.rows.source)?;
            let labels = maker.whole(labels + 2, &[args.batch, args.rows.source])?.f_sub_scalar(2)?;
            part.with("labels", maker.ignored_behind(&labels, 0)?)
        }
        TaskData::Contrastive { vocab_size, num_channels, image_size, max_length, .. } => {
            let pixels = maker.real(&[args.batch, *num_channels, *image_size, *image_size])?;
            let length = args.rows.source.min(i64::from(*max_length));
            maker.text(*vocab_size, length)?.with("pixel_values", pixels)
        }
        TaskData::TimeSeries { features, sequence_length, classes, .. } => {
            let labels = maker.whole(*classes as u64 + 2, &[args.batch])?.f_sub_scalar(2)?;
            Part::default().with("x", maker.real(&[args.batch, *sequence_length, *features])?).with("labels", labels)
        }
        TaskData::Table { columns, labels } => {
            let (numbers, categories) =
                columns.as_ref().map_or((0, 0), |columns| (columns.numbers(), columns.categories().len()));
            let unknown = Tensor::f_zeros([args.batch, categories as i64], (Kind::Float, device))?;
            let inputs = Tensor::f_cat(&[maker.real(&[args.batch, numbers as i64])?, unknown], 1)?;
            let classes = labels.as_ref().map_or(2, |labels| labels.count() as u64);
            let labels = maker.whole(classes + 2, &[args.batch])?.f_sub_scalar(2)?;
            Part::default().with("x", inputs).with("labels", labels)
        }
        TaskData::PictureClasses { num_channels, image_size, labels } => {
            let (classes, size) = (labels.as_ref().map_or(2, Labels::count) as u64, image_size.unwrap_or(224));
            Part::default()
                .with("pixel_values", maker.real(&[args.batch, *num_channels, size, size])?)
                .with("labels", maker.whole(classes + 2, &[args.batch])?.f_sub_scalar(2)?)
        }
        TaskData::Preference { vocab_size, .. } => {
            let side = |part: Part, prefix: &str| -> Result<Part, TrainerError> {
                let ids = maker.whole(*vocab_size, &[args.batch, args.rows.source])?;
                Ok(part.with(&format!("{prefix}labels"), ids.shallow_clone()).with(&format!("{prefix}ids"), ids))
            };
            side(side(Part::default(), "")?, REJECTED_PREFIX)?
        }
        TaskData::Language { vocab_size, .. } => {
            let ids = maker.whole(*vocab_size, &[args.batch, args.rows.source])?;
            let labels = maker.ignored_behind(&ids, 0)?;
            maker.masked(Part::default().with("ids", ids), args.rows.source)?.with("labels", labels)
        }
    })
}

/// The same samples one behind the other, as a training has them: a model that unpacks samples gets rows that are nearly full as they are, unless it
/// is `forced`.
pub fn packed(
    part: &Part,
    task_data: &TaskData,
    model: &dyn Model,
    device: Device,
    forced: bool,
) -> Result<Part, TrainerError> {
    if !model.takes_packed() {
        let message = "rows of this model are all of one length: there is nothing to pack".to_owned();
        return Err(TrainerError::config("--model", message));
    }
    let labels_tokens =
        matches!(task_data, TaskData::TokenLabels { .. } | TaskData::Language { .. } | TaskData::Preference { .. });
    let samples = samples(part, labels_tokens)?;
    let longest = |name: &str| samples.iter().filter_map(|sample| sample.column(name)).map(length).max().unwrap_or(1);
    let padding = |column, with| Padding { column, with, length: None, most: longest(column) };
    let paddings = [
        padding("input_ids", 0),
        padding("ids", 0),
        padding("labels", IGNORED),
        padding("rejected_ids", 0),
        padding("rejected_labels", IGNORED),
    ];
    let shape = PartShape::new(&paddings, device).in_multiples_of(model.row_multiple()).packed(samples.len() as u32);
    let shape = if device.is_cuda() && model.is_recordable() { shape.in_few_lengths() } else { shape };
    let unpacks = model.unpacks_for_attention() && !forced;
    Ok(if unpacks { shape.unpacked_for_attention() } else { shape }.collate(&samples)?)
}

/// The tokens of a part that are no padding, of its texts and of T5's targets, and with padding. Nothing where there are no texts.
fn counted(part: &Part, task_data: &TaskData) -> Result<(i64, i64), TrainerError> {
    let sum = |tensor: &Tensor| tensor.f_sum(Kind::Int64)?.f_int64_value(&[]);
    let Some(ids) = part.find("input_ids").or_else(|| part.find("ids")) else { return Ok((0, 0)) };
    let texts = part.find("attention_mask").map_or(Ok(ids.numel() as i64), sum)?;
    let labels = part.find("labels").filter(|_| matches!(task_data, TaskData::Seq2Seq { .. }));
    let targets = labels.map_or(Ok(0), |labels| sum(&labels.f_ne(IGNORED)?))?;
    Ok((texts + targets, (ids.numel() + labels.map_or(0, Tensor::numel)) as i64))
}

fn length(column: &Column) -> usize {
    if let Column::Tokens(tokens) | Column::PerToken(tokens) = column { tokens.len() } else { 0 }
}

/// The samples of a part in which each has a row. Labels may be those of each token.
fn samples(part: &Part, labels_tokens: bool) -> Result<Vec<Sample>, TrainerError> {
    const NAMES: [&str; 8] = [
        "input_ids",
        "ids",
        "attention_mask",
        "token_type_ids",
        "pixel_values",
        "labels",
        "rejected_ids",
        "rejected_labels",
    ];
    let ids = part.find("input_ids").map_or_else(|| part.get("ids"), Ok)?;
    let mut samples: Vec<Sample> = (0..ids.size()[0]).map(|_| Sample { columns: Vec::new(), targets: 1 }).collect();
    for name in NAMES {
        let Some(tensor) = part.find(name) else { continue };
        let tensor = tensor.f_to_device(Device::Cpu)?;
        for (sample, row) in samples.iter_mut().zip(0..) {
            let row = tensor.f_get(row)?;
            let column = match (row.dim(), row.kind()) {
                (0, Kind::Int64) => Column::Whole(row.f_int64_value(&[])?),
                (0, _) => Column::Real(row.f_double_value(&[])? as f32),
                (_, Kind::Int64) if labels_tokens && name.ends_with("labels") => Column::PerToken(Vec::try_from(row)?),
                (_, Kind::Int64) if name == "labels" => Column::Tokens(without_padding(Vec::try_from(row)?)),
                (_, Kind::Int64) => Column::Tokens(Vec::try_from(row)?),
                _ => Column::Values { shape: row.size(), values: Vec::try_from(row.f_reshape([-1])?)? },
            };
            sample.columns.push((name, column));
        }
    }
    Ok(samples)
}

/// Labels of a text of its own, up to the last that counts.
fn without_padding(mut labels: Vec<i64>) -> Vec<i64> {
    let end = labels.iter().rposition(|label| *label != IGNORED).map_or(1, |last| last + 1);
    labels.truncate(end);
    labels
}

struct Maker {
    batch: i64,
    padded: bool,
    fill: Option<f64>,
    device: Device,
}

impl Maker {
    /// Tokens, and a mask that hides the last of the first row where there is to be one, or what rows of many lengths lack.
    fn text(&self, words: u64, length: i64) -> Result<Part, TchError> {
        let part = Part::default().with("input_ids", self.whole(words, &[self.batch, length])?);
        if !self.padded {
            return self.masked(part, length);
        }
        let mask = Tensor::f_ones([self.batch, length], (Kind::Int64, Device::Cpu))?;
        let _ = mask.f_get(0)?.f_narrow(0, length - 1, 1)?.f_zero_()?;
        part.with_mask(&mask, self.device)
    }

    /// With a mask where rows have many lengths.
    fn masked(&self, part: Part, length: i64) -> Result<Part, TchError> {
        let Some(fill) = self.fill else { return Ok(part) };
        part.with_mask(&self.are_tokens(length, fill, 0)?.f_to_kind(Kind::Int64)?, self.device)
    }

    /// Labels in rows of many lengths, in the order that begins with row `first` of the longest.
    fn ignored_behind(&self, labels: &Tensor, first: i64) -> Result<Tensor, TchError> {
        let Some(fill) = self.fill else { return Ok(labels.shallow_clone()) };
        let are_tokens = self.are_tokens(labels.size()[1], fill, first)?.f_to_device(self.device)?;
        labels.f_masked_fill(&are_tokens.f_logical_not()?, IGNORED)
    }

    /// [batch, length], on the CPU: whether there is a token.
    fn are_tokens(&self, length: i64, fill: f64, first: i64) -> Result<Tensor, TchError> {
        let lengths = lengths(self.batch, length, fill);
        let lengths: Vec<i64> = lengths.iter().copied().cycle().skip(first as usize).take(lengths.len()).collect();
        let positions = Tensor::f_arange(length, (Kind::Int64, Device::Cpu))?;
        positions.f_unsqueeze(0)?.f_lt_tensor(&Tensor::f_from_slice(&lengths)?.f_unsqueeze(1)?)
    }

    /// Numbers from 2 to below `end`.
    fn whole(&self, end: u64, shape: &[i64]) -> Result<Tensor, TchError> {
        Tensor::f_randint_low(2, end as i64, shape, (Kind::Int64, Device::Cpu))?.f_to_device(self.device)
    }

    fn real(&self, shape: &[i64]) -> Result<Tensor, TchError> {
        Tensor::f_randn(shape, (Kind::Float, self.device))
    }
}

/// Lengths of so many rows, longest first, whose mean is about `fill` of the longest: evenly spaced quantiles of a power of what is drawn
/// uniformly.
fn lengths(rows: i64, longest: i64, fill: f64) -> Vec<i64> {
    let power = 1.0 / fill - 1.0;
    let length = |row: i64| {
        let quantile = if row == 0 { 1.0 } else { 1.0 - (row as f64 + 0.5) / rows as f64 };
        ((longest as f64 * quantile.powf(power)).round() as i64).max(1)
    };
    (0..rows).map(length).collect()
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
        let rows = |part: &Part| part.tensors().next().map_or(0, |(_, tensor)| tensor.size()[0]);
        let samples = self.part.packed("input_ids").map_or_else(|| rows(self.part), Packed::samples);
        index as i64 * samples
    }
}

pub struct StandIn {
    gradients: FlatGradients,
    buckets: BucketSums,
    link: Link,
    /// Pieces of the last step whose sum began during its last backward pass.
    pub early: usize,
}

impl StandIn {
    /// Sums at so many gigabytes of gradients a second.
    pub fn new(model: &dyn Model, card: usize, gigabytes: f64, args: &BenchArgs) -> Result<Self, TrainerError> {
        let gradients = FlatGradients::of(model.weights())?;
        let link = Link::stand_in(card, gigabytes, args.sums.latency * 1000.0, args.sums.blocks)?;
        let parameters: Vec<_> = model.weights().trained().map(|(_, parameter)| parameter).collect();
        let buckets =
            BucketSums::new(link, &gradients.buckets.iter().collect::<Vec<_>>(), &parameters, &gradients.bucket_of)?;
        Ok(Self { gradients, buckets, link, early: 0 })
    }

    pub fn buckets(&self) -> usize {
        self.gradients.buckets.len()
    }

    pub fn begin(&self, weights: &Weights) -> Result<(), TrainerError> {
        self.gradients.begin(weights)
    }

    /// Before the last backward pass of a step.
    pub fn watch(&self, recomputes: bool) -> Result<(), TrainerError> {
        Ok(self.buckets.watch(recomputes, true)?)
    }

    /// Waits until everything is summed.
    pub fn finish(&mut self) -> Result<(), TrainerError> {
        self.early = self.buckets.finish()?.unwrap_or(0);
        while !self.link.done()? {
            thread::yield_now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_many_lengths_of_the_asked_mean() {
        for fill in [0.1, 0.5, 0.9, 1.0] {
            let lengths = lengths(64, 512, fill);
            let mean = lengths.iter().sum::<i64>() as f64 / (64.0 * 512.0);
            assert!((mean - fill).abs() < 0.01, "{mean} and {fill}");
            assert!(lengths[0] == 512 && lengths.is_sorted_by(|one, next| one >= next) && lengths[63] >= 1);
        }
    }
}
