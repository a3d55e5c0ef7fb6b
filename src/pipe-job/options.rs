//! The options of the modes of `pipe-job` that carry files: names with values.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

pub struct Flags(Vec<(String, String)>);

impl Flags {
    pub fn parse(args: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let words: Option<Vec<String>> = args.map(|word| word.into_string().ok()).collect();
        let words = words.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()))
    }

    pub fn text(&self, name: &str) -> io::Result<&str> {
        let found = self.0.iter().find(|(flag, _)| flag == name);
        found.map(|(_, value)| value.as_str()).ok_or_else(|| io::Error::other(format!("{name} is missing")))
    }

    pub fn path(&self, name: &str) -> io::Result<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    pub fn number(&self, name: &str) -> io::Result<u64> {
        self.text(name)?.parse().map_err(|_| io::Error::other(format!("{name} is no number")))
    }
}
