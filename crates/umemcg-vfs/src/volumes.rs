//! The volumes of one mount: a single one as the whole mount, or many as top-level directories of a
//! read-only root, added and removed while the mount is served.
//!
//! The kernel knows an inode by its volume's *slot* (upper bits) and its node id inside the volume
//! (lower bits). Slots are reused, node ids never: the next volume of a slot counts on from where
//! the last one stopped, and gets a root id of its own. So an id of a removed volume refers to
//! nothing, even if the kernel still holds it. A slot is free once its volume has no holder left.
//!
//! Removal: 1. new opens are refused; 2. accepted data is made durable (by the caller); 3. the name
//! and the slot are cleared, and requests get `ESTALE`; 4. the volume is dropped with the last
//! request in progress.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Guard};
use rustix::io::Errno;
use thiserror::Error;
use umemcg_base::{Condvar, LeafMutex, Rank, RankedRwLock, Table};

use crate::attr::{Attr, Entry, NodeId};
use crate::error::VolumeError;
use crate::kernel_cache::KernelCache;
use crate::kernel_ids::{KernelIds, LOCAL_BITS, MemberKernel, own_ino, shown_ino, slot_of};
use crate::volume::Volume;
use umemcg::files::File;

/// Most volumes at a time.
pub const NR_VOLUMES_MAX: u32 = (1 << (64 - LOCAL_BITS)) - 1;
/// The ids issued by a volume are above its base, a multiple of this.
const BASE_UNIT: u64 = 64;
/// Longest name of a volume, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Why a volume was not added.
#[derive(Debug, Error)]
pub enum AddError {
    /// The mount shows a single volume.
    #[error("this mount shows one directory; volumes can be added to a mount that was made for many")]
    SingleVolume,
    /// A volume of this name exists.
    #[error("there is a volume `{0}` already")]
    Exists(String),
    /// The name cannot be a directory's.
    #[error(
        "`{0}` cannot be a volume's name: 1 to 255 bytes, no slash, no control characters, not `.` or `..`"
    )]
    BadName(String),
    /// The mount has [`NR_VOLUMES_MAX`] volumes already.
    #[error("there are {NR_VOLUMES_MAX} volumes already")]
    TooMany,
    /// The directory cannot be a volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// Why a volume was not removed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RemoveError {
    /// No volume has this name.
    #[error("there is no volume `{0}`")]
    NotFound(String),
    /// Files or directories on it are open.
    #[error("the volume `{name}` is in use: {nr_open} files or directories are open{}", among(example.as_deref()))]
    Busy {
        /// Its name.
        name: String,
        /// The number of open files and directories.
        nr_open: usize,
        /// A description of one of them, if known.
        example: Option<String>,
    },
    /// Another caller is removing the volume.
    #[error("the volume `{0}` is being removed already")]
    Leaving(String),
}

fn among(example: Option<&str>) -> String {
    example.map_or(String::new(), |example| format!(", among them {example}"))
}

/// The files and directories open on a volume, and whether more may be opened.
#[derive(Debug, Default)]
struct OpenCount {
    nr: usize,
    leaving: bool,
}

/// Free slots.
#[derive(Debug)]
struct FreeSlots {
    /// Slots to reuse, each with the base of its next volume.
    again: Vec<(u32, u64)>,
    next: u32,
}

/// A volume as part of a mount.
#[derive(Debug)]
pub struct Member {
    name: Arc<str>,
    slot: u32,
    /// (C) The kernel's id of its root.
    root_id: u64,
    /// (C) Grows with every volume added; the place in listings.
    serial: u64,
    volume: Arc<dyn Volume>,
    opens: LeafMutex<OpenCount>,
    /// Signaled at the close of the last open file or directory.
    closed: Condvar,
    /// (A) Something may have changed since the last sync. Relaxed: set before the change, by the
    /// thread making it.
    is_touched: AtomicBool,
    /// Syncs under way.
    nr_syncs: LeafMutex<usize>,
    /// None for the single volume.
    slots: Option<Arc<LeafMutex<FreeSlots>>>,
}

impl Member {
    fn new(
        name: &str,
        (slot, root_id, serial): (u32, u64, u64),
        volume: Arc<dyn Volume>,
        slots: Option<Arc<LeafMutex<FreeSlots>>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            slot,
            root_id,
            serial,
            volume,
            opens: LeafMutex::default(),
            closed: Condvar::default(),
            // Nothing is known of it.
            is_touched: AtomicBool::new(true),
            nr_syncs: LeafMutex::default(),
            slots,
        })
    }

    /// Returns its name; empty for the single volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        &self.volume
    }

    /// Returns the kernel's id of its root.
    pub fn root_id(&self) -> u64 {
        self.root_id
    }

    /// Returns its place in listings; greater for later volumes.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the number of open files and directories.
    pub fn nr_open(&self) -> usize {
        self.opens.lock().nr
    }

    /// Returns the kernel's id of an inode.
    ///
    /// # Errors
    /// `EOVERFLOW` if the volume has used up its ids.
    pub fn to_kernel(&self, node: NodeId) -> Result<NodeId, Errno> {
        self.ids().node(node)
    }

    fn set_kernel(&self, kernel: &Arc<dyn KernelCache>) {
        self.volume.set_kernel(Arc::new(MemberKernel { kernel: Arc::clone(kernel), ids: self.ids() }));
    }

    fn ids(&self) -> KernelIds {
        KernelIds { slot: self.slots.is_some().then_some(self.slot), root_id: self.root_id }
    }

    /// Returns the volume's own id for a kernel-side id of this slot.
    fn inside_id(&self, id: u64) -> NodeId {
        if self.slots.is_none() {
            return NodeId(id);
        }
        if id == self.root_id { NodeId::ROOT } else { NodeId(id & ((1 << LOCAL_BITS) - 1)) }
    }

    /// Returns an entry with the kernel's id. If that is impossible, the entry's reference is
    /// released.
    ///
    /// # Errors
    /// As [`to_kernel`](Self::to_kernel).
    pub fn entry_to_kernel(&self, entry: Entry) -> Result<Entry, Errno> {
        let node = self.to_kernel(entry.node).inspect_err(|_| self.volume.forget(entry.node, 1))?;
        Ok(Entry { node, attr: self.attr_to_kernel(entry.attr), ..entry })
    }

    /// Returns attributes as programs see them: inode numbers of different volumes differ, or `cp`
    /// and `du` would take two files for one.
    pub fn attr_to_kernel(&self, attr: Attr) -> Attr {
        Attr { ino: self.ino_to_kernel(attr.ino), ..attr }
    }

    /// Returns an inode number as reported to the kernel; see
    /// [`attr_to_kernel`](Self::attr_to_kernel).
    pub fn ino_to_kernel(&self, ino: u64) -> u64 {
        shown_ino(self.slot, ino)
    }

    /// Returns the volume's own inode number for a number reported to the kernel.
    pub fn ino_from_kernel(&self, ino: u64) -> u64 {
        own_ino(self.slot, ino)
    }

    /// Returns an inode number for its root in a listing without attributes.
    pub fn listed_root_ino(&self) -> u64 {
        self.ino_to_kernel(self.root_id & ((1 << LOCAL_BITS) - 1))
    }

    /// Counts a file or directory as open, before it is opened.
    ///
    /// # Errors
    /// `EBUSY` while the volume is being removed.
    pub fn begin_open(self: &Arc<Self>) -> Result<OpenPin, Errno> {
        let mut opens = self.opens.lock();
        if opens.leaving {
            return Err(Errno::BUSY);
        }
        opens.nr += 1;
        Ok(OpenPin(Arc::clone(self)))
    }

    /// Notes that something on the volume is about to change.
    pub fn touch(&self) {
        if !self.is_touched.load(Ordering::Relaxed) {
            self.is_touched.store(true, Ordering::Relaxed);
        }
    }

    /// Begins a sync; `None` if nothing may have changed since the last successful sync. While one
    /// is under way, another is begun: the first may not have stored its data yet.
    pub fn begin_sync(&self) -> Option<Syncing<'_>> {
        let mut nr_syncs = self.nr_syncs.lock();
        let is_touched = self.is_touched.swap(false, Ordering::Relaxed);
        if !is_touched && *nr_syncs == 0 {
            return None;
        }
        *nr_syncs += 1;
        Some(Syncing { member: self, is_done: false })
    }
}

/// A sync of a volume. Dropped without [`finish`](Self::finish), it has failed.
#[derive(Debug)]
#[must_use]
pub struct Syncing<'a> {
    member: &'a Member,
    is_done: bool,
}

impl Syncing<'_> {
    /// Notes that all changes from before the sync are durable.
    pub fn finish(mut self) {
        self.is_done = true;
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        let mut nr_syncs = self.member.nr_syncs.lock();
        if !self.is_done {
            self.member.touch();
        }
        *nr_syncs -= 1;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(slots) = &self.slots {
            // No holder is left to issue an id.
            slots.lock().again.push((self.slot, self.volume.nodes_end().next_multiple_of(BASE_UNIT)));
        }
    }
}

/// One open file or directory, counted.
#[derive(Debug)]
pub struct OpenPin(Arc<Member>);

impl Deref for OpenPin {
    type Target = Arc<Member>;
    fn deref(&self) -> &Arc<Member> {
        &self.0
    }
}

impl Drop for OpenPin {
    fn drop(&mut self) {
        let mut opens = self.0.opens.lock();
        opens.nr -= 1;
        if opens.nr == 0 {
            self.0.closed.notify_all();
        }
    }
}

/// An open file or directory with its volume.
#[derive(Debug)]
pub struct Opened<T: ?Sized> {
    /// The open file or directory; closed before it is uncounted.
    pub file: Arc<T>,
    /// Its volume.
    pub on: OpenPin,
    /// Opened by `execve`, which keeps it open while the program runs.
    pub is_executed: bool,
}

/// A volume for the time of a request.
#[derive(Debug)]
pub enum MemberRef<'a> {
    /// The single one.
    Whole(&'a Arc<Member>),
    /// One of many.
    OfMany(Guard<Option<Arc<Member>>>),
}

impl Deref for MemberRef<'_> {
    type Target = Arc<Member>;
    fn deref(&self) -> &Arc<Member> {
        match self {
            Self::Whole(member) => member,
            Self::OfMany(guard) => match &**guard {
                Some(member) => member,
                None => unreachable!("made of a slot that was taken"),
            },
        }
    }
}

/// The meaning of a kernel-side id.
#[derive(Debug)]
pub enum ResolvedId<'a> {
    /// The directory of all volumes.
    Top,
    /// An inode of a volume.
    In(MemberRef<'a>, NodeId),
}

/// See the module text.
#[derive(Debug)]
pub struct Volumes {
    whole: Option<Arc<Member>>,
    slots: Table<ArcSwapOption<Member>>,
    free: Arc<LeafMutex<FreeSlots>>,
    names: RankedRwLock<MemberIndex>,
}

#[derive(Debug, Default)]
struct MemberIndex {
    /// The kernel's cache, which refers to the inodes of all volumes.
    kernel: Option<Arc<dyn KernelCache>>,
    by_name: BTreeMap<Arc<str>, Arc<Member>>,
    by_serial: BTreeMap<u64, Arc<Member>>,
    last_serial: u64,
}

impl Volumes {
    /// Creates a set with one volume as the whole mount.
    pub fn single(volume: Arc<dyn Volume>) -> Arc<Self> {
        let member = Member::new("", (0, NodeId::ROOT.0, 0), volume, None);
        Arc::new(Self { whole: Some(member), ..Self::empty() })
    }

    /// Creates an empty set with room for many volumes.
    pub fn many() -> Arc<Self> {
        Arc::new(Self::empty())
    }

    fn empty() -> Self {
        Self {
            whole: None,
            slots: Table::new(),
            // Slot 0 is the root's.
            free: Arc::new(LeafMutex::new(FreeSlots { again: Vec::new(), next: 1 })),
            names: RankedRwLock::new(Rank::Names, MemberIndex::default()),
        }
    }

    /// Returns the single volume, if it is the whole mount.
    pub fn whole(&self) -> Option<&Arc<Member>> {
        self.whole.as_ref()
    }

    /// Sets the kernel's cache for all volumes, including those added later. Called once, before
    /// the first request.
    pub fn set_kernel(&self, kernel: &Arc<dyn KernelCache>) {
        if let Some(whole) = &self.whole {
            return whole.volume.set_kernel(Arc::clone(kernel));
        }
        let mut names = self.names.write();
        names.kernel = Some(Arc::clone(kernel));
        for member in names.by_name.values() {
            member.set_kernel(kernel);
        }
    }

    /// Resolves a kernel-side id. Never sleeps.
    ///
    /// # Errors
    /// `ESTALE` for an id of a removed volume.
    pub fn place(&self, id: u64) -> Result<ResolvedId<'_>, Errno> {
        if let Some(whole) = &self.whole {
            return Ok(ResolvedId::In(MemberRef::Whole(whole), NodeId(id)));
        }
        if id == NodeId::ROOT.0 {
            return Ok(ResolvedId::Top);
        }
        let guard = self.slots.get(slot_of(id)).ok_or(Errno::STALE)?.load();
        let node = guard.as_ref().ok_or(Errno::STALE)?.inside_id(id);
        Ok(ResolvedId::In(MemberRef::OfMany(guard), node))
    }

    /// Returns the volume with a name.
    pub fn find(&self, name: &OsStr) -> Option<Arc<Member>> {
        self.names.read().by_name.get(name.to_str()?).cloned()
    }

    /// Returns up to `nr_max` volumes behind the place `after` in the listing, oldest first; with 0
    /// and `usize::MAX`, all volumes.
    pub fn list(&self, after: u64, nr_max: usize) -> Vec<Arc<Member>> {
        if let Some(whole) = &self.whole {
            return vec![Arc::clone(whole)];
        }
        self.names.read().by_serial.range(after + 1..).take(nr_max).map(|(_, m)| Arc::clone(m)).collect()
    }

    /// Returns the number of volumes.
    pub fn len(&self) -> usize {
        usize::from(self.whole.is_some()) + self.names.read().by_name.len()
    }

    /// Returns whether there is no volume.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the volume opened by `make`. Its node ids must be above the number passed to `make`.
    ///
    /// # Errors
    /// [`AddError`]; then nothing has changed.
    pub fn add(
        &self,
        name: &str,
        make: impl FnOnce(u64) -> Result<Arc<dyn Volume>, VolumeError>,
    ) -> Result<Arc<Member>, AddError> {
        if self.whole.is_some() {
            return Err(AddError::SingleVolume);
        }
        let bad = name.is_empty()
            || name.len() > NAME_BYTES_MAX
            || name == "."
            || name == ".."
            || name.contains('/');
        if bad || name.chars().any(char::is_control) {
            return Err(AddError::BadName(name.into()));
        }
        // Checked before opening the volume, which may take long, and once more below.
        if self.names.read().by_name.contains_key(name) {
            return Err(AddError::Exists(name.into()));
        }
        let (slot, base) = {
            let mut free = self.free.lock();
            match free.again.pop() {
                Some(place) => place,
                None if free.next <= NR_VOLUMES_MAX => {
                    free.next += 1;
                    (free.next - 1, 0)
                }
                None => return Err(AddError::TooMany),
            }
        };
        let volume = make(base).inspect_err(|_| self.free.lock().again.push((slot, base)))?;
        let mut names = self.names.write();
        names.last_serial += 1;
        let root_id = u64::from(slot) << LOCAL_BITS | base | 1;
        let slots = Some(Arc::clone(&self.free));
        let member = Member::new(name, (slot, root_id, names.last_serial), volume, slots);
        if names.by_name.contains_key(name) {
            drop(names);
            return Err(AddError::Exists(name.into()));
        }
        if let Some(kernel) = &names.kernel {
            member.set_kernel(kernel);
        }
        self.slots.get_or_grow(slot, ArcSwapOption::empty).store(Some(Arc::clone(&member)));
        names.by_name.insert(Arc::clone(&member.name), Arc::clone(&member));
        names.by_serial.insert(member.serial, Arc::clone(&member));
        Ok(member)
    }

    /// Begins a removal: nothing more can be opened on the volume until the returned value is
    /// dropped or finished. Waits up to `grace` for open files to be closed (the kernel reports a
    /// close some time after the program made it); with `force` it does not wait.
    ///
    /// # Errors
    /// [`RemoveError`].
    pub fn begin_remove(&self, name: &str, force: bool, grace: Duration) -> Result<Leaving<'_>, RemoveError> {
        let member = self.find(OsStr::new(name)).ok_or_else(|| RemoveError::NotFound(name.to_owned()))?;
        {
            let mut opens = member.opens.lock();
            if opens.leaving {
                return Err(RemoveError::Leaving(name.to_owned()));
            }
            opens.leaving = true;
            let until = Instant::now() + grace;
            while opens.nr > 0 && !force {
                if member.closed.wait_until(&mut opens, until).timed_out() && opens.nr > 0 {
                    opens.leaving = false;
                    return Err(RemoveError::Busy {
                        name: name.to_owned(),
                        nr_open: opens.nr,
                        example: None,
                    });
                }
            }
        }
        Ok(Leaving { volumes: self, member, done: false })
    }

    /// Returns the path inside the mount of a kernel-side id, for rules and messages; `None` if it
    /// has none. Never sleeps.
    pub fn path_of(&self, id: u64) -> Option<PathBuf> {
        match self.place(id).ok()? {
            ResolvedId::Top => Some(PathBuf::new()),
            ResolvedId::In(member, node) => Some(Path::new(member.name()).join(member.volume.path_of(node)?)),
        }
    }

    /// Returns the path inside the mount of the file with this content. Walks all open or dirty
    /// files.
    pub fn path_of_content(&self, file: &Arc<File>) -> Option<PathBuf> {
        let store = file.store_id();
        self.list(0, usize::MAX)
            .iter()
            .filter(|member| member.volume.store_id() == store)
            .find_map(|member| Some(Path::new(member.name()).join(member.volume.path_of_content(file)?)))
    }
}

/// A removal that has begun. Dropped without [`finish`](Self::finish), the volume stays.
#[derive(Debug)]
pub struct Leaving<'a> {
    volumes: &'a Volumes,
    member: Arc<Member>,
    done: bool,
}

impl Leaving<'_> {
    /// Returns the volume.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Removes the volume: its name leads nowhere, and its ids refer to nothing.
    pub fn finish(mut self) -> Arc<Member> {
        self.done = true;
        let member = Arc::clone(&self.member);
        let gone = {
            let mut names = self.volumes.names.write();
            (names.by_name.remove(&member.name), names.by_serial.remove(&member.serial))
        };
        if let Some(slot) = self.volumes.slots.get(member.slot) {
            slot.store(None);
        }
        drop(gone);
        member
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.member.opens.lock().leaving = false;
        }
    }
}
