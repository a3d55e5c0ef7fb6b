//! Small values that are written as text: names and sizes.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The name of a pipeline. It becomes part of a folder's and a container's name, so it is kept plain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    pub const RULE: &str = "1 to 64 letters, digits, '-', '_' or '.', beginning with a letter or digit";

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let good = (1..=64).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(plain)
            && !text.contains("..");
        if good { Ok(Self(text.to_owned())) } else { Err(Self::RULE) }
    }
}

/// A number of bytes, written as `24g`, `512m` or `7.5g` (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub const RULE: &str = "a size such as 512m, 24g or 7.5g";

    /// A size where nobody means bytes: a number alone is in gigabytes.
    pub fn gigabytes_or(text: &str) -> Result<Self, &'static str> {
        match text.trim().parse::<f64>() {
            Ok(_) => format!("{}g", text.trim()).parse(),
            Err(_) => text.parse(),
        }
    }
}

impl FromStr for ByteSize {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &lower[digits.len()..] {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(Self::RULE),
        };
        let number: f64 = digits.trim().parse().map_err(|_| Self::RULE)?;
        let bytes = number * (1u64 << shift) as f64;
        if bytes.is_finite() && (1.0..9.0e18).contains(&bytes) { Ok(Self(bytes as u64)) } else { Err(Self::RULE) }
    }
}

impl fmt::Display for ByteSize {
    /// The shortest text that reads back to the same number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
            if self.0.is_multiple_of(1 << shift) && self.0 > 0 {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// Bytes for people: `1.4 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = 0;
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number with its noun: `1 step`, `3 steps`, `2 entries`.
pub fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    match noun.strip_suffix('y') {
        _ if number == 1 => format!("1 {noun}"),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{number} {stem}ies"),
        _ if noun.ends_with("ch") || noun.ends_with("ss") => format!("{number} {noun}es"),
        _ => format!("{number} {noun}s"),
    }
}

/// Serde and schema for a type that is written as text with a rule.
macro_rules! written_as_text {
    ($type:ident, $format:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format, "description": $type::RULE })
            }
        }
    };
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

written_as_text!(Name, "pipe-name");
written_as_text!(ByteSize, "byte-size");

/// Whether `text` satisfies one of the formats above; unknown formats are not ours to judge.
pub(crate) fn satisfies_format(format: &str, text: &str) -> bool {
    match format {
        "pipe-name" => text.parse::<Name>().is_ok(),
        "byte-size" => text.parse::<ByteSize>().is_ok(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["demo", "recipes-t5", "a.b_c-1", "9"] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "a/b", "..", "a..b", "-a", ".a", "a b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_read_back() {
        for (text, bytes) in [("1", 1), ("2k", 2048), ("512m", 512 << 20), ("24g", 24 << 30), ("7.5g", 15 << 29)] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.0, bytes, "{text}");
            assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        }
        for (text, bytes) in [("24", 24 << 30), ("7.5", 15 << 29), ("24g", 24 << 30), ("512m", 512 << 20)] {
            assert_eq!(ByteSize::gigabytes_or(text).unwrap().0, bytes, "{text}");
        }
        assert!(ByteSize::gigabytes_or("0").is_err() && ByteSize::gigabytes_or("nan").is_err());
        for bad in ["", "g", "-1g", "1x", "0", "nan", "1e30g"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(human_bytes(12), "12 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(3 << 30), "3.0 GiB");
    }

    #[test]
    fn nouns_follow_their_number() {
        for (number, noun, want) in [
            (0, "step", "0 steps"),
            (1, "step", "1 step"),
            (2, "step", "2 steps"),
            (1, "retry", "1 retry"),
            (6, "retry", "6 retries"),
            (3, "batch", "3 batches"),
            (2, "class", "2 classes"),
            (2, "day", "2 days"),
        ] {
            assert_eq!(count(number, noun), want);
        }
    }
}
