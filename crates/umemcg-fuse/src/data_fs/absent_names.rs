//! Names that the kernel was told do not exist.
//!
//! The kernel keeps such names, whatever lifetime they are given, until it is short of memory itself, and each holds the
//! directory that it is missing from: a tenant that asks for missing names in many directories would fill its group with
//! directories that nobody can let go of. So the last few are remembered here, and what is older is made stale in the kernel, many
//! at a time, because each waits for the lock of its directory.
//!
//! A name that comes into being is taken off the list first, and what is stale is decided when its turn to be said has come: a
//! directory that somebody makes and enters in between loses its name for no longer than until it is next looked up.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use parking_lot::Mutex;

/// Names that the kernel keeps at least, and at most until it is told; a few directories, and tens of kilobytes of ours.
const NR_KEPT_MIN: usize = 128;
const NR_KEPT_MAX: usize = 512;

/// A name with the node of its directory.
type Name = (u64, Box<[u8]>);

#[derive(Debug, Default)]
struct Names {
    /// Oldest first; some may have come into being since.
    by_age: VecDeque<Arc<Name>>,
    absent: HashSet<Arc<Name>>,
    /// Somebody is going to call [`AbsentNames::stale`].
    is_called: bool,
}

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct AbsentNames(Mutex<Names>);

impl AbsentNames {
    /// The kernel is about to be told that a name does not exist. True: [`stale`](Self::stale) is to be called
    /// until it has no more to say.
    pub(super) fn note(&self, parent: u64, name: &OsStr) -> bool {
        let name = Arc::new((parent, name.as_bytes().into()));
        let mut names = self.0.lock();
        if names.absent.insert(Arc::clone(&name)) {
            names.by_age.push_back(name);
            if names.by_age.len() > 2 * NR_KEPT_MAX {
                let Names { by_age, absent, .. } = &mut *names;
                by_age.retain(|name| absent.contains(name));
            }
        }
        let is_too_many = names.absent.len() > NR_KEPT_MAX;
        is_too_many && !std::mem::replace(&mut names.is_called, true)
    }

    /// Nobody is going to call [`stale`](Self::stale) after all.
    pub(super) fn was_not_called(&self) {
        self.0.lock().is_called = false;
    }

    /// A name exists, or will in a moment.
    pub(super) fn exists(&self, parent: u64, name: &OsStr) {
        let mut names = self.0.lock();
        if !names.absent.is_empty() {
            names.absent.remove(&(parent, name.as_bytes().into()));
        }
    }

    /// The oldest name, while there are more than a few.
    pub(super) fn stale(&self) -> Option<(u64, OsString)> {
        let mut names = self.0.lock();
        while names.absent.len() > NR_KEPT_MIN
            && let Some(oldest) = names.by_age.pop_front()
        {
            if names.absent.remove(&oldest) {
                return Some((oldest.0, OsString::from_vec(oldest.1.to_vec())));
            }
        }
        names.is_called = false;
        None
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        let names = self.0.lock();
        (names.absent.len(), names.by_age.len())
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
        assert!(!absent.note(7, &name(NR_KEPT_MAX + 1)), "somebody is called already");
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
}
