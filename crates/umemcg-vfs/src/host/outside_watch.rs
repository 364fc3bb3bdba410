//! The watch for other programs' changes to the directory of a volume.
//!
//! With it the kernel may keep names and attributes without a time limit: it is notified of each
//! change. One mark covers the whole file system. Events of this process are left out, since the
//! kernel knows its own requests.
//!
//! - The *watching thread* reads events into a [`ChangeBacklog`], and notifies the kernel of
//!   outdated attributes. It waits for nothing else.
//! - The *notifying thread* sends the messages that may wait for a request: it has the kernel drop
//!   names, and looks at files with changed data and pages in the kernel.
//!
//! [`RecentChanges`] decides whether the kernel may keep the answer of a request under way.
//!
//! A message about a name waits for requests in its directory. If that takes longer than
//! [`HELD_UP_MAX`], or if events are lost, all names are declared out of date, which waits for
//! nothing. The kernel then loses the pages of all files not open. If events are lost, all files
//! are looked at, too, and read anew.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use umemcg_arena::fanotify::{Fanotify, FsChange};
use umemcg_arena::handle::FileHandle;
use umemcg_base::{Condvar, LeafMutex, contained};

use super::change_backlog::{ChangeBacklog, Changes, InodeChanges};
use super::recent_changes::RecentChanges;
use super::syscalls::InodeKey;
use crate::attr::NodeId;
use crate::kernel_cache::KernelCache;

/// The longest time for one message about a changed name.
const HELD_UP_MAX: Duration = Duration::from_millis(500);
/// The longest wait of a changed name behind others.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The interval at which the watching thread looks for held-up names, while some wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The pause after events only of this process or of other directories: they come in great numbers.
const PAUSE_AFTER_OTHERS: Duration = Duration::from_millis(2);
/// The delay before the kernel is notified of a file's attributes if a look finds no change: an
/// open may have notified the kernel already, and a second message must not overtake the answer to
/// the open.
const TELL_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The number of inodes looked at before events are read again.
const NR_LOOKS_BETWEEN: usize = 64;
/// The most reads of events before inodes are looked at.
const NR_READS_MAX: usize = 64;
/// The most names queued for the kernel; with more, all names expire.
const NR_NAMES_MAX: usize = 65_536;
/// The most files queued for a look; with more, all files are looked at.
const NR_FILES_MAX: usize = 4096;

/// The inodes of a watched volume.
pub(crate) trait Watched: Send + Sync + fmt::Debug {
    /// Returns the number of a handle's inode, if handles show it.
    fn ino_of(&self, handle: &FileHandle) -> Option<u64>;
    /// Returns whether an inode of a number is known here.
    fn is_known_ino(&self, ino: u64) -> bool;
    /// Returns the identity of the inode with a handle; `None` if the inode is gone.
    ///
    /// # Errors
    /// The host's: the inode may exist.
    fn key_of(&self, handle: &FileHandle) -> Result<Option<InodeKey>, Errno>;
    /// Returns the inode with an identity, if it is known here.
    fn node_of(&self, key: InodeKey) -> Option<NodeId>;
    /// Returns the names of an inode, each with its directory; none unless the kernel refers to it.
    fn names_in_kernel(&self, node: NodeId) -> Vec<(NodeId, Box<[u8]>)>;
    /// Calls `tell` with each inode referenced by the kernel, with nothing locked.
    fn for_each_in_kernel(&self, tell: &mut dyn FnMut(NodeId));
    /// Returns whether a name leads to a directory known here.
    fn is_known_directory(&self, parent: NodeId, name: &[u8]) -> bool;
    /// Returns whether the kernel may keep pages of a file.
    fn may_have_pages(&self, node: NodeId) -> bool;
    /// Looks at a possibly changed file. If it has changed, has the kernel drop its pages, which
    /// invalidates its attributes, too. Returns whether it has changed. May wait for the store.
    fn look(self: Arc<Self>, node: NodeId) -> bool;
    /// Has the next look at a file take it as changed, regardless of its attributes.
    fn suspect(&self, node: NodeId);
    /// Returns the files with content here.
    fn contents(&self) -> Vec<NodeId>;
}

/// The queue of the notifying thread.
#[derive(Debug, Default)]
struct ToTell {
    /// Each with the moment at which it was queued.
    names: VecDeque<(Instant, NodeId, Box<[u8]>)>,
    files: VecDeque<NodeId>,
    /// Files with attributes due for notification at these moments; oldest first.
    late: VecDeque<(Instant, NodeId)>,
    /// Since when the queue has had names, or the present name has been in progress.
    names_since: Option<Instant>,
    /// Whether there were more files than there is room for.
    all_files: bool,
    /// Whether changes were lost: stores through mappings may be among them.
    all_suspect: bool,
    is_ended: bool,
}

impl ToTell {
    /// Adds a name. Returns whether there was room.
    fn add_name(&mut self, parent: NodeId, name: &[u8], now: Instant) -> bool {
        let has_room = self.names.len() < NR_NAMES_MAX;
        if has_room && self.names.back().is_none_or(|last| (last.1, &*last.2) != (parent, name)) {
            self.names.push_back((now, parent, name.into()));
            self.names_since.get_or_insert(now);
        }
        has_room
    }

    fn add_file(&mut self, node: NodeId) {
        if self.files.contains(&node) {
            return;
        }
        if self.files.len() < NR_FILES_MAX { self.files.push_back(node) } else { self.all_files = true }
    }

    /// Returns whether names have waited for too long. If so, removes them from the queue.
    fn give_up_held_up(&mut self, now: Instant) -> bool {
        let longer = |since: Instant, most| now.saturating_duration_since(since) >= most;
        let is_held_up = self.names_since.is_some_and(|since| longer(since, HELD_UP_MAX))
            || self.names.front().is_some_and(|&(since, ..)| longer(since, WAIT_MAX));
        if is_held_up {
            self.names.clear();
            self.names_since = None;
        }
        is_held_up
    }
}

/// Held by each watch of the process: a watch has two threads, and receives all changes of its file
/// system.
static WATCHES: LazyLock<Arc<()>> = LazyLock::new(Arc::default);
/// The most watches; the kernel has a bound for each user, too.
const NR_WATCHES_MAX: usize = 4;

/// Takes one of the few watches of the process; given back when dropped.
fn one_of_few() -> io::Result<Arc<()>> {
    let taken = Arc::clone(&WATCHES);
    // One more is the static's.
    if Arc::strong_count(&taken) <= NR_WATCHES_MAX + 1 { Ok(taken) } else { Err(Errno::MFILE.into()) }
}

/// The state shared by the threads and the volume.
#[derive(Debug)]
struct Shared {
    /// Updated before the inodes of events are looked for.
    changes: Arc<RecentChanges>,
    /// Counts as long as the threads run.
    _one_of_few: Arc<()>,
    /// (A) The watching thread reads events. Relaxed: at its end all answers are declared out of
    /// date.
    is_watching: AtomicBool,
    /// A leaf lock.
    to_tell: LeafMutex<ToTell>,
    changed: Condvar,
    /// Wakes the watching thread: for a name, which may be held up, and at the end.
    wake: OwnedFd,
}

/// See the module text. Dropping it ends the threads.
#[derive(Debug)]
pub(crate) struct OutsideWatch(Arc<Shared>);

impl OutsideWatch {
    /// Starts watching the file system of a volume.
    ///
    /// # Errors
    /// Without permission, and where the file system or the kernel does not support it.
    pub(crate) fn start(
        root: BorrowedFd<'_>,
        inodes: Weak<dyn Watched>,
        kernel: &Arc<dyn KernelCache>,
        changes: &Arc<RecentChanges>,
    ) -> io::Result<Self> {
        let fanotify = Fanotify::of_file_system(root)?;
        let shared = Arc::new(Shared {
            changes: Arc::clone(changes),
            _one_of_few: one_of_few()?,
            is_watching: AtomicBool::new(true),
            to_tell: LeafMutex::default(),
            changed: Condvar::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        // Before the threads: if the second cannot be started, dropping it ends the first.
        let watch = Self(Arc::clone(&shared));
        let told = Told { shared, kernel: Arc::clone(kernel), inodes };
        // Not joined: one may be waiting for a request.
        let teller = told.clone();
        std::thread::Builder::new().name("umemcg-tell".into()).spawn(move || teller.tell())?;
        std::thread::Builder::new().name("umemcg-watch".into()).spawn(move || told.watch(fanotify))?;
        Ok(watch)
    }

    /// Queues the invalidation of a name changed by the daemon itself: no event comes. Returns
    /// `false` if the queue is full. Never waits.
    pub(crate) fn invalidate_name(&self, parent: NodeId, name: &OsStr) -> bool {
        let has_room = self.0.to_tell.lock().add_name(parent, name.as_bytes(), Instant::now());
        self.0.changed.notify_all();
        self.0.wake();
        has_room
    }

    /// Returns whether events are read.
    pub(crate) fn is_watching(&self) -> bool {
        self.0.is_watching.load(Ordering::Relaxed)
    }
}

impl Drop for OutsideWatch {
    fn drop(&mut self) {
        self.0.to_tell.lock().is_ended = true;
        self.0.changed.notify_all();
        self.0.wake();
    }
}

impl Shared {
    /// Wakes the watching thread.
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Events were lost: any inode may have changed.
struct Lost;

/// The next task of the notifying thread.
#[derive(Debug)]
enum Next {
    Name(NodeId, Box<[u8]>),
    File(NodeId),
    AllFiles { are_suspect: bool },
    Late(NodeId),
}

/// Reads the available events. Returns whether there were any.
fn read_events(fanotify: &mut Fanotify, backlog: &mut ChangeBacklog) -> io::Result<bool> {
    let (own_pid, now) = (rustix::process::getpid().as_raw_nonzero().get(), Instant::now());
    let mut nr_read = 0;
    while nr_read < NR_READS_MAX
        && fanotify.read(|event| {
            if event.pid != own_pid || event.change == FsChange::Lost {
                backlog.add(event.change, now);
            }
        })?
    {
        nr_read += 1;
    }
    Ok(nr_read > 0)
}

/// The common state of both threads.
#[derive(Debug, Clone)]
struct Told {
    shared: Arc<Shared>,
    kernel: Arc<dyn KernelCache>,
    inodes: Weak<dyn Watched>,
}

impl Told {
    /// The watching thread.
    fn watch(self, mut fanotify: Fanotify) {
        // Also if it panics.
        let result = contained(|| self.watch_until_end(&mut fanotify));
        self.shared.is_watching.store(false, Ordering::Relaxed);
        if !matches!(result, Ok(Ok(()))) {
            tracing::warn!(?result, "other programs' changes are not watched any more");
            self.forget_all();
        }
    }

    fn watch_until_end(&self, fanotify: &mut Fanotify) -> io::Result<()> {
        let mut backlog = ChangeBacklog::default();
        loop {
            if self.wait_for_events(fanotify, &backlog)? {
                return Ok(());
            }
            let were_some = read_events(fanotify, &mut backlog)?;
            let Some(inodes) = self.inodes.upgrade() else { return Ok(()) };
            let now = Instant::now();
            let mut nr_here = 0;
            for _ in 0..NR_LOOKS_BETWEEN {
                let Some(changes) = backlog.pop(now) else { break };
                match self.take(&*inodes, &changes) {
                    Ok(is_here) => nr_here += usize::from(is_here),
                    Err(Lost) => {
                        // The rest of the backlog is covered by this.
                        backlog = ChangeBacklog::default();
                        self.forget_all();
                        nr_here += 1;
                    }
                }
            }
            drop(inodes);
            if nr_here == 0 && were_some && backlog.is_empty() {
                std::thread::sleep(PAUSE_AFTER_OTHERS);
            }
            let is_held_up = self.shared.to_tell.lock().give_up_held_up(Instant::now());
            if is_held_up {
                self.kernel.all_names_changed();
            }
        }
    }

    /// Waits for events, or until it is time to look for held-up names. Returns whether the watch
    /// ends.
    fn wait_for_events(&self, fanotify: &Fanotify, backlog: &ChangeBacklog) -> io::Result<bool> {
        let waits = self.shared.to_tell.lock().names_since.is_some();
        let longest = if backlog.is_empty() { LOOK_INTERVAL } else { Duration::ZERO };
        let timeout = Timespec::try_from(longest).ok().filter(|_| waits || !backlog.is_empty());
        let mut ready = [PollFd::new(fanotify, PollFlags::IN), PollFd::new(&self.shared.wake, PollFlags::IN)];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if ready[1].revents().is_empty() {
            return Ok(false);
        }
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        Ok(self.shared.to_tell.lock().is_ended)
    }

    /// Invalidates the kernel's caches of one inode, or queues the invalidation. Returns whether
    /// the inode is known here.
    fn take(&self, inodes: &dyn Watched, changes: &Changes) -> Result<bool, Lost> {
        let Changes::Of(handle, changes) = changes else {
            tracing::info!("changes by other programs were lost: all names and pages expire");
            return Err(Lost);
        };
        let ino = inodes.ino_of(handle);
        if let Some(ino) = ino {
            self.shared.changes.note(ino);
            if !inodes.is_known_ino(ino) {
                return Ok(false);
            }
        }
        let key = inodes.key_of(handle).map_err(|errno| {
            // Such as a shortage of descriptors.
            tracing::info!(%errno, "it is not known what has changed: all names and pages expire");
            Lost
        })?;
        let Some(key) = key else { return Ok(false) };
        debug_assert!(ino.is_none_or(|ino| ino == key.ino), "{handle:?} is not of inode {ino:?}");
        self.shared.changes.note(key.ino);
        let node = inodes.node_of(key);
        Ok(node.inspect(|&node| self.take_of(inodes, node, changes)).is_some())
    }

    fn take_of(&self, inodes: &dyn Watched, node: NodeId, changes: &InodeChanges) {
        if changes.is_written {
            inodes.suspect(node);
        }
        if changes.is_changed || changes.is_written {
            self.inode_changed(inodes, node);
        } else {
            self.attributes_changed(inodes, node);
        }
        changes.names.iter().for_each(|name| self.add_name(node, name));
    }

    /// Notifies the kernel of outdated attributes of an inode.
    fn attributes_changed(&self, inodes: &dyn Watched, node: NodeId) {
        if self.kernel.attributes_changed(node) {
            return;
        }
        // An answer with the inode may be on its way: the kernel drops the inode's names after it.
        for (parent, name) in inodes.names_in_kernel(node) {
            self.add_name(parent, &name);
        }
    }

    fn inode_changed(&self, inodes: &dyn Watched, node: NodeId) {
        // Only one message, and none if an open has sent it: the kernel ignores an answer overtaken
        // by another message, and a read would end at the file's old end.
        if inodes.may_have_pages(node) {
            self.shared.to_tell.lock().add_file(node);
            self.shared.changed.notify_all();
        } else {
            self.attributes_changed(inodes, node);
        }
    }

    fn add_name(&self, parent: NodeId, name: &[u8]) {
        let has_room = self.shared.to_tell.lock().add_name(parent, name, Instant::now());
        if has_room {
            self.shared.changed.notify_all();
        } else {
            // Before the message: a name added after it must stay in the queue.
            self.shared.to_tell.lock().names.clear();
            self.kernel.all_names_changed();
        }
    }

    /// Invalidates everything in the kernel.
    fn forget_all(&self) {
        self.shared.changes.note_all();
        self.kernel.all_names_changed();
        let Some(inodes) = self.inodes.upgrade() else { return };
        inodes.for_each_in_kernel(&mut |node| _ = self.kernel.attributes_changed(node));
        {
            let mut to_tell = self.shared.to_tell.lock();
            (to_tell.all_files, to_tell.all_suspect) = (true, true);
        }
        self.shared.changed.notify_all();
    }

    /// The notifying thread.
    fn tell(self) {
        while let Some(next) = self.next_to_tell() {
            let Some(inodes) = self.inodes.upgrade() else { return };
            if contained(|| self.tell_one(&inodes, next)).is_err() {
                // The kernel was not notified: everything counts as changed.
                self.forget_all();
            }
        }
    }

    /// Waits for the next task. Returns `None` at the end.
    fn next_to_tell(&self) -> Option<Next> {
        let mut to_tell = self.shared.to_tell.lock();
        loop {
            if to_tell.is_ended {
                return None;
            }
            if let Some((_, parent, name)) = to_tell.names.pop_front() {
                to_tell.names_since = Some(Instant::now());
                return Some(Next::Name(parent, name));
            }
            to_tell.names_since = None;
            if let Some(node) = to_tell.files.pop_front() {
                return Some(Next::File(node));
            }
            if std::mem::take(&mut to_tell.all_files) {
                return Some(Next::AllFiles { are_suspect: std::mem::take(&mut to_tell.all_suspect) });
            }
            match to_tell.late.front().copied() {
                Some((due, node)) if due <= Instant::now() => {
                    to_tell.late.pop_front();
                    return Some(Next::Late(node));
                }
                Some((due, _)) => _ = self.shared.changed.wait_until(&mut to_tell, due),
                None => self.shared.changed.wait(&mut to_tell),
            }
        }
    }

    fn tell_one(&self, inodes: &Arc<dyn Watched>, next: Next) {
        match next {
            Next::Name(parent, name) => {
                // A directory may have been looked up since, and be a working directory: its name
                // only expires.
                let may_stay = inodes.is_known_directory(parent, &name);
                self.kernel.name_changed(parent, OsStr::from_bytes(&name), may_stay);
            }
            Next::File(node) => self.look_at(inodes, node),
            Next::AllFiles { are_suspect } => inodes.contents().into_iter().for_each(|node| {
                if are_suspect {
                    inodes.suspect(node);
                }
                self.look_at(inodes, node);
            }),
            Next::Late(node) => self.attributes_changed(&**inodes, node),
        }
    }

    /// Looks at a file. If no pages are dropped, the kernel is notified of its attributes later.
    fn look_at(&self, inodes: &Arc<dyn Watched>, node: NodeId) {
        if Arc::clone(inodes).look(node) {
            return;
        }
        let due = Instant::now() + TELL_AGAIN_AFTER;
        let mut to_tell = self.shared.to_tell.lock();
        let is_last = to_tell.late.back().is_some_and(|&(_, last)| last == node);
        if to_tell.late.len() == NR_FILES_MAX {
            drop(to_tell);
            self.attributes_changed(&**inodes, node);
        } else if !is_last {
            to_tell.late.push_back((due, node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_wait_in_bounds_of_number_and_time() {
        let (mut to_tell, now) = (ToTell::default(), Instant::now());
        for nr in 0..NR_NAMES_MAX {
            assert!(to_tell.add_name(NodeId::ROOT, &nr.to_ne_bytes(), now));
        }
        assert!(!to_tell.add_name(NodeId::ROOT, b"one more", now));
        assert!(!to_tell.give_up_held_up(now + HELD_UP_MAX - Duration::from_nanos(1)));
        assert!(to_tell.give_up_held_up(now + HELD_UP_MAX));
        assert!(to_tell.names.is_empty() && !to_tell.give_up_held_up(now + HELD_UP_MAX));
        assert!(to_tell.add_name(NodeId::ROOT, b"told in time, but behind others", now));
        to_tell.names_since = Some(now + WAIT_MAX);
        assert!(!to_tell.give_up_held_up(now + WAIT_MAX - Duration::from_nanos(1)));
        assert!(to_tell.give_up_held_up(now + WAIT_MAX));
    }
}
