//! Files and folders: read within bounds, written whole or not at all, and tensors in them.

pub mod bounded_file;
pub mod durable;
mod pickle;
mod tensor_files;
pub mod tensor_writer;

pub use durable::ExportedFolder;
pub use tensor_files::TensorFiles;
