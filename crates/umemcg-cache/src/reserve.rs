//! A few frames charged to the root at start, through which I/O goes when a group cannot get one page (invariant 8).
//! Data read this way is not kept.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use umemcg_arena::{Arena, FrameFlags as Flag, FrameId};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{Charge, Group, Refused};

/// The reserve. What is taken comes back through [`give`](Self::give).
#[derive(Debug)]
pub struct Reserve {
    free: Mutex<Vec<FrameId>>,
    back: Condvar,
    nr_frames: usize,
    _charge: Charge,
}

impl Reserve {
    /// Takes `nr_frames` frames for good, charged to `root`.
    ///
    /// # Errors
    /// When the pool is smaller than that.
    pub fn new(arena: &Arena, root: &Arc<Group>, nr_frames: usize) -> Result<Self, Refused> {
        let charge = root.try_charge(nr_frames as u64 * PAGE_SIZE_U64)?;
        let mut frames = Vec::with_capacity(nr_frames);
        arena.alloc(0, &mut frames, nr_frames);
        frames.sort_unstable();
        for &frame in &frames {
            arena.record(frame).set(Flag::METADATA);
            arena.record(frame).unfreeze_to(1);
        }
        Ok(Self { nr_frames: frames.len(), free: Mutex::new(frames), back: Condvar::new(), _charge: charge })
    }

    /// Frames in all, free or not.
    pub fn len(&self) -> usize {
        self.nr_frames
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.nr_frames == 0
    }

    /// Takes `nr` frames at once, at most all; waits until so many are free. The caller holds none yet, or two callers
    /// could wait for each other.
    pub fn take(&self, nr: usize) -> Vec<FrameId> {
        let nr = nr.min(self.nr_frames);
        let mut free = self.free.lock();
        while free.len() < nr {
            self.back.wait(&mut free);
        }
        let at = free.len() - nr;
        free.split_off(at)
    }

    /// Gives frames back.
    pub fn give(&self, frames: impl IntoIterator<Item = FrameId>) {
        self.free.lock().extend(frames);
        self.back.notify_all();
    }
}
