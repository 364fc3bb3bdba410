//! A shrinker with objects of 1,000 bytes, as an embedder would write it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use umemcg::internal::{AccountedCharge, ListLru, ListSlot, Verdict};
use umemcg::shrinker::{Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg::{Engine, Group, StatItem};

const OBJECT_BYTES: u64 = 1000;

/// The objects, registered.
pub struct Objects {
    cache: Arc<Cache>,
    _registration: Registration,
}

#[derive(Debug)]
struct Cache {
    lru: ListLru,
    objects: Mutex<HashMap<u64, (ListSlot, AccountedCharge)>>,
    next: AtomicU64,
}

impl Objects {
    pub fn register(engine: &Engine) -> Self {
        let id = engine.reclaimer().reserve_shrinker();
        let lru = ListLru::new(engine.reclaimer(), &id, 0);
        let cache = Arc::new(Cache { lru, objects: Mutex::default(), next: AtomicU64::new(0) });
        let _registration = engine.reclaimer().register_shrinker(id, Arc::<Cache>::clone(&cache));
        Self { cache, _registration }
    }

    pub fn insert(&self, group: &Arc<Group>) {
        let token = self.cache.next.fetch_add(1, Relaxed);
        let charge = AccountedCharge::forced(group, OBJECT_BYTES, StatItem::SlabReclaimable);
        let (owner, slot) = (charge.owner(), self.cache.lru.reserve(token).unwrap());
        self.cache.objects.lock().unwrap().insert(token, (slot, charge));
        self.cache.lru.add(owner, slot);
    }

    pub fn len(&self) -> usize {
        self.cache.objects.lock().unwrap().len()
    }
}

impl Shrinker for Cache {
    fn name(&self) -> String {
        "objects".into()
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        match self.lru.count(target.group) {
            0 => Count::Empty,
            nr => Count::Objects(nr),
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let mut gone = Vec::new();
        self.lru.walk(target.group, nr, |_, token, _| {
            gone.push(token);
            Verdict::Removed
        });
        for token in &gone {
            let (slot, charge) = self.objects.lock().unwrap().remove(token).unwrap();
            self.lru.release(slot);
            drop(charge);
        }
        let nr = gone.len() as u64;
        Scan::Done(Scanned { scanned: nr, freed_bytes: nr * OBJECT_BYTES, releasing_bytes: 0 })
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let objects = self.lru.count(target.group);
        Usage { objects, reclaimable: objects, bytes: objects * OBJECT_BYTES }
    }
}
