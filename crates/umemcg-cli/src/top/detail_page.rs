//! The page of one group: its memory by kind, its activity, and reclaim from each of its children.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::columns::{optional, some};
use super::detail::Detail;
use super::group_page::stalled_style;
use super::history::{NR_POINTS, Point};
use super::model::{Model, NR_CHILDREN};
use super::row::Row;
use super::text::{fit, percent, short_bytes, short_count, sparkline};
use super::theme::Theme;

/// The width from which on two blocks stand beside each other.
const WIDE: usize = 72;
const LABEL_COLUMNS: usize = 24;

/// A label, its figure of each interval, and the format of the figure.
type Figure = (&'static str, fn(&Point) -> f32, fn(f64) -> String);

/// The kinds of memory, by the line of `umemcg.stat`.
const KINDS: [(&str, &str); 10] = [
    ("kept by the kernel", "file_kernel"),
    ("memory volumes", "total_shmem"),
    ("dirty", "file_dirty"),
    ("being written", "file_writeback"),
    ("names and inodes", "slab_reclaimable"),
    ("other objects", "slab_unreclaimable"),
    ("indexes of files", "index_nodes"),
    ("bookkeeping of groups", "percpu"),
    ("reserved", "anon"),
    ("on the active list", "active_file"),
];

/// Returns the lines of the page.
pub fn lines(model: &Model, inode: u64, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let Some((_, detail)) = model.detail.as_ref().filter(|(group, _)| *group == inode) else {
        return vec![Line::from("reading its files")];
    };
    let row = model.groups.get(inode).and_then(|group| group.row.as_ref());
    let mut lines = Vec::new();
    let blocks = [
        (held(detail, theme), activity(row, theme)),
        (limits(row, theme), pressure_and_events(detail, theme)),
    ];
    for (left, right) in blocks {
        match width >= WIDE {
            true => lines.extend(beside(left, right, width / 2)),
            false => lines.extend(left.into_iter().chain([Line::default()]).chain(right)),
        }
        lines.push(Line::default());
    }
    lines.extend(history(model, inode, width, theme));
    lines.push(Line::default());
    lines.extend(reclaimed(model, inode, width, theme));
    lines.extend(objects(detail, theme));
    lines
}

fn heading(text: &str, theme: Theme) -> Line<'static> {
    Line::from(Span::styled(text.to_owned(), theme.heading()))
}

/// Returns two blocks of lines beside each other, the second from a column on.
fn beside(left: Vec<Line<'static>>, right: Vec<Line<'static>>, column: usize) -> Vec<Line<'static>> {
    let nr = left.len().max(right.len());
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    let both = |_| {
        let mut line = left.next().unwrap_or_default();
        line.push_span(" ".repeat(column.saturating_sub(line.width())));
        line.extend(right.next().unwrap_or_default());
        line
    };
    (0..nr).map(both).collect()
}

fn figure(label: &str, figure: &str, style: Style) -> Line<'static> {
    let label = fit(label, LABEL_COLUMNS, false);
    Line::from(vec![Span::raw(format!("  {label}")), Span::styled(format!("{figure:>8}"), style)])
}

fn plain(label: &str, text: &str) -> Line<'static> {
    figure(label, text, Style::new())
}

/// The memory of the subtree, by kind.
fn held(detail: &Detail, theme: Theme) -> Vec<Line<'static>> {
    let sample = &detail.sample;
    let stat = |name: &str| sample.stat(name);
    let cached = stat("file").saturating_sub(stat("file_kernel") + stat("total_shmem"));
    let kinds = KINDS.iter().map(|&(label, name)| (label, stat(name)));
    let mut lines = vec![heading("Holds", theme), plain("usage", &short_bytes(sample.usage_bytes))];
    for (label, bytes) in [("cached by the daemon", cached)].into_iter().chain(kinds) {
        let mut line = plain(label, &some(bytes));
        if bytes > 0 && sample.usage_bytes > 0 {
            let share = percent((100.0 * bytes as f64 / sample.usage_bytes as f64).min(100.0));
            line.push_span(Span::styled(format!("{share:>7}"), theme.faint()));
        }
        lines.push(line);
    }
    lines
}

/// The current activity.
fn activity(row: Option<&Row>, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![heading("Each second", theme)];
    let Some(row) = row else { return lines };
    let hits = row.hit_percent.map_or_else(|| "-".into(), percent);
    let stalled = figure("stalled", &percent(row.stalled_percent), stalled_style(theme, row.stalled_percent));
    lines.extend([
        plain("hits", &hits),
        plain("misses", &short_count(row.misses_per_second)),
        plain("pages brought in", &short_count(row.pages_in_per_second)),
        plain("refaults", &short_count(row.refaults_per_second)),
        plain("reclaimed by kswapd", &short_count(row.background_reclaim_per_second)),
        plain("reclaimed by requests", &short_count(row.direct_reclaim_per_second)),
        stalled,
    ]);
    lines
}

fn limits(row: Option<&Row>, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![heading("Limits", theme)];
    let Some(row) = row else { return lines };
    lines.extend([
        plain("limit", &optional(row.limit_bytes)),
        plain("high", &optional(row.high_bytes)),
        plain("low mark", &optional(row.low_wmark_bytes)),
        plain("above the soft limit", &some(row.excess_bytes)),
        plain("protected (min)", &some(row.min_bytes)),
        plain("reclaimed last (low)", &some(row.low_bytes)),
    ]);
    lines
}

fn pressure_and_events(detail: &Detail, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![heading("Pressure over 10, 60, 300 s", theme)];
    for pressure in &detail.pressure {
        let averages = pressure.averages.map(|average| format!("{:>7}", percent(average))).concat();
        lines.push(Line::from(format!("  {:<6}{averages}", pressure.name)));
    }
    if !detail.events.is_empty() {
        lines.push(heading("Events", theme));
        let worth = |name: &str, count: u64| match name {
            "oom" | "oom_kill" if count > 0 => theme.alarm(),
            _ => Style::new(),
        };
        let line =
            |(name, count): &(String, u64)| figure(name, &short_count(*count as f64), worth(name, *count));
        lines.extend(detail.events.iter().map(line));
    }
    lines
}

fn history(model: &Model, inode: u64, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let figures: [Figure; 5] = [
        ("usage", |point| point.usage_bytes, |bytes| short_bytes(bytes as u64)),
        ("pages in", |point| point.pages_in, short_count),
        ("refaults", |point| point.refaults, short_count),
        ("reclaimed", |point| point.reclaimed, short_count),
        ("stalled", |point| point.stalled, percent),
    ];
    let nr = width.saturating_sub(24).min(NR_POINTS);
    let mut lines = vec![heading("History", theme)];
    for (label, of, shown) in figures {
        let values = model.groups.history(inode, nr, of);
        let highest = values.iter().flatten().fold(0.0, |a: f64, &b| a.max(b));
        lines.push(Line::from(vec![
            Span::raw(format!("  {label:<11}")),
            Span::styled(sparkline(&values, 0.0, theme.is_unicode), theme.spark()),
            Span::raw(format!(" {}", shown(highest))),
        ]));
    }
    lines
}

/// Reclaim from the group itself, and from the subtree of each child.
fn reclaimed(model: &Model, inode: u64, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![heading("Reclaimed from, pages each second", theme)];
    let name_width = width.saturating_sub(40).clamp(8, 60);
    let line = |name: &str, usage: &str, rates: [&str; 3]| {
        let rates = rates.map(|rate| format!("{rate:>10}")).concat();
        Line::from(format!("  {}{usage:>8}{rates}", theme.fit(name, name_width)))
    };
    lines.push(line("", "usage", ["kswapd", "requests", "refaults"]));
    let children = model.children(inode);
    let rows: Vec<_> = children
        .iter()
        .filter_map(|&child| Some((model.groups.get(child)?, model.groups.get(child)?.row.as_ref()?)))
        .collect();
    let own = model.groups.get(inode).and_then(|group| group.row.as_ref());
    // The rest is the group's own, if all children are known.
    if let Some(own) = own.filter(|_| rows.len() == children.len() && children.len() < NR_CHILDREN) {
        let rest = |figure: fn(&Row) -> f64| {
            let below: f64 = rows.iter().map(|(_, row)| figure(row)).sum();
            short_count((figure(own) - below).max(0.0).round())
        };
        let below: u64 = rows.iter().map(|(_, row)| row.usage_bytes).sum();
        let usage = short_bytes(own.usage_bytes.saturating_sub(below));
        let rates = [
            rest(|row| row.background_reclaim_per_second),
            rest(|row| row.direct_reclaim_per_second),
            rest(|row| row.refaults_per_second),
        ];
        lines.push(line("(itself)", &usage, [&rates[0], &rates[1], &rates[2]]));
    }
    for (group, row) in rows {
        let name = theme.name(&group.name);
        let rates =
            [row.background_reclaim_per_second, row.direct_reclaim_per_second, row.refaults_per_second]
                .map(short_count);
        lines.push(line(&name, &short_bytes(row.usage_bytes), [&rates[0], &rates[1], &rates[2]]));
    }
    lines
}

fn objects(detail: &Detail, theme: Theme) -> Vec<Line<'static>> {
    if detail.objects.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![Line::default(), heading("Its own objects", theme)];
    for kind in &detail.objects {
        let mut line = plain(&theme.name(&kind.name), &short_bytes(kind.bytes));
        line.push_span(format!("{:>10}", short_count(kind.nr as f64)));
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_stand_beside_each_other() {
        let lines = |texts: &[&'static str]| texts.iter().map(|&text| Line::from(text)).collect::<Vec<_>>();
        let joined = beside(lines(&["a"]), lines(&["x", "y"]), 3);
        let shown: Vec<String> = joined.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a  x", "   y"]);
    }
}
