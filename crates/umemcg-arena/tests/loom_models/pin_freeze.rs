//! Pin against freeze, in every interleaving and with every stale value that the memory model
//! allows.
//!
//! A reader pins, *then* checks the identity, then reads. The evictor freezes, changes identity and
//! contents, and publishes the frame as another page. The claim: a reader that finds its page's
//! identity reads its page's contents, and never while they change. The twins drop one ordering
//! each, or check before pinning, and must fail.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};
use loom::thread;
use umemcg_arena::FrameRecord;

trait Record: Send + Sync + 'static {
    fn new() -> Self;
    fn try_pin(&self) -> bool;
    fn unpin(&self);
    fn freeze(&self) -> bool;
    fn unfreeze(&self);
    fn index(&self) -> &AtomicU64;
}

impl Record for FrameRecord {
    fn new() -> Self {
        FrameRecord::new()
    }
    fn try_pin(&self) -> bool {
        FrameRecord::try_pin(self)
    }
    fn unpin(&self) {
        FrameRecord::unpin(self);
    }
    fn freeze(&self) -> bool {
        FrameRecord::freeze(self)
    }
    fn unfreeze(&self) {
        self.unfreeze_to(0);
    }
    fn index(&self) -> &AtomicU64 {
        &self.index
    }
}

const NOTHING: u32 = 0;
const PIN: u32 = 1;
const UNPIN: u32 = 2;
const FREEZE: u32 = 3;
const UNFREEZE: u32 = 4;

/// The same protocol written out, with one ordering dropped.
struct Twin<const WEAK: u32> {
    pins: AtomicU32,
    index: AtomicU64,
}

impl<const WEAK: u32> Twin<WEAK> {
    const LIVE: u32 = 1 << 31;

    fn order(of: u32, order: Ordering) -> Ordering {
        if of == WEAK { Relaxed } else { order }
    }
}

impl<const WEAK: u32> Record for Twin<WEAK> {
    fn new() -> Self {
        Self { pins: AtomicU32::new(0), index: AtomicU64::new(0) }
    }
    fn try_pin(&self) -> bool {
        let live = self.pins.fetch_add(1, Self::order(PIN, Ordering::Acquire)) & Self::LIVE != 0;
        if !live {
            self.pins.fetch_sub(1, Relaxed);
        }
        live
    }
    fn unpin(&self) {
        self.pins.fetch_sub(1, Self::order(UNPIN, Ordering::Release));
    }
    fn freeze(&self) -> bool {
        self.pins.compare_exchange(Self::LIVE, 0, Self::order(FREEZE, Ordering::Acquire), Relaxed).is_ok()
    }
    fn unfreeze(&self) {
        self.pins.fetch_add(Self::LIVE, Self::order(UNFREEZE, Ordering::Release));
    }
    fn index(&self) -> &AtomicU64 {
        &self.index
    }
}

/// A record and the contents that it guards; the contents of page `n` are `n`.
struct Frame<R> {
    record: R,
    contents: UnsafeCell<u64>,
}

// SAFETY: The record guards the contents; that it does is what the model checks.
unsafe impl<R: Send> Send for Frame<R> {}
// SAFETY: As above.
unsafe impl<R: Sync> Sync for Frame<R> {}

impl<R: Record> Frame<R> {
    fn of_page(page: u64) -> Arc<Self> {
        let this = Arc::new(Self { record: R::new(), contents: UnsafeCell::new(0) });
        this.become_page(page);
        this
    }

    /// Steps 1 and 2 of a frame's life; the caller has it frozen.
    fn become_page(&self, page: u64) {
        self.record.index().store(page, Relaxed);
        // SAFETY: Frozen, so no other thread looks; loom panics otherwise.
        self.contents.with_mut(|contents| unsafe { *contents = page });
        self.record.unfreeze();
    }

    fn read(&self, page: u64) {
        if self.record.try_pin() {
            if self.record.index().load(Relaxed) == page {
                // SAFETY: Pinned, so no thread writes; loom panics otherwise.
                assert_eq!(self.contents.with(|contents| unsafe { *contents }), page);
            }
            self.record.unpin();
        }
    }

    /// Reads in the order that must fail: checks the identity before it is pinned.
    fn read_checking_first(&self, page: u64) {
        if self.record.index().load(Relaxed) == page && self.record.try_pin() {
            // SAFETY: As in `read`.
            assert_eq!(self.contents.with(|contents| unsafe { *contents }), page);
            self.record.unpin();
        }
    }

    fn evict_and_reuse(&self, page: u64) {
        if self.record.freeze() {
            self.become_page(page);
        }
    }
}

/// Two readers of page 1, one of which looks for page 2 as well, against an evictor that makes it
/// page 2.
fn check<R: Record>(read: fn(&Frame<R>, u64)) {
    loom::model(move || {
        let frame = Frame::<R>::of_page(1);
        let first = thread::spawn({
            let frame = Arc::clone(&frame);
            move || read(&frame, 1)
        });
        let second = thread::spawn({
            let frame = Arc::clone(&frame);
            move || {
                read(&frame, 1);
                read(&frame, 2);
            }
        });
        frame.evict_and_reuse(2);
        first.join().unwrap();
        second.join().unwrap();
        // No pin is lost or left, those of failed attempts included.
        assert!(frame.record.freeze());
    });
}

#[test]
fn a_pinned_page_is_the_page_that_it_says() {
    check::<FrameRecord>(Frame::read);
}

#[test]
fn the_twin_with_every_ordering_holds_too() {
    check::<Twin<NOTHING>>(Frame::read);
}

#[test]
#[should_panic]
fn a_relaxed_pin_fails() {
    check::<Twin<PIN>>(Frame::read);
}

#[test]
#[should_panic]
fn a_relaxed_unpin_fails() {
    check::<Twin<UNPIN>>(Frame::read);
}

#[test]
#[should_panic]
fn a_relaxed_freeze_fails() {
    check::<Twin<FREEZE>>(Frame::read);
}

#[test]
#[should_panic]
fn a_relaxed_unfreeze_fails() {
    check::<Twin<UNFREEZE>>(Frame::read);
}

#[test]
#[should_panic]
fn checking_before_pinning_fails() {
    check::<FrameRecord>(Frame::read_checking_first);
}
