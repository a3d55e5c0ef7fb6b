//! Synthetic cooking recipes: endless, reproducible and learnable, because what is done with an ingredient depends
//! on the ingredient alone.
//!
//! Synthetic conversations about cooking: somebody names ingredients and is told what to do with them, one or several times.

use serde::Serialize;
use serde_json::json;

use super::{SyntheticRows, Unigram};
use crate::random::{Purpose, Random};

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Recipe {
    ingredients: String,
    directions: String,
}

pub const RECIPES: SyntheticRows = SyntheticRows { purpose: Purpose::Recipes, row, tokenizer: Some(tokenizer) };

fn row(random: &mut Random) -> String {
    serde_json::to_string(&recipe(random)).expect("a recipe is plain text")
}

fn recipe(random: &mut Random) -> Recipe {
    // Most recipes are short and some are long, as in real life.
    let count = match random.below(10) {
        0..=4 => 1 + random.below(4),
        5..=7 => 4 + random.below(5),
        _ => 9 + random.below(8),
    };
    let mut picked: Vec<usize> = (0..INGREDIENTS.len()).collect();
    random.shuffle(&mut picked);
    picked.truncate(count as usize);
    let names: Vec<&str> = picked.iter().map(|index| INGREDIENTS[*index]).collect();
    let directions: Vec<String> = picked.iter().map(|index| direction(*index)).collect();
    Recipe { ingredients: names.join(", "), directions: directions.join(" ") }
}

pub const INGREDIENTS: [&str; 48] = [
    "carrot",
    "onion",
    "garlic",
    "potato",
    "tomato",
    "celery",
    "leek",
    "spinach",
    "broccoli",
    "cabbage",
    "pepper",
    "mushroom",
    "beans",
    "lentils",
    "rice",
    "pasta",
    "flour",
    "sugar",
    "salt",
    "butter",
    "olive oil",
    "cream",
    "milk",
    "cheese",
    "yogurt",
    "egg",
    "chicken",
    "beef",
    "pork",
    "salmon",
    "shrimp",
    "tofu",
    "lemon",
    "lime",
    "apple",
    "orange",
    "banana",
    "honey",
    "ginger",
    "basil",
    "thyme",
    "parsley",
    "mint",
    "cinnamon",
    "cumin",
    "vinegar",
    "soy sauce",
    "coconut milk",
];

const VERBS: [&str; 16] = [
    "chop", "slice", "dice", "mince", "peel", "fry", "boil", "steam", "roast", "grill", "simmer", "whisk", "fold",
    "stir", "season", "rest",
];

const MINUTES: [u32; 9] = [2, 3, 5, 8, 10, 15, 20, 30, 45];

/// Strides that share no factor with the lists, so that neighbours get different verbs and times.
pub fn direction(ingredient: usize) -> String {
    let verb = VERBS[ingredient * 7 % VERBS.len()];
    let minutes = MINUTES[ingredient * 4 % MINUTES.len()];
    format!("{verb} the {} for {minutes} minutes.", INGREDIENTS[ingredient])
}

/// Every word that a recipe can have.
pub fn words() -> Vec<String> {
    let ingredients = INGREDIENTS.iter().flat_map(|name| name.split(' ')).map(str::to_owned);
    let verbs = VERBS.iter().map(|verb| (*verb).to_owned());
    let minutes = MINUTES.iter().map(u32::to_string);
    let others = ["the", "for", "minutes"].map(str::to_owned);
    let mut words: Vec<String> = ingredients.chain(verbs).chain(minutes).chain(others).collect();
    words.sort_unstable();
    words.dedup();
    words
}

pub fn tokenizer() -> String {
    let special = ["<pad>", "</s>", "<unk>"];
    Unigram { special: &special, unknown: 2, start: None, end: Some(1), normalizer: "NFKC" }.json(words())
}

/// Models that can talk bring their own tokenizer.
pub const TALKS: SyntheticRows = SyntheticRows { purpose: Purpose::Talks, row: talk, tokenizer: None };

const MOST_QUESTIONS: u64 = 3;
const MOST_INGREDIENTS: u64 = 3;

fn talk(random: &mut Random) -> String {
    let mut messages = Vec::new();
    if random.below(2) == 0 {
        messages.push(json!({ "role": "system", "content": "You are a cook. Answer shortly." }));
    }
    for _ in 0..=random.below(MOST_QUESTIONS) {
        let mut picked: Vec<usize> = (0..INGREDIENTS.len()).collect();
        random.shuffle(&mut picked);
        picked.truncate(1 + random.below(MOST_INGREDIENTS) as usize);
        let names: Vec<&str> = picked.iter().map(|index| INGREDIENTS[*index]).collect();
        let answers: Vec<String> = picked.iter().map(|index| direction(*index)).collect();
        let question = format!("What do I do with {}?", names.join(" and "));
        messages.push(json!({ "role": "user", "content": question }));
        messages.push(json!({ "role": "assistant", "content": answers.join(" ") }));
    }
    json!({ "messages": messages }).to_string()
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;
    use crate::synthetic::Split;

    #[test]
    fn rows_are_repeatable_and_splits_differ() {
        assert_eq!(RECIPES.lines(1, Split::Train, 5), RECIPES.lines(1, Split::Train, 5));
        assert!(RECIPES.lines(1, Split::Train, 9).starts_with(&RECIPES.lines(1, Split::Train, 5)));
        assert_ne!(RECIPES.lines(1, Split::Train, 5), RECIPES.lines(2, Split::Train, 5));
        assert_ne!(RECIPES.lines(1, Split::Train, 5), RECIPES.lines(1, Split::Eval, 5));
    }

    #[test]
    fn every_ingredient_gets_its_own_direction() {
        let mut random = Random::new(Purpose::Recipes, 3, &[]);
        let mut lengths: Vec<usize> = Vec::new();
        for _ in 0..200 {
            let recipe = recipe(&mut random);
            for name in recipe.ingredients.split(", ") {
                assert!(recipe.directions.contains(&format!(" the {name} for ")), "{recipe:?}");
            }
            lengths.push(recipe.directions.len());
        }
        lengths.sort_unstable();
        assert!(lengths[180] > 5 * lengths[20], "{lengths:?}");
    }

    #[test]
    fn text_comes_back_and_words_are_whole() {
        let tokenizer = Tokenizer::from_bytes(tokenizer()).unwrap();
        let text = "whisk the soy sauce for 45 minutes. stir the egg for 2 minutes.";
        let encoding = tokenizer.encode(text, true).unwrap();
        assert_eq!(encoding.len(), 16, "{:?}", encoding.get_tokens());
        assert_eq!(encoding.get_ids().last(), Some(&1));
        assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), text);
        let unseen = tokenizer.encode("quinoa", true).unwrap();
        assert_eq!(tokenizer.decode(unseen.get_ids(), true).unwrap(), "quinoa");
    }
}

#[cfg(test)]
mod talks_tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_conversation_ends_with_an_answer() {
        for number in 0..50 {
            let row: Value = serde_json::from_str(&talk(&mut Random::new(Purpose::Talks, 1, &[number]))).unwrap();
            let messages = row["messages"].as_array().unwrap();
            assert!((2..=7).contains(&messages.len()), "{row}");
            assert_eq!(messages.last().unwrap()["role"], "assistant", "{row}");
        }
    }
}
