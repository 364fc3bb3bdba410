//! The threads sending messages that make the kernel wait: to drop file pages, and to forget names.
//!
//! Before the kernel drops a page, it waits for a request holding the page lock, and writes back a
//! page made dirty through a mapping. Before it forgets a name, it waits for a request holding the
//! lock of the directory. So no thread that serves requests may send these messages. Several
//! threads do, at most [`NR_OF_STORE_MAX`] for one store at a time and [`NR_OF_NODE_MAX`] for one
//! file or directory: a hanging file, directory or store holds up only its own messages. The
//! write-back of a dirty mapped page may take minutes, since an object is copied before it is
//! changed. Two threads dropping pages at the same time wait for the kernel's locks most of the
//! time, so a store's next thread starts only behind long messages.
//!
//! A store is a volume here, known by the slot in the ids of its inodes.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::ops::{Bound, Range};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg_base::{Condvar, LeafMutex, Rank, assert_may_wait};
use umemcg_vfs::{DropTask, PageDrop, slot_of};

/// Threads for one store at a time.
const NR_OF_STORE_MAX: usize = 64;
/// The threads among them for names. The others are left to drops, which reclaim waits for.
const NR_FOR_NAMES_MAX: usize = NR_OF_STORE_MAX / 2;
/// The threads for names of all stores.
const NR_FOR_ALL_NAMES_MAX: usize = NR_THREADS_MAX / 2;
/// Threads for one file or directory at a time.
const NR_OF_NODE_MAX: usize = 2;
/// Threads for each store with waiting messages.
const NR_OF_STORE_MIN: usize = 2;
/// A message longer than this waits for something, perhaps a processor. Most take 0.2 ms, and
/// reclaim waits 20 ms for the drops it asks for.
const LONG_MESSAGE: Duration = Duration::from_millis(1);
/// Threads in all. They are started on demand, and stay.
const NR_THREADS_MAX: usize = 512;
/// The most pages of one message: all later drops wait for its end.
const PAGES_MAX: u64 = 4096;
/// The most names of one store that wait: less than 1 MiB.
const NR_NAMES_MAX: usize = 1024;

/// A request to the kernel about one of its inodes.
#[derive(Debug)]
pub(crate) enum Ask {
    /// To drop pages, by number.
    Pages(Range<u64>),
    /// To forget a name of the directory, or with `expire_only` to ask again at its next use.
    Name {
        /// The name.
        name: OsString,
        /// See above.
        expire_only: bool,
    },
}

/// A message that may wait in the kernel.
#[derive(Debug)]
pub(crate) struct Message {
    /// The kernel's id of the file or directory.
    pub(crate) node: u64,
    pub(crate) ask: Ask,
    /// The purpose of the message.
    pub(crate) task: Box<dyn DropTask>,
}

impl From<PageDrop> for Message {
    fn from(drop: PageDrop) -> Self {
        Self { node: drop.node.0, ask: Ask::Pages(drop.pages), task: drop.task }
    }
}

impl Message {
    fn pages(&self) -> Option<&Range<u64>> {
        match &self.ask {
            Ask::Pages(pages) => Some(pages),
            Ask::Name { .. } => None,
        }
    }

    fn is_name(&self) -> bool {
        self.pages().is_none()
    }
}

/// Returns whether the pages of `next` follow those of `last`.
fn are_adjacent(last: &Message, next: &Message) -> bool {
    matches!((last.pages(), next.pages()), (Some(last), Some(next)) if last.end == next.start)
}

/// Messages of one node under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    at: Instant,
    node: u64,
    is_name: bool,
}

/// The messages of one store.
#[derive(Debug, Default)]
struct OfStore {
    /// By node. No queue is empty.
    waiting: BTreeMap<u64, VecDeque<Message>>,
    /// The names among them.
    nr_names: usize,
    /// The node served last: the next one has its turn.
    last: u64,
    sent: Vec<Sent>,
}

impl OfStore {
    /// Returns the first moment at which another thread may serve the store, if any: when all
    /// messages under way have become long. `names_fit`: whether a thread may serve a name.
    fn may_run_at(&self, now: Instant, names_fit: bool) -> Option<Instant> {
        self.next_node(names_fit)?;
        Some(self.sent.iter().map(|sent| sent.at).max().map_or(now, |sent_at| sent_at + LONG_MESSAGE))
    }

    /// Returns the next node with room for a message.
    fn next_node(&self, names_fit: bool) -> Option<u64> {
        if self.sent.len() >= NR_OF_STORE_MAX {
            return None;
        }
        let nr_names = self.sent.iter().filter(|sent| sent.is_name).count();
        let names_fit = names_fit && nr_names < NR_FOR_NAMES_MAX;
        let is_free = |&(&node, messages): &(&u64, &VecDeque<Message>)| {
            (names_fit || !messages.front().is_some_and(Message::is_name))
                && self.sent.iter().filter(|sent| sent.node == node).count() < NR_OF_NODE_MAX
        };
        let after = self.waiting.range((Bound::Excluded(self.last), Bound::Unbounded));
        after.chain(self.waiting.range(..=self.last)).find(is_free).map(|(&node, _)| node)
    }

    /// Adds a message. Returns it if there is no room for its name; drops of pages have no bound
    /// here, since callers ask for each page once.
    fn add(&mut self, message: Message) -> Option<Message> {
        if message.is_name() {
            if self.nr_names >= NR_NAMES_MAX {
                return Some(message);
            }
            self.nr_names += 1;
        }
        self.waiting.entry(message.node).or_default().push_back(message);
        None
    }

    /// Takes adjacent drops of the next node, or one name.
    fn take(&mut self, now: Instant, names_fit: bool) -> Option<(Sent, Vec<Message>)> {
        let node = self.next_node(names_fit)?;
        let waiting = self.waiting.get_mut(&node)?;
        let first_page = waiting.front().and_then(Message::pages).map_or(0, |pages| pages.start);
        let mut messages: Vec<Message> = waiting.pop_front().into_iter().collect();
        while let (Some(last), Some(next)) = (messages.last(), waiting.front())
            && are_adjacent(last, next)
            && next.pages().is_some_and(|pages| pages.end - first_page <= PAGES_MAX)
        {
            messages.extend(waiting.pop_front());
        }
        if waiting.is_empty() {
            self.waiting.remove(&node);
        }
        let sent = Sent { at: now, node, is_name: messages.first().is_some_and(Message::is_name) };
        self.nr_names -= usize::from(sent.is_name);
        self.last = node;
        self.sent.push(sent);
        Some((sent, messages))
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// By slot.
    by_store: BTreeMap<u32, OfStore>,
    /// The store served last: the next one has its turn.
    last: u32,
    nr_threads: usize,
    /// Threads sending a message.
    nr_busy: usize,
    /// Threads sending a name.
    nr_sending_names: usize,
    /// Threads waiting with a timeout.
    nr_armed: usize,
    is_ended: bool,
}

impl Queue {
    fn names_fit(&self) -> bool {
        self.nr_sending_names < NR_FOR_ALL_NAMES_MAX
    }

    /// Returns the first moment at which a store may be served.
    fn may_take_at(&self, now: Instant) -> Option<Instant> {
        self.by_store.values().filter_map(|of_store| of_store.may_run_at(now, self.names_fit())).min()
    }

    /// Takes messages of the next store that may be served.
    fn take(&mut self, now: Instant) -> Option<(u32, Sent, Vec<Message>)> {
        let names_fit = self.names_fit();
        let may_run = |(_, of_store): &(&u32, &mut OfStore)| {
            of_store.may_run_at(now, names_fit).is_some_and(|at| at <= now)
        };
        let last = self.last;
        let (before, after): (Vec<_>, Vec<_>) =
            self.by_store.iter_mut().filter(may_run).partition(|(store, _)| **store <= last);
        let (&store, of_store) = after.into_iter().chain(before).next()?;
        let (sent, messages) = of_store.take(now, names_fit)?;
        self.last = store;
        self.nr_busy += 1;
        self.nr_sending_names += usize::from(sent.is_name);
        Some((store, sent, messages))
    }

    /// Notes the end of messages taken of a store.
    fn finish(&mut self, store: u32, sent: Sent) {
        self.nr_busy -= 1;
        self.nr_sending_names -= usize::from(sent.is_name);
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
struct MessageQueue {
    queue: LeafMutex<Queue>,
    wake: Condvar,
}

/// Sends the kernel a message about a node, and returns when the kernel has carried it out.
type Tell = dyn Fn(u64, &Ask) + Send + Sync;

/// The queue of messages. Its threads start with the first message, and end some time after it is
/// dropped: one may be waiting for a page or a directory.
pub(crate) struct StoreMessages {
    shared: Arc<MessageQueue>,
    tell: Arc<Tell>,
}

impl std::fmt::Debug for StoreMessages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreMessages").finish_non_exhaustive()
    }
}

impl StoreMessages {
    /// Creates a queue without threads. The function `tell` sends a message, and returns when the
    /// kernel has carried it out.
    pub(crate) fn new(tell: impl Fn(u64, &Ask) + Send + Sync + 'static) -> Self {
        Self { shared: Arc::default(), tell: Arc::new(tell) }
    }

    /// Queues messages. Never waits. Returns false if a store has no room for a name, which is then
    /// not sent, or if the system refuses to start the first thread.
    pub(crate) fn put(&self, messages: Vec<Message>) -> bool {
        let mut refused = Vec::new();
        let mut queue = self.shared.queue.lock();
        let (mut wants_thread, has_armed) = (false, queue.nr_armed > 0);
        let names_fit = queue.names_fit();
        for message in messages {
            let of_store = queue.by_store.entry(slot_of(message.node)).or_default();
            // A message behind others of its store needs no wake-up of its own.
            let has_free = of_store.next_node(names_fit).is_some();
            refused.extend(of_store.add(message));
            wants_thread |= !has_free && (of_store.sent.is_empty() || !has_armed);
        }
        let nr_wanted = NR_OF_STORE_MIN * queue.by_store.len();
        while (queue.nr_threads < nr_wanted || queue.nr_busy == queue.nr_threads)
            && self.shared.start_thread(&mut queue, &self.tell)
        {}
        let are_sent = refused.is_empty() && queue.nr_threads > 0;
        drop(queue);
        if wants_thread {
            self.shared.wake.notify_one();
        }
        are_sent
    }
}

impl Drop for StoreMessages {
    fn drop(&mut self) {
        self.shared.queue.lock().is_ended = true;
        self.shared.wake.notify_all();
    }
}

impl MessageQueue {
    /// Starts a thread, unless there are too many. Returns whether one was started.
    fn start_thread(self: &Arc<Self>, queue: &mut Queue, tell: &Arc<Tell>) -> bool {
        if queue.nr_threads >= NR_THREADS_MAX {
            return false;
        }
        let (shared, tell) = (Arc::clone(self), Arc::clone(tell));
        let spawned =
            std::thread::Builder::new().name("umemcg-drop".into()).spawn(move || shared.serve(&tell));
        if let Err(error) = &spawned {
            tracing::warn!(%error, "cannot start a thread that has the kernel drop pages and names");
        }
        queue.nr_threads += usize::from(spawned.is_ok());
        spawned.is_ok()
    }

    fn serve(self: Arc<Self>, tell: &Arc<Tell>) {
        loop {
            let (store, sent, messages) = {
                let mut queue = self.queue.lock();
                let mut has_waited = false;
                loop {
                    if queue.is_ended {
                        return;
                    }
                    let now = Instant::now();
                    if let Some(taken) = queue.take(now) {
                        // One thread is left for the waiting messages, in case all sent ones hang.
                        if queue.nr_busy == queue.nr_threads && queue.may_take_at(now).is_some() {
                            self.start_thread(&mut queue, tell);
                        }
                        // Another thread must take over the timed wait.
                        if has_waited && queue.may_take_at(now).is_some() {
                            self.wake.notify_one();
                        }
                        break taken;
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
            let (told, others): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|message| message.task.may_tell());
            for run in told.chunk_by(are_adjacent) {
                assert_may_wait(Rank::KernelNotification, "pages or a name that the kernel drops");
                match (run.first().and_then(Message::pages), run.last().and_then(Message::pages)) {
                    (Some(first), Some(last)) => tell(sent.node, &Ask::Pages(first.start..last.end)),
                    _ => tell(sent.node, &run[0].ask),
                }
            }
            told.into_iter().for_each(|message| end_of(message, true));
            others.into_iter().for_each(|message| end_of(message, false));
            self.queue.lock().finish(store, sent);
        }
    }
}

/// Ends a message. A panic must not cost the store its threads.
fn end_of(message: Message, was_told: bool) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| message.task.done(was_told))).is_err() {
        tracing::error!("the end of a drop panicked; this is a defect of this program");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

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

    fn drop_of(store: u64, node: u64, pages: Range<u64>, gone: &Sender<u64>) -> Message {
        let task = Box::new(Tells(gone.clone(), pages.start));
        Message { node: store << 44 | node, ask: Ask::Pages(pages), task }
    }

    fn name_of(store: u64, node: u64, gone: &Sender<u64>) -> Message {
        let ask = Ask::Name { name: "n".into(), expire_only: false };
        Message { node: store << 44 | node, ask, task: Box::new(Tells(gone.clone(), node)) }
    }

    /// Returns the number of a node inside its store.
    fn local(node: u64) -> u64 {
        node & ((1 << 44) - 1)
    }

    #[test]
    fn ranges_side_by_side_are_dropped_by_one_message() {
        let (tell, told) = channel();
        let drops = StoreMessages::new(move |node, ask: &Ask| {
            if let Ask::Pages(pages) = ask {
                tell.send((local(node), pages.clone())).unwrap();
            }
        });
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
        messages.sort_unstable_by_key(|(node, pages)| (*node, pages.start));
        assert_eq!(messages, [(7, 0..100), (7, 128..192), (8, 192..200)]);
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
        let drops = StoreMessages::new(|_, _: &Ask| {});
        let panics = || Message { task: Box::new(Panics), ..drop_of(1, 1, 0..1, &channel().0) };
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
        let drops = StoreMessages::new(move |node, _: &Ask| {
            if local(node) == 1 {
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
    fn a_directory_that_hangs_holds_up_its_own_names_alone() {
        let (go, wait): (Sender<()>, Receiver<()>) = channel();
        let wait = LeafMutex::new(wait);
        let messages = StoreMessages::new(move |node, _: &Ask| {
            if local(node) == 1 {
                let _ = wait.lock().recv();
            }
        });
        let (gone, heard) = channel();
        let nr_taken = (0..2 * NR_NAMES_MAX).take_while(|_| messages.put(vec![name_of(1, 1, &gone)])).count();
        assert!((NR_NAMES_MAX..=NR_NAMES_MAX + NR_OF_NODE_MAX).contains(&nr_taken), "{nr_taken}");
        assert!(messages.put(vec![name_of(2, 2, &gone)]));
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(2));
        assert!(messages.put(vec![drop_of(1, 3, 33..34, &gone)]));
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(33));
        drop(go);
    }

    #[test]
    fn directories_that_hang_leave_threads_to_drops_of_pages() {
        let (gone, _heard) = channel();
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let mut nr_taken_of = |asks: Vec<Message>| {
            for ask in asks {
                assert!(queue.by_store.entry(slot_of(ask.node)).or_default().add(ask).is_none());
            }
            std::iter::from_fn(|| {
                now += LONG_MESSAGE;
                queue.take(now)
            })
            .count()
        };
        let nodes = 0..NR_OF_STORE_MAX as u64;
        for at in 0..NR_THREADS_MAX / NR_FOR_NAMES_MAX {
            let names = nodes.clone().map(|node| name_of(1 + at as u64, node, &gone)).collect();
            let left = NR_FOR_ALL_NAMES_MAX.saturating_sub(at * NR_FOR_NAMES_MAX);
            assert_eq!(nr_taken_of(names), NR_FOR_NAMES_MAX.min(left));
        }
        let drops = nodes.map(|node| drop_of(1, 1000 + node, 0..1, &gone)).collect();
        assert_eq!(nr_taken_of(drops), NR_OF_STORE_MAX - NR_FOR_NAMES_MAX);
    }

    #[test]
    fn a_store_has_a_second_thread_behind_a_long_message() {
        let (gone, _heard) = channel();
        let mut queue = Queue::default();
        let of_store = queue.by_store.entry(1).or_default();
        for first in [0, 2, 4] {
            assert!(of_store.add(drop_of(1, 7, first..first + 1, &gone)).is_none());
        }
        let start = Instant::now();
        assert!(queue.take(start).is_some());
        assert!(queue.take(start + LONG_MESSAGE / 2).is_none());
        assert_eq!(queue.may_take_at(start + LONG_MESSAGE / 2), Some(start + LONG_MESSAGE));
        assert!(queue.take(start + LONG_MESSAGE).is_some());
        assert!(queue.take(start + 3 * LONG_MESSAGE).is_none(), "two of a file at most");
        queue.finish(1, Sent { at: start + LONG_MESSAGE, node: 1 << 44 | 7, is_name: false });
        assert!(queue.take(start + LONG_MESSAGE).is_some(), "beside the one that is stuck");
    }

    #[test]
    fn a_message_that_hangs_leaves_its_store_a_thread() {
        let (go, wait): (Sender<()>, Receiver<()>) = channel();
        let wait = LeafMutex::new(wait);
        let drops = StoreMessages::new(move |node, _: &Ask| {
            if local(node) == 1 {
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
        let drops = StoreMessages::new(move |node, _: &Ask| {
            if local(node) <= 10 {
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
        let drops = StoreMessages::new(move |node, _: &Ask| {
            if local(node) < 3 {
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
