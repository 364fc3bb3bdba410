//! The state of the live view: the current page, and the selection.
//!
//! It changes by keys, by the size of the terminal and by new samples; it reads nothing and draws
//! nothing.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::args::TopSort;
use crate::endpoint::VolumeRow;

use super::detail::Detail;
use super::groups::{Groups, Order, ROOT};
use super::sampler::Taken;
use super::volume_rates::Volumes;

/// The most children shown on the page of a group.
pub const NR_CHILDREN: usize = 100;
/// The longest filter, in characters.
const FILTER_CHARS_MAX: usize = 200;

/// A page of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// All groups.
    Groups,
    /// One group.
    Group(u64),
    /// The volumes.
    Volumes,
    /// The keys.
    Help,
}

/// The effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Show the model.
    Show,
    /// End.
    Quit,
    /// Draw everything anew.
    Redraw,
    /// Stop, as Ctrl-Z stops programs.
    Suspend,
}

/// The state of the live view.
#[derive(Debug)]
pub struct Model {
    /// The path of the control tree, as given by the user.
    pub control: String,
    /// The time between two samples.
    pub interval: Duration,
    /// The known groups.
    pub groups: Groups,
    /// The order of the groups.
    pub order: Order,
    /// The number of groups of the tree.
    pub nr_groups: u64,
    /// The current page.
    pub page: Page,
    /// Whether keys are added to the filter.
    pub is_typing: bool,
    /// The first line of a page without a selection. Drawing keeps it within the page.
    pub scroll: usize,
    /// The page of a group; `None` until it has been read.
    pub detail: Option<(u64, Detail)>,
    /// The volumes.
    pub volumes: Volumes,
    /// The index of the selected volume.
    pub selected_volume: usize,
    /// Whether the volumes have been listed, or listing has failed.
    pub has_volumes: bool,
    /// The reason why the volumes cannot be listed.
    pub volumes_trouble: Option<String>,
    /// A message for the user, until the next key.
    pub message: Option<String>,
    /// The duration of a long silence of the daemon.
    pub silence: Option<Duration>,
    /// The groups to show.
    lines: Vec<u64>,
    selected: usize,
    /// The group of the selected line. The selection stays with it.
    selected_group: u64,
    first: usize,
    /// The page behind `Help`.
    behind_help: Page,
    /// The number of lines of a page.
    nr_lines: usize,
}

impl Model {
    /// Creates a model without any samples.
    pub fn new(control: String, sort: TopSort, interval: Duration) -> Self {
        Self {
            control,
            interval,
            groups: Groups::new(),
            order: Order { sort, is_reversed: false, filter: String::new() },
            nr_groups: 1,
            page: Page::Groups,
            is_typing: false,
            scroll: 0,
            detail: None,
            volumes: Volumes::default(),
            selected_volume: 0,
            has_volumes: false,
            volumes_trouble: None,
            message: None,
            silence: None,
            lines: vec![ROOT],
            selected: 0,
            selected_group: ROOT,
            first: 0,
            behind_help: Page::Groups,
            nr_lines: 20,
        }
    }

    /// Sets the number of lines of a page.
    pub fn resize(&mut self, nr_lines: usize) {
        self.nr_lines = nr_lines;
        self.follow();
    }

    /// Returns the groups on the screen, and the index of the selected group among them.
    pub fn visible(&self) -> (&[u64], usize) {
        let end = (self.first + self.nr_lines).min(self.lines.len());
        (&self.lines[self.first.min(end)..end], self.selected.saturating_sub(self.first))
    }

    /// Returns the index of the selected line, and the number of lines.
    pub fn place(&self) -> (usize, usize) {
        (self.selected, self.lines.len())
    }

    /// Applies an answer of the sampler.
    pub fn take(&mut self, taken: Taken) {
        self.nr_groups = taken.nr_groups;
        taken.listings.into_iter().for_each(|(group, listed)| self.groups.take_listing(group, listed));
        for (group, at, sample, has_children) in taken.samples {
            self.groups.take_sample(group, at, sample, has_children);
        }
        taken.usages.iter().for_each(|&(group, usage)| self.groups.take_usage(group, usage));
        if taken.detail.is_some() {
            self.detail = taken.detail;
        }
        if let Some((at, listed)) = taken.volumes {
            self.has_volumes = true;
            match listed {
                Ok(rows) => {
                    self.take_volumes(at, rows);
                    self.volumes_trouble = None;
                }
                Err(trouble) => self.volumes_trouble = Some(trouble),
            }
        }
        taken.gone.iter().for_each(|&group| self.groups.remove(group));
        if let Page::Group(group) = self.page
            && self.groups.get(group).is_none()
        {
            self.page = Page::Groups;
            self.message = Some("the group is gone".into());
        }
        self.refresh();
    }

    /// Applies a listing of the volumes. The selection stays with its volume.
    fn take_volumes(&mut self, at: Instant, rows: Vec<VolumeRow>) {
        let name = self.volumes.list.get(self.selected_volume).map(|volume| volume.row.name.clone());
        self.volumes.take(at, rows);
        let place = self.volumes.list.iter().position(|volume| Some(&volume.row.name) == name.as_ref());
        let last = self.volumes.list.len().saturating_sub(1);
        self.selected_volume = place.unwrap_or(self.selected_volume.min(last));
    }

    /// Starts an interval.
    pub fn begin_tick(&mut self) {
        self.groups.begin_tick();
    }

    /// Returns all lines, also those outside the screen.
    pub fn lines(&self) -> &[u64] {
        &self.lines
    }

    /// Returns the children for a group's page, by the reclaim rate, highest first.
    pub fn children(&self, group: u64) -> Vec<u64> {
        let order = Order { sort: TopSort::Reclaim, is_reversed: false, filter: String::new() };
        let mut children = self.groups.sorted_children(group, &order);
        children.truncate(NR_CHILDREN);
        children
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Outcome {
        if key.kind == KeyEventKind::Release {
            return Outcome::Show;
        }
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Outcome::Quit,
                KeyCode::Char('z') => Outcome::Suspend,
                KeyCode::Char('l') => Outcome::Redraw,
                _ => Outcome::Show,
            };
        }
        if self.is_typing {
            self.type_key(key.code);
            return Outcome::Show;
        }
        match key.code {
            KeyCode::Char('q') => return Outcome::Quit,
            KeyCode::Char('?') | KeyCode::F(1) if self.page != Page::Help => {
                self.behind_help = self.page;
                self.go(Page::Help);
            }
            KeyCode::Char('v') if self.page != Page::Volumes => self.go(Page::Volumes),
            code => match self.page {
                Page::Groups => self.groups_key(code),
                Page::Volumes => self.volumes_key(code),
                Page::Group(_) | Page::Help => self.scroll_key(code),
            },
        }
        Outcome::Show
    }

    fn go(&mut self, page: Page) {
        self.page = page;
        self.scroll = 0;
        self.follow();
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.order.filter.clear();
            }
            KeyCode::Backspace => drop(self.order.filter.pop()),
            KeyCode::Char(c) if self.order.filter.chars().count() < FILTER_CHARS_MAX => {
                self.order.filter.push(c);
            }
            _ => {}
        }
        self.refresh();
    }

    fn groups_key(&mut self, code: KeyCode) {
        let group = self.selected_group;
        match code {
            KeyCode::Enter => return self.go(Page::Group(group)),
            KeyCode::Char('s' | 'S') => {
                let sorts = TopSort::value_variants();
                let place = sorts.iter().position(|&sort| sort == self.order.sort).unwrap_or(0);
                let step = if code == KeyCode::Char('s') { 1 } else { sorts.len() - 1 };
                self.order.sort = sorts[(place + step) % sorts.len()];
            }
            KeyCode::Char('r') => self.order.is_reversed = !self.order.is_reversed,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.order.filter.clear(),
            KeyCode::Char(' ') => {
                let is_unfolded = self.groups.get(group).is_some_and(super::groups::Group::is_unfolded);
                self.groups.unfold(group, !is_unfolded);
            }
            KeyCode::Right | KeyCode::Char('l') => self.groups.unfold(group, true),
            KeyCode::Left | KeyCode::Char('h') => self.fold_or_go_up(group),
            KeyCode::Char('*') => self.groups.unfold_all(group, true),
            KeyCode::Char('-') => self.groups.unfold_all(group, false),
            code => {
                let last = self.lines.len().saturating_sub(1);
                self.selected = moved(self.selected, code, last, self.nr_lines);
                self.selected_group = self.lines.get(self.selected).copied().unwrap_or(ROOT);
                return self.follow();
            }
        }
        self.refresh();
    }

    fn fold_or_go_up(&mut self, group: u64) {
        let Some(known) = self.groups.get(group) else { return };
        if known.is_unfolded() && known.has_children == Some(true) {
            self.groups.unfold(group, false);
        } else {
            self.selected_group = known.parent;
        }
    }

    fn volumes_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Char('v') => self.go(Page::Groups),
            code => {
                let last = self.volumes.list.len().saturating_sub(1);
                self.selected_volume = moved(self.selected_volume, code, last, self.nr_lines);
            }
        }
    }

    fn scroll_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Enter | KeyCode::Char('?') => {
                let behind = if self.page == Page::Help { self.behind_help } else { Page::Groups };
                self.go(behind);
            }
            code => self.scroll = moved(self.scroll, code, usize::MAX, self.nr_lines),
        }
    }

    /// Orders the lines again. The selection stays with its group, or at its index if the group is
    /// gone.
    fn refresh(&mut self) {
        self.lines = self.groups.lines(&self.order);
        let place = self.lines.iter().position(|&group| group == self.selected_group);
        self.selected = place.unwrap_or(self.selected.min(self.lines.len().saturating_sub(1)));
        self.selected_group = self.lines.get(self.selected).copied().unwrap_or(ROOT);
        self.follow();
    }

    /// Scrolls to keep the selected line on the screen and the screen full.
    fn follow(&mut self) {
        let nr_lines = self.nr_lines.max(1);
        self.first = self.first.min(self.lines.len().saturating_sub(nr_lines)).min(self.selected);
        self.first = self.first.max((self.selected + 1).saturating_sub(nr_lines));
    }
}

/// Returns the new index for a key pressed at index `at`.
fn moved(at: usize, code: KeyCode, last: usize, nr_lines: usize) -> usize {
    let page = nr_lines.max(2) - 1;
    let to = match code {
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
        KeyCode::PageUp => at.saturating_sub(page),
        KeyCode::PageDown => at.saturating_add(page),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => last,
        _ => at,
    };
    to.min(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A model of a tree with the groups from 2 to `last` below the root.
    fn model(last: u64) -> Model {
        let mut model = Model::new("/cg".into(), TopSort::Name, Duration::from_secs(1));
        let listed = (2..=last).map(|group| (group, format!("g{group:04}").into())).collect();
        model.take(Taken { nr_groups: last, listings: vec![(ROOT, listed)], ..Taken::default() });
        model
    }

    fn press(model: &mut Model, keys: &[KeyCode]) -> Outcome {
        keys.iter().map(|&code| model.key(KeyEvent::from(code))).last().unwrap()
    }

    fn selected_name(model: &Model) -> String {
        let (visible, selected) = model.visible();
        model.groups.path(visible[selected]).into_string().unwrap()
    }

    #[test]
    fn the_selection_stays_with_its_group() {
        let mut model = model(50);
        press(&mut model, &[KeyCode::Down, KeyCode::Char('j'), KeyCode::PageDown]);
        let name = selected_name(&model);
        assert_eq!(name, "/g0022");
        press(&mut model, &[KeyCode::Char('r')]);
        assert_eq!(selected_name(&model), name);
        for nr_lines in [0, 1, 5, 80, 20] {
            model.resize(nr_lines);
            assert!(nr_lines == 0 || model.visible().1 < model.visible().0.len());
        }
        assert_eq!(selected_name(&model), name);
        model.take(Taken { gone: vec![22], ..Taken::default() });
        assert_ne!(selected_name(&model), name, "another has its place");
        press(&mut model, &[KeyCode::Home, KeyCode::Left]);
        assert_eq!(model.place(), (0, 1), "the root is folded");
    }

    #[test]
    fn a_filter_takes_keys_until_it_is_kept_or_ended() {
        let mut model = model(50);
        let typed = [KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Char('7')];
        assert_eq!(press(&mut model, &typed), Outcome::Show);
        press(&mut model, &[KeyCode::Enter, KeyCode::End]);
        assert_eq!((selected_name(&model).as_str(), model.place().1), ("/g0047", 6));
        press(&mut model, &[KeyCode::Esc]);
        assert_eq!(model.place().1, 50);
        press(&mut model, &[KeyCode::Char('/'), KeyCode::Char('x'), KeyCode::Esc]);
        assert_eq!((model.is_typing, model.place().1), (false, 50));
        let long = vec![KeyCode::Char('x'); 10 * FILTER_CHARS_MAX];
        press(&mut model, &[&[KeyCode::Char('/')], &long[..]].concat());
        assert_eq!(model.order.filter.len(), FILTER_CHARS_MAX);
    }

    #[test]
    fn every_page_leads_back_and_every_column_is_reached() {
        let mut model = model(5);
        for (there, page) in [('v', Page::Volumes), ('?', Page::Help)] {
            press(&mut model, &[KeyCode::Char(there)]);
            assert_eq!(model.page, page);
            press(&mut model, &[KeyCode::Down, KeyCode::Esc]);
            assert_eq!(model.page, Page::Groups);
        }
        let nr_sorts = TopSort::value_variants().len();
        let sorts: HashSet<String> = (0..nr_sorts)
            .map(|_| {
                press(&mut model, &[KeyCode::Char('s')]);
                format!("{:?}", model.order.sort)
            })
            .collect();
        assert_eq!(sorts.len(), nr_sorts);
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        press(&mut model, &[KeyCode::Char('/')]);
        assert_eq!(model.key(control('c')), Outcome::Quit, "whatever is typed");
    }
}
