//! Which objects go. Two queues for each group: what is new waits on *probation*, about a fiftieth
//! of all; what was used there, or comes back while its ghost is there, moves to the *main* queue,
//! where an object that was used goes round again. An object that was not used is evicted, and from
//! probation it leaves a ghost. So a stream of objects that are used once passes through probation
//! and disturbs nothing.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use umemcg_arena::prefetch_what_it_leads_to;
use umemcg_group::{Charge, EventKind, Group, StatItem};
use umemcg_reclaim::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg_reclaim::{KnownList, ListSlot, SWAP_CLUSTER_MAX, Verdict};

use super::entry::Entry;
use super::inner::{Evicted, Inner, count_bytes, has_its_share};
use super::payer::Payer;
use super::queue::{NODE, Queue};
use super::removal_cause::RemovalCause;
use super::shard::Tables;

/// One in so many objects is on probation.
const PROBATION_SHARE: u64 = 50;
/// Objects scanned at once: little, so that a small group does not lose more than it has to.
const BATCH: u64 = 16;
/// Rounds to bring a cache below its own bound.
const ROUNDS_MAX: u32 = 64;

/// Looks of an insert for objects to take the place of, before reclaim is called.
const EXCHANGE_LOOKS_MAX: u32 = 64;

/// An object that was taken out.
struct Gone<K, V> {
    hash: u64,
    /// Evicted, or expired.
    why: RemovalCause,
    entry: Entry<K, V>,
}

/// Objects looked at, and those that were taken out.
struct Looked<K, V> {
    scanned: u64,
    gone: Vec<Gone<K, V>>,
}

/// Which queue gives next, by the lengths of both.
fn next_queue(probation: u64, main: u64) -> Queue {
    if probation > (probation + main) / PROBATION_SHARE || main == 0 { Queue::Probation } else { Queue::Main }
}

impl<K, V, S> Inner<K, V, S>
where
    K: Hash + Eq,
    V: Clone,
    S: BuildHasher,
{
    fn count_of(&self, group: &Group, node: usize) -> (u64, u64) {
        let [probation, main] = &self.lists;
        (probation.count(group, node), main.count(group, node))
    }

    /// Looks at up to `nr` objects of a group and evicts those that were not used. Returns what was
    /// looked at, and bytes freed.
    fn shrink(&self, group: &Arc<Group>, nr: u64) -> Scanned {
        let mut done = Scanned::default();
        while done.scanned < nr {
            let (probation, main) = self.count_of(group, NODE);
            let left = nr - done.scanned;
            let queue = next_queue(probation, main);
            let looked = match queue {
                Queue::Probation => {
                    let surplus = probation - (probation + main) / PROBATION_SHARE;
                    self.look_at_probation(group, left.min(surplus.max(1)))
                }
                Queue::Main => self.look_at_main(group, left),
            };
            if looked.scanned == 0 {
                break;
            }
            done.scanned += looked.scanned;
            done.freed_bytes += self.evict(group, queue, looked.gone);
        }
        done
    }

    fn look_at_probation(&self, group: &Arc<Group>, nr: u64) -> Looked<K, V> {
        let mut old = Vec::with_capacity(nr.min(BATCH) as usize);
        let now = self.expiry.now();
        self.lists[Queue::Probation as usize].walk(group, NODE, nr, |_, token, slot| {
            old.push((token, slot));
            Verdict::Removed
        });
        Looked { scanned: old.len() as u64, gone: self.judge(old, now) }
    }

    fn look_at_main(&self, group: &Arc<Group>, nr: u64) -> Looked<K, V> {
        let mut unused = Vec::with_capacity(nr.min(BATCH) as usize);
        let mut scanned = 0;
        let now = self.expiry.now();
        self.lists[Queue::Main as usize].walk(group, NODE, nr, |_, token, slot| {
            scanned += 1;
            let verdict = self.look_at(token, slot, now);
            if verdict == Verdict::Removed {
                unused.push((token, slot));
            }
            verdict
        });
        Looked { scanned, gone: self.judge(unused, now) }
    }

    /// Returns what a walk does with an object of the main queue: one that was used goes round
    /// again.
    fn look_at(&self, token: u64, slot: ListSlot, now: u32) -> Verdict {
        let (shard, at) = self.shards.named_by(token);
        let Some(tables) = shard.tables.try_read() else { return Verdict::Skip };
        match tables.get(at).filter(|entry| entry.slot == slot) {
            // Another thread has taken it out and will take it off the list, or moves it.
            None => Verdict::Skip,
            Some(entry) if !self.expiry.is_over(tables.age(at), now) && entry.mark.spend_use() => {
                Verdict::Rotate
            }
            Some(_) => Verdict::Removed,
        }
    }

    /// Takes out what is in places that were taken off their lists, unless it was used: that goes
    /// to the main queue. Nothing in here may panic: these places are on no list, and what is in
    /// the table belongs on one.
    fn judge(&self, places: Vec<(u64, ListSlot)>, now: u32) -> Vec<Gone<K, V>> {
        places.into_iter().filter_map(|(token, slot)| self.judge_one(token, slot, now)).collect()
    }

    fn judge_one(&self, token: u64, slot: ListSlot, now: u32) -> Option<Gone<K, V>> {
        let (shard, _) = self.shards.named_by(token);
        let mut tables = shard.tables.write();
        // It may have moved meanwhile, but never to another shard; and while that is locked it
        // stays.
        let token = self.lists[0].token(slot);
        let at = token as u32;
        // Not there: another thread has taken it out, and owns its place.
        if tables.token(at) != token || tables.get(at).is_none_or(|entry| entry.slot != slot) {
            return None;
        }
        // On a list: it came after ours, which is gone, and happened to get its place.
        if self.lists[0].is_linked(slot) {
            return None;
        }
        let is_over = self.expiry.is_over(tables.age(at), now);
        let entry = tables.get_mut(at)?;
        if entry.mark.uses() > 0 && !is_over {
            entry.mark.promote();
            entry.payer.enlist(&self.lists, Queue::Main, slot);
            return None;
        }
        let Some(hash) = self.hash_of(entry) else {
            // It cannot be taken out, and goes round.
            entry.payer.enlist(&self.lists, entry.mark.queue(), slot);
            return None;
        };
        let why = if is_over { RemovalCause::Expired } else { RemovalCause::Evicted };
        let entry = self.take_out(&mut tables, hash, at)?;
        // What drops it will need it.
        prefetch_what_it_leads_to(&entry.value);
        Some(Gone { hash, why, entry })
    }

    /// Sees off what was taken out of a queue of a group, and is on no list; returns its bytes.
    fn evict(&self, group: &Arc<Group>, queue: Queue, gone: Vec<Gone<K, V>>) -> u64 {
        let Some(first) = gone.first() else { return 0 };
        let owner = group.owner();
        if queue == Queue::Probation
            && let Some(payer) = self.payers.get(owner)
        {
            let young = gone.iter().filter(|gone| gone.why == RemovalCause::Evicted);
            payer.add_ghosts(young.map(|gone| gone.hash));
        }
        // Most are alike: charged to the group itself, in its own figures, not too old. They are
        // counted together.
        let payer = Arc::clone(&first.entry.payer);
        let (mut nr_alike, mut bytes_alike, mut bytes) = (0, 0, 0);
        let mut alike = Vec::with_capacity(gone.len());
        for Gone { why, entry, .. } in gone {
            bytes += entry.mark.bytes();
            if why == RemovalCause::Expired
                || entry.payer.owner() != owner
                || !Arc::ptr_eq(&entry.payer, &payer)
            {
                self.hand_out(entry, why);
            } else {
                nr_alike += 1;
                bytes_alike += entry.mark.bytes();
                alike.push(entry);
            }
        }
        self.lists[0].release_all(alike.iter().map(|entry| entry.slot));
        payer.note_removed(RemovalCause::Evicted, nr_alike, bytes_alike);
        group.stat_add(StatItem::SlabReclaimable, -(bytes_alike as i64));
        drop(Charge::from_raw(owner, bytes_alike));
        for Entry { key, value, .. } in alike {
            self.listener.tell(key, value, RemovalCause::Evicted);
        }
        bytes
    }

    /// Evicts objects of a group until they bring `bytes`, and hands over their charge and the
    /// place of one of them: what reclaim would do in a group that holds nothing else, without
    /// giving back and charging again at every level. `None` when that brings too little; what was
    /// evicted then is given back. No lock may be held.
    pub(super) fn exchange(
        &self,
        group: &Arc<Group>,
        payer: &Arc<Payer>,
        bytes: u64,
    ) -> Option<(Charge, ListSlot, Evicted<K, V>)> {
        let now = self.expiry.now();
        let mut hoard = Charge::from_raw(payer.owner(), 0);
        let mut last: Option<(ListSlot, Evicted<K, V>)> = None;
        let known = [Queue::Probation, Queue::Main].map(|queue| payer.known_list(queue));
        for _ in 0..EXCHANGE_LOOKS_MAX {
            if hoard.bytes() >= bytes {
                break;
            }
            let Some(looked) = self.look_at_next(known, now) else { break };
            let Some((queue, Gone { hash, why, entry })) = looked else { continue };
            if why == RemovalCause::Expired || !Arc::ptr_eq(&entry.payer, payer) {
                self.hand_out(entry, why);
                continue;
            }
            let ghost = (queue == Queue::Probation).then_some(hash);
            let Entry { key, value, mark, slot: left, .. } = entry;
            payer.note_removed(why, 1, mark.bytes());
            hoard.merge(Charge::from_raw(payer.owner(), mark.bytes()));
            if let Some((slot, before)) = last.replace((left, Evicted { key, value, why, ghost })) {
                self.lists[0].release(slot);
                self.let_go(payer, before);
            }
        }
        self.victim_hints.note(payer.owner(), known);
        let freed = hoard.bytes() as i64;
        let paid = if hoard.bytes() >= bytes && last.is_some() { Some(hoard.split(bytes)) } else { None };
        let delta = paid.as_ref().map_or(0, |charge| charge.bytes() as i64) - freed;
        if delta != 0 {
            count_bytes(group, payer.owner(), delta);
        }
        let (slot, evicted) = last?;
        let Some(charge) = paid else {
            self.lists[0].release(slot);
            self.let_go(payer, evicted);
            return None;
        };
        if payer.nr_inserted_here().is_multiple_of(SWAP_CLUSTER_MAX) {
            // As often as reclaim would be called for.
            group.event(EventKind::Max);
        }
        Some((charge, slot, evicted))
    }

    /// Leaves the ghost of an object that was evicted, and tells of it.
    fn let_go(&self, payer: &Payer, evicted: Evicted<K, V>) {
        let Evicted { key, value, why, ghost } = evicted;
        if ghost.is_some() {
            payer.add_ghosts(ghost.into_iter());
        }
        self.listener.tell(key, value, why);
    }

    /// Looks at the object of a group whose turn it is, or at some of the main queue, and takes it
    /// out if it was not used; says then from which queue. `None` when there is nothing to look at,
    /// or the lists are not known.
    #[expect(clippy::option_option, reason = "nothing to look at is not the same as looked at and kept")]
    fn look_at_next(&self, known: [Option<&KnownList>; 2], now: u32) -> Option<Option<(Queue, Gone<K, V>)>> {
        let [probation, main] = known.map(|known| known.map_or(0, KnownList::nr_objects));
        let queue = next_queue(probation, main);
        let known = known[queue as usize]?;
        let found = match queue {
            Queue::Probation => Some(self.lists[queue as usize].take_oldest(known)?),
            Queue::Main if main == 0 => return None,
            Queue::Main => {
                let mut unused = None;
                self.lists[queue as usize].walk_known(known, BATCH, |_, token, slot| {
                    if unused.is_some() {
                        return Verdict::Stop;
                    }
                    let verdict = self.look_at(token, slot, now);
                    unused = (verdict == Verdict::Removed).then_some((token, slot));
                    verdict
                });
                unused
            }
        };
        Some(found.and_then(|(token, slot)| Some((queue, self.judge_one(token, slot, now)?))))
    }

    /// Evicts until the cache is within its own bound: from the group that has just inserted, as
    /// long as that has its share, otherwise from the one that has most. No lock may be held.
    pub(super) fn keep_within(&self, bytes_max: u64, group: &Arc<Group>) {
        use std::sync::atomic::Ordering::Relaxed;
        for _ in 0..ROUNDS_MAX {
            if self.bytes.load(Relaxed) <= bytes_max as i64 {
                return;
            }
            let payer = self.payers.of(group.owner());
            if has_its_share(&payer, self.payers.nr(), bytes_max) && self.shrink(group, BATCH).freed_bytes > 0
            {
                continue;
            }
            let most = self.payers.all().into_iter().max_by_key(|(_, payer)| payer.bytes());
            let Some(most) = most.and_then(|(owner, _)| owner.try_resolve()) else { return };
            self.shrink(&most, BATCH);
        }
    }

    /// Takes out every object that is too old.
    pub(super) fn sweep_expired(&self) {
        if !self.expiry.is_on() {
            return;
        }
        let now = self.expiry.now();
        for shard in self.shards.iter() {
            let mut old = Vec::new();
            {
                let mut tables = shard.tables.write();
                let is_over = |tables: &Tables<K, V>, at| self.expiry.is_over(tables.age(at), now);
                let moved = |slot, token| self.note_moved(slot, token);
                old.extend(tables.take_those(is_over, |entry| self.hash_of(entry), moved));
                self.note_taken(&old);
            }
            for entry in old {
                self.hand_out(entry, RemovalCause::Expired);
            }
        }
    }
}

impl<K, V, S> Shrinker for Inner<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn name(&self) -> String {
        self.name.clone()
    }

    fn seeks(&self) -> u32 {
        self.seeks
    }

    fn batch(&self) -> u64 {
        BATCH
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        match self.count_of(target.group, target.node) {
            (0, 0) => Count::Empty,
            (probation, main) => Count::Objects(probation + main),
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        if target.node == NODE { Scan::Done(self.shrink(target.group, nr)) } else { Scan::Stop }
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let (probation, main) = self.count_of(target.group, target.node);
        let bytes = self.payers.get(target.group.owner()).map_or(0, |payer| payer.bytes());
        Usage { objects: probation + main, reclaimable: probation + main, bytes }
    }

    fn reparent(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        self.payers.reparent(dying.owner(), parent.owner());
    }
}
