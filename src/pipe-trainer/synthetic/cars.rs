//! Synthetic pictures of cars with captions and the kind of car: endless, reproducible and learnable, because a caption
//! describes its picture. Lengths are shares of the picture, so that every size shows the same.

use std::fs;
use std::io::{self, Cursor};
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::json;

use super::{Split, Unigram};
use crate::cli::PicturesArgs;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::storage;

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
    write(&folder.join("tokenizer.json"), tokenizer().as_bytes())
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
    Ok(json!({ "image": name, "text": scene.caption(), "label": scene.body.name(1) }).to_string() + "\n")
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
    storage::write_whole(path, bytes).map_err(|error| fail(path, error))
}

fn fail(path: &Path, source: io::Error) -> TrainerError {
    TrainerError::Io { path: path.to_owned(), source }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene {
    pub count: u32,
    pub colour: Colour,
    pub body: Body,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    name: &'static str,
    pub rgb: [u8; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Sedan,
    Van,
    Truck,
    Bus,
    Convertible,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// With its preposition.
    name: &'static str,
    pub sky: [u8; 3],
    pub ground: [u8; 3],
}

const COUNTS: [&str; 3] = ["one", "two", "three"];

const COLOURS: [Colour; 8] = [
    Colour { name: "red", rgb: [200, 30, 30] },
    Colour { name: "green", rgb: [30, 150, 50] },
    Colour { name: "blue", rgb: [40, 60, 200] },
    Colour { name: "yellow", rgb: [235, 210, 40] },
    Colour { name: "white", rgb: [240, 240, 240] },
    Colour { name: "black", rgb: [25, 25, 25] },
    Colour { name: "orange", rgb: [240, 130, 20] },
    Colour { name: "purple", rgb: [130, 40, 160] },
];

const BODIES: [Body; 5] = [Body::Sedan, Body::Van, Body::Truck, Body::Bus, Body::Convertible];

const PLACES: [Place; 6] = [
    Place { name: "on a road", sky: [150, 200, 240], ground: [110, 110, 115] },
    Place { name: "at night", sky: [15, 20, 50], ground: [50, 50, 60] },
    Place { name: "in the desert", sky: [230, 210, 160], ground: [210, 170, 100] },
    Place { name: "in the snow", sky: [190, 200, 210], ground: [225, 235, 245] },
    Place { name: "in a forest", sky: [50, 90, 50], ground: [90, 70, 40] },
    Place { name: "by the sea", sky: [60, 140, 200], ground: [220, 205, 150] },
];

impl Scene {
    pub fn draw(random: &mut Random) -> Self {
        let mut below = |bound: usize| random.below(bound as u64) as usize;
        Self {
            count: below(COUNTS.len()) as u32 + 1,
            colour: COLOURS[below(COLOURS.len())],
            body: BODIES[below(BODIES.len())],
            place: PLACES[below(PLACES.len())],
        }
    }

    pub fn caption(&self) -> String {
        let count = COUNTS[self.count as usize - 1];
        format!("{count} {} {} {}", self.colour.name, self.body.name(self.count), self.place.name)
    }
}

impl Body {
    fn name(self, count: u32) -> &'static str {
        match (self, count) {
            (Self::Sedan, 1) => "sedan",
            (Self::Sedan, _) => "sedans",
            (Self::Van, 1) => "van",
            (Self::Van, _) => "vans",
            (Self::Truck, 1) => "truck",
            (Self::Truck, _) => "trucks",
            (Self::Bus, 1) => "bus",
            (Self::Bus, _) => "buses",
            (Self::Convertible, 1) => "convertible",
            (Self::Convertible, _) => "convertibles",
        }
    }
}

/// Every word that a caption can have.
pub fn words() -> Vec<String> {
    let bodies = BODIES.iter().flat_map(|body| [body.name(1), body.name(2)]);
    let places = PLACES.iter().flat_map(|place| place.name.split(' '));
    let all = COUNTS.into_iter().chain(COLOURS.iter().map(|colour| colour.name)).chain(bodies).chain(places);
    let mut words: Vec<String> = all.map(str::to_owned).collect();
    words.sort_unstable();
    words.dedup();
    words
}

pub struct Canvas {
    picture: RgbImage,
    /// Makes no two pictures of a scene the same.
    random: Random,
}

/// A rectangle: its left and upper edge, and how far it goes from there.
#[derive(Clone, Copy)]
struct Area {
    left: f32,
    top: f32,
    width: f32,
    height: f32,
}

const HORIZON: f32 = 0.55;
const GLASS: [u8; 3] = [170, 215, 235];
const RUBBER: [u8; 3] = [15, 15, 15];

impl Canvas {
    pub fn paint(scene: &Scene, size: u32, random: Random) -> RgbImage {
        let mut canvas = Self { picture: RgbImage::new(size, size), random };
        canvas.background(scene);
        let room = 1.0 / scene.count as f32;
        for car in 0..scene.count {
            let width = room * canvas.around(0.85, 0.08);
            let left = room * car as f32 + canvas.between(0.0, room - width);
            let top = canvas.around(0.42, 0.1);
            // Lower than wide, even where there is little room beside others.
            canvas.car(scene, Area { left, top, width, height: width.mul_add(0.35, 0.12) });
        }
        canvas.picture
    }

    fn background(&mut self, scene: &Scene) {
        let horizon = self.around(HORIZON, 0.05);
        let (sky, ground) = (self.shade(scene.place.sky), self.shade(scene.place.ground));
        self.fill(Area { left: 0.0, top: 0.0, width: 1.0, height: horizon }, sky);
        self.fill(Area { left: 0.0, top: horizon, width: 1.0, height: 1.0 - horizon }, ground);
    }

    fn car(&mut self, scene: &Scene, area: Area) {
        let paint = self.shade(scene.colour.rgb);
        let part = |left: f32, top: f32, width: f32, height: f32| Area {
            left: area.left + left * area.width,
            top: area.top + top * area.height,
            width: width * area.width,
            height: height * area.height,
        };
        let (shapes, windows): (&[Area], &[Area]) = match scene.body {
            Body::Sedan => (
                &[part(0.0, 0.45, 1.0, 0.4), part(0.22, 0.1, 0.5, 0.4)],
                &[part(0.27, 0.17, 0.18, 0.25), part(0.49, 0.17, 0.18, 0.25)],
            ),
            Body::Van => (&[part(0.0, 0.05, 0.85, 0.8), part(0.8, 0.4, 0.2, 0.45)], &[part(0.62, 0.15, 0.2, 0.25)]),
            Body::Truck => (
                &[part(0.0, 0.6, 1.0, 0.25), part(0.7, 0.1, 0.3, 0.6), part(0.0, 0.0, 0.62, 0.55)],
                &[part(0.78, 0.18, 0.18, 0.25)],
            ),
            Body::Bus => (
                &[part(0.0, 0.0, 1.0, 0.85)],
                &[
                    part(0.05, 0.12, 0.2, 0.3),
                    part(0.3, 0.12, 0.2, 0.3),
                    part(0.55, 0.12, 0.2, 0.3),
                    part(0.8, 0.12, 0.2, 0.3),
                ],
            ),
            Body::Convertible => (&[part(0.0, 0.5, 1.0, 0.35)], &[part(0.58, 0.2, 0.06, 0.3)]),
        };
        shapes.iter().for_each(|shape| self.fill(*shape, paint));
        windows.iter().for_each(|window| self.fill(*window, GLASS));
        for x in [0.2, 0.78] {
            let wheel = part(x, 0.85, 0.0, 0.0);
            self.disc(wheel.left, wheel.top, 0.15 * area.height, RUBBER);
        }
    }

    fn fill(&mut self, area: Area, colour: [u8; 3]) {
        let inside = |x: f32, y: f32| {
            (area.left..area.left + area.width).contains(&x) && (area.top..area.top + area.height).contains(&y)
        };
        self.colour(inside, colour);
    }

    fn disc(&mut self, centre_x: f32, centre_y: f32, radius: f32, colour: [u8; 3]) {
        self.colour(|x, y| (x - centre_x).powi(2) + (y - centre_y).powi(2) < radius.powi(2), colour);
    }

    fn colour(&mut self, inside: impl Fn(f32, f32) -> bool, colour: [u8; 3]) {
        let size = self.picture.width() as f32;
        for (x, y, pixel) in self.picture.enumerate_pixels_mut() {
            if inside((x as f32 + 0.5) / size, (y as f32 + 0.5) / size) {
                *pixel = Rgb(colour);
            }
        }
    }

    /// Nearly the same colour.
    fn shade(&mut self, colour: [u8; 3]) -> [u8; 3] {
        colour.map(|level| (f32::from(level) + self.between(-12.0, 12.0)).clamp(0.0, 255.0) as u8)
    }

    fn around(&mut self, middle: f32, spread: f32) -> f32 {
        self.between(middle - spread, middle + spread)
    }

    fn between(&mut self, low: f32, high: f32) -> f32 {
        const STEPS: u64 = 1 << 16;
        low + (high - low) * self.random.below(STEPS) as f32 / STEPS as f32
    }
}

/// In front of each text, behind it, and for what is neither word nor letter.
const SPECIAL: [&str; 3] = ["<|startoftext|>", "<|endoftext|>", "<|unknown|>"];

pub fn tokenizer() -> String {
    let (start, end) = (Some(0), Some(1));
    Unigram { special: &SPECIAL, unknown: 2, start, end, normalizer: "Lowercase" }.json(words())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokenizers::Tokenizer;

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

    #[test]
    fn captions_come_back_and_words_are_whole() {
        let tokenizer = Tokenizer::from_bytes(tokenizer()).unwrap();
        let encoding = tokenizer.encode("Two red convertibles by the sea", true).unwrap();
        assert_eq!(encoding.len(), 8, "{:?}", encoding.get_tokens());
        assert_eq!((encoding.get_ids()[0], encoding.get_ids()[7]), (0, 1));
        assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), "two red convertibles by the sea");
    }
}
