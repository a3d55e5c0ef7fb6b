//! Reads the tensors of a file that `torch.save` wrote, such as `pytorch_model.bin`, and runs nothing of it: a pickle
//! is a program, and of what it can say only what a file of weights needs is understood. Everything else is an error.
//!
//! Two formats: the zip archive of torch 1.6 and later, and the stream of pickles before it. Finds where each tensor
//! lies; copies nothing and knows no files.

mod archive;
mod machine;
mod weights;

use std::collections::BTreeMap;

pub use weights::Located;

/// The tensors of a state dict by name; or why they cannot be read.
pub fn locate(file: &[u8]) -> Result<BTreeMap<String, Located>, String> {
    if file.starts_with(b"PK") { archive::locate_in_archive(file) } else { archive::locate_in_stream(file) }
}

#[cfg(test)]
mod tests {
    //! Files that torch wrote (`tests/fixtures/make_pickle.py`), pickles that would do harm, and files that are broken.

    use std::path::{Path, PathBuf};

    use super::machine::unpickle;
    use super::{Located, locate, machine as op};
    use crate::storage::TensorFiles;

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
