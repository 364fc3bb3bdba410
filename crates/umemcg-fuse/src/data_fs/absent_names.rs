//! Negative names: names cached by the kernel as absent.
//!
//! The kernel keeps negative names, regardless of their lifetime, until it is short of memory
//! itself. Each pins its directory, so a tenant looking up missing names in many directories would
//! fill its group with pinned directories. So the last few names are remembered here, and older
//! ones are invalidated in the kernel, many at a time, because each invalidation waits for the lock
//! of its directory.
//!
//! A created name is removed from the list first, and a stale name is chosen only when its
//! invalidation is sent. A directory created and entered in between loses its name only until its
//! next lookup.
//!
//! Each name is stored once, and every operation is one step in each of two maps of at most
//! [`NR_NAMES_MAX`] entries. The bound holds even while the notifying thread waits: the oldest name
//! is then forgotten here, and stays in the kernel until the kernel drops it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use umemcg_base::LeafMutex;

/// The names left in the kernel after an invalidation, and the number above which one begins.
const NR_KEPT_MIN: usize = 128;
const NR_KEPT_MAX: usize = 512;
/// The most names remembered here: 400 KiB if all have the maximum length.
const NR_NAMES_MAX: usize = 2 * NR_KEPT_MAX;

/// A name with the node of its directory.
type Name = (u64, Box<[u8]>);

/// Names in the order of their addition. The two maps hold the same names.
#[derive(Debug, Default)]
struct NameQueue {
    /// By serial: oldest first.
    by_age: BTreeMap<u64, Arc<Name>>,
    serials: HashMap<Arc<Name>, u64>,
    next_serial: u64,
    /// A call of [`AbsentNames::stale`] is under way.
    is_called: bool,
}

impl NameQueue {
    fn push(&mut self, name: Arc<Name>) {
        if self.serials.contains_key(&name) {
            return;
        }
        if self.serials.len() == NR_NAMES_MAX {
            self.pop_oldest();
        }
        self.serials.insert(Arc::clone(&name), self.next_serial);
        self.by_age.insert(self.next_serial, name);
        self.next_serial += 1;
    }

    fn pop_oldest(&mut self) -> Option<Arc<Name>> {
        let (_, name) = self.by_age.pop_first()?;
        self.serials.remove(&name);
        Some(name)
    }

    fn remove(&mut self, name: &Name) {
        if let Some(serial) = self.serials.remove(name) {
            self.by_age.remove(&serial);
        }
    }
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct AbsentNames(LeafMutex<NameQueue>);

impl AbsentNames {
    /// Notes a name about to become negative in the kernel. Returns `true` if the caller must have
    /// [`stale`](Self::stale) called until it returns `None`.
    pub(super) fn note(&self, parent: u64, name: &OsStr) -> bool {
        let name = Arc::new((parent, name.as_bytes().into()));
        let mut names = self.0.lock();
        names.push(name);
        let is_too_many = names.serials.len() > NR_KEPT_MAX;
        is_too_many && !std::mem::replace(&mut names.is_called, true)
    }

    /// Notes that [`stale`](Self::stale) will not be called after all.
    pub(super) fn was_not_called(&self) {
        self.0.lock().is_called = false;
    }

    /// Notes that a name exists, or is about to.
    pub(super) fn exists(&self, parent: u64, name: &OsStr) {
        let mut names = self.0.lock();
        if !names.serials.is_empty() {
            names.remove(&(parent, name.as_bytes().into()));
        }
    }

    /// Returns the oldest name, while there are more than a few.
    pub(super) fn stale(&self) -> Option<(u64, OsString)> {
        let mut names = self.0.lock();
        if names.serials.len() <= NR_KEPT_MIN {
            names.is_called = false;
            return None;
        }
        let oldest = names.pop_oldest()?;
        Some((oldest.0, OsString::from_vec(oldest.1.to_vec())))
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        let names = self.0.lock();
        (names.serials.len(), names.by_age.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> OsString {
        format!("n{n}").into()
    }

    #[test]
    fn the_oldest_go_first_and_the_bound_holds() {
        let absent = AbsentNames::default();
        for n in 0..NR_KEPT_MAX {
            assert!(!absent.note(7, &name(n)));
        }
        assert!(!absent.note(7, &name(3)), "it is known already");
        assert!(absent.note(7, &name(NR_KEPT_MAX)));
        assert!(!absent.note(7, &name(NR_KEPT_MAX + 1)), "a thread is called already");
        for n in 0..NR_KEPT_MAX + 2 - NR_KEPT_MIN {
            assert_eq!(absent.stale(), Some((7, name(n))));
        }
        assert_eq!((absent.stale(), absent.len()), (None, (NR_KEPT_MIN, NR_KEPT_MIN)));
        assert_eq!((0..10_000).filter(|n| absent.note(8, &name(*n))).count(), 1);
        absent.was_not_called();
        assert!(absent.note(9, &name(0)));
    }

    #[test]
    fn what_has_come_into_being_is_never_stale() {
        let absent = AbsentNames::default();
        for n in 0..10_000 {
            absent.note(7, &name(n));
            absent.note(8, &name(n));
            absent.exists(7, &name(n));
            if let Some((parent, _)) = absent.stale() {
                assert_eq!(parent, 8);
            }
        }
        assert!(absent.len().1 <= 2 * NR_KEPT_MAX);
    }

    #[test]
    fn names_that_come_and_go_stand_in_the_list_once() {
        let absent = AbsentNames::default();
        // A database does this with its journal, beside names that stay absent.
        for n in 0..NR_KEPT_MAX - 1 {
            absent.note(7, &name(n));
        }
        for _ in 0..30_000 {
            absent.exists(8, &name(0));
            assert!(!absent.note(8, &name(0)));
        }
        assert_eq!(absent.len(), (NR_KEPT_MAX, NR_KEPT_MAX));
    }

    #[test]
    fn the_bound_holds_while_the_kernel_is_not_told() {
        let absent = AbsentNames::default();
        for n in 0..10_000 {
            absent.note(7, &name(n));
        }
        assert_eq!(absent.len(), (NR_NAMES_MAX, NR_NAMES_MAX));
        assert_eq!(absent.stale(), Some((7, name(10_000 - NR_NAMES_MAX))));
    }
}
