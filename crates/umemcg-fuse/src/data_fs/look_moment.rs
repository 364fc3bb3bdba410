//! How long an answer may be kept: without a limit if other programs' changes are told to the
//! kernel, and what it is about has not changed since it was looked for.

use umemcg_vfs::volumes::{Member, ResolvedId};

use super::{DataFs, Lifetimes};

/// A moment before the host is looked at for an answer; none where changes are not told.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookMoment(Option<u64>);

impl LookMoment {
    /// Returns the present moment of a volume.
    pub(super) fn of(member: &Member) -> Self {
        Self(member.volume().moment())
    }
}

impl DataFs {
    /// Returns the present moment of the volume that a node is on.
    pub(super) fn look_moment(&self, id: u64) -> LookMoment {
        match self.volumes.place(id) {
            Ok(ResolvedId::In(member, _)) => LookMoment::of(&member),
            _ => LookMoment(None),
        }
    }

    /// Returns the lifetimes of an answer about an inode, as the kernel numbers it, that was looked
    /// for since a moment.
    pub(super) fn lifetimes_of(&self, member: &Member, ino: u64, moment: LookMoment) -> Lifetimes {
        let ino = member.ino_from_kernel(ino);
        match moment.0 {
            Some(moment) if member.volume().is_unchanged(ino, moment) => self.lifetimes.told(),
            Some(_) => self.lifetimes.overtaken(),
            None => self.lifetimes,
        }
    }

    /// Returns the lifetimes of an answer that the kernel takes even if a message that it is out of
    /// date overtakes it.
    pub(super) fn lifetimes_of_setattr(&self, member: &Member) -> Lifetimes {
        let is_watched = LookMoment::of(member).0.is_some();
        if is_watched { self.lifetimes.overtaken() } else { self.lifetimes }
    }

    /// The same, of an answer about a node.
    pub(super) fn lifetimes_at(&self, id: u64, ino: u64, moment: LookMoment) -> Lifetimes {
        match self.volumes.place(id) {
            Ok(ResolvedId::In(member, _)) => self.lifetimes_of(&member, ino, moment),
            _ => self.lifetimes,
        }
    }

    /// Returns the lifetimes of the answer that a name does not exist. The kernel drops a name that
    /// comes into being when the requests in its directory have been answered.
    pub(super) fn lifetimes_of_absence(&self, parent: u64) -> Lifetimes {
        if self.look_moment(parent).0.is_some() { self.lifetimes.told() } else { self.lifetimes }
    }
}
