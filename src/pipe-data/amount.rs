//! Numbers as people write amounts: with a currency, a percent sign, or marks between thousands.

const SIGNS: [char; 6] = ['$', '€', '£', '¥', '₹', '%'];

/// The number of such a text: `$253,765`, `51.182,14`, `12 %`. Nothing for a plain number, and where it is not clear whether a mark
/// stands between thousands or before decimals.
pub fn amount(text: &str) -> Option<f64> {
    let bare = text.trim().trim_matches(|letter: char| SIGNS.contains(&letter) || letter.is_whitespace());
    let has_sign = bare.len() < text.trim().len();
    let (minus, digits) = bare.strip_prefix('-').map_or(("", bare), |digits| ("-", digits));
    let digits = digits.trim_start_matches(|letter: char| SIGNS.contains(&letter));
    if !digits.starts_with(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let marks: Vec<char> = digits.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    let number = match marks[..] {
        [] if has_sign => digits.to_owned(),
        [','] if has_sign && is_grouped(digits, ',') => digits.replace(',', ""),
        [_] if has_sign => digits.replace(',', "."),
        [mark @ ('.' | ','), _, ..] if marks.iter().all(|other| *other == mark) && is_grouped(digits, mark) => {
            digits.replace(mark, "")
        }
        [mark @ ('.' | ','), ref between @ .., last @ ('.' | ',')]
            if last != mark && between.iter().all(|other| *other == mark) =>
        {
            let (whole, decimals) = digits.rsplit_once(last)?;
            is_grouped(whole, mark).then(|| format!("{}.{decimals}", whole.replace(mark, "")))?
        }
        _ => return None,
    };
    format!("{minus}{number}").parse().ok()
}

/// Whether all but the first group have three digits.
fn is_grouped(digits: &str, mark: char) -> bool {
    let mut groups = digits.split(mark);
    groups.next().is_some_and(|first| (1..=3).contains(&first.len())) && groups.all(|group| group.len() == 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_people_write_them() {
        for (text, want) in [
            ("$253,765", Some(253_765.0)),
            ("-$1,250.50", Some(-1250.5)),
            ("51.182,14", Some(51_182.14)),
            ("1,234,567", Some(1_234_567.0)),
            ("1.234.567", Some(1_234_567.0)),
            ("12 %", Some(12.0)),
            ("€ 9,99", Some(9.99)),
            ("3.5 €", Some(3.5)),
            // Plain, or not clear.
            ("12", None),
            ("1,234", None),
            ("1.234", None),
            ("12,34,5", None),
            ("10.0.0.1", None),
            ("$", None),
            ("v1.2", None),
            ("", None),
        ] {
            assert_eq!(amount(text), want, "{text}");
        }
    }
}
