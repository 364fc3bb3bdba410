//! The lifetime of an answer in the kernel. It has no limit if the kernel is notified of other
//! programs' changes, and the object has not changed since the look at the host.

use umemcg_vfs::volumes::{Member, ResolvedId};

use super::{DataFs, Lifetimes};

/// The moment before a look at the host for an answer; none on a volume without notifications of
/// changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookMoment(Option<u64>);

impl LookMoment {
    /// Returns the present moment of a volume.
    pub(super) fn of(member: &Member) -> Self {
        Self(member.volume().moment())
    }
}

impl DataFs {
    /// Returns the present moment of a node's volume.
    pub(super) fn look_moment(&self, id: u64) -> LookMoment {
        match self.volumes.place(id) {
            Ok(ResolvedId::In(member, _)) => LookMoment::of(&member),
            _ => LookMoment(None),
        }
    }

    /// Returns the lifetimes of an answer from a look begun at `moment`. `ino` is the kernel's
    /// number of the inode.
    pub(super) fn lifetimes_of(&self, member: &Member, ino: u64, moment: LookMoment) -> Lifetimes {
        let ino = member.ino_from_kernel(ino);
        match moment.0 {
            Some(moment) if member.volume().is_unchanged(ino, moment) => self.lifetimes.told(),
            Some(_) => self.lifetimes.overtaken(),
            None => self.lifetimes,
        }
    }

    /// Returns the lifetimes of an answer to SETATTR: the kernel accepts it even if an invalidation
    /// has overtaken it.
    pub(super) fn lifetimes_of_setattr(&self, member: &Member) -> Lifetimes {
        let is_watched = LookMoment::of(member).0.is_some();
        if is_watched { self.lifetimes.overtaken() } else { self.lifetimes }
    }

    /// Like `lifetimes_of`, for an answer about a node.
    pub(super) fn lifetimes_at(&self, id: u64, ino: u64, moment: LookMoment) -> Lifetimes {
        match self.volumes.place(id) {
            Ok(ResolvedId::In(member, _)) => self.lifetimes_of(&member, ino, moment),
            _ => self.lifetimes,
        }
    }

    /// Returns the lifetimes of a negative answer. The kernel drops the negative entry of a newly
    /// created name after the answers to the requests in its directory.
    pub(super) fn lifetimes_of_absence(&self, parent: u64) -> Lifetimes {
        if self.look_moment(parent).0.is_some() { self.lifetimes.told() } else { self.lifetimes }
    }
}
