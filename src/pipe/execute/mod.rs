//! Carries out runs: one way for a training, a command, a pipeline of stages, a study and a prediction.

pub mod children;
pub mod decide;
pub mod inspect;
pub mod launch;
pub mod predict;
pub mod single;
pub mod stages;
pub mod study;
