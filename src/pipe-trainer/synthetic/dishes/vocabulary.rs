//! Kinds of dishes: what goes into each alone, and what goes into any.

use crate::random::Random;

pub struct Kind {
    pub name: &'static str,
    verbs: [&'static str; 5],
    ingredients: [&'static str; 8],
}

pub const KINDS: [Kind; 3] = [
    Kind {
        name: "soup",
        verbs: ["simmer", "boil", "strain", "skim", "ladle"],
        ingredients: ["stock", "leek", "lentils", "barley", "cabbage", "potato", "bones", "noodles"],
    },
    Kind {
        name: "salad",
        verbs: ["toss", "shred", "rinse", "dress", "scatter"],
        ingredients: ["lettuce", "cucumber", "radish", "rocket", "olives", "vinegar", "croutons", "avocado"],
    },
    Kind {
        name: "cake",
        verbs: ["bake", "knead", "whip", "sift", "glaze"],
        ingredients: ["flour", "sugar", "yeast", "vanilla", "cocoa", "icing", "almonds", "raisins"],
    },
];

const VERBS: [&str; 6] = ["chop", "mix", "season", "warm", "cool", "rest"];

const INGREDIENTS: [&str; 10] =
    ["salt", "butter", "egg", "milk", "carrot", "apple", "lemon", "pepper", "cream", "cheese"];

const MINUTES: [u32; 8] = [1, 2, 5, 8, 10, 15, 20, 45];

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

impl Kind {
    /// What is only done to a dish of this kind.
    #[cfg(test)]
    pub fn verbs(&self) -> &[&'static str] {
        &self.verbs
    }
}

/// A sentence that only a dish of this kind has.
pub fn typical(random: &mut Random, kind: &Kind) -> String {
    let ingredients = [kind.ingredients.as_slice(), INGREDIENTS.as_slice()];
    let ingredients = pick(random, &ingredients);
    sentence(random, &kind.verbs, ingredients)
}

/// A sentence that any dish may have; what is in it may even be typical of another kind.
pub fn neutral(random: &mut Random) -> String {
    let foreign = pick(random, &[0, 1, 2]);
    let ingredients = if random.below(4) == 0 { KINDS[foreign].ingredients.as_slice() } else { &INGREDIENTS };
    sentence(random, &VERBS, ingredients)
}

fn sentence(random: &mut Random, verbs: &[&str], ingredients: &[&str]) -> String {
    let (verb, ingredient) = (pick(random, verbs), pick(random, ingredients));
    format!("{verb} the {ingredient} for {} minutes.", pick(random, &MINUTES))
}

/// Every word that a text can have.
pub fn words() -> Vec<String> {
    let typical = KINDS.iter().flat_map(|kind| kind.verbs.into_iter().chain(kind.ingredients)).map(str::to_owned);
    let any = VERBS.into_iter().chain(INGREDIENTS).chain(["the", "for", "minutes"]).map(str::to_owned);
    let mut words: Vec<String> = typical.chain(any).chain(MINUTES.iter().map(u32::to_string)).collect();
    words.sort_unstable();
    words.dedup();
    words
}
