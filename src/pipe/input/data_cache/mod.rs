//! Data files that cannot be read at random (Parquet, gzip, zstd) are written out once as files that can, in a cache folder:
//! JSON lines, CSV or plain text. The trainer reads these; the lock and the user's messages name the original.
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

/// The lines of a text file with which it begins, decompressed where need be.
pub fn first_lines(path: &Path) -> Option<Box<dyn Read>> {
    /// A file of one endless line is not read into memory.
    const MAX_BYTES: u64 = 64 << 20;
    let file = File::open(path).ok()?;
    match Format::from_path(path) {
        Format::Plain => Some(Box::new(file.take(MAX_BYTES))),
        Format::Compressed(compression) => Some(Box::new(format::decompress(compression, file).ok()?.take(MAX_BYTES))),
        Format::Parquet => None,
    }
}

/// The columns of a Parquet file and its first rows as texts.
pub fn first_rows(path: &Path, rows: usize) -> Option<(Vec<String>, Vec<Vec<String>>)> {
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
