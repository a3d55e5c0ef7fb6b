//! From picture files to what a model sees: decoded, the shorter side scaled to the model's size, the middle cut out, colours
//! normalised. Knows no tensors.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits, Rgb, RgbImage};

use super::preprocessor::{self, Filter, Preprocessor};
use crate::boundary;
use crate::error::TrainerError;

/// A picture has no more, neither in its file nor scaled to the model's size.
const MOST_PIXELS: u64 = 100_000_000;

pub struct Preparation {
    /// Height and width of what comes out.
    size: u32,
    settings: Preprocessor,
}

impl Preparation {
    /// As CLIP does it, unless the model's folder says otherwise.
    pub fn open(size: u32, model: Option<&Path>) -> Result<Self, TrainerError> {
        Ok(Self { size, settings: Preprocessor::open(size, model)? })
    }

    pub fn shape(&self) -> [i64; 3] {
        [3, i64::from(self.size), i64::from(self.size)]
    }

    /// The values of the picture in a file, in the order of `shape`; or why there are none.
    pub fn read(&self, path: &Path) -> Result<Vec<f32>, String> {
        // A decoder that panics has met a file that it cannot read.
        let decode = || {
            let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
            Ok(reader.map_err(|error| error.to_string()).and_then(|reader| self.decode(reader)))
        };
        let picture = boundary::guard(decode).map_err(|error| error.to_string())??;
        Ok(self.values(&picture))
    }

    /// A file of a few bytes can say that it is a picture of any size: that is looked at before it is decoded.
    fn decode(&self, reader: ImageReader<BufReader<File>>) -> Result<RgbImage, String> {
        let fail = |error: ImageError| error.to_string();
        let decoder = reader.into_decoder().map_err(fail)?;
        let (width, height) = decoder.dimensions();
        let pixels = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
        if pixels((width, height)) > MOST_PIXELS {
            return Err(format!("it is {width} x {height}; allowed: at most {MOST_PIXELS} pixels"));
        }
        // The whole picture is scaled before its middle is taken.
        if width > 0 && height > 0 && self.scaled((width, height)).is_none_or(|scaled| pixels(scaled) > MOST_PIXELS) {
            return Err(format!("it is {width} x {height}: too long for its width to be scaled"));
        }
        let mut limits = Limits::default();
        limits.reserve(decoder.total_bytes()).map_err(fail)?;
        Ok(DynamicImage::from_decoder(decoder).map_err(fail)?.to_rgb8())
    }

    fn values(&self, picture: &RgbImage) -> Vec<f32> {
        let (width, height) = self.scaled(picture.dimensions()).expect("what was decoded can be scaled");
        let Preprocessor { resample, scale, mean, std, .. } = self.settings;
        let scale = scale as f32;
        let scaled = preprocessor::resize(picture, width, height, resample);
        let (left, top) = ((width - self.size) / 2, (height - self.size) / 2);
        let mut values = Vec::with_capacity(3 * (self.size * self.size) as usize);
        for channel in 0..3 {
            let (mean, std) = (mean[channel], std[channel]);
            for y in top..top + self.size {
                for x in left..left + self.size {
                    let level = f32::from(scaled.get_pixel(x, y).0[channel]) * scale;
                    values.push((level - mean) / std);
                }
            }
        }
        values
    }

    /// A picture of its values, `edge` pixels high and wide at most.
    pub fn thumbnail(&self, values: &[f32], edge: u32) -> RgbImage {
        let Preprocessor { scale, mean, std, .. } = self.settings;
        let pixels = (self.size * self.size) as usize;
        let level = |channel: usize, pixel: usize| {
            let level = (values[channel * pixels + pixel] * std[channel] + mean[channel]) / scale as f32;
            level.round().clamp(0.0, 255.0) as u8
        };
        let picture = RgbImage::from_fn(self.size, self.size, |x, y| {
            let pixel = (y * self.size + x) as usize;
            Rgb([level(0, pixel), level(1, pixel), level(2, pixel)])
        });
        match self.size <= edge {
            true => picture,
            false => preprocessor::resize(&picture, edge, edge, Filter::Bicubic),
        }
    }

    /// The shorter side becomes `shortest_edge`; the longer keeps its share, rounded down as in transformers.
    /// Nothing where that cannot be counted.
    fn scaled(&self, (width, height): (u32, u32)) -> Option<(u32, u32)> {
        let edge = self.settings.shortest_edge;
        let longer = |long: u32, short: u32| {
            let scaled = (u64::from(edge) * u64::from(long)).checked_div(u64::from(short));
            scaled.and_then(|scaled| u32::try_from(scaled).ok())
        };
        Some(if width <= height { (edge, longer(height, width)?) } else { (longer(width, height)?, edge) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(size: u32) -> Preparation {
        let settings = Preprocessor { mean: [0.0; 3], std: [1.0 / 255.0; 3], ..Preprocessor::clip(size) };
        Preparation { size, settings }
    }

    #[test]
    fn the_shorter_side_is_scaled_and_the_middle_taken() {
        let cases = [((40, 20), (16, 8)), ((20, 41), (8, 16)), ((3, 3), (8, 8)), ((100, 99), (8, 8))];
        for (from, to) in cases {
            assert_eq!(plain(8).scaled(from), Some(to), "{from:?}");
        }
        // Black, then grey in the middle square, then white.
        let picture = RgbImage::from_fn(24, 8, |x, _| Rgb([[0, 100, 255][x as usize / 8]; 3]));
        let values = plain(8).values(&picture);
        assert_eq!(values.len(), 3 * 8 * 8);
        assert!(values.iter().all(|value| (value - 100.0).abs() < 1e-3), "{values:?}");
    }

    #[test]
    fn a_thumbnail_is_the_picture_that_the_model_sees() {
        let picture = RgbImage::from_fn(8, 8, |x, y| Rgb([x as u8 * 30, y as u8 * 30, 128]));
        let preparation = Preparation { size: 8, settings: Preprocessor::clip(8) };
        let values = preparation.values(&picture);
        assert_eq!(preparation.thumbnail(&values, 8), picture);
        assert_eq!(preparation.thumbnail(&values, 4).dimensions(), (4, 4));
    }

    #[test]
    fn colours_come_one_after_the_other_and_are_normalised() {
        let picture = RgbImage::from_pixel(4, 4, Rgb([255, 0, 51]));
        let settings = Preprocessor { mean: [0.5, 0.0, 0.1], std: [0.25, 1.0, 0.1], ..Preprocessor::clip(2) };
        let preparation = Preparation { size: 2, settings };
        let values = preparation.values(&picture);
        let want = [2.0f32; 4].into_iter().chain([0.0; 4]).chain([1.0; 4]);
        assert!(values.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{values:?}");
    }

    /// Against what transformers makes of the same files (`tests/fixtures/make_pictures.py`). Decoders of JPEG round
    /// differently, by up to three levels of 255.
    #[test]
    fn pictures_are_those_of_transformers() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/pictures");
        let bytes = std::fs::read(fixtures.join("expect.safetensors")).unwrap();
        let expected = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(expected.len(), 8);
        for (name, view) in expected.iter() {
            let (kind, file) = name.split_once('/').unwrap();
            let folder = std::env::temp_dir().join(format!("pipe-pictures-{}-{kind}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(fixtures.join(format!("{kind}.json")), folder.join("preprocessor_config.json")).unwrap();
            let got = Preparation::open(24, Some(&folder)).unwrap().read(&fixtures.join(file)).unwrap();
            std::fs::remove_dir_all(folder).unwrap();
            let floats = view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
            let apart: Vec<f32> = got.iter().zip(floats).map(|(a, b)| (a - b).abs()).collect();
            assert_eq!((view.shape(), apart.len()), ([3, 24, 24].as_slice(), got.len()), "{name}");
            let most = apart.iter().copied().fold(0.0, f32::max);
            println!("{name}: at most {most} apart");
            assert!(most < if file.ends_with("jpg") { 0.05 } else { 1e-6 }, "{name}: {most}");
        }
    }

    #[test]
    fn a_larger_edge_leaves_a_margin_that_is_cut_off() {
        let settings = Preprocessor { shortest_edge: 10, ..plain(8).settings };
        let preparation = Preparation { size: 8, settings };
        assert_eq!(preparation.scaled((40, 20)), Some((20, 10)));
        // White with a black frame, which is what is cut off.
        let frame = |x: u32, y: u32| [0, 9].contains(&x) || [0, 9].contains(&y);
        let picture = RgbImage::from_fn(10, 10, |x, y| Rgb([if frame(x, y) { 0 } else { 255 }; 3]));
        let values = preparation.values(&picture);
        assert!(values.iter().all(|value| (value - 255.0).abs() < 1e-3), "{values:?}");
    }

    /// The beginning of a picture of any size: its header, and that its data follows.
    fn png(width: u32, height: u32) -> Vec<u8> {
        let chunk = |name: &[u8; 4], data: &[u8]| {
            let mut crc = flate2::Crc::new();
            crc.update(name);
            crc.update(data);
            let length = (data.len() as u32).to_be_bytes();
            [&length[..], name, data, &crc.sum().to_be_bytes()].concat()
        };
        let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
        [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &header), chunk(b"IDAT", &[0x78, 1, 3, 0, 0, 0, 0, 1])].concat()
    }

    #[test]
    fn a_picture_that_would_fill_the_memory_is_refused_by_its_header() {
        let path = std::env::temp_dir().join(format!("pipe-bomb-{}.png", std::process::id()));
        for (width, height, want) in [
            (60_000, 60_000, "it is 60000 x 60000; allowed: at most 100000000 pixels"),
            (60_000, 1, "it is 60000 x 1: too long for its width to be scaled"),
        ] {
            std::fs::write(&path, png(width, height)).unwrap();
            assert_eq!(plain(224).read(&path).unwrap_err(), want);
        }
        std::fs::remove_file(path).unwrap();
    }
}
