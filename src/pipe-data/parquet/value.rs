//! Single values of a column as JSON, or as cells of a CSV.

use std::io::Write;

use jiff::Span;
use jiff::civil::{self, Date};
use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as Physical};
use parquet::record::Field;
use parquet::schema::types::Type;

/// The meaning of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Signed,
    Unsigned,
    Real,
    /// Numbers of 16 bits.
    Half,
    Text,
    /// Bytes without a declared type. Old writers store texts so.
    Bytes,
    Date,
    Time(Unit),
    Timestamp {
        unit: Unit,
        utc: bool,
    },
    Int96,
    Decimal {
        scale: u32,
    },
    Uuid,
}

/// The unit that a number of a time column counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Millis,
    Micros,
    Nanos,
}

impl Unit {
    fn in_a_second(self) -> i64 {
        10i64.pow(self.digits() as u32)
    }

    fn digits(self) -> usize {
        match self {
            Self::Millis => 3,
            Self::Micros => 6,
            Self::Nanos => 9,
        }
    }
}

/// The form that rows are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Json,
    Csv,
}

/// Digits that a 64-bit number keeps whatever they are.
const EXACT_DIGITS: u32 = 15;
const MAX_DIGITS: u32 = 38;

impl Kind {
    /// Reads the type of a leaf column; or says why it cannot be read.
    pub fn from_type(column: &Type) -> Result<Self, String> {
        let info = column.get_basic_info();
        let (physical, converted) = (column.get_physical_type(), info.converted_type());
        let decimal = |scale: i32| match u32::try_from(scale) {
            Ok(scale) if scale <= MAX_DIGITS => Ok(Self::Decimal { scale }),
            _ => Err(format!("its decimals have {scale} digits behind the point; allowed: 0 to {MAX_DIGITS}")),
        };
        match info.logical_type_ref() {
            Some(LogicalType::Decimal(decimals)) => return decimal(decimals.scale),
            Some(LogicalType::Time(time)) => return Ok(Self::Time(unit(&time.unit))),
            Some(LogicalType::Timestamp(time)) => {
                return Ok(Self::Timestamp { unit: unit(&time.unit), utc: time.is_adjusted_to_u_t_c });
            }
            Some(LogicalType::Float16) => return Ok(Self::Half),
            Some(LogicalType::Uuid) => return Ok(Self::Uuid),
            _ => {}
        }
        match (physical, converted) {
            (_, ConvertedType::DECIMAL) => return decimal(column.get_scale()),
            (_, ConvertedType::INTERVAL) => return Err("it holds intervals, which pipe does not read".to_owned()),
            _ => {}
        }
        Ok(match (physical, converted) {
            (Physical::BOOLEAN, _) => Self::Bool,
            (Physical::INT96, _) => Self::Int96,
            (Physical::FLOAT | Physical::DOUBLE, _) => Self::Real,
            (Physical::INT32, ConvertedType::DATE) => Self::Date,
            (Physical::INT32, ConvertedType::TIME_MILLIS) => Self::Time(Unit::Millis),
            (Physical::INT64, ConvertedType::TIME_MICROS) => Self::Time(Unit::Micros),
            (Physical::INT64, ConvertedType::TIMESTAMP_MILLIS) => Self::Timestamp { unit: Unit::Millis, utc: true },
            (Physical::INT64, ConvertedType::TIMESTAMP_MICROS) => Self::Timestamp { unit: Unit::Micros, utc: true },
            (
                Physical::INT32 | Physical::INT64,
                ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64,
            ) => Self::Unsigned,
            (Physical::INT32 | Physical::INT64, _) => Self::Signed,
            (
                Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY,
                ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON,
            ) => Self::Text,
            (Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY, _) => Self::Bytes,
        })
    }

    /// Writes a value; or says why that cannot be done.
    pub fn write(self, out: &mut Vec<u8>, field: &Field, style: Style) -> Result<(), String> {
        match (self, field) {
            (Self::Bool, Field::Bool(value)) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
            (_, Field::ULong(value)) => json(out, value),
            (Self::Real, Field::Float(value)) => real(out, *value, value.is_finite(), style),
            (Self::Real, Field::Double(value)) => real(out, *value, value.is_finite(), style),
            (Self::Half, Field::Float16(value)) => real(out, value.to_f32(), value.is_finite(), style),
            (Self::Decimal { scale }, Field::Decimal(value)) => decimal(out, whole_number(value.data())?, scale, style),
            (Self::Uuid, Field::Bytes(bytes)) if bytes.len() == 16 => text(out, &uuid(bytes.data()), style)?,
            (Self::Text | Self::Int96, Field::Str(value)) => text(out, value, style)?,
            (Self::Text | Self::Bytes, Field::Bytes(bytes)) => {
                text(out, std::str::from_utf8(bytes.data()).map_err(|_| "bytes that are no text in UTF-8")?, style)?;
            }
            (kind, field) => match (kind, whole(field)) {
                (Self::Signed | Self::Unsigned, Some(value)) => json(out, &value),
                (Self::Date, Some(days)) => text(out, &date(days)?, style)?,
                (Self::Time(unit), Some(count)) => text(out, &time_of_day(count, unit), style)?,
                (Self::Timestamp { unit, utc }, Some(count)) => text(out, &timestamp(count, unit, utc)?, style)?,
                (Self::Int96, Some(millis)) => text(out, &int96(millis)?, style)?,
                _ => return Err(format!("{field}, which is not of the kind {kind:?}")),
            },
        }
        Ok(())
    }
}

/// A whole number of any width, whatever it counts.
pub fn whole(field: &Field) -> Option<i64> {
    Some(match field {
        Field::Byte(value) => i64::from(*value),
        Field::Short(value) => i64::from(*value),
        Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => i64::from(*value),
        Field::UByte(value) => i64::from(*value),
        Field::UShort(value) => i64::from(*value),
        Field::UInt(value) => i64::from(*value),
        Field::Long(value)
        | Field::TimeMicros(value)
        | Field::TimestampMillis(value)
        | Field::TimestampMicros(value) => *value,
        _ => return None,
    })
}

pub fn text(out: &mut Vec<u8>, text: &str, style: Style) -> Result<(), String> {
    match style {
        Style::Json => {
            json(out, &text);
            Ok(())
        }
        Style::Csv if text.contains(['\n', '\r']) => {
            Err("a text with a line break, which a time series cannot have".into())
        }
        Style::Csv => {
            cell(out, text);
            Ok(())
        }
    }
}

/// A cell of a CSV.
pub fn cell(out: &mut Vec<u8>, text: &str) {
    match text.contains([',', '"', ' ']) {
        true => write!(out, "\"{}\"", text.replace('"', "\"\"")).expect("memory takes everything"),
        false => out.extend_from_slice(text.as_bytes()),
    }
}

fn unit(unit: &TimeUnit) -> Unit {
    match unit {
        TimeUnit::MILLIS => Unit::Millis,
        TimeUnit::MICROS => Unit::Micros,
        TimeUnit::NANOS => Unit::Nanos,
    }
}

/// As JSON: a number in the fewest digits that give it again, a text with what has to be escaped.
fn json(out: &mut Vec<u8>, value: &impl serde::Serialize) {
    serde_json::to_writer(out, value).expect("memory takes everything");
}

/// JSON has no values that are not finite.
fn real(out: &mut Vec<u8>, value: impl serde::Serialize + std::fmt::Display, finite: bool, style: Style) {
    match style {
        _ if finite => json(out, &value),
        Style::Json => out.extend_from_slice(b"null"),
        Style::Csv => write!(out, "{value}").expect("memory takes everything"),
    }
}

/// A number where its digits are sure to be kept, otherwise a text.
fn decimal(out: &mut Vec<u8>, unscaled: i128, scale: u32, style: Style) {
    let sign = if unscaled < 0 { "-" } else { "" };
    let scale = scale as usize;
    let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = scale + 1);
    let (whole, part) = digits.split_at(digits.len() - scale);
    let point = if scale > 0 { "." } else { "" };
    let is_exact = digits.trim_start_matches('0').len() <= EXACT_DIGITS as usize;
    let quote = if is_exact || style == Style::Csv { "" } else { "\"" };
    write!(out, "{quote}{sign}{whole}{point}{part}{quote}").expect("memory takes everything");
}

/// The big-endian number of a decimal.
fn whole_number(bytes: &[u8]) -> Result<i128, String> {
    let negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let sign = if negative { 0xff } else { 0 };
    let (more, last) = bytes.split_at(bytes.len().saturating_sub(16));
    let mut all = [sign; 16];
    all[16 - last.len()..].copy_from_slice(last);
    let fits = more.iter().all(|byte| *byte == sign) && (more.is_empty() || (all[0] & 0x80 != 0) == negative);
    if fits { Ok(i128::from_be_bytes(all)) } else { Err(format!("a decimal of more than {MAX_DIGITS} digits")) }
}

fn uuid(bytes: &[u8]) -> String {
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [20, 16, 12, 8].into_iter().for_each(|index| text.insert(index, '-'));
    text
}

const UNIX_EPOCH: Date = civil::date(1970, 1, 1);
/// Days from the Julian day 0 to 1970-01-01.
const UNIX_EPOCH_JULIAN: i64 = 2_440_588;
const DAY_NANOS: i64 = 86_400 * 1_000_000_000;

/// The day so many days after 1970-01-01, in ISO 8601.
fn date(days: i64) -> Result<String, String> {
    let date = Span::new().try_days(days).and_then(|days| UNIX_EPOCH.checked_add(days)).ok();
    let date = date.ok_or_else(|| format!("a day that is {days} days from 1970; allowed: the years -9999 to 9999"))?;
    Ok(format!("{:04}-{:02}-{:02}", date.year(), date.month(), date.day()))
}

/// The time of day `count` units after midnight. All times of a column have as many digits, so that texts are in the order of
/// their times.
fn time_of_day(count: i64, unit: Unit) -> String {
    let (seconds, rest) = (count.div_euclid(unit.in_a_second()), count.rem_euclid(unit.in_a_second()));
    let (hour, minute, second, digits) = (seconds / 3600, seconds / 60 % 60, seconds % 60, unit.digits());
    format!("{hour:02}:{minute:02}:{second:02}.{rest:0digits$}")
}

/// The moment `count` units after 1970-01-01T00:00:00, of Greenwich where `utc`.
fn timestamp(count: i64, unit: Unit, utc: bool) -> Result<String, String> {
    let day = 86_400 * unit.in_a_second();
    let (date, time) = (date(count.div_euclid(day))?, time_of_day(count.rem_euclid(day), unit));
    Ok(format!("{date}T{time}{}", if utc { "Z" } else { "" }))
}

/// The moment so many milliseconds after 1970-01-01: what the crate's reader makes of an INT96 inside of a list or a group.
fn int96(millis: i64) -> Result<String, String> {
    Ok(timestamp(millis, Unit::Millis, false)? + "000000")
}

/// Nanoseconds of a day and the Julian day, as old writers of Parquet have them.
pub fn julian(nanos: i64, day: u32) -> Result<String, String> {
    let date = date(i64::from(day) - UNIX_EPOCH_JULIAN + nanos.div_euclid(DAY_NANOS))?;
    Ok(format!("{date}T{}", time_of_day(nanos.rem_euclid(DAY_NANOS), Unit::Nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn decimals() {
        for (unscaled, scale, want) in [
            (12_345, 2, "123.45"),
            (-5, 3, "-0.005"),
            (0, 2, "0.00"),
            (7, 0, "7"),
            (999_999_999_999_999, 0, "999999999999999"),
            (1_234_567_890_123_456_789, 4, "\"123456789012345.6789\""),
            (i128::MIN, 38, "\"-1.70141183460469231731687303715884105728\""),
        ] {
            assert_eq!(written(|out| decimal(out, unscaled, scale, Style::Json)), want);
        }
        for (bytes, want) in [
            (&[0xff][..], Ok(-1)),
            (&[0x01, 0x00], Ok(256)),
            (&[], Ok(0)),
            (&[0xff; 20], Ok(-1)),
            (&[1; 20], Err("a decimal of more than 38 digits".to_owned())),
        ] {
            assert_eq!(whole_number(bytes), want, "{bytes:?}");
        }
    }

    #[test]
    fn numbers_come_back_as_they_were() {
        for value in [0.1f32, 1.0 / 3.0, 1e-45, f32::MAX, -0.0, 16_777_216.0] {
            let text = written(|out| real(out, value, true, Style::Json));
            assert_eq!(text.parse::<f64>().unwrap() as f32, value, "{text}");
        }
        for value in [0.1f64, 1.0 / 3.0, 5e-324, f64::MAX, 1e16] {
            assert_eq!(written(|out| real(out, value, true, Style::Csv)).parse::<f64>().unwrap(), value);
        }
        assert_eq!(written(|out| real(out, f64::NAN, false, Style::Json)), "null");
        assert_eq!(written(|out| real(out, f32::INFINITY, false, Style::Csv)), "inf");
    }

    #[test]
    fn texts() {
        let cell = |sample: &str| {
            let mut out = Vec::new();
            text(&mut out, sample, Style::Csv).map(|()| String::from_utf8(out).unwrap())
        };
        assert_eq!(cell("up").as_deref(), Ok("up"));
        assert_eq!(cell("a \"b\", c").as_deref(), Ok("\"a \"\"b\"\", c\""));
        assert!(cell("a\nb").is_err());
        let long = "ä".repeat(100);
        for sample in ["", "plain", "\"\\\n\r\t\u{1}\u{1f}\u{7f}", long.as_str(), &format!("{long}\"{long}\n")] {
            let mut out = Vec::new();
            text(&mut out, sample, Style::Json).unwrap();
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), sample);
        }
        assert_eq!(uuid(&[0x12; 16]), "12121212-1212-1212-1212-121212121212");
    }

    #[test]
    fn days() {
        for (days, want) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (11_016, "2000-02-29"),
            (19_782, "2024-02-29"),
            (20_454, "2026-01-01"),
            (-719_162, "0001-01-01"),
        ] {
            assert_eq!(date(days).unwrap(), want);
        }
        assert!(date(10_000_000).unwrap_err().ends_with("allowed: the years -9999 to 9999"));
    }

    #[test]
    fn moments() {
        for (count, unit, utc, want) in [
            (0, Unit::Millis, true, "1970-01-01T00:00:00.000Z"),
            (-1, Unit::Micros, false, "1969-12-31T23:59:59.999999"),
            (1_764_241_200_000_000_001, Unit::Nanos, true, "2025-11-27T11:00:00.000000001Z"),
        ] {
            assert_eq!(timestamp(count, unit, utc).unwrap(), want);
        }
        assert_eq!(time_of_day(86_399_999, Unit::Millis), "23:59:59.999");
        assert_eq!(julian(1, 2_440_589).unwrap(), "1970-01-02T00:00:00.000000001");
        assert_eq!(int96(-1).unwrap(), "1969-12-31T23:59:59.999000000");
    }
}
