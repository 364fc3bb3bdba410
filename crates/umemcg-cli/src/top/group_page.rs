//! The page of groups: a line for each, indented below its parent.

use std::iter;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets;

use crate::args::TopSort;

use super::columns::{Column, Content, that_fit};
use super::groups::Group;
use super::model::Model;
use super::row::Row;
use super::selection_table::SelectionTable;
use super::text::sparkline;
use super::theme::Theme;

/// Draws the headings and the lines.
pub fn draw(buffer: &mut Buffer, areas: (Rect, Rect), model: &Model, theme: Theme) {
    let (columns, name_width) = that_fit(areas.1.width.into(), model.order.sort);
    let (visible, selected) = model.visible();
    let row = |&inode: &u64| {
        let group = model.groups.get(inode)?;
        let figures = columns.iter().map(|column| cell(theme, model, inode, group, column));
        let name = Line::from(name_cell(theme, group, name_width));
        Some(widgets::Row::new(iter::once(name).chain(figures)))
    };
    let widths = iter::once(name_width).chain(columns.iter().map(|column| column.width - 1)).collect();
    let (headings, rows) = (headings(theme, model, &columns), visible.iter().filter_map(row).collect());
    SelectionTable { widths, headings, rows, selected }.draw(buffer, areas, theme);
}

fn headings(theme: Theme, model: &Model, columns: &[&Column]) -> Vec<Line<'static>> {
    let mark = match (theme.is_unicode, model.order.is_reversed) {
        (true, false) => "▼",
        (true, true) => "▲",
        (false, false) => "v",
        (false, true) => "^",
    };
    let marked =
        |heading: &str, is_sorted: bool| Line::from(heading.to_owned() + if is_sorted { mark } else { "" });
    let heading =
        |column: &&Column| marked(column.heading, column.sort == Some(model.order.sort)).right_aligned();
    let name = marked("group", model.order.sort == TopSort::Name);
    iter::once(name).chain(columns.iter().map(heading)).collect()
}

/// Returns the name of a group, indented below its parent's, with a mark for folded or unfolded.
fn name_cell(theme: Theme, group: &Group, columns: usize) -> String {
    let mark = match (group.has_children == Some(true), group.is_unfolded(), theme.is_unicode) {
        (false, _, _) => "  ",
        (true, true, true) => "▾ ",
        (true, false, true) => "▸ ",
        (true, true, false) => "- ",
        (true, false, false) => "+ ",
    };
    // A deep tree leaves half of the room to names.
    let indent = (2 * group.depth).min(columns / 2);
    let name = if group.depth == 0 { "/".to_owned() } else { theme.name(&group.name) };
    theme.fit(&format!("{}{mark}{name}", " ".repeat(indent)), columns)
}

fn cell(theme: Theme, model: &Model, inode: u64, group: &Group, column: &Column) -> Line<'static> {
    let (text, style) = match (column.content, &group.row) {
        (Content::History, row) => {
            let values = model.groups.history(inode, column.width - 1, |point| point.usage_bytes);
            let limit = row.as_ref().and_then(|row| row.limit_bytes).unwrap_or(0);
            (sparkline(&values, limit as f64, theme.is_unicode), theme.spark())
        }
        (Content::Figure(figure), Some(row)) => {
            let style = match column.heading {
                "usage" => usage_style(theme, row),
                "stalled" => stalled_style(theme, row.stalled_percent),
                _ => Style::new(),
            };
            (figure(row), style)
        }
        (Content::Figure(_), None) => return Line::default(),
    };
    Line::styled(text, style).right_aligned()
}

fn usage_style(theme: Theme, row: &Row) -> Style {
    match row.limit_bytes {
        Some(limit) if row.usage_bytes >= limit / 10 * 9 => theme.warning(),
        _ => Style::new(),
    }
}

/// Returns the style of a share of stall time.
pub fn stalled_style(theme: Theme, percent: f64) -> Style {
    match percent {
        _ if percent >= 10.0 => theme.alarm(),
        _ if percent >= 1.0 => theme.warning(),
        _ => Style::new(),
    }
}
