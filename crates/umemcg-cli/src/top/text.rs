//! Text in cells of a terminal: names without control characters, figures and sparklines of a known
//! width.
//!
//! A name may contain any byte but `/` and NUL: control characters, bytes outside UTF-8, characters
//! of two columns or of none. The returned texts have exactly the requested width.

use std::ffi::OsStr;

use unicode_width::UnicodeWidthChar;

use crate::plain_text::is_invisible;

/// The bars of a sparkline, from the lowest to the highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The bars for ASCII-only terminals.
const ASCII_BARS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];

/// Returns a printable name. Control characters, and characters changing the direction or the shape
/// of their neighbours, become `?`.
pub fn printable(name: &OsStr, is_unicode: bool) -> String {
    let text = name.to_string_lossy();
    let shown = |c: char| match c {
        ' '..='~' => c,
        _ if !is_unicode || c.is_control() || is_invisible(c) => '?',
        _ => c,
    };
    text.chars().map(shown).collect()
}

fn width_of(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Returns the number of columns of a text.
fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

/// Returns a text in exactly `columns` columns: cut with a mark, or filled with spaces.
pub fn fit(text: &str, columns: usize, is_unicode: bool) -> String {
    let full = width(text);
    if full <= columns {
        return text.to_owned() + &" ".repeat(columns - full);
    }
    let Some(room) = columns.checked_sub(1) else { return String::new() };
    let (mut cut, mut used) = (String::new(), 0);
    for c in text.chars() {
        if used + width_of(c) > room {
            break;
        }
        cut.push(c);
        used += width_of(c);
    }
    cut.push(if is_unicode { '…' } else { '~' });
    // A character of two columns may have left one over.
    cut + &" ".repeat(room - used)
}

/// Formats a number of bytes in at most six characters: `999B`, `64.0M`, `1023G`.
pub fn short_bytes(bytes: u64) -> String {
    short(bytes as f64, 1024.0, "B")
}

/// Formats a number of things in at most six characters: `999`, `64.0k`, `150M`.
pub fn short_count(count: f64) -> String {
    if count > 0.0 && count < 9.95 && count.fract() > 0.05 {
        return format!("{count:.1}");
    }
    short(count, 1000.0, "")
}

fn short(mut value: f64, step: f64, unit: &str) -> String {
    if value.round() < step {
        return format!("{value:.0}{unit}");
    }
    let units = if step > 1000.0 { ["K", "M", "G", "T", "P", "E"] } else { ["k", "M", "G", "T", "P", "E"] };
    let mut place = 0;
    value /= step;
    while value >= step - 0.5 && place + 1 < units.len() {
        value /= step;
        place += 1;
    }
    let digits = if value < 99.95 { 1 } else { 0 };
    format!("{value:.digits$}{}", units[place])
}

/// Formats a percentage in at most six characters.
pub fn percent(value: f64) -> String {
    if value >= 99.95 { "100%".into() } else { format!("{value:.1}%") }
}

/// Returns a sparkline of these values, one column each, relative to the greater of `most` and the
/// highest value. An unknown value leaves a gap.
pub fn sparkline(values: &[Option<f64>], most: f64, is_unicode: bool) -> String {
    let bars = if is_unicode { BARS } else { ASCII_BARS };
    let highest = values.iter().flatten().fold(most, |a, &b| a.max(b));
    let bar = |value: f64| {
        let part = if highest > 0.0 { (value / highest).clamp(0.0, 1.0) } else { 0.0 };
        bars[((part * 8.0).ceil() as usize).clamp(1, 8) - 1]
    };
    values.iter().map(|value| value.map_or(' ', bar)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn figures_have_at_most_six_characters() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.0K"),
            (64 << 20, "64.0M"),
            ((1 << 30) - 1, "1.0G"),
            (1000 << 20, "1000M"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(short_bytes(bytes), text);
        }
        for (count, text) in
            [(0.0, "0"), (0.25, "0.2"), (3.0, "3"), (999.0, "999"), (999.6, "1.0k"), (1.5e8, "150M")]
        {
            assert_eq!(short_count(count), text);
        }
        assert_eq!((percent(99.99).as_str(), percent(5.0).as_str()), ("100%", "5.0%"));
    }

    #[test]
    fn a_name_cannot_disturb_the_screen() {
        let hostile = OsStr::from_bytes(b"a\x1b[2J\xff\n\xe2\x80\xaeb\xc3\xa4");
        assert_eq!(printable(hostile, true), "a?[2J\u{fffd}??bä");
        assert_eq!(printable(hostile, false), "a?[2J???b?");
    }

    #[test]
    fn wide_characters_are_counted_and_never_halved() {
        assert_eq!(fit("日本語", 6, true), "日本語");
        assert_eq!(fit("日本語", 5, true), "日本…");
        assert_eq!(fit("日本語", 4, true), "日… ");
        assert_eq!((fit("ab", 1, false).as_str(), fit("ab", 0, false).as_str()), ("~", ""));
    }

    #[test]
    fn a_sparkline_has_a_column_for_each_value() {
        let values = [Some(0.0), None, Some(4.0), Some(8.0)];
        assert_eq!(sparkline(&values, 0.0, true), "▁ ▄█");
        assert_eq!(sparkline(&values, 16.0, false), "_ .-");
        assert_eq!(sparkline(&[Some(0.0)], 0.0, false), "_");
    }

    proptest! {
        #[test]
        fn a_cell_is_as_wide_as_was_asked_for(name in any::<Vec<u8>>(), columns in 0usize..40, unicode: bool) {
            let shown = printable(OsStr::from_bytes(&name), unicode);
            prop_assert!(unicode || shown.is_ascii());
            prop_assert_eq!(width(&fit(&shown, columns, unicode)), columns);
        }

        #[test]
        fn no_figure_is_too_long(bytes: u64, count in 0.0f64..1e19) {
            prop_assert!(short_bytes(bytes).len() <= 6 && short_count(count).len() <= 6);
        }
    }
}
