//! Scales pictures as Pillow up to version 12 does, to the bit: rows first, then columns, 8 bits between the two. (Pillow 13
//! scales the columns first where that is cheaper, which differs where edges are sharp.)

use image::{Rgb, RgbImage};

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

/// What a pixel of the result is made of: from `first` on, with these weights.
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
