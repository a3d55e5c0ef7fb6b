//! The format of torch before 1.6: a magic number, a protocol, the sizes of the machine's types, the object and the keys of its
//! storages, each a pickle; then the storages, each with its count of elements in front.

use std::collections::{BTreeMap, HashMap};

use super::bytes::Bytes;
use super::value::{Objects, Value};
use super::{Located, machine, opcode, weights};

/// 0x1950a86a20f9469cfc6c
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const PROTOCOL: i64 = 1001;

pub fn locate(file: &[u8]) -> Result<BTreeMap<String, Located>, String> {
    let unknown = "neither a zip file nor in the format of torch before 1.6";
    if file.first() != Some(&opcode::PROTO) {
        return Err(unknown.to_owned());
    }
    let magic = machine::unpickle(file)?;
    if magic.value != Value::Long(&MAGIC) {
        return Err(unknown.to_owned());
    }
    let mut at = magic.length;
    let mut next = || {
        let unpickled = machine::unpickle(&file[at..])?;
        at += unpickled.length;
        Ok::<_, String>(unpickled)
    };
    let protocol = next()?.value;
    if protocol != Value::Int(PROTOCOL) {
        return Err(format!("refused: its protocol is not {PROTOCOL}"));
    }
    let machine = next()?;
    if !is_little_endian(&machine.objects, machine.value) {
        return Err("refused: its numbers are not little-endian".to_owned());
    }
    let object = next()?;
    let keys = next()?;
    let sizes = sizes(&object.objects)?;
    let keys = keys.objects.items(keys.value).ok_or("it has no list of storages")?;
    let places = places(file, at, keys, &sizes)?;
    weights::locate(&object.objects, object.value, |storage| {
        let (start, elements) =
            places.get(storage.key).ok_or_else(|| format!("the storage {:?} is missing", storage.key))?;
        let end = storage.offset.checked_add(storage.elements).filter(|end| end <= elements);
        end.ok_or_else(|| format!("the storage {:?} has {elements} elements, too few", storage.key))?;
        Ok(start + (storage.offset * storage.element_size()) as usize)
    })
}

fn is_little_endian<'a>(objects: &Objects<'a>, value: Value<'a>) -> bool {
    let entries = objects.dict(value).unwrap_or_default();
    entries.contains(&(Value::Text("little_endian"), Value::Bool(true)))
}

/// Bytes of an element of each storage.
fn sizes<'a>(objects: &Objects<'a>) -> Result<HashMap<&'a str, u64>, String> {
    let mut sizes = HashMap::new();
    for storage in objects.storages() {
        let size = storage.element_size();
        if sizes.insert(storage.key, size).is_some_and(|other| other != size) {
            return Err(format!("the storage {:?} has two kinds", storage.key));
        }
    }
    Ok(sizes)
}

/// Where each storage begins, and its elements.
fn places<'a>(
    file: &[u8],
    at: usize,
    keys: &[Value<'a>],
    sizes: &HashMap<&'a str, u64>,
) -> Result<HashMap<&'a str, (usize, u64)>, String> {
    let mut bytes = Bytes::new(&file[at..]);
    let mut places = HashMap::new();
    for key in keys {
        let Value::Text(key) = key else { return Err("the key of a storage is no text".to_owned()) };
        let size = sizes.get(key).ok_or_else(|| format!("nothing uses the storage {key:?}"))?;
        let elements = bytes.u64()?;
        let start = at + bytes.position();
        bytes.take(elements.checked_mul(*size).ok_or("a storage is larger than any file")?)?;
        places.insert(*key, (start, elements));
    }
    Ok(places)
}
