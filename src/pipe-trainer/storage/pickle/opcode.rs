//! The opcodes of pickle by the names that Python's `pickle.py` gives them.

pub const PROTO: u8 = 0x80;
pub const FRAME: u8 = 0x95;
pub const STOP: u8 = b'.';
pub const MARK: u8 = b'(';
pub const POP: u8 = b'0';
pub const POP_MARK: u8 = b'1';
pub const DUP: u8 = b'2';
pub const NONE: u8 = b'N';
pub const NEWTRUE: u8 = 0x88;
pub const NEWFALSE: u8 = 0x89;
pub const BININT: u8 = b'J';
pub const BININT1: u8 = b'K';
pub const BININT2: u8 = b'M';
pub const LONG1: u8 = 0x8a;
pub const LONG4: u8 = 0x8b;
pub const BINFLOAT: u8 = b'G';
pub const BINSTRING: u8 = b'T';
pub const SHORT_BINSTRING: u8 = b'U';
pub const BINUNICODE: u8 = b'X';
pub const SHORT_BINUNICODE: u8 = 0x8c;
pub const BINUNICODE8: u8 = 0x8d;
pub const BINBYTES: u8 = b'B';
pub const SHORT_BINBYTES: u8 = b'C';
pub const BINBYTES8: u8 = 0x8e;
pub const EMPTY_TUPLE: u8 = b')';
pub const TUPLE: u8 = b't';
pub const TUPLE1: u8 = 0x85;
pub const TUPLE2: u8 = 0x86;
pub const TUPLE3: u8 = 0x87;
pub const EMPTY_LIST: u8 = b']';
pub const LIST: u8 = b'l';
pub const APPEND: u8 = b'a';
pub const APPENDS: u8 = b'e';
pub const EMPTY_DICT: u8 = b'}';
pub const DICT: u8 = b'd';
pub const SETITEM: u8 = b's';
pub const SETITEMS: u8 = b'u';
pub const GLOBAL: u8 = b'c';
pub const STACK_GLOBAL: u8 = 0x93;
pub const REDUCE: u8 = b'R';
pub const NEWOBJ: u8 = 0x81;
pub const BUILD: u8 = b'b';
pub const BINPUT: u8 = b'q';
pub const LONG_BINPUT: u8 = b'r';
pub const MEMOIZE: u8 = 0x94;
pub const BINGET: u8 = b'h';
pub const LONG_BINGET: u8 = b'j';
pub const BINPERSID: u8 = b'Q';

/// Those that are refused: of old text protocols, or for what no file of weights holds.
const REFUSED: [(u8, &str); 20] = [
    (b'I', "INT"),
    (b'L', "LONG"),
    (b'F', "FLOAT"),
    (b'S', "STRING"),
    (b'V', "UNICODE"),
    (b'P', "PERSID"),
    (b'i', "INST"),
    (b'o', "OBJ"),
    (b'p', "PUT"),
    (b'g', "GET"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (0x8f, "EMPTY_SET"),
    (0x90, "ADDITEMS"),
    (0x91, "FROZENSET"),
    (0x92, "NEWOBJ_EX"),
    (0x96, "BYTEARRAY8"),
    (0x97, "NEXT_BUFFER"),
    (0x98, "READONLY_BUFFER"),
];

/// The message for an opcode that is refused.
pub fn refused(opcode: u8) -> String {
    let name = REFUSED.iter().find(|(code, _)| *code == opcode).map_or("an unknown opcode", |(_, name)| name);
    format!("{name} ({opcode:#04x})")
}
