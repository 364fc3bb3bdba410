//! A read without a pin against the reuse of its frame, with every stale value that the memory
//! model allows.
//!
//! The reader takes a read_begin, checks identity and marks, copies, and asks whether the frame is
//! still the same. The evictor freezes the frame and makes it another page: identity, publication,
//! contents, and only then the mark that they are there. The claim: what the reader believes is one
//! page's contents, whole. The twins drop one ordering or fence each, or change the order of two
//! loads, and must fail.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};
use loom::thread;
use umemcg_arena::{FrameFlags as Flag, FrameRecord};

trait Record: Send + Sync + 'static {
    type ReadStamp: Copy;
    fn new() -> Self;
    fn read_begin(&self) -> Option<Self::ReadStamp>;
    fn validate(&self, read_begin: Self::ReadStamp) -> bool;
    fn freeze(&self) -> bool;
    fn unfreeze(&self);
}

impl Record for FrameRecord {
    type ReadStamp = umemcg_arena::ReadStamp;
    fn new() -> Self {
        FrameRecord::new()
    }
    fn read_begin(&self) -> Option<Self::ReadStamp> {
        FrameRecord::read_begin(self)
    }
    fn validate(&self, read_begin: Self::ReadStamp) -> bool {
        FrameRecord::validate(self, read_begin)
    }
    fn freeze(&self) -> bool {
        FrameRecord::freeze(self)
    }
    fn unfreeze(&self) {
        self.unfreeze_to(0);
    }
}

const NOTHING: u32 = 0;
const GENERATION_STORE: u32 = 1;
const GENERATION_LOAD: u32 = 2;
const FENCE_OF_FREEZE: u32 = 3;
const FENCE_OF_READER: u32 = 4;
const UNFREEZE: u32 = 5;
const LIVE_LOAD: u32 = 6;
const LIVE_FIRST: u32 = 7;

/// The same protocol written out, with one thing wrong.
struct Twin<const WRONG: u32> {
    live: AtomicU32,
    generation: AtomicU32,
}

impl<const WRONG: u32> Twin<WRONG> {
    fn order(of: u32, order: Ordering) -> Ordering {
        if of == WRONG { Relaxed } else { order }
    }
    fn load_generation(&self) -> u32 {
        self.generation.load(Self::order(GENERATION_LOAD, Ordering::Acquire))
    }
    fn is_live(&self) -> bool {
        self.live.load(Self::order(LIVE_LOAD, Ordering::Acquire)) == 1
    }
}

impl<const WRONG: u32> Record for Twin<WRONG> {
    type ReadStamp = u32;
    fn new() -> Self {
        Self { live: AtomicU32::new(0), generation: AtomicU32::new(0) }
    }
    fn read_begin(&self) -> Option<u32> {
        if WRONG == LIVE_FIRST {
            return self.is_live().then(|| self.load_generation());
        }
        let generation = self.load_generation();
        self.is_live().then_some(generation)
    }
    fn validate(&self, read_begin: u32) -> bool {
        if WRONG != FENCE_OF_READER {
            fence(Ordering::Acquire);
        }
        self.generation.load(Relaxed) == read_begin
    }
    fn freeze(&self) -> bool {
        if self.live.compare_exchange(1, 0, Ordering::Acquire, Relaxed).is_err() {
            return false;
        }
        let generation = self.generation.load(Relaxed) + 1;
        self.generation.store(generation, Self::order(GENERATION_STORE, Ordering::Release));
        if WRONG != FENCE_OF_FREEZE {
            fence(Ordering::Release);
        }
        true
    }
    fn unfreeze(&self) {
        self.live.fetch_add(1, Self::order(UNFREEZE, Ordering::Release));
    }
}

/// A record, its identity and marks, and contents of two words, both of which are the page's
/// number.
struct Frame<R> {
    record: R,
    marks: FrameRecord,
    words: [AtomicU64; 2],
}

impl<R: Record> Frame<R> {
    fn of_page(page: u64) -> Arc<Self> {
        let this = Self { record: R::new(), marks: FrameRecord::new(), words: Default::default() };
        this.become_page(page);
        Arc::new(this)
    }

    fn become_page(&self, page: u64) {
        self.marks.clear(Flag::UPTODATE);
        self.marks.index.store(page, Relaxed);
        self.record.unfreeze();
        for word in &self.words {
            word.store(page, Relaxed);
        }
        self.marks.set(Flag::UPTODATE);
    }

    fn read(&self, page: u64) {
        let Some(read_begin) = self.record.read_begin() else { return };
        if self.marks.index.load(Relaxed) != page || !self.marks.test(Flag::UPTODATE) {
            return;
        }
        let copy = [0, 1].map(|at: usize| self.words[at].load(Relaxed));
        if self.record.validate(read_begin) {
            assert_eq!(copy, [page; 2]);
        }
    }
}

/// A reader that looks for page 1, then page 2, against an evictor that makes page 1 page 2.
fn check<R: Record>() {
    loom::model(|| {
        let frame = Frame::<R>::of_page(1);
        let reader = thread::spawn({
            let frame = Arc::clone(&frame);
            move || {
                frame.read(1);
                frame.read(2);
            }
        });
        if frame.record.freeze() {
            frame.become_page(2);
        }
        reader.join().unwrap();
    });
}

#[test]
fn what_is_believed_is_one_page() {
    check::<FrameRecord>();
}

#[test]
fn the_twin_with_nothing_wrong_holds_too() {
    check::<Twin<NOTHING>>();
}

#[test]
#[should_panic]
fn a_relaxed_store_of_the_generation_fails() {
    check::<Twin<GENERATION_STORE>>();
}

#[test]
#[should_panic]
fn a_relaxed_load_of_the_generation_fails() {
    check::<Twin<GENERATION_LOAD>>();
}

#[test]
#[should_panic]
fn no_fence_after_freezing_fails() {
    check::<Twin<FENCE_OF_FREEZE>>();
}

#[test]
#[should_panic]
fn no_fence_before_looking_again_fails() {
    check::<Twin<FENCE_OF_READER>>();
}

#[test]
#[should_panic]
fn a_relaxed_unfreeze_fails() {
    check::<Twin<UNFREEZE>>();
}

#[test]
#[should_panic]
fn a_relaxed_look_at_the_pins_fails() {
    check::<Twin<LIVE_LOAD>>();
}

#[test]
#[should_panic]
fn looking_at_the_pins_first_fails() {
    check::<Twin<LIVE_FIRST>>();
}
