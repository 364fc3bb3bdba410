//! What a charge or an uncharge mark_check on its way through the levels and leaves for later: a
//! mark that was reached, a group that counts wrongly as over its soft limit.
//!
//! A thread that counts is in the middle of the levels and may hold its stocks. Its caller acts on
//! what was noticed afterwards. So each thread leaves its mark_check to itself.

use std::cell::Cell;
use std::mem::ManuallyDrop;

use crate::counter::CounterNode;

thread_local! {
    /// A charge of this thread reached some level's mark since that was last asked for.
    static REACHED_MARK: Cell<bool> = const { Cell::new(false) };
    /// Nodes that uncharges of this thread found to count wrongly as over their soft limit. No
    /// destructor, so that it can be used while the thread ends; the thread that takes it frees it.
    static UNSETTLED: Cell<ManuallyDrop<Vec<u32>>> = const { Cell::new(ManuallyDrop::new(Vec::new())) };
    /// There are any.
    static HAS_UNSETTLED: Cell<bool> = const { Cell::new(false) };
}

/// Notes a charge that was counted at a node, and may have brought it to its mark or into excess.
#[inline]
pub(crate) fn note_usage(node: &CounterNode) {
    if node.note_usage() {
        REACHED_MARK.set(true);
    }
}

/// Takes a charge back that a level above refused. Another thread may have looked at the usage
/// meanwhile.
pub(crate) fn take_back(node: &CounterNode, bytes: u64) {
    node.take_back(bytes);
    if node.is_excess_over() {
        REACHED_MARK.set(true);
    }
}

/// Notes an uncharge that was counted at a node. The node may be another group's by now; then the
/// look at that is for nothing.
#[inline]
pub(crate) fn note_fall(index: u32, node: &CounterNode) {
    if node.is_excess_over() {
        note_unsettled(index);
    }
}

#[cold]
fn note_unsettled(index: u32) {
    UNSETTLED.with(|unsettled| {
        let mut nodes = unsettled.replace(ManuallyDrop::new(Vec::new()));
        nodes.push(index);
        unsettled.set(nodes);
    });
    HAS_UNSETTLED.set(true);
}

/// Returns whether uncharges of this thread have found any excess stale since [`take_unsettled`].
#[inline]
pub fn has_unsettled() -> bool {
    HAS_UNSETTLED.get()
}

/// Returns the nodes whose excess uncharges of this thread have found stale since the last call.
pub fn take_unsettled() -> Vec<u32> {
    HAS_UNSETTLED.set(false);
    ManuallyDrop::into_inner(UNSETTLED.replace(ManuallyDrop::new(Vec::new())))
}

/// Returns whether a charge of this thread reached some level's mark, or found its excess stale,
/// since the last call.
#[inline]
pub fn take_reached_mark() -> bool {
    REACHED_MARK.take()
}
