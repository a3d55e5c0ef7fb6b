//! The values that a pickle of weights is made of, and the tensors among them.

use std::collections::BTreeMap;

use tch::Kind;

/// Dimensions of a tensor at most, as in torch.
const MOST_DIMENSIONS: usize = 64;

/// The storage that a persistent id names: ("storage", class, key, location, elements[, view]).
pub fn storage<'a>(objects: &Objects<'a>, id: Value<'a>) -> Result<Storage<'a>, String> {
    let wrong = || "a storage is described in an unknown way".to_owned();
    let (&[Value::Text("storage"), Value::Class(class), Value::Text(key), _, Value::Int(elements)], view) =
        objects.items(id).and_then(|items| items.split_first_chunk()).ok_or_else(wrong)?
    else {
        return Err(wrong());
    };
    let kind = match class {
        Class::Storage(kind) => Some(kind),
        Class::UntypedStorage => None,
        _ => return Err(wrong()),
    };
    let natural = |value: Value<'_>| match value {
        Value::Int(value) => u64::try_from(value).map_err(|_| wrong()),
        _ => Err(wrong()),
    };
    let (offset, elements) = match view {
        [] | [Value::None] => (0, natural(Value::Int(elements))?),
        [view] => match objects.items(*view) {
            Some([_, offset, size]) => (natural(*offset)?, natural(*size)?),
            _ => return Err(wrong()),
        },
        _ => return Err(wrong()),
    };
    Ok(Storage { key, kind, elements, offset })
}

/// The result of a call of `class` with the tuple `args`.
pub fn call<'a>(objects: &mut Objects<'a>, class: Class, args: Value<'a>) -> Result<Value<'a>, String> {
    let wrong = || format!("{class:?} is called in an unknown way");
    let given = objects.items(args).ok_or_else(wrong)?;
    match (class, given) {
        (Class::OrderedDict, []) => Ok(objects.add(Object::Dict(Vec::new()))),
        // As Python 2 writes it: a list of pairs.
        (Class::OrderedDict, &[list]) => {
            let pair = |item: &Value<'a>| match objects.items(*item) {
                Some(&[key, value]) => Ok((key, value)),
                _ => Err(wrong()),
            };
            let pairs = objects.items(list).ok_or_else(wrong)?.iter().map(pair).collect::<Result<_, _>>()?;
            Ok(objects.add(Object::Dict(pairs)))
        }
        (Class::Size, &[sizes]) if objects.items(sizes).is_some() => Ok(sizes),
        (Class::RebuildParameter, &[data, ..]) if matches!(objects.get(data), Some(Object::Tensor(_))) => Ok(data),
        (Class::RebuildTensor, &[storage, offset, sizes, strides, ref more @ ..]) => {
            let kind = more.iter().find_map(|value| match value {
                Value::Class(Class::Dtype(kind)) => Some(*kind),
                _ => None,
            });
            let tensor = tensor(objects, storage, kind, [offset, sizes, strides])?;
            Ok(objects.add(Object::Tensor(tensor)))
        }
        _ => Err(wrong()),
    }
}

fn tensor<'a>(
    objects: &Objects<'a>,
    storage: Value<'a>,
    dtype: Option<Kind>,
    [offset, sizes, strides]: [Value<'a>; 3],
) -> Result<Tensor, String> {
    let (Value::Object(number), Some(Object::Storage(found))) = (storage, objects.get(storage)) else {
        return Err("a tensor has no storage".to_owned());
    };
    let kind = dtype.or(found.kind).ok_or("a tensor of an untyped storage has no dtype")?;
    let (shape, strides) = (naturals(objects, sizes)?, naturals(objects, strides)?);
    let Value::Int(offset @ 0..) = offset else { return Err("a tensor begins nowhere in its storage".to_owned()) };
    if shape.len() != strides.len() || shape.len() > MOST_DIMENSIONS {
        return Err(format!("a tensor has {} dimensions and {} strides", shape.len(), strides.len()));
    }
    // The offset of the last element; nothing where there is none, or it is beyond all memory.
    let last = || {
        let steps = shape.iter().zip(&strides);
        steps.into_iter().try_fold(offset, |end, (size, stride)| end.checked_add((size - 1).checked_mul(*stride)?))
    };
    let elements = if shape.contains(&0) { Some(offset) } else { last().and_then(|last| last.checked_add(1)) };
    let size = kind.elt_size_in_bytes() as u64;
    let bytes = |elements: i64| (elements as u64).checked_mul(size);
    let room = found.elements.checked_mul(found.element_size());
    match (bytes(offset), elements.and_then(bytes), room) {
        (Some(start), Some(end), Some(room)) if end <= room => {
            Ok(Tensor { storage: number, kind, shape, strides, start, end })
        }
        _ => Err(format!("a tensor of shape {shape:?} does not fit in its storage of {} elements", found.elements)),
    }
}

fn naturals<'a>(objects: &Objects<'a>, value: Value<'a>) -> Result<Vec<i64>, String> {
    let natural = |item: &Value<'a>| match item {
        Value::Int(size @ 0..) => Some(*size),
        _ => None,
    };
    let numbers = objects.items(value).and_then(|items| items.iter().map(natural).collect());
    numbers.ok_or_else(|| "the shape of a tensor is not a list of sizes".to_owned())
}

/// The tensors of a state dict, which is all of the file or its entry `state_dict`. `offset_of` says where in the file the bytes of
/// a storage begin.
pub fn locate<'a>(
    objects: &Objects<'a>,
    root: Value<'a>,
    mut offset_of: impl FnMut(&Storage<'a>) -> Result<usize, String>,
) -> Result<BTreeMap<String, Located>, String> {
    let entries = objects.dict(root).ok_or("it holds no dict of tensors")?;
    let nested = entries.iter().find(|(key, _)| *key == Value::Text("state_dict"));
    let entries = nested.and_then(|(_, value)| objects.dict(*value)).unwrap_or(entries);
    let mut tensors = BTreeMap::new();
    for (key, value) in entries {
        let (Value::Text(name), Some(Object::Tensor(tensor))) = (key, objects.get(*value)) else { continue };
        let Some(Object::Storage(storage)) = objects.get(Value::Object(tensor.storage)) else { continue };
        let start = offset_of(storage).map_err(|message| format!("tensor {}: {message}", name.escape_debug()))?;
        let Tensor { kind, ref shape, ref strides, .. } = *tensor;
        let (shape, strides) = (shape.clone(), strides.clone());
        // Both lie within the storage, and the storage within the file.
        let (start, end) = (start + tensor.start as usize, start + tensor.end as usize);
        tensors.insert((*name).to_owned(), Located { kind, shape, strides, start, end });
    }
    if tensors.is_empty() { Err("it holds no tensors".to_owned()) } else { Ok(tensors) }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// A number beyond 64 bits, little-endian.
    Long(&'a [u8]),
    Text(&'a str),
    /// A value that nothing here reads: floats, bytes.
    Opaque,
    Class(Class),
    Object(usize),
}

#[derive(Debug)]
pub enum Object<'a> {
    Tuple(Vec<Value<'a>>),
    List(Vec<Value<'a>>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
    Storage(Storage<'a>),
    Tensor(Tensor),
}

#[derive(Default)]
pub struct Objects<'a>(Vec<Object<'a>>);

impl<'a> Objects<'a> {
    pub fn add(&mut self, object: Object<'a>) -> Value<'a> {
        self.0.push(object);
        Value::Object(self.0.len() - 1)
    }

    pub fn get(&self, value: Value<'a>) -> Option<&Object<'a>> {
        match value {
            Value::Object(number) => self.0.get(number),
            _ => None,
        }
    }

    pub fn get_mut(&mut self, value: Value<'a>) -> Option<&mut Object<'a>> {
        match value {
            Value::Object(number) => self.0.get_mut(number),
            _ => None,
        }
    }

    /// The items of a tuple or a list.
    pub fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match self.get(value) {
            Some(Object::Tuple(items) | Object::List(items)) => Some(items),
            _ => None,
        }
    }

    pub fn storages(&self) -> impl Iterator<Item = &Storage<'a>> {
        self.0.iter().filter_map(|object| match object {
            Object::Storage(storage) => Some(storage),
            _ => None,
        })
    }

    pub fn dict(&self, value: Value<'a>) -> Option<&[(Value<'a>, Value<'a>)]> {
        match self.get(value) {
            Some(Object::Dict(items)) => Some(items),
            _ => None,
        }
    }
}

/// The classes and functions that a file of weights may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    OrderedDict,
    /// `torch.Size`
    Size,
    /// `_rebuild_tensor`, `_rebuild_tensor_v2`, `_rebuild_tensor_v3`: views of a storage.
    RebuildTensor,
    /// `_rebuild_parameter`, `_rebuild_parameter_with_state`: a tensor that is learned.
    RebuildParameter,
    /// `torch.FloatStorage` and the like.
    Storage(Kind),
    /// `torch.storage.UntypedStorage`: bytes, whose kind the tensor says.
    UntypedStorage,
    /// `torch.float32` and the like.
    Dtype(Kind),
}

/// Kinds as torch calls their storage and as it calls them.
const KINDS: [(Kind, &str, &str); 10] = [
    (Kind::Float, "FloatStorage", "float32"),
    (Kind::Half, "HalfStorage", "float16"),
    (Kind::BFloat16, "BFloat16Storage", "bfloat16"),
    (Kind::Double, "DoubleStorage", "float64"),
    (Kind::Int64, "LongStorage", "int64"),
    (Kind::Int, "IntStorage", "int32"),
    (Kind::Int16, "ShortStorage", "int16"),
    (Kind::Int8, "CharStorage", "int8"),
    (Kind::Uint8, "ByteStorage", "uint8"),
    (Kind::Bool, "BoolStorage", "bool"),
];

impl Class {
    pub fn find(module: &str, name: &str) -> Result<Self, String> {
        let found = match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch", "Size") => Some(Self::Size),
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3") => {
                Some(Self::RebuildTensor)
            }
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Self::RebuildParameter),
            ("torch.storage" | "torch", "UntypedStorage") => Some(Self::UntypedStorage),
            ("torch", name) => KINDS.iter().find_map(|(kind, storage, dtype)| match name {
                name if name == *storage => Some(Self::Storage(*kind)),
                name if name == *dtype => Some(Self::Dtype(*kind)),
                _ => None,
            }),
            _ => None,
        };
        found.ok_or_else(|| format!("refused: {}.{}", module.escape_debug(), name.escape_debug()))
    }
}

/// Memory that tensors are views of.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage<'a> {
    pub key: &'a str,
    /// Nothing where it is bytes.
    pub kind: Option<Kind>,
    /// Elements of `kind`, or bytes.
    pub elements: u64,
    /// Where it begins in the storage `key`, in elements: before torch 0.4 a storage could be a view of another.
    pub offset: u64,
}

impl Storage<'_> {
    pub fn element_size(&self) -> u64 {
        self.kind.map_or(1, |kind| kind.elt_size_in_bytes() as u64)
    }
}

/// A view of a storage.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The number of the storage among all objects.
    pub storage: usize,
    pub kind: Kind,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    /// Bytes of the storage before its first element and up to behind its last.
    pub start: u64,
    pub end: u64,
}

/// Where a tensor lies in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub kind: Kind,
    pub shape: Vec<i64>,
    /// From one element to the next, by dimension, in elements.
    pub strides: Vec<i64>,
    /// The bytes from its first element to behind its last.
    pub start: usize,
    pub end: usize,
}
