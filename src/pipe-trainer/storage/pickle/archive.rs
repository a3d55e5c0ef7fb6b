//! The two formats of `torch.save`: a zip archive, and the stream of pickles before torch 1.6.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::machine::{self, Bytes};
use super::weights::{self, Located, Objects, Value};

/// Bytes of the record at the end of a zip file, and of the longest comment behind it.
const END: usize = 22;
const COMMENT: usize = 0xffff;
const LOCATOR: usize = 20;

const END_MAGIC: [u8; 4] = *b"PK\x05\x06";
const LOCATOR_MAGIC: [u8; 4] = *b"PK\x06\x07";
const END64_MAGIC: [u8; 4] = *b"PK\x06\x06";
const ENTRY_MAGIC: [u8; 4] = *b"PK\x01\x02";
const LOCAL_MAGIC: [u8; 4] = *b"PK\x03\x04";

/// The zip archive that torch 1.6 and later write: `NAME/data.pkl` describes the tensors, `NAME/data/KEY` holds each
/// storage. Entries are stored as they are, so that a storage is a range of the file.
pub fn locate_in_archive(file: &[u8]) -> Result<BTreeMap<String, Located>, String> {
    let archive = Archive::open(file)?;
    let mut pickles = archive.entries.keys().filter_map(|name| name.strip_suffix("/data.pkl"));
    let top = pickles.find(|top| !top.contains('/')).ok_or("a zip file without data.pkl")?;
    let named = |name: &str| format!("{top}/{name}");
    if archive.entries.contains_key(named("constants.pkl").as_str()) {
        return Err("refused: a TorchScript archive, which holds a program; save its state dict".to_owned());
    }
    if let Some(order) = archive.entries.get(named("byteorder").as_str())
        && file[archive.range(order)?] != *b"little"
    {
        return Err("refused: its numbers are not little-endian".to_owned());
    }
    let pickle = archive.entries.get(named("data.pkl").as_str()).ok_or("a zip file without data.pkl")?;
    let unpickled = machine::unpickle(&file[archive.range(pickle)?])?;
    weights::locate(&unpickled.objects, unpickled.value, |storage| {
        let entry = archive.entries.get(named(&format!("data/{}", storage.key)).as_str());
        let range = archive.range(entry.ok_or_else(|| format!("the storage {:?} is missing", storage.key))?)?;
        let needed =
            storage.elements.checked_add(storage.offset).and_then(|all| all.checked_mul(storage.element_size()));
        match needed {
            Some(needed) if needed <= range.len() as u64 => {
                Ok(range.start + (storage.offset * storage.element_size()) as usize)
            }
            _ => Err(format!("the storage {:?} has {} bytes, too few", storage.key, range.len())),
        }
    })
}

struct Archive<'a> {
    file: &'a [u8],
    entries: HashMap<&'a str, Entry>,
}

struct Entry {
    /// As it is, neither compressed nor encrypted.
    stored: bool,
    size: u64,
    /// Where its own header lies.
    header: u64,
}

impl<'a> Archive<'a> {
    fn open(file: &'a [u8]) -> Result<Self, String> {
        let (start, size) = directory(file)?;
        let directory = part(file, start, size).ok_or("the directory of the zip file lies beyond its end")?;
        let mut bytes = Bytes::new(directory);
        let mut entries = HashMap::new();
        while bytes.position() < directory.len() {
            let (name, entry) = Entry::read(&mut bytes)?;
            if entries.insert(name, entry).is_some() {
                return Err(format!("the zip file has {name:?} twice"));
            }
        }
        Ok(Self { file, entries })
    }

    /// Where the content of an entry lies.
    fn range(&self, entry: &Entry) -> Result<Range<usize>, String> {
        if !entry.stored {
            return Err("refused: an entry of the zip file is compressed or encrypted".to_owned());
        }
        let broken = || "an entry of the zip file lies beyond its end".to_owned();
        let header = part(self.file, entry.header, 30).ok_or_else(broken)?;
        let mut bytes = Bytes::new(header);
        if bytes.take(4)? != LOCAL_MAGIC {
            return Err("an entry of the zip file has no header".to_owned());
        }
        bytes.take(22)?;
        let behind = u64::from(bytes.u16()?) + u64::from(bytes.u16()?);
        let start = entry.header.checked_add(30 + behind).ok_or_else(broken)?;
        part(self.file, start, entry.size).ok_or_else(broken)?;
        Ok(start as usize..(start + entry.size) as usize)
    }
}

impl Entry {
    fn read<'a>(bytes: &mut Bytes<'a>) -> Result<(&'a str, Self), String> {
        if bytes.take(4)? != ENTRY_MAGIC {
            return Err("the directory of the zip file is broken".to_owned());
        }
        bytes.take(4)?;
        let (flags, method) = (bytes.u16()?, bytes.u16()?);
        bytes.take(8)?;
        let (packed, size) = (bytes.u32()?, bytes.u32()?);
        let (name, extra, comment) = (bytes.u16()?, bytes.u16()?, bytes.u16()?);
        bytes.take(8)?;
        let header = bytes.u32()?;
        let name = bytes.text(name.into())?;
        // Numbers that do not fit in 32 bits stand in a field of their own, in this order.
        let mut wide = wide(bytes.take(extra.into())?)?;
        let mut read = |narrow: u32| if narrow == u32::MAX { wide.u64() } else { Ok(narrow.into()) };
        let (size, packed, header) = (read(size)?, read(packed)?, read(header)?);
        bytes.take(comment.into())?;
        let stored = method == 0 && flags & 1 == 0 && packed == size;
        Ok((name, Self { stored, size, header }))
    }
}

/// The zip64 field among the extra fields of an entry; empty where there is none.
fn wide(extra: &[u8]) -> Result<Bytes<'_>, String> {
    let mut bytes = Bytes::new(extra);
    // Some writers pad with less than a field.
    while extra.len() - bytes.position() >= 4 {
        let (kind, length) = (bytes.u16()?, bytes.u16()?);
        let content = bytes.take(length.into())?;
        if kind == 1 {
            return Ok(Bytes::new(content));
        }
    }
    Ok(Bytes::new(&[]))
}

/// Where the directory of a zip file begins, and its bytes.
fn directory(file: &[u8]) -> Result<(u64, u64), String> {
    let missing = "a zip file without its end: it was cut off, or is none";
    let last = file.len().checked_sub(END).ok_or(missing)?;
    let end =
        (last.saturating_sub(COMMENT)..=last).rev().find(|at| file[*at..].starts_with(&END_MAGIC)).ok_or(missing)?;
    let mut bytes = Bytes::new(&file[end + 12..]);
    let (size, start) = (bytes.u32()?, bytes.u32()?);
    let locator = end.checked_sub(LOCATOR).filter(|at| file[*at..].starts_with(&LOCATOR_MAGIC));
    let Some(locator) = locator else { return Ok((start.into(), size.into())) };
    let at = Bytes::new(&file[locator + 8..]).u64()?;
    let record = part(file, at, 56).filter(|record| record.starts_with(&END64_MAGIC)).ok_or(missing)?;
    let mut bytes = Bytes::new(&record[40..]);
    let (size, start) = (bytes.u64()?, bytes.u64()?);
    Ok((start, size))
}

fn part(file: &[u8], start: u64, size: u64) -> Option<&[u8]> {
    let end = start.checked_add(size)?;
    file.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// 0x1950a86a20f9469cfc6c
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const PROTOCOL: i64 = 1001;

/// The format of torch before 1.6: a magic number, a protocol, the sizes of the machine's types, the object and the keys of
/// its storages, each a pickle; then the storages, each with its count of elements in front.
pub fn locate_in_stream(file: &[u8]) -> Result<BTreeMap<String, Located>, String> {
    let unknown = "neither a zip file nor in the format of torch before 1.6";
    if file.first() != Some(&machine::PROTO) {
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
    let storages = storages(file, at, keys, &sizes)?;
    weights::locate(&object.objects, object.value, |storage| {
        let (start, elements) =
            storages.get(storage.key).ok_or_else(|| format!("the storage {:?} is missing", storage.key))?;
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
fn storages<'a>(
    file: &[u8],
    at: usize,
    keys: &[Value<'a>],
    sizes: &HashMap<&'a str, u64>,
) -> Result<HashMap<&'a str, (usize, u64)>, String> {
    let mut bytes = Bytes::new(&file[at..]);
    let mut storages = HashMap::new();
    for key in keys {
        let Value::Text(key) = key else { return Err("the key of a storage is no text".to_owned()) };
        let size = sizes.get(key).ok_or_else(|| format!("nothing uses the storage {key:?}"))?;
        let elements = bytes.u64()?;
        let start = at + bytes.position();
        bytes.take(elements.checked_mul(*size).ok_or("a storage is larger than any file")?)?;
        storages.insert(*key, (start, elements));
    }
    Ok(storages)
}
