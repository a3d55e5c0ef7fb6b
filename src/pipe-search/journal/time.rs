//! Times in the journal. They are local and name no zone, as Optuna 4 writes them and both 4 and 5 read them; 5 writes UTC, and says so.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Seconds since the Unix epoch as `2026-01-31T12:00:00.000000`, local.
pub fn write(at: f64) -> String {
    // Python has no year after 9999.
    let micros = (at.clamp(0.0, 250_000_000_000.0) * 1e6).round() as i64;
    let local = Timestamp::from_microsecond(micros).unwrap_or_default().to_zoned(TimeZone::system());
    local.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string()
}

/// The same the other way, with or without a zone. Absent where it is no time.
pub fn parse(text: &str) -> Option<f64> {
    let with_zone = text.parse::<Timestamp>();
    let local = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::system()).ok().map(|zoned| zoned.timestamp());
    let at = with_zone.ok().or_else(local)?;
    Some(at.as_microsecond() as f64 / 1e6)
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
