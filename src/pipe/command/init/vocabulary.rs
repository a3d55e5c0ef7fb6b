//! The size of a tokenizer that is there already.

use std::path::Path;

/// How many tokens a tokenizer.json knows.
pub fn of_tokenizer(path: &Path) -> Option<u64> {
    let tokenizer: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let known = match tokenizer.get("model")?.get("vocab")? {
        serde_json::Value::Object(tokens) => tokens.len(),
        serde_json::Value::Array(tokens) => tokens.len(),
        _ => return None,
    };
    let added = tokenizer.get("added_tokens").and_then(serde_json::Value::as_array).into_iter().flatten();
    let last = added.filter_map(|token| token.get("id")?.as_u64()).map(|id| id.saturating_add(1)).max();
    Some((known as u64).max(last.unwrap_or(0))).filter(|size| *size > 0)
}
