//! The trait that shrinkers implement, and the types of its arguments and results.

use std::fmt;
use std::sync::Arc;

use umemcg_group::Group;

use super::pressure::{DEFAULT_BATCH, DEFAULT_SEEKS};
use crate::scan_control::Reason;

/// The number of objects that a shrinker could free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// There is nothing at all: the shrinker need not be asked again until it says that it has
    /// something.
    #[doc(alias = "SHRINK_EMPTY")]
    Empty,
    /// Nothing can be freed, or nothing can be said, just now; ask again later.
    NothingNow,
    /// This many objects.
    Objects(u64),
}

/// The outcome of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Objects scanned: as many as requested unless the shrinker ran out of objects, or has freed
    /// what is wanted.
    pub scanned: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Bytes that another party was asked to free. When they are free, that must be reported with
    /// [`Reclaimer::note_released`](crate::Reclaimer::note_released); when it is known that they
    /// stay, it should be with
    /// [`note_not_released`](crate::Reclaimer::note_not_released).
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
    /// Objects that exist.
    pub objects: u64,
    /// Of those, how many could be freed.
    pub reclaimable: u64,
    /// Bytes charged for all of them.
    pub bytes: u64,
}

/// The objects that a call asks for.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ShrinkTarget<'a> {
    /// The group; not those below it.
    pub group: &'a Arc<Group>,
    /// The memory node.
    pub node: usize,
    /// Why there is a reclaim.
    pub reason: Reason,
    /// The bytes that reclaim still wants from this shrinker. What a scan frees beyond that is lost
    /// to the group for nothing: a scan may stop when it has freed so much, and say how far it got.
    pub wanted_bytes: u64,
}

/// A cache of objects that can be freed. Called with no lock held, from several threads at once;
/// may sleep briefly, must not charge.
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

    /// Returns how many objects of the group on the node could be freed. Must not block.
    #[doc(alias = "count_objects")]
    fn count(&self, target: &ShrinkTarget<'_>) -> Count;

    /// Looks at up to `nr` objects and frees those that can be freed.
    #[doc(alias = "scan_objects")]
    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan;

    /// Returns the objects and bytes that exist, for `memory.kmem.slabinfo`.
    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage;

    /// Takes over from a removed group: what this shrinker keeps for it outside any
    /// [`ListLru`](crate::ListLru) belongs to the parent from now on. The bit moves by itself.
    /// Called once for every group that is removed, whether or not the shrinker has objects of it.
    ///
    /// It must not add, remove or touch an object in a [`ListLru`](crate::ListLru) of the dying
    /// group, nor wait for a thread that does: these lists are closed already, so such a thread
    /// waits for the end of the removal.
    fn reparent(&self, _dying: &Arc<Group>, _parent: &Arc<Group>) {}
}
