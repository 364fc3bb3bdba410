//! The shrinker trait, and the types of its arguments and results.

use std::fmt;
use std::sync::Arc;

use umemcg_group::Group;

use super::pressure::{DEFAULT_BATCH, DEFAULT_SEEKS};
use crate::scan_control::Reason;

/// The number of objects a shrinker could free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// There are no objects at all: the shrinker need not be asked again until it sets its bit.
    #[doc(alias = "SHRINK_EMPTY")]
    Empty,
    /// Nothing can be freed or counted just now; ask again later.
    NothingNow,
    /// This many objects.
    Objects(u64),
}

/// The outcome of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Objects scanned: as many as requested unless the shrinker ran out of objects, or has freed
    /// the bytes wanted.
    pub scanned: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Bytes that another party was asked to free. Once freed, they must be reported with
    /// [`Reclaimer::note_released`](crate::Reclaimer::note_released); once known to stay, they
    /// should be reported with [`note_not_released`](crate::Reclaimer::note_not_released).
    pub releasing_bytes: u64,
}

/// A shrinker's answer to "free some".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// It did.
    Done(Scanned),
    /// It cannot make progress now; the rest is deferred.
    #[doc(alias = "SHRINK_STOP")]
    Stop,
}

/// Objects and bytes of a shrinker in one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Existing objects.
    pub objects: u64,
    /// Freeable objects among them.
    pub reclaimable: u64,
    /// Bytes charged for all of them.
    pub bytes: u64,
}

/// The objects requested by a call.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ShrinkTarget<'a> {
    /// The group, without its descendants.
    pub group: &'a Arc<Group>,
    /// The reason for the reclaim.
    pub reason: Reason,
    /// The bytes still wanted from this shrinker. Objects freed beyond this are lost to the group
    /// for nothing: a scan may stop after freeing these bytes, and report how far it got.
    pub wanted_bytes: u64,
}

/// A cache of freeable objects. Called with no lock held, from several threads at once; may sleep
/// briefly, must not charge.
///
/// Any of its methods may panic. The calling thread is a worker or needs memory itself, so the
/// panic is logged and not propagated: a count is then [`Count::NothingNow`], a scan is
/// [`Scan::Stop`], and the shrinker is asked again next time. Keeping its own objects and charges
/// consistent is up to the shrinker.
pub trait Shrinker: Send + Sync + fmt::Debug {
    /// Returns its name in `memory.kmem.slabinfo`; without white space.
    fn name(&self) -> String;

    /// Returns the cost of recreating an object, in seeks; 0 if it costs nothing.
    fn seeks(&self) -> u32 {
        DEFAULT_SEEKS
    }

    /// Returns how many objects to scan in one batch.
    fn batch(&self) -> u64 {
        DEFAULT_BATCH
    }

    /// Returns how many objects of the group could be freed. Must not block.
    #[doc(alias = "count_objects")]
    fn count(&self, target: &ShrinkTarget<'_>) -> Count;

    /// Scans up to `nr` objects and frees the freeable ones.
    #[doc(alias = "scan_objects")]
    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan;

    /// Returns the existing objects and bytes, for `memory.kmem.slabinfo`.
    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage;

    /// Takes over from a removed group: objects kept for it outside any [`ListLru`](crate::ListLru)
    /// belong to the parent from now on. The bit moves by itself. Called once for every removed
    /// group, whether or not the shrinker has objects of it.
    ///
    /// It must not add, remove or touch an object in a [`ListLru`](crate::ListLru) of the dying
    /// group, nor wait for a thread doing so: these lists are closed already, so such a thread
    /// waits for the end of the removal.
    fn reparent(&self, _dying: &Arc<Group>, _parent: &Arc<Group>) {}
}
