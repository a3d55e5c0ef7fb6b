//! Synthetic data to train on: rows without end, each a function of the seed and its number, and tokenizers for them.

pub mod cars;
mod dishes;
mod recipes;
mod rows;
pub mod stories;
pub mod tables;

pub use dishes::DISHES;
pub use recipes::{RECIPES, TALKS};
