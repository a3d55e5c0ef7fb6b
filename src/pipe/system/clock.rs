//! The time of day, as files and messages have it: seconds since the Unix epoch, and UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// Seconds since the Unix epoch.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// A time in ISO 8601, to the second.
pub fn iso(seconds: f64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(seconds as i64).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let ((year, month, day), (hour, minute, second)) = (at.to_calendar_date(), at.to_hms());
    format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z", u8::from(month))
}

/// A time for people, to the minute: `2026-01-31 13:05 UTC`. Absent for a time that was not recorded.
pub fn minutes_utc(seconds: f64) -> Option<String> {
    (seconds > 0.0).then(|| format!("{} UTC", iso(seconds)[..16].replace('T', " ")))
}
