//! Files and folders: read within bounds, written whole or not at all, and tensors in them.

pub mod files;
mod pickle;
pub mod tensor_files;

pub use files::ExportedFolder;
pub use tensor_files::TensorFiles;
