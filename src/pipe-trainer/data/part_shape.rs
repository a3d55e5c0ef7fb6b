//! How the samples of a part become tensors: padded, or packed one behind the other.

use pipe_model::memory::{Layout, Lengths, rounded_tokens};
use tch::{Device, TchError, Tensor};

use super::packing::{PackedRows, PackedSize};
use super::part::{ALIGNED_COLUMNS, Column, IGNORED, LOSS_WEIGHTS, MASK, Part, Sample, is_counted};
use crate::torch;

/// Padding is little up to a part of the rows like this.
const LITTLE_PADDING: usize = 16;

/// How a column of tokens is padded.
#[derive(Clone, Copy, Debug)]
pub struct Padding {
    pub column: &'static str,
    pub with: i64,
    /// The length of every part; absent pads to the longest of the part.
    pub length: Option<usize>,
    /// No row is longer.
    pub most: usize,
}

/// How samples become tensors.
#[derive(Clone, Debug)]
pub struct PartShape {
    paddings: Vec<Padding>,
    device: Device,
    /// Rows that are padded to the longest have a multiple of this.
    multiple: usize,
    /// Whether they are padded further, so that few lengths come up.
    rounds: bool,
    packing: Option<Packing>,
}

/// How samples are packed one behind the other.
#[derive(Clone, Copy, Debug)]
struct Packing {
    /// Samples of full length that a part may hold: no part is rounded up beyond their tokens.
    batch: usize,
    /// Whether every sample is as long as the longest that there may be.
    in_full_length: bool,
    /// Whether the model unpacks them for its attention: rows that are padded to the longest decide how much a part holds.
    unpacks: bool,
    /// Where tokens alone decide the shape of a part: the samples of a step.
    step: Option<usize>,
}

impl PartShape {
    pub fn new(paddings: &[Padding], device: Device) -> Self {
        Self { paddings: paddings.to_vec(), device, multiple: 1, rounds: false, packing: None }
    }

    /// The same without padding, for a model that takes samples one behind the other. A part may hold so many samples of full length.
    pub fn packed(mut self, batch: u32) -> Self {
        self.paddings.iter_mut().for_each(|padding| padding.length = None);
        Self {
            packing: Some(Packing { batch: batch as usize, in_full_length: false, unpacks: false, step: None }),
            ..self
        }
    }

    /// The same for a model that unpacks samples for its attention.
    pub fn unpacked_for_attention(self) -> Self {
        Self { packing: self.packing.map(|packing| Packing { unpacks: true, ..packing }), ..self }
    }

    /// The same for a model to which spare samples without a label, and the length of the longest, make no difference: a part has as many samples as
    /// go with its tokens, of the so many of a step.
    pub fn shaped_by_tokens(self, step: u32) -> Self {
        Self { packing: self.packing.map(|packing| Packing { step: Some(step as usize), ..packing }), ..self }
    }

    /// The same without spare samples.
    pub fn with_own_samples(self) -> Self {
        Self { packing: self.packing.map(|packing| Packing { step: None, ..packing }), ..self }
    }

    /// The same with a row for each sample.
    pub fn padded(self) -> Self {
        Self { packing: None, ..self }
    }

    /// The same for parts of another batch.
    pub fn with_batch(self, batch: u32) -> Self {
        Self { packing: self.packing.map(|packing| Packing { batch: batch as usize, ..packing }), ..self }
    }

    /// The same for a model that wants rows of whole multiples.
    pub fn in_multiples_of(self, multiple: usize) -> Self {
        Self { multiple, ..self }
    }

    /// The same with few lengths, for parts that are launched as CUDA graphs: one is recorded for each shape.
    pub fn in_few_lengths(self) -> Self {
        Self { rounds: true, ..self }
    }

    /// The same with every row as long as the longest that there may be.
    pub fn in_full_length(mut self) -> Self {
        if let Some(packing) = &mut self.packing {
            packing.in_full_length = true;
            return self;
        }
        for padding in &mut self.paddings {
            padding.length.get_or_insert(padding.most.next_multiple_of(self.multiple));
        }
        self
    }

    pub fn multiple(&self) -> usize {
        self.multiple
    }

    /// The length of the longest row of a part of these samples.
    pub fn longest(&self, samples: &[Sample]) -> usize {
        let fixed = self.paddings.iter().filter_map(|padding| padding.length).max().unwrap_or(0);
        samples.iter().map(Sample::length).max().unwrap_or(0).max(fixed)
    }

    /// The lengths that a part of these samples has, as `Started::longest` writes them.
    pub fn lengths(&self, samples: &[Sample]) -> String {
        self.each_length(samples).map(|length| length.to_string()).collect::<Vec<_>>().join("+")
    }

    /// The same as numbers: of the first column of tokens, and of the second where there is one. Packed samples count with their mean length.
    pub fn row_lengths(&self, samples: &[Sample]) -> Lengths {
        let mean = |(name, columns): (&str, Vec<&Column>)| {
            let length = |column: &&Column| self.packed_length(name, tokens(column).len());
            columns.iter().map(length).sum::<usize>().div_ceil(columns.len().max(1))
        };
        match self.layout() {
            Layout::Padded => lengths_of(self.each_length(samples)),
            Layout::Packed => lengths_of(self.each_column(samples).map(mean)),
        }
    }

    /// The layout that decides how much a part holds. Where attention does not go by sample too, it is computed in rows that are padded to the longest.
    pub fn layout(&self) -> Layout {
        match self.packing {
            Some(packing) if self.device.is_cuda() && !packing.unpacks => Layout::Packed,
            _ => Layout::Padded,
        }
    }

    fn packed_length(&self, name: &str, length: usize) -> usize {
        let in_full = self.packing.is_some_and(|packing| packing.in_full_length);
        let most = self.padding(name).map(|padding| padding.most).filter(|_| in_full);
        // A sample without tokens has padding.
        most.map_or(length, |most| most.max(length)).max(1)
    }

    fn rounded_tokens(&self, name: &str, total: usize, packing: Packing) -> usize {
        let most = self.padding(name).map_or(0, |padding| padding.most.saturating_mul(packing.batch));
        if self.rounds { rounded_tokens(total as u64, most as u64) as usize } else { total.max(1) }
    }

    /// The length that each column of tokens has in a part.
    fn each_length(&self, samples: &[Sample]) -> impl Iterator<Item = usize> {
        self.each_column(samples).map(|(name, columns)| self.length(name, &columns))
    }

    /// The columns of tokens, except those that are aligned with another.
    fn each_column<'s>(&self, samples: &'s [Sample]) -> impl Iterator<Item = (&'static str, Vec<&'s Column>)> {
        let columns = samples.first().map(|first| first.columns.as_slice()).unwrap_or_default();
        columns
            .iter()
            .enumerate()
            .filter(|(_, (name, column))| is_counted(name, column))
            .map(|(index, (name, _))| (*name, samples.iter().map(|sample| &sample.columns[index].1).collect()))
    }

    pub fn collate(&self, samples: &[Sample]) -> Result<Part, TchError> {
        if let Some(packing) = self.packing
            && !(packing.unpacks && self.is_nearly_full(samples))
        {
            return self.pack(samples, packing);
        }
        let mut part = Part::default();
        let Some(first) = samples.first() else { return Ok(part) };
        for (index, (name, _)) in first.columns.iter().enumerate() {
            let columns: Vec<&Column> = samples.iter().map(|sample| &sample.columns[index].1).collect();
            let tensor = self.tensor(name, &columns)?;
            part = match *name {
                // Attention is faster without a mask; models take none for one that hides nothing.
                MASK if tensor.f_min()?.f_int64_value(&[])? == 1 => part,
                MASK => part.with_mask(&tensor, self.device)?,
                _ => part.with(name, torch::to_device(&tensor, self.device)?),
            };
        }
        Ok(part)
    }

    /// Whether padded rows of these samples would have so little padding that it is less work than to unpack them.
    fn is_nearly_full(&self, samples: &[Sample]) -> bool {
        let (mut whole, mut used) = (0, 0);
        for (name, columns) in self.each_column(samples) {
            whole += columns.len() * self.length(name, &columns);
            let rows = samples.iter().zip(columns);
            used += rows.map(|(sample, column)| self.visible_length(sample, name, column)).sum::<usize>();
        }
        whole - used.min(whole) <= whole / LITTLE_PADDING
    }

    /// Tokens of a column that no mask hides.
    fn visible_length(&self, sample: &Sample, name: &str, column: &Column) -> usize {
        let is_text = matches!(name, "input_ids" | "ids");
        match sample.column(MASK).filter(|_| is_text) {
            Some(mask) => tokens(mask).iter().filter(|token| **token != 0).count().max(1),
            None => self.packed_length(name, tokens(column).len()),
        }
    }

    /// Tokens one sample behind the other, with the rows of each column that has some of its own.
    fn pack(&self, samples: &[Sample], packing: Packing) -> Result<Part, TchError> {
        let mut part = Part::default();
        let Some(first) = samples.first() else { return Ok(part) };
        let column = |index: usize| samples.iter().map(move |sample| &sample.columns[index].1);
        let index_of = |wanted: &[&str]| first.columns.iter().position(|(name, _)| wanted.contains(name));
        let positions_of = |index: usize, name: &str| -> Vec<Vec<usize>> {
            column(index).map(|column| (0..self.packed_length(name, tokens(column).len())).collect()).collect()
        };
        // Where the text is; elsewhere a mask hides it.
        let ids = index_of(&["input_ids", "ids"]);
        let mut kept = ids.map_or(Vec::new(), |ids| positions_of(ids, first.columns[ids].0));
        if let Some(mask) = index_of(&[MASK]) {
            for (positions, column) in kept.iter_mut().zip(column(mask)) {
                positions.retain(|position| tokens(column).get(*position) != Some(&0));
                if positions.is_empty() {
                    positions.push(0);
                }
            }
        }
        let is_token = |column: &Column| matches!(column, Column::Tokens(_) | Column::PerToken(_));
        let only_tokens = first.columns.iter().all(|(_, column)| is_token(column));
        let may_be_spare = |(name, column): &(&str, Column)| is_token(column) || spare_label(name, column).is_some();
        let step = packing.step.filter(|_| self.rounds && first.columns.iter().all(may_be_spare));
        let packing = Packing { step, ..packing };
        let count = match (step, ids) {
            (Some(step), Some(ids)) => {
                let tokens = kept.iter().map(Vec::len).sum();
                spared(samples.len(), self.rounded_tokens(first.columns[ids].0, tokens, packing), step)
            }
            _ if self.rounds && only_tokens => rounded(samples.len()),
            _ => samples.len(),
        };
        for (index, (name, of_first)) in first.columns.iter().enumerate() {
            let has_own_rows = match of_first {
                _ if *name == MASK => continue,
                Column::Tokens(_) => !ALIGNED_COLUMNS.contains(name),
                Column::PerToken(_) => ids.is_none_or(|ids| !are_aligned(column(index), column(ids))),
                Column::Whole(_) | Column::Real(_) | Column::Values { .. } => {
                    let mut all: Vec<&Column> = column(index).collect();
                    let spare = spare_label(name, of_first);
                    all.extend(spare.iter().cycle().take(count - samples.len()));
                    part = part.with(name, torch::to_device(&self.tensor(name, &all)?, self.device)?);
                    continue;
                }
            };
            let own = (has_own_rows && Some(index) != ids).then(|| positions_of(index, name));
            let positions = own.as_ref().unwrap_or(&kept);
            let of_ids = if has_own_rows { name } else { ids.map_or(*name, |ids| first.columns[ids].0) };
            let size = self.packed_size(of_ids, positions, count, packing);
            if has_own_rows {
                for (end, tensor) in PackedRows::new(positions, size).tensors()? {
                    part = part.with(&format!("{name}.{end}"), torch::to_device(&tensor, self.device)?);
                }
            }
            let with = self.padding(name).map_or(0, |padding| padding.with);
            let mut all = Vec::with_capacity(size.tokens);
            for (column, positions) in column(index).zip(positions) {
                let tokens = tokens(column);
                all.extend(positions.iter().map(|position| tokens.get(*position).copied().unwrap_or(with)));
            }
            all.resize(size.tokens, with);
            part = part.with(name, torch::to_device(&Tensor::f_from_slice(&all)?.f_unsqueeze(0)?, self.device)?);
        }
        Ok(part)
    }

    fn packed_size(&self, name: &str, positions: &[Vec<usize>], samples: usize, packing: Packing) -> PackedSize {
        // Positions are in order.
        let last = positions.iter().filter_map(|positions| positions.last()).max();
        let longest = last.map_or(1, |last| last + 1).next_multiple_of(self.multiple);
        let most = self.padding(name).map_or(longest, |padding| padding.most);
        let few = if packing.step.is_some() { most } else { longest.next_power_of_two().min(most) };
        PackedSize {
            samples,
            tokens: self.rounded_tokens(name, positions.iter().map(Vec::len).sum(), packing),
            longest: if self.rounds { few.max(longest) } else { longest },
            any_lengths: self.rounds,
        }
    }

    fn padding(&self, name: &str) -> Option<&Padding> {
        self.paddings.iter().find(|padding| padding.column == name)
    }

    /// How long every row of a column is.
    fn length(&self, name: &str, columns: &[&Column]) -> usize {
        let longest = columns.iter().map(|column| tokens(column).len()).max().unwrap_or(0).max(1);
        if self.packing.is_some() {
            return self.packed_length(name, longest).next_multiple_of(self.multiple);
        }
        let fixed = self.padding(name).and_then(|padding| padding.length);
        fixed.unwrap_or_else(|| {
            let length = longest.next_multiple_of(self.multiple);
            let most = self.padding(name).map_or(length, |padding| padding.most.saturating_add(self.multiple - 1));
            if self.rounds { rounded(length).min(most / self.multiple * self.multiple).max(length) } else { length }
        })
    }

    fn tensor(&self, name: &str, columns: &[&Column]) -> Result<Tensor, TchError> {
        let count = columns.len() as i64;
        match columns[0] {
            Column::Tokens(_) | Column::PerToken(_) => {
                let padding = self.padding(name);
                let length = self.length(name, columns);
                let mut all = Vec::with_capacity(columns.len() * length);
                for (column, rows) in columns.iter().zip(1..) {
                    all.extend_from_slice(tokens(column));
                    all.resize(rows * length, padding.map_or(0, |padding| padding.with));
                }
                Tensor::f_from_slice(&all)?.f_reshape([count, length as i64])
            }
            Column::Whole(_) => {
                let whole = |column: &&Column| if let Column::Whole(number) = column { *number } else { 0 };
                Tensor::f_from_slice(&columns.iter().map(whole).collect::<Vec<i64>>())
            }
            Column::Real(_) => {
                let real = |column: &&Column| if let Column::Real(number) = column { *number } else { 0.0 };
                Tensor::f_from_slice(&columns.iter().map(real).collect::<Vec<f32>>())
            }
            Column::Values { shape, .. } => {
                let mut all = Vec::new();
                for column in columns {
                    if let Column::Values { values, .. } = column {
                        all.extend_from_slice(values);
                    }
                }
                let shape: Vec<i64> = std::iter::once(count).chain(shape.iter().copied()).collect();
                Tensor::f_from_slice(&all)?.f_reshape(shape)
            }
        }
    }
}

/// Whether two columns have as many tokens in each sample.
fn are_aligned<'a>(one: impl Iterator<Item = &'a Column>, other: impl Iterator<Item = &'a Column>) -> bool {
    one.zip(other).all(|(one, other)| tokens(one).len() == tokens(other).len())
}

/// The first is that of the source, the second that of the target.
fn lengths_of(mut each: impl Iterator<Item = usize>) -> Lengths {
    let mut next = || each.next().map_or(0, |length| length as u32);
    Lengths { source: next(), target: next() }
}

/// At most an eighth longer, or 3 tokens: not more than 16 lengths between any number and its double.
fn rounded(length: usize) -> usize {
    length.next_multiple_of((length / 16).next_power_of_two().max(4))
}

/// As many samples as each of a few numbers of tokens has: those of rows of 64 tokens, or more where there are more, and no more than a step has.
fn spared(samples: usize, tokens: usize, step: usize) -> usize {
    samples.max(tokens / 64).next_power_of_two().min(step).max(samples)
}

/// The label of a sample that is not there: no loss counts it. Absent where labels have no such number.
fn spare_label(name: &str, like: &Column) -> Option<Column> {
    match like {
        Column::Whole(_) if name == "labels" => Some(Column::Whole(IGNORED)),
        Column::Real(_) if name == LOSS_WEIGHTS => Some(Column::Real(0.0)),
        _ => None,
    }
}

fn tokens(column: &Column) -> &[i64] {
    if let Column::Tokens(tokens) | Column::PerToken(tokens) = column { tokens } else { &[] }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::super::part::{next_packed_tokens, next_tokens};
    use super::*;

    #[test]
    fn every_position_predicts_the_next_token() {
        let labels = Tensor::from_slice(&[5i64, 6, 7, 8]).unsqueeze(0);
        let cases: [(i64, &[i64]); 3] = [(3, &[6, 7, 8]), (4, &[6, 7, 8, IGNORED]), (2, &[6, 7])];
        for (length, want) in cases {
            let got = next_tokens(&labels, length).unwrap().reshape([-1]);
            assert_eq!(Vec::<i64>::try_from(got).unwrap(), want);
        }
    }

    #[test]
    fn the_next_token_is_one_of_the_same_sample() {
        let sample = |ids: &[i64], labels: &[i64]| Sample {
            columns: vec![("ids", Column::Tokens(ids.to_vec())), ("labels", Column::PerToken(labels.to_vec()))],
            targets: 1,
        };
        for (labels, want) in [
            ([vec![1, 2, 3], vec![4, 5]], vec![2, 3, IGNORED, 5, IGNORED]),
            ([vec![1, 2, 3, 6], vec![4, 5, 7]], vec![2, 3, 6, 5, 7]),
        ] {
            let samples = [sample(&[1, 2, 3], &labels[0]), sample(&[4, 5], &labels[1])];
            let part = PartShape::new(&[], Device::Cpu).packed(2).collate(&samples).unwrap();
            let ids = part.packed("ids").unwrap();
            let next = next_packed_tokens(part.get("labels").unwrap(), ids, part.packed("labels").unwrap_or(ids));
            assert_eq!(Vec::<i64>::try_from(next.unwrap().reshape([-1])).unwrap(), want);
        }
    }

    fn sample(source: &[i64], label: i64) -> Sample {
        let mask = vec![1; source.len()];
        Sample {
            columns: vec![
                ("input_ids", Column::Tokens(source.to_vec())),
                ("attention_mask", Column::Tokens(mask)),
                ("labels", Column::Whole(label)),
                ("x", Column::Values { shape: vec![1, 2], values: vec![label as f32, 0.5] }),
            ],
            targets: 1,
        }
    }

    #[test]
    fn pads_to_the_longest_or_to_the_given_length() {
        let samples = [sample(&[5, 1], 3), sample(&[1], 4)];
        let padding = Padding { column: "input_ids", with: 9, length: None, most: 7 };
        let shape = |padding| PartShape::new(&[padding], Device::Cpu);
        let part = shape(padding).collate(&samples).unwrap();
        let rows = |name: &str| Vec::<Vec<i64>>::try_from(part.get(name).unwrap()).unwrap();
        assert_eq!(
            (rows("input_ids"), rows("attention_mask")),
            (vec![vec![5, 1], vec![1, 9]], vec![vec![1, 1], vec![1, 0]])
        );
        assert_eq!(Vec::<i64>::try_from(part.get("labels").unwrap()).unwrap(), [3, 4]);
        assert_eq!(part.get("x").unwrap().size(), [2, 1, 2]);
        let few = |count: usize| shape(padding).in_few_lengths().lengths(&[sample(&vec![1; count], 0)]);
        assert_eq!([few(3), few(4), few(5), few(7)], ["4", "4", "7", "7"], "no longer than any row");
        let fixed = shape(Padding { length: Some(4), ..padding });
        assert_eq!(fixed.collate(&samples).unwrap().get("input_ids").unwrap().size(), [2, 4]);
        let full = |multiple| shape(padding).in_multiples_of(multiple).in_full_length().lengths(&samples);
        assert_eq!([full(1), full(4)], ["7", "8"]);
        let nothing = shape(padding).collate(&[sample(&[], 3), sample(&[], 4)]).unwrap();
        assert_eq!(Vec::<Vec<i64>>::try_from(nothing.get("input_ids").unwrap()).unwrap(), [[9], [9]]);
        assert_eq!((fixed.longest(&samples), shape(padding).longest(&samples)), (4, 2));
        assert_eq!((fixed.lengths(&samples), shape(padding).lengths(&samples)), ("4".to_owned(), "2".to_owned()));
    }

    /// Masked tokens are left out, and what is beside the tokens follows them; few sizes come up where parts are rounded.
    #[test]
    fn packs_without_padding() {
        let mut samples = [sample(&[5, 6, 7], 3), sample(&[8, 9], 4)];
        samples[0].columns[1].1 = Column::Tokens(vec![0, 1, 1]);
        for (sample, labels) in samples.iter_mut().zip([vec![1, 2, 3, 4], vec![5]]) {
            sample.columns.push(("token_type_ids", Column::Tokens(vec![0, 1, 1][..sample.length()].to_vec())));
            sample.columns.push(("next", Column::PerToken(labels)));
        }
        let paddings = ["input_ids", "next"].map(|column| Padding { column, with: 9, length: Some(7), most: 7 });
        let shape = PartShape::new(&paddings, Device::Cpu).packed(40);
        let part = shape.collate(&samples).unwrap();
        let numbers =
            |name: &str| Vec::<i64>::try_from(part.get(name).unwrap().reshape([-1]).to_kind(Kind::Int64)).unwrap();
        assert_eq!((numbers("input_ids"), numbers("token_type_ids")), (vec![6, 7, 8, 9], vec![1, 1, 0, 1]));
        assert_eq!(numbers("input_ids.offsets"), [0, 2, 4, 4]);
        assert_eq!(numbers("input_ids.places"), [0, 1, 0, 2, 1, 0, 1, 1], "where they stand in their rows");
        assert_eq!((numbers("next"), numbers("next.offsets")), (vec![1, 2, 3, 4, 5], vec![0, 4, 5, 5]));
        assert_eq!((numbers("labels"), part.packed("labels").is_none()), (vec![3, 4], true));
        assert!(part.find(MASK).is_none() && part.packed("input_ids").is_some());
        assert_eq!(shape.row_lengths(&samples), Lengths { source: 3, target: 0 });
        let on_card = PartShape { device: Device::Cuda(0), ..shape.clone() };
        let three = [samples[0].clone(), samples[1].clone(), samples[1].clone()];
        assert_eq!(
            (on_card.layout(), on_card.row_lengths(&three).source),
            (Layout::Packed, 3),
            "7 tokens of 3 samples"
        );
        assert_eq!(part.packed("input_ids").unwrap().longest(), 3, "one more than the last position");
        let unpacked = on_card.in_multiples_of(8).unpacked_for_attention();
        assert_eq!((unpacked.layout(), unpacked.row_lengths(&three).source), (Layout::Padded, 8));
        let on_cpu = shape.clone().unpacked_for_attention();
        let is_packed = |samples| on_cpu.collate(samples).unwrap().packed("input_ids").is_some();
        assert!(is_packed(&three) && !is_packed(&three[1..]), "rows of one length are rows as before");
        let rounded = shape.clone().in_few_lengths().collate(&samples).unwrap();
        assert_eq!(rounded.get("input_ids").unwrap().size(), [1, 64]);
        assert_eq!((rounded.packed("input_ids").unwrap().longest(), rounded.packed("next").unwrap().longest()), (4, 4));
        let full = shape.in_full_length();
        assert_eq!(full.collate(&samples[1..]).unwrap().get("next").unwrap().size(), [1, 7]);
    }

    #[test]
    fn tokens_decide_the_shape_of_a_part() {
        let padding = Padding { column: "input_ids", with: 9, length: None, most: 512 };
        let shape = PartShape::new(&[padding], Device::Cpu).packed(8).in_few_lengths();
        let by_tokens = shape.clone().shaped_by_tokens(64);
        let part = |shape: &PartShape, lengths: &[usize]| {
            let samples: Vec<Sample> = lengths
                .iter()
                .map(|length| Sample {
                    columns: vec![
                        ("input_ids", Column::Tokens(vec![1; *length])),
                        ("labels", Column::Whole(2)),
                        (LOSS_WEIGHTS, Column::Real(0.5)),
                    ],
                    targets: 1,
                })
                .collect();
            shape.collate(&samples).unwrap()
        };
        let sizes = |part: &Part| part.tensors().map(|(_, tensor)| tensor.size()).collect::<Vec<_>>();
        let (long, short) = (part(&by_tokens, &[400, 90]), part(&by_tokens, &[72; 7]));
        assert_eq!(sizes(&long), sizes(&short));
        assert_ne!(sizes(&part(&shape, &[400, 90])), sizes(&part(&shape, &[72; 7])));
        let numbers = |name: &str| Vec::<f64>::try_from(long.get(name).unwrap().to_kind(Kind::Double)).unwrap();
        assert_eq!(
            numbers("labels"),
            [[2.0; 2], [IGNORED as f64; 2], [IGNORED as f64; 2], [IGNORED as f64; 2]].concat()
        );
        assert_eq!(numbers(LOSS_WEIGHTS), [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(part(&by_tokens, &[9; 60]).get("labels").unwrap().size(), [64], "no more than a step has");
        let own = by_tokens.with_own_samples();
        assert_eq!(part(&own, &[400, 90]).get("labels").unwrap().size(), [2], "where each has a row of its own");
    }

    /// As rows are that somebody else has padded.
    #[test]
    fn tokens_behind_a_mask_are_padding() {
        let mut samples = [sample(&[5, 6, 7, 8], 3), sample(&[5, 6, 9, 9], 4)];
        let padding = Padding { column: "input_ids", with: 9, length: None, most: 7 };
        let shape = PartShape::new(&[padding], Device::Cpu).packed(40).unpacked_for_attention();
        let is_packed = |samples: &[Sample]| shape.collate(samples).unwrap().packed("input_ids").is_some();
        assert!(!is_packed(&samples));
        samples[1].columns[1].1 = Column::Tokens(vec![1, 1, 0, 0]);
        assert!(is_packed(&samples));
    }

    #[test]
    fn few_lengths_that_are_little_longer() {
        let all: Vec<usize> = (1..=512).map(rounded).collect();
        assert!(all.iter().zip(1..).all(|(rounded, length)| *rounded >= length && *rounded <= length + length / 8 + 3));
        assert_eq!([1, 25, 64, 100, 129, 500].map(rounded), [4, 28, 64, 104, 136, 512]);
        let mut different = all;
        different.dedup();
        assert!(different.len() < 60, "{}", different.len());
    }
}
