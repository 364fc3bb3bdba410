//! The page of volumes: the data of each volume, and the request rates of its store.

use std::iter;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Row, Widget};

use crate::endpoint::VolumeSource;

use super::columns::some;
use super::model::Model;
use super::selection_table::SelectionTable;
use super::text::{short_bytes, short_count};
use super::theme::Theme;
use super::volume_rates::Volume;

/// Least width of the names.
const NAME_MIN: usize = 10;
/// Least width of the data column, unless it is left out.
const DATA_MIN: usize = 12;
/// On a terminal with fewer columns, figures take precedence over the data column.
const NARROW: usize = 64;

type Cell = fn(&Volume) -> String;

/// The headings and widths of the figures, the least important last.
const FIGURES: [(&str, usize, Cell); 9] = [
    ("GET/s", 7, |volume| rate(volume, volume.rates.gets)),
    ("PUT/s", 7, |volume| rate(volume, volume.rates.puts)),
    ("read/s", 8, |volume| byte_rate(volume, volume.rates.read_bytes)),
    ("written/s", 10, |volume| byte_rate(volume, volume.rates.written_bytes)),
    ("staged", 8, staged),
    ("failed", 8, |volume| volume.store().map_or_else(dash, |state| short_count(state.failures as f64))),
    ("refused", 9, |volume| volume.store().map_or_else(dash, |state| short_count(state.refusals as f64))),
    ("look/s", 8, |volume| rate(volume, volume.rates.looks)),
    ("open", 6, |volume| short_count(volume.row.nr_open as f64)),
];

fn dash() -> String {
    "-".into()
}

fn rate(volume: &Volume, rate: f64) -> String {
    volume.store().map_or_else(dash, |_| short_count(rate))
}

fn byte_rate(volume: &Volume, rate: f64) -> String {
    volume.store().map_or_else(dash, |_| short_bytes(rate as u64))
}

/// Staged bytes, not in the store yet.
fn staged(volume: &Volume) -> String {
    volume.store().map_or_else(dash, |state| some(state.staged.iter().map(|file| file.bytes).sum()))
}

/// Returns the text of the data column: the location of a volume's data.
fn data(volume: &Volume) -> String {
    match &volume.row.data {
        VolumeSource::Dir { path } => path.to_string_lossy().into_owned(),
        VolumeSource::Tmpfs { size_bytes, used_bytes } => {
            let size = size_bytes.map_or_else(|| "unlimited".into(), short_bytes);
            format!("tmpfs, {} of {size}", short_bytes(*used_bytes))
        }
        VolumeSource::Store(store) => store.url.clone(),
    }
}

/// Returns the trouble of a volume; `None` if there is none.
fn trouble(volume: &Volume) -> Option<String> {
    let state = volume.store()?;
    let lost = state.staged.iter().filter(|file| file.is_lost).count();
    match &state.trouble {
        Some(trouble) => Some(trouble.clone()),
        None if lost > 0 => {
            Some(format!("{lost} files will not be stored; `umemcg volume list --json` names them"))
        }
        None => None,
    }
}

/// Draws the headings, the volumes, and the trouble of the selected volume.
pub fn draw(buffer: &mut Buffer, (headings, mut body): (Rect, Rect), model: &Model, theme: Theme) {
    let width = usize::from(body.width);
    let for_data = if width < NARROW { 0 } else { DATA_MIN };
    let mut left = width.saturating_sub(NAME_MIN + for_data);
    let mut figures = Vec::new();
    for figure in &FIGURES {
        let Some(rest) = left.checked_sub(figure.1) else { break };
        left = rest;
        figures.push(figure);
    }
    let left = left + for_data;
    let room = left + NAME_MIN.min(width);
    let name_width = if left >= DATA_MIN { (room / 3).max(NAME_MIN) } else { room };
    // None without room for the data column.
    let data_width = (room - name_width).checked_sub(1);
    let columns = |name: &str, data: &str, cell: &dyn Fn(usize) -> String| {
        let texts = iter::once(theme.fit(name, name_width));
        let texts = texts.chain(data_width.map(|data_width| theme.fit(data, data_width)));
        let figures = (0..figures.len()).map(|place| Line::from(cell(place)).right_aligned());
        texts.map(Line::from).chain(figures).collect::<Vec<_>>()
    };
    let of_figures = figures.iter().map(|figure| figure.1 - 1);
    let widths = iter::once(name_width).chain(data_width).chain(of_figures).collect();
    let selected = model.selected_volume;
    // The last line is for the trouble of the selected volume.
    let mut last = Rect::ZERO;
    if body.height > 2 {
        [body, last] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(body);
    }
    let nr_lines = usize::from(body.height);
    let first = (selected + 1).saturating_sub(nr_lines);
    let why_empty = empty(model);
    let shown: &[Volume] = if why_empty.is_some() { &[] } else { &model.volumes.list[..] };
    let row = |volume: &Volume| {
        let (name, data) = (theme.name(&volume.row.name), theme.name(data(volume)));
        let style = if trouble(volume).is_some() { theme.alarm() } else { Style::new() };
        Row::new(columns(&name, &data, &|place| (figures[place].2)(volume))).style(style)
    };
    let rows = shown.iter().skip(first).take(nr_lines).map(row).collect();
    let of_columns = columns("volume", "data", &|place| figures[place].0.to_owned());
    let table =
        SelectionTable { widths, headings: of_columns, rows, selected: selected.saturating_sub(first) };
    table.draw(buffer, (headings, body), theme);
    let below = shown.get(selected).and_then(trouble).map(|trouble| (trouble, last, theme.alarm()));
    if let Some((text, area, style)) = why_empty.map(|why| (why, body, Style::new())).or(below) {
        theme.line(&theme.name(text), style, area).render(area, buffer);
    }
}

/// Returns the reason for an empty list.
fn empty(model: &Model) -> Option<String> {
    match (&model.volumes_trouble, model.volumes.list.is_empty()) {
        (Some(trouble), _) => Some(format!("the volumes cannot be listed: {trouble}")),
        (None, true) if model.has_volumes => Some("no volumes".into()),
        (None, true) => Some("asking the daemon".into()),
        (None, false) => None,
    }
}
