//! Hints of a group's next victims, so that their cache lines are prefetched while the evicting
//! insert does something else.
//!
//! An evicting insert reads memory not touched for long: a place in a list, an entry, a value. The
//! first locked instruction of an insert waits until the new value, written just now, has left the
//! store buffer; a prefetch before that costs nothing. So guesses are kept where no locked
//! instruction is needed to find them: in a table by owner, where groups may overwrite each other's
//! guesses. A wrong guess costs a line.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use umemcg_arena::prefetch;
use umemcg_group::OwnerId;
use umemcg_reclaim::{ListHandle, ListLru, ListSlot};

use super::shard::Shards;

/// Number of groups with separate guesses.
const NR: usize = 128;

/// Number of prefetched objects of a list: the first may have been used and stay.
const DEPTH: usize = 2;

/// By queue: the place at the old end of a group's list.
#[derive(Debug)]
#[repr(align(64))]
struct Guess([AtomicU32; 2]);

/// The guesses of one cache.
#[derive(Debug)]
pub(super) struct VictimHints(Box<[Guess]>);

impl VictimHints {
    pub(super) fn new() -> Self {
        Self((0..NR).map(|_| Guess([const { AtomicU32::new(ListSlot::NOWHERE) }; 2])).collect())
    }

    #[inline]
    fn of(&self, owner: OwnerId) -> &Guess {
        &self.0[owner.into_raw() as usize % NR]
    }

    /// Records the oldest places of a group's lists.
    pub(super) fn note(&self, owner: OwnerId, known: [Option<&ListHandle>; 2]) {
        for (guess, known) in self.of(owner).0.iter().zip(known) {
            guess.store(known.map_or(ListSlot::NOWHERE, ListHandle::oldest), Relaxed);
        }
    }

    /// Prefetches the cache lines of a group's next victims. Takes no lock, and executes no locked
    /// instruction.
    #[inline]
    pub(super) fn look_ahead<K, V>(&self, owner: OwnerId, lists: &ListLru, shards: &Shards<K, V>) {
        for guess in &self.of(owner).0 {
            let mut slot = guess.load(Relaxed);
            for _ in 0..DEPTH {
                if slot == ListSlot::NOWHERE {
                    break;
                }
                let Some((token, next)) = lists.look_ahead(slot) else { break };
                prefetch(shards.address_of(token));
                slot = next;
            }
        }
    }
}
