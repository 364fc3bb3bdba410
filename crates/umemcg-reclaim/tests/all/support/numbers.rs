//! A shrinker whose objects are numbers with charges.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_base::LeafMutex;
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::shrinker::{
    Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, ShrinkerId, Usage,
};
use umemcg_reclaim::{AccountedCharge, ListLru, ListSlot, Reclaimer, Verdict};

/// Bytes of an object.
pub const OBJECT_BYTES: u64 = 1000;

#[derive(Debug)]
struct Object {
    slot: ListSlot,
    _charge: AccountedCharge,
}

/// A cache of numbered objects in one `ListLru`.
#[derive(Debug)]
pub struct Numbers {
    name: String,
    lru: ListLru,
    objects: LeafMutex<HashMap<u64, Object>>,
    next: AtomicU64,
    pub nr_counts: AtomicU64,
}

impl Numbers {
    pub fn register(reclaimer: &Reclaimer, name: &str) -> (Arc<Self>, Registration) {
        let id: ShrinkerId = reclaimer.reserve_shrinker();
        let numbers = Arc::new(Self {
            name: name.into(),
            lru: ListLru::new(reclaimer, &id, 0),
            objects: LeafMutex::default(),
            next: AtomicU64::new(0),
            nr_counts: AtomicU64::new(0),
        });
        let registration = reclaimer.register_shrinker(id, Arc::<Self>::clone(&numbers));
        (numbers, registration)
    }

    pub fn insert(&self, group: &Arc<Group>) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        let charge = group.charge_forced(OBJECT_BYTES);
        let owner = charge.owner();
        let slot = self.lru.reserve(number).unwrap();
        let object = Object { slot, _charge: AccountedCharge::new(charge, StatItem::SlabReclaimable) };
        self.objects.lock().insert(number, object);
        assert!(self.lru.add(owner, slot));
        number
    }

    /// Returns `false` if a shrinker was first.
    pub fn remove(&self, number: u64) -> bool {
        let Some(object) = self.objects.lock().remove(&number) else { return false };
        self.lru.remove(object.slot);
        self.lru.release(object.slot);
        true
    }

    pub fn len(&self) -> usize {
        self.objects.lock().len()
    }

    pub fn lru(&self) -> &ListLru {
        &self.lru
    }
}

impl Shrinker for Numbers {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        self.nr_counts.fetch_add(1, Relaxed);
        match self.lru.count(target.group) {
            0 => Count::Empty,
            nr => Count::Objects(nr),
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let mut gone = Vec::new();
        let mut scanned = 0;
        self.lru.walk(target.group, nr, |_, number, _| {
            scanned += 1;
            gone.push(number);
            Verdict::Removed
        });
        let mut freed = 0;
        for number in gone {
            // The thread that takes it out of the map owns its place.
            let object = self.objects.lock().remove(&number);
            if let Some(object) = object {
                self.lru.release(object.slot);
                freed += 1;
            }
        }
        Scan::Done(Scanned { scanned, freed_bytes: freed * OBJECT_BYTES, releasing_bytes: 0 })
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let objects = self.lru.count(target.group);
        Usage { objects, reclaimable: objects, bytes: objects * OBJECT_BYTES }
    }
}
