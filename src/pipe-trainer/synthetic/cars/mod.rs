//! Synthetic pictures of cars with captions: endless, reproducible and learnable, because a caption describes its picture.

mod canvas;
mod scene;
mod tokenizer;

use std::fs;
use std::io::{self, Cursor};
use std::path::Path;

use image::{ImageFormat, RgbImage};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::json;

use self::canvas::Canvas;
use self::scene::Scene;
use crate::cli::PicturesArgs;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::storage::durable;
use crate::synthetic::split::Split;

/// Writes the pictures of both splits, and at last the files that name them.
pub fn generate(args: &PicturesArgs) -> Result<(), TrainerError> {
    let eval_rows = args.eval_rows.unwrap_or((args.rows / 20).max(1));
    let folder = &args.out;
    fs::create_dir_all(folder.join("pictures")).map_err(|error| fail(folder, error))?;
    for (split, rows, file) in [(Split::Train, args.rows, "train.jsonl"), (Split::Eval, eval_rows, "eval.jsonl")] {
        let row = |row| picture(args, split, row);
        let lines: Vec<String> = (0..rows).into_par_iter().map(row).collect::<Result<_, _>>()?;
        write(&folder.join(file), lines.concat().as_bytes())?;
    }
    write(&folder.join("tokenizer.json"), tokenizer::json().as_bytes())
}

/// Writes one picture; its line comes back.
fn picture(args: &PicturesArgs, split: Split, row: u64) -> Result<String, TrainerError> {
    let mut random = Random::new(Purpose::Pictures, args.seed, &[split as u64, row]);
    let scene = Scene::draw(&mut random);
    let (format, ending) = format(row);
    let name = format!("pictures/{}-{row:06}.{ending}", split.name());
    let path = args.out.join(&name);
    let bytes = encode(&Canvas::paint(&scene, args.size, random), format);
    bytes.and_then(|bytes| fs::write(&path, bytes)).map_err(|error| fail(&path, error))?;
    Ok(json!({ "image": name, "text": scene.caption() }).to_string() + "\n")
}

/// Most are PNG, some of each ten are not.
fn format(row: u64) -> (ImageFormat, &'static str) {
    match row % 10 {
        3 | 6 => (ImageFormat::Jpeg, "jpg"),
        9 => (ImageFormat::WebP, "webp"),
        _ => (ImageFormat::Png, "png"),
    }
}

fn encode(picture: &RgbImage, format: ImageFormat) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    picture.write_to(&mut Cursor::new(&mut bytes), format).map_err(io::Error::other)?;
    Ok(bytes)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), TrainerError> {
    durable::write_whole(path, bytes).map_err(|error| fail(path, error))
}

fn fail(path: &Path, source: io::Error) -> TrainerError {
    TrainerError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn paint(seed: u64, row: u64) -> (Scene, RgbImage) {
        let mut random = Random::new(Purpose::Pictures, seed, &[0, row]);
        let scene = Scene::draw(&mut random);
        (scene, Canvas::paint(&scene, 32, random))
    }

    #[test]
    fn pictures_are_repeatable_and_scenes_are_many() {
        assert_eq!(paint(1, 7), paint(1, 7));
        let captions: HashSet<String> = (0..300).map(|row| paint(1, row).0.caption()).collect();
        assert!(captions.len() > 200, "{}", captions.len());
    }

    #[test]
    fn a_picture_shows_the_colour_of_its_cars() {
        for row in 0..50 {
            let (scene, picture) = paint(2, row);
            let near = |pixel: &image::Rgb<u8>| {
                pixel.0.iter().zip(scene.colour.rgb).all(|(level, wanted)| level.abs_diff(wanted) <= 13)
            };
            let share = picture.pixels().filter(|pixel| near(pixel)).count() as f32 / (32.0 * 32.0);
            assert!((0.02..0.7).contains(&share), "{}: {share}", scene.caption());
        }
    }

    #[test]
    fn every_format_can_be_read_again() {
        let (_, picture) = paint(3, 0);
        for row in [0, 3, 9] {
            let (format, _) = format(row);
            let again = image::load_from_memory_with_format(&encode(&picture, format).unwrap(), format).unwrap();
            assert_eq!(again.to_rgb8().dimensions(), (32, 32));
        }
    }
}
