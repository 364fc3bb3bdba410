//! Negative names: names cached by the kernel as absent.
//!
//! The kernel keeps negative names, regardless of their lifetime, until it is short of memory
//! itself. Each pins its directory, so a tenant looking up missing names in many directories would
//! fill its group with pinned directories. So the last few names are remembered here, and older
//! ones are invalidated in the kernel, many at a time, because each invalidation waits for the lock
//! of its directory.
//!
//! A stale name is *leaving* until its message has been sent. A created name is removed from the
//! list and from the leaving names first, and its message is not sent then. A directory created and
//! entered while its message waits in the kernel loses its name only until its next lookup.
//!
//! Each name is stored once, and every operation is one step in each of two maps. The list has at
//! most [`NR_KEPT_MAX`] names, and the leaving names are bounded by the queue of messages: a name
//! without room there is forgotten here, and stays in the kernel until the kernel drops it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use umemcg_base::LeafMutex;
use umemcg_vfs::DropTask;

use crate::store_messages::{Ask, Message};

/// The names left in the kernel after an invalidation, and the number above which one begins.
const NR_KEPT_MIN: usize = 128;
const NR_KEPT_MAX: usize = 512;

/// A name with the node of its directory.
type Name = (u64, Box<[u8]>);

/// Names in the order of their addition. The first two maps hold the same names.
#[derive(Debug, Default)]
struct NameQueue {
    /// By serial: oldest first.
    by_age: BTreeMap<u64, Arc<Name>>,
    serials: HashMap<Arc<Name>, u64>,
    next_serial: u64,
    /// Names that the kernel is about to be asked to forget.
    leaving: HashSet<Arc<Name>>,
}

impl NameQueue {
    fn push(&mut self, name: Arc<Name>) {
        if self.serials.contains_key(&name) {
            return;
        }
        self.leaving.remove(&name);
        self.serials.insert(Arc::clone(&name), self.next_serial);
        self.by_age.insert(self.next_serial, name);
        self.next_serial += 1;
    }

    /// Returns the oldest name, leaving, while there are more than a few.
    fn pop_stale(&mut self) -> Option<Arc<Name>> {
        if self.serials.len() <= NR_KEPT_MIN {
            return None;
        }
        let (_, name) = self.by_age.pop_first()?;
        self.serials.remove(&name);
        self.leaving.insert(Arc::clone(&name));
        Some(name)
    }

    /// Returns whether a name is leaving, and not the same one noted again later.
    fn is_leaving(&self, name: &Arc<Name>) -> bool {
        self.leaving.get(name).is_some_and(|leaving| Arc::ptr_eq(leaving, name))
    }

    fn remove(&mut self, name: &Name) {
        self.leaving.remove(name);
        if let Some(serial) = self.serials.remove(name) {
            self.by_age.remove(&serial);
        }
    }
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct AbsentNames(LeafMutex<NameQueue>);

/// A name for the kernel to forget, unless it comes into being before its turn.
#[derive(Debug)]
pub(super) struct StaleName {
    name: Arc<Name>,
    names: Arc<AbsentNames>,
}

impl DropTask for StaleName {
    fn may_tell(&self) -> bool {
        self.names.0.lock().is_leaving(&self.name)
    }

    fn done(self: Box<Self>, _was_told: bool) {}
}

impl Drop for StaleName {
    fn drop(&mut self) {
        let mut names = self.names.0.lock();
        if names.is_leaving(&self.name) {
            names.leaving.remove(&self.name);
        }
    }
}

impl From<StaleName> for Message {
    fn from(stale: StaleName) -> Self {
        let (node, name) = (stale.name.0, OsString::from_vec(stale.name.1.to_vec()));
        Self { node, ask: Ask::Name { name, expire_only: false }, task: Box::new(stale) }
    }
}

impl AbsentNames {
    /// Notes a name about to become negative in the kernel. Returns names for the kernel to forget,
    /// oldest first, if there are too many.
    pub(super) fn note(self: &Arc<Self>, parent: u64, name: &OsStr) -> Vec<StaleName> {
        let name = Arc::new((parent, name.as_bytes().into()));
        let mut names = self.0.lock();
        names.push(name);
        if names.serials.len() <= NR_KEPT_MAX {
            return Vec::new();
        }
        let stale: Vec<Arc<Name>> = std::iter::from_fn(|| names.pop_stale()).collect();
        drop(names);
        stale.into_iter().map(|name| StaleName { name, names: Arc::clone(self) }).collect()
    }

    /// Notes that a name exists, or is about to.
    pub(super) fn exists(&self, parent: u64, name: &OsStr) {
        let mut names = self.0.lock();
        if !names.serials.is_empty() || !names.leaving.is_empty() {
            names.remove(&(parent, name.as_bytes().into()));
        }
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize, usize) {
        let names = self.0.lock();
        (names.serials.len(), names.by_age.len(), names.leaving.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> OsString {
        format!("n{n}").into()
    }

    /// Adds one name more than are kept. Returns the stale ones.
    fn overfill(absent: &Arc<AbsentNames>) -> Vec<StaleName> {
        for n in 0..NR_KEPT_MAX {
            assert!(absent.note(7, &name(n)).is_empty());
        }
        assert!(absent.note(7, &name(3)).is_empty(), "it is known already");
        absent.note(7, &name(NR_KEPT_MAX))
    }

    #[test]
    fn the_oldest_go_first_and_the_bound_holds() {
        let absent = Arc::<AbsentNames>::default();
        let stale = overfill(&absent);
        let nr_stale = NR_KEPT_MAX + 1 - NR_KEPT_MIN;
        assert_eq!(absent.len(), (NR_KEPT_MIN, NR_KEPT_MIN, nr_stale));
        for (n, stale) in stale.into_iter().enumerate() {
            assert!(stale.may_tell());
            let message = Message::from(stale);
            assert!(matches!(&message.ask, Ask::Name { name: told, .. } if *told == name(n)));
            assert_eq!(message.node, 7);
        }
        assert_eq!(absent.len(), (NR_KEPT_MIN, NR_KEPT_MIN, 0), "also those that were not sent");
        for n in 0..10_000 {
            absent.note(8, &name(n));
        }
        let (nr, nr_by_age, nr_leaving) = absent.len();
        assert!(nr <= NR_KEPT_MAX && nr == nr_by_age && nr_leaving == 0);
    }

    #[test]
    fn what_has_come_into_being_is_never_stale() {
        let absent = Arc::<AbsentNames>::default();
        for n in 0..10_000 {
            let mut stale = absent.note(7, &name(n));
            stale.extend(absent.note(8, &name(n)));
            absent.exists(7, &name(n));
            assert!(stale.iter().all(|stale| stale.name.0 == 8));
        }
    }

    #[test]
    fn a_leaving_name_that_is_used_again_is_not_told() {
        let absent = Arc::<AbsentNames>::default();
        let stale = overfill(&absent);
        absent.exists(7, &name(0));
        assert!(absent.note(7, &name(1)).is_empty());
        let told: Vec<bool> = stale[..3].iter().map(DropTask::may_tell).collect();
        assert_eq!(told, [false, false, true]);
    }

    #[test]
    fn a_name_that_leaves_twice_is_told_once_more() {
        let absent = Arc::<AbsentNames>::default();
        let mut first = overfill(&absent);
        absent.note(7, &name(0));
        let second: Vec<StaleName> =
            (0..).map(|n| absent.note(8, &name(n))).find(|stale| !stale.is_empty()).unwrap();
        let again = second.iter().find(|stale| stale.name.0 == 7 && *stale.name.1 == *b"n0").unwrap();
        assert!(!first[0].may_tell() && again.may_tell());
        first.clear();
        assert!(again.may_tell(), "the end of the first message is not that of the second");
    }

    #[test]
    fn names_that_come_and_go_stand_in_the_list_once() {
        let absent = Arc::<AbsentNames>::default();
        // A database does this with its journal, beside names that stay absent.
        for n in 0..NR_KEPT_MAX - 1 {
            assert!(absent.note(7, &name(n)).is_empty());
        }
        for _ in 0..30_000 {
            absent.exists(8, &name(0));
            assert!(absent.note(8, &name(0)).is_empty());
        }
        assert_eq!(absent.len(), (NR_KEPT_MAX, NR_KEPT_MAX, 0));
    }
}
