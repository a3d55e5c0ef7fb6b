//! How weights are updated: the optimizers, the learning rate and the loss scale. Knows no data.

mod adafactor;
mod adamw;
mod adamw_8bit;
mod optimizer;
pub mod schedule;
mod share;

pub use optimizer::Optimizer;
pub use schedule::LossScale;
pub use share::Share;
