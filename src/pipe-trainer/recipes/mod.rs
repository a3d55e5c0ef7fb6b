//! Made-up cooking recipes: endless, repeatable, and learnable, because what is done with an ingredient depends on the
//! ingredient alone.

mod kitchen;
mod tokenizer;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::cli::RecipesArgs;
use crate::durable;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Recipe {
    ingredients: String,
    directions: String,
}

/// Which of the endless rows; the two never share a random number.
#[derive(Clone, Copy)]
enum Stream {
    Train,
    Eval,
}

pub fn generate(args: &RecipesArgs) -> Result<(), TrainerError> {
    match &args.out {
        None => print(args),
        Some(folder) => write(args, folder),
    }
}

/// The tokenizer.json of recipes.
#[cfg(test)]
pub fn tokenizer() -> String {
    tokenizer::json()
}

fn print(args: &RecipesArgs) -> Result<(), TrainerError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match (0..args.rows).try_for_each(|row| writeln!(out, "{}", line(args.seed, Stream::Train, row))) {
        // Whoever read them has had enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(source) => Err(TrainerError::Io { path: "stdout".into(), source }),
        Ok(()) => Ok(()),
    }
}

fn write(args: &RecipesArgs, folder: &Path) -> Result<(), TrainerError> {
    let eval_rows = args.eval_rows.unwrap_or((args.rows / 20).max(1));
    let files = [
        ("train.jsonl", lines(args.seed, Stream::Train, args.rows)),
        ("eval.jsonl", lines(args.seed, Stream::Eval, eval_rows)),
        ("tokenizer.json", tokenizer::json()),
    ];
    fs::create_dir_all(folder).map_err(|source| TrainerError::Io { path: folder.to_owned(), source })?;
    for (name, text) in files {
        let path = folder.join(name);
        durable::write_whole(&path, text.as_bytes()).map_err(|source| TrainerError::Io { path, source })?;
    }
    Ok(())
}

fn lines(seed: u64, stream: Stream, rows: u64) -> String {
    (0..rows).map(|row| line(seed, stream, row) + "\n").collect()
}

fn line(seed: u64, stream: Stream, row: u64) -> String {
    let mut random = Random::new(Purpose::Recipes, seed, &[stream as u64, row]);
    serde_json::to_string(&recipe(&mut random)).expect("a recipe is plain text")
}

fn recipe(random: &mut Random) -> Recipe {
    // Most recipes are short and some are long, as in real life.
    let count = match random.below(10) {
        0..=4 => 1 + random.below(4),
        5..=7 => 4 + random.below(5),
        _ => 9 + random.below(8),
    };
    let mut picked: Vec<usize> = (0..kitchen::INGREDIENTS.len()).collect();
    random.shuffle(&mut picked);
    picked.truncate(count as usize);
    let names: Vec<&str> = picked.iter().map(|index| kitchen::INGREDIENTS[*index]).collect();
    let directions: Vec<String> = picked.iter().map(|index| kitchen::direction(*index)).collect();
    Recipe { ingredients: names.join(", "), directions: directions.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_repeatable_and_streams_differ() {
        assert_eq!(lines(1, Stream::Train, 5), lines(1, Stream::Train, 5));
        assert!(lines(1, Stream::Train, 9).starts_with(&lines(1, Stream::Train, 5)));
        assert_ne!(lines(1, Stream::Train, 5), lines(2, Stream::Train, 5));
        assert_ne!(lines(1, Stream::Train, 5), lines(1, Stream::Eval, 5));
    }

    #[test]
    fn every_ingredient_gets_its_own_direction() {
        let mut random = Random::new(Purpose::Recipes, 3, &[]);
        let mut lengths: Vec<usize> = Vec::new();
        for _ in 0..200 {
            let recipe = recipe(&mut random);
            for name in recipe.ingredients.split(", ") {
                assert!(recipe.directions.contains(&format!(" the {name} for ")), "{recipe:?}");
            }
            lengths.push(recipe.directions.len());
        }
        lengths.sort_unstable();
        assert!(lengths[180] > 5 * lengths[20], "{lengths:?}");
    }
}
