//! What a pickle makes. Objects lie in one list and refer to each other by number, so a pickle that nests or repeats them has
//! no deep structure to walk and no cycle to follow.

use super::class::Class;
use super::storage::{Storage, Tensor};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// A number beyond 64 bits, little-endian.
    Long(&'a [u8]),
    Text(&'a str),
    /// What nothing here looks at: floats, bytes.
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
