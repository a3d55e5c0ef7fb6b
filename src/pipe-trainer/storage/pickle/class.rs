//! The classes and functions that a file of weights may name.

use tch::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    OrderedDict,
    /// `torch.Size`
    Size,
    /// `_rebuild_tensor`, `_rebuild_tensor_v2`, `_rebuild_tensor_v3`: views of a storage.
    RebuildTensor,
    /// `_rebuild_parameter`, `_rebuild_parameter_with_state`: a tensor that is learned.
    RebuildParameter,
    /// `torch.FloatStorage` and the like.
    Storage(Kind),
    /// `torch.storage.UntypedStorage`: bytes, whose kind the tensor says.
    UntypedStorage,
    /// `torch.float32` and the like.
    Dtype(Kind),
}

/// Kinds as torch calls their storage and as it calls them.
const KINDS: [(Kind, &str, &str); 10] = [
    (Kind::Float, "FloatStorage", "float32"),
    (Kind::Half, "HalfStorage", "float16"),
    (Kind::BFloat16, "BFloat16Storage", "bfloat16"),
    (Kind::Double, "DoubleStorage", "float64"),
    (Kind::Int64, "LongStorage", "int64"),
    (Kind::Int, "IntStorage", "int32"),
    (Kind::Int16, "ShortStorage", "int16"),
    (Kind::Int8, "CharStorage", "int8"),
    (Kind::Uint8, "ByteStorage", "uint8"),
    (Kind::Bool, "BoolStorage", "bool"),
];

impl Class {
    pub fn find(module: &str, name: &str) -> Result<Self, String> {
        let found = match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch", "Size") => Some(Self::Size),
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3") => {
                Some(Self::RebuildTensor)
            }
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Self::RebuildParameter),
            ("torch.storage" | "torch", "UntypedStorage") => Some(Self::UntypedStorage),
            ("torch", name) => KINDS.iter().find_map(|(kind, storage, dtype)| match name {
                name if name == *storage => Some(Self::Storage(*kind)),
                name if name == *dtype => Some(Self::Dtype(*kind)),
                _ => None,
            }),
            _ => None,
        };
        found.ok_or_else(|| format!("refused: {}.{}", module.escape_debug(), name.escape_debug()))
    }
}
