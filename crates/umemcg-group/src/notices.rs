//! What a charge or an uncharge notices on its way through the levels and leaves for later: a mark that was reached, a group that counts
//! wrongly as over its soft limit.
//!
//! Whoever counts is in the middle of the levels and may hold its stocks; who called it acts on what was noticed, when that is done.
//! So each thread leaves its notices to itself.

use std::cell::Cell;
use std::mem::ManuallyDrop;

use crate::counter::CounterNode;

thread_local! {
    /// A charge of this thread reached some level's mark since somebody asked.
    static REACHED_MARK: Cell<bool> = const { Cell::new(false) };
    /// Nodes that uncharges of this thread found to count wrongly as over their soft limit. No destructor, so that it can be used while the
    /// thread ends; whoever takes it frees it.
    static UNSETTLED: Cell<ManuallyDrop<Vec<u32>>> = const { Cell::new(ManuallyDrop::new(Vec::new())) };
    /// There are any.
    static HAS_UNSETTLED: Cell<bool> = const { Cell::new(false) };
}

/// A charge was counted at a node, which may have brought it to its mark or into excess.
#[inline]
pub(crate) fn note_usage(node: &CounterNode) {
    if node.note_usage() {
        REACHED_MARK.set(true);
    }
}

/// A level above refused. Somebody may have looked at the usage meanwhile.
pub(crate) fn take_back(node: &CounterNode, bytes: u64) {
    node.take_back(bytes);
    if node.is_excess_over() {
        REACHED_MARK.set(true);
    }
}

/// An uncharge was counted at a node. The node may be another group's by now; then somebody looks at that for nothing.
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

/// Whether uncharges of this thread have found any excess stale since [`take_unsettled`].
#[inline]
pub fn has_unsettled() -> bool {
    HAS_UNSETTLED.get()
}

/// The nodes whose excess uncharges of this thread have found stale since the last call.
pub fn take_unsettled() -> Vec<u32> {
    HAS_UNSETTLED.set(false);
    ManuallyDrop::into_inner(UNSETTLED.replace(ManuallyDrop::new(Vec::new())))
}

/// Whether a charge of this thread reached some level's mark, or found its excess stale, since the last call.
#[inline]
pub fn take_reached_mark() -> bool {
    REACHED_MARK.take()
}
