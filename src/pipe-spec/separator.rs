//! What stands between the cells of a table: found in its first line, by the same rule for everyone who reads one.

use std::path::Path;

/// Bytes of a file that are looked at.
pub const LOOKED_AT: u64 = 1 << 16;

/// In `.tsv` a tab. In `.csv` what is most often in the first line, outside of quotes; a comma where there is none.
pub fn find(path: &Path, start: &[u8]) -> u8 {
    if is_tsv(path) {
        return b'\t';
    }
    let count = |separator: u8| first_line(start).filter(|byte| *byte == separator).count();
    // The last of equal ones is taken.
    [b'|', b'\t', b';', b','].into_iter().max_by_key(|separator| count(*separator)).unwrap_or(b',')
}

/// `train.tsv`, `train.tsv.gz`.
fn is_tsv(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    name.trim_end_matches(".gz").trim_end_matches(".zst").ends_with(".tsv")
}

/// The bytes of the first line that is not blank, without what is in quotes.
fn first_line(start: &[u8]) -> impl Iterator<Item = u8> {
    let mut quoted = false;
    let start = start.trim_ascii_start().iter().copied();
    start.take_while(|byte| *byte != b'\n').filter(move |byte| {
        quoted ^= *byte == b'"';
        !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators() {
        for (name, start, want) in [
            ("a.csv", "text,label\n1;2;3,x\n", b','),
            ("a.csv", "text;label\n\"a, b, c\";x\n", b';'),
            ("a.csv", "\"one, two, three\";label\n", b';'),
            ("a.csv", "\u{feff}text;label\r\n", b';'),
            ("a.csv", "\n\ntext\tlabel\n", b'\t'),
            ("a.csv", "a|b|c\n", b'|'),
            ("a.csv", "a,b;c\n", b','),
            ("a.csv", "text\n", b','),
            ("a.csv", "", b','),
            ("a.tsv", "one, two\tlabel\n", b'\t'),
            ("a.TSV.gz", "one, two", b'\t'),
        ] {
            assert_eq!(find(Path::new(name), start.as_bytes()), want, "{name} {start:?}");
        }
    }
}
