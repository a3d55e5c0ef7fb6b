//! Protocol buffers, encoded by hand: the few messages that TensorBoard and W&B read need no generated code.

/// A message, field by field.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn encoded(&self) -> &[u8] {
        &self.0
    }

    pub fn number(&mut self, field: u64, value: u64) -> &mut Self {
        self.key(field, 0).varint(value)
    }

    pub fn double(&mut self, field: u64, value: f64) -> &mut Self {
        self.key(field, 1).0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Self {
        self.key(field, 2).varint(value.len() as u64).0.extend_from_slice(value);
        self
    }

    /// An empty text is the default of proto3 and is not written.
    pub fn text(&mut self, field: u64, value: &str) -> &mut Self {
        if value.is_empty() { self } else { self.bytes(field, value.as_bytes()) }
    }

    pub fn message(&mut self, field: u64, value: &Message) -> &mut Self {
        self.bytes(field, &value.0)
    }

    pub fn float(&mut self, field: u64, value: f32) -> &mut Self {
        self.key(field, 5).0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn key(&mut self, field: u64, kind: u64) -> &mut Self {
        self.varint(field << 3 | kind)
    }

    fn varint(&mut self, mut number: u64) -> &mut Self {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_protobuf() {
        let mut message = Message::default();
        message.number(2, 300).bytes(3, b"ab").text(4, "").float(2, 1.0);
        assert_eq!(message.encoded(), [0x10, 0xac, 0x02, 0x1a, 2, b'a', b'b', 0x15, 0, 0, 0x80, 0x3f]);
    }
}
