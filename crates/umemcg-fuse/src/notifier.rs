//! The threads that send notifications to the kernel.
//!
//! An invalidation waits for locks that requesting processes may hold. So a thread serving requests
//! must not send one; `store_messages.rs` has threads for each store. A notification to forget
//! nodes and one to pollers wait for no process, but requests wait a little for the former. So they
//! must not queue behind an invalidation waiting for such a request, and have a thread of their
//! own. Both queues are bounded, and notifications beyond the bound are dropped and counted: an
//! invalidation only shortens the life of cached state, which would expire by itself.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::io::Errno;
use umemcg_base::{LeafMutex, PAGE_SHIFT, Rank, assert_may_wait};
use umemcg_vfs::{DropTask, KeptPages, PageDrop};
use zerocopy::IntoBytes;

use crate::page_watch::PageWatch;
use crate::store_messages::{Ask, Message, StoreMessages};
use crate::transport::{Payload, SendError, Transport};
use crate::wire::reply::{InvalEntryOut, InvalInodeOut, PollWakeupOut, PruneOut, RetrieveOut};
use crate::wire::{EXPIRE_ONLY, MINOR_INC_EPOCH, MINOR_PRUNE, OUT_HEADER_BYTES, OutHeader, notify};

/// The most notifications waiting in the queue of nodes to forget.
const NR_QUEUED_MAX: usize = 4096;

/// Handles whose pollers should look again. Kept beside the queue, so that no wake-up is lost when
/// the queue is full: the next notification from the queue sends these as well.
type Polls = LeafMutex<BTreeSet<u64>>;

/// A name to be forgotten at once. The sender is for a caller waiting until then.
#[derive(Debug)]
struct StaleName(Option<SyncSender<()>>);

impl DropTask for StaleName {
    fn may_tell(&self) -> bool {
        true
    }

    fn done(self: Box<Self>, _was_told: bool) {
        if let Some(said) = self.0 {
            let _ = said.try_send(());
        }
    }
}

/// The kernel, as a receiver of notifications.
#[derive(Debug, Clone)]
struct Kernel {
    transport: Arc<dyn Transport>,
    /// (A)
    can_prune: Arc<AtomicBool>,
}

/// Hands notifications to the sending threads. Cheap to clone; the threads end with the last clone.
#[derive(Debug, Clone)]
pub struct Notifier {
    /// Nodes to forget; none if only [`Polls`] has handles.
    prunes: SyncSender<Vec<u64>>,
    polls: Arc<Polls>,
    store_messages: Arc<StoreMessages>,
    page_watch: Arc<PageWatch>,
    kernel: Kernel,
    nr_dropped: Arc<AtomicU64>,
    /// (C)
    can_expire_all: bool,
}

impl Notifier {
    /// Starts the threads, for a kernel with this minor number of the protocol.
    pub(crate) fn start(transport: Arc<dyn Transport>, minor: u32) -> io::Result<Self> {
        let (prunes, to_prune) = sync_channel(NR_QUEUED_MAX);
        let can_prune = Arc::new(AtomicBool::new(minor >= MINOR_PRUNE));
        let kernel = Kernel { transport, can_prune };
        let polls = Arc::<Polls>::default();
        // Not joined: the thread may be in the kernel.
        std::thread::Builder::new().name("umemcg-notify".into()).spawn({
            let (kernel, polls) = (kernel.clone(), Arc::clone(&polls));
            move || deliver(&to_prune, &polls, &kernel)
        })?;
        let store_messages = Arc::new(StoreMessages::new({
            let kernel = kernel.clone();
            move |node, ask: &Ask| kernel.ask(node, ask)
        }));
        let page_watch = PageWatch::new({
            let kernel = kernel.clone();
            move |notify_unique, nodeid, offset, size| {
                let body = RetrieveOut { notify_unique, nodeid, offset, size, padding: 0 };
                kernel.send(notify::RETRIEVE, body.as_bytes())
            }
        });
        Ok(Self {
            prunes,
            polls,
            store_messages,
            page_watch,
            kernel,
            nr_dropped: Arc::default(),
            can_expire_all: minor >= MINOR_INC_EPOCH,
        })
    }

    /// Counts a notification that is not sent. Returns whether it is.
    fn note_dropped(&self, is_sent: bool) -> bool {
        if !is_sent {
            self.nr_dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_sent
    }

    /// Makes the kernel forget names, each as its task wants when its turn has come. Does not wait.
    /// Returns false if some were dropped.
    pub(crate) fn forget_names(&self, names: Vec<Message>) -> bool {
        self.note_dropped(self.store_messages.put(names))
    }

    fn forget_name(
        &self,
        parent: u64,
        name: &OsStr,
        expire_only: bool,
        said: Option<SyncSender<()>>,
    ) -> bool {
        let ask = Ask::Name { name: name.to_owned(), expire_only };
        self.forget_names(vec![Message { node: parent, ask, task: Box::new(StaleName(said)) }])
    }

    /// Makes the kernel forget a name, or only ask again at its next use. Does not wait. Returns
    /// false if the notification was dropped.
    pub fn inval_entry(&self, parent: u64, name: &OsStr, expire_only: bool) -> bool {
        self.forget_name(parent, name, expire_only, None)
    }

    /// Makes the kernel forget a name, and waits until it has done so, at most for `timeout`. If it
    /// has not by then, or has no room for the notification, all names expire, if the kernel can
    /// do that. Must not be called by a thread that serves requests. Returns whether the kernel has
    /// forgotten the name.
    pub fn inval_entry_within(&self, parent: u64, name: &OsStr, timeout: Duration) -> bool {
        let (said, heard) = sync_channel(1);
        assert_may_wait(Rank::Peer, "a wait for a name to be forgotten");
        let is_forgotten =
            self.forget_name(parent, name, false, Some(said)) && heard.recv_timeout(timeout).is_ok();
        if !is_forgotten && self.can_expire_all() {
            self.expire_all_now();
        }
        is_forgotten
    }

    /// Makes the kernel forget these nodes, in this order; nodes in use stay. Does not wait.
    /// Returns false if the notification was dropped, or if this kernel does not know it.
    pub fn prune(&self, nodes: Vec<u64>) -> bool {
        self.can_prune() && self.note_dropped(self.prunes.try_send(nodes).is_ok())
    }

    /// Returns whether the kernel can prune nodes, as far as is known.
    pub fn can_prune(&self) -> bool {
        // Relaxed: the kernel refuses a notification sent too late.
        self.kernel.can_prune.load(Ordering::Relaxed)
    }

    /// Makes the kernel drop file pages. Does not wait, and loses none.
    pub fn drop_pages(&self, drops: Vec<PageDrop>) {
        self.store_messages.put(drops.into_iter().map(Message::from).collect());
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
        self.kernel.inval_inode(node, -1, 0)
    }

    /// Makes the kernel forget a name, or only ask again at its next use. The calling thread sends
    /// the notification, and waits for requests in the directory. A thread serving requests must
    /// not call this.
    pub fn inval_entry_now(&self, parent: u64, name: &OsStr, expire_only: bool) {
        self.kernel.inval_entry(parent, name, expire_only);
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
        self.kernel.send(notify::INC_EPOCH, &[]);
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
            let _ = self.prunes.try_send(Vec::new());
        }
    }

    /// Returns the number of notifications dropped for want of room in a queue.
    pub fn nr_dropped(&self) -> u64 {
        self.nr_dropped.load(Ordering::Relaxed)
    }
}

fn deliver(to_prune: &Receiver<Vec<u64>>, polls: &Polls, kernel: &Kernel) {
    while let Ok(nodes) = to_prune.recv() {
        // From here on a caller finds the set empty, and queues a notification behind this one.
        let handles = std::mem::take(&mut *polls.lock());
        for handle in handles {
            kernel.send(notify::POLL, PollWakeupOut { kh: handle }.as_bytes());
        }
        if !nodes.is_empty() {
            kernel.prune(&nodes);
        }
    }
}

impl Kernel {
    fn ask(&self, node: u64, ask: &Ask) {
        match ask {
            Ask::Pages(pages) => {
                let (offset, nr) = ((pages.start << PAGE_SHIFT) as i64, pages.end - pages.start);
                let len = (nr << PAGE_SHIFT) as i64;
                // Beyond the largest offset: to the end of the file.
                let len = if len < 0 || offset.checked_add(len).is_none() { 0 } else { len };
                self.inval_inode(node, offset, len);
            }
            Ask::Name { name, expire_only } => self.inval_entry(node, name, *expire_only),
        }
    }

    /// Invalidates attributes, and pages in a range: `len` 0 means to the end, `offset` < 0
    /// attributes only. Returns whether the kernel has accepted it.
    fn inval_inode(&self, node: u64, offset: i64, len: i64) -> bool {
        self.send(notify::INVAL_INODE, InvalInodeOut { ino: node, off: offset, len }.as_bytes())
    }

    fn inval_entry(&self, parent: u64, name: &OsStr, expire_only: bool) {
        let flags = if expire_only { EXPIRE_ONLY } else { 0 };
        let mut body = InvalEntryOut { parent, namelen: name.len() as u32, flags }.as_bytes().to_vec();
        body.extend_from_slice(name.as_bytes());
        body.push(0);
        self.send(notify::INVAL_ENTRY, &body);
    }

    fn prune(&self, nodes: &[u64]) {
        let mut body = PruneOut { count: nodes.len() as u32, ..Default::default() }.as_bytes().to_vec();
        body.extend_from_slice(nodes.as_bytes());
        self.send(notify::PRUNE, &body);
    }

    /// Returns whether the kernel has accepted the notification. It refuses one about an unknown
    /// node or name.
    fn send(&self, code: i32, body: &[u8]) -> bool {
        assert_may_wait(Rank::KernelNotification, "a notification");
        let header = OutHeader { len: (OUT_HEADER_BYTES + body.len()) as u32, error: code, unique: 0 };
        match self.transport.send(header.as_bytes(), Payload::Bytes(body)) {
            Ok(()) => return true,
            // The kernel did not know the node or name.
            Err(SendError::Gone) => {}
            Err(SendError::Failed(error)) => {
                // A message too new for the kernel is malformed to it.
                if code == notify::PRUNE && Errno::from_io_error(&error) == Some(Errno::INVAL) {
                    self.can_prune.store(false, Ordering::Relaxed);
                }
                tracing::debug!(%error, code, "a notification was refused");
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::transport::ReceiveError;
    use crate::transport::testing::{Sent, recorder};

    /// A transport that sends some messages only when its gate is gone.
    #[derive(Debug)]
    struct Gated {
        recorder: Arc<dyn Transport>,
        is_held: fn(&[u8]) -> bool,
        gate: LeafMutex<Receiver<()>>,
    }

    impl Transport for Gated {
        fn receive(&self, _buffer: &mut [u8]) -> Result<usize, ReceiveError> {
            Err(ReceiveError::Ended)
        }
        fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), SendError> {
            if let Payload::Bytes(body) = payload
                && (self.is_held)(body)
            {
                let _ = self.gate.lock().recv();
            }
            self.recorder.send(header, payload)
        }
    }

    /// Returns a notifier, a sender and the sent messages. The notifier holds some messages back
    /// until the sender is dropped.
    fn gated(is_held: fn(&[u8]) -> bool) -> (Notifier, Sender<()>, Receiver<Sent>) {
        let (recorder, sent) = recorder();
        let (go, gate) = channel();
        let transport = Arc::new(Gated { recorder, is_held, gate: LeafMutex::new(gate) });
        (Notifier::start(transport, MINOR_PRUNE).unwrap(), go, sent)
    }

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
        let (notifier, go, sent) = gated(|_| true);
        let mut nr_queued = 0;
        while notifier.prune(vec![1]) {
            nr_queued += 1;
        }
        for handle in 0..10_000 {
            notifier.poll_wakeup(handle % 5000);
        }
        drop(go);
        let mut woken = BTreeSet::new();
        let mut nr_prunes = 0;
        while woken.len() < 5000 || nr_prunes < nr_queued {
            let (header, body) = sent.recv().unwrap();
            match header.error {
                notify::POLL => _ = woken.insert(u64::from_ne_bytes(body[..8].try_into().unwrap())),
                _ => nr_prunes += 1,
            }
        }
    }

    #[test]
    fn a_directory_that_hangs_holds_up_no_other_volume() {
        const HANGING: u64 = 1 << 44 | 2;
        let (notifier, go, sent) = gated(|body| body.starts_with(&HANGING.to_ne_bytes()));
        for _ in 0..10 {
            assert!(notifier.inval_entry(HANGING, "held".as_ref(), false));
        }
        assert!(notifier.inval_entry_within(2 << 44 | 2, "n".as_ref(), Duration::from_secs(60)));
        assert!(notifier.prune(vec![3]));
        let codes: Vec<_> = (0..2).map(|_| sent.recv().unwrap().0.error).collect();
        assert_eq!(codes, [notify::INVAL_ENTRY, notify::PRUNE]);
        assert!(!notifier.inval_entry_within(HANGING, "held".as_ref(), Duration::ZERO));
        assert_eq!(sent.try_recv().unwrap().0.error, notify::INC_EPOCH, "it expires");
        drop(go);
        (0..11).for_each(|_| assert_eq!(sent.recv().unwrap().1[..8], HANGING.to_ne_bytes()));
    }

    #[test]
    fn a_name_without_room_expires_with_all() {
        const HANGING: u64 = 1 << 44 | 2;
        let (notifier, go, sent) = gated(|body| body.starts_with(&HANGING.to_ne_bytes()));
        while notifier.inval_entry(HANGING, "held".as_ref(), false) {}
        assert!(!notifier.inval_entry_within(HANGING, "gone".as_ref(), Duration::from_secs(60)));
        assert_eq!(sent.try_recv().unwrap().0.error, notify::INC_EPOCH);
        drop(go);
    }
}
