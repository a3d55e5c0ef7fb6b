//! Reading a file along while another process writes it, in little memory.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

use crate::error::Error;

pub struct Follow {
    path: PathBuf,
    offset: u64,
    partial: Vec<u8>,
}

impl Follow {
    /// As much as is read at once.
    const PART: u64 = 1 << 20;

    pub fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, partial: Vec::new() }
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
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.offset))?;
            let mut bytes = Vec::new();
            file.take(Self::PART).read_to_end(&mut bytes)?;
            std::io::Result::Ok(bytes)
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
            self.partial.extend_from_slice(&bytes);
            let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { continue };
            let rest = self.partial.split_off(end + 1);
            let whole = std::mem::replace(&mut self.partial, rest);
            return Ok(String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect());
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
}
