//! Pages about to enter a file: charged, with their frames and index nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId, prefetch_for_write};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{Charge, Group, OwnerId, Refused};
use umemcg_reclaim::ChargeEffort;

use super::{File, FileError};
use crate::index_node::NODE_BYTES;
use crate::node_pool::NodeReserve;
use crate::overrun::RequestClaim;

/// Most attempts of a charge in flight to find frames on their way back.
const LATE_FRAMES_TRIES_MAX: u32 = 100_000;

/// Frames charged and taken for pages about to enter a file.
pub(super) struct NewPages<'f> {
    pub(super) charge: Charge,
    pub(super) frames: Vec<FrameId>,
    /// As many as the index lacked before its lock was taken. When one has left the index
    /// meanwhile, fewer pages enter it, and the caller tries again.
    pub(super) nodes: NodeReserve<'f>,
    /// The pages are beyond the limit of their group, and stay in the file only while locked.
    pub(super) is_overrun: bool,
}

impl File {
    /// Charges and takes frames for up to `want` pages from `first` on, which is missing; fewer if
    /// `group` has no room for all. `None` when it has no room for one.
    pub(super) fn new_pages(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        want: u64,
        least: u64,
        may_sleep: bool,
    ) -> Option<NewPages<'_>> {
        umemcg_reclaim::mechanism::charge_to_frame(|| {
            self.charge_and_take(group, first, want, least, may_sleep)
        })
    }

    fn charge_and_take(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        want: u64,
        least: u64,
        may_sleep: bool,
    ) -> Option<NewPages<'_>> {
        let mut want = want;
        loop {
            let nr_nodes = self.index.nr_missing_nodes(first, first + want);
            let bytes = want * PAGE_SIZE_U64 + nr_nodes as u64 * NODE_BYTES;
            let charge = if may_sleep {
                let effort = match want {
                    _ if want > least => ChargeEffort::Surplus,
                    2.. => ChargeEffort::Opportunistic,
                    _ => ChargeEffort::Full,
                };
                self.cache.reclaimer().charge(group, bytes, effort).ok()
            } else {
                group.try_charge(bytes).ok()
            };
            let Some(mut charge) = charge else {
                if want <= 1 || !may_sleep {
                    return None;
                }
                // Down to the pages really needed, then to fewer: a small group still caches
                // something.
                want = if want > least { least.max(want / 4) } else { (want / 4).max(1) };
                continue;
            };
            let node_charge = charge.split(nr_nodes as u64 * NODE_BYTES);
            let nodes = NodeReserve::new(self.cache.nodes(), nr_nodes, node_charge)?;
            let mut frames = Vec::with_capacity(want as usize);
            if self.cache.arena().alloc(&mut frames, want as usize) < want as usize {
                // Charges never exceed the pool; frames on their way back may be missing for a
                // moment.
                self.cache.arena().free(&frames);
                drop(charge);
                if want == 1 || !may_sleep {
                    return None;
                }
                want = (want / 2).max(1);
                continue;
            }
            // Taken from the end: adjacent pages get adjacent frames where there are any, so that
            // one piece of an I/O vector covers many pages, and the index can guess a page's frame
            // from its neighbours.
            return self.within_quota(NewPages { charge, frames, nodes, is_overrun: false });
        }
    }

    /// Charges and takes frames to read ahead `nr` pages from `first` on. `None` when `group` has
    /// no room for all of them, or could make it only with some effort.
    pub(super) fn pages_ahead(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        nr: u64,
    ) -> Option<NewPages<'_>> {
        let nr_nodes = self.index.nr_missing_nodes(first, first + nr);
        let node_bytes = nr_nodes as u64 * NODE_BYTES;
        let bytes = nr * PAGE_SIZE_U64 + node_bytes;
        let mut charge = self.cache.reclaimer().charge(group, bytes, ChargeEffort::Ahead).ok()?;
        let nodes = NodeReserve::new(self.cache.nodes(), nr_nodes, charge.split(node_bytes))?;
        let mut frames = Vec::with_capacity(nr as usize);
        if self.cache.arena().alloc(&mut frames, nr as usize) < nr as usize {
            self.cache.arena().free(&frames);
            return None;
        }
        Some(NewPages { charge, frames, nodes, is_overrun: false })
    }

    /// Returns pages from `first` on beyond the limit of `group`, charged to it all the same: up to
    /// `want`, as many as the request's claim has left. `None` when nothing is left.
    ///
    /// # Errors
    /// [`FileError::NoMemory`] when there are no index nodes.
    pub(super) fn pages_beyond_limit(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        want: u64,
        claim: &mut RequestClaim,
    ) -> Result<Option<NewPages<'_>>, FileError> {
        let nr = claim.take(self.cache.overrun(), group, want);
        if nr == 0 {
            return Ok(None);
        }
        let nr_nodes = self.index.nr_missing_nodes(first, first + nr);
        let wanted_bytes = nr * PAGE_SIZE_U64 + nr_nodes as u64 * NODE_BYTES;
        let no_memory = || FileError::NoMemory(Refused { group: Arc::clone(group), wanted_bytes });
        let mut charge = group.charge_forced(wanted_bytes);
        let nodes =
            NodeReserve::new(self.cache.nodes(), nr_nodes, charge.split(nr_nodes as u64 * NODE_BYTES));
        let nodes = nodes.ok_or_else(no_memory)?;
        let mut frames = Vec::with_capacity(nr as usize);
        for _ in 0..LATE_FRAMES_TRIES_MAX {
            let missing = nr as usize - frames.len();
            if self.cache.arena().alloc(&mut frames, missing) == missing {
                return Ok(Some(NewPages { charge, frames, nodes, is_overrun: true }));
            }
            // Frames on their way back.
            umemcg_base::sync::thread::yield_now();
        }
        self.cache.arena().free(&frames);
        Err(no_memory())
    }

    /// Prefetches the records of frames about to be written: most were last written by a worker on
    /// another processor.
    pub(super) fn fetch_records(&self, frames: &[FrameId]) {
        frames.iter().for_each(|&frame| prefetch_for_write(self.record(frame)));
    }

    /// Gives a fresh frame the identity of a page: locked, contents to come. `pins` includes the
    /// base reference.
    pub(super) fn adopt(&self, frame: FrameId, page: u64, owner: OwnerId, pins: u32) {
        let record = self.record(frame);
        record.owner.store(owner.into_raw(), Ordering::Relaxed);
        record.file.store(self.id, Ordering::Relaxed);
        record.index.store(page, Ordering::Relaxed);
        record.start_with(Flag::LOCKED);
        record.unfreeze_to(pins);
    }

    /// Gives back everything not used by the `inserted` pages. The charge of these pages now
    /// belongs to their frames.
    pub(super) fn give_back(&self, new: NewPages<'_>, inserted: u64) {
        let NewPages { mut charge, frames, nodes, .. } = new;
        if !frames.is_empty() {
            self.give_quota(frames.len() as u64);
            self.cache.arena().free(&frames);
        }
        if inserted > 0 {
            let _ = charge.split(inserted * PAGE_SIZE_U64).into_raw();
        }
        drop(charge);
        drop(nodes);
    }
}
