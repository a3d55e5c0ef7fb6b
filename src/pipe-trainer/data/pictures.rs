//! From picture files to what a model sees: decoded, scaled to the model's size, colours normalised; in training perhaps a random
//! part of the picture, or mirrored. Knows no tensors.
//!
//! The pictures that rows name: paths relative to the folder of the data file, or numbers in `images.safetensors` there.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits, Rgb, RgbImage, imageops};
use memmap2::Mmap;
use pipe_data::Rows;
use pipe_spec::pipeline::{Augment, Paths};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Column;
use super::preprocessor::{self, Filter, Preprocessor, Resize};
use crate::boundary;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};

/// A picture has no more, neither in its file nor scaled to the model's size.
const MOST_PIXELS: u64 = 100_000_000;

pub struct Preparation {
    settings: Preprocessor,
}

/// The random view that is drawn each time that a picture is trained on.
pub struct View {
    augment: Augment,
    random: Random,
}

/// The least share of a picture that a part of it has, and how much wider or higher than the picture it is at most.
const LEAST_AREA: f64 = 0.6;
const MOST_STRETCH: f64 = 4.0 / 3.0;

impl View {
    /// A function of seed, epoch and row, and of nothing else.
    pub fn new(augment: Augment, seed: u64, epoch: u64, row: usize) -> Self {
        Self { augment, random: Random::new(Purpose::Augment, seed, &[epoch, row as u64]) }
    }

    /// A random part of a picture, with about the proportion of `shape`, which lies in it.
    fn part(&mut self, picture: &RgbImage, shape: [u32; 2]) -> RgbImage {
        let (width, height) = picture.dimensions();
        let area = LEAST_AREA + (1.0 - LEAST_AREA) * self.random.unit();
        let stretch = 1.0 + (MOST_STRETCH - 1.0) * self.random.unit();
        let stretch = if self.random.below(2) == 0 { stretch } else { stretch.recip() };
        let side = |side: u32, share: f64, most: u32| ((f64::from(side) * share.sqrt()).round() as u32).clamp(1, most);
        let (part_width, part_height) = (side(shape[0], area * stretch, width), side(shape[1], area / stretch, height));
        let mut start = |room: u32| self.random.below(u64::from(room) + 1) as u32;
        let (left, top) = (start(width - part_width), start(height - part_height));
        imageops::crop_imm(picture, left, top, part_width, part_height).to_image()
    }

    fn mirrors(&mut self) -> bool {
        self.augment.flips() && self.random.below(2) == 0
    }
}

impl Preparation {
    pub fn new(settings: Preprocessor) -> Self {
        Self { settings }
    }

    pub fn shape(&self) -> [i64; 3] {
        [3, i64::from(self.settings.size), i64::from(self.settings.size)]
    }

    /// The values of the picture in a file, in the order of `shape`; or why there are none. `view` is that of a training.
    pub fn read(&self, path: &Path, view: Option<View>) -> Result<Vec<f32>, String> {
        // A decoder that panics has met a file that it cannot read.
        let decode = || {
            let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
            Ok(reader.map_err(|error| error.to_string()).and_then(|reader| self.decode(reader)))
        };
        let picture = boundary::guard(decode).map_err(|error| error.to_string())??;
        Ok(self.values(&picture, view))
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

    fn values(&self, picture: &RgbImage, view: Option<View>) -> Vec<f32> {
        let Preprocessor { size, scale, mean, std, .. } = self.settings;
        let scale = scale as f32;
        let square = match view {
            None => self.square(picture),
            Some(mut view) => {
                let mut square =
                    if view.augment.crops() { self.part(picture, &mut view) } else { self.square(picture) };
                if view.mirrors() {
                    imageops::flip_horizontal_in_place(&mut square);
                }
                square
            }
        };
        let mut values = Vec::with_capacity(3 * (size * size) as usize);
        for channel in 0..3 {
            let (mean, std) = (mean[channel], std[channel]);
            values.extend(square.pixels().map(|pixel| (f32::from(pixel.0[channel]) * scale - mean) / std));
        }
        values
    }

    /// The picture as a model sees it outside of training.
    fn square(&self, picture: &RgbImage) -> RgbImage {
        let (width, height) = self.scaled(picture.dimensions()).expect("what was decoded can be scaled");
        let Preprocessor { size, resample, .. } = self.settings;
        let scaled = preprocessor::resize(picture, width, height, resample);
        imageops::crop_imm(&scaled, (width - size) / 2, (height - size) / 2, size, size).to_image()
    }

    /// A random part of it.
    fn part(&self, picture: &RgbImage, view: &mut View) -> RgbImage {
        let (width, height) = picture.dimensions();
        let shape = match self.settings.resize {
            Resize::ShortestEdge(_) => [width.min(height); 2],
            Resize::Square => [width, height],
        };
        let Preprocessor { size, resample, .. } = self.settings;
        preprocessor::resize(&view.part(picture, shape), size, size, resample)
    }

    /// A picture of its values, `edge` pixels high and wide at most.
    pub fn thumbnail(&self, values: &[f32], edge: u32) -> RgbImage {
        let Preprocessor { size, scale, mean, std, .. } = self.settings;
        let pixels = (size * size) as usize;
        let level = |channel: usize, pixel: usize| {
            let level = (values[channel * pixels + pixel] * std[channel] + mean[channel]) / scale as f32;
            level.round().clamp(0.0, 255.0) as u8
        };
        let picture = RgbImage::from_fn(size, size, |x, y| {
            let pixel = (y * size + x) as usize;
            Rgb([level(0, pixel), level(1, pixel), level(2, pixel)])
        });
        match size <= edge {
            true => picture,
            false => preprocessor::resize(&picture, edge, edge, Filter::Bicubic),
        }
    }

    /// The shorter side becomes that of the settings; the longer keeps its share, rounded down as in transformers.
    /// Nothing where that cannot be counted.
    fn scaled(&self, (width, height): (u32, u32)) -> Option<(u32, u32)> {
        let edge = match self.settings.resize {
            Resize::ShortestEdge(edge) => edge,
            Resize::Square => return Some((self.settings.size, self.settings.size)),
        };
        let longer = |long: u32, short: u32| {
            let scaled = (u64::from(edge) * u64::from(long)).checked_div(u64::from(short));
            scaled.and_then(|scaled| u32::try_from(scaled).ok())
        };
        Some(if width <= height { (edge, longer(height, width)?) } else { (longer(width, height)?, edge) })
    }
}

pub struct PictureColumn {
    /// Which column of the rows it is.
    column: usize,
    preparation: Preparation,
    /// By folder.
    tables: HashMap<PathBuf, PictureTable>,
}

/// The picture that a row names.
pub enum Picture<'a> {
    File(PathBuf),
    Number(&'a PictureTable, usize),
}

impl Picture<'_> {
    /// Whether it is there; or else why not. Whether it can be decoded is seen when it is.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::File(path) => path.metadata().map(drop).map_err(|error| error.to_string()),
            Self::Number(table, number) => table.check(*number),
        }
    }

    /// The message for a picture that cannot be read.
    pub fn unreadable(&self, message: &str, predicts: bool) -> String {
        let name = match self {
            Self::File(path) => path.display().to_string(),
            Self::Number(_, number) => number.to_string(),
        };
        let how = if predicts { "--skip-bad" } else { "data.skip_bad: true" };
        format!("the picture {name}: {message}; {how} skips such pictures")
    }
}

impl PictureColumn {
    pub fn open(paths: &Paths, column: usize, preparation: Preparation) -> Result<Self, TrainerError> {
        let mut tables = HashMap::new();
        let files = paths.0.iter().map(Path::new).filter(|path| path.is_file());
        for folder in files.filter_map(Path::parent) {
            let table = folder.join("images.safetensors");
            if table.is_file() && !tables.contains_key(folder) {
                tables.insert(folder.to_owned(), PictureTable::open(&table, &preparation.shape())?);
            }
        }
        Ok(Self { column, preparation, tables })
    }

    /// The picture that a row names with `value`.
    pub fn find(&self, rows: &Rows, index: usize, value: Option<&Value>) -> Result<Picture<'_>, TrainerError> {
        let folder = rows.path(index).parent().unwrap_or(Path::new(""));
        let table = self.tables.get(folder);
        Ok(match (value, table) {
            (Some(Value::Number(number)), Some(table)) if number.is_u64() => number_of(table, &number.to_string()),
            (Some(Value::Number(_)), None) => {
                let message = format!("a picture by its number, and no images.safetensors in {}", folder.display());
                return Err(rows.fail(index, message).into());
            }
            // In CSV a number is a text.
            (Some(Value::String(text)), Some(table)) if is_number(text) => number_of(table, text),
            (Some(Value::String(path)), _) => Picture::File(folder.join(path)),
            (other, _) => {
                return Err(rows.problem(index, self.column, other, "a path or the number of a picture").into());
            }
        })
    }

    /// The values of a picture for the model, or why it cannot be read. Those of a table are used as they are, without a `view`.
    pub fn values(&self, picture: &Picture<'_>, view: Option<View>) -> Result<Column, String> {
        let values = match picture {
            Picture::File(path) => self.preparation.read(path, view),
            Picture::Number(table, number) => table.read(*number),
        };
        values.map(|values| Column::Values { shape: self.preparation.shape().to_vec(), values })
    }

    /// Nothing where it cannot be read.
    pub fn thumbnail(&self, picture: &Picture<'_>, edge: u32) -> Option<RgbImage> {
        match self.values(picture, None) {
            Ok(Column::Values { values, .. }) => Some(self.preparation.thumbnail(&values, edge)),
            _ => None,
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A number too large for the machine is beyond every table.
fn number_of<'a>(table: &'a PictureTable, digits: &str) -> Picture<'a> {
    Picture::Number(table, digits.parse().unwrap_or(usize::MAX))
}

pub struct PictureTable {
    path: PathBuf,
    map: Mmap,
    /// Where the first picture begins.
    start: usize,
    len: usize,
    /// Values of one picture.
    values: usize,
}

impl PictureTable {
    /// The tensor `pixel_values`, whose pictures must have `shape`.
    fn open(path: &Path, shape: &[i64]) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Data { path: path.to_owned(), line: None, message };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        // SAFETY: a data set that another program shortens while it is trained on ends the process, as losing it would.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let parsed = SafeTensors::deserialize(&map).map_err(|error| fail(format!("not safetensors: {error}")))?;
        let view = parsed.tensor("pixel_values").map_err(|_| fail("it has no tensor pixel_values".to_owned()))?;
        let found: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
        if view.dtype() != Dtype::F32 || found.get(1..) != Some(shape) {
            let wanted: Vec<String> = shape.iter().map(i64::to_string).collect();
            let message = format!(
                "pixel_values is {:?} {found:?}; the model wants F32 [pictures, {}]",
                view.dtype(),
                wanted.join(", ")
            );
            return Err(fail(message));
        }
        let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
        let (len, values) = (view.shape()[0], view.shape()[1..].iter().product());
        Ok(Self { path: path.to_owned(), map, start, len, values })
    }

    /// Whether there is a picture of that number; or else why not.
    fn check(&self, number: usize) -> Result<(), String> {
        if number < self.len {
            return Ok(());
        }
        Err(format!("{} has {} pictures, counted from 0", self.path.display(), self.len))
    }

    fn read(&self, number: usize) -> Result<Vec<f32>, String> {
        self.check(number)?;
        let bytes = self.values * size_of::<f32>();
        let start = self.start + number * bytes;
        let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(self.map[start..start + bytes].chunks_exact(size_of::<f32>()).map(value).collect())
    }
}

#[cfg(test)]
mod tests {
    use pipe_model::TaskData;

    use super::*;

    fn plain(size: u32) -> Preparation {
        Preparation::new(Preprocessor { mean: [0.0; 3], std: [1.0 / 255.0; 3], ..Preprocessor::clip(size) })
    }

    #[test]
    fn the_shorter_side_is_scaled_and_the_middle_taken() {
        let cases = [((40, 20), (16, 8)), ((20, 41), (8, 16)), ((3, 3), (8, 8)), ((100, 99), (8, 8))];
        for (from, to) in cases {
            assert_eq!(plain(8).scaled(from), Some(to), "{from:?}");
        }
        // Black, then grey in the middle square, then white.
        let picture = RgbImage::from_fn(24, 8, |x, _| Rgb([[0, 100, 255][x as usize / 8]; 3]));
        let values = plain(8).values(&picture, None);
        assert_eq!(values.len(), 3 * 8 * 8);
        assert!(values.iter().all(|value| (value - 100.0).abs() < 1e-3), "{values:?}");
    }

    #[test]
    fn a_thumbnail_is_the_picture_that_the_model_sees() {
        let picture = RgbImage::from_fn(8, 8, |x, y| Rgb([x as u8 * 30, y as u8 * 30, 128]));
        let preparation = Preparation::new(Preprocessor::clip(8));
        let values = preparation.values(&picture, None);
        assert_eq!(preparation.thumbnail(&values, 8), picture);
        assert_eq!(preparation.thumbnail(&values, 4).dimensions(), (4, 4));
    }

    #[test]
    fn colours_come_one_after_the_other_and_are_normalised() {
        let picture = RgbImage::from_pixel(4, 4, Rgb([255, 0, 51]));
        let settings = Preprocessor { mean: [0.5, 0.0, 0.1], std: [0.25, 1.0, 0.1], ..Preprocessor::clip(2) };
        let values = Preparation::new(settings).values(&picture, None);
        let want = [2.0f32; 4].into_iter().chain([0.0; 4]).chain([1.0; 4]);
        assert!(values.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{values:?}");
    }

    fn contrastive(image_size: i64) -> TaskData {
        let (vocab_size, pad_token_id, eos_token_id, max_length, num_channels) = (9, 0, None, 8, 3);
        TaskData::Contrastive { vocab_size, pad_token_id, eos_token_id, max_length, num_channels, image_size }
    }

    /// Against what transformers makes of the same files (`tests/fixtures/make_pictures.py`). Decoders of JPEG round
    /// differently, by up to three levels of 255.
    #[test]
    fn pictures_are_those_of_transformers() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/pictures");
        let bytes = std::fs::read(fixtures.join("expect.safetensors")).unwrap();
        let expected = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(expected.len(), 16);
        for (name, view) in expected.iter() {
            let (kind, file) = name.split_once('/').unwrap();
            let folder = std::env::temp_dir().join(format!("pipe-pictures-{}-{kind}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(fixtures.join(format!("{kind}.json")), folder.join("preprocessor_config.json")).unwrap();
            let task_data = match kind {
                "clip" | "margin" => contrastive(24),
                _ => TaskData::PictureClasses { num_channels: 3, image_size: None, labels: None },
            };
            let settings = Preprocessor::find(&task_data, Some(&folder)).unwrap().unwrap();
            let got = Preparation::new(settings).read(&fixtures.join(file), None).unwrap();
            std::fs::remove_dir_all(folder).unwrap();
            let floats = view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
            let apart: Vec<f32> = got.iter().zip(floats).map(|(a, b)| (a - b).abs()).collect();
            assert_eq!((view.shape(), apart.len()), ([3, 24, 24].as_slice(), got.len()), "{name}");
            let most = apart.iter().copied().fold(0.0, f32::max);
            println!("{name}: at most {most} apart");
            // Three levels, divided by the smallest standard deviation of these processors.
            let allowed = if file.ends_with("jpg") { 3.01 / 255.0 / 0.224 } else { 1e-6 };
            assert!(most < allowed, "{name}: {most}");
        }
    }

    #[test]
    fn a_larger_edge_leaves_a_margin_that_is_cut_off() {
        let preparation = Preparation::new(Preprocessor { resize: Resize::ShortestEdge(10), ..plain(8).settings });
        assert_eq!(preparation.scaled((40, 20)), Some((20, 10)));
        // White with a black frame, which is what is cut off.
        let frame = |x: u32, y: u32| [0, 9].contains(&x) || [0, 9].contains(&y);
        let picture = RgbImage::from_fn(10, 10, |x, y| Rgb([if frame(x, y) { 0 } else { 255 }; 3]));
        let values = preparation.values(&picture, None);
        assert!(values.iter().all(|value| (value - 255.0).abs() < 1e-3), "{values:?}");
    }

    #[test]
    fn a_view_is_a_function_of_seed_epoch_and_row() {
        let picture = RgbImage::from_fn(40, 20, |x, y| Rgb([x as u8 * 6, y as u8 * 12, 0]));
        let of = |augment, seed, epoch, row| {
            let settings = Preprocessor { resize: Resize::Square, ..plain(8).settings };
            Preparation::new(settings).values(&picture, Some(View::new(augment, seed, epoch, row)))
        };
        let first = of(Augment::Crop, 1, 0, 0);
        assert_eq!(first, of(Augment::Crop, 1, 0, 0));
        for other in [of(Augment::Crop, 2, 0, 0), of(Augment::Crop, 1, 1, 0), of(Augment::Crop, 1, 0, 1)] {
            assert_ne!(first, other);
        }
        // Red rises from left to right, unless the picture is mirrored.
        let rises = |values: &[f32]| values[0] < values[7];
        let mirrored = |augment| (0..64).filter(|epoch| !rises(&of(augment, 1, *epoch, 0))).count();
        assert_eq!((mirrored(Augment::Crop), mirrored(Augment::None)), (0, 0));
        assert!([Augment::Flip, Augment::CropFlip].iter().all(|augment| (20..44).contains(&mirrored(*augment))));
        // A part has more than half of the picture, so the middle of each side is in it.
        for epoch in 0..64 {
            let values = of(Augment::Crop, 1, epoch, 0);
            assert!(values[0] < 120.0 && values[7] > 120.0 && values[64] < 120.0 && values[64 + 56] > 120.0, "{epoch}");
        }
        assert_eq!(of(Augment::None, 1, 0, 0), of(Augment::None, 2, 5, 7));
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
            assert_eq!(plain(224).read(&path, None).unwrap_err(), want);
        }
        std::fs::remove_file(path).unwrap();
    }
}
