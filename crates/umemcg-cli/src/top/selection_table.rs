//! A table with headings and a selected row.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Row, StatefulWidget, Table, TableState};

use super::theme::Theme;

/// A table to draw.
#[derive(Debug)]
pub struct SelectionTable<'a> {
    /// The widths of the columns. There is one space between two columns.
    pub widths: Vec<usize>,
    /// The headings.
    pub headings: Vec<Line<'a>>,
    /// The rows that fit on the page.
    pub rows: Vec<Row<'a>>,
    /// The index of the selected row.
    pub selected: usize,
}

impl SelectionTable<'_> {
    /// Draws the headings, unless their area is empty, and the rows below them.
    pub fn draw(self, buffer: &mut Buffer, (headings, body): (Rect, Rect), theme: Theme) {
        let widths = self.widths.into_iter().map(|width| Constraint::Length(width as u16));
        let table = Table::new(self.rows, widths).row_highlight_style(theme.selected());
        let table = match headings.is_empty() {
            true => table,
            false => table.header(Row::new(self.headings).style(theme.heading())),
        };
        let mut state = TableState::new().with_selected(self.selected);
        StatefulWidget::render(table, headings.union(body), buffer, &mut state);
    }
}
