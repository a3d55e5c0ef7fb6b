//! Mutations of a seed: faults of disks and networks, and unexpected values.

use super::random::Random;

/// In place of a number or a word.
const VALUES: [&[u8]; 22] = [
    b"0",
    b"-1",
    b"1",
    b"255",
    b"65536",
    b"2147483648",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"18446744073709551615",
    b"99999999999999999999999999",
    b"1e308",
    b"1e999",
    b"-0.0",
    b"NaN",
    b".inf",
    b"null",
    b"true",
    b"\"\"",
    b"[]",
    b"{}",
    b"${X}",
];

/// Put in anywhere.
const PIECES: [&[u8]; 18] = [
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\xed\xa0\x80",
    b"\xe2\x80\xae",
    b"\x1b[31m",
    b"\n",
    b"\r",
    b"\t",
    b"\"",
    b"{",
    b"[",
    b"}",
    b": ",
    b"&a ",
    b"*a ",
    b"- ",
];

/// One to four changes of `input`; `other` is a seed that pieces are taken from.
pub fn mutate(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        match random.below(10) {
            0 => flip(&mut bytes, random),
            1 => bytes.truncate(index(&bytes, random)),
            2 => remove(&mut bytes, random),
            3 => repeat(&mut bytes, random),
            4 => insert(&mut bytes, random),
            5 => swap_lines(&mut bytes, random),
            6 => splice(&mut bytes, other, random),
            _ => replace_token(&mut bytes, random),
        }
    }
    bytes
}

fn index(bytes: &[u8], random: &mut Random) -> usize {
    random.below(bytes.len() + 1)
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..=random.below(8) {
        if !bytes.is_empty() {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
    }
}

fn remove(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = index(bytes, random);
    let end = bytes.len().min(at + 1 + random.below(64));
    bytes.drain(at..end);
}

fn repeat(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = index(bytes, random);
    let end = bytes.len().min(at + 1 + random.below(64));
    let piece = bytes[at..end].repeat(1 << random.below(9));
    bytes.splice(at..at, piece);
}

fn insert(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = index(bytes, random);
    let piece = random.choose(&PIECES).repeat(1 << random.below(9));
    bytes.splice(at..at, piece);
}

fn splice(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let (at, from) = (index(bytes, random), random.below(other.len() + 1));
    let end = other.len().min(from + 1 + random.below(256));
    bytes.splice(at..at, other[from..end].iter().copied());
}

fn swap_lines(bytes: &mut Vec<u8>, random: &mut Random) {
    let mut lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let (one, two) = (random.below(lines.len()), random.below(lines.len()));
    lines.swap(one, two);
    *bytes = lines.join(&b'\n');
}

/// A number or a word becomes another.
fn replace_token(bytes: &mut Vec<u8>, random: &mut Random) {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(byte);
    let from = index(bytes, random);
    let Some(start) = bytes[from..].iter().position(is_token).map(|at| from + at) else { return };
    let end = bytes[start..].iter().position(|byte| !is_token(byte)).map_or(bytes.len(), |at| start + at);
    bytes.splice(start..end, random.choose(&VALUES).iter().copied());
}
