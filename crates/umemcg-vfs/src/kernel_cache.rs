//! The trait of the kernel above a mount, which caches names, inodes and perhaps file pages, and
//! can be asked to forget some.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use umemcg::files::StoreId;

use crate::attr::NodeId;

/// An inode that no process is known to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleInode {
    /// The inode.
    pub node: NodeId,
    /// A directory that may be a working directory must not lose its name.
    pub is_directory: bool,
    /// The names that are known, each with its directory; empty unless
    /// [`KernelCache::asks_by_name`].
    pub names: Vec<(NodeId, Box<[u8]>)>,
}

/// Pages that the kernel is to drop from its page cache.
#[derive(Debug)]
pub struct PageDrop {
    /// The inode.
    pub node: NodeId,
    /// The pages, by number.
    pub pages: Range<u64>,
    /// Where its data is: what waits for one store must not keep the drops of others waiting.
    pub store: StoreId,
    /// What it is for.
    pub task: Box<dyn DropTask>,
}

/// The purpose of a drop.
pub trait DropTask: Send + fmt::Debug {
    /// Returns whether the kernel may be told now: it waits for pages that a request under way has
    /// locked.
    fn may_tell(&self) -> bool;

    /// Ends the drop: the pages are gone, or the kernel was not told.
    fn done(self: Box<Self>, was_told: bool);
}

/// The holder of windows of pages that are charged because the kernel keeps them.
pub trait WindowHolder: Send + Sync + fmt::Debug {
    /// Notes that the kernel did not have these pages, of one window, at some time after `moment`.
    /// Returns false if that says nothing: a request has met the window since.
    fn note_missing(&self, pages: &Range<u64>, moment: u64) -> bool;
}

/// A window of charged pages, to be compared with what the kernel has.
#[derive(Debug)]
pub struct KeptWindow {
    /// The inode.
    pub node: NodeId,
    /// The pages that are charged, by number, in ascending order.
    pub runs: Vec<Range<u64>>,
    /// To be told what is missing.
    pub holder: Weak<dyn WindowHolder>,
    /// When the window was handed out.
    pub moment: u64,
}

/// The pages of a volume that are charged because the kernel keeps them.
pub trait KeptPages: Send + Sync + fmt::Debug {
    /// Returns windows among the next `nr` from a place on, and moves the place behind them; behind
    /// the last it is 0 again. `None` when the volume is gone.
    fn kept_windows(&self, place: &mut u32, nr: usize) -> Option<Vec<KeptWindow>>;
}

/// A cache that remembers names and inodes of a volume and can be asked to forget.
///
/// A forgotten inode comes back as [`Lookup::forget`](crate::Lookup::forget), immediately or later.
/// An inode in use (open, a working directory, a directory with children that are remembered)
/// stays.
pub trait KernelCache: Send + Sync + fmt::Debug {
    /// Returns whether an inode is asked for by its names.
    fn asks_by_name(&self) -> bool;

    /// Asks to let go of inodes. Never waits; false when it cannot be asked just now. Called with
    /// no lock held.
    fn let_go(&self, idle: Vec<IdleInode>) -> bool;

    /// Returns whether files may be opened so that their pages are kept here until they are asked
    /// for.
    fn keeps_pages(&self) -> bool {
        false
    }

    /// Asks to drop pages. Never waits; the calls that say that they are gone come later, on a
    /// thread that serves no requests, or never when the kernel goes away. Called with no lock
    /// held.
    fn drop_pages(&self, _drops: Vec<PageDrop>) {}

    /// Has the pages of a volume compared with what the kernel has, from time to time.
    fn watch_pages(&self, _kept: Box<dyn KeptPages>) {}

    /// Returns how long attributes are believed that were given out, where other programs may
    /// change the directory.
    fn attribute_lifetime(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns whether no other program changes the directory of the volume, so that an open need
    /// not look for changes.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Returns whether processes open files without a request, so that an inode that the kernel
    /// refers to may be open.
    fn opens_silently(&self) -> bool {
        false
    }

    /// Says that the attributes of an inode are out of date. Does not wait. Returns `false` if the
    /// inode is not known there.
    fn attributes_changed(&self, _node: NodeId) -> bool {
        true
    }

    /// Returns whether names can be declared to be out of date, one and all, so that they may be
    /// kept without a time limit where other programs' changes are watched.
    fn can_be_told(&self) -> bool {
        false
    }

    /// Says that a name leads elsewhere now, or nowhere; with `may_stay` it is only looked up again
    /// at its next use. Waits for requests in the directory.
    fn name_changed(&self, _parent: NodeId, _name: &OsStr, _may_stay: bool) {}

    /// Says that all names may lead elsewhere. Does not wait, but costs all that is not in use.
    fn all_names_changed(&self) {}
}
