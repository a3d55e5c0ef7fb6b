//! Synthetic descriptions of dishes with their class: soup, salad or cake. The verbs decide the class; the
//! ingredients only hint at it.

use serde::Serialize;
use serde_json::{Map, json};

use super::{SyntheticRows, added_tokens};
use crate::random::{Purpose, Random};

pub const DISHES: SyntheticRows = SyntheticRows { purpose: Purpose::Dishes, row, tokenizer: Some(tokenizer) };

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Dish {
    text: String,
    label: &'static str,
}

fn row(random: &mut Random) -> String {
    serde_json::to_string(&dish(random)).expect("a dish is plain text")
}

fn dish(random: &mut Random) -> Dish {
    let kind = &KINDS[random.below(KINDS.len() as u64) as usize];
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
            if decides { typical(random, kind) } else { neutral(random) }
        })
        .collect();
    Dish { text: sentences.join(" "), label: kind.name }
}

pub struct DishKind {
    pub name: &'static str,
    verbs: [&'static str; 5],
    ingredients: [&'static str; 8],
}

pub const KINDS: [DishKind; 3] = [
    DishKind {
        name: "soup",
        verbs: ["simmer", "boil", "strain", "skim", "ladle"],
        ingredients: ["stock", "leek", "lentils", "barley", "cabbage", "potato", "bones", "noodles"],
    },
    DishKind {
        name: "salad",
        verbs: ["toss", "shred", "rinse", "dress", "scatter"],
        ingredients: ["lettuce", "cucumber", "radish", "rocket", "olives", "vinegar", "croutons", "avocado"],
    },
    DishKind {
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

impl DishKind {
    /// The verbs that only a dish of this kind has.
    #[cfg(test)]
    pub fn verbs(&self) -> &[&'static str] {
        &self.verbs
    }
}

/// A sentence that only a dish of this kind has.
pub fn typical(random: &mut Random, kind: &DishKind) -> String {
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

/// `tokenizer.json` in the format of Hugging Face's tokenizers. A word that is not in the vocabulary is spelled.
pub fn tokenizer() -> String {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let letters = "abcdefghijklmnopqrstuvwxyz0123456789";
    let mut pieces: Vec<String> = special.map(str::to_owned).to_vec();
    pieces.extend(words());
    pieces.extend(".,".chars().chain(letters.chars()).map(String::from));
    pieces.extend(letters.chars().map(|letter| format!("##{letter}")));
    let mut vocab = Map::new();
    for piece in pieces {
        let number = vocab.len();
        vocab.entry(piece).or_insert(json!(number));
    }
    let sequence = |id: &str, kind: u32| json!({ "Sequence": { "id": id, "type_id": kind } });
    let token = |id: &str, kind: u32| json!({ "SpecialToken": { "id": id, "type_id": kind } });
    let known = |id: &str, number: u32| json!({ "id": id, "ids": [number], "tokens": [id] });
    let single = vec![token("[CLS]", 0), sequence("A", 0), token("[SEP]", 0)];
    let pair = [single.clone(), vec![sequence("B", 1), token("[SEP]", 1)]].concat();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(&special),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": { "[CLS]": known("[CLS]", 2), "[SEP]": known("[SEP]", 3) },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    });
    serde_json::to_string_pretty(&tokenizer).expect("a tokenizer is plain data") + "\n"
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;
    use crate::synthetic::Split;

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
                let verbs = KINDS.iter().find(|kind| kind.name == label).unwrap().verbs();
                beginning.iter().any(|sentence| verbs.iter().any(|verb| sentence.starts_with(verb)))
            };
            let found: Vec<&str> = KINDS.iter().map(|kind| kind.name).filter(|label| is_typical(label)).collect();
            assert_eq!(found, [dish.label], "{dish:?}");
        }
        assert!(kinds.len() == 3 && kinds.values().all(|count| (150..250).contains(count)), "{kinds:?}");
    }

    #[test]
    fn words_are_whole_and_others_are_spelled() {
        let tokenizer = Tokenizer::from_bytes(tokenizer()).unwrap();
        let encoding = tokenizer.encode("Simmer the stock for 45 minutes.", true).unwrap();
        assert_eq!(encoding.get_tokens(), ["[CLS]", "simmer", "the", "stock", "for", "45", "minutes", ".", "[SEP]"]);
        let spelled = tokenizer.encode("fig", false).unwrap();
        assert_eq!(spelled.get_tokens(), ["f", "##i", "##g"]);
        let pair = tokenizer.encode(("mix", "rest"), true).unwrap();
        assert_eq!((pair.get_type_ids(), pair.get_ids()[0]), ([0, 0, 0, 1, 1].as_slice(), 2));
        assert!(tokenizer.get_vocab_size(true) <= 192, "{}", tokenizer.get_vocab_size(true));
    }
}
