//! Eviction: the only removal of a group's objects for want of memory.
//!
//! An eviction has three steps and allocates nothing:
//!
//! 1. Under the list's lock, it visits the oldest slots of the queue next in turn. A used object of
//!    the main queue moves to the young end; the others are taken off the list.
//! 2. Under the lock of the object's shard, each object is checked again: a used one goes to the
//!    main queue, an unused one leaves the table.
//! 3. With no lock held, the caller gets each evicted object with its charge and its slot, and
//!    releases them (reclaim) or reuses them (an insert).

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use umemcg_arena::prefetch_what_it_leads_to;
use umemcg_group::{Charge, Group, StatItem};
use umemcg_reclaim::{ListHandle, ListSlot, Verdict};

use super::CachedObjects;
use super::removing::Evicted;
use crate::object_cache::entry::Entry;
use crate::object_cache::payer::Payer;
use crate::object_cache::queue::Queue;
use crate::object_cache::removal_cause::RemovalCause;

/// One in this many objects is on probation.
const PROBATION_SHARE: u64 = 50;

/// Returns the queue to evict from next, chosen by the lengths of both, and the number of evictions
/// from it before the other is chosen.
fn next_queue(probation: u64, main: u64) -> (Queue, u64) {
    let share = (probation + main) / PROBATION_SHARE;
    if main == 0 {
        (Queue::Probation, probation)
    } else if probation > share {
        (Queue::Probation, probation - share)
    } else {
        (Queue::Main, main)
    }
}

/// An object taken out of the table.
struct Victim<K, V> {
    hash: u64,
    /// It had expired.
    is_over: bool,
    /// Readers hold it, and its charge.
    is_held: bool,
    entry: Entry<K, V>,
}

/// Evicted objects of one group, and the sum of their bytes. The drop applies the sum to the
/// group's statistics.
pub(super) struct Eviction<'a, K, V, S>
where
    K: Hash + Eq,
    V: Clone,
    S: BuildHasher,
{
    cache: &'a CachedObjects<K, V, S>,
    group: &'a Arc<Group>,
    /// The group's own statistics. Objects inherited from removed groups are removed one by one.
    payer: Option<&'a Arc<Payer>>,
    /// By [`Queue`].
    lists: [Option<&'a ListHandle>; 2],
    now: u32,
    freed_bytes: u64,
    nr_evicted: u64,
    /// Freed bytes still counted in the group's statistics.
    named_bytes: u64,
}

impl<'a, K, V, S> Eviction<'a, K, V, S>
where
    K: Hash + Eq,
    V: Clone,
    S: BuildHasher,
{
    pub(super) fn new(
        cache: &'a CachedObjects<K, V, S>,
        group: &'a Arc<Group>,
        payer: Option<&'a Arc<Payer>>,
        lists: [Option<&'a ListHandle>; 2],
    ) -> Self {
        let now = cache.expiry.now();
        Self { cache, group, payer, lists, now, freed_bytes: 0, nr_evicted: 0, named_bytes: 0 }
    }

    /// Returns the bytes freed by all removed objects.
    pub(super) fn freed_bytes(&self) -> u64 {
        self.freed_bytes
    }

    /// Returns the number of removed objects that had not expired.
    pub(super) fn nr_evicted(&self) -> u64 {
        self.nr_evicted
    }

    /// Records that `bytes` of the freed memory are reused for another object of the group.
    pub(super) fn hand_on(&mut self, bytes: u64) {
        self.named_bytes -= bytes;
    }

    /// Visits up to `nr` objects, and takes out up to `most` and `N` unused ones. Objects charged
    /// to the group and not expired go to `out`; the others are removed. Returns the number of
    /// visited objects; 0 when there are none. No lock may be held.
    pub(super) fn look<const N: usize>(
        &mut self,
        nr: u64,
        most: u64,
        mut out: impl FnMut(&Payer, Evicted<K, V>),
    ) -> u64 {
        let (cache, now) = (self.cache, self.now);
        let [probation, main] = self.lists.map(|list| list.map_or(0, ListHandle::nr_objects));
        let (queue, nr_due) = next_queue(probation, main);
        let Some(list) = self.lists[queue as usize] else { return 0 };
        let mut taken = [const { None }; N];
        let (mut nr_taken, mut nr_looked) = (0, 0);
        let most = most.min(N as u64) as usize;
        let nr_wanted = if queue == Queue::Probation { nr_due.min(most as u64) } else { nr_due };
        cache.lists[queue as usize].walk_handle(list, nr.min(nr_wanted), |_, token, slot| {
            if nr_taken == most {
                return Verdict::Stop;
            }
            nr_looked += 1;
            let verdict = match queue {
                Queue::Probation => Verdict::Removed,
                Queue::Main => cache.peek(token, slot, now),
            };
            if verdict == Verdict::Removed {
                taken[nr_taken] = Some((token, slot));
                nr_taken += 1;
            }
            verdict
        });
        for (token, slot) in taken.into_iter().flatten() {
            if let Some(victim) = cache.take_victim(token, slot, now) {
                self.account(queue, victim, &mut out);
            }
        }
        nr_looked
    }

    /// Accounts for an object taken out.
    #[inline]
    fn account(&mut self, queue: Queue, victim: Victim<K, V>, out: &mut impl FnMut(&Payer, Evicted<K, V>)) {
        let Victim { hash, is_over, is_held, entry } = victim;
        let bytes = entry.mark.bytes();
        self.freed_bytes += if is_held { 0 } else { bytes };
        self.nr_evicted += u64::from(!is_over);
        match self.payer {
            Some(payer) if !is_over && Arc::ptr_eq(payer, &entry.payer) => {
                self.named_bytes += bytes;
                payer.note_removed(RemovalCause::Evicted, 1, bytes);
                let Entry { key, value, slot, mark, .. } = entry;
                let mut charge = Charge::from_raw(payer.owner(), bytes);
                if mark.has_pin() {
                    // The pin has no handles left, or one has come and gone just now.
                    charge = self
                        .cache
                        .pins
                        .leave(slot, charge)
                        .unwrap_or_else(|| unreachable!("an object that is held is not evicted"));
                }
                let ghost = (queue == Queue::Probation).then_some(hash);
                out(payer, Evicted { key, value, charge, slot, ghost });
            }
            _ if is_over => self.cache.finish_removal(entry, RemovalCause::Expired),
            _ => self.cache.finish_removal(entry, RemovalCause::Evicted),
        }
    }
}

impl<K, V, S> Drop for Eviction<'_, K, V, S>
where
    K: Hash + Eq,
    V: Clone,
    S: BuildHasher,
{
    fn drop(&mut self) {
        if self.named_bytes != 0 {
            self.group.stat_add(StatItem::SlabReclaimable, -self.named_bytes.cast_signed());
        }
    }
}

impl<K, V, S> CachedObjects<K, V, S>
where
    K: Hash + Eq,
    V: Clone,
    S: BuildHasher,
{
    /// Returns the verdict of a walk on an object of the main queue: a used one moves to the young
    /// end again.
    fn peek(&self, token: u64, slot: ListSlot, now: u32) -> Verdict {
        let (shard, at) = self.shards.named_by(token);
        let Some(tables) = shard.tables.try_read() else { return Verdict::Skip };
        match tables.get(at).filter(|entry| entry.slot == slot) {
            // Another thread has taken it out and will take it off the list, or is moving it.
            None => Verdict::Skip,
            Some(entry)
                if !self.expiry.is_over(tables.age(at), now)
                    && (entry.mark.spend_use() || self.is_held(entry)) =>
            {
                Verdict::Rotate
            }
            Some(_) => Verdict::Removed,
        }
    }

    /// Removes the object of a slot already taken off its list. Moves a used object to the main
    /// queue instead. Nothing in here may panic, because the slot is on no list while its object is
    /// in the table.
    fn take_victim(&self, token: u64, slot: ListSlot, now: u32) -> Option<Victim<K, V>> {
        let (shard, _) = self.shards.named_by(token);
        let mut tables = shard.tables.write();
        // It may have moved meanwhile, but never to another shard, and it does not move while the
        // shard is locked.
        let token = self.lists[0].token(slot);
        let at = token as u32;
        // Missing: another thread has removed it, and owns its slot.
        if tables.token(at) != token || tables.get(at).is_none_or(|entry| entry.slot != slot) {
            return None;
        }
        // On a list: our object is gone, and a later object has its slot.
        if self.lists[0].is_linked(slot) {
            return None;
        }
        let is_over = self.expiry.is_over(tables.age(at), now);
        let is_held = self.is_held(tables.get(at)?);
        let entry = tables.get_mut(at)?;
        if (entry.mark.uses() > 0 || is_held) && !is_over {
            entry.mark.promote();
            entry.payer.enlist(&self.lists, Queue::Main, slot);
            return None;
        }
        let Some(hash) = self.hash_of(entry) else {
            // The object cannot be removed, and goes back to the main queue.
            entry.payer.enlist(&self.lists, entry.mark.queue(), slot);
            return None;
        };
        let entry = self.take_out(&mut tables, hash, at)?;
        // Dropping the value will read it.
        prefetch_what_it_leads_to(&entry.value);
        Some(Victim { hash, is_over, is_held, entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probation_gives_until_it_is_down_to_its_share() {
        assert_eq!(next_queue(100, 0), (Queue::Probation, 100));
        assert_eq!(next_queue(100, 900), (Queue::Probation, 80));
        assert_eq!(next_queue(20, 980), (Queue::Main, 980));
        assert_eq!(next_queue(0, 0), (Queue::Probation, 0));
    }
}
