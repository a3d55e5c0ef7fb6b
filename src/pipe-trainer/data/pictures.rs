//! From picture files to what a model sees: decoded, the shorter side scaled to the model's size, the middle cut out, colours
//! normalised. Bicubic, within rounding of what Pillow makes of them; knows no tensors.

use std::fs;
use std::path::Path;

use image::imageops::{self, FilterType};
use image::{ImageReader, RgbImage};
use serde::Deserialize;

use crate::boundary;
use crate::error::TrainerError;

pub struct Preparation {
    /// Height and width of what comes out.
    size: u32,
    mean: [f32; 3],
    std: [f32; 3],
}

/// What is read of a model's `preprocessor_config.json`. Its sizes are those of the model.
#[derive(Deserialize)]
struct Preprocessor {
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
}

impl Preparation {
    /// Of the pictures that CLIP was first trained on.
    const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
    const STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

    /// As CLIP does it, unless the model's folder says otherwise.
    pub fn open(size: u32, model: Option<&Path>) -> Result<Self, TrainerError> {
        let plain = Self { size, mean: Self::MEAN, std: Self::STD };
        let Some(path) = model.map(|folder| folder.join("preprocessor_config.json")).filter(|path| path.is_file())
        else {
            return Ok(plain);
        };
        let fail = |message: String| TrainerError::Model { path: path.clone(), message };
        let text = fs::read(&path).map_err(|error| fail(error.to_string()))?;
        let found: Preprocessor = serde_json::from_slice(&text).map_err(|error| fail(error.to_string()))?;
        let std = found.image_std.unwrap_or(plain.std);
        if std.iter().any(|part| *part <= 0.0) {
            return Err(fail(format!("image_std: found {std:?}; allowed: numbers above 0")));
        }
        Ok(Self { mean: found.image_mean.unwrap_or(plain.mean), std, ..plain })
    }

    pub fn shape(&self) -> [i64; 3] {
        [3, i64::from(self.size), i64::from(self.size)]
    }

    /// The values of the picture in a file, in the order of `shape`; or why there are none.
    pub fn read(&self, path: &Path) -> Result<Vec<f32>, String> {
        // A decoder that panics has met a file that it cannot read.
        let decode = || {
            let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
            let decoded = reader.map_err(|error| error.to_string()).and_then(|reader| {
                let picture = reader.decode().map_err(|error| error.to_string())?;
                Ok(picture.to_rgb8())
            });
            Ok(decoded)
        };
        let picture = boundary::guard(decode).map_err(|error| error.to_string())??;
        Ok(self.values(&picture))
    }

    fn values(&self, picture: &RgbImage) -> Vec<f32> {
        let (width, height) = self.scaled(picture.dimensions());
        let scaled = imageops::resize(picture, width, height, FilterType::CatmullRom);
        let (left, top) = ((width - self.size) / 2, (height - self.size) / 2);
        let mut values = Vec::with_capacity(3 * (self.size * self.size) as usize);
        for channel in 0..3 {
            let (mean, std) = (self.mean[channel], self.std[channel]);
            for y in top..top + self.size {
                for x in left..left + self.size {
                    let level = f32::from(scaled.get_pixel(x, y).0[channel]) / 255.0;
                    values.push((level - mean) / std);
                }
            }
        }
        values
    }

    /// The shorter side becomes `size`; the longer keeps its share, rounded down as in transformers.
    fn scaled(&self, (width, height): (u32, u32)) -> (u32, u32) {
        let longer = |long: u32, short: u32| (u64::from(self.size) * u64::from(long) / u64::from(short)) as u32;
        if width <= height { (self.size, longer(height, width)) } else { (longer(width, height), self.size) }
    }
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    fn plain(size: u32) -> Preparation {
        Preparation { size, mean: [0.0; 3], std: [1.0 / 255.0; 3] }
    }

    #[test]
    fn the_shorter_side_is_scaled_and_the_middle_taken() {
        let cases = [((40, 20), (16, 8)), ((20, 41), (8, 16)), ((3, 3), (8, 8)), ((100, 99), (8, 8))];
        for (from, to) in cases {
            assert_eq!(plain(8).scaled(from), to, "{from:?}");
        }
        // Black, then grey in the middle square, then white.
        let picture = RgbImage::from_fn(24, 8, |x, _| Rgb([[0, 100, 255][x as usize / 8]; 3]));
        let values = plain(8).values(&picture);
        assert_eq!(values.len(), 3 * 8 * 8);
        assert!(values.iter().all(|value| (value - 100.0).abs() < 1e-3), "{values:?}");
    }

    #[test]
    fn colours_come_one_after_the_other_and_are_normalised() {
        let picture = RgbImage::from_pixel(4, 4, Rgb([255, 0, 51]));
        let preparation = Preparation { size: 2, mean: [0.5, 0.0, 0.1], std: [0.25, 1.0, 0.1] };
        let values = preparation.values(&picture);
        let want = [2.0f32; 4].into_iter().chain([0.0; 4]).chain([1.0; 4]);
        assert!(values.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{values:?}");
    }

    #[test]
    fn a_models_folder_may_say_how_colours_are_normalised() {
        let folder = std::env::temp_dir().join(format!("pipe-preparation-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(Preparation::open(8, Some(&folder)).unwrap().mean, Preparation::MEAN);
        let file = folder.join("preprocessor_config.json");
        fs::write(&file, r#"{"image_mean": [0.5, 0.5, 0.5], "size": {"shortest_edge": 8}}"#).unwrap();
        let found = Preparation::open(8, Some(&folder)).unwrap();
        assert_eq!((found.mean, found.std), ([0.5; 3], Preparation::STD));
        fs::write(&file, r#"{"image_std": [0.5, 0.5, 0]}"#).unwrap();
        let error = Preparation::open(8, Some(&folder)).err().unwrap().to_string();
        assert!(error.contains("preprocessor_config.json: image_std: found [0.5, 0.5, 0.0]"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
}
