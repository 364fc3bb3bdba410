//! Waiting for a page being filled. A page's lock is a flag in its record; sleepers share a few
//! hashed condition variables, because waiting for a page is rare, and short next to the I/O behind
//! it.

use umemcg_arena::{Arena, FrameFlags as Flag, FrameId};
use umemcg_base::{Condvar, Idle, LeafMutex, Rank, Wait, assert_may_wait_among};

const NR_BUCKETS: usize = 64;

#[derive(Debug)]
#[repr(align(64))]
struct Bucket {
    lock: LeafMutex<()>,
    wake: Condvar,
}

impl Bucket {
    fn new() -> Self {
        Self { lock: LeafMutex::new(()), wake: Condvar::among(Rank::Page) }
    }
}

/// Sleepers on locked pages.
#[doc(alias = "folio_waitqueue")]
#[derive(Debug)]
pub struct PageWaiters {
    buckets: Box<[Bucket]>,
}

impl Default for PageWaiters {
    fn default() -> Self {
        Self { buckets: (0..NR_BUCKETS).map(|_| Bucket::new()).collect() }
    }
}

impl PageWaiters {
    fn bucket(&self, frame: FrameId) -> &Bucket {
        &self.buckets[frame.raw() as usize % NR_BUCKETS]
    }

    /// Unlocks a page and wakes the threads waiting for it. The caller owns the page's lock.
    pub fn unlock(&self, arena: &Arena, frame: FrameId) {
        arena.record(frame).clear(Flag::LOCKED);
        let bucket = self.bucket(frame);
        drop(bucket.lock.lock());
        bucket.wake.notify_all();
    }

    /// Sleeps while the page is locked. The caller holds a pin. It may also hold locks on pages
    /// inserted by itself before: threads wait only for earlier insertions, so waits cannot form a
    /// cycle.
    pub fn wait_unlocked(&self, arena: &Arena, frame: FrameId) {
        let record = arena.record(frame);
        if !record.test(Flag::LOCKED) {
            return;
        }
        assert_may_wait_among(Rank::Page, "a wait for a locked page");
        let _idle = Idle::begin(Wait::Sure);
        let bucket = self.bucket(frame);
        let mut guard = bucket.lock.lock();
        while record.test(Flag::LOCKED) {
            bucket.wake.wait(&mut guard);
        }
    }
}
