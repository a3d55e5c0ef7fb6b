//! The schema of a column as a tree of kinds, and the records that the crate's reader makes of it as JSON or cells of a CSV.

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::record::Field;
use parquet::schema::types::Type;

use super::value::{self, Kind, Style};

/// Deeper schemas are refused.
const MAX_DEPTH: usize = 32;

#[derive(Debug)]
pub enum Shape {
    Value(Kind),
    Group(Vec<Shape>),
    List(Box<Shape>),
    Map(Box<[Shape; 2]>),
    /// Numbers of classes, which are written as the names that they have.
    Class(Vec<String>),
}

impl Shape {
    /// The tree of a top-level column; or why it cannot be read.
    pub fn from_column(field: &Type) -> Result<Self, String> {
        Self::field(field, 0)
    }

    fn field(field: &Type, depth: usize) -> Result<Self, String> {
        let content = Self::content(field, depth + 1)?;
        // Outside of a list that says so, a field that repeats is a list of its own.
        Ok(if repeats(field) { Self::List(Box::new(content)) } else { content })
    }

    fn content(field: &Type, depth: usize) -> Result<Self, String> {
        if depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        if field.is_primitive() {
            return Ok(Self::Value(Kind::from_type(field)?));
        }
        let fields = field.get_fields();
        match (annotation(field), fields) {
            (Annotation::List, [repeated]) if repeats(repeated) => {
                let item = match element(repeated) {
                    Some(element) => Self::field(element, depth),
                    None => Self::content(repeated, depth),
                };
                Ok(Self::List(Box::new(item?)))
            }
            (Annotation::Map, [entry]) if repeats(entry) && entry.is_group() => match entry.get_fields() {
                [key] => Ok(Self::List(Box::new(Self::field(key, depth)?))),
                [key, value] => Ok(Self::Map(Box::new([Self::field(key, depth)?, Self::field(value, depth)?]))),
                more => Err(format!("its map {:?} has entries of {} fields", field.name(), more.len())),
            },
            (Annotation::List | Annotation::Map, _) => {
                Err(format!("its {:?} is called a list or a map, and does not repeat one field", field.name()))
            }
            (Annotation::None, []) => Err(format!("the group {:?} has no columns", field.name())),
            (Annotation::None, fields) => {
                Ok(Self::Group(fields.iter().map(|child| Self::field(child, depth)).collect::<Result<_, _>>()?))
            }
        }
    }

    /// A list of whole numbers as one of classes with these names; any other shape as it is.
    pub fn with_names(self, names: Vec<String>) -> Self {
        match self {
            Self::List(item) if matches!(*item, Self::Value(Kind::Signed | Kind::Unsigned)) => {
                Self::List(Box::new(Self::Class(names)))
            }
            other => other,
        }
    }

    /// Whether there are bytes that are no text anywhere in it.
    pub fn holds_bytes(&self) -> bool {
        match self {
            Self::Value(kind) => *kind == Kind::Bytes,
            Self::Class(_) => false,
            Self::Group(shapes) => shapes.iter().any(Self::holds_bytes),
            Self::List(item) => item.holds_bytes(),
            Self::Map(shapes) => shapes.iter().any(Self::holds_bytes),
        }
    }

    /// Writes what a row has; or says why that cannot be done.
    pub fn write(&self, out: &mut Vec<u8>, field: &Field, style: Style) -> Result<(), String> {
        match (self, field) {
            (_, Field::Null) => out.extend_from_slice(if style == Style::Json { b"null" } else { b"" }),
            (Self::Value(kind), field) => kind.write(out, field, style)?,
            (Self::Class(names), field) => {
                let name = value::whole(field).and_then(|number| names.get(usize::try_from(number).ok()?));
                match name {
                    Some(name) => value::text(out, name, style)?,
                    None => Kind::Signed.write(out, field, style)?,
                }
            }
            (Self::Group(shapes), Field::Group(row)) => {
                out.push(b'{');
                for (index, (shape, (name, field))) in shapes.iter().zip(row.get_column_iter()).enumerate() {
                    key(out, index, name);
                    shape.write(out, field, style)?;
                }
                out.push(b'}');
            }
            (Self::List(item), Field::ListInternal(list)) => {
                out.push(b'[');
                item.write_items(out, list.elements(), style, true)?;
                out.push(b']');
            }
            (Self::Map(shapes), Field::MapInternal(map)) => {
                let [keys, values] = shapes.as_ref();
                out.push(b'{');
                for (index, (key, value)) in map.entries().iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    let mut name = Vec::new();
                    keys.write(&mut name, key, style)?;
                    // The names of an object are texts, whatever the keys of a map are.
                    match name.first() {
                        Some(b'"') => out.extend_from_slice(&name),
                        _ => value::text(out, &String::from_utf8_lossy(&name), Style::Json)?,
                    }
                    out.push(b':');
                    values.write(out, value, style)?;
                }
                out.push(b'}');
            }
            (shape, field) => return Err(format!("{field}, which is not of the kind {shape:?}")),
        }
        Ok(())
    }

    /// The items of a list. The crate's reader puts those of lists without a group for the element into a list once more
    /// (<https://github.com/apache/arrow-rs/issues/2394>).
    fn write_items(&self, out: &mut Vec<u8>, items: &[Field], style: Style, first: bool) -> Result<(), String> {
        let mut first = first;
        for item in items {
            match (self, item) {
                (Self::List(_), _) => {}
                (_, Field::ListInternal(inner)) => {
                    self.write_items(out, inner.elements(), style, first)?;
                    first = false;
                    continue;
                }
                _ => {}
            }
            if !first {
                out.push(b',');
            }
            first = false;
            self.write(out, item, style)?;
        }
        Ok(())
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

/// The element of a list, unless the field that repeats is the element itself, as older writers have it. The crate's reader
/// follows the same rules.
/// <https://github.com/apache/parquet-format/blob/master/LogicalTypes.md#lists>
fn element(repeated: &Type) -> Option<&Type> {
    let is_old = |name: &str| name == "array" || name.ends_with("_tuple");
    match repeated.is_group() && !is_old(repeated.name()) {
        true if repeated.get_fields().len() == 1 => Some(&repeated.get_fields()[0]),
        _ => None,
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
