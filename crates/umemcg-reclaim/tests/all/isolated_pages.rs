//! A charge while another thread has the last pages of the group.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{create, reclaimer};
use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{EventKind, Group};
use umemcg_reclaim::{ChargeEffort, Eviction, LruKind, MAX_RECLAIM_RETRIES, PageOwner, Reclaimer, Shadow};

const NR_PAGES: u64 = 8;

/// Pages of which the first eviction says that it has begun, and goes on when it is told.
#[derive(Debug)]
struct Pages {
    reclaimer: Arc<Reclaimer>,
    first: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Pages {
    fn give(&self, group: &Arc<Group>, nr: u64) {
        let arena = self.reclaimer.arena();
        for _ in 0..nr {
            let charge = group.try_charge(PAGE_SIZE_U64).unwrap();
            let owner = charge.owner();
            let mut frames = Vec::new();
            arena.alloc(&mut frames, 1);
            let record = arena.record(frames[0]);
            record.owner.store(owner.into_raw(), Relaxed);
            record.file.store(1, Relaxed);
            record.unfreeze_to(1);
            record.set(Flag::UPTODATE);
            let _ = charge.into_raw();
            self.reclaimer.add_to_lists(owner, &frames, LruKind::Inactive);
        }
    }
}

impl PageOwner for Pages {
    fn evict(&self, frames: &[FrameId], _shadow: &dyn Fn(FrameId, u64) -> Shadow, fates: &mut Vec<Eviction>) {
        let first = self.first.lock().unwrap().take();
        if let Some((begun, go_on)) = first {
            begun.send(()).unwrap();
            // An error when the test has failed.
            let _ = go_on.recv();
        }
        for &frame in frames {
            let record = self.reclaimer.arena().record(frame);
            assert!(record.freeze_from(2));
            record.file.store(0, Relaxed);
            fates.push(Eviction::Evicted);
        }
    }
    fn start_writeback(&self, _group: &Arc<Group>) {}
    fn wait_for_writeback(&self, _timeout: Duration) -> bool {
        false
    }
    fn writeback_progress(&self) -> u64 {
        0
    }
}

#[test]
fn a_charge_waits_for_the_last_pages_that_another_has() {
    let (tree, reclaimer) = reclaimer(16 << 20);
    let parent = create(&tree, tree.root(), "p");
    let group = create(&tree, &parent, "t");
    let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
    let pages = Arc::new(Pages { reclaimer, first: Mutex::new(Some((begun, may_go_on))) });
    pages.reclaimer.set_page_owner(&(Arc::clone(&pages) as _));
    pages.give(&group, NR_PAGES);
    parent.drain_stocks();
    parent.store_max(parent.usage_bytes());
    std::thread::scope(|scope| {
        // Takes all of them at once.
        let other = scope.spawn(|| pages.reclaimer.drop_pages(&group).reclaimed);
        has_begun.recv().unwrap();
        // How often a reclaim that finds nothing asks tells it from a wait for the other thread,
        // which goes on only then.
        let (attempt, nr_asked, most) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let other = Cell::new(Some(other));
        let is_cancelled = || {
            let now = parent.event_count(EventKind::Max);
            if attempt.replace(now) != now {
                most.set(most.get().max(nr_asked.replace(0)));
            }
            nr_asked.set(nr_asked.get() + 1);
            let is_last = now + 1 >= u64::from(MAX_RECLAIM_RETRIES);
            if is_last
                && nr_asked.get() > most.get() + 20
                && let Some(other) = other.take()
            {
                go_on.send(()).unwrap();
                assert_eq!(other.join().unwrap(), NR_PAGES);
            }
            false
        };
        let charged = pages.reclaimer.charge_unless(&group, PAGE_SIZE_U64, ChargeEffort::Full, &is_cancelled);
        drop(go_on);
        assert!(charged.is_ok(), "{charged:?} after {} questions in an attempt", most.get());
    });
    assert_eq!(parent.event_count(EventKind::Oom), 0);
}
