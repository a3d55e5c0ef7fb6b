//! Single values of a column as JSON, or as cells of a CSV.

use std::io::Write;

use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as Physical};
use parquet::schema::types::Type;

use super::calendar::{self, Unit};
use super::cursor::Values;

/// What the values of a column mean.
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

/// What rows are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Json,
    Csv,
}

/// Digits that a 64-bit number keeps whatever they are.
const EXACT_DIGITS: u32 = 15;
const MAX_DIGITS: u32 = 38;

impl Kind {
    /// What the type of a leaf column says; or why it cannot be read.
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

    /// Writes the value at `index`; or says why that cannot be done.
    pub fn write(self, out: &mut Vec<u8>, values: &Values, index: usize, style: Style) -> Result<(), String> {
        let quoted = |out: &mut Vec<u8>, write: &dyn Fn(&mut Vec<u8>)| {
            if style == Style::Json {
                out.push(b'"');
            }
            write(out);
            if style == Style::Json {
                out.push(b'"');
            }
        };
        match (self, values) {
            (Self::Bool, Values::Bool(list)) => out.extend_from_slice(if list[index] { b"true" } else { b"false" }),
            (Self::Unsigned, Values::Int32(list)) => number(out, &(list[index] as u32)),
            (Self::Unsigned, Values::Int64(list)) => number(out, &(list[index] as u64)),
            (Self::Signed, Values::Int32(list)) => number(out, &list[index]),
            (Self::Signed, Values::Int64(list)) => number(out, &list[index]),
            (Self::Real, Values::Float(list)) => real(out, list[index], list[index].is_finite(), style),
            (Self::Real, Values::Double(list)) => real(out, list[index], list[index].is_finite(), style),
            (Self::Date, Values::Int32(list)) => quoted(out, &|out| calendar::date(out, i64::from(list[index]))),
            (Self::Time(unit), Values::Int32(list)) => {
                quoted(out, &|out| calendar::time(out, i64::from(list[index]), unit));
            }
            (Self::Time(unit), Values::Int64(list)) => quoted(out, &|out| calendar::time(out, list[index], unit)),
            (Self::Timestamp { unit, utc }, Values::Int64(list)) => {
                quoted(out, &|out| calendar::timestamp(out, list[index], unit, utc));
            }
            (Self::Int96, Values::Int96(list)) => quoted(out, &|out| calendar::int96(out, list[index].data())),
            (Self::Decimal { scale }, Values::Int32(list)) => decimal(out, i128::from(list[index]), scale, style),
            (Self::Decimal { scale }, Values::Int64(list)) => decimal(out, i128::from(list[index]), scale, style),
            (kind, values) => return kind.write_bytes(out, bytes(values, index).unwrap_or_default(), style),
        }
        Ok(())
    }

    fn write_bytes(self, out: &mut Vec<u8>, bytes: &[u8], style: Style) -> Result<(), String> {
        match self {
            Self::Half if bytes.len() == 2 => {
                let value = half(u16::from_le_bytes([bytes[0], bytes[1]]));
                real(out, value, value.is_finite(), style);
            }
            Self::Decimal { scale } => decimal(out, whole_number(bytes)?, scale, style),
            Self::Uuid if bytes.len() == 16 => text(out, &uuid(bytes), style)?,
            Self::Text | Self::Bytes => {
                text(out, std::str::from_utf8(bytes).map_err(|_| "bytes that are no text in UTF-8")?, style)?;
            }
            kind => return Err(format!("{} bytes, which are not of the kind {kind:?}", bytes.len())),
        }
        Ok(())
    }
}

/// The bytes at `index` of a column that holds such.
pub fn bytes(values: &Values, index: usize) -> Option<&[u8]> {
    match values {
        Values::Bytes(list) => Some(list[index].data()),
        Values::Fixed(list) => Some(list[index].data()),
        _ => None,
    }
}

pub fn text(out: &mut Vec<u8>, text: &str, style: Style) -> Result<(), String> {
    match style {
        Style::Json => {
            json_text(out, text);
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

/// Most texts have long stretches of nothing to escape, which are copied as they are.
fn json_text(out: &mut Vec<u8>, text: &str) {
    const STRETCH: usize = 64;
    let needs_escape = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    out.push(b'"');
    for stretch in text.as_bytes().chunks(STRETCH) {
        // Without an early end, so that it is done for many bytes at once.
        if !stretch.iter().fold(false, |found, byte| found | needs_escape(byte)) {
            out.extend_from_slice(stretch);
            continue;
        }
        for byte in stretch {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                control if *control < 0x20 => write!(out, "\\u{control:04x}").expect("memory takes everything"),
                plain => out.push(*plain),
            }
        }
    }
    out.push(b'"');
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

/// In the fewest digits that give the same number again.
fn number(out: &mut Vec<u8>, number: &impl serde::Serialize) {
    serde_json::to_writer(out, number).expect("memory takes everything");
}

/// JSON has no values that are not finite.
fn real(out: &mut Vec<u8>, value: impl serde::Serialize + std::fmt::Display, finite: bool, style: Style) {
    match style {
        _ if finite => number(out, &value),
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

/// IEEE 754 binary16.
fn half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
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
        for (bits, want) in [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f32.powi(-24)), (0x7bff, 65504.0)] {
            assert_eq!(half(bits), want);
        }
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
}
