//! Marks that carry an ordering: the lock bit, "up to date", and the change from dirty to
//! write-back.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use umemcg_arena::{FrameFlags, FrameRecord};

struct Page {
    record: FrameRecord,
    contents: UnsafeCell<u64>,
}

// SAFETY: The marks guard the contents; that they do is what the models check.
unsafe impl Send for Page {}
// SAFETY: As above.
unsafe impl Sync for Page {}

impl Page {
    fn new() -> Arc<Self> {
        Arc::new(Self { record: FrameRecord::new(), contents: UnsafeCell::new(0) })
    }

    fn write(&self, value: u64) {
        // SAFETY: Loom panics when another thread looks.
        self.contents.with_mut(|contents| unsafe { *contents = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: Loom panics when a thread writes.
        self.contents.with(|contents| unsafe { *contents })
    }
}

/// One thread fills the page and says so by `publish`, another looks.
fn check_fill(publish: fn(&FrameRecord)) {
    loom::model(move || {
        let page = Page::new();
        let reader = thread::spawn({
            let page = Arc::clone(&page);
            move || {
                if page.record.test(FrameFlags::UPTODATE) {
                    assert_eq!(page.read(), 7);
                }
            }
        });
        page.write(7);
        publish(&page.record);
        reader.join().unwrap();
    });
}

#[test]
fn a_thread_that_sees_up_to_date_sees_the_contents() {
    check_fill(|record| record.set(FrameFlags::UPTODATE));
    check_fill(|record| assert!(!record.test_and_set(FrameFlags::UPTODATE)));
    check_fill(|record| {
        record.change(FrameFlags::ERROR, FrameFlags::UPTODATE);
    });
}

#[test]
#[should_panic]
fn a_hint_publishes_nothing() {
    check_fill(|record| record.mark(FrameFlags::UPTODATE));
}

#[test]
fn the_lock_bit_excludes() {
    loom::model(|| {
        let page = Page::new();
        let once = |page: &Page| {
            if !page.record.test_and_set(FrameFlags::LOCKED) {
                let before = page.read();
                page.write(before + 1);
                page.record.clear(FrameFlags::LOCKED);
                return 1;
            }
            0
        };
        let other = thread::spawn({
            let page = Arc::clone(&page);
            move || once(&page)
        });
        let here = once(&page);
        let there = other.join().unwrap();
        assert!(!page.record.test_and_set(FrameFlags::LOCKED));
        assert_eq!(page.read(), here + there);
    });
}

#[test]
fn a_change_has_no_moment_between() {
    loom::model(|| {
        let record = Arc::new(FrameRecord::new());
        record.set(FrameFlags::DIRTY);
        let flusher = thread::spawn({
            let record = Arc::clone(&record);
            move || record.change(FrameFlags::DIRTY, FrameFlags::WRITEBACK)
        });
        record.set(FrameFlags::REFERENCED);
        assert!(record.test(FrameFlags::DIRTY | FrameFlags::WRITEBACK));
        assert!(flusher.join().unwrap().contains(FrameFlags::DIRTY));
        assert_eq!(record.flags(), FrameFlags::WRITEBACK | FrameFlags::REFERENCED);
    });
}

/// A thread writes to a page that is dirty already, and finds it so; another takes the page for
/// write-back afterwards, and reads it.
fn check_write_to_dirty(is_dirty_still: fn(&FrameRecord) -> bool) {
    loom::model(move || {
        let page = Page::new();
        page.record.set(FrameFlags::DIRTY);
        let is_left_to_flusher = Arc::new(AtomicBool::new(false));
        let writer = thread::spawn({
            let (page, is_left) = (Arc::clone(&page), Arc::clone(&is_left_to_flusher));
            move || {
                page.write(7);
                is_left.store(is_dirty_still(&page.record), Ordering::Relaxed);
            }
        });
        // Relaxed: nothing but the mark may order the two.
        if is_left_to_flusher.load(Ordering::Relaxed) {
            page.record.change(FrameFlags::DIRTY, FrameFlags::WRITEBACK);
            assert_eq!(page.read(), 7);
        }
        writer.join().unwrap();
    });
}

#[test]
fn what_is_written_to_a_dirty_page_is_seen_by_its_flusher() {
    check_write_to_dirty(|record| record.set_again(FrameFlags::DIRTY));
}

#[test]
#[should_panic]
fn a_look_at_the_dirty_mark_shows_the_flusher_nothing() {
    check_write_to_dirty(|record| record.test(FrameFlags::DIRTY));
}
