//! Reads the tensors of a file that `torch.save` wrote, such as `pytorch_model.bin`, and runs nothing of it: a pickle
//! is a program, and of what it can say only what a file of weights needs is understood. Everything else is an error.
//!
//! Two formats: the zip archive of torch 1.6 and later, and the stream of pickles before it. Finds where each tensor
//! lies; copies nothing and knows no files.

mod archive;
mod machine;
mod opcode;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::BTreeMap;

pub use weights::Located;

/// The tensors of a state dict by name; or why they cannot be read.
pub fn locate(file: &[u8]) -> Result<BTreeMap<String, Located>, String> {
    if file.starts_with(b"PK") { archive::locate_in_archive(file) } else { archive::locate_in_stream(file) }
}
