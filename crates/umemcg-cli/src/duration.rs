//! Durations on the command line: a number and its unit.

use std::time::Duration;

/// Parses a duration such as `30s`, `500ms`, `2m`, `1h` or `0.5s`. A number without a unit means
/// seconds.
///
/// # Errors
/// A message for the user.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let explain =
        || format!("`{text}` is not a duration; write a number and a unit, such as 30s, 500ms, 2m, 1h");
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(explain());
    }
    let number: f64 = number.parse().map_err(|_| explain())?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(explain()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| explain())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_say() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0", 0),
            ("0.5s", 500),
            ("7", 7000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "s", "-1s", "1 s", "1d", "1e9", "inf", "nan", "1.2.3s", "99999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
