//! Drawing on the cells of a terminal, clipped at its edges.

use std::ffi::OsStr;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::text::{fit, printable, right, width};
use super::theme::Theme;

/// The cells of a terminal, and its capabilities.
#[derive(Debug)]
pub struct Canvas<'a> {
    buffer: &'a mut Buffer,
    /// The capabilities of the terminal.
    pub theme: Theme,
}

impl<'a> Canvas<'a> {
    /// Creates a canvas.
    pub fn new(buffer: &'a mut Buffer, theme: Theme) -> Self {
        Self { buffer, theme }
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        usize::from(self.buffer.area.width)
    }

    /// Writes a text from a column on, clipped at the right edge.
    pub fn text(&mut self, column: usize, line: u16, text: &str, style: Style) {
        let Rect { width, height, .. } = self.buffer.area;
        if let Ok(column) = u16::try_from(column)
            && column < width
            && line < height
        {
            self.buffer.set_stringn(column, line, text, usize::from(width - column), style);
        }
    }

    /// Writes a text over the whole line.
    pub fn line(&mut self, line: u16, text: &str, style: Style) {
        let filled = self.fit(text, self.columns());
        self.text(0, line, &filled, style);
    }

    /// Writes pieces of text, each in its style.
    pub fn spans(&mut self, line: u16, spans: &Line<'_>) {
        let Rect { width, height, .. } = self.buffer.area;
        if line < height {
            self.buffer.set_line(0, line, spans, width);
        }
    }

    /// Changes the style of a whole line.
    pub fn restyle(&mut self, line: u16, style: Style) {
        let width = self.buffer.area.width;
        self.buffer.set_style(Rect { x: 0, y: line, width, height: 1 }, style);
    }

    /// Returns a text in exactly `columns` columns.
    pub fn fit(&self, text: &str, columns: usize) -> String {
        fit(text, columns, self.theme.is_unicode)
    }

    /// Returns a text right-aligned in exactly `columns` columns.
    pub fn right(&self, text: &str, columns: usize) -> String {
        right(text, columns, self.theme.is_unicode)
    }

    /// Returns a name with its control characters replaced.
    pub fn name(&self, name: impl AsRef<OsStr>) -> String {
        printable(name.as_ref(), self.theme.is_unicode)
    }
}

/// Returns two blocks of lines beside each other, the second from a column on.
pub fn beside(left: Vec<Line<'static>>, right: Vec<Line<'static>>, column: usize) -> Vec<Line<'static>> {
    let nr = left.len().max(right.len());
    let mut right = right.into_iter();
    let mut left = left.into_iter();
    let both = |_| {
        let mut line = left.next().unwrap_or_default();
        let used: usize = line.spans.iter().map(|span| width(&span.content)).sum();
        line.spans.push(Span::raw(" ".repeat(column.saturating_sub(used))));
        line.spans.extend(right.next().unwrap_or_default().spans);
        line
    };
    (0..nr).map(both).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 4, 2));
        let mut canvas = Canvas::new(&mut buffer, Theme { has_colours: false, is_unicode: true });
        canvas.text(2, 0, "日本", Style::new());
        canvas.text(9, 0, "x", Style::new());
        canvas.text(0, 7, "x", Style::new());
        canvas.spans(9, &Line::from("x"));
        canvas.line(1, "longer", Style::new());
        canvas.restyle(9, Style::new());
        assert_eq!(buffer, Buffer::with_lines(["  日", "lon…"]));
        let mut nothing = Buffer::empty(Rect::ZERO);
        Canvas::new(&mut nothing, Theme { has_colours: true, is_unicode: true }).line(0, "x", Style::new());
    }

    #[test]
    fn blocks_stand_beside_each_other() {
        let lines = |texts: &[&'static str]| texts.iter().map(|&text| Line::from(text)).collect::<Vec<_>>();
        let joined = beside(lines(&["a"]), lines(&["x", "y"]), 3);
        let shown: Vec<String> = joined.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a  x", "   y"]);
    }
}
