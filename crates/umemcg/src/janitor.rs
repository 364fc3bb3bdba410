//! The janitor: one thread that periodically wakes futures waiting for memory, and lets resident
//! memory follow usage down. It evicts the pages of sparse blocks, returns whole free blocks to the
//! operating system, and also the heap's free pages after many objects were freed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg_base::WakeSignal;
use umemcg_base::clock::Worker;
use umemcg_base::sync::Instant;
use umemcg_cache::PageCache;
use umemcg_group::StatItem;

use crate::waits::{LOOK_AGAIN, Waits};

/// Time between rounds.
const INTERVAL: Duration = Duration::from_secs(2);
/// Free blocks kept against the next burst, in steady state.
const KEEP_FREE_BLOCKS: usize = 8;
/// Pages evicted in one step; steps go on while blocks become free.
const SPARSE_BATCH: usize = 2048;
/// Steps in one round.
const STEPS_MAX: usize = 64;
/// Freed bytes of objects, groups and all other memory except pages before the heap is trimmed.
const HEAP_TRIM_BYTES: i64 = 4 << 20;

/// The signal for the janitor's thread to stop.
#[derive(Debug, Default)]
struct StopSignal {
    is_raised: AtomicBool,
    wake_signal: Arc<WakeSignal>,
}

/// Handle of the janitor's thread.
#[derive(Debug)]
pub(crate) struct Janitor {
    stop: Arc<StopSignal>,
    _worker: Worker,
}

impl Janitor {
    pub(crate) fn start(cache: Weak<PageCache>, waits: Arc<Waits>) -> std::io::Result<Self> {
        let stop = Arc::new(StopSignal::default());
        let theirs = Arc::clone(&stop);
        waits.on_waiter(Arc::clone(&stop.wake_signal));
        let worker = Worker::spawn("umemcg-janitor", move || {
            let mut idle_rounds = 0u32;
            let (mut most_object_bytes, mut highest_peak) = (0, 0);
            let mut last_round = Instant::now();
            while !theirs.is_raised.load(Ordering::Acquire) {
                let left = INTERVAL.saturating_sub(last_round.elapsed());
                theirs.wake_signal.wait(if waits.is_any() { LOOK_AGAIN.min(left) } else { left });
                waits.wake_all();
                if last_round.elapsed() < INTERVAL {
                    continue;
                }
                last_round = Instant::now();
                let Some(cache) = cache.upgrade() else { return };
                let before = cache.arena().nr_allocated();
                // Blocks kept for a burst are returned too once nothing has happened for a while.
                let keep = if idle_rounds >= 2 { 1 } else { KEEP_FREE_BLOCKS };
                Self::round(&cache, keep);
                let root = cache.reclaimer().tree().root();
                let objects = StatItem::CHARGED.iter().filter(|item| item.is_metadata());
                let object_bytes = objects.map(|&item| root.stat_total(item)).sum::<i64>();
                most_object_bytes = most_object_bytes.max(object_bytes);
                // Also counts memory allocated and freed between two rounds.
                let peak = root.metadata_peak_bytes() as i64;
                if peak > highest_peak {
                    (highest_peak, most_object_bytes) = (peak, most_object_bytes.max(peak));
                }
                if object_bytes < most_object_bytes - HEAP_TRIM_BYTES {
                    most_object_bytes = object_bytes;
                    umemcg_arena::sys::trim_heap();
                }
                idle_rounds =
                    if cache.arena().nr_allocated() == before { idle_rounds.saturating_add(1) } else { 0 };
            }
        })?;
        Ok(Self { stop, _worker: worker })
    }

    pub(crate) fn round(cache: &Arc<PageCache>, keep_free_blocks: usize) {
        for _ in 0..STEPS_MAX {
            if cache.empty_sparse_blocks(SPARSE_BATCH) == 0 {
                break;
            }
        }
        cache.arena().trim(keep_free_blocks);
        cache.trim_nodes();
    }

    pub(crate) fn stop(&self) {
        // Release: pairs with the Acquire load in the loop.
        self.stop.is_raised.store(true, Ordering::Release);
        self.stop.wake_signal.raise();
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        // The thread is joined next: also when a part of an engine that is made after it fails.
        self.stop();
    }
}
