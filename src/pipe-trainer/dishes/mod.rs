//! Made-up descriptions of dishes with what they are: soup, salad or cake. What is done tells them apart; what is in them only
//! hints at it.

mod menu;
mod tokenizer;

use serde::Serialize;

use crate::made::Made;
use crate::random::{Purpose, Random};

pub const DISHES: Made = Made { purpose: Purpose::Dishes, row, tokenizer: tokenizer::json };

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Dish {
    text: String,
    label: &'static str,
}

fn row(random: &mut Random) -> String {
    serde_json::to_string(&dish(random)).expect("a dish is plain text")
}

fn dish(random: &mut Random) -> Dish {
    let kind = &menu::KINDS[random.below(menu::KINDS.len() as u64) as usize];
    // Most texts are short and some are long, as in real life.
    let count = match random.below(10) {
        0..=5 => 2 + random.below(4),
        6..=8 => 6 + random.below(6),
        _ => 12 + random.below(60),
    };
    // One near the beginning tells, so that a text that is cut off still does.
    let first = random.below(count.min(4));
    let sentences: Vec<String> = (0..count)
        .map(|place| {
            let tells = place == first || random.below(10) < 3;
            if tells { menu::telling(random, kind) } else { menu::usual(random) }
        })
        .collect();
    Dish { text: sentences.join(" "), label: kind.name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::Stream;

    #[test]
    fn rows_are_repeatable_and_streams_differ() {
        assert_eq!(DISHES.lines(1, Stream::Train, 5), DISHES.lines(1, Stream::Train, 5));
        assert!(DISHES.lines(1, Stream::Train, 9).starts_with(&DISHES.lines(1, Stream::Train, 5)));
        assert_ne!(DISHES.lines(1, Stream::Train, 5), DISHES.lines(2, Stream::Train, 5));
        assert_ne!(DISHES.lines(1, Stream::Train, 5), DISHES.lines(1, Stream::Eval, 5));
    }

    #[test]
    fn every_kind_comes_up_and_the_beginning_tells_it() {
        let mut random = Random::new(Purpose::Dishes, 3, &[]);
        let mut kinds = std::collections::BTreeMap::new();
        for _ in 0..600 {
            let dish = dish(&mut random);
            *kinds.entry(dish.label).or_insert(0u32) += 1;
            let beginning: Vec<&str> = dish.text.split(". ").take(4).collect();
            let tell = |label: &str| {
                let verbs = menu::KINDS.iter().find(|kind| kind.name == label).unwrap().verbs();
                beginning.iter().any(|sentence| verbs.iter().any(|verb| sentence.starts_with(verb)))
            };
            let told: Vec<&str> = menu::KINDS.iter().map(|kind| kind.name).filter(|label| tell(label)).collect();
            assert_eq!(told, [dish.label], "{dish:?}");
        }
        assert!(kinds.len() == 3 && kinds.values().all(|count| (150..250).contains(count)), "{kinds:?}");
    }
}
