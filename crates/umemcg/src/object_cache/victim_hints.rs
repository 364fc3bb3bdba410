//! Hints of a group's next victims, so that their cache lines are prefetched while the insert that
//! will evict them does something else.
//!
//! An insert that evicts reads memory that has not been touched for long: a place in a list, an
//! entry, a value. The first locked instruction of an insert waits until the new value, written
//! just now, has left the store buffer; a prefetch before that costs nothing. So guesses are kept
//! where they are found without a locked instruction: in a table by owner, where groups may take
//! each other's place. A wrong guess costs a line.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use umemcg_arena::prefetch;
use umemcg_group::OwnerId;
use umemcg_reclaim::{ListHandle, ListLru, ListSlot};

use super::shard::Shards;

/// Groups that are kept apart.
const NR: usize = 128;

/// Objects of a list that are asked for: the first may have been used and stay.
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

    /// Notes where the lists of a group begin.
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
