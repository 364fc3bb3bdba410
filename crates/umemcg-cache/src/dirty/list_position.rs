//! The position of a file in the lists of its store.

use std::sync::atomic::AtomicU32;

/// On no list.
pub(crate) const NO_POSITION: u32 = u32::MAX;

/// The position of a file in the lists of its store.
#[derive(Debug)]
pub(crate) struct ListPosition(pub(crate) AtomicU32);

impl Default for ListPosition {
    fn default() -> Self {
        Self(AtomicU32::new(NO_POSITION))
    }
}
