//! Conversations as text for a model: its chat template is rendered, and the loss counts the turns of the assistant.
//!
//! `messages` makes a conversation of a row, `template` and `render` write it, with the assistant's turns where the template does
//! not mark them, and `encode` makes tokens. Nothing here knows about tensors or files of rows.

mod marks;
mod messages;
mod python;
mod render;
mod template;
#[cfg(test)]
mod tests;

pub use messages::{ChatError, Columns, Conversation};
pub use render::{Encoded, encode};
pub use template::{CHAT_ML, ChatTemplate, Rendered};
