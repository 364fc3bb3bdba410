//! Where a file is in the lists of its store.

use std::sync::atomic::AtomicU32;

/// On no list.
pub(crate) const NO_PLACE: u32 = u32::MAX;

/// Where a file is in the lists of its store.
#[derive(Debug)]
pub(crate) struct DirtyPlace(pub(crate) AtomicU32);

impl Default for DirtyPlace {
    fn default() -> Self {
        Self(AtomicU32::new(NO_PLACE))
    }
}
