//! What a file of the hub holds, by the hash that the hub itself names it with.

use std::fmt::Write;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::address::is_hex;

/// The hub's name for a content, and that of its file in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentHash(String);

impl ContentHash {
    /// Reads an ETag, `blobId` or `lfs.sha256`: 64 hexadecimal digits are SHA-256 (large files, Git LFS), 40 are SHA-1 as
    /// git computes it (all others). Nothing for any other text, which could not be checked.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches("W/").trim_matches('"');
        (matches!(text.len(), 40 | 64) && is_hex(text)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Computes the same kind of hash, of a content of `size` bytes.
    pub fn hasher(&self, size: u64) -> Hasher {
        match self.0.len() {
            64 => Hasher::Sha256(Sha256::new()),
            _ => Hasher::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }
}

pub enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
        }
    }

    pub fn finish(self) -> ContentHash {
        let bytes = match self {
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::Git(hasher) => hasher.finalize().to_vec(),
        };
        ContentHash(bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String takes all that is written");
            text
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_lfs() {
        // `printf hello | git hash-object --stdin` and `printf hello | sha256sum`.
        for hash in [
            "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0",
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        ] {
            let want = ContentHash::parse(&format!("W/\"{hash}\"")).unwrap();
            let mut hasher = want.hasher(5);
            hasher.update(b"hel");
            hasher.update(b"lo");
            assert_eq!(hasher.finish(), want);
        }
    }

    #[test]
    fn what_cannot_be_checked_is_no_hash() {
        for text in ["", "\"abc\"", "../../x", &"g".repeat(40), &"A".repeat(64)] {
            assert_eq!(ContentHash::parse(text), None, "{text}");
        }
    }
}
