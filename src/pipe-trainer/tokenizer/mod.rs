//! The tokenizer of a model, from whichever of its files is there: `tokenizer.json` as it is; the vocabularies of
//! sentencepiece, WordPiece and byte-level BPE turned into the same, with the tokens that `AutoTokenizer` of
//! transformers 5 gives.

mod file;
mod sentencepiece;
mod settings;
#[cfg(test)]
mod tests;
mod tokens;
mod training;
mod vocabulary;

pub use file::{guarded, json, open};
pub use settings::SpecialTokens;
pub use tokens::Tokens;
pub use training::train;
