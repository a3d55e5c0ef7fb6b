//! The machine below: files, HTTP, signals and the clock. Knows nothing about runs.

pub mod digests;
pub mod files;
pub mod http;
pub mod interrupt;

pub mod clock {
    //! The time of day, as files and messages have it: seconds since the Unix epoch, and UTC.

    use std::time::{SystemTime, UNIX_EPOCH};

    use jiff::Timestamp;

    /// Seconds since the Unix epoch.
    pub fn now() -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
    }

    /// A time in ISO 8601, to the second.
    pub fn iso(seconds: f64) -> String {
        Timestamp::from_second(seconds as i64).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
    }

    /// A time for people, to the minute: `2026-01-31 13:05 UTC`. Absent for a time that was not recorded.
    pub fn minutes_utc(seconds: f64) -> Option<String> {
        (seconds > 0.0).then(|| format!("{} UTC", iso(seconds)[..16].replace('T', " ")))
    }
}
