//! Where else a run is told of.

mod tensorboard;

pub use tensorboard::TensorBoard;
