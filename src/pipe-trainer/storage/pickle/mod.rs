//! Reads the tensors of a file that `torch.save` wrote, such as `pytorch_model.bin`, and runs nothing of it: a pickle
//! is a program, and of what it can say only what a file of weights needs is understood. Everything else is an error.
//!
//! Two formats: the zip archive of torch 1.6 and later, and the stream of pickles before it. Finds where each tensor
//! lies; copies nothing and knows no files.

mod machine;
mod weights;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use machine::Bytes;
use weights::{Objects, Value};

pub use weights::Located;

/// The tensors of a state dict by name; or why they cannot be read.
pub fn locate(file: &[u8]) -> Result<BTreeMap<String, Located>, String> {
    if file.starts_with(b"PK") { locate_in_archive(file) } else { locate_in_stream(file) }
}

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

/// Files that torch wrote (`tests/fixtures/make_pickle.py`), pickles that would do harm, and files that are broken.
#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Located, locate, machine as op};
    use crate::storage::TensorFiles;
    use crate::storage::pickle::machine::unpickle;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/pickle").join(name)
    }

    fn bytes(name: &str) -> Vec<u8> {
        std::fs::read(fixture(name)).unwrap()
    }

    const WHOLE: [&str; 4] = ["zip.bin", "protocol-5.bin", "legacy.bin", "nested.bin"];

    #[test]
    fn tensors_are_those_that_torch_saved() {
        let expected = TensorFiles::open_file(&fixture("expect.safetensors")).unwrap();
        for name in WHOLE {
            let files = TensorFiles::open_file(&fixture(name)).unwrap();
            assert!(files.names().eq(expected.names()), "{name}");
            for tensor in expected.names() {
                let (got, want) = (files.read(tensor).unwrap(), expected.read(tensor).unwrap());
                assert_eq!((got.kind(), got.size()), (want.kind(), want.size()), "{name} {tensor}");
                assert!(got.is_contiguous() && got.equal(&want), "{name} {tensor}");
            }
        }
    }

    /// A protocol, then opcodes, then STOP.
    fn pickle(parts: &[&[u8]]) -> Vec<u8> {
        [&[op::PROTO, 2][..], &parts.concat(), &[op::STOP]].concat()
    }

    fn text(text: &str) -> Vec<u8> {
        [&[op::BINUNICODE][..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
    }

    #[track_caller]
    fn refused(bytes: &[u8], why: &str) {
        let message = unpickle(bytes).err().unwrap();
        assert!(message.contains(why), "{message:?} has no {why:?}");
        // And as a file.
        assert!(locate(bytes).is_err());
    }

    #[test]
    fn nothing_is_run() {
        for name in ["command.bin", "command-legacy.bin"] {
            assert_eq!(locate(&bytes(name)).unwrap_err(), "refused: posix.system", "{name}");
        }
        let call = |global: &str| pickle(&[b"c", global.as_bytes(), &text("echo"), &[op::TUPLE1, op::REDUCE]]);
        for (global, why) in [
            ("posix\nsystem\n", "refused: posix.system"),
            ("os\nsystem\n", "refused: os.system"),
            ("builtins\neval\n", "refused: builtins.eval"),
            ("__builtin__\ngetattr\n", "refused: __builtin__.getattr"),
            ("torch.storage\n_load_from_bytes\n", "refused: torch.storage._load_from_bytes"),
            ("torch\nload\n", "refused: torch.load"),
            ("torch._utils\n__import__\n", "refused: torch._utils.__import__"),
            ("collections\nOrderedDict\n", "OrderedDict is called in an unknown way"),
            ("a\u{1b}[31m\nb\n", "refused: a\\u{1b}[31m.b"),
        ] {
            refused(&call(global), why);
        }
        let by_stack = pickle(&[&text("builtins"), &text("exec"), &[op::STACK_GLOBAL]]);
        refused(&by_stack, "refused: builtins.exec");
        // The result of a call is called in turn.
        let nested = pickle(&[b"ccollections\nOrderedDict\n", b")R", b")R"]);
        refused(&nested, "refused: a call of what is no known class");
        // A class is no value that a state could be given to.
        refused(&pickle(&[b"ctorch\nFloatStorage\n", b"}b"]), "refused: BUILD");
        for (opcode, name) in
            [(b'i', "INST"), (b'o', "OBJ"), (0x82, "EXT1"), (0x92, "NEWOBJ_EX"), (b'P', "PERSID"), (0xff, "unknown")]
        {
            refused(
                &pickle(&[&[opcode]]),
                &format!("refused: the opcode {}", if name == "unknown" { "an unknown" } else { name }),
            );
        }
        refused(&[op::PROTO, 0], "protocol 0");
    }

    #[test]
    fn no_pickle_takes_more_memory_than_its_length_allows() {
        // Each level is a pair of the level before: 2^60 at the end, and 60 objects.
        let level = [op::DUP, op::TUPLE2];
        let doubled = pickle(&[b")", &level.repeat(60)]);
        assert!(unpickle(&doubled).is_ok());
        assert!(locate(&doubled).is_err());
        // A million lists in each other.
        let deep = pickle(&[&b"]".repeat(1 << 20), &b"a".repeat((1 << 20) - 1)]);
        assert!(unpickle(&deep).is_ok());
        refused(&b"N".repeat(1 << 23), "more than 4194304 opcodes");
        refused(&pickle(&[&[op::BINUNICODE, 0xff, 0xff, 0xff, 0xff], b"abc"]), "it ends after");
        refused(&pickle(&[&[op::BINUNICODE8], &u64::MAX.to_le_bytes()]), "it ends after");
        refused(&pickle(&[&[op::LONG_BINGET, 0xff, 0xff, 0xff, 0xff]]), "entry 4294967295 of the memo is missing");
        for broken in [&b"R"[..], b"t", b"a", b"s", b"(s", b"b", b"Q", b"0", b"N\x94a", b"}(Nu", b"(0", b"\x86"] {
            assert!(unpickle(&pickle(&[broken])).is_err(), "{broken:?}");
        }
    }

    /// A tensor with these numbers, of a storage of 10 elements.
    fn tensor(offset: i32, sizes: &[i32], strides: &[i32]) -> Vec<u8> {
        let int = |number: &i32| [&[op::BININT][..], &number.to_le_bytes()].concat();
        let tuple = |numbers: &[i32]| [&b"("[..], &numbers.iter().flat_map(int).collect::<Vec<_>>(), b"t"].concat();
        let storage =
            [&b"("[..], &text("storage"), b"ctorch\nFloatStorage\n", &text("0"), &text("cpu"), b"K\x0at"].concat();
        let args = [&b"("[..], &storage, b"Q", &int(&offset), &tuple(sizes), &tuple(strides), b"t"].concat();
        pickle(&[b"ctorch._utils\n_rebuild_tensor_v2\n", &args, b"R"])
    }

    #[test]
    fn a_tensor_must_lie_in_its_storage() {
        for (offset, sizes, strides) in [
            (0, &[10][..], &[1][..]),
            (0, &[2, 5], &[5, 1]),
            (9, &[], &[]),
            (4, &[3, 2], &[1, 3]),
            (10, &[0, 7], &[7, 1]),
        ] {
            assert!(unpickle(&tensor(offset, sizes, strides)).is_ok(), "{offset} {sizes:?} {strides:?}");
        }
        for (offset, sizes, strides) in [
            (1, &[10][..], &[1][..]),
            (0, &[11], &[1]),
            (0, &[2], &[10]),
            (10, &[1], &[1]),
            (-1, &[1], &[1]),
            (0, &[-1], &[1]),
            (0, &[2], &[-1]),
            (0, &[2, 2], &[1]),
            (0, &[i32::MAX, i32::MAX, i32::MAX], &[i32::MAX, i32::MAX, i32::MAX]),
        ] {
            assert!(unpickle(&tensor(offset, sizes, strides)).is_err(), "{offset} {sizes:?} {strides:?}");
        }
    }

    /// One element can be a tensor of any size; it is not made.
    #[test]
    fn a_tensor_larger_than_its_file_is_refused() {
        let huge = tensor(0, &[1 << 30, 1 << 30], &[0, 0]);
        let huge = &huge[2..huge.len() - 1];
        let dict = |value: &[u8]| pickle(&[b"}", &text("huge"), value, b"s"]);
        let magic =
            [&[op::PROTO, 2, op::LONG1, 10][..], &[0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19], b"."]
                .concat();
        let machine = pickle(&[b"}", &text("little_endian"), &[op::NEWTRUE], b"s"]);
        let storage = [&10u64.to_le_bytes()[..], &[0; 40]].concat();
        let protocol = pickle(&[b"M\xe9\x03"]);
        let file = [magic, protocol, machine, dict(huge), pickle(&[b"]", &text("0"), b"a"]), storage].concat();
        let path = std::env::temp_dir().join(format!("pipe-huge-{}.bin", std::process::id()));
        std::fs::write(&path, file).unwrap();
        let read = TensorFiles::open_file(&path).unwrap().read("huge");
        let message = read.err().unwrap().to_string();
        assert!(message.contains("larger than its file"), "{message}");
        std::fs::remove_file(path).unwrap();
    }

    /// Whatever a broken file says, what is found lies within it.
    fn check(file: &[u8]) -> bool {
        let Ok(tensors) = locate(file) else { return false };
        for (name, Located { start, end, .. }) in tensors {
            assert!(start <= end && end <= file.len(), "{name}: {start} to {end} of {}", file.len());
        }
        true
    }

    #[test]
    fn a_file_that_was_cut_off_is_refused() {
        for name in WHOLE {
            let whole = bytes(name);
            assert!(check(&whole));
            // The comment at the end of a zip file is empty, so not even its last byte can be missing.
            let accepted: Vec<usize> = (0..whole.len()).filter(|length| check(&whole[..*length])).collect();
            assert!(accepted.is_empty(), "{name}: {accepted:?}");
        }
    }

    #[test]
    fn no_bytes_do_harm() {
        let mut state = 7u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for name in WHOLE {
            let whole = bytes(name);
            for _ in 0..4000 {
                let mut broken = whole.clone();
                for _ in 0..=draw(3) {
                    let index = draw(broken.len());
                    broken[index] = draw(256) as u8;
                }
                check(&broken);
            }
        }
        for start in [&b""[..], b"PK\x03\x04", b"\x80\x02", b"\x80\x04\x95"] {
            for _ in 0..2000 {
                let noise: Vec<u8> = (0..draw(300)).map(|_| draw(256) as u8).collect();
                check(&[start, &noise].concat());
            }
        }
    }

    #[test]
    fn other_formats_are_named() {
        let message = |file: &[u8]| locate(file).unwrap_err();
        assert!(message(b"").contains("neither a zip file nor"));
        assert!(message(b"{\"a\": 1}").contains("neither a zip file nor"));
        assert!(message(&pickle(&[b"}"])).contains("neither a zip file nor"));
        assert!(message(b"PK\x05\x06").contains("zip file without its end"));
        let empty = [&b"PK\x05\x06"[..], &[0; 18]].concat();
        assert!(message(&empty).contains("a zip file without data.pkl"));
    }
}
