//! Examples of what a contrastive model finds: pictures of the evaluation data, with the texts that are most similar to them.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, RgbImage};
use pipe_spec::evaluation::{RetrievalExample, RetrievedCaption};
use tch::{Kind, Tensor};

use crate::data::Source;
use crate::error::TrainerError;
use crate::metrics::rounded;
use crate::model::Embeddings;

/// Characters of a caption.
const CAPTION: usize = 300;
/// Rows among which the captions are looked for, each text once: data may have the same text for many pictures.
const LOOKED_AT: usize = 16;

/// A few pictures, evenly spread over `rows`, the rows that were embedded. `places` are the places of their own texts, counted
/// from 0. None where the data has no pictures and texts that could be shown.
pub fn examples(
    source: &dyn Source,
    all: &Embeddings,
    rows: &[usize],
    places: &Tensor,
) -> Result<Vec<RetrievalExample>, TrainerError> {
    let count = rows.len().min(RetrievalExample::MOST);
    let mut examples = Vec::with_capacity(count);
    for number in 0..count {
        let at = number * rows.len() / count;
        let similar = all.texts.f_matmul(&all.images.f_select(0, at as i64)?)?;
        let similar = Vec::<f64>::try_from(similar.f_to_kind(Kind::Double)?)?;
        let rank = places.f_int64_value(&[at as i64])?.cast_unsigned() + 1;
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
        let place = best.iter().position(|other| *score > similar[*other]).unwrap_or(best.len());
        best.insert(place, at);
        best.truncate(LOOKED_AT);
    }
    best
}

fn png(picture: &RgbImage) -> Option<String> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).ok()?;
    Some(STANDARD.encode(bytes.into_inner()))
}

#[cfg(test)]
mod tests {
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
