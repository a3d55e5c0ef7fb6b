//! Arguments of `pipe image`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Build an image, unless an unchanged image exists
    Build {
        /// A Dockerfile; default: the trainer image
        dockerfile: Option<PathBuf>,
        /// Print the image as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the files of the trainer image: the trainer and the libraries that it loads
    Files {
        /// Print files and missing CUDA libraries as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the images that pipe built
    Ls {
        /// Print an array of images as JSON
        #[arg(long)]
        json: bool,
    },
}
