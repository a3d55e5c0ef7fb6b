//! The schema of a column as a tree, and its rows put together from the levels of its leaves (Dremel's record assembly).

use std::ops::Range;

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::Type;

use super::cursor::{Cursor, Exhausted};
use super::value::{self, Kind, Style};

/// Deeper schemas are refused.
const MAX_DEPTH: usize = 32;

/// A field of the schema. Leaves are numbered as the cursors that read them.
#[derive(Debug)]
pub enum Node {
    Value {
        leaf: usize,
        kind: Kind,
    },
    /// `present` is the definition level from which on it is there.
    Group {
        present: i16,
        fields: Vec<(String, Node)>,
        leaves: Range<usize>,
    },
    /// There from `present` on, with items from `filled` on; `level` is the repetition level of further items.
    List {
        present: i16,
        filled: i16,
        level: i16,
        item: Box<Node>,
        leaves: Range<usize>,
    },
    /// A list of keys with values.
    Map {
        present: i16,
        filled: i16,
        level: i16,
        entry: Box<[Node; 2]>,
        leaves: Range<usize>,
    },
}

/// Why a row could not be written.
pub enum RowError {
    Levels,
    Value(String),
}

impl From<Exhausted> for RowError {
    fn from(_: Exhausted) -> Self {
        Self::Levels
    }
}

/// Numbers leaves while a tree is made.
pub struct Builder {
    next: usize,
    depth: usize,
}

#[derive(Clone, Copy)]
struct Levels {
    definition: i16,
    repetition: i16,
}

impl Builder {
    /// Leaves are numbered from `first` on.
    pub fn new(first: usize) -> Self {
        Self { next: first, depth: 0 }
    }

    /// The tree of a top-level column; or why it cannot be read.
    pub fn column(&mut self, field: &Type) -> Result<Node, String> {
        self.field(field, Levels { definition: 0, repetition: 0 })
    }

    fn field(&mut self, field: &Type, above: Levels) -> Result<Node, String> {
        let info = field.get_basic_info();
        let repetition = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
        match repetition {
            Repetition::REQUIRED => self.content(field, above),
            Repetition::OPTIONAL => self.content(field, Levels { definition: above.definition + 1, ..above }),
            // Outside of a list that says so, a field that repeats is a list of its own.
            Repetition::REPEATED => self.list(above, |builder, inside| builder.content(field, inside)),
        }
    }

    fn content(&mut self, field: &Type, levels: Levels) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        let node = match (field.is_primitive(), annotation(field)) {
            (true, _) => {
                self.next += 1;
                Node::Value { leaf: self.next - 1, kind: Kind::from_type(field)? }
            }
            (false, Annotation::List) => match field.get_fields() {
                [repeated] if repeats(repeated) => self.list(levels, |builder, inside| match element(repeated) {
                    Some(element) => builder.field(element, inside),
                    None => builder.content(repeated, inside),
                })?,
                _ => self.group(field, levels)?,
            },
            (false, Annotation::Map) => match field.get_fields() {
                [entry] if repeats(entry) && entry.is_group() && entry.get_fields().len() == 2 => {
                    self.map(entry, levels)?
                }
                _ => self.group(field, levels)?,
            },
            (false, Annotation::None) => self.group(field, levels)?,
        };
        self.depth -= 1;
        Ok(node)
    }

    fn group(&mut self, field: &Type, levels: Levels) -> Result<Node, String> {
        let first = self.next;
        let mut fields = Vec::new();
        for child in field.get_fields() {
            fields.push((child.name().to_owned(), self.field(child, levels)?));
        }
        match self.next == first {
            true => Err(format!("the group {:?} has no columns", field.name())),
            false => Ok(Node::Group { present: levels.definition, fields, leaves: first..self.next }),
        }
    }

    fn list(
        &mut self,
        above: Levels,
        item: impl FnOnce(&mut Self, Levels) -> Result<Node, String>,
    ) -> Result<Node, String> {
        let first = self.next;
        let inside = Levels { definition: above.definition + 1, repetition: above.repetition + 1 };
        let item = Box::new(item(self, inside)?);
        Ok(Node::List {
            present: above.definition,
            filled: inside.definition,
            level: inside.repetition,
            item,
            leaves: first..self.next,
        })
    }

    fn map(&mut self, entry: &Type, above: Levels) -> Result<Node, String> {
        let first = self.next;
        let inside = Levels { definition: above.definition + 1, repetition: above.repetition + 1 };
        let [key, value] = [&entry.get_fields()[0], &entry.get_fields()[1]].map(|field| self.field(field, inside));
        Ok(Node::Map {
            present: above.definition,
            filled: inside.definition,
            level: inside.repetition,
            entry: Box::new([key?, value?]),
            leaves: first..self.next,
        })
    }
}

enum Annotation {
    List,
    Map,
    None,
}

fn annotation(field: &Type) -> Annotation {
    let info = field.get_basic_info();
    match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::List), _) | (_, ConvertedType::LIST) => Annotation::List,
        (Some(LogicalType::Map), _) | (_, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => Annotation::Map,
        _ => Annotation::None,
    }
}

fn repeats(field: &Type) -> bool {
    field.get_basic_info().has_repetition() && field.get_basic_info().repetition() == Repetition::REPEATED
}

/// The element of a list, unless the field that repeats is the element itself, as older writers have it.
/// <https://github.com/apache/parquet-format/blob/master/LogicalTypes.md#lists>
fn element(repeated: &Type) -> Option<&Type> {
    let is_old = |name: &str| name == "array" || name.ends_with("_tuple");
    match repeated.is_group() && !is_old(repeated.name()) {
        true if repeated.get_fields().len() == 1 => Some(&repeated.get_fields()[0]),
        _ => None,
    }
}

impl Node {
    pub fn leaves(&self) -> Range<usize> {
        match self {
            Self::Value { leaf, .. } => *leaf..leaf + 1,
            Self::Group { leaves, .. } | Self::List { leaves, .. } | Self::Map { leaves, .. } => leaves.clone(),
        }
    }

    /// Writes this field of the next row.
    pub fn write(&self, out: &mut Vec<u8>, cursors: &mut [Cursor], style: Style) -> Result<(), RowError> {
        match self {
            Self::Value { leaf, kind } => match cursors[*leaf].take()? {
                Some(index) => kind.write(out, cursors[*leaf].values(), index, style).map_err(RowError::Value),
                None => {
                    out.extend_from_slice(if style == Style::Json { b"null" } else { b"" });
                    Ok(())
                }
            },
            Self::Group { present, fields, leaves } => {
                if self.is_absent(out, cursors, *present, b"null")? {
                    return Ok(());
                }
                debug_assert!(!leaves.is_empty());
                out.push(b'{');
                for (index, (name, field)) in fields.iter().enumerate() {
                    key(out, index, name);
                    field.write(out, cursors, style)?;
                }
                out.push(b'}');
                Ok(())
            }
            Self::List { present, filled, level, item, leaves } => {
                if self.is_absent(out, cursors, *present, b"null")? || self.is_absent(out, cursors, *filled, b"[]")? {
                    return Ok(());
                }
                let mut separator = b'[';
                loop {
                    out.push(separator);
                    item.write(out, cursors, style)?;
                    if cursors[leaves.start].repetition() != *level {
                        break;
                    }
                    separator = b',';
                }
                out.push(b']');
                Ok(())
            }
            Self::Map { present, filled, level, entry, leaves } => {
                if self.is_absent(out, cursors, *present, b"null")? || self.is_absent(out, cursors, *filled, b"{}")? {
                    return Ok(());
                }
                let [keys, values] = entry.as_ref();
                let mut separator = b'{';
                loop {
                    out.push(separator);
                    let mut name = Vec::new();
                    keys.write(&mut name, cursors, style)?;
                    // The names of an object are texts, whatever the keys of a map are.
                    match name.first() {
                        Some(b'"') => out.extend_from_slice(&name),
                        _ => value::text(out, &String::from_utf8_lossy(&name), Style::Json).map_err(RowError::Value)?,
                    }
                    out.push(b':');
                    values.write(out, cursors, style)?;
                    if cursors[leaves.start].repetition() != *level {
                        break;
                    }
                    separator = b',';
                }
                out.push(b'}');
                Ok(())
            }
        }
    }

    /// Whether it is not there, which takes a level of every leaf and writes `text`.
    fn is_absent(
        &self,
        out: &mut Vec<u8>,
        cursors: &mut [Cursor],
        present: i16,
        text: &[u8],
    ) -> Result<bool, RowError> {
        let leaves = self.leaves();
        if cursors[leaves.start].definition()? >= present {
            return Ok(false);
        }
        cursors[leaves].iter_mut().try_for_each(|cursor| cursor.take().map(drop))?;
        out.extend_from_slice(text);
        Ok(true)
    }
}

/// The name of a field of an object, with what stands around it.
pub fn key(out: &mut Vec<u8>, index: usize, name: &str) {
    if index > 0 {
        out.push(b',');
    }
    serde_json::to_writer(&mut *out, name).expect("memory takes everything");
    out.push(b':');
}
