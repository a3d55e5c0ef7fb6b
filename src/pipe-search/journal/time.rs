//! Times in the journal. They are local and name no zone, as Optuna 4 writes them and both 4 and 5 read them; 5 writes UTC, and says so.

use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Seconds since the Unix epoch as `2026-01-31T12:00:00.000000`, local.
pub fn write(at: f64) -> String {
    // Python has no year after 9999.
    let micros = (at.clamp(0.0, 250_000_000_000.0) * 1e6).round() as i64;
    let seconds: libc::time_t = micros / 1_000_000;
    let mut local = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call, and all zeroes is a valid `tm` where it fails.
    let local = unsafe {
        libc::localtime_r(&seconds, local.as_mut_ptr());
        local.assume_init()
    };
    let (year, month) = (local.tm_year + 1900, local.tm_mon + 1);
    let (hour, minute, second) = (local.tm_hour, local.tm_min, local.tm_sec);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{:06}", local.tm_mday, micros % 1_000_000)
}

/// The same the other way, with or without a zone. Absent where it is no time.
pub fn parse(text: &str) -> Option<f64> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = text.get(19..)?;
    let zone = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
    let (fraction, zone) = rest.split_at(zone);
    let fraction: f64 = if fraction.is_empty() { 0.0 } else { format!("0{fraction}").parse().ok()? };
    let seconds = match zone {
        "" => local_seconds(year, month, day, hour, minute, second)?,
        "Z" => utc_seconds(year, month, day, hour, minute, second),
        _ => utc_seconds(year, month, day, hour, minute, second) - offset(zone)?,
    };
    Some(seconds as f64 + fraction)
}

/// The seconds of `+02:00`.
fn offset(zone: &str) -> Option<i64> {
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let part = |range: std::ops::Range<usize>| -> Option<i64> { zone.get(range)?.parse().ok() };
    Some(sign * (part(1..3)? * 3600 + part(4..6)? * 60))
}

fn local_seconds(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> Option<i64> {
    // SAFETY: a `tm` is numbers and a pointer that may be null.
    let mut local: libc::tm = unsafe { MaybeUninit::zeroed().assume_init() };
    local.tm_year = year as i32 - 1900;
    local.tm_mon = month as i32 - 1;
    local.tm_mday = day as i32;
    local.tm_hour = hour as i32;
    local.tm_min = minute as i32;
    local.tm_sec = second as i32;
    local.tm_isdst = -1;
    // SAFETY: the pointer is valid for the call.
    let seconds = unsafe { libc::mktime(&mut local) };
    (seconds != -1).then_some(seconds)
}

/// Days of the civil calendar, after Howard Hinnant's `days_from_civil`.
fn utc_seconds(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    days * 86_400 + hour * 3600 + minute * 60 + second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for at in [0.0, 951_782_400.5, 1_753_000_000.123_456, 4_000_000_000.999_999] {
            let back = parse(&write(at)).unwrap();
            assert!((back - at).abs() < 1e-6, "{at} {} {back}", write(at));
        }
        write(f64::NAN);
        write(f64::INFINITY);
        write(-1.0);
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
            assert_eq!(parse(text), seconds, "{text}");
        }
    }
}
