//! A synthetic table: customers, with numbers and categories of which some are missing, and whether they cancel.

use std::fmt::Write;
use std::fs;

use crate::cli::TableArgs;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::storage::durable;

const HEADER: &str = "customer,age,city,plan,calls,spend,churn\n";
const CITIES: [&str; 5] = ["Bergen", "Lisbon", "Lyon", "Porto", "Turku"];
/// Each with its price.
const PLANS: [(&str, f64); 3] = [("basic", 8.0), ("plus", 15.0), ("pro", 30.0)];

pub fn generate(args: &TableArgs) -> Result<(), TrainerError> {
    let path = args.out.join("train.csv");
    let fail = |source| TrainerError::Io { path: path.clone(), source };
    fs::create_dir_all(&args.out).map_err(fail)?;
    durable::write_whole(&path, text(args.seed, args.rows).as_bytes()).map_err(fail)
}

fn text(seed: u64, rows: u64) -> String {
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
    fn rows_are_repeatable_and_some_cells_are_empty() {
        let table = text(1, 300);
        assert!(table == text(1, 300) && table.starts_with(&text(1, 50)) && table != text(2, 300));
        let column = |index: usize| table.lines().skip(1).map(move |line| line.split(',').nth(index).unwrap_or("-"));
        for index in [1, 3, 5] {
            assert!((5..90).contains(&column(index).filter(|cell| cell.is_empty()).count()), "column {index}");
        }
        assert!((60..240).contains(&column(6).filter(|cell| *cell == "yes").count()));
    }
}
