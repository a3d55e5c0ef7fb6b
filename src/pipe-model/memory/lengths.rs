//! How long rows are.

use std::fmt;
use std::num::NonZeroU32;

use pipe_spec::pipeline::{Data, Pad};

use crate::TaskData;

/// Tokens of a row: of its only text, or of a source and its target. 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lengths {
    pub source: u32,
    pub target: u32,
}

impl Lengths {
    /// Of the longest row that there may be. Rows that are padded to the longest of their part have a multiple of `multiple`.
    pub fn full(task: &TaskData, data: &Data, multiple: u32) -> Self {
        let padded = |length: NonZeroU32| match data.pad {
            Pad::Longest => length.get().next_multiple_of(multiple),
            Pad::Max => length.get(),
        };
        let at_most = |most: u32| data.max_length.min(NonZeroU32::new(most).unwrap_or(NonZeroU32::MIN));
        let one = |source| Self { source, target: 0 };
        match task {
            TaskData::Seq2Seq { .. } => Self { source: padded(data.max_source), target: padded(data.max_target) },
            TaskData::Classification { max_length, .. } | TaskData::Contrastive { max_length, .. } => {
                one(padded(at_most(*max_length)))
            }
            TaskData::Language { max_length, .. } => one(at_most(*max_length).get()),
            TaskData::TimeSeries { sequence_length, .. } => one(u32::try_from(*sequence_length).unwrap_or(u32::MAX)),
        }
    }

    /// Of rows that are padded to both.
    pub fn max(self, other: Self) -> Self {
        Self { source: self.source.max(other.source), target: self.target.max(other.target) }
    }

    /// Tokens of a row; at least 1, for a row is work without any.
    pub fn tokens(self) -> u64 {
        (u64::from(self.source) + u64::from(self.target)).max(1)
    }
}

/// `480`, or `512+128` of a source and its target.
impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            0 => write!(f, "{}", self.source),
            target => write!(f, "{}+{target}", self.source),
        }
    }
}
