//! Which objects go. Two queues for each group: what is new waits on *probation*, about a fiftieth of all; what was used
//! there, or comes back while its ghost is there, moves to the *main* queue, where an object that was used goes round again.
//! What nobody used goes, and from probation it leaves a ghost. So a stream of objects that are used once passes through
//! probation and disturbs nothing.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use umemcg_group::{Charge, Group, StatItem};
use umemcg_reclaim::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg_reclaim::{ListSlot, Verdict};

use super::departure::Departure;
use super::entry::{Entry, NODE, Queue};
use super::inner::{Inner, has_its_share};
use super::payer::Payer;

/// One in so many objects is on probation.
const PROBATION_SHARE: u64 = 50;
/// Objects scanned at once: little, so that a small group does not lose more than it has to.
const BATCH: u64 = 16;
/// Rounds to bring a cache below its own bound.
const ROUNDS_MAX: u32 = 64;

/// Objects looked at, and those that were taken out.
struct Looked<K, V> {
    scanned: u64,
    /// With their hashes.
    gone: Vec<(u64, Entry<K, V>)>,
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

    /// Looks at up to `nr` objects of a group and evicts those that nobody used. Returns what was looked at, and bytes freed.
    fn shrink(&self, group: &Arc<Group>, nr: u64) -> Scanned {
        let mut done = Scanned::default();
        while done.scanned < nr {
            let (probation, main) = self.count_of(group, NODE);
            let share = (probation + main) / PROBATION_SHARE;
            let left = nr - done.scanned;
            let (queue, looked) = if probation > share || main == 0 {
                (Queue::Probation, self.look_at_probation(group, left.min((probation - share).max(1))))
            } else {
                (Queue::Main, self.look_at_main(group, left))
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
        self.lists[Queue::Probation as usize].walk(group, NODE, nr, |_, hash, slot| {
            old.push((hash, slot));
            Verdict::Removed
        });
        Looked { scanned: old.len() as u64, gone: self.judge(old) }
    }

    fn look_at_main(&self, group: &Arc<Group>, nr: u64) -> Looked<K, V> {
        let mut unused = Vec::with_capacity(nr.min(BATCH) as usize);
        let mut scanned = 0;
        let now = self.expiry.now();
        self.lists[Queue::Main as usize].walk(group, NODE, nr, |_, hash, slot| {
            scanned += 1;
            let Some(tables) = self.shards.of(hash).tables.try_read() else { return Verdict::Skip };
            match tables.find(hash, |entry| entry.slot == slot) {
                // Somebody has taken it out and will take it off the list.
                None => Verdict::Skip,
                Some(entry) if !self.expiry.is_over(entry, now) && entry.mark.spend_use() => Verdict::Rotate,
                Some(_) => {
                    unused.push((hash, slot));
                    Verdict::Removed
                }
            }
        });
        Looked { scanned, gone: self.judge(unused) }
    }

    /// Takes out what is in places that were taken off their lists, unless it was used: that goes to the main queue.
    fn judge(&self, places: Vec<(u64, ListSlot)>) -> Vec<(u64, Entry<K, V>)> {
        let mut gone = Vec::with_capacity(places.len());
        let now = self.expiry.now();
        for (hash, slot) in places {
            let mut tables = self.shards.of(hash).tables.write();
            // Not there: somebody else has taken it out, and its place is theirs.
            let Some(entry) = tables.find_mut(hash, |entry| entry.slot == slot) else { continue };
            // On a list: it came after ours, which is gone, and happened to get its place.
            if self.lists[0].is_linked(slot) {
                continue;
            }
            if entry.mark.uses() > 0 && !self.expiry.is_over(entry, now) {
                entry.mark.promote();
                entry.payer.enlist(&self.lists, Queue::Main, entry.owner, slot);
                continue;
            }
            let Some(entry) = tables.take(hash, |entry| entry.slot == slot) else { continue };
            self.note_taken(&entry);
            tables.shrink_if_sparse(|entry| self.hash(&entry.key));
            gone.push((hash, entry));
        }
        gone
    }

    /// Sees off what was taken out of a queue of a group, and is on no list; returns its bytes.
    fn evict(&self, group: &Arc<Group>, queue: Queue, gone: Vec<(u64, Entry<K, V>)>) -> u64 {
        let Some((_, first)) = gone.first() else { return 0 };
        let (owner, now) = (group.owner(), self.expiry.now());
        if queue == Queue::Probation
            && let Some(payer) = self.payers.get(owner)
        {
            let young = gone.iter().filter(|(_, entry)| !self.expiry.is_over(entry, now));
            payer.add_ghosts(young.map(|(hash, _)| *hash));
        }
        // Most are alike: charged to the group itself, in its own figures, not too old. They are counted together.
        let payer = Arc::clone(&first.payer);
        let (mut nr_alike, mut bytes_alike, mut bytes) = (0, 0, 0);
        let mut alike = Vec::with_capacity(gone.len());
        for (_, entry) in gone {
            bytes += u64::from(entry.bytes);
            if self.expiry.is_over(&entry, now) {
                self.see_off(entry, Departure::Expired);
            } else if entry.owner != owner || !Arc::ptr_eq(&entry.payer, &payer) {
                self.see_off(entry, Departure::Evicted);
            } else {
                nr_alike += 1;
                bytes_alike += u64::from(entry.bytes);
                alike.push(entry);
            }
        }
        self.lists[0].release_all(alike.iter().map(|entry| entry.slot));
        payer.note_departed(Departure::Evicted, nr_alike, bytes_alike);
        group.stat_add(StatItem::SlabReclaimable, -(bytes_alike as i64));
        drop(Charge::from_raw(owner, bytes_alike));
        for Entry { key, value, .. } in alike {
            self.listener.tell(key, value, Departure::Evicted);
        }
        bytes
    }

    /// Evicts until the cache is within its own bound: from who has just inserted, as long as that has its share, else from
    /// who has most. No lock may be held.
    pub(super) fn keep_within(&self, bytes_max: u64, payer: &Payer, group: &Arc<Group>) {
        use std::sync::atomic::Ordering::Relaxed;
        for _ in 0..ROUNDS_MAX {
            if self.bytes.load(Relaxed) <= bytes_max as i64 {
                return;
            }
            if has_its_share(payer, self.payers.nr(), bytes_max) && self.shrink(group, BATCH).freed_bytes > 0
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
                old.extend(
                    tables.take_all(|entry| self.expiry.is_over(entry, now), |entry| self.hash(&entry.key)),
                );
                old.iter().for_each(|entry| self.note_taken(entry));
            }
            for entry in old {
                self.see_off(entry, Departure::Expired);
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
