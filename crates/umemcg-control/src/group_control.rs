//! Owners and mode bits of a group's directory and files. `chown` and `chmod` change them to
//! delegate a subtree. A group and its files belong to the user that created the group. A group not
//! created by hand belongs to the daemon's user.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use umemcg::Group;
use umemcg::internal::ExtensionSlot;
use umemcg_base::LeafMutex;

use crate::file_id::FileId;
use crate::inert::Inert;
use crate::peak::Peaks;
use crate::permission::{Credentials, is_granted};
use crate::populated::Populated;
use crate::waiters::EventWaiters;
use crate::xattrs::Xattrs;

/// Mode bits of a directory not created by hand.
pub const DIRECTORY_MODE: u16 = 0o755;

/// Owner and mode bits of a directory or file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// The nine permission bits and the three above them.
    pub mode: u16,
}

impl Owner {
    /// Returns whether `wanted` is granted to `caller`.
    pub fn grants(&self, caller: &Credentials, wanted: u16) -> bool {
        is_granted(caller, self.uid, self.gid, self.mode, wanted)
    }
}

/// This layer's state of a group.
#[derive(Debug)]
pub struct GroupControl {
    /// The high-water marks.
    pub peaks: Peaks,
    /// Pollers of the event files.
    pub(crate) event_waiters: EventWaiters,
    /// Pollers of `cgroup.events`.
    pub(crate) populated: Populated,
    /// The value of `memory.oom_control`. (A)
    pub(crate) oom_kill_disabled: AtomicBool,
    /// The values of files without effect.
    pub(crate) inert: Inert,
    /// Extended attributes of its directory and files.
    pub(crate) xattrs: Xattrs,
    /// The time at which the group was created, or first looked at.
    pub created: SystemTime,
    owners: LeafMutex<Owners>,
}

/// Times of the last changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Its content.
    pub(crate) modified: SystemTime,
    /// Its content, owner or mode bits.
    pub(crate) changed: SystemTime,
}

#[derive(Debug)]
struct Owners {
    directory: Owner,
    times: Times,
    /// Owner of a file without an entry in `files`.
    file_uid: u32,
    file_gid: u32,
    /// Files with a changed owner or mode, and the time of the change.
    files: HashMap<u8, (Owner, SystemTime)>,
}

impl GroupControl {
    /// Returns the state of a group; the first call creates it for the owner of `directory`.
    pub fn of(group: &Group, directory: Owner) -> &GroupControl {
        let above = group.parent().and_then(|parent| GroupControl::if_present(parent));
        let now = SystemTime::now();
        group.extension(ExtensionSlot::Control, || GroupControl {
            inert: Inert::below(above.map(|above| &above.inert)),
            peaks: Peaks::default(),
            event_waiters: EventWaiters::default(),
            populated: Populated::default(),
            oom_kill_disabled: AtomicBool::new(false),
            xattrs: Xattrs::default(),
            created: now,
            owners: LeafMutex::new(Owners {
                directory,
                times: Times { modified: now, changed: now },
                file_uid: directory.uid,
                file_gid: directory.gid,
                files: HashMap::new(),
            }),
        })
    }

    /// Returns the state of a group, if it was made before.
    pub(crate) fn if_present(group: &Group) -> Option<&GroupControl> {
        group.extension_if_present(ExtensionSlot::Control)
    }

    /// Returns the owner of the directory (`file` is none) or of a file.
    pub fn owner(&self, file: Option<FileId>) -> Owner {
        let owners = self.owners.lock();
        match file {
            None => owners.directory,
            Some(file) => owners.files.get(&file.number).map_or(
                Owner { uid: owners.file_uid, gid: owners.file_gid, mode: file.mode },
                |&(owner, _)| owner,
            ),
        }
    }

    /// Changes the owner of the directory or of a file.
    pub fn set_owner(&self, file: Option<FileId>, owner: Owner) {
        let mut owners = self.owners.lock();
        let now = SystemTime::now();
        match file {
            None => (owners.directory, owners.times.changed) = (owner, now),
            Some(file) => drop(owners.files.insert(file.number, (owner, now))),
        }
    }

    /// Notes that a group below was made, removed or renamed.
    pub(crate) fn note_changed_entry(&self) {
        let now = SystemTime::now();
        self.owners.lock().times = Times { modified: now, changed: now };
    }

    /// Returns the times of the last changes of the directory or a file. The content of a file is
    /// generated on read, so it has no modification time of its own.
    pub(crate) fn times(&self, file: Option<FileId>) -> Times {
        let owners = self.owners.lock();
        match file {
            None => owners.times,
            Some(file) => {
                let changed = owners.files.get(&file.number).map_or(self.created, |&(_, changed)| changed);
                Times { modified: self.created, changed }
            }
        }
    }

    /// Makes the user that created a group the owner of its directory and files.
    pub fn give_all_to(&self, directory: Owner) {
        let mut owners = self.owners.lock();
        (owners.file_uid, owners.file_gid) = (directory.uid, directory.gid);
        owners.directory = directory;
        owners.files = HashMap::new();
    }
}
