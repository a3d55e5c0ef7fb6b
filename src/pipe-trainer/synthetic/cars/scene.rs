//! What a picture of cars shows, and the words for it.

use crate::random::Random;

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
