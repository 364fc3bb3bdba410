//! Notes of a charge or an uncharge on its way through the levels, for its caller to act on later:
//! a mark was reached, or a group's excess flag is stale.
//!
//! A thread adding to counters is in the middle of the levels and may be inside its stock, so it
//! cannot act immediately. The notes are thread-local.

use std::cell::Cell;
use std::mem::ManuallyDrop;

use crate::counter::CounterNode;

thread_local! {
    /// True if a charge of this thread reached the mark of some level since the last
    /// [`take_reached_mark`].
    static REACHED_MARK: Cell<bool> = const { Cell::new(false) };
    /// Nodes with an excess flag found stale by uncharges of this thread. It has no destructor, so
    /// it can be used while the thread ends; the taker frees it.
    static STALE_EXCESS: Cell<ManuallyDrop<Vec<u32>>> = const { Cell::new(ManuallyDrop::new(Vec::new())) };
    /// True if there are any.
    static HAS_STALE_EXCESS: Cell<bool> = const { Cell::new(false) };
}

/// Checks whether an added charge brought a node to its mark or into excess.
#[inline]
pub(crate) fn note_usage(node: &CounterNode) {
    if node.note_usage() {
        REACHED_MARK.set(true);
    }
}

/// Undoes a charge refused by a level above. Another thread may have seen the usage meanwhile.
pub(crate) fn take_back(node: &CounterNode, bytes: u64) {
    node.take_back(bytes);
    if node.is_excess_over() {
        REACHED_MARK.set(true);
    }
}

/// Checks a node after an uncharge. The node may belong to another group by now; then the check is
/// useless but harmless.
#[inline]
pub(crate) fn note_uncharge(index: u32, node: &CounterNode) {
    if node.is_excess_over() {
        note_stale_excess(index);
    }
}

#[cold]
fn note_stale_excess(index: u32) {
    STALE_EXCESS.with(|unsettled| {
        let mut nodes = unsettled.replace(ManuallyDrop::new(Vec::new()));
        nodes.push(index);
        unsettled.set(nodes);
    });
    HAS_STALE_EXCESS.set(true);
}

/// Returns whether uncharges of this thread have found any excess stale since
/// [`take_stale_excess`].
#[inline]
pub fn has_stale_excess() -> bool {
    HAS_STALE_EXCESS.get()
}

/// Takes the nodes with an excess flag found stale by uncharges of this thread since the last call.
pub fn take_stale_excess() -> Vec<u32> {
    HAS_STALE_EXCESS.set(false);
    ManuallyDrop::into_inner(STALE_EXCESS.replace(ManuallyDrop::new(Vec::new())))
}

/// Returns whether a charge of this thread reached some level's mark, or found its excess stale,
/// since the last call.
#[inline]
pub fn take_reached_mark() -> bool {
    REACHED_MARK.take()
}
