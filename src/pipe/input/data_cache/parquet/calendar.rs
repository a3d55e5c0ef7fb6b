//! Days and times of day as ISO 8601 texts.

use std::io::Write;

/// What a number of a time column counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Millis,
    Micros,
    Nanos,
}

impl Unit {
    fn in_a_second(self) -> i64 {
        match self {
            Self::Millis => 1_000,
            Self::Micros => 1_000_000,
            Self::Nanos => 1_000_000_000,
        }
    }

    /// All times of a column have as many digits, so that texts are in the order of their times.
    fn digits(self) -> usize {
        match self {
            Self::Millis => 3,
            Self::Micros => 6,
            Self::Nanos => 9,
        }
    }
}

const DAY: i64 = 86_400;

/// The day so many days after 1970-01-01.
pub fn date(out: &mut Vec<u8>, days: i64) {
    let (year, month, day) = civil(days);
    write!(out, "{year:04}-{month:02}-{day:02}").expect("memory takes everything");
}

/// The time of day `count` units after midnight.
pub fn time(out: &mut Vec<u8>, count: i64, unit: Unit) {
    let (seconds, rest) = (count.div_euclid(unit.in_a_second()), count.rem_euclid(unit.in_a_second()));
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let digits = unit.digits();
    write!(out, "{hour:02}:{minute:02}:{second:02}.{rest:0digits$}").expect("memory takes everything");
}

/// The moment `count` units after 1970-01-01T00:00:00, of Greenwich where `utc`.
pub fn timestamp(out: &mut Vec<u8>, count: i64, unit: Unit, utc: bool) {
    let day = DAY * unit.in_a_second();
    date(out, count.div_euclid(day));
    out.push(b'T');
    time(out, count.rem_euclid(day), unit);
    if utc {
        out.push(b'Z');
    }
}

/// Nanoseconds of a day and the Julian day, as old writers of Parquet have them.
pub fn int96(out: &mut Vec<u8>, data: &[u32]) {
    const UNIX_EPOCH: i64 = 2_440_588;
    let nanos = i64::from(data[0]) | i64::from(data[1]) << 32;
    date(out, i64::from(data[2]) - UNIX_EPOCH + nanos.div_euclid(DAY * 1_000_000_000));
    out.push(b'T');
    time(out, nanos.rem_euclid(DAY * 1_000_000_000), Unit::Nanos);
}

/// Year, month and day in the proleptic Gregorian calendar.
/// <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
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
            assert_eq!(text(|out| date(out, days)), want);
        }
    }

    #[test]
    fn moments() {
        for (count, unit, utc, want) in [
            (0, Unit::Millis, true, "1970-01-01T00:00:00.000Z"),
            (-1, Unit::Micros, false, "1969-12-31T23:59:59.999999"),
            (1_764_241_200_000_000_001, Unit::Nanos, true, "2025-11-27T11:00:00.000000001Z"),
        ] {
            assert_eq!(text(|out| timestamp(out, count, unit, utc)), want);
        }
        assert_eq!(text(|out| time(out, 86_399_999, Unit::Millis)), "23:59:59.999");
        assert_eq!(text(|out| int96(out, &[1, 0, 2_440_589])), "1970-01-02T00:00:00.000000001");
    }
}
