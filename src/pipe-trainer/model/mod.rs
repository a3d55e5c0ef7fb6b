//! The models: what every one of them can do, their layers and weights, and the registry of architectures.

#[cfg(test)]
mod adapted_tests;
pub mod attention;
mod bag_of_words;
mod batch_norm;
mod bert;
pub mod classification;
mod clip;
mod deberta;
mod definition;
mod hybrid_cnn_lstm;
mod interface;
pub mod layers;
mod llama;
mod mu_sota;
#[cfg(test)]
mod packed_tests;
pub mod pass;
mod preference;
mod quantized;
mod registry;
mod resnet;
mod sampling;
mod t5;
mod tabular;
mod vit;
mod weights;

pub use definition::Definition;
pub use interface::{Contrastive, Embeddings, Generation, Model, PairFigures, Pairs};
pub use pass::{Drawn, DropoutKeys, Mode};
pub use pass::{Setup, Start};
pub use quantized::Quantized;
pub use weights::Weights;
