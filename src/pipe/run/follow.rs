//! Reading a file along while another process writes it, in little memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

use super::job_file;
use crate::error::Error;

pub struct Follow {
    path: PathBuf,
    written_by: Writer,
    offset: u64,
    partial: Vec<u8>,
    /// Whether the line that is being read was too long, so that the rest of it is passed over.
    too_long: bool,
}

/// Who writes the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Runner,
    Job,
}

impl Follow {
    /// As much as is read at once.
    const CHUNK: u64 = 1 << 20;
    /// A line longer than this is left out.
    const MAX_LINE: usize = 8 << 20;

    pub fn new(path: PathBuf) -> Self {
        Self { path, written_by: Writer::Runner, offset: 0, partial: Vec::new(), too_long: false }
    }

    /// A file that a job writes, and that is not to be trusted.
    pub fn of_job(path: PathBuf) -> Self {
        Self { written_by: Writer::Job, ..Self::new(path) }
    }

    /// Passes over what is there.
    pub fn skip(&mut self) -> Result<(), Error> {
        match std::fs::metadata(&self.path) {
            Ok(found) => self.offset = found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Read { path: self.path.clone(), source }),
        }
        Ok(())
    }

    /// The next bytes, some at a time; none where nothing was added. A file that is not there yet is an empty one.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        let read = || {
            let mut file = self.open()?;
            file.seek(SeekFrom::Start(self.offset))?;
            let mut bytes = Vec::new();
            file.take(Self::CHUNK).read_to_end(&mut bytes)?;
            io::Result::Ok(bytes)
        };
        match read() {
            Ok(bytes) => {
                self.offset += bytes.len() as u64;
                Ok(bytes)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(Error::Read { path: self.path.clone(), source }),
        }
    }

    /// The next whole lines, some at a time; none where no line was added.
    pub fn lines(&mut self) -> Result<Vec<String>, Error> {
        loop {
            let bytes = self.bytes()?;
            if bytes.is_empty() {
                return Ok(Vec::new());
            }
            let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
                self.keep(&bytes);
                continue;
            };
            let (whole, rest) = bytes.split_at(end + 1);
            let mut text = std::mem::take(&mut self.partial);
            let whole = match std::mem::take(&mut self.too_long) {
                false => whole,
                true => &whole[whole.iter().position(|byte| *byte == b'\n').map_or(0, |first| first + 1)..],
            };
            text.extend_from_slice(whole);
            self.keep(rest);
            return Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect());
        }
    }

    /// Keeps the beginning of a line whose end was not written yet.
    fn keep(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > Self::MAX_LINE {
            self.partial = Vec::new();
            self.too_long = true;
        }
        if self.too_long {
            self.partial.clear();
        }
    }

    fn open(&self) -> io::Result<File> {
        match (self.written_by, self.path.parent(), self.path.file_name().and_then(|name| name.to_str())) {
            (Writer::Job, Some(folder), Some(name)) => job_file::open(folder, name),
            _ => File::open(&self.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_when_they_are_whole() {
        let path = std::env::temp_dir().join(format!("pipe-follow-{}", std::process::id()));
        let mut follow = Follow::new(path.clone());
        assert!(follow.lines().unwrap().is_empty());
        for (text, want) in [("one\ntw", vec!["one"]), ("one\ntwo\n", vec!["two"]), ("one\ntwo\n", vec![])] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(follow.lines().unwrap(), want);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_endless_line_is_left_out() {
        let path = std::env::temp_dir().join(format!("pipe-follow-endless-{}", std::process::id()));
        let endless = "x".repeat(Follow::MAX_LINE + Follow::MAX_LINE / 2);
        std::fs::write(&path, format!("first\n{endless}\nlast\n")).unwrap();
        let mut follow = Follow::of_job(path.clone());
        let mut lines = Vec::new();
        loop {
            let more = follow.lines().unwrap();
            assert!(follow.partial.len() <= Follow::MAX_LINE);
            if more.is_empty() {
                break;
            }
            lines.extend(more);
        }
        assert_eq!(lines, ["first", "last"]);
        std::fs::remove_file(&path).unwrap();
    }
}
