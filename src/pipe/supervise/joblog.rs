//! `log.txt` of an attempt: everything that its job wrote, each line once.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use pipe_spec::text::human_bytes;

use crate::error::Error;

pub struct JobLog {
    path: PathBuf,
    file: File,
    /// Lines that were written by a `pipe` that is gone and that the engine gives again.
    known: u64,
    /// Bytes, and how many there may be.
    size: u64,
    limit: u64,
}

/// A job that writes without end does not fill the disk with it.
const LIMIT: u64 = 4 << 30;

impl JobLog {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let write_error = |source| Error::Write { path: path.to_owned(), source };
        let mut file = File::options().create(true).read(true).append(true).open(path).map_err(write_error)?;
        let (known, whole) = whole_lines(&mut file).map_err(write_error)?;
        file.set_len(whole).map_err(write_error)?;
        Ok(Self { path: path.to_owned(), file, known, size: whole, limit: LIMIT })
    }

    pub fn write(&mut self, line: &str) -> Result<(), Error> {
        if self.known > 0 {
            self.known -= 1;
            return Ok(());
        }
        if self.size >= self.limit {
            return Ok(());
        }
        self.size += line.len() as u64 + 1;
        let end = match self.size < self.limit {
            true => String::new(),
            false => format!("the log is longer than {}: what follows is left out\n", human_bytes(self.limit)),
        };
        write!(self.file, "{line}\n{end}").map_err(|source| Error::Write { path: self.path.clone(), source })
    }
}

/// How many lines a file has, and how many bytes they are, without one that was cut off.
fn whole_lines(file: &mut File) -> std::io::Result<(u64, u64)> {
    let mut reader = BufReader::new(file);
    let (mut lines, mut bytes, mut read) = (0, 0, 0);
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok((lines, bytes));
        }
        for (index, _) in buffer.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            lines += 1;
            bytes = read + index as u64 + 1;
        }
        let length = buffer.len();
        read += length as u64;
        reader.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_again_is_written_once() {
        let path = std::env::temp_dir().join(format!("pipe-joblog-{}", std::process::id()));
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let mut log = JobLog::open(&path).unwrap();
        for line in ["one", "two", "three", "four"] {
            log.write(line).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\nfour\n");
        log.limit = 30;
        ["five", "six", "seven", "eight"].iter().for_each(|line| log.write(line).unwrap());
        let end = "five\nsix\nseven\nthe log is longer than 30 B: what follows is left out\n";
        assert!(std::fs::read_to_string(&path).unwrap().ends_with(end));
        std::fs::remove_file(&path).unwrap();
    }
}
