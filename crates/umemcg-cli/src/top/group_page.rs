//! The page of groups: a line for each, indented below its parent.

use ratatui::style::Style;

use crate::args::TopSort;

use super::canvas::Canvas;
use super::columns::{Column, Content, that_fit};
use super::groups::Group;
use super::model::Model;
use super::row::Row;
use super::text::sparkline;
use super::theme::Theme;

/// Draws the headings and the lines.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model) {
    let (columns, name_width) = that_fit(canvas.columns(), model.order.sort);
    let layout = model.layout();
    if let Some(line) = layout.headings {
        draw_headings(canvas, model, line, &columns, name_width);
    }
    let (visible, selected) = model.visible();
    for (place, &inode) in visible.iter().enumerate() {
        let Some(group) = model.groups.get(inode) else { continue };
        let line = layout.body + place as u16;
        let name = name_cell(canvas, group, name_width);
        canvas.text(0, line, &name, Style::new());
        let mut at = name_width;
        for column in &columns {
            let (text, style) = cell(canvas.theme, model, inode, group, column);
            let text = canvas.right(&text, column.width - 1);
            canvas.text(at + 1, line, &text, style);
            at += column.width;
        }
        if place == selected {
            canvas.restyle(line, canvas.theme.selected());
        }
    }
}

fn draw_headings(canvas: &mut Canvas<'_>, model: &Model, line: u16, columns: &[&Column], name_width: usize) {
    let down = match (canvas.theme.is_unicode, model.order.is_reversed) {
        (true, false) => "▼",
        (true, true) => "▲",
        (false, false) => "v",
        (false, true) => "^",
    };
    let marked = |heading: &str, is_sorted: bool| heading.to_owned() + if is_sorted { down } else { "" };
    let is_by_name = model.order.sort == TopSort::Name;
    let mut text = canvas.fit(&marked("group", is_by_name), name_width);
    for column in columns {
        let is_sorted = column.sort == Some(model.order.sort);
        text += &canvas.right(&marked(column.heading, is_sorted), column.width);
    }
    canvas.text(0, line, &text, canvas.theme.heading());
}

/// Returns the name of a group, indented below its parent's, with a mark for folded or unfolded.
fn name_cell(canvas: &Canvas<'_>, group: &Group, columns: usize) -> String {
    let mark = match (group.has_children == Some(true), group.is_unfolded(), canvas.theme.is_unicode) {
        (false, _, _) => "  ",
        (true, true, true) => "▾ ",
        (true, false, true) => "▸ ",
        (true, true, false) => "- ",
        (true, false, false) => "+ ",
    };
    // A deep tree leaves half of the room to names.
    let indent = (2 * group.depth).min(columns / 2);
    let name = if group.depth == 0 { "/".to_owned() } else { canvas.name(&group.name) };
    canvas.fit(&format!("{}{mark}{name}", " ".repeat(indent)), columns)
}

fn cell(theme: Theme, model: &Model, inode: u64, group: &Group, column: &Column) -> (String, Style) {
    let plain = Style::new();
    match (column.content, &group.row) {
        (Content::History, row) => {
            let values = model.groups.history(inode, column.width - 1, |point| point.usage_bytes);
            let limit = row.as_ref().and_then(|row| row.limit_bytes).unwrap_or(0);
            (sparkline(&values, limit as f64, theme.is_unicode), theme.spark())
        }
        (Content::Figure(figure), Some(row)) => {
            let style = match column.heading {
                "usage" => usage_style(theme, row),
                "stalled" => stalled_style(theme, row.stalled_percent),
                _ => plain,
            };
            (figure(row), style)
        }
        (Content::Figure(_), None) => (String::new(), plain),
    }
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
