//! Escaping of texts with names chosen by tenants, for terminals, logs and tables. A name may
//! contain any byte but `/` and NUL, such as escape sequences and newlines.

use std::borrow::Cow;

/// Returns whether a character is invisible itself but affects the display of others.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns a text in one line, with control and invisible characters escaped.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() || is_invisible(c))
}

/// As [`one_line`], of a text of several lines.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| (c.is_control() || is_invisible(c)) && !matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, acts: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&acts) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match acts(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_escaped() {
        let hostile = "a\u{1b}[2J\nb\t\u{202e}c\u{9b}ü";
        assert_eq!(one_line(hostile), r"a\u{1b}[2J\nb\t\u{202e}c\u{9b}ü");
        assert_eq!(lines(hostile), "a\\u{1b}[2J\nb\t\\u{202e}c\\u{9b}ü");
        assert!(matches!(one_line("a b ü"), Cow::Borrowed(_)));
    }
}
