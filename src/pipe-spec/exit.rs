//! The exit codes of both programs. Scripts and CI jobs rely on them: a number is never given a second meaning.

/// How `pipe` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PipeExit {
    Done = 0,
    Unexpected = 1,
    Usage = 2,
    /// The pipeline file is invalid, or what it names (data, model, tokenizer) is.
    Invalid = 3,
    /// No container engine answers, a requested GPU is not available, or the hub does not answer.
    Unavailable = 4,
    ImageBuild = 5,
    TrainingFailed = 6,
    /// Out of memory, and no retry left that could help.
    OutOfMemory = 7,
    Interrupted = 130,
}

impl PipeExit {
    pub const ALL: [Self; 9] = [
        Self::Done,
        Self::Unexpected,
        Self::Usage,
        Self::Invalid,
        Self::Unavailable,
        Self::ImageBuild,
        Self::TrainingFailed,
        Self::OutOfMemory,
        Self::Interrupted,
    ];

    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| exit.code() == code)
    }
}

/// How `pipe-trainer` ends unless it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TrainerExit {
    Done = 0,
    Unexpected = 1,
    Usage = 2,
    /// The spec, the model or the data cannot be used.
    BadInput = 3,
    DeviceOutOfMemory = 42,
    HostOutOfMemory = 43,
    NotFinite = 44,
    /// Stopped on request, after saving.
    Stopped = 143,
}

impl TrainerExit {
    pub const ALL: [Self; 8] = [
        Self::Done,
        Self::Unexpected,
        Self::Usage,
        Self::BadInput,
        Self::DeviceOutOfMemory,
        Self::HostOutOfMemory,
        Self::NotFinite,
        Self::Stopped,
    ];

    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }

    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| i64::from(exit.code()) == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trainer_code_reads_back() {
        for exit in TrainerExit::ALL {
            assert_eq!(TrainerExit::from_code(i64::from(exit.code())), Some(exit));
        }
        assert_eq!(TrainerExit::from_code(137), None);
    }
}
