//! Numbers for people.

use pipe_spec::pipeline::LossUnit;

/// So many tokens or samples in a second: `12.5 samples/s`.
pub fn speed(per_second: f64, unit: LossUnit) -> String {
    let unit = unit.name();
    match per_second {
        _ if per_second < 100.0 => format!("{per_second:.1} {unit}/s"),
        _ => format!("{} {unit}/s", grouped(per_second as u64)),
    }
}

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
        size if size >= 1000.0 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", grouped(size.round() as u64))
        }
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.4}"),
    }
}

/// After a batch and its accumulation: by how many ranks a step is shared; nothing for one.
pub fn times_ranks(ranks: u32) -> String {
    if ranks > 1 { format!(" x {ranks} ranks") } else { String::new() }
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
    fn speeds() {
        assert_eq!(speed(12.34, LossUnit::Samples), "12.3 samples/s");
        assert_eq!(speed(10_240.0, LossUnit::Tokens), "10,240 tokens/s");
    }

    #[test]
    fn figures() {
        for (value, want) in [(0.0, "0"), (1.25, "1.2500"), (123.45, "123.5"), (54_321.0, "54,321"), (3e-4, "3.00e-4")]
        {
            assert_eq!(figure(value), want);
        }
    }
}
