//! The threads that send notifications to the kernel.
//!
//! An invalidation waits for locks that requesting processes may hold, so no thread that serves
//! requests may send one. One dedicated thread does. A notification to forget nodes waits for no
//! process, but requests wait a little for it. So it must not queue behind an invalidation that
//! waits for such a request, and has a thread of its own. Other threads put notifications here. The
//! queue is bounded, and notifications beyond the bound are dropped and counted: an invalidation
//! only shortens the life of cached state, which would expire by itself. File pages have a queue
//! and threads of their own.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use rustix::io::Errno;
use umemcg_base::{LeafMutex, PAGE_SHIFT, Rank, assert_may_wait};
use umemcg_vfs::{KeptPages, PageDrop};
use zerocopy::IntoBytes;

use crate::page_drops::PageDrops;
use crate::page_watch::PageWatch;
use crate::transport::{Payload, SendError, Transport};
use crate::wire::reply::{InvalEntryOut, InvalInodeOut, PollWakeupOut, PruneOut, RetrieveOut};
use crate::wire::{EXPIRE_ONLY, MINOR_INC_EPOCH, MINOR_PRUNE, OUT_HEADER_BYTES, OutHeader, notify};

/// The most notifications waiting in a queue.
const NR_QUEUED_MAX: usize = 4096;

/// Chooses the names to forget, one after the other.
struct Chooser(Box<dyn FnMut() -> Option<(u64, OsString)> + Send>);

impl std::fmt::Debug for Chooser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chooser")
    }
}

/// Handles whose pollers should look again. Kept beside the queue, so that no wake-up is lost when
/// the queue is full: the next notification from the queue, of any kind, sends these as well.
type Polls = LeafMutex<BTreeSet<u64>>;

#[derive(Debug)]
enum Notification {
    Inode {
        node: u64,
        offset: i64,
        len: i64,
    },
    Entry {
        parent: u64,
        name: OsString,
        expire_only: bool,
    },
    /// [`Polls`] has handles.
    Polls,
    Prune {
        nodes: Vec<u64>,
    },
    Entries(Chooser),
    /// Answered when all earlier notifications have been sent.
    Barrier(SyncSender<()>),
}

/// Hands notifications to the sending threads. Cheap to clone; the threads end with the last clone.
#[derive(Debug, Clone)]
pub struct Notifier {
    queue: SyncSender<Notification>,
    prunes: SyncSender<Notification>,
    polls: Arc<Polls>,
    page_drops: Arc<PageDrops>,
    page_watch: Arc<PageWatch>,
    transport: Arc<dyn Transport>,
    nr_dropped: Arc<AtomicU64>,
    /// (A)
    can_prune: Arc<AtomicBool>,
    /// (C)
    can_expire_all: bool,
}

impl Notifier {
    /// Starts the threads, for a kernel with this minor number of the protocol.
    pub(crate) fn start(transport: Arc<dyn Transport>, minor: u32) -> io::Result<Self> {
        let (queue, notifications) = sync_channel(NR_QUEUED_MAX);
        let (prunes, to_prune) = sync_channel(NR_QUEUED_MAX);
        let can_prune = Arc::new(AtomicBool::new(minor >= MINOR_PRUNE));
        let polls = Arc::<Polls>::default();
        // Not joined: a thread may be waiting for a lock of a process that waits for us.
        for (name, notifications) in [("umemcg-notify", notifications), ("umemcg-prune", to_prune)] {
            let (transport, told, polls) =
                (Arc::clone(&transport), Arc::clone(&can_prune), Arc::clone(&polls));
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || deliver(&notifications, &polls, &*transport, &told))?;
        }
        let page_drops = Arc::new(PageDrops::new({
            let (transport, told) = (Arc::clone(&transport), Arc::clone(&can_prune));
            move |node, first, nr| {
                let (offset, len) = ((first << PAGE_SHIFT) as i64, (nr << PAGE_SHIFT) as i64);
                // Beyond the largest offset: to the end of the file.
                let len = if len < 0 || offset.checked_add(len).is_none() { 0 } else { len };
                notify_now(Notification::Inode { node, offset, len }, &*transport, &told);
            }
        }));
        let asked = Arc::clone(&transport);
        let page_watch =
            PageWatch::new(move |number, node, offset, size| retrieve(&*asked, number, node, offset, size));
        Ok(Self {
            queue,
            prunes,
            polls,
            page_drops,
            page_watch,
            transport,
            nr_dropped: Arc::default(),
            can_prune,
            can_expire_all: minor >= MINOR_INC_EPOCH,
        })
    }

    fn put(&self, notification: Notification) -> bool {
        let queue =
            if matches!(notification, Notification::Prune { .. }) { &self.prunes } else { &self.queue };
        let taken = match queue.try_send(notification) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        };
        if !taken {
            self.nr_dropped.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Invalidates the kernel's cached state of a node: its attributes, and its cached pages in the
    /// range. `len` 0 means to the end, `offset` < 0 attributes only. Does not wait. Returns false
    /// if the notification was dropped.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> bool {
        self.put(Notification::Inode { node, offset, len })
    }

    /// Makes the kernel forget a name, or only ask again at its next use. Does not wait. Returns
    /// false if the notification was dropped.
    pub fn inval_entry(&self, parent: u64, name: &OsStr, expire_only: bool) -> bool {
        self.put(Notification::Entry { parent, name: name.to_owned(), expire_only })
    }

    /// Makes the kernel forget names. `choose` is called for each name when its turn has come,
    /// until it returns none.
    pub fn inval_entries(&self, choose: impl FnMut() -> Option<(u64, OsString)> + Send + 'static) -> bool {
        self.put(Notification::Entries(Chooser(Box::new(choose))))
    }

    /// Makes the kernel forget these nodes, in this order; nodes in use stay. Does not wait.
    /// Returns false if the notification was dropped, or if this kernel does not know it.
    pub fn prune(&self, nodes: Vec<u64>) -> bool {
        self.can_prune() && self.put(Notification::Prune { nodes })
    }

    /// Returns whether the kernel can prune nodes, as far as is known.
    pub fn can_prune(&self) -> bool {
        // Relaxed: the kernel refuses a notification sent too late.
        self.can_prune.load(Ordering::Relaxed)
    }

    /// Makes the kernel drop file pages. Does not wait, and loses none.
    pub fn drop_pages(&self, drops: Vec<PageDrop>) {
        self.page_drops.put(drops);
    }

    /// Has the charged pages of a volume compared with the kernel's page cache, from time to time.
    pub fn watch_pages(&self, kept: Box<dyn KeptPages>) {
        self.page_watch.watch(kept);
    }

    /// Returns the page watch, which takes the kernel's answers to RETRIEVE.
    pub(crate) fn page_watch(&self) -> Arc<PageWatch> {
        Arc::clone(&self.page_watch)
    }

    /// Invalidates the kernel's attributes of a node. Sent by the calling thread, since the kernel
    /// takes no lock held over a request. Returns whether the kernel knows the node.
    pub fn inval_attributes_now(&self, node: u64) -> bool {
        notify_now(Notification::Inode { node, offset: -1, len: 0 }, &*self.transport, &self.can_prune)
    }

    /// Makes the kernel forget a name, or only ask again at its next use. Sent by the calling
    /// thread, which waits for requests in the directory; no thread that serves requests may call
    /// this.
    pub fn inval_entry_now(&self, parent: u64, name: &OsStr, expire_only: bool) {
        let notification = Notification::Entry { parent, name: name.to_owned(), expire_only };
        notify_now(notification, &*self.transport, &self.can_prune);
    }

    /// Returns whether the kernel can expire all names at once.
    pub fn can_expire_all(&self) -> bool {
        self.can_expire_all
    }

    /// Expires all names in the kernel. Sent by the calling thread, since the kernel waits for
    /// nothing. The kernel drops each name at its next use, together with everything unused below
    /// it.
    #[doc(alias = "FUSE_NOTIFY_INC_EPOCH")]
    pub fn expire_all_now(&self) {
        send(notify::INC_EPOCH, &[], &*self.transport, &self.can_prune);
    }

    /// Makes the pollers of `handle`, a poll handle of the kernel, look again. Does not wait, and
    /// is never dropped.
    pub fn poll_wakeup(&self, handle: u64) {
        let mut polls = self.polls.lock();
        let is_first = polls.is_empty();
        polls.insert(handle);
        drop(polls);
        if is_first {
            // A full queue does as well.
            let _ = self.queue.try_send(Notification::Polls);
        }
    }

    /// Waits until every earlier notification has been sent, at most for `timeout`. Must not be
    /// called by a thread that serves requests.
    pub fn wait_until_sent(&self, timeout: Duration) -> bool {
        let (said, heard) = sync_channel(1);
        assert_may_wait(Rank::Peer, "a wait for notifications");
        self.put(Notification::Barrier(said)) && heard.recv_timeout(timeout).is_ok()
    }

    /// Returns the number of notifications dropped for want of room in a queue.
    pub fn nr_dropped(&self) -> u64 {
        self.nr_dropped.load(Ordering::Relaxed)
    }
}

fn deliver(
    notifications: &Receiver<Notification>,
    polls: &Polls,
    transport: &dyn Transport,
    can_prune: &AtomicBool,
) {
    while let Ok(notification) = notifications.recv() {
        // From here on a caller finds the set empty, and queues a notification behind this one.
        let handles = std::mem::take(&mut *polls.lock());
        for handle in handles {
            let wakeup = PollWakeupOut { kh: handle };
            send(notify::POLL, wakeup.as_bytes(), transport, can_prune);
        }
        match notification {
            Notification::Barrier(said) => _ = said.try_send(()),
            Notification::Entries(Chooser(mut choose)) => {
                while let Some((parent, name)) = choose() {
                    notify_now(
                        Notification::Entry { parent, name, expire_only: false },
                        transport,
                        can_prune,
                    );
                }
            }
            notification => _ = notify_now(notification, transport, can_prune),
        }
    }
}

/// Asks the kernel for its cached pages of a range. Does not wait. Returns false if the kernel will
/// send none, because it does not know the node.
fn retrieve(transport: &dyn Transport, notify_unique: u64, nodeid: u64, offset: u64, size: u32) -> bool {
    let body = RetrieveOut { notify_unique, nodeid, offset, size, padding: 0 };
    let len = (OUT_HEADER_BYTES + body.as_bytes().len()) as u32;
    let header = OutHeader { len, error: notify::RETRIEVE, unique: 0 };
    transport.send(header.as_bytes(), Payload::Bytes(body.as_bytes())).is_ok()
}

/// Sends one notification. Returns whether the kernel has accepted it.
fn notify_now(notification: Notification, transport: &dyn Transport, can_prune: &AtomicBool) -> bool {
    let (code, body) = match notification {
        Notification::Inode { node, offset, len } => {
            (notify::INVAL_INODE, InvalInodeOut { ino: node, off: offset, len }.as_bytes().to_vec())
        }
        Notification::Entry { parent, name, expire_only } => {
            let flags = if expire_only { EXPIRE_ONLY } else { 0 };
            let mut body = InvalEntryOut { parent, namelen: name.len() as u32, flags }.as_bytes().to_vec();
            body.extend_from_slice(name.as_bytes());
            body.push(0);
            (notify::INVAL_ENTRY, body)
        }
        Notification::Prune { nodes } => {
            let mut body = PruneOut { count: nodes.len() as u32, ..Default::default() }.as_bytes().to_vec();
            body.extend_from_slice(nodes.as_bytes());
            (notify::PRUNE, body)
        }
        Notification::Polls | Notification::Entries(_) | Notification::Barrier(_) => return true,
    };
    send(code, &body, transport, can_prune)
}

/// Returns whether the kernel has accepted the notification. It refuses one about an unknown node
/// or name.
fn send(code: i32, body: &[u8], transport: &dyn Transport, can_prune: &AtomicBool) -> bool {
    assert_may_wait(Rank::KernelNotification, "a notification");
    let header = OutHeader { len: (OUT_HEADER_BYTES + body.len()) as u32, error: code, unique: 0 };
    match transport.send(header.as_bytes(), Payload::Bytes(body)) {
        Ok(()) => return true,
        // The kernel did not know the node or name.
        Err(SendError::Gone) => {}
        Err(SendError::Failed(error)) => {
            // A message too new for the kernel is malformed to it.
            if code == notify::PRUNE && Errno::from_io_error(&error) == Some(Errno::INVAL) {
                can_prune.store(false, Ordering::Relaxed);
            }
            tracing::debug!(%error, code, "a notification was refused");
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::recorder;

    #[test]
    fn nodes_to_forget_go_in_one_message_to_kernels_that_know_it() {
        let (transport, sent) = recorder();
        let old = Notifier::start(Arc::clone(&transport), MINOR_PRUNE - 1).unwrap();
        assert!(!old.prune(vec![1]));
        let notifier = Notifier::start(transport, MINOR_PRUNE).unwrap();
        assert!(notifier.prune(vec![3, 2]));
        let (header, body) = sent.recv().unwrap();
        assert_eq!((header.error, header.unique), (9, 0));
        assert_eq!(body, [2u64, 0, 3, 2].as_bytes());
    }

    #[test]
    fn no_wake_up_of_a_poller_is_lost_however_full_the_queue_is() {
        let (transport, sent) = recorder();
        let notifier = Notifier::start(transport, MINOR_PRUNE).unwrap();
        let (go, wait) = sync_channel::<()>(0);
        assert!(notifier.inval_entries(move || wait.recv().ok().and(None)));
        let mut nr_queued = 0;
        while notifier.inval_inode(1, 0, 0) {
            nr_queued += 1;
        }
        for handle in 0..10_000 {
            notifier.poll_wakeup(handle % 5000);
        }
        go.send(()).unwrap();
        let mut woken = BTreeSet::new();
        let mut nr_inodes = 0;
        while woken.len() < 5000 || nr_inodes < nr_queued {
            let (header, body) = sent.recv().unwrap();
            match header.error {
                notify::POLL => _ = woken.insert(u64::from_ne_bytes(body[..8].try_into().unwrap())),
                _ => nr_inodes += 1,
            }
        }
    }

    #[test]
    fn names_are_chosen_when_their_turn_has_come() {
        let (transport, sent) = recorder();
        let notifier = Notifier::start(transport, MINOR_PRUNE).unwrap();
        let mut left = vec![(7, OsString::from("b")), (7, OsString::from("a"))];
        assert!(notifier.inval_entries(move || left.pop()));
        assert!(notifier.wait_until_sent(Duration::from_secs(60)));
        let names: Vec<_> = sent.try_iter().map(|(header, body)| (header.error, body[16])).collect();
        assert_eq!(names, [(3, b'a'), (3, b'b')]);
    }
}
