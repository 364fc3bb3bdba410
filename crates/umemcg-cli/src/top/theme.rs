//! The capabilities of the terminal: colours, and characters beyond ASCII.

use std::ffi::{OsStr, OsString};

use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::text::{fit, printable};

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    /// Colours may be used; otherwise only bold and reversed text.
    pub has_colours: bool,
    /// Characters beyond ASCII may be used.
    pub is_unicode: bool,
}

impl Theme {
    /// Returns the theme for the environment: `NO_COLOR`, and the locale's character set.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        // The first set variable counts, as in the C library.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let charset = locale.to_string_lossy().to_lowercase();
        Self {
            has_colours: set("NO_COLOR").is_none(),
            is_unicode: charset.contains("utf-8") || charset.contains("utf8"),
        }
    }

    fn colour(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// Returns a name with its control characters replaced.
    pub fn name(self, name: impl AsRef<OsStr>) -> String {
        printable(name.as_ref(), self.is_unicode)
    }

    /// Returns a text in exactly `columns` columns.
    pub fn fit(self, text: &str, columns: usize) -> String {
        fit(text, columns, self.is_unicode)
    }

    /// Returns a text as wide as `area`.
    pub fn line(self, text: &str, style: Style, area: Rect) -> Line<'static> {
        Line::styled(self.fit(text, area.width.into()), style)
    }

    /// The style of titles.
    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The style of headings.
    pub fn heading(self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// The style of the selected line.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The style of less important text.
    pub fn faint(self) -> Style {
        self.colour(Color::DarkGray)
    }

    /// The style of a sparkline.
    pub fn spark(self) -> Style {
        self.colour(Color::Green)
    }

    /// The style of a figure worth a look.
    pub fn warning(self) -> Style {
        self.colour(Color::Yellow)
    }

    /// The style of an alarming figure or message.
    pub fn alarm(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theme(variables: &[(&str, &str)]) -> Theme {
        Theme::of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into()))
    }

    #[test]
    fn the_first_locale_that_is_set_counts() {
        assert!(theme(&[("LANG", "en_GB.UTF-8")]).is_unicode);
        assert!(theme(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8"), ("LANG", "C")]).is_unicode);
        assert!(!theme(&[("LC_ALL", "POSIX"), ("LANG", "en_GB.UTF-8")]).is_unicode);
        assert!(!theme(&[]).is_unicode);
    }

    #[test]
    fn no_color_takes_the_colours_and_leaves_the_rest() {
        let plain = theme(&[("NO_COLOR", "1")]);
        assert_eq!((plain.warning(), plain.alarm().fg), (Style::new(), None));
        assert_eq!(plain.selected(), theme(&[]).selected());
        assert!(theme(&[("NO_COLOR", "")]).has_colours, "empty means unset");
    }
}
