//! Objects and directories of the same name in a listing: one of the two is shown.
//!
//! In the order of keys a directory comes after the object of its name, and any number of names may
//! be between (`a`, `a-1`, `a/`). An empty object only marks the directory. So the decision to show
//! the object may have to wait for a later part of the listing.

use super::node::Told;
use crate::bucket::{ListedName, ObjectInfo};

/// See the module text. Goes with one reader through the parts of a listing.
#[derive(Debug, Default)]
pub(super) struct SameNames {
    /// Objects whose names may still be listed as directories; an empty one with its place among
    /// the names. Each name is a prefix of the next, and the last is a prefix of the latest listed
    /// name.
    objects: Vec<(String, Option<usize>)>,
    /// The empty ones at the end of the last part, and when the store reported them.
    undecided: Vec<(ListedName, Told)>,
}

impl SameNames {
    /// Returns the names that wait for the next part.
    pub(super) fn undecided(&self) -> impl Iterator<Item = &ListedName> {
        self.undecided.iter().map(|(listed, _)| listed)
    }

    /// Takes the names of a part, and returns those to show, and when the store reported the first
    /// of them. `hide` gets the directories behind an object that is not empty.
    pub(super) fn shown(
        &mut self,
        (names, told): (Vec<ListedName>, Told),
        is_last: bool,
        may_mark: impl Fn(&ObjectInfo) -> bool,
        mut hide: impl FnMut(&ListedName),
    ) -> (Vec<ListedName>, Told) {
        let mut shown = std::mem::take(&mut self.undecided);
        for listed in names {
            let name = &listed.name;
            while self.objects.last().is_some_and(|(object, _)| !may_come_again(object, name)) {
                self.objects.pop();
            }
            match self.objects.last().filter(|(object, _)| object == name) {
                // Some stores list a key twice.
                Some(_) if listed.object.is_some() => continue,
                Some((_, None)) => {
                    hide(&listed);
                    continue;
                }
                Some(&(_, Some(at))) => {
                    // No other of the objects is behind it.
                    shown.remove(at);
                    self.objects.pop();
                }
                None => {}
            }
            if let Some(info) = &listed.object {
                self.objects.push((name.clone(), may_mark(info).then_some(shown.len())));
            }
            shown.push((listed, told));
        }
        if !is_last {
            for (nr, at) in self.objects.iter_mut().filter_map(|(_, at)| at.as_mut()).enumerate() {
                // As many are taken out before it.
                self.undecided.push(shown.remove(*at - nr));
                *at = nr;
            }
        }
        let first = shown.iter().map(|(_, told)| *told).min_by_key(|told| told.at);
        (shown.into_iter().map(|(listed, _)| listed).collect(), first.unwrap_or(told))
    }
}

/// Returns whether a directory with the name of an object may still be listed after a name, which
/// comes after the object or is its own.
fn may_come_again(object: &str, latest: &str) -> bool {
    latest.strip_prefix(object).is_some_and(|rest| rest.as_bytes().first().is_none_or(|&byte| byte < b'/'))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::super::listed_part::ListedNames;
    use super::*;
    use crate::attr::Timestamp;

    fn told(at: Instant) -> Told {
        Told { at, thread: 0 }
    }

    /// Returns the names that a store lists for keys, in their order.
    fn listed(keys: &BTreeMap<String, u64>) -> Vec<ListedName> {
        let of = |(key, size): (&String, &u64)| match key.split_once('/') {
            Some((name, _)) => ListedName { name: name.to_owned(), object: None },
            None => {
                let modified = Timestamp { seconds: 1, nanoseconds: 0 };
                let info = ObjectInfo { size: *size, modified, etag: None, metadata: None, attributes: None };
                ListedName { name: key.clone(), object: Some(info) }
            }
        };
        let mut names: Vec<_> = keys.iter().map(of).collect();
        names.dedup();
        names
    }

    proptest! {
        #[test]
        fn of_each_name_one_is_shown(
            keys in prop::collection::btree_map("[a!0]{1,3}(/x)?", 0u64..2, 0..30),
            twice in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
            len in 1usize..6,
        ) {
            let mut names = listed(&keys);
            for at in twice {
                let objects: Vec<_> = (0..names.len()).filter(|&at| names[at].object.is_some()).collect();
                if !objects.is_empty() {
                    let at = *at.get(&objects);
                    names.insert(at, names[at].clone());
                }
            }
            let start = Instant::now();
            let (mut same, mut shown, mut hidden) = (SameNames::default(), Vec::new(), BTreeSet::new());
            let nr_parts = names.chunks(len).count();
            for (nr, part) in names.chunks(len).enumerate() {
                let now = told(start + Duration::from_secs(nr as u64));
                let hide = |listed: &ListedName| _ = hidden.insert(listed.name.clone());
                let (part, first) =
                    same.shown((part.to_vec(), now), nr + 1 == nr_parts, |info| info.size == 0, hide);
                prop_assert!(part.is_sorted_by(|one, other| ListedNames::order(one, other).is_lt()));
                let is_of_this_part =
                    |listed: &ListedName| names.iter().position(|other| other == listed) >= Some(nr * len);
                prop_assert_eq!(first.at == now.at, part.iter().all(is_of_this_part));
                shown.extend(part);
            }
            prop_assert_eq!(same.undecided().count(), 0);
            let (mut expected, mut expected_hidden) = (BTreeSet::new(), BTreeSet::new());
            for key in keys.keys() {
                let name = key.split('/').next().unwrap();
                let is_directory = keys.contains_key(&format!("{name}/x"));
                let is_file = keys.get(name).is_some_and(|&size| size > 0 || !is_directory);
                expected.insert((name.to_owned(), !is_file));
                if is_file && is_directory {
                    expected_hidden.insert(name.to_owned());
                }
            }
            let found: BTreeSet<_> =
                shown.iter().map(|listed| (listed.name.clone(), listed.object.is_none())).collect();
            prop_assert_eq!(found.len(), shown.len());
            prop_assert_eq!(found, expected);
            prop_assert_eq!(hidden, expected_hidden);
        }
    }
}
