//! Who owns a group's directory and files, and their mode bits: what `chown` and `chmod` change to delegate a subtree.
//! A group and its files belong to whoever made the group; a group that nobody made by hand belongs to the daemon's user.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use umemcg::{Group, PartSlot};
use umemcg_base::sync::Mutex;

use crate::inert_files::Inert;
use crate::peak::Peaks;
use crate::permission::{Credentials, is_granted};
use crate::populated::Populated;
use crate::table::ROWS;
use crate::watch::EventWaiters;

/// Mode bits of a directory that nobody made by hand.
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
    /// Whether `wanted` is granted to `who`.
    pub fn grants(&self, who: &Credentials, wanted: u16) -> bool {
        is_granted(who, self.uid, self.gid, self.mode, wanted)
    }
}

/// What this layer keeps in a group.
#[derive(Debug)]
pub struct ControlPart {
    /// The high-water marks.
    pub peaks: Peaks,
    /// Those who poll the event files.
    pub(crate) event_waiters: EventWaiters,
    /// Those who poll `cgroup.events`.
    pub(crate) populated: Populated,
    /// What was written to `memory.oom_control`. (A)
    pub(crate) oom_kill_disabled: AtomicBool,
    /// What was written to files that do nothing.
    pub(crate) inert: Inert,
    /// When the group was made, or first looked at.
    pub created: SystemTime,
    owners: Mutex<Owners>,
}

/// When something last changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// What is in it.
    pub(crate) modified: SystemTime,
    /// That, its owner or its mode bits.
    pub(crate) changed: SystemTime,
}

#[derive(Debug)]
struct Owners {
    directory: Owner,
    times: Times,
    /// Whom a file belongs to that is not listed below.
    file_uid: u32,
    file_gid: u32,
    /// Those that were changed, and when.
    files: HashMap<u8, (Owner, SystemTime)>,
}

impl ControlPart {
    /// The state of a group; made for `directory`'s owner when it is the first time that anybody asks.
    pub fn of(group: &Group, directory: Owner) -> &ControlPart {
        let above = group.parent().and_then(|parent| ControlPart::if_present(parent));
        let now = SystemTime::now();
        group.part(PartSlot::Control, || ControlPart {
            inert: Inert::below(above.map(|above| &above.inert)),
            peaks: Peaks::default(),
            event_waiters: EventWaiters::default(),
            populated: Populated::default(),
            oom_kill_disabled: AtomicBool::new(false),
            created: now,
            owners: Mutex::new(Owners {
                directory,
                times: Times { modified: now, changed: now },
                file_uid: directory.uid,
                file_gid: directory.gid,
                files: HashMap::new(),
            }),
        })
    }

    /// The state of a group, if anybody has asked for it before.
    pub(crate) fn if_present(group: &Group) -> Option<&ControlPart> {
        group.part_if_present(PartSlot::Control)
    }

    /// The owner of the directory (`row` is none) or of a file.
    pub fn owner(&self, row: Option<u8>) -> Owner {
        let owners = self.owners.lock();
        match row {
            None => owners.directory,
            Some(row) => owners.files.get(&row).map_or(
                Owner { uid: owners.file_uid, gid: owners.file_gid, mode: ROWS[row as usize].mode },
                |&(owner, _)| owner,
            ),
        }
    }

    /// Changes the owner of the directory or of a file.
    pub fn set_owner(&self, row: Option<u8>, owner: Owner) {
        let mut owners = self.owners.lock();
        let now = SystemTime::now();
        match row {
            None => (owners.directory, owners.times.changed) = (owner, now),
            Some(row) => drop(owners.files.insert(row, (owner, now))),
        }
    }

    /// A group below was made, removed or renamed.
    pub(crate) fn note_changed_entry(&self) {
        let now = SystemTime::now();
        self.owners.lock().times = Times { modified: now, changed: now };
    }

    /// When the directory or a file was last changed. What a file shows is made when it is read, so it is never modified.
    pub(crate) fn times(&self, row: Option<u8>) -> Times {
        let owners = self.owners.lock();
        match row {
            None => owners.times,
            Some(row) => {
                let changed = owners.files.get(&row).map_or(self.created, |&(_, changed)| changed);
                Times { modified: self.created, changed }
            }
        }
    }

    /// Gives a fresh group to whoever made it, directory and files.
    pub fn give_all_to(&self, directory: Owner) {
        let mut owners = self.owners.lock();
        (owners.file_uid, owners.file_gid) = (directory.uid, directory.gid);
        owners.directory = directory;
        owners.files = HashMap::new();
    }
}
