//! Numbers as people read them.

/// Formats a count with thousands separators.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with a decimal prefix and three digits.
pub(crate) fn scaled(number: f64, unit: &str) -> String {
    const PREFIXES: [(f64, &str); 5] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
    let (scale, prefix) = PREFIXES.into_iter().find(|(scale, _)| number >= *scale).unwrap_or((1.0, ""));
    let scaled = number / scale;
    let decimals = if scale == 1.0 || scaled >= 100.0 { 0 } else { 1 };
    format!("{scaled:.decimals$} {prefix}{unit}").trim_end().to_string()
}

/// Formats a duration.
pub(crate) fn lasted(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{:.3} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.3} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.3} us", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

pub(crate) fn whole(number: f64) -> String {
    grouped(number.round().max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(scaled(1_499_000.0, "bit/s"), "1.5 Mbit/s");
        assert_eq!(scaled(12.0, "packets/s"), "12 packets/s");
        assert_eq!(scaled(123_456.0, "bit/s"), "123 kbit/s");
        assert_eq!([1.0, 1500.0, 2e6, 3.5e9].map(lasted), ["1 ns", "1.500 us", "2.000 ms", "3.500 s"]);
    }
}
