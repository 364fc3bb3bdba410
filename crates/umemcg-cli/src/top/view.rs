//! Draws the model: a title, the pool's figures, a page, and the keys.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Widget;

use super::columns::optional;
use super::groups::ROOT;
use super::help_page::HELP;
use super::model::{Model, Page};
use super::text::{percent, short_bytes, short_count};
use super::theme::Theme;
use super::{detail_page, group_page, volume_page};

/// Draws everything. Scrolls a page without a selection back to its last line if it is scrolled
/// beyond.
pub fn draw(model: &mut Model, buffer: &mut Buffer, theme: Theme) {
    let [title, summary, headings, body, footer] = areas(buffer.area);
    model.resize(body.height.into());
    draw_title(buffer, title, model, theme);
    theme.line(&summary_of(model), Style::new(), summary).render(summary, buffer);
    match model.page {
        Page::Groups => group_page::draw(buffer, (headings, body), model, theme),
        Page::Volumes => volume_page::draw(buffer, (headings, body), model, theme),
        Page::Group(group) => {
            let lines = detail_page::lines(model, group, body.width.into(), theme);
            draw_scrolled(buffer, body, model, lines);
        }
        Page::Help => draw_scrolled(buffer, body, model, HELP.map(Line::from).into()),
    }
    theme.line(&keys(model, theme), theme.selected(), footer).render(footer, buffer);
}

/// Returns the lines of a terminal by their content: the title, the pool's figures, the headings of
/// columns, the page itself, and the keys. On a small terminal, the least important are left out.
fn areas(area: Rect) -> [Rect; 5] {
    let line = |height_min| Constraint::Length(u16::from(area.height >= height_min));
    Layout::vertical([line(2), line(8), line(4), Constraint::Fill(1), line(3)]).areas(area)
}

fn plural(nr: u64) -> &'static str {
    if nr == 1 { "" } else { "s" }
}

fn draw_title(buffer: &mut Buffer, area: Rect, model: &Model, theme: Theme) {
    let what = match model.page {
        Page::Groups => {
            let (selected, nr) = model.place();
            let nr_groups = model.nr_groups;
            format!("{nr_groups} group{}, line {} of {nr}", plural(nr_groups), selected + 1)
        }
        Page::Group(group) => theme.name(model.groups.path(group)),
        Page::Volumes => {
            let nr = model.volumes.list.len();
            format!("{nr} volume{}", plural(nr as u64))
        }
        Page::Help => "keys and columns".into(),
    };
    let title = format!("umemcg top  {what}  {}", theme.name(&model.control));
    theme.line(&title, theme.title(), area).render(area, buffer);
    let (news, style) = match (&model.message, model.silence) {
        (_, Some(silence)) => {
            (format!(" the daemon has not answered for {} s", silence.as_secs()), theme.alarm())
        }
        (Some(message), None) => (format!(" {}", theme.name(message)), theme.warning()),
        (None, None) => return,
    };
    Line::from(Span::styled(news, style)).right_aligned().render(area, buffer);
}

/// Returns the figures of the root: they cover the whole pool.
fn summary_of(model: &Model) -> String {
    let Some(row) = model.groups.get(ROOT).and_then(|root| root.row.as_ref()) else { return String::new() };
    let hits = row.hit_percent.map_or_else(|| "-".into(), percent);
    format!(
        "pool {} of {}  dirty {}  hits {hits}  in {}/s  refaults {}/s  stalled {}  reclaimed {}/s",
        short_bytes(row.usage_bytes),
        optional(row.limit_bytes),
        short_bytes(row.dirty_bytes),
        short_count(row.pages_in_per_second),
        short_count(row.refaults_per_second),
        percent(row.stalled_percent),
        short_count(row.background_reclaim_per_second + row.direct_reclaim_per_second),
    )
}

fn draw_scrolled(buffer: &mut Buffer, area: Rect, model: &mut Model, mut lines: Vec<Line<'static>>) {
    model.scroll = model.scroll.min(lines.len().saturating_sub(area.height.into()));
    Text::from(lines.split_off(model.scroll)).render(area, buffer);
}

fn keys(model: &Model, theme: Theme) -> String {
    let filter = theme.name(&model.order.filter);
    match model.page {
        Page::Groups if model.is_typing => format!("/{filter}_  Enter keeps it, Esc ends it"),
        Page::Groups if !filter.is_empty() => format!("showing {filter}  Esc all  / other  ? help  q quit"),
        Page::Groups => {
            "q quit  ? help  Enter group  s sort  r reverse  / filter  v volumes  left/right fold".into()
        }
        Page::Group(_) | Page::Help => "q quit  Esc back  up/down scroll".into(),
        Page::Volumes => "q quit  ? help  Esc groups  up/down move".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::TopSort;
    use crate::group_sample::GroupSample;
    use crate::top::detail::{Detail, Objects, Pressure};
    use crate::top::sampler::Taken;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::time::{Duration, Instant};

    const UNICODE: Theme = Theme { has_colours: true, is_unicode: true };
    const ASCII: Theme = Theme { has_colours: false, is_unicode: false };

    fn sample(usage_bytes: u64, limit_bytes: Option<u64>, pages: u64) -> GroupSample {
        let stat = ["total_pgpgin", "total_cache_miss", "pgsteal_direct", "pgsteal_kswapd"];
        let stat = stat.iter().map(|&name| (name.to_owned(), pages)).collect();
        GroupSample { usage_bytes, limit_bytes, stat, ..GroupSample::default() }
    }

    fn taken() -> Taken {
        Taken { nr_groups: 5, ..Taken::default() }
    }

    /// A pool with /batch (with two groups of hostile names below) and /web.
    fn model() -> Model {
        let mut model = Model::new("/cg".into(), TopSort::Usage, Duration::from_secs(1));
        let start = Instant::now();
        for second in 0..2u64 {
            model.begin_tick();
            let at = start + Duration::from_secs(second);
            let hostile = OsString::from_vec(b"\x1b[2J\xff".to_vec());
            let figures = [
                (ROOT, sample(96 << 20, Some(1 << 30), second * 30), true),
                (2, sample(64 << 20, Some(64 << 20), second * 30), true),
                (3, sample(32 << 20, None, 0), false),
                (4, sample(40 << 20, None, second * 20), false),
                (5, sample(24 << 20, None, second * 10), false),
            ];
            model.take(Taken {
                listings: vec![
                    (ROOT, vec![(2, "batch".into()), (3, "web".into())]),
                    (2, vec![(4, "日本語".into()), (5, hostile)]),
                ],
                samples: figures.into_iter().map(|(group, sample, has)| (group, at, sample, has)).collect(),
                ..taken()
            });
        }
        model
    }

    fn press(model: &mut Model, keys: &[KeyCode]) {
        for &code in keys {
            model.key(KeyEvent::from(code));
        }
    }

    /// Returns the screen as lines of text, without spaces at their ends.
    fn screen(model: &mut Model, width: u16, height: u16, theme: Theme) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(model, frame.buffer_mut(), theme)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y: u16| {
            let mut text = String::new();
            let mut x = 0;
            while x < width {
                let symbol = buffer[(x, y)].symbol();
                text += symbol;
                x += Line::raw(symbol).width().max(1) as u16;
            }
            text.trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }

    #[test]
    fn groups_stand_below_their_parents_with_their_figures() {
        let lines = screen(&mut model(), 80, 10, UNICODE);
        assert_eq!(
            lines,
            [
                "umemcg top  5 groups, line 1 of 5  /cg",
                "pool 96.0M of 1.0G  dirty 0B  hits 0.0%  in 30/s  refaults 0/s  stalled 0.0%  r…",
                "group                    usage▼  limit      history  hits   in/s  stalled  dirty",
                "▾ /                       96.0M   1.0G           ▁▁  0.0%     30     0.0%     0B",
                "  ▾ batch                 64.0M  64.0M           ██  0.0%     30     0.0%     0B",
                "      日本語              40.0M      -           ██  0.0%     20     0.0%     0B",
                "      ?[2J\u{fffd}               24.0M      -           ██  0.0%     10     0.0%     0B",
                "    web                   32.0M      -           ██     -      0     0.0%     0B",
                "",
                "q quit  ? help  Enter group  s sort  r reverse  / filter  v volumes  left/right…",
            ]
        );
    }

    #[test]
    fn a_tiny_terminal_shows_names_and_usage() {
        let mut model = model();
        assert_eq!(
            screen(&mut model, 20, 5, ASCII),
            [
                "umemcg top  5 group~",
                "group         usagev",
                "- /            96.0M",
                "  - batch      64.0M",
                "q quit  ? help  Ent~",
            ]
        );
        press(&mut model, &[KeyCode::Enter]);
        model.take(Taken { detail: Some((ROOT, Detail::default())), ..taken() });
        assert_eq!(screen(&mut model, 20, 5, ASCII)[2..4], ["Holds", "  usage"]);
    }

    #[test]
    fn the_page_of_a_group_says_what_it_holds_and_loses() {
        let mut model = model();
        press(&mut model, &[KeyCode::Down, KeyCode::Enter]);
        assert!(screen(&mut model, 80, 40, UNICODE).iter().any(|line| line == "reading its files"));
        let mut whole = sample(64 << 20, Some(64 << 20), 30);
        for (name, bytes) in [("file", 48 << 20), ("file_kernel", 32 << 20), ("file_dirty", 1 << 20)] {
            whole.stat.insert(name.into(), bytes);
        }
        let detail = Detail {
            sample: whole,
            events: vec![("max".into(), 7)],
            pressure: vec![Pressure { name: "some".into(), averages: [1.5, 0.0, 0.0] }],
            objects: vec![Objects { name: "dentry".into(), nr: 3, bytes: 600 }],
        };
        model.take(Taken { detail: Some((2, detail)), ..taken() });
        let text = screen(&mut model, 80, 60, UNICODE).join("\n");
        for part in [
            "umemcg top  /batch  /cg",
            "  cached by the daemon       16.0M  25.0%",
            "  kept by the kernel         32.0M  50.0%",
            "  dirty                       1.0M   1.6%",
            "  reclaimed by requests         30",
            "  some     1.5%   0.0%   0.0%",
            "  max                            7",
            "  dentry                      600B         3",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let losers: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("Reclaimed")).collect();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(losers[2]), ["(itself)", "0B", "0", "0", "0"]);
        assert_eq!(words(losers[3]), ["日本語", "40.0M", "20", "20", "0"]);
    }

    #[test]
    fn volumes_show_the_rates_and_troubles_of_their_stores() {
        let mut model = model();
        press(&mut model, &[KeyCode::Char('v')]);
        assert!(screen(&mut model, 80, 10, UNICODE)[3].contains("asking"));
        let start = Instant::now();
        for second in 0..2u64 {
            let rows = serde_json::json!([
                {"name": "models", "nr_open": 2, "data": {"store": {"url": "s3://bucket/models", "state": {
                    "trouble": "no answer\u{1b}", "gets": 10 * second, "heads": 0, "lists": 0,
                    "puts": 4 * second, "read_bytes": second << 20, "written_bytes": second << 10, "refusals": 3,
                    "failures": 0, "hidden_keys": [], "has_more_hidden": false,
                    "staged": [{"key": "k", "path": "/s/1", "bytes": 2048, "is_lost": false}]}}}},
                {"name": "scratch", "nr_open": 0, "data": {"tmpfs": {"size_bytes": null, "used_bytes": 4096}}}]);
            let rows = serde_json::from_value(rows).unwrap();
            let at = start + Duration::from_secs(second);
            model.take(Taken { volumes: Some((at, Ok(rows))), ..taken() });
        }
        let lines = screen(&mut model, 100, 10, UNICODE);
        assert_eq!(
            lines[2..6],
            [
                "volume     data                GET/s  PUT/s  read/s written/s  staged  failed  refused  look/s  open",
                "models     s3://bucket/models     10      4    1.0M      1.0K    2.0K       0        3       0     2",
                "scratch    tmpfs, 4.0K of un…      -      -       -         -       -       -        -       -     0",
                "",
            ]
        );
        assert_eq!(lines[8], "no answer?");
        press(&mut model, &[KeyCode::End]);
        let well = serde_json::json!([
            {"name": "a", "nr_open": 0, "data": {"dir": {"path": "/a"}}},
            {"name": "scratch", "nr_open": 0, "data": {"dir": {"path": "/b"}}}]);
        model.take(Taken { volumes: Some((start, Ok(serde_json::from_value(well).unwrap()))), ..taken() });
        assert_eq!(model.selected_volume, 1, "the selection stays with its volume");
        model.take(Taken { volumes: Some((start, Err("no daemon".into()))), ..taken() });
        assert!(screen(&mut model, 80, 10, UNICODE)[3].contains("cannot be listed: no daemon"));
    }

    #[test]
    fn every_line_of_a_terminal_shows_one_thing() {
        for height in 0..60 {
            let areas = areas(Rect::new(0, 0, 80, height));
            let lines: Vec<u16> = areas.iter().flat_map(|area| area.top()..area.bottom()).collect();
            assert_eq!(lines, (0..height).collect::<Vec<_>>(), "{height}");
            assert!(height == 0 || areas[3].height > 0, "{height}: a page has a line");
        }
        assert_eq!(areas(Rect::new(0, 0, 80, 5))[3].height, 2);
    }

    #[test]
    fn no_size_of_a_terminal_disturbs_any_page() {
        let mut model = model();
        model.silence = Some(Duration::from_secs(7));
        for page in [Page::Groups, Page::Group(2), Page::Volumes, Page::Help] {
            model.page = page;
            model.take(Taken { detail: Some((2, Detail::default())), ..taken() });
            for theme in [UNICODE, ASCII] {
                for (width, height) in
                    (0..90).step_by(6).flat_map(|width| (0..30).step_by(2).map(move |h| (width, h)))
                {
                    let lines = screen(&mut model, width, height, theme);
                    assert!(theme.is_unicode || lines.iter().all(|line| line.is_ascii()), "{lines:?}");
                    model.scroll = usize::MAX;
                }
            }
        }
        assert!(screen(&mut model, 80, 24, UNICODE)[0].ends_with("not answered for 7 s"));
    }
}
