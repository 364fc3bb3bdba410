//! The state shared by all files of a control tree: the engine, the processes, the style, and the
//! waiters for events.

use std::sync::Arc;

use umemcg::{Engine, Group};
use umemcg_base::{Rank, RankedMutex, RankedMutexGuard};

use crate::file_id::FileId;
use crate::group_control::{DIRECTORY_MODE, GroupControl, Owner};
use crate::membership::Membership;
use crate::membership_watchers::Watchers;
use crate::style::Style;
use crate::trigger::Triggers;

/// See the module text.
#[derive(Debug)]
pub struct ControlState {
    engine: Arc<Engine>,
    membership: Arc<dyn Membership>,
    /// (C) The generation of files to show.
    style: Style,
    /// (C) Owner of groups not created by hand.
    default_owner: Owner,
    /// (C) All files, in the order of the table.
    files: Box<[FileId]>,
    /// Held from the check whether a process may be moved until it has been moved.
    moves: RankedMutex<()>,
    triggers: Triggers,
    watchers: Watchers,
}

impl ControlState {
    pub(crate) fn new(engine: Arc<Engine>, membership: Arc<dyn Membership>, files: Box<[FileId]>) -> Self {
        let default_owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: DIRECTORY_MODE,
        };
        Self {
            engine,
            membership,
            style: Style::default(),
            default_owner,
            files,
            moves: RankedMutex::new(Rank::Membership, ()),
            triggers: Triggers::default(),
            watchers: Watchers::default(),
        }
    }

    pub(crate) fn with_style(self, style: Style) -> Self {
        Self { style, ..self }
    }

    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// Returns the file with this number.
    pub(crate) fn file(&self, number: u8) -> Option<FileId> {
        self.files.get(usize::from(number)).copied()
    }

    /// Returns the file of this name.
    pub(crate) fn file_named(&self, name: &str) -> Option<FileId> {
        self.files.iter().find(|file| file.name == name).copied()
    }

    /// Returns the triggers of open pressure files.
    pub(crate) fn triggers(&self) -> &Triggers {
        &self.triggers
    }

    /// Starts watching whether the group is populated, for pollers of its `cgroup.events`.
    pub(crate) fn watch_populated(&self, group: &Arc<Group>) {
        self.watchers.add(&self.membership, group, &self.control(group).populated.waiters);
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn membership(&self) -> &dyn Membership {
        &*self.membership
    }

    /// Starts a move of processes. Moves are serialised, so the checks still hold during the move.
    pub(crate) fn begin_move(&self) -> RankedMutexGuard<'_, ()> {
        self.moves.lock()
    }

    /// Returns this layer's state of a group.
    pub(crate) fn control<'a>(&self, group: &'a Group) -> &'a GroupControl {
        GroupControl::of(group, self.default_owner)
    }
}
