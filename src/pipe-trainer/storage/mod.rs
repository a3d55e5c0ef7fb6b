//! Files and folders: read within bounds, written whole or not at all, and tensors in them.

pub mod bounded_file;
pub mod durable;
mod exported_folder;
pub mod finite;
mod pickle;
pub mod staged_folder;
mod tensor_files;
pub mod tensor_writer;

pub use exported_folder::ExportedFolder;
pub use tensor_files::TensorFiles;
