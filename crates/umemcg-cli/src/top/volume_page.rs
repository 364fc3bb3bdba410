//! The page of volumes: the data of each volume, and the request rates of its store.

use ratatui::style::Style;

use crate::endpoint::VolumeSource;

use super::canvas::Canvas;
use super::columns::some;
use super::model::Model;
use super::text::{short_bytes, short_count};
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
pub fn draw(canvas: &mut Canvas<'_>, model: &Model) {
    let layout = model.layout();
    let width = canvas.columns();
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
    let data_width = room - name_width;
    let columns = |canvas: &Canvas<'_>, name: &str, data: &str, cell: &dyn Fn(usize) -> String| {
        let mut text = canvas.fit(name, name_width);
        if data_width > 0 {
            text += &format!(" {}", canvas.fit(data, data_width - 1));
        }
        for (place, figure) in figures.iter().enumerate() {
            text += &canvas.right(&cell(place), figure.1);
        }
        text
    };
    if let Some(line) = layout.headings {
        let text = columns(canvas, "volume", "data", &|place| figures[place].0.to_owned());
        canvas.text(0, line, &text, canvas.theme.heading());
    }
    if let Some(why) = empty(model) {
        let text = canvas.name(&why);
        return canvas.line(layout.body, &text, Style::new());
    }
    let list = &model.volumes.list;
    // The last line is for the trouble of the selected volume.
    let nr_lines = if layout.nr_lines() > 2 { layout.nr_lines() - 1 } else { layout.nr_lines() };
    let selected = model.selected_volume();
    let first = (selected + 1).saturating_sub(nr_lines);
    for (place, volume) in list.iter().enumerate().skip(first).take(nr_lines) {
        let line = layout.body + (place - first) as u16;
        let (name, data) = (canvas.name(&volume.row.name), canvas.name(data(volume)));
        let text = columns(canvas, &name, &data, &|place| (figures[place].2)(volume));
        let style = if trouble(volume).is_some() { canvas.theme.alarm() } else { Style::new() };
        canvas.line(line, &text, style);
        if place == selected {
            canvas.restyle(line, canvas.theme.selected());
        }
    }
    if let Some(trouble) = list.get(selected).and_then(trouble)
        && nr_lines < layout.nr_lines()
    {
        let text = canvas.name(trouble);
        canvas.line(layout.body + layout.nr_body - 1, &text, canvas.theme.alarm());
    }
}

/// Returns the reason for an empty list.
fn empty(model: &Model) -> Option<String> {
    match (&model.volumes_trouble, model.volumes.list.is_empty()) {
        (Some(trouble), _) => Some(format!("the volumes cannot be listed: {trouble}")),
        (None, true) if model.knows_volumes() => Some("no volumes".into()),
        (None, true) => Some("asking the daemon".into()),
        (None, false) => None,
    }
}
