//! The order of closed files with data to write back.

use std::collections::VecDeque;

use crate::attr::NodeId;

/// Nodes of closed files with data to write back, and so with an open host file. Some may be in use
/// again, or gone.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    /// Nodes with data not old enough to be written, in the order of their closing.
    waiting: VecDeque<NodeId>,
    /// Nodes whose write-back the flusher was asked for.
    pub(super) asked: VecDeque<NodeId>,
}

impl Lingering {
    /// Adds a closed file.
    pub(super) fn push(&mut self, node: NodeId) {
        self.waiting.push_back(node);
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.asked.len()
    }

    /// Takes up to `max` nodes of each kind, to be checked.
    pub(super) fn take_oldest(&mut self, max: usize) -> (Vec<NodeId>, Vec<NodeId>) {
        let take = |from: &mut VecDeque<NodeId>| from.drain(..max.min(from.len())).collect();
        (take(&mut self.waiting), take(&mut self.asked))
    }

    /// Puts back the nodes still lingering: waiting nodes at the front, in their old order;
    /// requested nodes at the end, so that a failing file does not hide the others.
    pub(super) fn put_back(&mut self, waiting: Vec<NodeId>, asked: Vec<NodeId>) {
        waiting.into_iter().rev().for_each(|node| self.waiting.push_front(node));
        self.asked.extend(asked);
    }

    /// Returns the nodes closed longest ago, to be written, if more than half of `max` wait.
    /// Several at a time: the flusher scans its files once for all of them.
    pub(super) fn ask_for_oldest(&mut self, max: usize) -> Vec<NodeId> {
        if self.waiting.len() <= max / 2 {
            return Vec::new();
        }
        let nr = (max / 8).clamp(1, self.waiting.len());
        let due: Vec<NodeId> = self.waiting.drain(..nr).collect();
        self.asked.extend(&due);
        due
    }

    /// Returns the first requested node, if more than `max` linger in all.
    pub(super) fn take_beyond(&mut self, max: usize) -> Option<NodeId> {
        if self.len() <= max {
            return None;
        }
        self.asked.pop_front().or_else(|| self.waiting.pop_front())
    }
}
