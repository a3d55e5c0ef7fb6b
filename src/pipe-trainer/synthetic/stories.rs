//! Synthetic stories: endless, reproducible and learnable, because where an animal lives and what it eats depends
//! on the animal alone, and names come again.

use std::fs;

use super::{Split, Unigram};
use crate::cli::StoriesArgs;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::storage;

pub fn generate(args: &StoriesArgs) -> Result<(), TrainerError> {
    let eval_rows = args.eval_rows.unwrap_or((args.rows / 20).max(1));
    let files = [
        ("train.txt", stories(args.seed, Split::Train, args.rows)),
        ("eval.txt", stories(args.seed, Split::Eval, eval_rows)),
        ("tokenizer.json", tokenizer()),
    ];
    fs::create_dir_all(&args.out).map_err(|source| TrainerError::Io { path: args.out.clone(), source })?;
    for (name, text) in files {
        let path = args.out.join(name);
        storage::write_whole(&path, text.as_bytes()).map_err(|source| TrainerError::Io { path, source })?;
    }
    Ok(())
}

/// With a blank line between two.
fn stories(seed: u64, split: Split, count: u64) -> String {
    let story = |number| story(&mut Random::new(Purpose::Stories, seed, &[split as u64, number])) + "\n";
    (0..count).map(story).collect::<Vec<_>>().join("\n")
}

fn story(random: &mut Random) -> String {
    let mut animals: Vec<&Animal> = ANIMALS.iter().collect();
    let mut names = NAMES.to_vec();
    random.shuffle(&mut animals);
    random.shuffle(&mut names);
    let (hero, name) = (animals[0], names[0]);
    let mut sentences = vec![
        format!("once upon a time there was a {} {} named {name}.", one_of(&ADJECTIVES, random), hero.kind),
        format!("{name} lived in the {} and loved to eat {}.", hero.home, hero.food),
    ];
    for meeting in 1..=1 + random.below(3) as usize {
        let (friend, other) = (animals[meeting], names[meeting]);
        let (time, place, adjective) = (one_of(&TIMES, random), one_of(&PLACES, random), one_of(&ADJECTIVES, random));
        sentences.push(format!(
            "one {time} {name} went to the {place} and met a {adjective} {} named {other}.",
            friend.kind
        ));
        sentences.push(format!("{other} had come from the {} to look for {}.", friend.home, friend.food));
        sentences.push(format!("{name} helped {other}, and together they found {} near the {place}.", friend.food));
    }
    sentences.push(format!("at night {name} went home to the {} and slept well.", hero.home));
    sentences.join(" ")
}

fn one_of<'a>(words: &[&'a str], random: &mut Random) -> &'a str {
    words[random.below(words.len() as u64) as usize]
}

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

/// Nothing is put around a text: the end token goes between documents, when they are packed.
pub fn tokenizer() -> String {
    let special = ["<|endoftext|>", "<unk>"];
    Unigram { special: &special, unknown: 1, start: None, end: None, normalizer: "NFKC" }.json(words())
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;

    #[test]
    fn stories_are_repeatable_and_splits_differ() {
        assert_eq!(stories(1, Split::Train, 5), stories(1, Split::Train, 5));
        assert!(stories(1, Split::Train, 9).starts_with(&stories(1, Split::Train, 5)));
        assert_ne!(stories(1, Split::Train, 5), stories(2, Split::Train, 5));
        assert_ne!(stories(1, Split::Train, 5), stories(1, Split::Eval, 5));
        assert_eq!(stories(1, Split::Train, 5).split("\n\n").count(), 5);
    }

    #[test]
    fn every_animal_has_its_food_and_its_home() {
        let mut random = Random::new(Purpose::Stories, 3, &[]);
        for _ in 0..100 {
            let story = story(&mut random);
            let hero = ANIMALS
                .iter()
                .min_by_key(|animal| story.find(&format!(" {} named", animal.kind)).unwrap_or(usize::MAX));
            let hero = hero.unwrap();
            assert!(story.contains(&format!("lived in the {} and loved to eat {}.", hero.home, hero.food)), "{story}");
            assert!(story.ends_with(&format!("home to the {} and slept well.", hero.home)), "{story}");
        }
    }

    #[test]
    fn a_story_comes_back_and_its_words_are_whole() {
        let tokenizer = Tokenizer::from_bytes(tokenizer()).unwrap();
        for number in 0..50 {
            let story = story(&mut Random::new(Purpose::Stories, 4, &[number]));
            let encoding = tokenizer.encode(story.as_str(), false).unwrap();
            let words = story.split_whitespace().count() + story.matches(['.', ',']).count();
            assert_eq!(encoding.len(), words, "{:?}", encoding.get_tokens());
            assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), story);
        }
    }
}
