//! Paints a scene. Lengths are shares of the picture, so that every size shows the same.

use image::{Rgb, RgbImage};

use super::scene::{Body, Scene};
use crate::random::Random;

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
        for place in [0.2, 0.78] {
            let wheel = part(place, 0.85, 0.0, 0.0);
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
