//! The trait of the kernel above a mount. It caches names, inodes and perhaps file pages, and can
//! be asked to forget some.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use crate::attr::NodeId;

/// An inode not known to be in use by any process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleInode {
    /// The inode.
    pub node: NodeId,
    /// A directory that may be a working directory must not lose its name.
    pub is_directory: bool,
    /// The known names, each with its directory; empty unless [`KernelCache::asks_by_name`].
    pub names: Vec<(NodeId, Box<[u8]>)>,
}

/// Pages for the kernel to drop from its page cache.
#[derive(Debug)]
pub struct PageDrop {
    /// The inode.
    pub node: NodeId,
    /// The pages, by number.
    pub pages: Range<u64>,
    /// The purpose of the drop.
    pub task: Box<dyn DropTask>,
}

/// The purpose of a drop of pages, or of a name.
pub trait DropTask: Send + fmt::Debug {
    /// Returns whether the kernel may be notified now: it waits for pages locked by a request under
    /// way. If so, it is notified, and [`done`](Self::done) follows.
    fn may_tell(&self) -> bool;

    /// Ends the drop: the pages or the name are gone, or the kernel was not notified.
    fn done(self: Box<Self>, was_told: bool);
}

/// The holder of windows of pages charged because the kernel keeps them.
pub trait WindowHolder: Send + Sync + fmt::Debug {
    /// Notes that the kernel did not have these pages, of one window, at some time after `moment`.
    /// Returns `false` if the observation is stale: a request has met the window since.
    fn note_missing(&self, pages: &Range<u64>, moment: u64) -> bool;
}

/// A window of charged pages, to be compared with the kernel's page cache.
#[derive(Debug)]
pub struct KeptWindow {
    /// The inode.
    pub node: NodeId,
    /// The charged pages, by number, in ascending order.
    pub runs: Vec<Range<u64>>,
    /// Notified of missing pages.
    pub holder: Weak<dyn WindowHolder>,
    /// The moment at which the window was returned.
    pub moment: u64,
}

/// The pages of a volume charged because the kernel keeps them.
pub trait KeptPages: Send + Sync + fmt::Debug {
    /// Returns windows among the next `nr` from `place` on, and moves `place` behind them; behind
    /// the last it is 0 again. `None` when the volume is gone.
    fn kept_windows(&self, place: &mut u32, nr: usize) -> Option<Vec<KeptWindow>>;
}

/// A cache of names and inodes of a volume that can be asked to forget them.
///
/// A forgotten inode comes back as [`Lookup::forget`](crate::Lookup::forget), immediately or later.
/// An inode in use (open, a working directory, a directory with remembered children) stays.
pub trait KernelCache: Send + Sync + fmt::Debug {
    /// Returns whether the cache is asked to forget an inode by its names.
    fn asks_by_name(&self) -> bool;

    /// Asks the cache to forget inodes. Never waits. Returns `false` if it cannot be asked just
    /// now. Called with no lock held.
    fn let_go(&self, idle: Vec<IdleInode>) -> bool;

    /// Returns whether files may be opened with their pages kept here until a drop is asked for.
    fn keeps_pages(&self) -> bool {
        false
    }

    /// Asks the cache to drop pages. Never waits. [`DropTask::done`] is called later, on a thread
    /// that serves no requests, or never if the kernel goes away. Called with no lock held.
    fn drop_pages(&self, _drops: Vec<PageDrop>) {}

    /// Has the charged pages of a volume compared with the kernel's page cache from time to time.
    fn watch_pages(&self, _kept: Box<dyn KeptPages>) {}

    /// Returns how long returned attributes are believed, where other programs may change the
    /// directory.
    fn attribute_lifetime(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns whether no other program changes the directory of the volume. Then an open need not
    /// look for changes.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Returns whether processes open files without a request. Then any inode referenced by the
    /// kernel may be open.
    fn opens_silently(&self) -> bool {
        false
    }

    /// Reports that the attributes of an inode are out of date. Does not wait. Returns `false` if
    /// the cache does not know the inode.
    fn attributes_changed(&self, _node: NodeId) -> bool {
        true
    }

    /// Returns whether the cache can be notified of outdated names, single ones and all. Then names
    /// may be kept without a time limit where other programs' changes are watched.
    fn can_be_told(&self) -> bool {
        false
    }

    /// Reports that a name leads elsewhere now, or nowhere. With `may_stay` it is only looked up
    /// again at its next use. Waits for requests in the directory.
    fn name_changed(&self, _parent: NodeId, _name: &OsStr, _may_stay: bool) {}

    /// Reports that all names may lead elsewhere. Does not wait, but the cache loses every unused
    /// name.
    fn all_names_changed(&self) {}
}
