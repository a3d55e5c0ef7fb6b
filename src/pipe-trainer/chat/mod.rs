//! Conversations as text for a model: its chat template is rendered, and the loss counts the turns of the assistant.
//!
//! `messages` makes a conversation of a row, `template` renders it, `spoken` finds the assistant's turns where the template does
//! not mark them, and `encode` makes tokens. Nothing here knows about tensors or files of rows.

mod encode;
mod error;
mod marks;
mod messages;
mod python;
mod render;
mod spoken;
mod template;
#[cfg(test)]
mod tests;

pub use encode::{Encoded, encode};
pub use error::ChatError;
pub use messages::{Columns, Conversation};
pub use template::{CHAT_ML, ChatTemplate, Rendered};
