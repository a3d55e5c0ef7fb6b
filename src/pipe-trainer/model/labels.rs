//! What a classifier tells apart.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Classes by number, each with its name.
    Classes(Vec<String>),
    /// One number is predicted.
    Number,
}
