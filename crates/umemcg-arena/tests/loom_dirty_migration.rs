//! Counting a page as dirty against moving it to another frame, on the shipped record.
//!
//! A writer finds the page without a lock, pins it, looks at its identity and marks it dirty; who sets the mark counts, under the index
//! lock. Migration, under that lock, freezes a frame that has only its base reference, carries the marks over and puts
//! the other frame in its place. The claim: at rest the count is what the page's marks say, so the write-back that
//! clears the mark takes off exactly what was put on. Twins: migration that only looks whether anybody has a pin, and a writer that
//! marks without one, must lose a count.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p umemcg-arena --release --test loom_dirty_migration`
#![cfg(loom)]

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use umemcg_arena::{FrameFlags, FrameRecord};

const FILE: u32 = 7;

struct Cache {
    frames: [FrameRecord; 2],
    /// The page's entry: which frame.
    entry: AtomicUsize,
    /// Pages counted as dirty, under the index lock.
    nr_dirty: Mutex<i64>,
}

impl Cache {
    fn new() -> Arc<Self> {
        let cache = Self {
            frames: [FrameRecord::new(), FrameRecord::new()],
            entry: AtomicUsize::new(0),
            nr_dirty: Mutex::new(0),
        };
        cache.frames[0].file.store(FILE, Ordering::Relaxed);
        // The base reference.
        cache.frames[0].unfreeze_to(1);
        Arc::new(cache)
    }

    fn dirty<const PINS: bool>(&self) {
        // Acquire: as look-ups do. Migration moves a page once here, so the second look finds it at rest.
        for _ in 0..2 {
            let frame = &self.frames[self.entry.load(Ordering::Acquire)];
            if PINS && !frame.try_pin() {
                // In the cache it looks again under the lock.
                drop(self.nr_dirty.lock().unwrap());
                continue;
            }
            let is_ours = frame.file.load(Ordering::Relaxed) == FILE;
            if is_ours && !frame.test_and_set(FrameFlags::DIRTY) {
                *self.nr_dirty.lock().unwrap() += 1;
            }
            if PINS {
                frame.unpin();
            }
            if is_ours {
                return;
            }
            drop(self.nr_dirty.lock().unwrap());
        }
        panic!("the page moves once");
    }

    fn migrate<const FREEZES: bool>(&self) {
        let _index = self.nr_dirty.lock().unwrap();
        let [old, new] = &self.frames;
        let alone = if FREEZES { old.freeze_from(1) } else { old.nr_pins() == 1 };
        if !alone {
            return;
        }
        new.file.store(FILE, Ordering::Relaxed);
        if old.test(FrameFlags::DIRTY) {
            new.set(FrameFlags::DIRTY);
        }
        // Release: pairs with the look-up.
        self.entry.store(1, Ordering::Release);
        new.unfreeze_to(1);
        old.file.store(0, Ordering::Relaxed);
    }
}

fn check<const PINS: bool, const FREEZES: bool>() {
    loom::model(|| {
        let cache = Cache::new();
        let writer = thread::spawn({
            let cache = Arc::clone(&cache);
            move || cache.dirty::<PINS>()
        });
        cache.migrate::<FREEZES>();
        writer.join().unwrap();
        let page = &cache.frames[cache.entry.load(Ordering::Acquire)];
        let marked = i64::from(page.test_and_clear(FrameFlags::DIRTY));
        assert_eq!((marked, *cache.nr_dirty.lock().unwrap()), (1, 1));
    });
}

#[test]
fn a_page_that_moves_while_it_becomes_dirty_is_dirty_and_counted_once() {
    check::<true, true>();
}

#[test]
#[should_panic]
fn a_move_that_only_looks_for_pins_leaves_a_mark_behind() {
    check::<true, false>();
}

#[test]
#[should_panic]
fn a_writer_without_a_pin_marks_a_frame_that_has_gone() {
    check::<false, true>();
}
