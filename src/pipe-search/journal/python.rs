//! JSON and times as Python writes them: with `NaN`, `Infinity` and halves of surrogate pairs, and local times
//! without a zone.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::Value;

/// Reads one value. Numbers that JSON does not have become the texts `"NaN"`, `"Infinity"` and `"-Infinity"`; a lone surrogate
/// becomes U+FFFD.
pub fn parse(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(text).or_else(|_| serde_json::from_slice(&strict(text)).map_err(|error| error.to_string()))
}

/// The number that a value is, in any of its forms. `null` is not a number: NaN.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Null => Some(f64::NAN),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// A number as Python reads it.
pub fn write_number(number: f64) -> String {
    if number.is_nan() {
        "NaN".into()
    } else if number.is_infinite() {
        if number > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        Value::from(number).to_string()
    }
}

pub fn write_text(text: &str) -> String {
    Value::from(text).to_string()
}

/// An array of what is JSON already.
pub fn write_array(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(","))
}

/// An object whose values are JSON already.
pub fn write_object<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<String> = fields.into_iter().map(|(key, value)| format!("{}:{value}", write_text(key))).collect();
    format!("{{{}}}", fields.join(","))
}

/// The same text with what only Python has replaced.
fn strict(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 16);
    let mut at = 0;
    let mut inside = false;
    while at < text.len() {
        let rest = &text[at..];
        if inside {
            if let Some(unit) = escaped_unit(rest) {
                let pair = (0xD800..0xDC00).contains(&unit)
                    && escaped_unit(&rest[6..]).is_some_and(|low| (0xDC00..0xE000).contains(&low));
                let length = if pair { 12 } else { 6 };
                if !pair && (0xD800..0xE000).contains(&unit) {
                    out.extend_from_slice(b"\\ufffd");
                } else {
                    out.extend_from_slice(&rest[..length]);
                }
                at += length;
                continue;
            }
            let length = if rest[0] == b'\\' { rest.len().min(2) } else { 1 };
            inside = rest[0] != b'"';
            out.extend_from_slice(&rest[..length]);
            at += length;
            continue;
        }
        let word = [&b"NaN"[..], b"Infinity", b"-Infinity"].into_iter().find(|word| rest.starts_with(word));
        let length = word.map_or(1, <[u8]>::len);
        if word.is_some() {
            out.push(b'"');
        }
        out.extend_from_slice(&rest[..length]);
        if word.is_some() {
            out.push(b'"');
        }
        inside = rest[0] == b'"';
        at += length;
    }
    out
}

/// The number of an escape such as `\ud83d` at the start of `text`.
fn escaped_unit(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Seconds since the Unix epoch as `2026-01-31T12:00:00.000000`, local.
pub fn write_time(at: f64) -> String {
    // Python has no year after 9999.
    let micros = (at.clamp(0.0, 250_000_000_000.0) * 1e6).round() as i64;
    let local = Timestamp::from_microsecond(micros).unwrap_or_default().to_zoned(TimeZone::system());
    local.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string()
}

/// The same the other way, with or without a zone. Absent where it is no time.
pub fn parse_time(text: &str) -> Option<f64> {
    let with_zone = text.parse::<Timestamp>();
    let local = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::system()).ok().map(|zoned| zoned.timestamp());
    let at = with_zone.ok().or_else(local)?;
    Some(at.as_microsecond() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_what_python_writes() {
        let table = [
            (r#"{"a":NaN,"b":[Infinity,-Infinity,1]}"#, json!({"a": "NaN", "b": ["Infinity", "-Infinity", 1]})),
            (r#"{"NaN":"Infinity \" NaN","c":NaN}"#, json!({"NaN": "Infinity \" NaN", "c": "NaN"})),
            (r#"["\ud83d\ude00","\udc80x","\ud800",NaN]"#, json!(["😀", "\u{fffd}x", "\u{fffd}", "NaN"])),
            (r#"["\\",NaN,"\\ud800"]"#, json!(["\\", "NaN", "\\ud800"])),
        ];
        for (text, value) in table {
            assert_eq!(parse(text.as_bytes()).unwrap(), value, "{text}");
        }
        for text in [&b""[..], b"{", b"\"\\", b"\"\\u12", b"\"\\ud800\\u", b"nan", b"\xff", b"[1,]"] {
            assert!(parse(text).is_err());
        }
    }

    #[test]
    fn writes_numbers_for_python() {
        let numbers = [(f64::NAN, "NaN"), (f64::NEG_INFINITY, "-Infinity"), (1.0, "1.0"), (1e-300, "1e-300")];
        for (number, text) in numbers {
            assert_eq!(write_number(number), text);
        }
    }

    #[test]
    fn reads_what_it_writes() {
        for at in [0.0, 951_782_400.5, 1_753_000_000.123_456, 4_000_000_000.999_999] {
            let back = parse_time(&write_time(at)).unwrap();
            assert!((back - at).abs() < 1e-6, "{at} {} {back}", write_time(at));
        }
        write_time(f64::NAN);
        write_time(f64::INFINITY);
        write_time(-1.0);
    }

    #[test]
    fn reads_zones() {
        let table = [
            ("2026-01-31T12:00:00.250000+00:00", Some(1_769_860_800.25)),
            ("2026-01-31T12:00:00+02:00", Some(1_769_853_600.0)),
            ("2026-01-31T12:00:00Z", Some(1_769_860_800.0)),
            ("2000-02-29T00:00:00-00:30", Some(951_784_200.0)),
            ("2026-13-31T12:00:00Z", None),
            ("2026-01-31T12:00:00+é", None),
            ("2026-01-31é12:00:00", None),
            ("", None),
        ];
        for (text, seconds) in table {
            assert_eq!(parse_time(text), seconds, "{text}");
        }
    }
}
