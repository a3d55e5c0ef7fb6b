//! Compute capabilities of cards, and what code is compiled for.

use serde::{Serialize, Serializer};

/// A compute capability: 12.0 of an RTX 5090.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    pub major: u32,
    pub minor: u32,
}

impl Capability {
    /// From the number in `sm_120`.
    pub fn from_number(number: u32) -> Self {
        Self { major: number / 10, minor: number % 10 }
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Serialize for Capability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What code was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    /// Machine code, which later cards of the same generation run as well.
    Machine(Capability),
    /// PTX, which the driver translates for any card that is not older.
    Ptx(Capability),
}

impl Architecture {
    pub fn runs_on(self, card: Capability) -> bool {
        match self {
            Self::Machine(built) => built.major == card.major && built.minor <= card.minor,
            Self::Ptx(built) => built <= card,
        }
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (word, Capability { major, minor }) = match self {
            Self::Machine(built) => ("sm", built),
            Self::Ptx(built) => ("compute", built),
        };
        write!(f, "{word}_{major}{minor}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_where() {
        let machine = |number| Architecture::Machine(Capability::from_number(number));
        let ptx = |number| Architecture::Ptx(Capability::from_number(number));
        let cases = [
            (machine(75), 75, true),
            (machine(80), 86, true),
            (machine(86), 80, false),
            (machine(80), 90, false),
            (machine(90), 120, false),
            (machine(120), 120, true),
            (machine(120), 121, true),
            (machine(100), 120, false),
            (machine(120), 103, false),
            (ptx(90), 90, true),
            (ptx(90), 120, true),
            (ptx(86), 90, true),
            (ptx(120), 90, false),
            (ptx(121), 120, false),
        ];
        for (built, card, want) in cases {
            assert_eq!(built.runs_on(Capability::from_number(card)), want, "{built} on sm_{card}");
        }
    }

    #[test]
    fn words() {
        assert_eq!(Capability::from_number(120).to_string(), "12.0");
        assert_eq!(Architecture::Machine(Capability::from_number(75)).to_string(), "sm_75");
        assert_eq!(Architecture::Ptx(Capability::from_number(103)).to_string(), "compute_103");
    }
}
