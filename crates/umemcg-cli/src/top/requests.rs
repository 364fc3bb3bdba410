//! The next reads of the live view.
//!
//! In each interval all groups on the screen are read. Other groups are read for a part of the
//! interval, so a tree of thousands costs little more than a small tree.

use std::collections::HashSet;
use std::time::Duration;

use crate::args::TopSort;

use super::groups::{Group, ROOT};
use super::model::{Model, Page};
use super::sampler::{Asked, Round, Wanted};

/// The most groups off the screen to read in one request.
const NR_ROUND: usize = 1024;
/// The most directories off the screen to list in one request.
const NR_LISTINGS: usize = 64;
/// The divisor of an interval for reads of groups off the screen.
const ROUND_PART: u32 = 8;
const ROUND_TIME_MAX: Duration = Duration::from_millis(200);

/// Returns the reads for an interval.
pub fn for_interval(model: &Model) -> Wanted {
    let shown: Vec<u64> = match model.page {
        Page::Groups => model.visible().0.to_vec(),
        Page::Group(group) => [group].into_iter().chain(model.children(group)).collect(),
        Page::Volumes | Page::Help => Vec::new(),
    };
    let mut samples = shown.clone();
    if !samples.contains(&ROOT) {
        samples.insert(0, ROOT);
    }
    let mut listings: Vec<u64> = shown.into_iter().filter(|&group| lists(model, group)).collect();
    let mut others: Vec<u64> = model.lines().iter().copied().filter(|&group| lists(model, group)).collect();
    others.sort_by_key(|&group| model.groups.get(group).map(|known| known.listed_tick));
    listings.extend(others.into_iter().take(NR_LISTINGS));
    listings.sort_unstable();
    listings.dedup();
    Wanted {
        samples: asked(model, samples),
        listings: asked(model, listings),
        detail: asked_detail(model),
        volumes: model.page == Page::Volumes,
        round: round(model),
        round_reads: if model.order.sort == TopSort::Usage { Round::Usage } else { Round::Figures },
        round_time: (model.interval / ROUND_PART).min(ROUND_TIME_MAX),
    }
}

/// Returns the reads to make at once, for figures and listings still missing on the screen.
pub fn for_screen(model: &Model) -> Option<Wanted> {
    let (visible, _) = model.visible();
    let has_no_figures = |group: u64| model.groups.get(group).is_some_and(|known| known.row.is_none());
    // Whether a group has children comes with its figures; a filter does not wait for them.
    let is_worth_it = |known: &Group| known.has_children == Some(true) || !model.order.filter.is_empty();
    let never_listed = |group: u64| {
        let known = model.groups.get(group).filter(|_| lists(model, group));
        known.is_some_and(|known| known.listed_tick == 0 && is_worth_it(known))
    };
    let mut samples: Vec<u64> = Vec::new();
    let mut listings: Vec<u64> = Vec::new();
    match model.page {
        Page::Groups => {
            samples.extend(visible.iter().copied().filter(|&group| has_no_figures(group)));
            // A filter searches all groups.
            let searched = if model.order.filter.is_empty() { visible } else { model.lines() };
            listings.extend(searched.iter().copied().filter(|&group| never_listed(group)).take(NR_LISTINGS));
        }
        Page::Group(group) => {
            listings.extend(Some(group).filter(|&group| never_listed(group)));
            samples.extend(model.children(group).into_iter().filter(|&child| has_no_figures(child)));
        }
        Page::Volumes | Page::Help => {}
    }
    let is_detail_known =
        matches!((model.page, &model.detail), (Page::Group(group), Some((known, _))) if group == *known);
    let wanted = Wanted {
        samples: asked(model, samples),
        listings: asked(model, listings),
        detail: if is_detail_known { None } else { asked_detail(model) },
        volumes: model.page == Page::Volumes && !model.has_volumes,
        ..Wanted::default()
    };
    (wanted != Wanted::default()).then_some(wanted)
}

/// Returns whether to list a group's children: they are visible, or searched.
fn lists(model: &Model, group: u64) -> bool {
    let is_open = |known: &Group| {
        known.is_unfolded() || !model.order.filter.is_empty() || model.page == Page::Group(group)
    };
    model.groups.get(group).is_some_and(|known| is_open(known) && known.has_children != Some(false))
}

/// Returns the groups off the screen, ordered by the time of their last read, oldest first.
fn round(model: &Model) -> Vec<Asked> {
    if model.page != Page::Groups || model.order.sort == TopSort::Name {
        return Vec::new();
    }
    let on_screen: HashSet<u64> = model.visible().0.iter().copied().chain([ROOT]).collect();
    let mut others: Vec<u64> =
        model.lines().iter().copied().filter(|group| !on_screen.contains(group)).collect();
    others.sort_by_key(|&group| model.groups.get(group).map(|known| known.sampled_tick));
    others.truncate(NR_ROUND);
    asked(model, others)
}

fn asked(model: &Model, groups: Vec<u64>) -> Vec<Asked> {
    groups.into_iter().map(|group| Asked { group, names: model.groups.names(group) }).collect()
}

fn asked_detail(model: &Model) -> Option<Asked> {
    match model.page {
        Page::Group(group) => asked(model, vec![group]).pop(),
        Page::Groups | Page::Volumes | Page::Help => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group_sample::GroupSample;
    use crate::top::detail::Detail;
    use crate::top::model::Outcome;
    use crate::top::sampler::Taken;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use std::time::Instant;

    /// Answers a request like a tree with the groups from 2 to `last` below the root.
    fn answer(wanted: &Wanted, last: u64) -> Taken {
        let groups = || 2..=last;
        let list = |asked: &Asked| match asked.group {
            ROOT => (ROOT, groups().map(|group| (group, format!("g{group:04}").into())).collect()),
            group => (group, Vec::new()),
        };
        let sample = |asked: &Asked| {
            let sample = GroupSample { usage_bytes: asked.group, ..GroupSample::default() };
            (asked.group, Instant::now(), sample, asked.group == ROOT)
        };
        Taken {
            nr_groups: last,
            listings: wanted.listings.iter().map(list).collect(),
            samples: wanted.samples.iter().map(sample).collect(),
            usages: wanted.round.iter().map(|asked| (asked.group, asked.group)).collect(),
            detail: wanted.detail.as_ref().map(|asked| (asked.group, Detail::default())),
            ..Taken::default()
        }
    }

    fn model(last: u64) -> Model {
        let mut model = Model::new("/cg".into(), TopSort::Name, Duration::from_secs(1));
        model.begin_tick();
        let wanted = for_interval(&model);
        model.take(answer(&wanted, last));
        while let Some(wanted) = for_screen(&model) {
            model.take(answer(&wanted, last));
        }
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
    fn an_interval_reads_the_screen_and_a_part_of_the_rest() {
        let mut model = model(3000);
        press(&mut model, &[KeyCode::Char('s')]);
        let on_screen: HashSet<u64> = model.visible().0.iter().copied().chain([ROOT]).collect();
        let mut seen = HashSet::new();
        for _ in 0..3 {
            model.begin_tick();
            let wanted = for_interval(&model);
            let samples: HashSet<u64> = wanted.samples.iter().map(|asked| asked.group).collect();
            assert!(on_screen.is_subset(&samples) && samples.len() <= on_screen.len(), "{}", samples.len());
            assert!(wanted.round.len() <= NR_ROUND && wanted.listings.len() <= NR_LISTINGS + on_screen.len());
            seen.extend(wanted.round.iter().map(|asked| asked.group));
            let mut taken = answer(&wanted, 3000);
            // The order on the screen stays as it is.
            taken.usages.iter_mut().for_each(|(_, usage)| *usage = 0);
            model.take(taken);
        }
        assert_eq!(seen.len(), 3000 - on_screen.len(), "each has had a turn");
        model.order.sort = TopSort::Name;
        assert_eq!(for_interval(&model).round, [], "names need no figures");
    }

    #[test]
    fn what_comes_on_the_screen_is_read_at_once_and_only_once() {
        let mut model = model(3000);
        assert_eq!(for_screen(&model), None);
        press(&mut model, &[KeyCode::End]);
        assert_eq!(selected_name(&model), "/g3000");
        let wanted = for_screen(&model).unwrap();
        assert_eq!(wanted.samples.len(), model.visible().0.len());
        model.take(answer(&wanted, 3000));
        assert_eq!(for_screen(&model), None);
    }

    #[test]
    fn a_group_that_goes_takes_its_page_along() {
        let mut model = model(5);
        press(&mut model, &[KeyCode::Down, KeyCode::Enter]);
        assert_eq!(model.page, Page::Group(2));
        let wanted = for_screen(&model).unwrap();
        assert_eq!(wanted.detail.as_ref().map(|asked| asked.group), Some(2));
        model.take(answer(&wanted, 5));
        assert_eq!(for_screen(&model), None);
        model.take(Taken { gone: vec![2], ..Taken::default() });
        assert_eq!((model.page, model.message.is_some()), (Page::Groups, true));
    }
}
