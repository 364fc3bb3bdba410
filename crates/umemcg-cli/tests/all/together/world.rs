//! The state that users and disturbers of one life of the daemon share, and the report of the first
//! failure.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::together::helper::Helper;
use crate::together::inode::{Attributes, CutShort, Inode, Kind};
use crate::together::model::FileModel;
use crate::together::tree::Tree;

/// Groups of the users: nested, and one beside them.
pub const GROUPS: [&str; 3] = ["a", "a/b", "c"];

/// Why an operation goes no further.
#[derive(Debug)]
pub enum Stop {
    /// The life is over.
    Over,
    /// The result is not what the model says.
    Wrong(String),
}

impl Stop {
    pub fn wrong<T>(what: impl Into<String>) -> Result<T, Self> {
        Err(Self::Wrong(what.into()))
    }
}

impl From<CutShort> for Stop {
    fn from(_: CutShort) -> Self {
        Self::Over
    }
}

/// See the module text.
#[derive(Debug)]
pub struct World {
    pub tree: Tree,
    /// The mount. Everything is asked relative to it, so that it is found wherever it is mounted.
    pub root: OwnedFd,
    pub mnt: PathBuf,
    pub cg: PathBuf,
    /// The backing directory.
    pub data: PathBuf,
    /// A group's process for mapped files and asynchronous I/O, in the order of [`GROUPS`].
    pub helpers: Vec<Helper>,
    /// The largest length of files, in bytes.
    pub len_max: usize,
    /// The store may be full at times.
    pub may_be_full: bool,
    /// The answer to `FALLOC_FL_ZERO_RANGE` in the backing directory.
    pub zero_range: Result<(), Errno>,
    /// Rules put into groups what is in none by hand, which some users are not.
    pub has_rules: bool,
    /// `fs.protected_regular`.
    pub protects_regular: bool,
    /// The users are to end.
    pub is_over: AtomicBool,
    /// The daemon is about to be killed.
    pub is_dying: AtomicBool,
    /// It was told to end, and takes the control files away.
    pub is_ending: AtomicBool,
    pub nr_operations: AtomicU64,
    pub nr_inodes: AtomicU64,
    /// Inodes that have a name or an open file, weakly: for what is true of all of them.
    inodes: Mutex<Vec<std::sync::Weak<Inode>>>,
    failure: Mutex<Option<String>>,
    /// All users have joined their groups: the daemon may end from now on.
    pub have_joined: Barrier,
    pub nr_users: usize,
    /// The last operation of each user, and of the programs that are killed.
    doing: Vec<Mutex<String>>,
}

/// The settings that differ from one life to the next.
#[derive(Debug)]
pub struct Setting {
    pub root: OwnedFd,
    pub mnt: PathBuf,
    pub cg: PathBuf,
    pub data: PathBuf,
    pub helpers: Vec<Helper>,
    pub len_max: usize,
    pub may_be_full: bool,
    pub zero_range: Result<(), Errno>,
    pub has_rules: bool,
    pub nr_users: usize,
}

impl World {
    pub fn new(tree: Tree, inodes: &[Arc<Inode>], setting: Setting) -> Arc<Self> {
        let Setting { root, mnt, cg, data, helpers, len_max, may_be_full, zero_range, has_rules, nr_users } =
            setting;
        Arc::new(Self {
            tree,
            root,
            mnt,
            cg,
            data,
            helpers,
            len_max,
            may_be_full,
            zero_range,
            has_rules,
            protects_regular: std::fs::read_to_string("/proc/sys/fs/protected_regular")
                .is_ok_and(|set| set.trim() != "0"),
            is_over: AtomicBool::new(false),
            is_dying: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            nr_operations: AtomicU64::new(0),
            nr_inodes: AtomicU64::new(inodes.iter().map(|inode| inode.nr + 1).max().unwrap_or(0)),
            inodes: Mutex::new(inodes.iter().map(Arc::downgrade).collect()),
            failure: Mutex::new(None),
            // With the life that waits for them.
            have_joined: Barrier::new(nr_users + 1),
            nr_users,
            // The programs that are killed, of either kind, are after the users.
            doing: (0..nr_users + 2).map(|_| Mutex::default()).collect(),
        })
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub fn is_dying(&self) -> bool {
        self.is_dying.load(Ordering::SeqCst)
    }

    /// The daemon was told to end, or is about to be killed.
    pub fn is_leaving(&self) -> bool {
        self.is_dying() || self.is_ending.load(Ordering::SeqCst)
    }

    /// Control files and admin requests may fail.
    pub fn is_going(&self) -> bool {
        self.is_leaving() || self.is_over()
    }

    /// A new inode; in the tree it is not yet.
    pub fn inode(&self, kind: Kind, attributes: Attributes) -> Arc<Inode> {
        let nr = self.nr_inodes.fetch_add(1, Ordering::Relaxed);
        let inode = Arc::new(Inode::new(nr, kind, FileModel::new(), attributes));
        let mut inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        inodes.retain(|inode| inode.strong_count() > 0);
        inodes.push(Arc::downgrade(&inode));
        inode
    }

    /// All files that have a name or an open file.
    pub fn files(&self) -> Vec<Arc<Inode>> {
        let inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        inodes.iter().filter_map(std::sync::Weak::upgrade).filter(|inode| inode.is_file()).collect()
    }

    /// A result that stands; `Stop::Over` for one that the daemon's death has made.
    pub fn settle<T>(&self, result: Result<T, Errno>) -> Result<Result<T, Errno>, Stop> {
        let is_of_death = |errno: &Errno| {
            [Errno::NOTCONN, Errno::CONNABORTED, Errno::IO, Errno::NODEV, Errno::STALE].contains(errno)
        };
        match result {
            Err(errno) if self.is_dying() && is_of_death(&errno) => Err(Stop::Over),
            Err(errno @ (Errno::NOTCONN | Errno::CONNABORTED)) => {
                // The daemon's end has its own reasons; this is what it looked like from here.
                Stop::wrong(format!("the daemon is gone: {errno}"))
            }
            result => Ok(result),
        }
    }

    /// Returns whether the daemon's death explains that a read or write is short: of pages that the
    /// kernel keeps it gives those that it has, and it says how much it wrote before.
    pub fn may_be_cut(&self) -> bool {
        self.is_dying() && ["kernel", "exclusive"].contains(&page_cache().as_str())
    }

    /// Returns whether a full store explains this.
    pub fn is_excused(&self, errno: Errno) -> bool {
        self.may_be_full && errno == Errno::NOSPC
    }

    pub fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Returns the tree, when the mount is to be removed.
    pub fn into_tree(self) -> Tree {
        self.tree
    }

    /// The first failure is the one that counts. Ends the life.
    pub fn fail(&self, what: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            *failure = Some(format!("{what}\n{}", lines(&self.doing())));
        }
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what a user begins; returns the number of the operation.
    pub fn begin(&self, user: usize, what: &str) -> u64 {
        let nr = self.nr_operations.fetch_add(1, Ordering::Relaxed);
        *self.doing[user].lock().unwrap_or_else(PoisonError::into_inner) = format!("{nr}: {what}");
        nr
    }

    /// A user has ended.
    pub fn end(&self, user: usize) {
        self.doing[user].lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the operation of each user, empty if it has ended.
    pub fn doing(&self) -> Vec<String> {
        self.doing.iter().map(|what| what.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
    }
}

/// Returns whose cache keeps file pages: `own`, `kernel`, or `exclusive` for the kernel's above a
/// directory that no other program changes.
pub fn page_cache() -> String {
    std::env::var("UMEMCG_TEST_PAGE_CACHE").unwrap_or_else(|_| "own".into())
}

/// A second descriptor of an open file, opened anew.
pub fn reopen(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

fn lines(doing: &[String]) -> String {
    doing.iter().enumerate().map(|(user, what)| format!("    user {user} does {what}\n")).collect()
}
