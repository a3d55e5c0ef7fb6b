//! What every format of rows shares: the largest row, and the words for JSON values.

use serde_json::Value;

/// A line of a JSON lines file, or a record of a CSV file, has no more bytes.
pub const LONGEST_ROW: u64 = 64 << 20;

/// Some programs begin a file of UTF-8 with it.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a JSON value is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
