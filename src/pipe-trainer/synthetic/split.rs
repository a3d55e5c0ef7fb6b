//! Which part of a data set a row belongs to.

/// The two never share a random number.
#[derive(Clone, Copy)]
pub enum Split {
    Train,
    Eval,
}

impl Split {
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }
}
