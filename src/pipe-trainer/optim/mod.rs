//! How weights are updated: the optimizers, the learning rate and the loss scale. Knows no data.

mod adafactor;
mod adamw;
mod decay;
mod loss_scale;
mod optimizer;
pub mod schedule;
mod share;

pub use loss_scale::LossScale;
pub use optimizer::Optimizer;
pub use share::Share;
