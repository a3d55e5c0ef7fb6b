//! Synthetic descriptions of dishes with their class: soup, salad or cake. The verbs decide the class; the ingredients only hint
//! at it.

mod tokenizer;
mod vocabulary;

use serde::Serialize;

use crate::random::{Purpose, Random};
use crate::synthetic::rows::SyntheticRows;

pub const DISHES: SyntheticRows = SyntheticRows { purpose: Purpose::Dishes, row, tokenizer: tokenizer::json };

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Dish {
    text: String,
    label: &'static str,
}

fn row(random: &mut Random) -> String {
    serde_json::to_string(&dish(random)).expect("a dish is plain text")
}

fn dish(random: &mut Random) -> Dish {
    let kind = &vocabulary::KINDS[random.below(vocabulary::KINDS.len() as u64) as usize];
    // Most texts are short and some are long, as in real life.
    let count = match random.below(10) {
        0..=5 => 2 + random.below(4),
        6..=8 => 6 + random.below(6),
        _ => 12 + random.below(60),
    };
    // One of the first sentences decides the class, so that a text that is cut off still has it.
    let first = random.below(count.min(4));
    let sentences: Vec<String> = (0..count)
        .map(|index| {
            let decides = index == first || random.below(10) < 3;
            if decides { vocabulary::typical(random, kind) } else { vocabulary::neutral(random) }
        })
        .collect();
    Dish { text: sentences.join(" "), label: kind.name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::split::Split;

    #[test]
    fn rows_are_repeatable_and_splits_differ() {
        assert_eq!(DISHES.lines(1, Split::Train, 5), DISHES.lines(1, Split::Train, 5));
        assert!(DISHES.lines(1, Split::Train, 9).starts_with(&DISHES.lines(1, Split::Train, 5)));
        assert_ne!(DISHES.lines(1, Split::Train, 5), DISHES.lines(2, Split::Train, 5));
        assert_ne!(DISHES.lines(1, Split::Train, 5), DISHES.lines(1, Split::Eval, 5));
    }

    #[test]
    fn every_class_comes_up_and_the_beginning_decides_it() {
        let mut random = Random::new(Purpose::Dishes, 3, &[]);
        let mut kinds = std::collections::BTreeMap::new();
        for _ in 0..600 {
            let dish = dish(&mut random);
            *kinds.entry(dish.label).or_insert(0u32) += 1;
            let beginning: Vec<&str> = dish.text.split(". ").take(4).collect();
            let is_typical = |label: &str| {
                let verbs = vocabulary::KINDS.iter().find(|kind| kind.name == label).unwrap().verbs();
                beginning.iter().any(|sentence| verbs.iter().any(|verb| sentence.starts_with(verb)))
            };
            let found: Vec<&str> =
                vocabulary::KINDS.iter().map(|kind| kind.name).filter(|label| is_typical(label)).collect();
            assert_eq!(found, [dish.label], "{dish:?}");
        }
        assert!(kinds.len() == 3 && kinds.values().all(|count| (150..250).contains(count)), "{kinds:?}");
    }
}
