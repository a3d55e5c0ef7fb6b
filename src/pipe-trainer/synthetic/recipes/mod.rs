//! Synthetic cooking recipes: endless, reproducible and learnable, because what is done with an ingredient depends on the
//! ingredient alone.

mod tokenizer;
mod vocabulary;

use serde::Serialize;

use crate::random::{Purpose, Random};
use crate::synthetic::rows::SyntheticRows;

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Recipe {
    ingredients: String,
    directions: String,
}

pub const RECIPES: SyntheticRows = SyntheticRows { purpose: Purpose::Recipes, row, tokenizer: tokenizer::json };

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
    let mut picked: Vec<usize> = (0..vocabulary::INGREDIENTS.len()).collect();
    random.shuffle(&mut picked);
    picked.truncate(count as usize);
    let names: Vec<&str> = picked.iter().map(|index| vocabulary::INGREDIENTS[*index]).collect();
    let directions: Vec<String> = picked.iter().map(|index| vocabulary::direction(*index)).collect();
    Recipe { ingredients: names.join(", "), directions: directions.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::split::Split;

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
}
