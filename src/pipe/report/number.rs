//! Numbers for people.

/// 2850000 as `2,850,000`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Any number, to a few digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        size if !(1e-3..1e6).contains(&size) => format!("{value:.2e}"),
        size if size >= 1000.0 => grouped(value.abs().round() as u64),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_in_groups() {
        for (number, want) in [(7, "7"), (999, "999"), (1000, "1,000"), (2_850_000, "2,850,000")] {
            assert_eq!(grouped(number), want);
        }
    }

    #[test]
    fn figures() {
        for (value, want) in [(0.0, "0"), (1.25, "1.2500"), (123.45, "123.5"), (54_321.0, "54,321"), (3e-4, "3.00e-4")]
        {
            assert_eq!(figure(value), want);
        }
    }
}
