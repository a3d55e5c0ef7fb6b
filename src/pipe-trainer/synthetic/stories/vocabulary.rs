//! The words of stories: animals, names, adjectives, times and places.

pub struct Animal {
    pub kind: &'static str,
    pub home: &'static str,
    pub food: &'static str,
}

const fn animal(kind: &'static str, home: &'static str, food: &'static str) -> Animal {
    Animal { kind, home, food }
}

pub const ANIMALS: [Animal; 12] = [
    animal("fox", "forest", "berries"),
    animal("bear", "cave", "honey"),
    animal("owl", "barn", "mice"),
    animal("frog", "pond", "flies"),
    animal("rabbit", "meadow", "clover"),
    animal("otter", "river", "fish"),
    animal("squirrel", "oak", "nuts"),
    animal("hedgehog", "garden", "worms"),
    animal("goat", "mountain", "grass"),
    animal("duck", "lake", "bread"),
    animal("mouse", "mill", "cheese"),
    animal("horse", "stable", "apples"),
];

pub const NAMES: [&str; 12] =
    ["milo", "ada", "pip", "luna", "otto", "nora", "finn", "ruby", "hugo", "ivy", "max", "zoe"];

pub const ADJECTIVES: [&str; 8] = ["small", "brave", "clever", "lazy", "kind", "hungry", "old", "happy"];

pub const TIMES: [&str; 4] = ["morning", "day", "afternoon", "evening"];

pub const PLACES: [&str; 6] = ["market", "bridge", "beach", "village", "hill", "harbour"];

/// Every word that a story can have.
pub fn words() -> Vec<&'static str> {
    let others = "once upon a time there was named lived in the and loved to eat one went met had come from look for helped \
                  together they found near at night home slept well";
    let mut words: Vec<&str> = others.split_whitespace().collect();
    words.extend(ANIMALS.iter().flat_map(|animal| [animal.kind, animal.home, animal.food]));
    words.extend(NAMES.iter().chain(&ADJECTIVES).chain(&TIMES).chain(&PLACES));
    words.sort_unstable();
    words.dedup();
    words
}
