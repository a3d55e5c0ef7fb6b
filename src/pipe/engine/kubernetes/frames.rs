//! The frames in which files travel between `pipe` and a pod, as `src/pipe-job/frames.rs` has them.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const HEADER: usize = 27;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Have,
    File,
    Program,
    Sparse,
    Append,
    Folder,
    Removed,
    Complete,
    End,
    Alive,
}

const KINDS: [(Kind, u8); 10] = [
    (Kind::Have, b'H'),
    (Kind::File, b'F'),
    (Kind::Program, b'X'),
    (Kind::Sparse, b'S'),
    (Kind::Append, b'A'),
    (Kind::Folder, b'D'),
    (Kind::Removed, b'R'),
    (Kind::Complete, b'C'),
    (Kind::End, b'E'),
    (Kind::Alive, b'K'),
];

/// The beginning of a frame; `size` bytes follow one that has data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub path: String,
    pub size: u64,
    pub offset: u64,
    pub changed: i64,
}

impl Frame {
    pub fn of(kind: Kind, path: impl Into<String>) -> Self {
        Self { kind, path: path.into(), size: 0, offset: 0, changed: 0 }
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(b'K', |(_, byte)| *byte);
        let length = u16::try_from(self.path.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut bytes = Vec::with_capacity(HEADER + self.path.len());
        bytes.push(kind);
        bytes.extend(length.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.changed.to_le_bytes());
        bytes.extend(self.path.as_bytes());
        Ok(bytes)
    }

    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        to.write_all(&self.bytes()?).await
    }

    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut header = [0; HEADER];
        from.read_exact(&mut header).await?;
        let kind = KINDS.iter().find(|(_, byte)| *byte == header[0]).ok_or(io::ErrorKind::InvalidData)?.0;
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let mut path = vec![0; usize::from(u16::from_le_bytes([header[1], header[2]]))];
        from.read_exact(&mut path).await?;
        let path = String::from_utf8(path).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Self { kind, path, size: number(3), offset: number(11), changed: number(19).cast_signed() })
    }

    /// Whether the path leads to something below the folder that it belongs to.
    pub fn is_inside(&self) -> bool {
        self.path.split('/').all(|part| !matches!(part, "" | "." | ".."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let frame = Frame { size: 7, offset: 1 << 40, changed: -5, ..Frame::of(Kind::Append, "job/output") };
        let mut bytes = Vec::new();
        frame.write(&mut bytes).await.unwrap();
        Frame::of(Kind::End, "").write(&mut bytes).await.unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(Frame::read(&mut from).await.unwrap(), frame);
        assert_eq!(Frame::read(&mut from).await.unwrap().kind, Kind::End);
        assert!(Frame::read(&mut from).await.is_err());
        assert!(Frame::read(&mut [b'?'; HEADER].as_slice()).await.is_err());
    }

    #[test]
    fn a_pod_writes_to_no_other_folder() {
        for (path, want) in
            [("job/output", true), ("../x", false), ("job//x", false), ("/etc/x", false), ("a/./b", false)]
        {
            assert_eq!(Frame::of(Kind::File, path).is_inside(), want, "{path}");
        }
    }
}
