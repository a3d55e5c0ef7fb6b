//! Contrastive models: the loss, recall among all of the evaluation data, and examples of what the model finds.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, RgbImage};
use pipe_spec::evaluation::{EvaluationDetails, RetrievalExample, RetrievedCaption};
use pipe_spec::event::{Headline, Scores};
use tch::{Device, Kind, Tensor};

use super::{Measures, Pass};
use crate::data::Source;
use crate::error::TrainerError;
use crate::metrics::rounded;
use crate::model::{Contrastive, Embeddings, Mode};
use crate::ranks::Peers;
use crate::train::sums;

/// Similarities that are computed at a time: 64 MiB in fp32.
const SIMILARITIES_AT_A_TIME: i64 = 1 << 24;

pub struct Figures {
    pub loss: f64,
    pub scores: Scores,
    /// For each picture, the position of its own text among all.
    text_positions: Tensor,
}

pub fn evaluate(pass: &Pass<'_>, contrastive: &dyn Contrastive) -> Result<Measures, TrainerError> {
    let (all, rows) = embed(pass, contrastive)?;
    let Figures { loss, scores, text_positions } = figures(contrastive, &all, pass.session.spec.train.effective_batch)?;
    let retrieval = match pass.session.peers.leads() {
        true => examples(pass.reader.source.as_ref(), &all, &rows, &text_positions)?,
        false => Vec::new(),
    };
    let details = EvaluationDetails { retrieval, ..EvaluationDetails::default() };
    let count = rows.len() as u64;
    let headline = Headline::new("text_recall_1", count).against("guessing", 1.0 / count as f64);
    Ok(Measures { loss, scores, details, headline: Some(headline), samples: Some(count) })
}

/// Besides the loss, `text_recall_k`: for how many pictures their own text is among the `k` most similar of all, and
/// `image_recall_k`: for how many texts their own picture is.
pub fn figures(contrastive: &dyn Contrastive, all: &Embeddings, effective_batch: u32) -> Result<Figures, TrainerError> {
    let mut scores = Scores::new();
    let (text_positions, image_positions) = (positions(&all.images, &all.texts)?, positions(&all.texts, &all.images)?);
    for (name, positions) in [("text", &text_positions), ("image", &image_positions)] {
        for among in [1, 5] {
            scores.insert(format!("{name}_recall_{among}"), share_below(positions, among)?);
        }
    }
    Ok(Figures { loss: loss(contrastive, all, effective_batch)?, scores, text_positions })
}

/// Every sample of the data, part by part, and which rows of the data they are. Ranks share out the parts.
fn embed(pass: &Pass<'_>, contrastive: &dyn Contrastive) -> Result<(Embeddings, Vec<usize>), TrainerError> {
    let indices: Vec<usize> = (0..pass.reader.source.len()).collect();
    let peers = &pass.session.peers;
    let (mut images, mut texts, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (part, rank) in indices.chunks(pass.batch).zip((0..peers.rank.count).cycle()) {
        if rank != peers.rank.index {
            continue;
        }
        let samples = pass.samples(part)?;
        rows.extend(readable(pass, part, samples.len())?);
        if !samples.is_empty() {
            let part = contrastive.embed(&pass.splitter.shape().collate(&samples)?, Mode::Eval)?;
            images.push(part.images);
            texts.push(part.texts);
        }
    }
    if !peers.is_nobody() {
        let device = pass.session.hardware.device;
        let [images, texts, read] = of_all_ranks(peers, indices.len(), &rows, [&images, &texts], device)?;
        rows = Vec::<f64>::try_from(read.f_flatten(0, 1)?.f_to_kind(Kind::Double)?)?
            .iter()
            .enumerate()
            .filter_map(|(row, read)| (*read > 0.0).then_some(row))
            .collect();
        let positions: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        let positions = Tensor::f_from_slice(&positions)?.f_to_device(device)?;
        if !rows.is_empty() {
            let of = |all: &Tensor| all.f_index_select(0, &positions);
            return Ok((Embeddings { images: of(&images)?, texts: of(&texts)? }, rows));
        }
    }
    if images.is_empty() {
        let message = "no sample could be read".to_owned();
        return Err(TrainerError::Data { path: "data.eval".into(), line: None, message });
    }
    Ok((Embeddings { images: Tensor::f_cat(&images, 0)?, texts: Tensor::f_cat(&texts, 0)? }, rows))
}

/// Both sides of every row of the data, and which rows were read: [rows, width] twice, and [rows, 1].
fn of_all_ranks(
    peers: &Peers,
    count: usize,
    rows: &[usize],
    sides: [&[Tensor]; 2],
    device: Device,
) -> Result<[Tensor; 3], TrainerError> {
    let exchange = |parts: &[Tensor]| {
        let whole = if parts.is_empty() { None } else { Some(Tensor::f_cat(parts, 0)?) };
        // Row by row: what could not be read leaves gaps.
        let own: Vec<(i64, Tensor)> = match &whole {
            None => Vec::new(),
            Some(whole) => rows
                .iter()
                .enumerate()
                .map(|(at, row)| Ok((*row as i64, whole.f_narrow(0, at as i64, 1)?)))
                .collect::<Result<_, TrainerError>>()?,
        };
        let own: Vec<(i64, &Tensor)> = own.iter().map(|(row, tensor)| (*row, tensor)).collect();
        sums::exchange_rows(peers, count as i64, &own, device)
    };
    let one = Tensor::f_ones([1, 1], (Kind::Float, device))?;
    let read: Vec<(i64, &Tensor)> = rows.iter().map(|row| (*row as i64, &one)).collect();
    Ok([exchange(sides[0])?, exchange(sides[1])?, sums::exchange_rows(peers, count as i64, &read, device)?])
}

/// The rows of a part that were read, of which there are `count`.
fn readable(pass: &Pass<'_>, part: &[usize], count: usize) -> Result<Vec<usize>, TrainerError> {
    let mut rows = part.to_vec();
    if count < rows.len() {
        let source = &pass.reader.source;
        let is_read: Vec<bool> =
            rows.iter().map(|row| source.peek(*row).map(|sample| sample.is_some())).collect::<Result<_, _>>()?;
        let mut is_read = is_read.into_iter();
        rows.retain(|_| is_read.next().unwrap_or(false));
    }
    Ok(rows)
}

/// The mean over the samples of losses of the effective batch each, in order, so that it can be compared with the training's:
/// the more samples are compared, the greater it is. The last may be of fewer; so is the only one of a small data set.
fn loss(contrastive: &dyn Contrastive, all: &Embeddings, effective_batch: u32) -> Result<f64, TrainerError> {
    let (samples, together) = (all.images.size()[0], i64::from(effective_batch));
    let mut sum = 0.0;
    for start in (0..samples).step_by(together as usize) {
        let size = together.min(samples - start);
        let of = |tensor: &Tensor| tensor.f_narrow(0, start, size);
        let loss = contrastive.loss(&Embeddings { images: of(&all.images)?, texts: of(&all.texts)? })?;
        sum += loss.f_double_value(&[])? * size as f64;
    }
    Ok(sum / samples as f64)
}

/// For each row of `own`, how many rows of `others` are nearer to it than the one that belongs to it. Of equals the earlier
/// counts as nearer, so that a model that separates nothing finds one of all.
fn positions(own: &Tensor, others: &Tensor) -> Result<Tensor, TrainerError> {
    let samples = own.size()[0];
    let numbers = Tensor::f_arange(samples, (Kind::Int64, own.device()))?;
    let rows = (SIMILARITIES_AT_A_TIME / samples).clamp(1, samples);
    let mut positions = Vec::new();
    for start in (0..samples).step_by(rows as usize) {
        let size = rows.min(samples - start);
        let similar = own.f_narrow(0, start, size)?.f_matmul(&others.f_transpose(0, 1)?)?;
        let number = numbers.f_narrow(0, start, size)?.f_unsqueeze(1)?;
        let belonging = similar.f_gather(1, &number, false)?;
        let equal = similar.f_eq_tensor(&belonging)?.f_logical_and(&numbers.f_lt_tensor(&number)?)?;
        let nearer = similar.f_gt_tensor(&belonging)?.f_logical_or(&equal)?;
        positions.push(nearer.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Int64)?);
    }
    Ok(Tensor::f_cat(&positions, 0)?)
}

fn share_below(positions: &Tensor, bound: i64) -> Result<f64, TrainerError> {
    Ok(positions.f_lt(bound)?.f_mean(Kind::Double)?.f_double_value(&[])?)
}

/// Characters of a caption.
const CAPTION: usize = 300;
/// Rows among which the captions are looked for, each text once: data may have the same text for many pictures.
const LOOKED_AT: usize = 16;

/// A few pictures, evenly spread over `rows`, the rows that were embedded. `positions` are those of their own texts, counted
/// from 0. None where the data has no pictures and texts that could be shown.
pub fn examples(
    source: &dyn Source,
    all: &Embeddings,
    rows: &[usize],
    positions: &Tensor,
) -> Result<Vec<RetrievalExample>, TrainerError> {
    let count = rows.len().min(RetrievalExample::MOST);
    let mut examples = Vec::with_capacity(count);
    for number in 0..count {
        let at = number * rows.len() / count;
        let similar = all.texts.f_matmul(&all.images.f_select(0, at as i64)?)?;
        let similar = Vec::<f64>::try_from(similar.f_to_kind(Kind::Double)?)?;
        let rank = positions.f_int64_value(&[at as i64])?.cast_unsigned() + 1;
        examples.extend(example(source, rows, at, &similar, rank));
    }
    Ok(examples)
}

/// Nothing where the row cannot be shown: an example is not worth the end of a training.
fn example(source: &dyn Source, rows: &[usize], at: usize, similar: &[f64], rank: u64) -> Option<RetrievalExample> {
    let caption_at =
        |at: usize| source.caption(rows[at]).ok().flatten().map(|text| text.chars().take(CAPTION).collect());
    let caption: String = caption_at(at)?;
    let picture = source.thumbnail(rows[at], RetrievalExample::PICTURE_EDGE).ok().flatten()?;
    let mut best: Vec<RetrievedCaption> = Vec::new();
    for other in most_similar(similar) {
        let found: String = caption_at(other)?;
        if best.len() < RetrievalExample::MOST_CAPTIONS && best.iter().all(|known| known.caption != found) {
            best.push(RetrievedCaption { right: found == caption, score: rounded(similar[other]), caption: found });
        }
    }
    Some(RetrievalExample { picture: png(&picture)?, rank, score: rounded(similar[at]), best, caption })
}

/// The best first; of equals the earlier.
fn most_similar(similar: &[f64]) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::new();
    for (at, score) in similar.iter().enumerate() {
        let position = best.iter().position(|other| *score > similar[*other]).unwrap_or(best.len());
        best.insert(position, at);
        best.truncate(LOOKED_AT);
    }
    best
}

pub fn png(picture: &RgbImage) -> Option<String> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).ok()?;
    Some(STANDARD.encode(bytes.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_what_is_nearer() {
        let own = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0, 0.6, 0.8]).reshape([3, 2]);
        let others = Tensor::from_slice(&[0.8f32, 0.6, 0.6, 0.8, 1.0, 0.0]).reshape([3, 2]);
        // Rows of similarities: .8 .6 1, .6 .8 0, .96 1 .6
        assert_eq!(Vec::<i64>::try_from(positions(&own, &others).unwrap()).unwrap(), [1, 0, 2]);
        let positions = Tensor::from_slice(&[0i64, 4, 5, 9]);
        assert_eq!((share_below(&positions, 1).unwrap(), share_below(&positions, 5).unwrap()), (0.25, 0.5));
    }

    #[test]
    fn a_model_that_separates_nothing_finds_by_chance() {
        let same = Tensor::ones([50, 4], (Kind::Float, tch::Device::Cpu));
        let positions = positions(&same, &same).unwrap();
        assert_eq!((share_below(&positions, 1).unwrap(), share_below(&positions, 5).unwrap()), (0.02, 0.1));
    }
}

#[cfg(test)]
mod retrieval_tests {
    use super::*;

    #[test]
    fn the_best_come_first() {
        assert_eq!(most_similar(&[0.1, 0.9, 0.5, 0.9, 0.7]), [1, 3, 4, 2, 0]);
        assert_eq!(most_similar(&[0.5; 50]), (0..LOOKED_AT).collect::<Vec<_>>());
    }

    #[test]
    fn a_picture_stays_the_same() {
        let picture = RgbImage::from_fn(5, 3, |x, y| image::Rgb([x as u8 * 50, y as u8 * 80, 7]));
        let bytes = STANDARD.decode(png(&picture).unwrap()).unwrap();
        assert_eq!(image::load_from_memory(&bytes).unwrap().to_rgb8(), picture);
    }
}
