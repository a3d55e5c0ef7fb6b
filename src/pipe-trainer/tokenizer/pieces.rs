//! Reads a model of sentencepiece: the parts of its protobuf (`sentencepiece_model.proto`) that a tokenizer is made of.

/// `TrainerSpec.ModelType.UNIGRAM`
const UNIGRAM: u64 = 1;

#[derive(Debug, Default, PartialEq)]
pub struct Pieces {
    pub pieces: Vec<Piece>,
    /// The number of the piece for what no other fits.
    pub unknown: usize,
    /// What normalizes a text; nothing where it stays as it is.
    pub charsmap: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub text: String,
    pub score: f64,
    pub kind: PieceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Begins or ends texts, and never stands in one.
    Control,
    /// Always a piece of its own.
    UserDefined,
    Other,
}

impl Pieces {
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut read = Self::default();
        let mut model_type = UNIGRAM;
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(bytes)) => read.pieces.push(Piece::read(bytes)?),
                (2, Wire::Bytes(trainer)) => {
                    for field in Fields(trainer) {
                        match field? {
                            (3, Wire::Number(number)) => model_type = number,
                            (40, Wire::Number(number)) => read.unknown = usize::try_from(number).unwrap_or(usize::MAX),
                            _ => {}
                        }
                    }
                }
                (3, Wire::Bytes(normalizer)) => {
                    for field in Fields(normalizer) {
                        if let (2, Wire::Bytes(charsmap)) = field? {
                            read.charsmap = Some(charsmap.to_owned()).filter(|charsmap| !charsmap.is_empty());
                        }
                    }
                }
                _ => {}
            }
        }
        match model_type {
            _ if read.pieces.is_empty() => Err("it is no model of sentencepiece: it has no pieces".to_owned()),
            UNIGRAM => Ok(read),
            _ => Err("its model_type is not unigram, which is the one that is read".to_owned()),
        }
    }

    /// Texts and scores, in order.
    pub fn vocabulary(&self) -> impl Iterator<Item = (String, f64)> {
        self.pieces.iter().map(|piece| (piece.text.clone(), piece.score))
    }
}

impl Piece {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: PieceKind::Other };
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(text)) => {
                    piece.text = String::from_utf8(text.to_owned()).map_err(|_| "it has a piece that is not UTF-8")?;
                }
                (2, Wire::Fixed(bits)) => piece.score = f32::from_bits(bits).into(),
                (3, Wire::Number(3)) => piece.kind = PieceKind::Control,
                (3, Wire::Number(4)) => piece.kind = PieceKind::UserDefined,
                _ => {}
            }
        }
        Ok(piece)
    }
}

/// A value of protobuf. What takes 8 bytes is skipped: nothing here is made of it.
#[derive(Debug, PartialEq)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed(u32),
    Skipped,
}

/// The fields of a message, each with its number.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Wire::Number(self.number()?),
            1 => self.take(8).map(|_| Wire::Skipped)?,
            2 => {
                let length = self.number()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    /// 7 bits a byte, the lowest first; the highest bit of a byte says that more follow.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for index in 0..10 {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f).checked_shl(7 * index)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "it is no model of sentencepiece, or not all of one".to_owned()))
    }
}
