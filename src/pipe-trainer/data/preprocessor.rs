//! How pictures are prepared: `preprocessor_config.json`, read from a model's folder and written beside a result, so that
//! transformers prepares pictures as they were in training; and scaling as Pillow up to version 12 does it, to the bit: rows
//! first, then columns, 8 bits between the two. (Pillow 13 scales the columns first where that is cheaper, which differs where
//! edges are sharp.)

use std::path::Path;

use image::{Rgb, RgbImage};
use pipe_model::TaskData;
use pipe_spec::model_folder;
use serde_json::{Map, Value, json};

use crate::error::TrainerError;
use crate::storage::{self, LARGEST_CONFIG};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preprocessor {
    /// Height and width of what comes out.
    pub size: u32,
    pub resize: Resize,
    pub resample: Filter,
    /// The factor for a level from 0 to 255.
    pub scale: f64,
    pub mean: [f32; 3],
    pub std: [f32; 3],
}

/// How a picture becomes a square.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Its shorter side is scaled to this, then the middle is cut out.
    ShortestEdge(u32),
    /// Both sides are scaled, whatever their proportion.
    Square,
}

/// Filters by the numbers that Pillow gives them.
const FILTERS: [(u64, Filter); 4] =
    [(0, Filter::Nearest), (1, Filter::Lanczos), (2, Filter::Bilinear), (3, Filter::Bicubic)];

impl Preprocessor {
    /// Mean and standard deviation of the pictures that CLIP was first trained on.
    const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
    const STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

    /// The size for a model that takes pictures of any size, and whose folder says none.
    const USUAL_SIZE: u32 = 224;

    /// As CLIP does it.
    pub fn clip(size: u32) -> Self {
        let (mean, std) = (Self::MEAN, Self::STD);
        let (resize, resample) = (Resize::ShortestEdge(size), Filter::Bicubic);
        Self { size, resize, resample, scale: 1.0 / 255.0, mean, std }
    }

    /// As ViT does it.
    pub fn vit(size: u32) -> Self {
        let (mean, std) = ([0.5; 3], [0.5; 3]);
        Self { resize: Resize::Square, resample: Filter::Bilinear, mean, std, ..Self::clip(size) }
    }

    /// The settings of the model's folder, or the usual ones of the model. Nothing for a model that sees no pictures.
    pub fn find(task_data: &TaskData, model: Option<&Path>) -> Result<Option<Self>, TrainerError> {
        let size = |size: i64| u32::try_from(size).unwrap_or(u32::MAX);
        let (usual, wanted): (fn(u32) -> Self, Option<u32>) = match task_data {
            TaskData::Contrastive { image_size, .. } => (Self::clip, Some(size(*image_size))),
            TaskData::PictureClasses { image_size, .. } => (Self::vit, image_size.map(size)),
            _ => return Ok(None),
        };
        let path = model.map(|folder| folder.join(model_folder::PREPROCESSOR)).filter(|path| path.is_file());
        let usual = usual(wanted.unwrap_or(Self::USUAL_SIZE));
        let Some(path) = path else { return Ok(Some(usual)) };
        let fail = |message: String| TrainerError::Model { path: path.clone(), message };
        let text = storage::read(&path, LARGEST_CONFIG).map_err(|error| fail(error.to_string()))?;
        let keys: Map<String, Value> = serde_json::from_slice(&text).map_err(|error| fail(error.to_string()))?;
        usual.changed(wanted, &keys).map(Some).map_err(fail)
    }

    /// As the keys say, for a model that sees pictures of size `wanted`, if it does not take any.
    fn changed(self, wanted: Option<u32>, keys: &Map<String, Value>) -> Result<Self, String> {
        for key in ["do_resize", "do_rescale"] {
            if keys.get(key) == Some(&Value::Bool(false)) {
                return Err(format!("{key}: found false; allowed: true"));
            }
        }
        let mut read = self.resized(keys)?;
        if wanted.is_some_and(|wanted| wanted != read.size) {
            let (found, wanted) = (read.size, self.size);
            return Err(format!("found pictures of {found} x {found}; allowed: {wanted}, as the model's image_size"));
        }
        if let Some(number) = keys.get("resample").filter(|number| !number.is_null()) {
            let known = number.as_u64().and_then(|number| FILTERS.iter().find(|(code, _)| *code == number));
            read.resample = known.ok_or_else(|| format!("resample: found {number}; allowed: 0 to 3"))?.1;
        }
        read.scale = keys.get("rescale_factor").and_then(Value::as_f64).unwrap_or(read.scale);
        if keys.get("do_normalize") == Some(&Value::Bool(false)) {
            (read.mean, read.std) = ([0.0; 3], [1.0; 3]);
            return Ok(read);
        }
        read.mean = channels(keys, "image_mean")?.unwrap_or(read.mean);
        read.std = channels(keys, "image_std")?.unwrap_or(read.std);
        if read.std.iter().any(|part| *part <= 0.0) {
            return Err(format!("image_std: found {:?}; allowed: numbers above 0", read.std));
        }
        Ok(read)
    }

    /// Sizes, in the ways of transformers' processors: those of ConvNeXT, which ResNet has, say how much of the middle is kept; those of
    /// CLIP name two sizes, those of ViT one.
    fn resized(self, keys: &Map<String, Value>) -> Result<Self, String> {
        let has = |key: &str| keys.get(key).is_some_and(|value| !value.is_null());
        let kind = keys.get("image_processor_type").or_else(|| keys.get("feature_extractor_type"));
        let is_convnext = kind.and_then(Value::as_str).is_some_and(|kind| kind.starts_with("ConvNext"));
        if has("crop_pct") || is_convnext {
            let size = edge(keys, "size", true)?.unwrap_or(WARPED);
            let kept = keys.get("crop_pct").and_then(Value::as_f64).unwrap_or(CROP_PCT);
            if !(kept > 0.0 && kept <= 1.0) {
                return Err(format!("crop_pct: found {kept}; allowed: above 0, at most 1"));
            }
            let shortest = (f64::from(size) / kept) as u32;
            let resize = if size < WARPED { Resize::ShortestEdge(shortest) } else { Resize::Square };
            return Ok(Self { size, resize, ..self });
        }
        let crops = match keys.get("do_center_crop").and_then(Value::as_bool) {
            Some(crops) => crops,
            None => has("crop_size") || self.resize != Resize::Square,
        };
        if !crops && self.resize != Resize::Square {
            return Err("do_center_crop: found false; allowed: true".to_owned());
        }
        if !crops {
            return Ok(Self { size: edge(keys, "size", false)?.unwrap_or(self.size), resize: Resize::Square, ..self });
        }
        let shortest = edge(keys, "size", true)?;
        let size = edge(keys, "crop_size", false)?.unwrap_or(self.size);
        let shortest = shortest.unwrap_or(size);
        if shortest < size {
            return Err(format!("found size {shortest} and crop_size {size}; allowed: no smaller size"));
        }
        Ok(Self { size, resize: Resize::ShortestEdge(shortest), ..self })
    }

    /// The file, as transformers reads it.
    pub fn json(&self) -> Value {
        let resample = FILTERS.iter().find(|(_, filter)| *filter == self.resample).map(|(number, _)| *number);
        let square = json!({ "height": self.size, "width": self.size });
        let mut file = json!({
            "do_convert_rgb": true,
            "do_resize": true,
            "resample": resample,
            "do_rescale": true,
            "rescale_factor": self.scale,
            "do_normalize": true,
            "image_mean": self.mean,
            "image_std": self.std,
        });
        let ways = match self.resize {
            Resize::ShortestEdge(edge) => json!({
                "image_processor_type": "CLIPImageProcessor",
                "size": { "shortest_edge": edge },
                "do_center_crop": true,
                "crop_size": square,
            }),
            Resize::Square => json!({ "image_processor_type": "ViTImageProcessor", "size": square }),
        };
        if let (Value::Object(file), Value::Object(ways)) = (&mut file, ways) {
            file.extend(ways);
        }
        file
    }
}

/// From this size on ConvNeXT's processor scales both sides; below it this share of the middle is kept.
const WARPED: u32 = 384;
const CROP_PCT: f64 = 0.875;

/// A size: a number, or an object that says it of the shorter side or of both.
fn edge(keys: &Map<String, Value>, key: &str, shortest: bool) -> Result<Option<u32>, String> {
    let number = |value: &Value| value.as_u64().and_then(|edge| u32::try_from(edge).ok()).filter(|edge| *edge > 0);
    let found = match keys.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(sides)) => match (sides.get("shortest_edge"), sides.get("height"), sides.get("width")) {
            (Some(edge), _, _) if shortest => number(edge),
            (_, Some(height), Some(width)) if height == width && !shortest => number(height),
            _ => None,
        },
        Some(value) => number(value),
    };
    let allowed = if shortest { "a shortest_edge above 0" } else { "a square: height and width, the same" };
    found.map(Some).ok_or_else(|| format!("{key}: found {}; allowed: {allowed}", keys[key]))
}

fn channels(keys: &Map<String, Value>, key: &str) -> Result<Option<[f32; 3]>, String> {
    let Some(value) = keys.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    serde_json::from_value(value.clone()).map(Some).map_err(|_| format!("{key}: found {value}; allowed: three numbers"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    Nearest,
    Lanczos,
    Bilinear,
    Bicubic,
}

/// Bits behind the point of a weight.
const PRECISION: u32 = 32 - 8 - 2;

impl Filter {
    /// How many pixels of the coarser picture it looks to either side.
    fn support(self) -> f64 {
        match self {
            Self::Nearest => 0.0,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
        match self {
            Self::Bilinear if x < 1.0 => 1.0 - x,
            // Keys' cubic with a = -0.5.
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// Pixels that a pixel of the result is made of: from `first` on, with these weights.
struct Taps {
    first: u32,
    weights: Vec<i32>,
}

pub fn resize(picture: &RgbImage, width: u32, height: u32, filter: Filter) -> RgbImage {
    let (from_width, from_height) = picture.dimensions();
    let columns = taps(from_width, width, filter);
    let rows = taps(from_height, height, filter);
    let mixed = RgbImage::from_fn(width, from_height, |x, y| {
        let taps = &columns[x as usize];
        mix(taps, |index| picture.get_pixel(index, y))
    });
    RgbImage::from_fn(width, height, |x, y| {
        let taps = &rows[y as usize];
        mix(taps, |index| mixed.get_pixel(x, index))
    })
}

fn mix<'a>(taps: &Taps, pixel: impl Fn(u32) -> &'a Rgb<u8>) -> Rgb<u8> {
    let mut sums = [1i32 << (PRECISION - 1); 3];
    for (index, weight) in (taps.first..).zip(&taps.weights) {
        let Rgb(levels) = pixel(index);
        for (sum, level) in sums.iter_mut().zip(levels) {
            *sum += i32::from(*level) * weight;
        }
    }
    Rgb(sums.map(|sum| (sum >> PRECISION).clamp(0, 255) as u8))
}

/// For every pixel of a side that goes from `from` to `to` pixels.
fn taps(from: u32, to: u32, filter: Filter) -> Vec<Taps> {
    let scale = f64::from(from) / f64::from(to);
    let whole = 1i32 << PRECISION;
    let alone = |first: u32| Taps { first, weights: vec![whole] };
    let taps = |index: u32| {
        let center = (f64::from(index) + 0.5) * scale;
        if from == to {
            return alone(index);
        }
        if filter == Filter::Nearest {
            return alone((center as u32).min(from - 1));
        }
        // A finer picture is interpolated, a coarser one averaged over all that falls into its pixel.
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        // `as` rounds down from 0 on, and makes 0 of what is below.
        let first = (center - support + 0.5) as u32;
        let last = ((center + support + 0.5) as u32).min(from);
        let weights: Vec<f64> =
            (first..last).map(|index| filter.weight((f64::from(index) - center + 0.5) * stretch.recip())).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: &f64| (weight / sum * f64::from(whole)).round() as i32;
        Taps { first, weights: weights.iter().map(fixed).collect() }
    };
    (0..to).map(taps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Preprocessor, String> {
        Preprocessor::clip(8).changed(Some(8), value.as_object().unwrap())
    }

    #[test]
    fn what_the_folder_says_is_kept() {
        let plain = Preprocessor::clip(8);
        assert_eq!(read(json!({})), Ok(plain));
        let cases = [
            (
                json!({"image_mean": [0.5, 0.5, 0.5], "size": {"shortest_edge": 8}}),
                Preprocessor { mean: [0.5; 3], ..plain },
            ),
            (
                json!({"size": 10, "crop_size": 8, "resample": 2}),
                Preprocessor { resize: Resize::ShortestEdge(10), resample: Filter::Bilinear, ..plain },
            ),
            (
                json!({"crop_size": {"height": 8, "width": 8}, "rescale_factor": 0.5}),
                Preprocessor { scale: 0.5, ..plain },
            ),
            (
                json!({"do_normalize": false, "image_std": [9, 9, 9]}),
                Preprocessor { mean: [0.0; 3], std: [1.0; 3], ..plain },
            ),
        ];
        for (value, want) in cases {
            assert_eq!(read(value.clone()), Ok(want), "{value}");
            // Written settings are read again as the same.
            assert_eq!(read(want.json()), Ok(want), "{value}");
        }
    }

    /// Published preprocessor_config.json of ViT and ResNet, shortened.
    #[test]
    fn the_ways_of_other_processors() {
        let read = |value: Value| Preprocessor::vit(224).changed(None, value.as_object().unwrap());
        let plain = Preprocessor::vit(224);
        let mean = json!([0.485, 0.456, 0.406]);
        let cases = [
            (json!({"size": 224, "resample": 2}), plain),
            (json!({"size": {"height": 384, "width": 384}}), Preprocessor { size: 384, ..plain }),
            (
                json!({"feature_extractor_type": "ConvNextFeatureExtractor", "size": 224, "image_mean": mean}),
                Preprocessor { resize: Resize::ShortestEdge(256), mean: [0.485, 0.456, 0.406], ..plain },
            ),
            (
                json!({"crop_pct": 0.95, "size": {"shortest_edge": 288}}),
                Preprocessor { size: 288, resize: Resize::ShortestEdge(303), ..plain },
            ),
            (
                json!({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}}),
                Preprocessor { size: 384, ..plain },
            ),
            (
                json!({"size": {"shortest_edge": 256}, "do_center_crop": true, "crop_size": {"height": 224, "width": 224}}),
                Preprocessor { resize: Resize::ShortestEdge(256), ..plain },
            ),
        ];
        for (value, want) in cases {
            assert_eq!(read(value.clone()), Ok(want), "{value}");
            assert_eq!(read(want.json()), Ok(want), "{value}");
        }
        for (value, text) in [
            (json!({"size": {"height": 8, "width": 9}}), "size: found"),
            (json!({"size": {"shortest_edge": 8}}), "allowed: a square"),
            (json!({"crop_pct": 0}), "crop_pct: found 0"),
        ] {
            let error = read(value).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_the_loader_does_not_do_is_refused() {
        let cases = [
            (json!({"image_std": [0.5, 0.5, 0]}), "image_std: found [0.5, 0.5, 0.0]"),
            (json!({"image_mean": [0.5]}), "image_mean: found [0.5]"),
            (json!({"crop_size": 9}), "found pictures of 9 x 9; allowed: 8"),
            (json!({"size": 4}), "found size 4 and crop_size 8"),
            (json!({"size": {"height": 8, "width": 8}}), "size: found"),
            (json!({"resample": 5}), "resample: found 5"),
            (json!({"do_center_crop": false}), "do_center_crop: found false"),
        ];
        for (value, text) in cases {
            let error = read(value).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
