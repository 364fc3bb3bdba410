//! Parsing and formatting of numbers in control files.
//!
//! Limits are bytes, kept in whole pages: text is rounded *down* to a page, so `4095` is 0 and
//! `4097` reads back as 4096. The two generations of files spell "no limit" differently and agree
//! on everything else. The text ends at the first NUL, and white space around it is ignored:
//! `echo` adds a newline, and some writers add NULs.
//!
//! Numbers are written as in C: `0x` begins a hexadecimal number and any other leading `0` an octal
//! number. Linux accepts some malformed numbers (an empty text, a suffix alone, more than 64 bits);
//! they are refused here.

use umemcg_base::PAGE_SIZE_U64;

use crate::error::ControlError;

/// No limit, in bytes.
pub const UNLIMITED: u64 = u64::MAX;
/// The value shown by a v1 file for "no limit": the largest whole number of pages whose bytes fit a
/// signed 64-bit number.
pub const UNLIMITED_V1_SHOWN: u64 = i64::MAX as u64 / PAGE_SIZE_U64 * PAGE_SIZE_U64;

/// Returns the meaningful part of a written text: up to the first NUL, without surrounding white
/// space.
#[doc(alias = "strstrip")]
pub fn strip(written: &[u8]) -> &[u8] {
    let text = written.split(|&byte| byte == 0).next().unwrap_or_default();
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
    let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Parses a limit of a v1 file: bytes rounded down to a page, or `-1` for [`UNLIMITED`].
///
/// # Errors
/// [`ControlError::Invalid`] for anything else.
#[doc(alias = "page_counter_memparse")]
pub fn parse_limit_v1(written: &[u8]) -> Result<u64, ControlError> {
    parse_limit(written, b"-1")
}

/// Parses a limit of a v2 file: bytes rounded down to a page, or `max` for [`UNLIMITED`].
///
/// # Errors
/// [`ControlError::Invalid`] for anything else.
#[doc(alias = "page_counter_memparse")]
pub fn parse_limit_v2(written: &[u8]) -> Result<u64, ControlError> {
    parse_limit(written, b"max")
}

fn parse_limit(written: &[u8], unlimited: &[u8]) -> Result<u64, ControlError> {
    let text = strip(written);
    if text == unlimited {
        return Ok(UNLIMITED);
    }
    let bytes = parse_bytes(text).ok_or(ControlError::Invalid)?;
    let whole = bytes / PAGE_SIZE_U64 * PAGE_SIZE_U64;
    Ok(if whole >= UNLIMITED_V1_SHOWN { UNLIMITED } else { whole })
}

/// Parses a number of bytes with an optional suffix, without rounding.
///
/// # Errors
/// [`ControlError::Invalid`] for anything else.
pub fn parse_size_v1(written: &[u8]) -> Result<u64, ControlError> {
    parse_bytes(strip(written)).ok_or(ControlError::Invalid)
}

/// Returns the value of a limit in a v1 file.
pub fn show_limit_v1(bytes: u64) -> u64 {
    bytes.min(UNLIMITED_V1_SHOWN)
}

/// Returns the text of a limit in a v2 file.
pub fn show_limit_v2(bytes: u64) -> String {
    if bytes >= UNLIMITED_V1_SHOWN { "max".to_owned() } else { bytes.to_string() }
}

/// Parses a process or thread id; 0 stands for the writer.
///
/// # Errors
/// [`ControlError::Invalid`] for text, fractions, negative numbers, and numbers outside the range
/// of ids.
pub fn parse_pid(written: &[u8]) -> Result<u32, ControlError> {
    let number = parse_number(written)?;
    if number > i32::MAX as u64 {
        return Err(ControlError::Invalid);
    }
    Ok(number as u32)
}

/// Parses a number without a suffix, such as a switch, a percentage or an id. A leading `+` is
/// accepted.
///
/// # Errors
/// [`ControlError::Invalid`] for anything else.
#[doc(alias = "kstrtoull")]
pub fn parse_number(written: &[u8]) -> Result<u64, ControlError> {
    let text = strip(written);
    match split_number(text.strip_prefix(b"+").unwrap_or(text)) {
        Some((number, [])) => Ok(number),
        _ => Err(ControlError::Invalid),
    }
}

/// Parses a number of bytes, with or without a suffix.
#[doc(alias = "memparse")]
fn parse_bytes(text: &[u8]) -> Option<u64> {
    let (number, suffix) = split_number(text)?;
    let shift = match suffix {
        [] => 0,
        [suffix] => match suffix.to_ascii_lowercase() {
            b'k' => 10,
            b'm' => 20,
            b'g' => 30,
            b't' => 40,
            b'p' => 50,
            b'e' => 60,
            _ => return None,
        },
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// Splits a text into its leading number, in the radix given by its prefix, and the rest.
#[doc(alias = "simple_strtoull")]
fn split_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let (radix, digits) = match text {
        [b'0', b'x' | b'X', digit, ..] if digit.is_ascii_hexdigit() => (16, &text[2..]),
        [b'0', ..] => (8, text),
        _ => (10, text),
    };
    let len = digits.iter().take_while(|&&byte| char::from(byte).is_digit(radix)).count();
    let (digits, rest) = digits.split_at(len);
    let number = u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()?;
    Some((number, rest))
}

/// The largest `swappiness`.
pub const SWAPPINESS_MAX: u64 = 200;

/// Parses a write to `memory.reclaim`: a size in bytes, and optionally `swappiness=N` with N from 0
/// to 200, or `max`. There is no swap, so the second part is checked and has no effect. Returns the
/// size.
///
/// # Errors
/// [`ControlError::Invalid`] for anything else.
pub fn parse_reclaim(written: &[u8]) -> Result<u64, ControlError> {
    let mut words = strip(written).split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let bytes = parse_bytes(words.next().unwrap_or_default()).ok_or(ControlError::Invalid)?;
    for word in words {
        let value = word.strip_prefix(b"swappiness=").ok_or(ControlError::Invalid)?;
        if value != b"max" && parse_number(value)? > SWAPPINESS_MAX {
            return Err(ControlError::Invalid);
        }
    }
    Ok(bytes / PAGE_SIZE_U64 * PAGE_SIZE_U64)
}

/// Parses decimal digits and nothing else.
pub fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn limits_take_bytes_with_suffixes_and_round_down_to_a_page() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 0),
            ("4095", 0),
            ("4096", 4096),
            ("4097", 4096),
            ("64m", 64 * MIB),
            ("64M\n", 64 * MIB),
            ("  1g \t\n", 1024 * MIB),
            ("5k", 4096),
            ("1t", 1 << 40),
            ("1p", 1 << 50),
            ("1e", 1 << 60),
            ("010000", 4096),
            ("010k", 8192),
            ("00", 0),
            ("0x1000", 4096),
            ("0X8000K", 32 * MIB),
            ("0x1E000", 0x1_e000),
        ] {
            assert_eq!(parse_limit_v1(text.as_bytes()), Ok(bytes), "{text:?}");
            assert_eq!(parse_limit_v2(text.as_bytes()), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn text_fractions_and_negative_numbers_are_no_limits() {
        for text in [
            "",
            " ",
            "\n",
            "x",
            "xx",
            "1.0",
            "1xx",
            "1 0",
            "-2",
            "-1m",
            "--1",
            "+1",
            "08",
            "009",
            "0x",
            "0xg",
            "x10",
            "1kb",
            "m",
            "-",
            "18446744073709551616",
            "16e",
            "99999999999999999999999",
            "1,000",
            "٣",
        ] {
            assert_eq!(parse_limit_v1(text.as_bytes()), Err(ControlError::Invalid), "{text:?}");
            assert_eq!(parse_limit_v2(text.as_bytes()), Err(ControlError::Invalid), "{text:?}");
        }
    }

    #[test]
    fn each_generation_has_its_own_word_for_no_limit() {
        assert_eq!(parse_limit_v1(b"-1\n"), Ok(UNLIMITED));
        assert_eq!(parse_limit_v2(b"max\n"), Ok(UNLIMITED));
        assert_eq!(parse_limit_v1(b"max"), Err(ControlError::Invalid));
        assert_eq!(parse_limit_v2(b"-1"), Err(ControlError::Invalid));
        assert_eq!(parse_limit_v2(b"MAX"), Err(ControlError::Invalid));
        assert_eq!(show_limit_v1(UNLIMITED), 9_223_372_036_854_771_712);
        assert_eq!(show_limit_v2(UNLIMITED), "max");
    }

    #[test]
    fn a_limit_beyond_every_memory_is_no_limit() {
        for text in ["9223372036854771712", "9223372036854775807", "18446744073709551615", "15e"] {
            assert_eq!(parse_limit_v1(text.as_bytes()), Ok(UNLIMITED), "{text}");
        }
        assert_eq!(parse_limit_v1(b"9223372036854767616"), Ok(9_223_372_036_854_767_616));
    }

    #[test]
    fn what_follows_a_nul_does_not_count() {
        assert_eq!(parse_limit_v1(b"8192\n\0\0\0\0"), Ok(8192));
        assert_eq!(parse_pid(b"17\0garbage"), Ok(17));
        assert_eq!(strip(b"\x0b a b \0c"), b"a b");
        assert_eq!(strip(b"\0"), b"");
    }

    #[test]
    fn process_ids_are_numbers_without_a_suffix() {
        for (text, pid) in
            [("0", 0), ("1\n", 1), ("2147483647", 2_147_483_647), ("010", 8), ("0x10", 16), ("+1", 1)]
        {
            assert_eq!(parse_pid(text.as_bytes()), Ok(pid), "{text}");
        }
        for text in ["", "-1", "x", "1.0", "1 2", "2147483648", "99999999999999999999", "08", "++1", "1k"] {
            assert_eq!(parse_pid(text.as_bytes()), Err(ControlError::Invalid), "{text}");
        }
    }

    #[test]
    fn reclaim_takes_a_size_and_a_swappiness() {
        assert_eq!(parse_reclaim(b"10m\n"), Ok(10 * MIB));
        assert_eq!(parse_reclaim(b"10m swappiness=200\n"), Ok(10 * MIB));
        assert_eq!(parse_reclaim(b"10m swappiness=max"), Ok(10 * MIB));
        assert_eq!(parse_reclaim(b"4097"), Ok(4096));
        for text in ["", "x", "10m 20m", "10m swappiness=201", "10m swappiness=", "swappiness=1", "-1", "max"]
        {
            assert_eq!(parse_reclaim(text.as_bytes()), Err(ControlError::Invalid), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_a_file_shows_it_takes_back(pages in 0..(UNLIMITED_V1_SHOWN / PAGE_SIZE_U64)) {
            let bytes = pages * PAGE_SIZE_U64;
            prop_assert_eq!(parse_limit_v1(show_limit_v1(bytes).to_string().as_bytes()), Ok(bytes));
            prop_assert_eq!(parse_limit_v2(show_limit_v2(bytes).as_bytes()), Ok(bytes));
        }

        #[test]
        fn rounding_goes_down_by_less_than_a_page(bytes in 0..UNLIMITED_V1_SHOWN) {
            let limit = parse_limit_v1(bytes.to_string().as_bytes()).unwrap();
            prop_assert!(limit <= bytes && bytes - limit < PAGE_SIZE_U64 && limit.is_multiple_of(PAGE_SIZE_U64));
        }

        #[test]
        fn no_text_is_too_strange(text in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (parse_limit_v1(&text), parse_limit_v2(&text), parse_pid(&text), parse_reclaim(&text));
            let _ = parse_number(&text);
        }
    }
}
