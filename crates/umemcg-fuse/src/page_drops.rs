//! The threads that ask the kernel to drop file pages.
//!
//! Before the kernel drops a page, it waits for a request holding the page lock, and writes back a
//! page made dirty through a mapping. So no thread that serves requests may send the message.
//! Several threads do, at most [`NR_OF_STORE_MAX`] for one store at a time and [`NR_OF_NODE_MAX`]
//! for one file: a hanging file or store holds up only its own drops. The write-back of a dirty
//! mapped page may take minutes, since an object is copied before it is changed. Two threads
//! dropping pages at the same time wait for the kernel's locks most of the time, so a store's next
//! thread starts only behind long messages.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg_base::{Condvar, LeafMutex, Rank, assert_may_wait};
use umemcg_vfs::PageDrop;

/// Threads for one store at a time.
const NR_OF_STORE_MAX: usize = 64;
/// Threads for one file at a time.
const NR_OF_NODE_MAX: usize = 2;
/// Threads for each store with waiting drops.
const NR_OF_STORE_MIN: usize = 2;
/// A message longer than this waits for something, perhaps a processor. Most take 0.2 ms, and
/// reclaim waits 20 ms for the drops it asks for.
const LONG_MESSAGE: Duration = Duration::from_millis(1);
/// Threads in all. They are started on demand, and stay.
const NR_THREADS_MAX: usize = 512;
/// The most pages of one message: all later drops wait for its end.
const PAGES_MAX: u64 = 4096;

/// The drops of one store.
#[derive(Debug, Default)]
struct OfStore {
    /// By node. No queue is empty.
    waiting: BTreeMap<u64, VecDeque<PageDrop>>,
    /// The node served last: the next one has its turn.
    last: u64,
    /// The messages under way: the time of sending, and the node.
    sent: Vec<(Instant, u64)>,
}

impl OfStore {
    /// Returns the first moment at which another thread may serve the store, if any: when all
    /// messages under way have become long.
    fn may_run_at(&self, now: Instant) -> Option<Instant> {
        self.next_node()?;
        Some(self.sent.iter().map(|sent| sent.0).max().map_or(now, |sent_at| sent_at + LONG_MESSAGE))
    }

    /// Returns the next node with room for a message.
    fn next_node(&self) -> Option<u64> {
        if self.sent.len() >= NR_OF_STORE_MAX {
            return None;
        }
        let is_free = |node: &&u64| self.sent.iter().filter(|sent| sent.1 == **node).count() < NR_OF_NODE_MAX;
        let after = self.waiting.range((Bound::Excluded(self.last), Bound::Unbounded)).map(|(node, _)| node);
        after.chain(self.waiting.range(..=self.last).map(|(node, _)| node)).find(is_free).copied()
    }

    /// Takes adjacent drops of the next node.
    fn take(&mut self, now: Instant) -> Option<Vec<PageDrop>> {
        let node = self.next_node()?;
        let waiting = self.waiting.get_mut(&node)?;
        let mut drops: Vec<PageDrop> = waiting.pop_front().into_iter().collect();
        while let (Some(last), Some(next)) = (drops.last(), waiting.front())
            && last.pages.end == next.pages.start
            && next.pages.end - drops[0].pages.start <= PAGES_MAX
        {
            drops.extend(waiting.pop_front());
        }
        if waiting.is_empty() {
            self.waiting.remove(&node);
        }
        self.last = node;
        self.sent.push((now, node));
        Some(drops)
    }
}

#[derive(Debug, Default)]
struct Queue {
    by_store: BTreeMap<u64, OfStore>,
    /// The store served last: the next one has its turn.
    last: u64,
    nr_threads: usize,
    /// Threads sending a message.
    nr_busy: usize,
    /// Threads waiting with a timeout.
    nr_armed: usize,
    is_ended: bool,
}

impl Queue {
    /// Returns the first moment at which a store may be served.
    fn may_take_at(&self, now: Instant) -> Option<Instant> {
        self.by_store.values().filter_map(|of_store| of_store.may_run_at(now)).min()
    }

    /// Takes adjacent drops of the next store that may be served.
    fn take(&mut self, now: Instant) -> Option<(u64, Vec<PageDrop>)> {
        let may_run =
            |(_, of_store): &(&u64, &mut OfStore)| of_store.may_run_at(now).is_some_and(|at| at <= now);
        let last = self.last;
        let (before, after): (Vec<_>, Vec<_>) =
            self.by_store.iter_mut().filter(may_run).partition(|(store, _)| **store <= last);
        let (&store, of_store) = after.into_iter().chain(before).next()?;
        let drops = of_store.take(now)?;
        self.last = store;
        self.nr_busy += 1;
        Some((store, drops))
    }

    /// Notes the end of drops taken of a store; `sent` has their moment and node.
    fn finish(&mut self, store: u64, sent: (Instant, u64)) {
        self.nr_busy -= 1;
        if let Some(of_store) = self.by_store.get_mut(&store) {
            if let Some(at) = of_store.sent.iter().position(|&known| known == sent) {
                of_store.sent.swap_remove(at);
            }
            if of_store.sent.is_empty() && of_store.waiting.is_empty() {
                self.by_store.remove(&store);
            }
        }
    }
}

/// The queue, with the signal that wakes its threads.
#[derive(Debug, Default)]
struct DropQueue {
    queue: LeafMutex<Queue>,
    wake: Condvar,
}

/// Has the kernel drop a range of pages: the node, the first page, the number of pages.
type Tell = dyn Fn(u64, u64, u64) + Send + Sync;

/// The queue of drops. Its threads start with the first drop, and end some time after it is
/// dropped: one may be waiting for a page.
pub(crate) struct PageDrops {
    shared: Arc<DropQueue>,
    tell: Arc<Tell>,
}

impl std::fmt::Debug for PageDrops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageDrops").finish_non_exhaustive()
    }
}

impl PageDrops {
    /// Creates a queue without threads. `tell` sends a message, and returns when the kernel has
    /// carried it out.
    pub(crate) fn new(tell: impl Fn(u64, u64, u64) + Send + Sync + 'static) -> Self {
        Self { shared: Arc::default(), tell: Arc::new(tell) }
    }

    /// Queues drops. Never waits. The queue has no bound of its own: callers ask for each page
    /// once.
    pub(crate) fn put(&self, drops: Vec<PageDrop>) {
        let mut queue = self.shared.queue.lock();
        let (mut wants_thread, has_armed) = (false, queue.nr_armed > 0);
        for drop in drops {
            let of_store = queue.by_store.entry(drop.store.0).or_default();
            // A drop behind others of its store needs no wake-up of its own.
            let has_free = of_store.next_node().is_some();
            of_store.waiting.entry(drop.node.0).or_default().push_back(drop);
            wants_thread |= !has_free && (of_store.sent.is_empty() || !has_armed);
        }
        let nr_wanted = NR_OF_STORE_MIN * queue.by_store.len();
        while (queue.nr_threads < nr_wanted || queue.nr_busy == queue.nr_threads)
            && self.shared.start_thread(&mut queue, &self.tell)
        {}
        drop(queue);
        if wants_thread {
            self.shared.wake.notify_one();
        }
    }
}

impl Drop for PageDrops {
    fn drop(&mut self) {
        self.shared.queue.lock().is_ended = true;
        self.shared.wake.notify_all();
    }
}

impl DropQueue {
    /// Starts a thread, unless there are too many. Returns whether one was started.
    fn start_thread(self: &Arc<Self>, queue: &mut Queue, tell: &Arc<Tell>) -> bool {
        if queue.nr_threads >= NR_THREADS_MAX {
            return false;
        }
        let (shared, tell) = (Arc::clone(self), Arc::clone(tell));
        let spawned =
            std::thread::Builder::new().name("umemcg-drop".into()).spawn(move || shared.serve(&tell));
        if let Err(error) = &spawned {
            tracing::warn!(%error, "cannot start a thread that takes pages back");
        }
        queue.nr_threads += usize::from(spawned.is_ok());
        spawned.is_ok()
    }

    fn serve(self: Arc<Self>, tell: &Arc<Tell>) {
        loop {
            let (store, drops, taken_at) = {
                let mut queue = self.queue.lock();
                let mut has_waited = false;
                loop {
                    if queue.is_ended {
                        return;
                    }
                    let now = Instant::now();
                    if let Some((store, drops)) = queue.take(now) {
                        // One thread is left for the waiting drops, in case all messages hang.
                        if queue.nr_busy == queue.nr_threads && queue.may_take_at(now).is_some() {
                            self.start_thread(&mut queue, tell);
                        }
                        // Another thread must take over the timed wait.
                        if has_waited && queue.may_take_at(now).is_some() {
                            self.wake.notify_one();
                        }
                        break (store, drops, now);
                    }
                    has_waited = true;
                    match queue.may_take_at(now) {
                        Some(at) => {
                            queue.nr_armed += 1;
                            self.wake.wait_until(&mut queue, at);
                            queue.nr_armed -= 1;
                        }
                        None => self.wake.wait(&mut queue),
                    }
                }
            };
            let sent = (taken_at, drops[0].node.0);
            let (told, others): (Vec<_>, Vec<_>) = drops.into_iter().partition(|drop| drop.task.may_tell());
            for run in told.chunk_by(|a, b| a.pages.end == b.pages.start) {
                let first = run[0].pages.start;
                let end = run.last().map_or(first, |last| last.pages.end);
                assert_may_wait(Rank::KernelNotification, "pages that the kernel drops");
                tell(run[0].node.0, first, end - first);
            }
            told.into_iter().for_each(|drop| end_of(drop, true));
            others.into_iter().for_each(|drop| end_of(drop, false));
            self.queue.lock().finish(store, sent);
        }
    }
}

/// Ends a drop. A panic must not cost the store its threads.
fn end_of(drop: PageDrop, was_told: bool) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| drop.task.done(was_told))).is_err() {
        tracing::error!("the end of a drop panicked; this is a defect of this program");
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use umemcg::files::StoreId;
    use umemcg_vfs::{DropTask, NodeId};

    /// Reports its end.
    #[derive(Debug)]
    struct Tells(Sender<u64>, u64);

    impl DropTask for Tells {
        fn may_tell(&self) -> bool {
            self.1 != NOT_NOW
        }
        fn done(self: Box<Self>, was_told: bool) {
            assert_eq!(was_told, self.1 != NOT_NOW);
            let _ = self.0.send(self.1);
        }
    }

    /// The first page of a drop that must not be sent to the kernel.
    const NOT_NOW: u64 = 999;

    fn drop_of(store: u64, node: u64, pages: Range<u64>, gone: &Sender<u64>) -> PageDrop {
        let task = Box::new(Tells(gone.clone(), pages.start));
        PageDrop { node: NodeId(node), pages, store: StoreId(store), task }
    }

    #[test]
    fn ranges_side_by_side_are_dropped_by_one_message() {
        let (tell, told) = channel();
        let drops = PageDrops::new(move |node, first, nr| tell.send((node, first, nr)).unwrap());
        let (gone, heard) = channel();
        drops.put(vec![
            drop_of(1, 7, 0..64, &gone),
            drop_of(1, 7, 64..100, &gone),
            drop_of(1, 7, 128..192, &gone),
            drop_of(1, 8, 192..200, &gone),
            drop_of(1, 9, NOT_NOW..NOT_NOW + 1, &gone),
        ]);
        let mut firsts: Vec<u64> = (0..5).map(|_| heard.recv().unwrap()).collect();
        firsts.sort_unstable();
        assert_eq!(firsts, [0, 64, 128, 192, NOT_NOW]);
        let mut messages: Vec<_> = told.try_iter().collect();
        messages.sort_unstable();
        assert_eq!(messages, [(7, 0, 100), (7, 128, 64), (8, 192, 8)]);
    }

    #[test]
    fn a_panic_at_the_end_of_a_drop_costs_no_thread() {
        #[derive(Debug)]
        struct Panics;
        impl DropTask for Panics {
            fn may_tell(&self) -> bool {
                true
            }
            fn done(self: Box<Self>, _was_told: bool) {
                panic!("on purpose");
            }
        }
        let drops = PageDrops::new(|_, _, _| {});
        let panics = || PageDrop { node: NodeId(1), pages: 0..1, store: StoreId(1), task: Box::new(Panics) };
        drops.put((0..10).map(|_| panics()).collect());
        let (gone, heard) = channel();
        drops.put(vec![drop_of(1, 1, 7..8, &gone)]);
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(7));
    }

    #[test]
    fn a_store_that_hangs_leaves_threads_for_the_others() {
        let (go, wait): (Sender<()>, Receiver<()>) = channel();
        let wait = LeafMutex::new(wait);
        let (stuck, is_stuck) = channel();
        let drops = PageDrops::new(move |node, _, _| {
            if node == 1 {
                stuck.send(()).unwrap();
                let _ = wait.lock().recv();
            }
        });
        let (gone, heard) = channel();
        drops.put((0..10).map(|n| drop_of(1, 1, 100 * n..100 * n + 1, &gone)).collect());
        is_stuck.recv().unwrap();
        drops.put((0..10).map(|n| drop_of(2, 2, 1000 + 100 * n..1001 + 100 * n, &gone)).collect());
        for _ in 0..10 {
            assert!(heard.recv_timeout(Duration::from_secs(60)).unwrap() >= 1000);
        }
        drop(go);
        for _ in 0..10 {
            assert!(heard.recv_timeout(Duration::from_secs(60)).unwrap() < 1000);
        }
    }

    #[test]
    fn a_store_has_a_second_thread_behind_a_long_message() {
        let (gone, _heard) = channel();
        let mut queue = Queue::default();
        let waiting = &mut queue.by_store.entry(1).or_default().waiting;
        for first in [0, 2, 4] {
            waiting.entry(7).or_default().push_back(drop_of(1, 7, first..first + 1, &gone));
        }
        let start = Instant::now();
        assert!(queue.take(start).is_some());
        assert!(queue.take(start + LONG_MESSAGE / 2).is_none());
        assert_eq!(queue.may_take_at(start + LONG_MESSAGE / 2), Some(start + LONG_MESSAGE));
        assert!(queue.take(start + LONG_MESSAGE).is_some());
        assert!(queue.take(start + 3 * LONG_MESSAGE).is_none(), "two of a file at most");
        queue.finish(1, (start + LONG_MESSAGE, 7));
        assert!(queue.take(start + LONG_MESSAGE).is_some(), "beside the one that is stuck");
    }

    #[test]
    fn a_message_that_hangs_leaves_its_store_a_thread() {
        let (go, wait): (Sender<()>, Receiver<()>) = channel();
        let wait = LeafMutex::new(wait);
        let drops = PageDrops::new(move |node, _, _| {
            if node == 1 {
                let _ = wait.lock().recv();
            }
        });
        let (gone, heard) = channel();
        drops.put(vec![drop_of(1, 1, 0..1, &gone), drop_of(1, 2, 2..3, &gone)]);
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(2));
        drops.put((0..10).map(|n| drop_of(1, 2, 10 * n + 10..10 * n + 11, &gone)).collect());
        for _ in 0..10 {
            assert!(heard.recv_timeout(Duration::from_secs(60)).unwrap() >= 10);
        }
        drop(go);
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(0));
    }

    #[test]
    fn files_that_hang_leave_their_store_a_thread() {
        let (go, wait): (Sender<()>, Receiver<()>) = channel();
        let wait = LeafMutex::new(wait);
        let drops = PageDrops::new(move |node, _, _| {
            if node <= 10 {
                let _ = wait.lock().recv();
            }
        });
        let (gone, heard) = channel();
        let hang = |nodes: Range<u64>| nodes.flat_map(|node| (0..4).map(move |n| (node, 10 * n)));
        let goes = |from: u64| (0..10).map(move |n| (11, from + 10 * n));
        let put = |drops_of: Vec<(u64, u64)>| {
            drops.put(drops_of.into_iter().map(|(node, at)| drop_of(1, node, at..at + 1, &gone)).collect());
        };
        put(hang(1..10).chain(goes(1000)).collect());
        // A drop queued when all existing threads may hang.
        put(hang(10..11).collect());
        put(goes(2000).collect());
        for _ in 0..20 {
            assert!(heard.recv_timeout(Duration::from_secs(60)).unwrap() >= 1000);
        }
        drop(go);
        for _ in 0..40 {
            assert!(heard.recv_timeout(Duration::from_secs(60)).unwrap() < 1000);
        }
    }

    #[test]
    fn two_stores_that_hang_leave_threads_for_a_third() {
        let (go, wait): (Sender<()>, Receiver<()>) = channel();
        let wait = LeafMutex::new(wait);
        let (stuck, is_stuck) = channel();
        let drops = PageDrops::new(move |node, _, _| {
            if node < 3 {
                stuck.send(()).unwrap();
                let _ = wait.lock().recv();
            }
        });
        let (gone, heard) = channel();
        drops.put((0..4).map(|n| drop_of(1 + n % 2, 1 + n % 2, 100 * n..100 * n + 1, &gone)).collect());
        is_stuck.recv().unwrap();
        drops.put(vec![drop_of(3, 3, 1000..1001, &gone)]);
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(1000));
        drop(go);
    }
}
