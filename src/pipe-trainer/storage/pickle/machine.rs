//! Runs the opcodes of one pickle, protocols 2 to 5, as far as `torch.save` writes them. There is nothing here that
//! could be called: REDUCE knows the few functions by which torch rebuilds tensors, and they only write down where a
//! tensor lies.
//!
//! A length in a file is compared with the bytes that are there before it is used.
//!
//! The opcodes of pickle by the names that Python's `pickle.py` gives them.

use std::collections::HashMap;

use super::weights::{self, Class, Object, Objects, Value};

/// The most opcodes of one pickle; a tensor takes about 50. Each opcode makes at most one object and one entry of stack or memo, so
/// this bounds the memory as well.
const MOST_OPCODES: u32 = 1 << 22;
/// The most bytes of the name of a module or a class.
const LONGEST_NAME: usize = 256;

/// The result of a pickle.
pub struct Unpickled<'a> {
    pub value: Value<'a>,
    pub objects: Objects<'a>,
    /// Bytes that it took.
    pub length: usize,
}

pub fn unpickle(bytes: &[u8]) -> Result<Unpickled<'_>, String> {
    let mut machine = Machine {
        bytes: Bytes::new(bytes),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        objects: Objects::default(),
    };
    for _ in 0..MOST_OPCODES {
        if let Some(value) = machine.step()? {
            return Ok(Unpickled { value, objects: machine.objects, length: machine.bytes.position() });
        }
    }
    Err(format!("refused: a pickle of more than {MOST_OPCODES} opcodes"))
}

struct Machine<'a> {
    bytes: Bytes<'a>,
    stack: Vec<Value<'a>>,
    /// Where the stack was at each open MARK.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    objects: Objects<'a>,
}

impl<'a> Machine<'a> {
    /// One opcode. The value of the pickle, if it was the last.
    fn step(&mut self) -> Result<Option<Value<'a>>, String> {
        let opcode = self.bytes.u8()?;
        match opcode {
            STOP => return self.pop().map(Some),
            PROTO => match self.bytes.u8()? {
                2..=5 => {}
                other => return Err(format!("refused: protocol {other} of pickle; allowed: 2 to 5")),
            },
            FRAME => drop(self.bytes.u64()?),
            MARK => self.marks.push(self.stack.len()),
            POP => drop(self.pop()?),
            POP_MARK => drop(self.marked()?),
            DUP => {
                let top = self.top()?;
                self.stack.push(top);
            }
            BINPUT | LONG_BINPUT | MEMOIZE | BINGET | LONG_BINGET => self.remember(opcode)?,
            GLOBAL => {
                let (module, name) = (self.bytes.line(LONGEST_NAME)?, self.bytes.line(LONGEST_NAME)?);
                self.stack.push(Value::Class(Class::find(module, name)?));
            }
            STACK_GLOBAL => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.stack.push(Value::Class(Class::find(module, name)?)),
                _ => return Err("STACK_GLOBAL without two names".to_owned()),
            },
            REDUCE | NEWOBJ => self.call()?,
            BUILD => self.build()?,
            BINPERSID => {
                let id = self.pop()?;
                let storage = weights::storage(&self.objects, id)?;
                self.push_object(Object::Storage(storage));
            }
            EMPTY_TUPLE | TUPLE | TUPLE1 | TUPLE2 | TUPLE3 | EMPTY_LIST | LIST | APPEND | APPENDS | EMPTY_DICT
            | DICT | SETITEM | SETITEMS => self.collect(opcode)?,
            _ => {
                let value = self.literal(opcode)?;
                self.stack.push(value);
            }
        }
        Ok(None)
    }

    fn literal(&mut self, opcode: u8) -> Result<Value<'a>, String> {
        let bytes = &mut self.bytes;
        Ok(match opcode {
            NONE => Value::None,
            NEWTRUE => Value::Bool(true),
            NEWFALSE => Value::Bool(false),
            BININT => Value::Int(bytes.i32()?.into()),
            BININT1 => Value::Int(bytes.u8()?.into()),
            BININT2 => Value::Int(bytes.u16()?.into()),
            LONG1 => {
                let length = bytes.u8()?.into();
                long(bytes.take(length)?)
            }
            LONG4 => {
                let length = bytes.u32()?.into();
                long(bytes.take(length)?)
            }
            BINFLOAT => bytes.u64().map(|_| Value::Opaque)?,
            BINSTRING | BINUNICODE => {
                let length = bytes.u32()?.into();
                Value::Text(bytes.text(length)?)
            }
            SHORT_BINSTRING | SHORT_BINUNICODE => {
                let length = bytes.u8()?.into();
                Value::Text(bytes.text(length)?)
            }
            BINUNICODE8 => {
                let length = bytes.u64()?;
                Value::Text(bytes.text(length)?)
            }
            BINBYTES | SHORT_BINBYTES | BINBYTES8 => {
                let length = match opcode {
                    BINBYTES => bytes.u32()?.into(),
                    SHORT_BINBYTES => bytes.u8()?.into(),
                    _ => bytes.u64()?,
                };
                bytes.take(length).map(|_| Value::Opaque)?
            }
            other => return Err(format!("refused: the opcode {}", refused(other))),
        })
    }

    fn remember(&mut self, opcode: u8) -> Result<(), String> {
        let number = match opcode {
            BINPUT | BINGET => self.bytes.u8()?.into(),
            MEMOIZE => self.memo.len() as u32,
            _ => self.bytes.u32()?,
        };
        if matches!(opcode, BINGET | LONG_BINGET) {
            let value = self.memo.get(&number).ok_or_else(|| format!("entry {number} of the memo is missing"))?;
            self.stack.push(*value);
        } else {
            let top = self.top()?;
            self.memo.insert(number, top);
        }
        Ok(())
    }

    /// Tuples, lists and dicts.
    fn collect(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            EMPTY_TUPLE => self.push_object(Object::Tuple(Vec::new())),
            EMPTY_LIST => self.push_object(Object::List(Vec::new())),
            EMPTY_DICT => self.push_object(Object::Dict(Vec::new())),
            TUPLE => {
                let items = self.marked()?;
                self.push_object(Object::Tuple(items));
            }
            LIST => {
                let items = self.marked()?;
                self.push_object(Object::List(items));
            }
            DICT => {
                let items = self.marked()?;
                self.push_object(Object::Dict(pairs(&items)?));
            }
            TUPLE1 | TUPLE2 | TUPLE3 => {
                let items = self.split_off(self.stack.len().checked_sub(usize::from(opcode - TUPLE1) + 1))?;
                self.push_object(Object::Tuple(items));
            }
            APPEND => {
                let item = self.pop()?;
                self.extend_list(vec![item])?;
            }
            APPENDS => {
                let items = self.marked()?;
                self.extend_list(items)?;
            }
            SETITEM => {
                let items = self.split_off(self.stack.len().checked_sub(2))?;
                self.extend_dict(&items)?;
            }
            _ => {
                let items = self.marked()?;
                self.extend_dict(&items)?;
            }
        }
        Ok(())
    }

    fn extend_list(&mut self, more: Vec<Value<'a>>) -> Result<(), String> {
        let top = self.top()?;
        match self.objects.get_mut(top) {
            Some(Object::List(items)) => items.extend(more),
            _ => return Err("items are added to what is no list".to_owned()),
        }
        Ok(())
    }

    fn extend_dict(&mut self, more: &[Value<'a>]) -> Result<(), String> {
        let (top, more) = (self.top()?, pairs(more)?);
        match self.objects.get_mut(top) {
            Some(Object::Dict(items)) => items.extend(more),
            _ => return Err("items are set in what is no dict".to_owned()),
        }
        Ok(())
    }

    fn call(&mut self) -> Result<(), String> {
        let (args, called) = (self.pop()?, self.pop()?);
        let Value::Class(class) = called else {
            return Err("refused: a call of what is no known class".to_owned());
        };
        let object = weights::call(&mut self.objects, class, args)?;
        self.stack.push(object);
        Ok(())
    }

    /// The state of a dict is its `_metadata`, which says nothing about its tensors.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        let top = self.top()?;
        match self.objects.get(top) {
            Some(Object::Dict(_) | Object::Tensor(_)) => Ok(()),
            _ => Err("refused: BUILD of what is neither a dict nor a tensor".to_owned()),
        }
    }

    fn push_object(&mut self, object: Object<'a>) {
        let value = self.objects.add(object);
        self.stack.push(value);
    }

    fn top(&self) -> Result<Value<'a>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() > floor { Ok(self.stack[self.stack.len() - 1]) } else { Err(empty()) }
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// The values that were pushed since the last MARK.
    fn marked(&mut self) -> Result<Vec<Value<'a>>, String> {
        let mark = self.marks.pop().ok_or("an opcode looks for a MARK that is not there")?;
        Ok(self.stack.split_off(mark))
    }

    fn split_off(&mut self, index: Option<usize>) -> Result<Vec<Value<'a>>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let index = index.filter(|index| *index >= floor).ok_or_else(empty)?;
        Ok(self.stack.split_off(index))
    }
}

fn empty() -> String {
    "an opcode takes more from the stack than is there".to_owned()
}

fn pairs<'a>(items: &[Value<'a>]) -> Result<Vec<(Value<'a>, Value<'a>)>, String> {
    let (pairs, rest) = items.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("a dict has a key without a value".to_owned());
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}

/// Two's complement, little-endian.
fn long(bytes: &[u8]) -> Value<'_> {
    if bytes.len() > 8 {
        return Value::Long(bytes);
    }
    let fill = if bytes.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
    let mut whole = [fill; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(whole))
}

pub struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    pub fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let rest = &self.all[self.at..];
        match usize::try_from(count).ok().and_then(|count| rest.get(..count)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(format!("it ends after {} bytes, where {count} more should follow", self.all.len())),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N as u64).map(|bytes| bytes.try_into().unwrap_or_else(|_| panic!("{N} bytes were taken")))
    }

    pub fn u8(&mut self) -> Result<u8, String> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, String> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn i32(&mut self) -> Result<i32, String> {
        self.array().map(i32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self, count: u64) -> Result<&'a str, String> {
        std::str::from_utf8(self.take(count)?).map_err(|_| "it has a text that is not UTF-8".to_owned())
    }

    /// A text up to the end of its line, which must come within `most` bytes.
    pub fn line(&mut self, most: usize) -> Result<&'a str, String> {
        let rest = &self.all[self.at..];
        let length = rest.iter().take(most).position(|byte| *byte == b'\n').ok_or("it has a name without an end")?;
        let text = self.text(length as u64)?;
        self.at += 1;
        Ok(text)
    }
}

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
