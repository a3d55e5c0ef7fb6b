//! The models: what every one of them can do, their layers and weights, and the registry of architectures.

mod activation;
mod attention;
mod bag_of_words;
mod bert;
pub mod classification;
mod clip;
mod deberta;
mod definition;
mod dropout_keys;
mod dropout_masks;
mod generation;
mod hybrid_cnn_lstm;
mod interface;
mod layers;
mod mu_sota;
mod pass;
mod registry;
mod setup;
mod t5;
mod weights;

pub use definition::Definition;
pub use dropout_keys::DropoutKeys;
pub use dropout_masks::dropout_masks;
pub use generation::Generation;
pub use interface::{Contrastive, Drawn, Embeddings, Mode, Model};
pub use setup::{Setup, Start};
pub use weights::Weights;
