//! Bytes from front to back. A length in a file is compared with the bytes that are there before it is used.

pub struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    pub fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let rest = &self.all[self.at..];
        match usize::try_from(count).ok().and_then(|count| rest.get(..count)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(format!("it ends after {} bytes, where {count} more should follow", self.all.len())),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N as u64).map(|bytes| bytes.try_into().unwrap_or_else(|_| panic!("{N} bytes were taken")))
    }

    pub fn u8(&mut self) -> Result<u8, String> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, String> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn i32(&mut self) -> Result<i32, String> {
        self.array().map(i32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self, count: u64) -> Result<&'a str, String> {
        std::str::from_utf8(self.take(count)?).map_err(|_| "it has a text that is not UTF-8".to_owned())
    }

    /// A text up to the end of its line, which must come within `most` bytes.
    pub fn line(&mut self, most: usize) -> Result<&'a str, String> {
        let rest = &self.all[self.at..];
        let length = rest.iter().take(most).position(|byte| *byte == b'\n').ok_or("it has a name without an end")?;
        let text = self.text(length as u64)?;
        self.at += 1;
        Ok(text)
    }
}
