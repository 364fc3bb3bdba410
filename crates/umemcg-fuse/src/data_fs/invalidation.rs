//! Invalidation of the kernel's caches after a change whose answer the kernel did not take.
//!
//! The request of a killed process is answered EINTR before it has ended. The kernel keeps its
//! cached names, attributes and pages, and the request changes some of them later. These are then
//! invalidated, as after a change by another program.

use std::ffi::{OsStr, OsString};

use rustix::fs::OFlags;
use umemcg_vfs::NodeId;
use umemcg_vfs::volumes::ResolvedId;

use super::DataFs;
use crate::reply::{Invalidation, Others};
use crate::request::Request;
use crate::wire::{Op, setattr_valid};

/// Bytes of a file, by their offset and number.
type Bytes = (u64, u64);

const NO_BYTES: Bytes = (0, 0);
const ALL_BYTES: Bytes = (0, u64::MAX);

/// The objects changed by a request. Inodes and directories have the kernel's numbers.
#[derive(Debug)]
struct Changed {
    nodes: [Option<u64>; 2],
    /// Of the first inode.
    bytes: Bytes,
    /// Of the inodes not named in the request.
    bytes_of_others: Bytes,
    names: [Option<(u64, OsString)>; 2],
}

impl Changed {
    /// Returns the objects changed by a request about `id`; `None` if it changes no cached object.
    fn by(id: u64, op: &Op<'_>) -> Option<Self> {
        let name = |name: &OsStr| Some((id, name.to_owned()));
        let of_names = |names, other| Self {
            nodes: [Some(id), other],
            bytes: NO_BYTES,
            bytes_of_others: NO_BYTES,
            names,
        };
        let of_bytes = |bytes| Self { bytes, ..of_names([None, None], None) };
        let is_cut = |flags: u32| OFlags::from_bits_retain(flags).contains(OFlags::TRUNC);
        let changed = match op {
            Op::Create { name: new, arg, .. } => {
                let bytes_of_others = if is_cut(arg.flags) { ALL_BYTES } else { NO_BYTES };
                Self { bytes_of_others, ..of_names([name(new), None], None) }
            }
            Op::Symlink { name, .. }
            | Op::Mknod { name, .. }
            | Op::Mkdir { name, .. }
            | Op::Unlink { name }
            | Op::Rmdir { name } => of_names([Some((id, (*name).to_owned())), None], None),
            Op::Link { old_node, name: new } => of_names([name(new), None], Some(*old_node)),
            Op::Rename { new_parent, name: old, new_name, .. } => {
                of_names([name(old), Some((*new_parent, (*new_name).to_owned()))], Some(*new_parent))
            }
            Op::Open(arg) if is_cut(arg.flags) => of_bytes(ALL_BYTES),
            Op::Write { arg, .. } => of_bytes((arg.offset, arg.size.into())),
            Op::Fallocate(arg) => of_bytes((arg.offset, arg.length)),
            Op::Setattr(arg) if arg.valid & setattr_valid::SIZE != 0 => {
                of_bytes((arg.size, u64::MAX - arg.size))
            }
            Op::Setattr(_) | Op::Setxattr { .. } | Op::Removexattr { .. } => of_bytes(NO_BYTES),
            _ => return None,
        };
        Some(changed)
    }
}

impl DataFs {
    /// Returns the invalidation for a request; `None` if it changes no cached object.
    pub(super) fn invalidation(&self, request: &Request<'_>) -> Option<Invalidation> {
        let id = request.header.nodeid;
        let (me, changed) = (self.me.clone(), Changed::by(id, &request.op)?);
        let may_stay = matches!(request.op, Op::Rename { .. });
        let has_grace = !matches!(request.op, Op::Write { .. });
        Some(Invalidation::new(has_grace, move |others| {
            if let Some(me) = me.upgrade() {
                me.invalidate(id, changed, others, may_stay);
            }
        }))
    }

    /// Invalidates the objects changed by a request about `id`; `others` are inodes of its volume.
    /// With `may_stay` a name only expires, since it may lead to a working directory.
    fn invalidate(&self, id: u64, changed: Changed, others: Others, may_stay: bool) {
        let forget = |id: u64, node: Option<NodeId>, (offset, len): Bytes| {
            if let Ok(ResolvedId::In(member, inner)) = self.volumes.place(id) {
                member.volume().make_kernel_forget(node.unwrap_or(inner), offset, len);
            }
        };
        let [first, second] = changed.nodes;
        first.into_iter().for_each(|node| forget(node, None, changed.bytes));
        second.into_iter().for_each(|node| forget(node, None, NO_BYTES));
        others.into_iter().flatten().for_each(|node| forget(id, Some(node), changed.bytes_of_others));
        for (directory, name) in changed.names.into_iter().flatten() {
            let is_sent = match self.volumes.place(directory) {
                Ok(ResolvedId::In(member, inner)) => member.volume().make_kernel_forget_name(inner, &name),
                _ => continue,
            };
            let Some(notifier) = self.notifier.get().filter(|_| !is_sent) else { continue };
            if !notifier.inval_entry(directory, &name, may_stay) && notifier.can_expire_all() {
                notifier.expire_all_now();
            }
        }
    }
}
