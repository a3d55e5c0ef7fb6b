//! The tokenizer of a model, from whichever of its files is there: `tokenizer.json` as it is; the vocabularies of sentencepiece,
//! WordPiece and byte-level BPE turned into the same, with the tokens that `AutoTokenizer` of transformers 5 gives.

mod bert;
mod clip;
mod file;
mod parts;
mod pieces;
mod roberta;
mod sentencepiece;
mod settings;
mod special_tokens;
#[cfg(test)]
mod tests;
mod training;

pub use file::{guarded, json, open};
pub use special_tokens::SpecialTokens;
pub use training::train;
