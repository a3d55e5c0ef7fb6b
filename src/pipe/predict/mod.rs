//! Predictions of a trained model: what predicts, the rows, the job that computes them, and where they go. A prediction is no
//! run: it leaves nothing but its output.

mod card_queue;
mod destination;
mod job;
mod rows;
mod subject;

pub use destination::{Destination, work_folder};
pub use job::Job;
pub use rows::Rows;
pub use subject::Subject;
