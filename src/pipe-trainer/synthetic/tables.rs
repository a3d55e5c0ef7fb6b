//! A synthetic time series: endless, reproducible and learnable. It goes through three states. Each feature depends a
//! little on the state, and mostly on its last value and on noise, so that a window predicts the state and a single row
//! does not.
//!
//! A synthetic table: customers, with numbers and categories of which some are missing, and whether they cancel.

use std::fmt::Write;
use std::fs;

use super::Split;
use crate::cli::{SeriesArgs, TableArgs};
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::storage;

const STATES: [&str; 3] = ["falling", "flat", "rising"];
/// Rows that a state lasts.
const STATE_ROWS: std::ops::Range<u64> = 30..90;

pub fn generate_series(args: &SeriesArgs) -> Result<(), TrainerError> {
    let eval_rows = args.eval_rows.unwrap_or((args.rows / 10).max(200));
    let files = [
        ("train.csv", series_text(args.seed, Split::Train, args.rows, args.features)),
        ("eval.csv", series_text(args.seed, Split::Eval, eval_rows, args.features)),
    ];
    fs::create_dir_all(&args.out).map_err(|source| TrainerError::Io { path: args.out.clone(), source })?;
    for (name, text) in files {
        let path = args.out.join(name);
        storage::write_whole(&path, text.as_bytes()).map_err(|source| TrainerError::Io { path, source })?;
    }
    Ok(())
}

/// The columns are time, one for each feature, and label.
fn series_text(seed: u64, split: Split, rows: u64, features: u64) -> String {
    let mut text = String::from("time");
    (0..features).for_each(|feature| text.push_str(&format!(",f{feature}")));
    text.push_str(",label\n");
    let mut shape = Random::new(Purpose::Series, seed, &[]);
    let features: Vec<Feature> = (0..features).map(|_| Feature::draw(&mut shape)).collect();
    let mut random = Random::new(Purpose::Series, seed, &[1 + split as u64]);
    let mut values = vec![0.0; features.len()];
    let (mut state, mut left) = (0, 0);
    for time in 0..rows {
        if left == 0 {
            state = (state + 1 + random.below(2) as usize) % STATES.len();
            left = STATE_ROWS.start + random.below(STATE_ROWS.end - STATE_ROWS.start);
        }
        left -= 1;
        // Writing to a String cannot fail.
        let _ = write!(text, "{time}");
        for (value, feature) in values.iter_mut().zip(&features) {
            *value = 0.5 * *value + feature.pull[state] + noise(&mut random);
            let _ = write!(text, ",{:.4}", feature.offset + feature.scale * *value);
        }
        let _ = writeln!(text, ",{}", STATES[state]);
    }
    text
}

/// The scale of a feature, and where each state pulls it.
struct Feature {
    offset: f64,
    scale: f64,
    pull: [f64; STATES.len()],
}

impl Feature {
    fn draw(random: &mut Random) -> Self {
        let mut between = |from: f64, to: f64| from + (to - from) * uniform(random);
        Self {
            offset: between(-100.0, 100.0),
            scale: between(0.5, 20.0),
            pull: std::array::from_fn(|_| between(-1.0, 1.0)),
        }
    }
}

/// Between 0 and 1.
fn uniform(random: &mut Random) -> f64 {
    random.below(1 << 32) as f64 / (1u64 << 32) as f64
}

/// About normal, with deviation 1: the sum of twelve even numbers, which no library rounds otherwise.
fn noise(random: &mut Random) -> f64 {
    (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
}

const HEADER: &str = "customer,age,city,plan,calls,spend,churn\n";
const CITIES: [&str; 5] = ["Bergen", "Lisbon", "Lyon", "Porto", "Turku"];
/// Each with its price.
const PLANS: [(&str, f64); 3] = [("basic", 8.0), ("plus", 15.0), ("pro", 30.0)];

pub fn generate_table(args: &TableArgs) -> Result<(), TrainerError> {
    let path = args.out.join("train.csv");
    let fail = |source| TrainerError::Io { path: path.clone(), source };
    fs::create_dir_all(&args.out).map_err(fail)?;
    storage::write_whole(&path, table_text(args.seed, args.rows).as_bytes()).map_err(fail)
}

fn table_text(seed: u64, rows: u64) -> String {
    (0..rows).fold(HEADER.to_owned(), |mut text, row| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "c{row:05},{}", customer(&mut Random::new(Purpose::Table, seed, &[row])));
        text
    })
}

/// Spending follows from plan, city and age. Who calls often and pays little cancels; so do many who did not give their age.
fn customer(random: &mut Random) -> String {
    let (age, calls) = (18 + random.below(60), random.below(12));
    let (city, plan) = (random.below(CITIES.len() as u64) as usize, random.below(PLANS.len() as u64) as usize);
    let noise = |random: &mut Random| random.below(1000) as f64 / 1000.0 - 0.5;
    let spend = PLANS[plan].1 + 2.0 * city as f64 + 0.1 * age as f64 + 4.0 * noise(random);
    let gave_age = random.below(10) > 0;
    let worry = calls as f64 / 4.0 - spend / 12.0 + if gave_age { 0.0 } else { 1.5 } + noise(random);
    let or_nothing = |text: String, is_known: bool| if is_known { text } else { String::new() };
    format!(
        "{},{},{},{calls},{},{}",
        or_nothing(age.to_string(), gave_age),
        CITIES[city],
        or_nothing(PLANS[plan].0.to_owned(), random.below(20) > 0),
        or_nothing(format!("{spend:.2}"), random.below(12) > 0),
        if worry > 0.0 { "yes" } else { "no" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_repeatable_and_splits_differ() {
        let rows = |seed, split, rows| series_text(seed, split, rows, 3);
        assert_eq!(rows(1, Split::Train, 50), rows(1, Split::Train, 50));
        assert!(rows(1, Split::Train, 90).starts_with(&rows(1, Split::Train, 50)));
        assert_ne!(rows(1, Split::Train, 50), rows(2, Split::Train, 50));
        assert_ne!(rows(1, Split::Train, 50), rows(1, Split::Eval, 50));
    }

    #[test]
    fn every_state_comes_up_and_lasts() {
        let text = series_text(3, Split::Train, 3000, 2);
        let labels: Vec<&str> = text.lines().skip(1).filter_map(|line| line.rsplit(',').next()).collect();
        assert_eq!((labels.len(), text.lines().next()), (3000, Some("time,f0,f1,label")));
        for state in STATES {
            assert!(labels.iter().filter(|label| **label == state).count() > 500, "{state}");
        }
        let changes = labels.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!((33..100).contains(&changes), "{changes}");
    }
}

#[cfg(test)]
mod table_tests {
    use super::*;

    #[test]
    fn rows_are_repeatable_and_some_cells_are_empty() {
        let table = table_text(1, 300);
        assert!(table == table_text(1, 300) && table.starts_with(&table_text(1, 50)) && table != table_text(2, 300));
        let column = |index: usize| table.lines().skip(1).map(move |line| line.split(',').nth(index).unwrap_or("-"));
        for index in [1, 3, 5] {
            assert!((5..90).contains(&column(index).filter(|cell| cell.is_empty()).count()), "column {index}");
        }
        assert!((60..240).contains(&column(6).filter(|cell| *cell == "yes").count()));
    }
}
