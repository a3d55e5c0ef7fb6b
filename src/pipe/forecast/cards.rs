//! Cards by name, for planning for one that is not here.

const GIB: u64 = 1 << 30;

/// What a card is called and how many MiB it says it has, longer names before those that they begin with.
const CARDS: &[(&str, u64)] = &[
    ("B200", 183_359),
    ("H200", 143_771),
    ("H100", 81_559),
    ("A100-40GB", 40_960),
    ("A100", 81_920),
    ("L40S", 46_068),
    ("L4", 23_034),
    ("A6000", 49_140),
    ("A10", 23_028),
    ("V100-32GB", 32_768),
    ("V100", 16_384),
    ("T4", 15_360),
    ("RTX 5090", 32_607),
    ("RTX 5080", 16_303),
    ("RTX 5070 Ti", 16_303),
    ("RTX 5070", 12_227),
    ("RTX 4090", 24_564),
    ("RTX 4080", 16_376),
    ("RTX 4070", 12_282),
    ("RTX 4060 Ti", 16_380),
    ("RTX 4060", 8_188),
    ("RTX 3090", 24_576),
    ("RTX 3080", 10_240),
    ("RTX 3060", 12_288),
];

/// The sizes that a plan is made for, in GiB.
pub const SIZES: [u64; 7] = [8, 12, 16, 24, 32, 48, 80];

/// Name and bytes of the card that `wanted` means: `5090`, `rtx 5090` and `RTX5090` are one.
pub fn find(wanted: &str) -> Option<(&'static str, u64)> {
    let plain = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let bare = |text: &str| plain(text).replace("nvidia", "").replace("geforce", "").replace("rtx", "");
    let wanted = bare(wanted);
    let card = CARDS.iter().find(|(name, _)| bare(name) == wanted)?;
    Some((card.0, card.1 << 20))
}

pub fn names() -> String {
    CARDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// A size of `SIZES` in bytes.
pub fn bytes(gib: u64) -> u64 {
    gib * GIB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_however_they_are_written() {
        for wanted in ["5090", "rtx 5090", "RTX5090", "NVIDIA GeForce RTX 5090"] {
            assert_eq!(find(wanted), Some(("RTX 5090", 32_607 << 20)), "{wanted}");
        }
        assert_eq!(find("a100").map(|card| card.0), Some("A100"));
        assert_eq!(find("4070").map(|card| card.0), Some("RTX 4070"));
        assert_eq!(find("voodoo"), None);
        assert_eq!(find(""), None);
    }
}
