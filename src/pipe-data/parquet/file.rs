//! A file that several threads read at once, each where it wants. An open file of the standard library has one place for all.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

pub struct SharedFile {
    file: Arc<File>,
    length: u64,
}

impl SharedFile {
    pub fn new(file: File) -> io::Result<Self> {
        Ok(Self { length: file.metadata()?.len(), file: Arc::new(file) })
    }
}

impl Length for SharedFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for SharedFile {
    type T = BufReader<FileCursor>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(BufReader::new(FileCursor { file: self.file.clone(), next: start }))
    }

    /// What a damaged file says is longer than itself is not given memory.
    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let end = start.checked_add(length as u64).filter(|end| *end <= self.length);
        if end.is_none() {
            let message = format!("{length} bytes at {start}, and the file has {}", self.length);
            return Err(ParquetError::EOF(message));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// A reader with a position of its own.
pub struct FileCursor {
    file: Arc<File>,
    next: u64,
}

impl Read for FileCursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.next)?;
        self.next += count as u64;
        Ok(count)
    }
}
