//! The transfer of an inode's charges to the group opening it.
//!
//! Reclaim finds content through the inode, which is on the list of one group. So the group paying
//! for content also pays for the inode and its names. Otherwise a group without room could not free
//! the content of files first looked up by another group.

use std::sync::Arc;

use rustix::io::Errno;
use umemcg::OwnerId;
use umemcg::{ChargeEffort, Engine, Group};

use super::{InodeEntry, InodeTable, NodeCharge};
use crate::attr::NodeId;
use crate::host::content::Content;
use crate::host::inode_names::NameCharge;

/// New charges for an inode and its names; after the transfer, the replaced charges. Dropped with
/// no lock held.
#[derive(Debug)]
pub(crate) struct InodeCharges {
    inode: Option<NodeCharge>,
    names: Vec<NameCharge>,
}

impl InodeCharges {
    /// Charges a group for an inode with `nr_names` separately charged names.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn take(
        effort: ChargeEffort,
        engine: &Engine,
        group: &Arc<Group>,
        nr_names: usize,
    ) -> Result<Self, Errno> {
        let names = (0..nr_names).map(|_| NameCharge::take(effort, engine, group));
        Ok(Self {
            inode: Some(NodeCharge::take(effort, engine, group)?),
            names: names.collect::<Result<_, _>>()?,
        })
    }
}

fn is_same_group(one: OwnerId, other: OwnerId) -> bool {
    one == other || one.try_resolve().map(|group| group.id()) == other.try_resolve().map(|group| group.id())
}

impl InodeTable {
    /// Returns the number of separately charged names of an inode, if the inode is on another
    /// group's list.
    pub(crate) fn nr_names_of_another(&self, node: NodeId, list_owner: OwnerId) -> Option<usize> {
        let seen = self.with(node, |entry| {
            let of_inode = entry.charge.as_ref()?.list_owner();
            Some((of_inode, entry.names.iter().filter(|name| name.charge.is_some()).count()))
        });
        let (of_inode, nr_names) = seen??;
        (!is_same_group(of_inode, list_owner)).then_some(nr_names)
    }

    /// Gives an inode this content and these charges, unless it has content already. Returns its
    /// content afterwards.
    pub(crate) fn set_content(
        &self,
        node: NodeId,
        fresh: &Arc<Content>,
        charges: Option<&mut InodeCharges>,
    ) -> Option<Arc<Content>> {
        self.with(node, |entry| {
            if entry.content.is_none()
                && let Some(charges) = charges
            {
                self.take_over(node, entry, charges);
            }
            Arc::clone(entry.content.get_or_insert_with(|| Arc::clone(fresh)))
        })
    }

    fn take_over(&self, node: NodeId, entry: &mut InodeEntry, charges: &mut InodeCharges) {
        // The charge determines the list.
        if let Some(lists) = self.lists.get() {
            entry.place.leave(lists);
        }
        std::mem::swap(&mut entry.charge, &mut charges.inode);
        for (of_name, fresh) in entry.names.charges_mut().zip(&mut charges.names) {
            std::mem::swap(of_name, fresh);
        }
        self.update_list(node, entry);
    }
}
