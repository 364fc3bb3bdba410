//! Turns: exclusive rights for operations that cannot hold a lock, such as a request to a store.
//!
//! An operation is alone on a node if it stores its draft, makes or cuts it, notes its first
//! change, or removes or renames the node. So a file is never stored under a name that it is about
//! to lose. Every turn keeps the names of its nodes, and of all directories above, as they are. The
//! rename of a file is also alone on the new name, and a removal on the removed name: a lookup may
//! find another node there while the copy is made. The rename of a directory is alone on everything
//! below it; operations elsewhere go on.

use std::collections::{HashMap, HashSet};

use umemcg_base::{Condvar, LeafMutex, assert_no_locks_held};

use crate::attr::NodeId;

/// The turns of a volume. A thread with a turn may take any lock, charge, and ask a store. It takes
/// no other turn, and so waits only for earlier ones.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: LeafMutex<Taken>,
    given: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    /// Threads waiting for a turn.
    nr_waiting: u32,
    /// Nodes with a thread alone on them.
    alone: HashSet<NodeId>,
    /// Names in directories with a thread alone on them.
    names: HashSet<(NodeId, String)>,
    /// Nodes whose names stay, with the number of turns of each.
    kept: HashMap<NodeId, usize>,
    /// Directories claimed whole: a thread is alone on and below them, or about to be.
    whole: HashSet<NodeId>,
    /// Counts ended turns that may have moved a node to another directory.
    nr_renamed: u64,
}

/// The purpose of a turn.
#[derive(Debug, Default)]
pub(super) struct Claim<'a> {
    /// To be alone on these nodes.
    pub(super) alone: &'a [NodeId],
    /// To be alone on this name in a directory, whichever node has it.
    pub(super) name: Option<(NodeId, &'a str)>,
    /// To keep the name of this node, and of all above.
    pub(super) keep: Option<NodeId>,
    /// To be alone on these directories and below them: they are renamed or replaced.
    pub(super) whole: &'a [NodeId],
}

/// Has a turn; gives it back when dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct TurnGuard<'t> {
    turns: &'t Turns,
    alone: Vec<NodeId>,
    name: Option<(NodeId, String)>,
    kept: Vec<NodeId>,
    whole: Vec<NodeId>,
    /// A file is renamed: the turn keeps the name of its new directory.
    moves: bool,
}

impl Turns {
    /// Waits for a turn, for as long as others conflict with the claim. `above` returns the
    /// directories above a node. No lock may be held.
    pub(super) fn take(&self, claim: &Claim<'_>, above: impl Fn(NodeId) -> Vec<NodeId>) -> TurnGuard<'_> {
        assert_no_locks_held("a wait for a turn");
        let name = claim.name.map(|(directory, name)| (directory, name.to_owned()));
        let mut nr_renamed = self.taken.lock().nr_renamed;
        let (mut taken, kept) = loop {
            // A directory to be renamed does not keep its own name.
            let below = claim.alone.iter().chain(&claim.keep).copied();
            let mut kept: Vec<NodeId> = below.flat_map(|node| [vec![node], above(node)].concat()).collect();
            kept.extend(claim.whole.iter().copied().flat_map(&above));
            let mut taken = self.taken.lock();
            let is_free = |taken: &Taken| {
                let is_others = kept.iter().chain(claim.whole).any(|node| taken.whole.contains(node));
                let is_named = name.as_ref().is_some_and(|name| taken.names.contains(name));
                !is_others && !is_named && !claim.alone.iter().any(|node| taken.alone.contains(node))
            };
            while taken.nr_renamed == nr_renamed && !is_free(&taken) {
                taken.nr_waiting += 1;
                self.given.wait(&mut taken);
                taken.nr_waiting -= 1;
            }
            if taken.nr_renamed == nr_renamed {
                break (taken, kept);
            }
            // The nodes may be below other directories by now.
            nr_renamed = taken.nr_renamed;
        };
        taken.alone.extend(claim.alone);
        taken.names.extend(name.clone());
        for &node in &kept {
            *taken.kept.entry(node).or_default() += 1;
        }
        // From here on no other turn begins below them.
        taken.whole.extend(claim.whole);
        for directory in claim.whole {
            // Own keeps do not count: a rename to below itself is refused later.
            let nr_own = kept.iter().filter(|&node| node == directory).count();
            while taken.kept.get(directory).is_some_and(|&nr| nr > nr_own) {
                self.given.wait(&mut taken);
            }
        }
        drop(taken);
        let moves = claim.keep.is_some() && !claim.alone.is_empty();
        let (alone, whole) = (claim.alone.to_vec(), claim.whole.to_vec());
        TurnGuard { turns: self, alone, name, kept, whole, moves }
    }
}

impl Turns {
    /// Returns the number of threads waiting for a turn.
    pub(super) fn nr_waiting(&self) -> u32 {
        self.taken.lock().nr_waiting
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        {
            let mut taken = self.turns.taken.lock();
            for node in &self.alone {
                taken.alone.remove(node);
            }
            if let Some(name) = &self.name {
                taken.names.remove(name);
            }
            for node in &self.kept {
                if let Some(nr) = taken.kept.get_mut(node) {
                    *nr -= 1;
                    if *nr == 0 {
                        taken.kept.remove(node);
                    }
                }
            }
            for directory in &self.whole {
                taken.whole.remove(directory);
            }
            if self.moves || !self.whole.is_empty() {
                taken.nr_renamed += 1;
            }
        }
        self.turns.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    const BOUND: Duration = Duration::from_secs(60);
    const ROOT: NodeId = NodeId(1);
    const D: NodeId = NodeId(2);
    const E: NodeId = NodeId(3);
    const IN_D: NodeId = NodeId(4);
    const IN_E: NodeId = NodeId(5);

    /// d and e are at the top, and a file is in each.
    fn above(node: NodeId) -> Vec<NodeId> {
        match node {
            IN_D => vec![D, ROOT],
            IN_E => vec![E, ROOT],
            D | E => vec![ROOT],
            _ => vec![],
        }
    }

    fn alone(nodes: &[NodeId]) -> Claim<'_> {
        Claim { alone: nodes, ..Claim::default() }
    }

    fn renames(directories: &[NodeId]) -> Claim<'_> {
        Claim { whole: directories, keep: Some(ROOT), ..Claim::default() }
    }

    #[test]
    fn a_renaming_is_alone_below_its_directory_and_only_there() {
        let turns = Turns::default();
        let upload = turns.take(&alone(&[IN_D]), above);
        let (sender, receiver) = channel();
        thread::scope(|threads| {
            let turns = &turns;
            threads.spawn(move || {
                let renaming = turns.take(&renames(&[D]), above);
                sender.send(()).unwrap();
                drop(renaming);
            });
            while !turns.taken.lock().whole.contains(&D) {
                thread::yield_now();
            }
            // Elsewhere all goes on, while it waits.
            drop(turns.take(&alone(&[IN_E]), above));
            drop(turns.take(&renames(&[E]), above));
            assert!(receiver.try_recv().is_err());
            drop(upload);
            receiver.recv_timeout(BOUND).unwrap();
            drop(turns.take(&alone(&[IN_D]), above));
        });
        let taken = turns.taken.lock();
        assert!(taken.alone.is_empty() && taken.kept.is_empty() && taken.whole.is_empty());
    }

    #[test]
    fn a_turn_is_for_what_is_above_when_it_is_had() {
        let turns = Turns::default();
        let is_moved = Mutex::new(false);
        // Then the file is in e.
        let above =
            |node| if node == IN_D && *is_moved.lock().unwrap() { vec![E, ROOT] } else { above(node) };
        let renaming = turns.take(&renames(&[D]), above);
        thread::scope(|threads| {
            let (sender, receiver) = channel();
            let (turns, above) = (&turns, &above);
            threads.spawn(move || {
                let turn = turns.take(&alone(&[IN_D]), above);
                sender.send(turns.taken.lock().kept.contains_key(&E)).unwrap();
                drop(turn);
            });
            *is_moved.lock().unwrap() = true;
            drop(renaming);
            assert!(receiver.recv_timeout(BOUND).unwrap());
        });
    }

    #[test]
    fn a_turn_follows_a_file_that_was_renamed() {
        let turns = Turns::default();
        let is_moved = Mutex::new(false);
        let above =
            |node| if node == IN_D && *is_moved.lock().unwrap() { vec![E, ROOT] } else { above(node) };
        let renaming = turns.take(&Claim { alone: &[IN_D], keep: Some(E), ..Claim::default() }, above);
        thread::scope(|threads| {
            let (sender, receiver) = channel();
            let (turns, above) = (&turns, &above);
            threads.spawn(move || {
                let turn = turns.take(&alone(&[IN_D]), above);
                sender.send(turns.taken.lock().kept.contains_key(&E)).unwrap();
                drop(turn);
            });
            while turns.nr_waiting() == 0 {
                thread::yield_now();
            }
            *is_moved.lock().unwrap() = true;
            drop(renaming);
            assert!(receiver.recv_timeout(BOUND).unwrap());
        });
    }

    #[test]
    fn no_two_are_alone_on_one_node() {
        let (turns, nr_alone) = (Turns::default(), AtomicU32::new(0));
        thread::scope(|threads| {
            for nr in 0..4 {
                let (turns, nr_alone) = (&turns, &nr_alone);
                threads.spawn(move || {
                    for round in 0..200 {
                        let turn = match (nr + round) % 3 {
                            0 => turns.take(&renames(&[D]), above),
                            1 => turns.take(&alone(&[IN_D, IN_E]), above),
                            _ => turns.take(&alone(&[IN_D]), above),
                        };
                        assert_eq!(nr_alone.fetch_add(1, SeqCst), 0);
                        thread::yield_now();
                        nr_alone.fetch_sub(1, SeqCst);
                        drop(turn);
                    }
                });
            }
        });
    }
}
