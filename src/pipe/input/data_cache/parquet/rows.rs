//! Rows of the columns that were picked, written one after the other.

use std::ops::Range;
use std::path::Path;

use parquet::errors::ParquetError;

use super::super::output::Conversion;
use super::super::pictures::{self, PictureRef};
use super::super::pieces::Pieces;
use super::Column;
use super::cursor::Cursor;
use super::tree::{Node, RowError, key};
use super::value::{self, Kind, Style};
use crate::error::Error;

/// The columns of a row group that is being read.
pub struct Picked<'a> {
    columns: &'a [Column],
    style: Style,
    /// The column with pictures, and the folder that their paths begin in.
    pictures: Option<(&'a str, &'a Path)>,
    cursors: Vec<Cursor>,
    /// What stands before the value of each column.
    before: Vec<Vec<u8>>,
}

impl<'a> Picked<'a> {
    pub fn new(columns: &'a [Column], style: Style, pictures: Option<(&'a str, &'a Path)>) -> Self {
        let before = |(index, column): (usize, &Column)| match style {
            Style::Csv if index == 0 => Vec::new(),
            Style::Csv => vec![b','],
            Style::Json => {
                let mut out = if index == 0 { vec![b'{'] } else { Vec::new() };
                key(&mut out, index, &column.name);
                out
            }
        };
        let before = columns.iter().enumerate().map(before).collect();
        Self { columns, style, pictures, cursors: Vec::new(), before }
    }

    pub fn set_cursors(&mut self, cursors: Vec<Cursor>) {
        self.cursors = cursors;
    }

    /// Reads so many rows of every leaf, and tells how many there were of each.
    pub fn fill(&mut self, rows: usize) -> Result<Vec<usize>, ParquetError> {
        self.cursors.iter_mut().map(|cursor| cursor.fill(rows)).collect()
    }

    /// The first line of a CSV.
    pub fn header(&self, out: &mut Vec<u8>) {
        if self.style == Style::Json {
            return;
        }
        for (index, column) in self.columns.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            value::cell(out, &column.name.replace(['\n', '\r'], " "));
        }
        out.push(b'\n');
    }

    /// The next row, the `number`th of the file.
    pub fn row(&mut self, number: u64, job: Conversion<'_>, pieces: &mut Pieces) -> Result<(), Error> {
        for (index, column) in self.columns.iter().enumerate() {
            pieces.buffer().extend_from_slice(&self.before[index]);
            let written = match self.pictures {
                Some((name, folder)) if name == column.name => match picture(&column.node, &mut self.cursors, folder) {
                    Ok(Picture::Inside(bytes)) => {
                        let (folder, name) = pictures::file_of(number, &bytes);
                        let written = json(pieces.buffer(), &format!("{folder}/{name}"));
                        pieces.file(folder, name, bytes)?;
                        written
                    }
                    Ok(Picture::Path(path)) => json(pieces.buffer(), &path),
                    Ok(Picture::None) => {
                        pieces.buffer().extend_from_slice(b"null");
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
                _ => column.node.write(pieces.buffer(), &mut self.cursors, self.style),
            };
            written.map_err(|error| {
                let name = &column.name;
                job.fail(match error {
                    RowError::Levels => format!("row {number}: the column {name:?} has fewer values than rows"),
                    RowError::Value(found) => format!("row {number}: the column {name:?} holds {found}"),
                })
            })?;
        }
        pieces.buffer().extend_from_slice(if self.style == Style::Json { b"}\n" } else { b"\n" });
        pieces.row_done()
    }

    /// The next row as texts; what cannot be one is empty.
    pub fn cells(&mut self) -> Vec<String> {
        let Self { columns, cursors, .. } = self;
        let cell = |column: &Column| {
            let mut out = Vec::new();
            let written = column.node.write(&mut out, cursors, Style::Csv).is_ok();
            if written { String::from_utf8(out).unwrap_or_default() } else { String::new() }
        };
        columns.iter().map(cell).collect()
    }
}

fn json(out: &mut Vec<u8>, text: &str) -> Result<(), RowError> {
    value::text(out, text, Style::Json).map_err(RowError::Value)
}

/// What a row has as its picture.
enum Picture {
    /// The bytes of a picture file.
    Inside(Vec<u8>),
    Path(String),
    None,
}

/// Where the parts of a picture stand in its column.
pub enum Parts {
    /// One value: the bytes of a picture, or its path.
    One(usize, Kind),
    /// A group as the `datasets` library writes it: bytes, and a path in their place.
    Group { leaves: Range<usize>, bytes: usize, path: Option<usize> },
}

/// How pictures are stored in a column; or what it holds instead.
pub fn picture_parts(node: &Node) -> Result<Parts, &'static str> {
    let leaf = |fields: &[(String, Node)], role: &str| {
        fields.iter().find_map(|(name, field)| match field {
            Node::Value { leaf, kind: Kind::Text | Kind::Bytes } if name == role => Some(*leaf),
            _ => None,
        })
    };
    match node {
        Node::Value { leaf, kind: kind @ (Kind::Text | Kind::Bytes) } => Ok(Parts::One(*leaf, *kind)),
        Node::Value { kind: Kind::Signed | Kind::Unsigned, .. } => {
            Err("holds numbers; images.safetensors is found only beside a plain .jsonl or .csv file")
        }
        Node::Group { fields, leaves, .. } if fields.iter().all(|(_, field)| matches!(field, Node::Value { .. })) => {
            match leaf(fields, "bytes") {
                Some(bytes) => Ok(Parts::Group { leaves: leaves.clone(), bytes, path: leaf(fields, "path") }),
                None => Err("is a group without `bytes`; pictures are {bytes, path}, bytes, or paths"),
            }
        }
        _ => Err("holds no pictures: these are {bytes, path}, bytes, or paths"),
    }
}

fn picture(node: &Node, cursors: &mut [Cursor], folder: &Path) -> Result<Picture, RowError> {
    let wrong = |message: &str| RowError::Value(message.to_owned());
    let path = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("a path that is no text in UTF-8"))?;
        match pictures::picture_ref(text) {
            PictureRef::Path => Ok(Picture::Path(pictures::whole_path(folder, text))),
            PictureRef::Number => {
                Err(wrong("the number of a picture; images.safetensors is found only beside plain files"))
            }
        }
    };
    match picture_parts(node).map_err(wrong)? {
        Parts::One(leaf, kind) => {
            let Some(index) = cursors[leaf].take()? else { return Ok(Picture::None) };
            let bytes = value::bytes(cursors[leaf].values(), index).unwrap_or_default();
            match kind {
                Kind::Bytes if pictures::ending(bytes).is_some() => Ok(Picture::Inside(bytes.to_vec())),
                Kind::Bytes if std::str::from_utf8(bytes).is_err() => {
                    Err(wrong("bytes that are neither a picture nor a path"))
                }
                _ => path(bytes),
            }
        }
        Parts::Group { leaves, bytes, path: other } => {
            let mut places = Vec::new();
            for leaf in leaves.clone() {
                places.push(cursors[leaf].take()?);
            }
            let data = |leaf: usize| {
                let index = places[leaf - leaves.start]?;
                value::bytes(cursors[leaf].values(), index).filter(|data| !data.is_empty())
            };
            match (data(bytes), other.and_then(data)) {
                (Some(picture), _) => Ok(Picture::Inside(picture.to_vec())),
                (None, Some(name)) => path(name),
                (None, None) => Ok(Picture::None),
            }
        }
    }
}
