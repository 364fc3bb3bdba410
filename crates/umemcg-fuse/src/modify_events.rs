//! Inotify events for the event files of a control mount.
//!
//! No FUSE notification becomes an inotify event, but a change of a file's modification time does:
//! a successful `utimensat(2)` is `IN_MODIFY` to programs watching the file. It has to come from a
//! process other than the daemon, because a thread waiting for its own daemon would keep a killed
//! daemon from ending. So the embedder provides a [`Touch`], which uses a separate process.
//!
//! 1. The kernel looks a name up, as `inotify_add_watch(2)` does first: the file is *followed*,
//!    before the answer.
//! 2. A moment later, and when a file is closed, the kernel is asked to forget it. A watched or
//!    open node stays; for all others the kernel sends FORGET, and they are no longer followed.
//!    (Linux before 6.18 forgets them when it needs the memory.)
//! 3. An event puts the node into the set of changes and raises the wake signal.
//! 4. The thread makes a pass: it touches each changed file once, and tenants take turns. Passes
//!    are [`PASS_INTERVAL`] apart, so no file is touched more often. A change during a pass is left
//!    for the next one, so the last change is never lost.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg::internal::{GroupPath, TurnQueue};
use umemcg_base::clock::spawn_detached;
use umemcg_base::{LeafMutex, WakeSignal};
use umemcg_control::{ControlTree, NodeId, OpenFile, Waker};

use crate::notifier::Notifier;

/// The interval between passes.
const PASS_INTERVAL: Duration = Duration::from_millis(100);
/// The most files touched in one pass. A mount point is busy while one of its files is touched, and
/// it must not be busy all the time.
const TOUCHES_PER_PASS: usize = 100;
/// The time until a failed process is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The sleep of the idle thread.
const IDLE: Duration = Duration::from_secs(3600);
/// The most nodes in one PRUNE notification.
const NODES_PER_PRUNE: usize = 256;

/// Changes modification times in another process.
pub trait Touch: Send {
    /// Sets only the modification time of the file with this path below the mount point. A failure
    /// to touch the file is no error.
    ///
    /// # Errors
    /// If there is no helper process. The next call tries to start one.
    fn touch(&mut self, path: &Path) -> io::Result<()>;
}

/// The event files known to the kernel, and the thread that touches them.
pub(crate) struct ModifyEvents(Arc<FollowedFiles>);

impl fmt::Debug for ModifyEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModifyEvents")
    }
}

/// The files known to the kernel, and the possibly changed ones among them.
struct FollowedFiles {
    tree: Arc<ControlTree>,
    followed: LeafMutex<HashMap<u64, Followed>>,
    /// Possibly changed nodes.
    changed: LeafMutex<BTreeSet<u64>>,
    /// Nodes looked up or closed since the last pass.
    to_let_go: LeafMutex<BTreeSet<u64>>,
    /// Signalled for both sets, and at the end.
    wake_signal: WakeSignal,
    /// (A)
    has_ended: AtomicBool,
}

/// A file known to the kernel.
struct Followed {
    /// Lookups not yet released by the kernel.
    nr_lookups: u64,
    file: Arc<OpenFile>,
}

impl ModifyEvents {
    /// Starts the thread.
    pub(crate) fn start(
        tree: Arc<ControlTree>,
        touch: Box<dyn Touch>,
        notifier: Notifier,
    ) -> io::Result<Self> {
        let shared = Arc::new(FollowedFiles {
            tree,
            followed: LeafMutex::default(),
            changed: LeafMutex::default(),
            to_let_go: LeafMutex::default(),
            wake_signal: WakeSignal::new(),
            has_ended: AtomicBool::new(false),
        });
        let (to_touch, queued) = (TurnQueue::default(), HashSet::new());
        let passes = Passes { shared: Arc::clone(&shared), touch, notifier, to_touch, queued };
        spawn_detached("umemcg-inotify", move || passes.run())?;
        Ok(Self(shared))
    }

    /// Notes a lookup of an event file, before its answer. May sleep.
    pub(crate) fn note_lookup(&self, node: NodeId) {
        let raw = node.into_raw();
        if !self.0.note_known(raw) {
            let shared = Arc::downgrade(&self.0);
            let Some(file) =
                self.0.tree.follow(node, Waker::new(move || FollowedFiles::note_change(&shared, raw)))
            else {
                return;
            };
            let spare = self.0.insert(raw, file);
            drop(spare);
        }
        self.0.ask_to_let_go(raw);
    }

    /// Notes the close of a file: the kernel may forget it now.
    pub(crate) fn note_release(&self, node: NodeId) {
        if self.0.file(node.into_raw()).is_some() {
            self.0.ask_to_let_go(node.into_raw());
        }
    }

    /// Notes lookups released by the kernel.
    pub(crate) fn note_forget(&self, node: u64, nr_lookups: u64) {
        let mut followed = self.0.followed.lock();
        let gone = match followed.entry(node) {
            Entry::Occupied(mut known) if known.get().nr_lookups > nr_lookups => {
                known.get_mut().nr_lookups -= nr_lookups;
                None
            }
            Entry::Occupied(known) => Some(known.remove()),
            Entry::Vacant(_) => None,
        };
        drop(followed);
        drop(gone);
    }

    /// Returns the number of followed files.
    pub(crate) fn nr_followed(&self) -> usize {
        self.0.followed.lock().len()
    }
}

impl Drop for ModifyEvents {
    fn drop(&mut self) {
        // Release: pairs with the load in `run`. The signal orders it already; this makes the pair
        // visible.
        self.0.has_ended.store(true, Ordering::Release);
        self.0.wake_signal.raise();
    }
}

impl FollowedFiles {
    fn note_change(shared: &Weak<Self>, node: u64) {
        if let Some(shared) = shared.upgrade() {
            shared.changed.lock().insert(node);
            shared.wake_signal.raise();
        }
    }

    /// Asks the kernel to forget a node, after its caller has had time to open or watch it.
    fn ask_to_let_go(&self, node: u64) {
        self.to_let_go.lock().insert(node);
        self.wake_signal.raise();
    }

    /// Counts a lookup if the file is followed already. Returns whether it is.
    fn note_known(&self, node: u64) -> bool {
        let mut followed = self.followed.lock();
        let Some(known) = followed.get_mut(&node) else { return false };
        known.nr_lookups += 1;
        true
    }

    /// Follows a file; returns it if another lookup was faster.
    fn insert(&self, node: u64, file: OpenFile) -> Option<OpenFile> {
        match self.followed.lock().entry(node) {
            Entry::Occupied(mut known) => {
                known.get_mut().nr_lookups += 1;
                Some(file)
            }
            Entry::Vacant(place) => {
                place.insert(Followed { nr_lookups: 1, file: Arc::new(file) });
                None
            }
        }
    }

    fn file(&self, node: u64) -> Option<Arc<OpenFile>> {
        self.followed.lock().get(&node).map(|known| Arc::clone(&known.file))
    }
}

/// The state of the thread.
struct Passes {
    shared: Arc<FollowedFiles>,
    touch: Box<dyn Touch>,
    notifier: Notifier,
    /// Changed files beyond the last pass. The flag means that the file must be touched in any
    /// case, because its change has been consumed already.
    to_touch: TurnQueue<(u64, bool)>,
    /// The nodes in `to_touch`.
    queued: HashSet<u64>,
}

impl Passes {
    fn run(mut self) {
        let mut to_prune = BTreeSet::new();
        let mut has_warned = false;
        loop {
            let is_idle = to_prune.is_empty() && self.to_touch.is_empty();
            self.shared.wake_signal.wait(if is_idle { IDLE } else { PASS_INTERVAL });
            // Acquire: pairs with the store in `drop`.
            if self.shared.has_ended.load(Ordering::Acquire) {
                return;
            }
            let mut interval = PASS_INTERVAL;
            if let Err(error) = self.touch_changed() {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(%error, "inotify hears nothing of control files until a process for it can be started");
                }
                interval = RETRY_AFTER;
            }
            // The nodes of the previous pass.
            self.prune(std::mem::replace(&mut to_prune, std::mem::take(&mut *self.shared.to_let_go.lock())));
            std::thread::sleep(interval);
        }
    }

    /// Touches changed files, a bounded number at a time.
    fn touch_changed(&mut self) -> io::Result<()> {
        let changed = std::mem::take(&mut *self.shared.changed.lock());
        for node in changed {
            if let Some(file) = self.shared.file(node) {
                self.queue(&file, node, false);
            }
        }
        for _ in 0..TOUCHES_PER_PASS {
            let Some((_, (node, has_to))) = self.to_touch.pop() else { break };
            self.queued.remove(&node);
            let Some(file) = self.shared.file(node) else { continue };
            if !self.shared.tree.take_change(&file) && !has_to {
                continue;
            }
            let Some(path) = file.path() else { continue };
            if let Err(error) = self.touch.touch(&path) {
                self.queue(&file, node, true);
                return Err(error);
            }
            if file.path().is_some_and(|now| now != path) {
                // A group was renamed meanwhile, so the path of the touch may have been wrong.
                self.queue(&file, node, true);
            }
        }
        Ok(())
    }

    /// Queues a file, unless it is queued or its group is gone.
    fn queue(&mut self, file: &OpenFile, node: u64, has_to: bool) {
        if let Ok(group) = file.group()
            && self.queued.insert(node)
        {
            self.to_touch.push(GroupPath::of(&group), (node, has_to));
        }
    }

    fn prune(&self, nodes: BTreeSet<u64>) {
        let nodes: Vec<u64> = nodes.into_iter().collect();
        for nodes in nodes.chunks(NODES_PER_PRUNE) {
            self.notifier.prune(nodes.to_vec());
        }
    }
}
