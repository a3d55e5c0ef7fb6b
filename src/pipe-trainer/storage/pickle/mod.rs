//! Reads the tensors of a file that `torch.save` wrote, such as `pytorch_model.bin`, and runs nothing of it: a pickle is a
//! program, and of what it can say only what a file of weights needs is understood. Everything else is an error.
//!
//! Two formats: the zip archive of torch 1.6 and later, and the stream of pickles before it. Finds where each tensor lies;
//! copies nothing and knows no files.

mod archive;
mod bytes;
mod class;
mod legacy;
mod located;
mod machine;
mod opcode;
mod storage;
#[cfg(test)]
mod tests;
mod value;
mod weights;

pub use located::Located;

use std::collections::BTreeMap;

/// The tensors of a state dict by name; or why they cannot be read.
pub fn locate(file: &[u8]) -> Result<BTreeMap<String, Located>, String> {
    if file.starts_with(b"PK") { archive::locate(file) } else { legacy::locate(file) }
}
