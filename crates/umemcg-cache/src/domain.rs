//! Write-back of one backing store: its dirty files in order, and the thread that writes them. A store that hangs holds
//! up its own thread and nobody else's. The thread comes with the first dirty file and goes when there has been none for
//! a while (see [`crate::flushers`]), so a store that nobody writes to costs no thread; the domain itself lives as long as
//! one of its files.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use umemcg_base::{Bell, PAGE_SIZE_U64, Rank, RankedMutex};

use crate::cache::PageCache;
use crate::dirty::{DIRTY_EXPIRE, WRITEBACK_INTERVAL};
use crate::file::File;
use crate::flush::{Durability, PAGES_END};
use crate::flushers::{LOOK_INTERVAL, Turn};
use crate::store::StoreId;

/// A flusher without dirty files ends after this long.
const FLUSHER_LIFE: Duration = Duration::from_secs(5);
/// How often a store has a turn while others wait for theirs.
const TURN_INTERVAL: Duration = Duration::from_secs(1);
/// A time so long ago that the file is due, whatever its age.
const DUE_NOW: u64 = 1;
/// First wait before a failed file is tried again; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest wait before a failed file is tried again.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// So many files that fail end a round: the store needs a rest. Fewer keep no other file from being written.
const NR_FAILED_MAX: u32 = 4;

/// A file that could not be written in time.
#[derive(Debug, Clone)]
pub struct LostData {
    /// Its cache; the layer above knows its name.
    pub file: Arc<File>,
    /// Bytes that are not durable.
    pub bytes: u64,
    /// What the store said last, if it said anything.
    pub error: Option<String>,
}

#[derive(Debug, Default)]
struct Queue {
    files: VecDeque<Arc<File>>,
    /// The file that the flusher has taken off the queue to write.
    current: Option<Arc<File>>,
    /// A thread writes, or will in its turn. Whoever makes it true gets one.
    is_served: bool,
}

/// One backing store's write-back.
pub struct Domain {
    id: StoreId,
    cache: Weak<PageCache>,
    /// Files with dirty or unstable pages, least recently served first.
    queue: RankedMutex<Queue>,
    bell: Bell,
    /// Somebody wants everything written now.
    urgent: AtomicBool,
    stop: AtomicBool,
    /// Unclean pages of this store. (A)
    nr_unclean: AtomicU64,
    /// Bytes written since the estimate was last taken. (A)
    written: AtomicU64,
    /// Bytes a second that the store takes, smoothed. (A)
    bandwidth: AtomicU64,
    pace: Mutex<Pace>,
    me: Weak<Domain>,
}

/// When the next round is.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// After an error: not before then, and how long that wait was.
    retry: Option<(Instant, Duration)>,
    last_round: Instant,
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Domain {
    /// The queue of a store.
    pub(crate) fn new(cache: &Arc<PageCache>, id: StoreId) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            id,
            cache: Arc::downgrade(cache),
            queue: RankedMutex::new(Rank::DirtyFiles, Queue::default()),
            bell: Bell::new(),
            urgent: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            nr_unclean: AtomicU64::new(0),
            written: AtomicU64::new(0),
            bandwidth: AtomicU64::new(100 << 20),
            pace: Mutex::new(Pace { retry: None, last_round: Instant::now() }),
            me: Weak::clone(me),
        })
    }

    /// Gets a thread for what is queued.
    fn start_flusher(&self) {
        let (Some(me), Some(cache)) = (self.me.upgrade(), self.cache.upgrade()) else { return };
        if let Err(error) = cache.flushers().start(me) {
            // The next dirty file tries again; a sync writes without it.
            self.queue.lock().is_served = false;
            tracing::warn!(%error, store = self.id.0, "no thread for write-back");
        }
    }

    /// Whether nothing is queued, so that the flusher's thread may end: the next file gets another.
    fn may_end(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.is_served &= !queue.files.is_empty();
        !queue.is_served
    }

    /// Ends the flusher once it has finished its current file. Does not wait for a hanging store.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Wakes the flusher for a look.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Wakes the flusher to write whatever is dirty.
    pub(crate) fn ring_urgently(&self) {
        self.urgent.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Pages of this store that are not durable yet.
    pub fn nr_unclean(&self) -> u64 {
        self.nr_unclean.load(Ordering::Relaxed)
    }

    pub(crate) fn add_unclean(&self, pages: i64) {
        self.nr_unclean.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Bytes a second that the store has been taking.
    pub(crate) fn write_bandwidth(&self) -> u64 {
        self.bandwidth.load(Ordering::Relaxed)
    }

    pub(crate) fn note_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `fresh` pages of the file became dirty: queues it, and wakes the flusher when there is enough to do.
    pub(crate) fn note_dirty(&self, file: &Arc<File>, fresh: u64) {
        let Some(cache) = self.cache.upgrade() else { return };
        if file.dirty_since_ms.load(Ordering::Relaxed) == 0 {
            file.dirty_since_ms.store(cache.now_ms().max(1), Ordering::Relaxed);
        }
        self.enqueue(file);
        // One look per threshold's worth of pages would be enough; one per call costs a few loads.
        if fresh > 0 && cache.dirty_limits().over_background() {
            self.bell.ring();
        }
    }

    fn enqueue(&self, file: &Arc<File>) {
        // AcqRel: pairs with the swap in `requeue_or_retire`; whoever makes it true pushes.
        if !file.queued.swap(true, Ordering::AcqRel) {
            let is_served = {
                let mut queue = self.queue.lock();
                queue.files.push_back(Arc::clone(file));
                std::mem::replace(&mut queue.is_served, true)
            };
            if !is_served {
                self.start_flusher();
            }
        }
    }

    /// The file is written soon, not at its expiry: its last user closed it.
    pub(crate) fn flush_soon(&self, file: &Arc<File>) {
        file.dirty_since_ms.store(DUE_NOW, Ordering::Relaxed);
        self.enqueue(file);
        self.bell.ring();
    }

    /// Writes what is due, until there has been nothing dirty for a while, or until the store has had a round and another
    /// one waits for the thread.
    pub(crate) fn flush_in_turn(&self, is_awaited: &dyn Fn() -> bool) -> Turn {
        let mut idle_since = Instant::now();
        let mut has_had_a_round = false;
        while !self.stop.load(Ordering::Acquire) {
            let (is_idle, awaited) = (self.queue.lock().files.is_empty(), is_awaited());
            if !is_idle {
                idle_since = Instant::now();
            } else if (awaited || idle_since.elapsed() >= FLUSHER_LIFE) && self.may_end() {
                return Turn::Done;
            }
            if has_had_a_round && awaited {
                return Turn::Again;
            }
            let pace = *self.pace.lock();
            let now = Instant::now();
            let timeout = match pace.retry {
                Some((_, wait)) => wait.min(WRITEBACK_INTERVAL),
                // So that those who take turns do not turn all the time.
                None if awaited => (pace.last_round + TURN_INTERVAL).saturating_duration_since(now),
                None => WRITEBACK_INTERVAL,
            };
            let is_full = self.cache.upgrade().is_some_and(|cache| cache.flushers().is_full());
            self.bell.wait(if is_full { timeout.min(LOOK_INTERVAL) } else { timeout });
            // Its next turn is as good as any.
            has_had_a_round = true;
            if let Some((until, _)) = pace.retry
                && Instant::now() < until
            {
                continue;
            }
            let wait = pace.retry.map_or(RETRY_FIRST, |(_, wait)| (wait * 2).min(RETRY_MAX));
            let retry = self.round().is_err().then(|| (Instant::now() + wait, wait));
            *self.pace.lock() = Pace { retry, last_round: Instant::now() };
        }
        Turn::Done
    }

    /// One round over the files that were queued when it began. A file that fails goes behind the others and stays due; a
    /// few of them end the round, and the next begins with those that this one has not come to.
    fn round(&self) -> std::io::Result<()> {
        let mut left = self.queue.lock().files.len();
        let urgent = self.urgent.swap(false, Ordering::AcqRel);
        let started = Instant::now();
        self.written.store(0, Ordering::Relaxed);
        let (mut result, mut nr_failed) = (Ok(()), 0);
        while left > 0 && nr_failed < NR_FAILED_MAX && !self.stop.load(Ordering::Acquire) {
            left -= 1;
            let Some(cache) = self.cache.upgrade() else { return Ok(()) };
            let Some(file) = self.take() else { break };
            let age = cache.now_ms().saturating_sub(file.dirty_since_ms.load(Ordering::Relaxed));
            let due = urgent
                || file.dirty_since_ms.load(Ordering::Relaxed) <= DUE_NOW
                || age >= DIRTY_EXPIRE.as_millis() as u64
                || cache.dirty_limits().over_background();
            if due {
                file.dirty_since_ms.store(0, Ordering::Relaxed);
                if let Err(error) = file.flush_range(0, PAGES_END, Durability::Range) {
                    file.dirty_since_ms.store(DUE_NOW, Ordering::Relaxed);
                    nr_failed += 1;
                    result = Err(error);
                }
            }
            self.requeue_or_retire(file);
            cache.writeback_progress();
        }
        self.estimate(started.elapsed());
        result
    }

    fn take(&self) -> Option<Arc<File>> {
        let mut queue = self.queue.lock();
        queue.current = queue.files.pop_front();
        queue.current.clone()
    }

    fn requeue_or_retire(&self, file: Arc<File>) {
        if !file.is_stable() {
            if file.dirty_since_ms.load(Ordering::Relaxed) == 0
                && let Some(cache) = self.cache.upgrade()
            {
                file.dirty_since_ms.store(cache.now_ms().max(1), Ordering::Relaxed);
            }
            let mut queue = self.queue.lock();
            queue.files.push_back(file);
            let done = queue.current.take();
            drop(queue);
            drop(done);
            return;
        }
        let done = self.queue.lock().current.take();
        drop(done);
        file.dirty_since_ms.store(0, Ordering::Relaxed);
        // AcqRel: pairs with the swap in `enqueue`. A page that became dirty before an earlier swap there is seen below; a
        // later swap finds false and pushes.
        file.queued.swap(false, Ordering::AcqRel);
        if !file.is_stable() {
            self.enqueue(&file);
        }
    }

    fn estimate(&self, busy: Duration) {
        let written = self.written.load(Ordering::Relaxed);
        if written < 256 * PAGE_SIZE_U64 {
            return;
        }
        let now = (written as f64 / busy.as_secs_f64().max(1e-6)) as u64;
        let old = self.bandwidth.load(Ordering::Relaxed);
        self.bandwidth.store((old * 3 + now) / 4, Ordering::Relaxed);
    }

    /// Every file that is not durable yet.
    pub(crate) fn unclean_files(&self) -> Vec<Arc<File>> {
        let queue = self.queue.lock();
        queue.current.iter().chain(&queue.files).filter(|file| !file.is_stable()).cloned().collect()
    }
}
