//! Sizes in text, the format of control files and the command line: a decimal number with an
//! optional binary suffix (`kernel-semantics` §1.5: k m g t p e in either case, nothing after it).

use thiserror::Error;

/// Why a text is not a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParseSizeError {
    /// Not a decimal number with an optional suffix.
    #[error("not a size: expected a number with an optional suffix k, m, g, t, p or e")]
    Malformed,
    /// The number of bytes does not fit in 64 bits.
    #[error("the size does not fit in 64 bits")]
    TooLarge,
}

/// Parses `"64m"`, `"4096"`, `"1G"` into bytes. White space around the text is ignored, anything
/// else is refused.
///
/// # Errors
/// [`ParseSizeError`] when the text is not such a number.
#[doc(alias = "memparse")]
pub fn parse_size(text: &[u8]) -> Result<u64, ParseSizeError> {
    let text = text.trim_ascii();
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        return Err(ParseSizeError::Malformed);
    }
    let shift = match &text[digits..] {
        [] => 0,
        [suffix] => match suffix.to_ascii_lowercase() {
            b'k' => 10,
            b'm' => 20,
            b'g' => 30,
            b't' => 40,
            b'p' => 50,
            b'e' => 60,
            _ => return Err(ParseSizeError::Malformed),
        },
        _ => return Err(ParseSizeError::Malformed),
    };
    let mut value: u64 = 0;
    for digit in &text[..digits] {
        value = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u64::from(digit - b'0')))
            .ok_or(ParseSizeError::TooLarge)?;
    }
    value.checked_mul(1 << shift).ok_or(ParseSizeError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024_in_either_case() {
        for (text, bytes) in
            [("0", 0), ("4097", 4097), ("1k", 1024), ("64M", 64 << 20), (" 1g\n", 1 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(parse_size(text.as_bytes()), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "x", "1.0", "1xx", "1 m", "-1", "+1", "k", "1kb", "0x10"] {
            assert_eq!(parse_size(text.as_bytes()), Err(ParseSizeError::Malformed), "{text}");
        }
        for text in ["99999999999999999999", "16e", "18446744073709551616"] {
            assert_eq!(parse_size(text.as_bytes()), Err(ParseSizeError::TooLarge), "{text}");
        }
    }
}
