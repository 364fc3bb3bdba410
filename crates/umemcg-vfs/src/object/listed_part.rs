//! A part of a listing kept by an open directory, and the look-up of a name in it.
//!
//! A program that lists a directory asks for the attributes of each name next (`ls -l`). By then
//! the kernel may have forgotten the name, or the group had no room for it. The name is then looked
//! up here, without a request: the store has reported it with the listing.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Instant;

use umemcg_base::LeafMutex;

use super::node::Told;
use crate::attr::NodeId;
use crate::bucket::ListedName;
use crate::handle_charge::HandleCharge;

/// Most handles of a directory, those opened last, whose parts are searched: a look-up must not
/// take longer for each program that holds the directory open.
const NR_HANDLES_MAX: usize = 8;
/// Most names of a directory remembered as outdated. With one more, everything listed before the
/// oldest of them is outdated.
const NR_NAMES_MAX: usize = 32;
/// Their memory, in bytes.
pub(super) const NAMES_BYTES_MAX: u64 = (NR_NAMES_MAX * size_of::<(u64, Instant)>()) as u64;

/// Names listed by a store, in the order of their keys.
#[derive(Debug)]
pub(super) struct ListedNames {
    /// The position of the first name.
    pub(super) first: u64,
    pub(super) names: Vec<ListedName>,
    /// When the store reported these names.
    pub(super) told: Told,
    /// For the names; `None` for no names.
    _charge: Option<HandleCharge>,
}

/// The order of names: by their keys. The key of a directory ends with a slash.
fn key_bytes(name: &str, is_directory: bool) -> impl Iterator<Item = u8> + '_ {
    name.bytes().chain(is_directory.then_some(b'/'))
}

impl ListedNames {
    pub(super) fn new(first: u64, names: Vec<ListedName>, told: Told, charge: HandleCharge) -> Self {
        Self { first, names, told, _charge: Some(charge) }
    }

    /// Returns no names.
    pub(super) fn none() -> Self {
        Self { first: 0, names: Vec::new(), told: Told { at: Instant::now(), thread: 0 }, _charge: None }
    }

    /// Compares names by their keys.
    pub(super) fn order(one: &ListedName, other: &ListedName) -> Ordering {
        key_bytes(&one.name, one.object.is_none()).cmp(key_bytes(&other.name, other.object.is_none()))
    }

    /// Returns the position after the last name.
    pub(super) fn end(&self) -> u64 {
        self.first + self.names.len() as u64
    }

    fn find(&self, name: &str) -> Option<&ListedName> {
        let at = |is_directory| {
            let wanted = |listed: &ListedName| {
                key_bytes(&listed.name, listed.object.is_none()).cmp(key_bytes(name, is_directory))
            };
            self.names.binary_search_by(wanted).ok()
        };
        at(false).or_else(|| at(true)).map(|at| &self.names[at])
    }
}

/// The parts kept by the open directories of a volume.
#[derive(Debug, Default)]
pub(super) struct OpenListings(LeafMutex<Open>);

#[derive(Debug, Default)]
struct Open {
    by_directory: HashMap<NodeId, OfDirectory>,
    next_handle: u64,
}

/// The parts of one directory.
#[derive(Debug, Default)]
struct OfDirectory {
    /// By handle; `None` before the first part was read, and for a part of names missing in the
    /// store.
    parts: BTreeMap<u64, Option<Arc<ListedNames>>>,
    /// Parts listed before are not searched: something in the directory has changed since.
    outdated: Option<Instant>,
    /// Names known to have changed or vanished since, by hash; the latest last.
    outdated_names: VecDeque<(u64, Instant)>,
}

fn hash_of(name: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name)
}

impl OfDirectory {
    /// Returns whether a report about a name, by hash, is up to date.
    fn is_good(&self, told: Told, name: u64) -> bool {
        let of_name = self.outdated_names.iter().find(|(outdated, _)| *outdated == name);
        self.outdated.into_iter().chain(of_name.map(|(_, at)| *at)).all(|outdated| told.at > outdated)
    }

    fn outdate_name(&mut self, name: u64) {
        self.outdated_names.retain(|(outdated, _)| *outdated != name);
        if self.outdated_names.len() == NR_NAMES_MAX
            && let Some((_, oldest)) = self.outdated_names.pop_front()
        {
            self.outdated = self.outdated.max(Some(oldest));
        }
        self.outdated_names.push_back((name, Instant::now()));
    }
}

impl OpenListings {
    /// Enters a handle. Its number is to be [removed](Self::remove).
    pub(super) fn enter(&self, directory: NodeId) -> u64 {
        let mut open = self.0.lock();
        open.next_handle += 1;
        let handle = open.next_handle;
        open.by_directory.entry(directory).or_default().parts.insert(handle, None);
        handle
    }

    /// Replaces the part of a handle; by `None` when the new part does not come from the store.
    pub(super) fn put(&self, directory: NodeId, handle: u64, part: Option<&Arc<ListedNames>>) {
        let replaced = {
            let mut open = self.0.lock();
            let of_handle = open.by_directory.get_mut(&directory).and_then(|of| of.parts.get_mut(&handle));
            of_handle.and_then(|of_handle| std::mem::replace(of_handle, part.cloned()))
        };
        drop(replaced);
    }

    /// Removes a handle.
    pub(super) fn remove(&self, directory: NodeId, handle: u64) {
        let removed = {
            let mut open = self.0.lock();
            let Some(of) = open.by_directory.get_mut(&directory) else { return };
            let removed = of.parts.remove(&handle);
            if of.parts.is_empty() {
                open.by_directory.remove(&directory);
            }
            removed
        };
        drop(removed);
    }

    /// Returns the latest report of a store about a name, if an open directory keeps it.
    pub(super) fn find(&self, directory: NodeId, name: &str) -> Option<(ListedName, Told)> {
        let mut parts: Vec<_> = {
            let open = self.0.lock();
            let of = open.by_directory.get(&directory)?;
            let hash = hash_of(name);
            let is_good = |part: &&Arc<ListedNames>| of.is_good(part.told, hash);
            of.parts.values().rev().take(NR_HANDLES_MAX).flatten().filter(is_good).cloned().collect()
        };
        parts.sort_unstable_by_key(|part| part.told.at);
        parts.iter().rev().find_map(|part| Some((part.find(name)?.clone(), part.told)))
    }

    /// Notes a change of a name in a directory: earlier listings of this name are outdated.
    pub(super) fn outdate_name(&self, directory: NodeId, name: &str) {
        let mut open = self.0.lock();
        if let Some(of) = open.by_directory.get_mut(&directory) {
            of.outdate_name(hash_of(name));
        }
    }

    /// Notes a change of all directories.
    pub(super) fn outdate_all(&self) {
        let mut open = self.0.lock();
        open.by_directory.values_mut().for_each(|of| of.outdated = Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Timestamp;
    use crate::bucket::ObjectInfo;

    fn listed(name: &str) -> ListedName {
        let modified = Timestamp { seconds: 1, nanoseconds: 0 };
        let info = ObjectInfo { size: 1, modified, etag: None, metadata: None, attributes: None };
        match name.strip_suffix('/') {
            Some(name) => ListedName { name: name.to_owned(), object: None },
            None => ListedName { name: name.to_owned(), object: Some(info) },
        }
    }

    fn part(names: &[&str]) -> Arc<ListedNames> {
        let names = names.iter().map(|name| listed(name)).collect();
        Arc::new(ListedNames { names, ..ListedNames::none() })
    }

    #[test]
    fn each_listed_name_is_found() {
        let names = ["a", "a-b/", "a.c", "b-", "b/", "b0", "ü/"];
        let part = part(&names);
        for name in names {
            let plain = name.trim_end_matches('/');
            assert_eq!(part.find(plain), Some(&listed(name)), "{name}");
        }
        for name in ["", "a-", "a/", "b1", "c"] {
            assert_eq!(part.find(name), None, "{name}");
        }
    }

    #[test]
    fn what_was_told_last_counts_until_it_is_outdated() {
        let (open, directory) = (OpenListings::default(), NodeId(7));
        let (one, two) = (open.enter(directory), open.enter(directory));
        assert!(open.find(directory, "d").is_none());
        open.put(directory, two, Some(&part(&["d/"])));
        open.put(directory, one, Some(&part(&["d"])));
        assert!(open.find(directory, "d").unwrap().0.object.is_some(), "the later");
        assert!(open.find(NodeId(8), "d").is_none());
        open.remove(directory, one);
        assert!(open.find(directory, "d").unwrap().0.object.is_none());
        open.outdate_name(directory, "d");
        assert!(open.find(directory, "d").is_none());
        open.put(directory, two, Some(&part(&["d"])));
        assert!(open.find(directory, "d").is_some(), "told since");
        open.outdate_all();
        assert!(open.find(directory, "d").is_none());
        open.remove(directory, two);
        assert!(open.0.lock().by_directory.is_empty());
    }

    #[test]
    fn a_name_that_is_gone_leaves_the_others() {
        let (open, directory) = (OpenListings::default(), NodeId(7));
        let handle = open.enter(directory);
        open.put(directory, handle, Some(&part(&["a", "b"])));
        let is_found = |name| open.find(directory, name).is_some();
        open.outdate_name(directory, "a");
        assert!(!is_found("a") && is_found("b"));
        for nr in 1..NR_NAMES_MAX {
            open.outdate_name(directory, &nr.to_string());
            open.outdate_name(directory, &nr.to_string());
        }
        assert!(is_found("b"), "all of them are remembered");
        open.outdate_name(directory, "one more");
        assert!(!is_found("a") && !is_found("b"));
        open.put(directory, handle, Some(&part(&["a", "b"])));
        assert!(is_found("a") && is_found("b"), "told since");
        let names = &open.0.lock().by_directory[&directory].outdated_names;
        assert!(names.capacity() <= NR_NAMES_MAX, "{}", names.capacity());
    }
}
