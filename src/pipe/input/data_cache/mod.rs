//! Data files that cannot be read at random (Parquet, gzip, zstd) are written out once as files that can, in a cache folder:
//! JSON lines, CSV or plain text. The trainer reads these; the lock and the user's messages name the original. A tokenizer that
//! is trained on data lies there too.
//!
//! Knows nothing of engines and containers.

mod columns;
mod entry;
mod format;
mod output;
mod parquet;
mod pictures;
mod pieces;
mod prepare;
mod prepared_inputs;
mod stream;
#[cfg(test)]
mod tests;
mod tokenizer;
mod watch;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use columns::ColumnSelection;
pub use entry::size;
use format::{FileSignature, disagreement};
pub use format::{Format, full_ending};
pub use prepared_inputs::{PreparedInputs, needs_preparation, prepare_inputs};

/// What is wrong with a data file, as far as its first bytes tell, and of Parquet its footer.
pub fn check(path: &Path, selection: &ColumnSelection) -> Result<(), String> {
    let format = Format::from_path(path);
    // Numbers at the beginning of tensors may look like anything.
    if path.extension().is_some_and(|ending| ending == "safetensors") {
        return Ok(());
    }
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let found = FileSignature::read(&mut file).map_err(|error| error.to_string())?;
    if let Some(why) = disagreement(format, found) {
        return Err(why);
    }
    match format {
        Format::Plain => Ok(()),
        Format::Compressed(compression) => {
            let file = File::open(path).map_err(|error| error.to_string())?;
            let first = format::decompress(compression, file).and_then(|stream| stream.take(1).read(&mut [0]));
            match first.map_err(|error| format::unreadable(&error))? {
                0 => Err("it holds nothing".to_owned()),
                _ => Ok(()),
            }
        }
        Format::Parquet => guarded(|| parquet::Table::open(path, selection).map(drop)).unwrap_or_else(Err),
    }
}

/// Of a file that is only looked at, so many bytes are read: one endless line must not fill the memory.
const LOOKED_AT: u64 = 64 << 20;

/// The bytes with which a text file begins, decompressed where need be.
pub fn first_bytes(path: &Path) -> Option<Box<dyn Read>> {
    let file = File::open(path).ok()?;
    match Format::from_path(path) {
        Format::Plain => Some(Box::new(file.take(LOOKED_AT))),
        Format::Compressed(compression) => Some(Box::new(format::decompress(compression, file).ok()?.take(LOOKED_AT))),
        Format::Parquet => None,
    }
}

/// Whether `first_bytes` leaves out the end of a file. Of a compressed file its own size is compared.
pub fn is_longer_than_read(path: &Path) -> bool {
    Format::from_path(path) != Format::Parquet && path.metadata().is_ok_and(|meta| meta.len() > LOOKED_AT)
}

pub use parquet::Preview;

/// The columns of a Parquet file and its first rows as texts.
pub fn first_rows(path: &Path, rows: usize) -> Option<Preview> {
    guarded(|| parquet::preview(path, rows)).ok().flatten()
}

/// The name of threads that read untrusted files.
const THREAD: &str = "data file";
/// Schemas can be nested.
const STACK: usize = 64 << 20;

/// Does something that may panic on a bad file, and says so where it did.
fn guarded<T: Send>(read: impl FnOnce() -> T + Send) -> Result<T, String> {
    silence_panics();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).stack_size(STACK).spawn_scoped(scope, read);
        let ended = thread.map_err(|error| error.to_string())?.join();
        ended.map_err(|panic| panic_message(panic.as_ref()))
    })
}

/// What a reader that panicked says of its file.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("it is damaged: {}", text.unwrap_or("its reader gave up"))
}

/// A panic on such a thread becomes an error of the file.
fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some(THREAD) {
                tracing::debug!("{info}");
            } else {
                before(info);
            }
        }));
    });
}

#[cfg(test)]
mod message_tests {
    use super::*;

    #[test]
    fn panics_become_errors() {
        assert_eq!(guarded(|| 3), Ok(3));
        assert_eq!(guarded(|| -> u8 { panic!("page {}", 7) }), Err("it is damaged: page 7".to_owned()));
    }
}
