//! Which runs of a list are wanted. Pure.

use std::str::FromStr;

use pipe_spec::{RunState, Status};
use time::{Date, Month};

/// All conditions must hold; without any, every run is wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Any of these; empty for all.
    pub statuses: Vec<Status>,
    /// A pattern for the name of the pipeline: `*` is any text, `?` any character.
    pub name: Option<String>,
    /// Started at this time or later, in seconds since the Unix epoch.
    pub since: Option<f64>,
}

impl Filter {
    pub fn wants(&self, state: &RunState) -> bool {
        let status = self.statuses.is_empty() || self.statuses.contains(&state.status);
        let name = self.name.as_ref().is_none_or(|pattern| matches(pattern, &state.name));
        status && name && self.since.is_none_or(|since| state.created >= since)
    }

    pub fn is_empty(&self) -> bool {
        self.statuses.is_empty() && self.name.is_none() && self.since.is_none()
    }
}

/// Whether all of `name` is what the pattern describes.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Which lengths of the beginning of `name` the beginning of the pattern so far describes.
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for letter in pattern {
        let mut next = vec![false; name.len() + 1];
        for length in 0..=name.len() {
            next[length] = match letter {
                '*' => reached[length] || (length > 0 && next[length - 1]),
                '?' => length > 0 && reached[length - 1],
                letter => length > 0 && reached[length - 1] && name[length - 1] == letter,
            };
        }
        reached = next;
    }
    reached[name.len()]
}

/// A time as people write it: how long ago, or a date.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Since {
    /// Seconds ago.
    Ago(f64),
    /// Seconds since the Unix epoch.
    Date(f64),
}

impl Since {
    const RULE: &str = "allowed: a number with m, h, d or w, such as 90m or 2d, or a date such as 2026-01-31";

    /// Seconds since the Unix epoch.
    pub fn seconds(self, now: f64) -> f64 {
        match self {
            Self::Ago(seconds) => now - seconds,
            Self::Date(seconds) => seconds,
        }
    }
}

impl FromStr for Since {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        date(text).map(Self::Date).or_else(|| age(text).map(Self::Ago)).ok_or(Self::RULE)
    }
}

fn age(text: &str) -> Option<f64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        'm' => 60.0,
        'h' => 3600.0,
        'd' => 86_400.0,
        'w' => 604_800.0,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit());
    let number: f64 = digits.parse().ok().filter(|_| is_number)?;
    Some(number * seconds).filter(|seconds| seconds.is_finite())
}

/// The beginning of a day, in UTC.
fn date(text: &str) -> Option<f64> {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return None };
    let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
    let date = Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok()?;
    Some(date.midnight().assume_utc().unix_timestamp() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_names() {
        for (pattern, name, want) in [
            ("recipes", "recipes", true),
            ("recipes", "recipes-t5", false),
            ("recipes*", "recipes-t5", true),
            ("*t5", "recipes-t5", true),
            ("*-t?", "recipes-t5", true),
            ("?", "", false),
            ("*", "", true),
            ("**a*b", "xaxbxb", true),
            ("a*b", "axc", false),
            ("[a]", "a", false),
        ] {
            assert_eq!(matches(pattern, name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn times() {
        let now = 1_000_000.0;
        for (text, want) in [
            ("90m", Some(now - 5400.0)),
            ("2d", Some(now - 172_800.0)),
            ("1.5h", Some(now - 5400.0)),
            ("1w", Some(now - 604_800.0)),
            ("1970-01-03", Some(172_800.0)),
            ("2d ", None),
            ("-2d", None),
            ("infd", None),
            ("2", None),
            ("2x", None),
            ("d", None),
            ("1970-13-01", None),
            ("2026-02-30", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Since>().ok().map(|since| since.seconds(now)), want, "{text}");
        }
    }

    #[test]
    fn all_conditions_must_hold() {
        let state = RunState { created: 100.0, status: Status::Failed, ..RunState::new("a-1", "a", "process") };
        let filter = |statuses: &[Status], name: Option<&str>, since: Option<f64>| Filter {
            statuses: statuses.to_vec(),
            name: name.map(str::to_owned),
            since,
        };
        assert!(filter(&[], None, None).wants(&state) && filter(&[], None, None).is_empty());
        assert!(filter(&[Status::Running, Status::Failed], Some("a"), Some(100.0)).wants(&state));
        assert!(!filter(&[Status::Running], Some("a"), Some(100.0)).wants(&state));
        assert!(!filter(&[Status::Failed], Some("b"), Some(100.0)).wants(&state));
        assert!(!filter(&[Status::Failed], Some("a"), Some(100.1)).wants(&state));
    }
}
