//! Synthetic conversations about cooking: somebody names ingredients and is told what to do with them, one or several times.

use serde_json::json;

use super::recipes::{INGREDIENTS, direction};
use super::rows::SyntheticRows;
use crate::random::{Purpose, Random};

/// Models that can talk bring their own tokenizer.
pub const TALKS: SyntheticRows = SyntheticRows { purpose: Purpose::Talks, row, tokenizer: None };

const MOST_QUESTIONS: u64 = 3;
const MOST_INGREDIENTS: u64 = 3;

fn row(random: &mut Random) -> String {
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
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_conversation_ends_with_an_answer() {
        for number in 0..50 {
            let row: Value = serde_json::from_str(&row(&mut Random::new(Purpose::Talks, 1, &[number]))).unwrap();
            let messages = row["messages"].as_array().unwrap();
            assert!((2..=7).contains(&messages.len()), "{row}");
            assert_eq!(messages.last().unwrap()["role"], "assistant", "{row}");
        }
    }
}
