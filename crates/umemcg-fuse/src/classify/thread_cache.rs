//! A cache of classified threads: a map from thread id to group. A repeated query costs tens of
//! nanoseconds, and an answer is never about an earlier thread with the same id.
//!
//! Every entry holds a pidfd of its thread. One watcher waits on all of them and drops an entry
//! when its thread ends, which the kernel reports before the id can be reused. The entry of an
//! unwatchable thread (too few descriptors, or, on a kernel before 6.9, a thread other than the
//! first of its process) lives for [`UNWATCHED_LIFE_MS`] instead, and so does an answer that may
//! change without notice. All entries of an older generation are invalid; a new generation begins
//! whenever a thread was moved.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use rustix::process::Resource;
use rustix::time::ClockId;
use umemcg_base::LeafRwLock;
use umemcg_base::clock::Worker;

use super::proc_files::{has_ended, open_pidfd};

/// The lifetime of an answer that may change without notice, or outlive its thread.
pub const UNWATCHED_LIFE_MS: u64 = 1000;
/// The most entries. About as many threads can use the mount at a time before they displace each
/// other.
pub const NR_ENTRIES_MAX: usize = 4096;
/// Neighbouring thread ids meet in different shards.
const NR_SHARDS: usize = 64;
const SHARD_ENTRIES_MAX: usize = NR_ENTRIES_MAX / NR_SHARDS;
/// One part in this many of the process's descriptor limit is never used for watching.
const DESCRIPTOR_SHARE: u64 = 4;
/// The most ended threads handled per wake-up.
const NR_EVENTS: usize = 64;
/// Ends the watcher. No entry has this token, because tokens have a thread id in the lower half.
const STOP_TOKEN: u64 = 0;

/// Hashes a thread id with one multiplication, since ids are spread well enough.
#[derive(Debug, Default)]
pub struct TidHasher(u64);

impl Hasher for TidHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }
    fn write_u32(&mut self, tid: u32) {
        // An odd constant with bits everywhere, so that both ends of the product depend on the id.
        self.0 = (self.0 ^ u64::from(tid)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Shard<T> = LeafRwLock<HashMap<u32, CachedAnswer<T>, BuildHasherDefault<TidHasher>>>;

/// The known answer for one thread.
struct CachedAnswer<T> {
    value: T,
    uid: u32,
    generation: u64,
    /// [`u64::MAX`] for an answer valid until its thread ends.
    expires_ms: u64,
    /// Identifies this entry to the watcher, so that it does not drop a later one.
    token: u64,
    /// Closing it ends the watch.
    watch: Option<OwnedFd>,
}

/// The map and its watcher.
pub struct ThreadCache<T> {
    shared: Arc<ShardedMap<T>>,
    stop: OwnedFd,
    watcher: Option<Worker>,
}

/// The answers by thread id, and the watches of their threads.
struct ShardedMap<T> {
    shards: [CachePadded<Shard<T>>; NR_SHARDS],
    generation: AtomicU64,
    nr_tokens: AtomicU64,
    epoll: OwnedFd,
    /// Descriptors from this number on are not used for watches.
    descriptors_max: u64,
}

/// A ticket, taken before a thread is examined, so that an answer already outdated when it is
/// stored is never used.
#[derive(Debug)]
pub struct Ticket {
    tid: u32,
    generation: u64,
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    Possible(OwnedFd),
    Impossible,
    /// There is no such thread (any more).
    Gone,
}

impl Ticket {
    /// Returns whether the end of the thread will be noticed.
    pub fn is_watched(&self) -> bool {
        matches!(self.watch, Watch::Possible(_))
    }

    /// Returns whether the thread is known to have ended.
    pub fn has_ended(&self) -> bool {
        match &self.watch {
            Watch::Possible(pidfd) => has_ended(pidfd),
            Watch::Impossible => false,
            Watch::Gone => true,
        }
    }
}

/// The lifetime of a stored answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Until the thread ends, or any thread is moved.
    Thread,
    /// For [`UNWATCHED_LIFE_MS`].
    Short,
}

impl<T: Clone + Send + Sync + 'static> ThreadCache<T> {
    /// Creates an empty map. Starts the watcher.
    ///
    /// # Errors
    /// When descriptors or threads are used up.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP_TOKEN), epoll::EventFlags::IN)?;
        let descriptors = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let shared = Arc::new(ShardedMap {
            shards: std::array::from_fn(|_| CachePadded::new(LeafRwLock::default())),
            generation: AtomicU64::new(0),
            nr_tokens: AtomicU64::new(0),
            epoll,
            descriptors_max: descriptors / DESCRIPTOR_SHARE * (DESCRIPTOR_SHARE - 1),
        });
        let watched = Arc::clone(&shared);
        let watcher = Worker::spawn("umemcg-threads", move || watched.watch())?;
        Ok(Self { shared, stop, watcher: Some(watcher) })
    }

    /// Returns the answer about a thread of this user, if a valid one is cached. Takes the read
    /// lock of one shard.
    #[inline]
    pub fn get(&self, tid: u32, uid: u32) -> Option<T> {
        self.get_at(tid, uid, now_ms)
    }

    #[inline]
    fn get_at(&self, tid: u32, uid: u32, now_ms: impl FnOnce() -> u64) -> Option<T> {
        // Acquire: pairs with `begin_generation`. A thread that knows of a move sees the new
        // generation.
        let generation = self.shared.generation.load(Ordering::Acquire);
        let shard = self.shared.shard(tid).read();
        let entry = shard.get(&tid)?;
        let good = entry.generation == generation
            && entry.uid == uid
            && (entry.expires_ms == u64::MAX || now_ms() < entry.expires_ms);
        good.then(|| entry.value.clone())
    }

    /// Returns the last answer about a thread, valid or not, if the thread still lives.
    pub fn earlier(&self, tid: u32) -> Option<T> {
        let shard = self.shared.shard(tid).read();
        let entry = shard.get(&tid)?;
        // The watcher may not have handled the end of the thread yet.
        entry.watch.as_ref().filter(|watch| !has_ended(watch)).map(|_| entry.value.clone())
    }

    /// Takes a ticket: the first step of examining a thread.
    pub fn ticket(&self, tid: u32) -> Ticket {
        // Acquire: pairs with `begin_generation`. Later reads are at least as new as this
        // generation.
        let generation = self.shared.generation.load(Ordering::Acquire);
        Ticket { tid, generation, watch: self.shared.open_watch(tid) }
    }

    /// Stores the answer: the last step.
    pub fn put(&self, ticket: Ticket, uid: u32, value: T, life: Life) {
        self.put_at(ticket, uid, value, life, now_ms());
    }

    fn put_at(&self, ticket: Ticket, uid: u32, value: T, life: Life, now_ms: u64) {
        let Ticket { tid, generation, watch } = ticket;
        let watch = match watch {
            Watch::Possible(pidfd) => Some(pidfd),
            Watch::Impossible => None,
            Watch::Gone => return,
        };
        let token = self.shared.next_token(tid);
        // The watch begins before the entry is visible, and also reports an earlier end of the
        // thread. The watcher then waits for the shard's lock.
        let mut shard = self.shared.shard(tid).write();
        let watch = watch.filter(|pidfd| {
            let data = epoll::EventData::new_u64(token);
            epoll::add(&self.shared.epoll, pidfd, data, epoll::EventFlags::IN).is_ok()
        });
        let forever = life == Life::Thread && watch.is_some();
        let expires_ms = if forever { u64::MAX } else { now_ms + UNWATCHED_LIFE_MS };
        if shard.len() >= SHARD_ENTRIES_MAX && !shard.contains_key(&tid) {
            shard.retain(|_, entry| entry.generation == generation && entry.expires_ms > now_ms);
            if shard.len() >= SHARD_ENTRIES_MAX
                && let Some(&victim) = shard.keys().next()
            {
                shard.remove(&victim);
            }
        }
        shard.insert(tid, CachedAnswer { value, uid, generation, expires_ms, token, watch });
    }

    /// Invalidates every stored answer, and every answer being determined. Called just after a
    /// thread was moved.
    pub fn begin_generation(&self) {
        // Release: pairs with `get` and `ticket`.
        self.shared.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of entries, valid or not.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shared.shards.iter().map(|shard| shard.read().len()).sum()
    }
}

impl<T> ShardedMap<T> {
    #[inline]
    fn shard(&self, tid: u32) -> &Shard<T> {
        &self.shards[tid as usize % NR_SHARDS]
    }

    fn next_token(&self, tid: u32) -> u64 {
        self.nr_tokens.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(tid)
    }

    fn open_watch(&self, tid: u32) -> Watch {
        match open_pidfd(tid) {
            Ok(pidfd) if has_ended(&pidfd) => Watch::Gone,
            // The kernel hands out the lowest free number, so the number shows how many are in use.
            Ok(pidfd) if (pidfd.as_raw_fd() as u64) < self.descriptors_max => Watch::Possible(pidfd),
            Err(Errno::SRCH) => Watch::Gone,
            _ => Watch::Impossible,
        }
    }

    /// Runs the watcher: drops entries of ended threads.
    fn watch(&self) {
        let mut events = Vec::with_capacity(NR_EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "the end of threads can no longer be watched");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    STOP_TOKEN => return,
                    token => self.drop_ended(token),
                }
            }
        }
    }

    fn drop_ended(&self, token: u64) {
        let tid = token as u32;
        let mut shard = self.shard(tid).write();
        if shard.get(&tid).is_some_and(|entry| entry.token == token) {
            shard.remove(&tid);
        }
    }
}

impl<T> Drop for ThreadCache<T> {
    fn drop(&mut self) {
        // Writing 1 cannot overflow the counter of an eventfd.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        drop(self.watcher.take());
    }
}

impl<T> fmt::Debug for ThreadCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nr_entries: usize = self.shared.shards.iter().map(|shard| shard.read().len()).sum();
        f.debug_struct("ThreadCache").field("nr_entries", &nr_entries).finish_non_exhaustive()
    }
}

/// Returns milliseconds of a coarse clock that is nearly free to read.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::testing::{Child, own_tid, wait_until};

    const UID: u32 = 1000;

    fn put(cache: &ThreadCache<u32>, tid: u32, value: u32) {
        let ticket = cache.ticket(tid);
        cache.put(ticket, UID, value, Life::Thread);
    }

    #[test]
    fn what_was_known_of_a_living_thread_outlasts_its_answer() {
        let cache = ThreadCache::<u64>::new().unwrap();
        let mut child = Child::shell("read go");
        assert_eq!(cache.earlier(child.id()), None);
        cache.put(cache.ticket(child.id()), UID, 7, Life::Thread);
        cache.begin_generation();
        assert_eq!((cache.get(child.id(), UID), cache.earlier(child.id())), (None, Some(7)));
        child.tell("go");
        child.wait_until_zombie();
        assert_eq!(cache.earlier(child.id()), None);
        child.reap();
    }

    #[test]
    fn an_answer_is_found_again_for_the_same_thread_and_user() {
        let cache = ThreadCache::new().unwrap();
        put(&cache, own_tid(), 5);
        assert_eq!(cache.get(own_tid(), UID), Some(5));
        assert_eq!(cache.get(own_tid(), UID + 1), None);
        assert_eq!(cache.get(own_tid() + 1, UID), None);
    }

    #[test]
    fn a_new_generation_forgets_everything_that_was_begun_before_it() {
        let cache = ThreadCache::new().unwrap();
        put(&cache, own_tid(), 5);
        let begun_before = cache.ticket(own_tid());
        cache.begin_generation();
        assert_eq!(cache.get(own_tid(), UID), None);
        cache.put(begun_before, UID, 6, Life::Thread);
        assert_eq!(cache.get(own_tid(), UID), None, "found out before the move");
        put(&cache, own_tid(), 7);
        assert_eq!(cache.get(own_tid(), UID), Some(7));
    }

    #[test]
    fn a_short_answer_expires_after_a_second() {
        let cache = ThreadCache::new().unwrap();
        let tid = own_tid();
        cache.put_at(cache.ticket(tid), UID, 5, Life::Short, 10_000);
        assert_eq!(cache.get_at(tid, UID, || 10_999), Some(5));
        assert_eq!(cache.get_at(tid, UID, || 11_000), None);
        cache.put_at(cache.ticket(tid), UID, 5, Life::Thread, 10_000);
        assert_eq!(cache.get_at(tid, UID, || u64::MAX - 1), Some(5));
    }

    #[test]
    fn an_answer_about_a_process_ends_with_it_before_it_is_reaped() {
        let cache = ThreadCache::new().unwrap();
        let mut child = Child::shell("read go");
        put(&cache, child.id(), 5);
        assert_eq!(cache.get(child.id(), UID), Some(5));
        child.tell("go");
        child.wait_until_zombie();
        wait_until(|| cache.len() == 0);
        assert_eq!(cache.get(child.id(), UID), None);
        child.reap();
        put(&cache, child.id(), 6);
        assert_eq!(cache.len(), 0, "nothing is stored about a process that is gone");
    }

    #[test]
    fn an_answer_about_a_thread_ends_with_the_thread() {
        let cache = ThreadCache::new().unwrap();
        let tid = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    put(&cache, own_tid(), 5);
                    own_tid()
                })
                .join()
                .unwrap()
        });
        wait_until(|| cache.get(tid, UID).is_none());
        // On kernels without watches of threads it has expired and waits to be overwritten.
        assert!(cache.len() <= 1);
    }

    #[test]
    fn the_end_of_an_earlier_entry_does_not_touch_a_later_one() {
        let cache = ThreadCache::new().unwrap();
        let tid = own_tid();
        put(&cache, tid, 1);
        let token = cache.shared.shard(tid).read()[&tid].token;
        put(&cache, tid, 2);
        cache.shared.drop_ended(token);
        assert_eq!(cache.get(tid, UID), Some(2), "the thread id was used again meanwhile");
        let token = cache.shared.shard(tid).read()[&tid].token;
        cache.shared.drop_ended(token);
        assert_eq!(cache.get(tid, UID), None);
    }

    #[test]
    fn an_end_between_looking_and_storing_is_noticed() {
        let cache = ThreadCache::new().unwrap();
        let mut child = Child::shell("read go");
        let ticket = cache.ticket(child.id());
        child.tell("go");
        child.reap();
        cache.put(ticket, UID, 5, Life::Thread);
        wait_until(|| cache.len() == 0);
    }

    #[test]
    fn the_map_is_bounded() {
        let cache = ThreadCache::new().unwrap();
        for tid in 0..3 * NR_ENTRIES_MAX as u32 {
            let ticket = Ticket { tid, generation: 0, watch: Watch::Impossible };
            cache.put_at(ticket, UID, tid, Life::Short, 0);
        }
        assert_eq!(cache.len(), NR_ENTRIES_MAX);
    }
}
