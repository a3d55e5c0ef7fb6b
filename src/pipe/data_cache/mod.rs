//! Data files that cannot be read at random (Parquet, gzip, zstd) are written out once as files that can, in a cache folder:
//! JSON lines, CSV or plain text. The trainer reads these; the lock and the user's messages name the original.
//!
//! Knows nothing of engines and containers.

mod entry;
mod format;
mod output;
mod parquet;
mod pictures;
mod pieces;
mod prepare;
mod ready;
mod stream;
#[cfg(test)]
mod tests;
mod wanted;
mod watch;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use entry::size;
pub use format::{Format, full_ending};
use format::{Found, disagreement};
pub use ready::{Ready, needed, ready};
pub use wanted::Wanted;

/// A file that the job reads in place of a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Its folder in the cache, which is mounted as a whole.
    pub folder: PathBuf,
    /// The name of the file with the rows in it.
    pub file: String,
    /// Where the folder lies in a container.
    pub mounted: PathBuf,
    /// A folder of the host that rows name files of by their whole paths.
    pub beside: Option<PathBuf>,
    /// What lines of the file are in the original.
    pub numbering: Numbering,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// The same lines.
    SameLines,
    /// Rows, counted from 1.
    Rows,
    /// Rows, after a line of names.
    RowsAfterHeader,
}

impl Prepared {
    /// What a job said, with the original in place of the prepared file.
    pub fn with_original(&self, said: &str, original: &str) -> String {
        let mut text = said.to_owned();
        for folder in [&self.mounted, &self.folder] {
            let place = folder.join(&self.file).to_string_lossy().into_owned();
            text = self.replace(&text, &place, original);
        }
        text.replace(&*self.mounted.to_string_lossy(), &self.folder.to_string_lossy())
    }

    fn replace(&self, said: &str, place: &str, original: &str) -> String {
        let mut pieces = said.split(place);
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            text.push_str(original);
            let digits =
                piece.strip_prefix(" line ").map(|rest| (rest, rest.bytes().take_while(u8::is_ascii_digit).count()));
            let line = digits.and_then(|(rest, count)| Some((rest[..count].parse::<u64>().ok()?, &rest[count..])));
            match (self.numbering, line) {
                (Numbering::Rows, Some((line, rest))) => text.push_str(&format!(" row {line}{rest}")),
                (Numbering::RowsAfterHeader, Some((0 | 1, rest))) => text.push_str(rest),
                (Numbering::RowsAfterHeader, Some((line, rest))) => text.push_str(&format!(" row {}{rest}", line - 1)),
                (Numbering::SameLines, _) | (_, None) => text.push_str(piece),
            }
        }
        text
    }
}

/// What is wrong with a data file, as far as its first bytes tell, and of Parquet its footer.
pub fn check(path: &Path, wanted: &Wanted) -> Result<(), String> {
    let format = Format::of(path);
    // Numbers at the beginning of tensors may look like anything.
    if path.extension().is_some_and(|ending| ending == "safetensors") {
        return Ok(());
    }
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let found = Found::in_file(&mut file).map_err(|error| error.to_string())?;
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
        Format::Parquet => guarded(|| parquet::Table::open(path, wanted).map(drop)).unwrap_or_else(Err),
    }
}

/// The lines of a text file with which it begins, decompressed where need be.
pub fn first_lines(path: &Path) -> Option<Box<dyn Read>> {
    /// A file of one endless line is not read into memory.
    const MOST: u64 = 64 << 20;
    let file = File::open(path).ok()?;
    match Format::of(path) {
        Format::Plain => Some(Box::new(file.take(MOST))),
        Format::Compressed(compression) => Some(Box::new(format::decompress(compression, file).ok()?.take(MOST))),
        Format::Parquet => None,
    }
}

/// The columns of a Parquet file and its first rows as texts.
pub fn first_rows(path: &Path, rows: usize) -> Option<(Vec<String>, Vec<Vec<String>>)> {
    guarded(|| parquet::preview(path, rows)).ok().flatten()
}

/// The name of threads that read files which nobody trusts.
const THREAD: &str = "data file";
/// Schemas can be nested.
const STACK: usize = 64 << 20;

/// Does something that may panic on a bad file, and says so where it did.
fn guarded<T: Send>(read: impl FnOnce() -> T + Send) -> Result<T, String> {
    silence_panics();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).stack_size(STACK).spawn_scoped(scope, read);
        let ended = thread.map_err(|error| error.to_string())?.join();
        ended.map_err(|panic| panic_words(panic.as_ref()))
    })
}

/// What a reader that panicked says of its file.
fn panic_words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("it is damaged: {}", text.unwrap_or("its reader gave up"))
}

/// A panic on such a thread is an error of the file, and told as one.
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
    fn messages_name_the_original() {
        let prepared = |numbering| Prepared {
            folder: "/home/u/.cache/pipe/data/ab".into(),
            file: "data.jsonl".into(),
            mounted: "/pipe/prepared/ab".into(),
            beside: None,
            numbering,
        };
        for (numbering, said, want) in [
            (Numbering::Rows, "/pipe/prepared/ab/data.jsonl line 17: no field", "t.parquet row 17: no field"),
            (Numbering::Rows, "/home/u/.cache/pipe/data/ab/data.jsonl line 3: x", "t.parquet row 3: x"),
            (Numbering::Rows, "/pipe/prepared/ab/data.jsonl: the file is empty", "t.parquet: the file is empty"),
            (Numbering::SameLines, "/pipe/prepared/ab/data.jsonl line 17: no", "t.parquet line 17: no"),
            (Numbering::RowsAfterHeader, "/pipe/prepared/ab/data.jsonl line 17: no", "t.parquet row 16: no"),
            (Numbering::RowsAfterHeader, "/pipe/prepared/ab/data.jsonl line 1: no", "t.parquet: no"),
            (
                Numbering::Rows,
                "/pipe/prepared/ab/data.jsonl line 2: the picture /pipe/prepared/ab/pictures/0000/2.png: bad",
                "t.parquet row 2: the picture /home/u/.cache/pipe/data/ab/pictures/0000/2.png: bad",
            ),
            (Numbering::Rows, "nothing of it", "nothing of it"),
        ] {
            assert_eq!(prepared(numbering).with_original(said, "t.parquet"), want);
        }
    }

    #[test]
    fn panics_become_errors() {
        assert_eq!(guarded(|| 3), Ok(3));
        assert_eq!(guarded(|| -> u8 { panic!("page {}", 7) }), Err("it is damaged: page 7".to_owned()));
    }
}
