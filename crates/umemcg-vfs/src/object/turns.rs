//! Turns: the right to do, alone on one node, something for which a lock cannot be held, such as a
//! request to a store.
//!
//! The turn of a node is had by what stores its draft, makes or cuts it, notes its first change,
//! and by what removes or renames it. So a file is never stored under a name that it is about to
//! lose. A directory is renamed by the thread that has all turns.

use std::collections::HashSet;

use umemcg_base::{Condvar, LeafMutex, assert_no_locks_held};

use crate::attr::NodeId;

/// The turns of a volume. A thread that has one may take any lock, charge, and ask a store. It
/// takes no other turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: LeafMutex<Taken>,
    given: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    nodes: HashSet<NodeId>,
    /// A thread has all, or waits for those that are taken.
    all: bool,
}

/// Has a turn, or all; gives back when dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct TurnGuard<'t> {
    turns: &'t Turns,
    /// None for all.
    node: Option<NodeId>,
}

impl Turns {
    /// Waits for the turn of a node, for as long as another thread has it. No lock may be held.
    pub(super) fn take(&self, node: NodeId) -> TurnGuard<'_> {
        assert_no_locks_held("a wait for a turn");
        let mut taken = self.taken.lock();
        while taken.all || taken.nodes.contains(&node) {
            self.given.wait(&mut taken);
        }
        taken.nodes.insert(node);
        TurnGuard { turns: self, node: Some(node) }
    }

    /// Waits for the turns of two nodes.
    pub(super) fn take_two(
        &self,
        one: NodeId,
        other: Option<NodeId>,
    ) -> (TurnGuard<'_>, Option<TurnGuard<'_>>) {
        match other.filter(|other| *other != one) {
            None => (self.take(one), None),
            Some(other) => {
                assert_no_locks_held("a wait for turns");
                let mut taken = self.taken.lock();
                // Both at once: a thread that had one while it waits could wait for all.
                while taken.all || taken.nodes.contains(&one) || taken.nodes.contains(&other) {
                    self.given.wait(&mut taken);
                }
                taken.nodes.extend([one, other]);
                let guard = |node| TurnGuard { turns: self, node: Some(node) };
                (guard(one), Some(guard(other)))
            }
        }
    }

    /// Waits for all turns.
    pub(super) fn take_all(&self) -> TurnGuard<'_> {
        assert_no_locks_held("a wait for all turns");
        let mut taken = self.taken.lock();
        while taken.all {
            self.given.wait(&mut taken);
        }
        taken.all = true;
        while !taken.nodes.is_empty() {
            self.given.wait(&mut taken);
        }
        TurnGuard { turns: self, node: None }
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        {
            let mut taken = self.turns.taken.lock();
            match &self.node {
                Some(node) => drop(taken.nodes.remove(node)),
                None => taken.all = false,
            }
        }
        self.turns.given.notify_all();
    }
}
