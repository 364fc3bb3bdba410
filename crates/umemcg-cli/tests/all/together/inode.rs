//! The model of an inode: what its file may hold, its attributes, and what was done to it last.
//!
//! Operations on attributes and on names of an inode are one at a time, under its lock, so each
//! one's result is known exactly. Operations on its data go on beside them; the [model of its
//! data](FileModel) says what they may see.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{Stat, Timespec};

use crate::together::model::FileModel;

/// Operations that are remembered to explain a failure.
const NR_REMEMBERED: usize = 40;

/// The type of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink { target: String },
}

/// The last operations on something, oldest first.
#[derive(Debug, Default)]
pub struct Story(Mutex<VecDeque<String>>);

impl Story {
    pub fn tell(&self, what: String) {
        let mut story = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if story.len() == NR_REMEMBERED {
            story.pop_front();
        }
        story.push_back(what);
    }

    pub fn text(&self) -> String {
        let story = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        story.iter().map(|line| format!("    {line}\n")).collect()
    }
}

/// Attributes of an inode.
#[derive(Debug, Clone, Default)]
pub struct Attributes {
    /// Permission bits, without the type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// The modification time that was set, and how many changes of data had begun by then.
    pub mtime: Option<(Timespec, u64)>,
    /// The capabilities that were set, and how many changes of data had begun by then: a change
    /// takes them.
    pub capabilities: Option<(Vec<u8>, u64)>,
}

/// The daemon's death has cut an operation short: it has happened or not, and the kernel, which
/// still answers some that come after it, may have learned either.
#[derive(Debug)]
pub struct CutShort;

/// Attributes, and what they may be instead when the daemon died during a change.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub now: Attributes,
    pub or_else: Option<Attributes>,
    /// It has, or had, a name.
    pub was_named: bool,
}

/// See the module text.
#[derive(Debug)]
pub struct Inode {
    pub nr: u64,
    pub kind: Kind,
    pub data: FileModel,
    known: Mutex<Known>,
    /// Changes of the data that began and that ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Shared by operations on the data; held alone by a change from outside that has to be seen
    /// exactly.
    apart: RwLock<()>,
    pub story: Story,
}

/// A change of data is under way: the modification time may be any.
#[derive(Debug)]
pub struct Changing<'a>(&'a Inode);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Inode {
    pub fn new(nr: u64, kind: Kind, data: FileModel, attributes: Attributes) -> Self {
        Self {
            nr,
            kind,
            data,
            known: Mutex::new(Known { was_named: attributes.nlink > 0, now: attributes, or_else: None }),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            apart: RwLock::new(()),
            story: Story::default(),
        }
    }

    pub fn is_file(&self) -> bool {
        self.kind == Kind::File
    }

    /// Its attributes, for one operation on them, unless the last one was cut short.
    pub fn known(&self) -> Result<MutexGuard<'_, Known>, CutShort> {
        let known = self.known_at_the_end();
        if known.or_else.is_some() { Err(CutShort) } else { Ok(known) }
    }

    /// The same when there are no more operations.
    pub fn known_at_the_end(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change of the data.
    pub fn change(&self) -> Changing<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Changing(self)
    }

    /// Returns the number of changes of the data that have begun, if none is under way.
    pub fn nr_changes(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }

    pub fn beside_others(&self) -> RwLockReadGuard<'_, ()> {
        self.apart.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.apart.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares what `stat` said with attributes, all but the length of a file.
    pub fn check_stat(&self, known: &Attributes, stat: &Stat) -> Result<(), String> {
        let (mode, is_directory) = (stat.st_mode & 0o7777, self.kind == Kind::Directory);
        let kind = match self.kind {
            Kind::File => 0o100_000,
            Kind::Directory => 0o040_000,
            Kind::Symlink { .. } => 0o120_000,
        };
        let expect = |what: &str, is: u64, expected: u64| {
            if is == expected {
                return Ok(());
            }
            Err(format!("{what} is {is} ({is:#o}), not {expected} ({expected:#o})"))
        };
        expect("the type", u64::from(stat.st_mode & 0o170_000), kind)?;
        if !matches!(self.kind, Kind::Symlink { .. }) {
            expect("the mode", mode.into(), known.mode.into())?;
        }
        expect("the owner", stat.st_uid.into(), known.uid.into())?;
        expect("the owning group", stat.st_gid.into(), known.gid.into())?;
        if !is_directory {
            expect("the number of links", stat.st_nlink, known.nlink)?;
        }
        if let Kind::Symlink { target } = &self.kind {
            expect("the length", stat.st_size as u64, target.len() as u64)?;
        }
        Ok(())
    }

    /// Compares the value of `security.capability` with what was set, unless data has changed
    /// since.
    pub fn check_capabilities(&self, known: &Attributes, is: Option<&[u8]>) -> Result<(), String> {
        let should = known.capabilities.as_ref().map(|(value, _)| &value[..]);
        let is_taken =
            known.capabilities.as_ref().is_some_and(|(_, changes)| self.nr_changes() != Some(*changes));
        if is == should || is_taken {
            return Ok(());
        }
        Err(format!("capabilities {is:?}, not {should:?}"))
    }

    /// Compares a modification time with the one that was set, unless data has changed since.
    pub fn check_mtime(&self, known: &Attributes, stat: &Stat) -> Result<(), String> {
        let Some((set, changes)) = known.mtime else { return Ok(()) };
        if self.nr_changes() != Some(changes) {
            return Ok(());
        }
        let is = (stat.st_mtime, stat.st_mtime_nsec as i64);
        if is == (set.tv_sec, set.tv_nsec) {
            return Ok(());
        }
        Err(format!("the modification time is {is:?}, not {set:?}, which was set"))
    }
}
