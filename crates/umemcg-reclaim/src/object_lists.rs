//! The object lists of one group, by shrinker: made with the first object, dropped when a walk
//! finds them empty, spliced to the parent's lists when the group is removed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use umemcg_base::{Rank, RankedMutex, RankedMutexGuard, RankedRwLock};
use umemcg_group::{Group, StatItem};

use crate::accounted_charge::AccountedCharge;
use crate::list_slots::{Chain, ListSlot, ListSlots};
use crate::shrinker::bits::{BitPlace, Closed, Unit};

/// The key of a list: shrinker, and the list number chosen by the shrinker.
pub(crate) type ListKey = (u32, u32);

/// Bytes of a list, charged to its group.
const LIST_BYTES: u64 = size_of::<ObjectList>() as u64 + 48;

/// The state under a list's lock.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) chain: Chain,
    /// Empty, and no longer the group's: a thread holding the lock looks for another list. A list
    /// still referenced when pruned may be taken back.
    pub(crate) dead: bool,
}

/// One list.
#[derive(Debug)]
pub(crate) struct ObjectList {
    objects: RankedMutex<Objects>,
    /// Length of the chain, readable without the lock. (A)
    len: AtomicU64,
    /// The place at the old end at some time; only good for guesses. (A)
    oldest: AtomicU32,
    /// The bit set while the list may hold objects.
    place: BitPlace,
    /// Serial of the `ListLru` that made it.
    serial: u64,
    /// Kept while the list sleeps, too: otherwise other charges would take the room, and the next
    /// object would bring the group above its limit.
    _charge: AccountedCharge,
}

impl ObjectList {
    fn new(group: &Group, place: BitPlace, serial: u64) -> Arc<Self> {
        Arc::new(Self {
            objects: RankedMutex::new(Rank::Lruvec, Objects { chain: Chain::new(), dead: false }),
            len: AtomicU64::new(0),
            oldest: AtomicU32::new(ListSlot::NOWHERE),
            place,
            serial,
            _charge: AccountedCharge::forced(group, LIST_BYTES, StatItem::SlabUnreclaimable),
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// Returns the place at the old end, possibly outdated.
    pub(crate) fn oldest(&self) -> u32 {
        self.oldest.load(Relaxed)
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, Objects> {
        self.objects.lock()
    }

    /// Notes the length after a change; the caller holds the lock.
    pub(crate) fn note_len(&self, objects: &Objects) {
        self.len.store(objects.chain.len(), Relaxed);
        self.oldest.store(objects.chain.first().map_or(ListSlot::NOWHERE, ListSlot::into_raw), Relaxed);
    }

    /// Sets the list's bit. The length must have been noted.
    pub(crate) fn set_bit(&self) {
        // Closed: the group is being removed, and the splicing thread sets the parent's bit.
        let _ = self.place.unit.set(self.place.bit);
    }
}

#[derive(Debug, Default)]
struct Lists {
    by_key: BTreeMap<ListKey, Arc<ObjectList>>,
    /// Lists pruned while still referenced: a thread finding its list dead gets the same list back.
    asleep: Vec<(ListKey, Weak<ObjectList>)>,
    /// The group was removed.
    closed: bool,
    /// Units of bits beyond the first, which is part of the group's own state.
    unit_charges: Vec<AccountedCharge>,
}

impl Lists {
    /// Takes a list out of the sleeping lists, if still referenced. Forgets lists without
    /// references.
    fn wake(&mut self, key: ListKey, serial: u64) -> Option<Arc<ObjectList>> {
        let mut woken = None;
        self.asleep.retain(|(there, list)| {
            let list = list.upgrade();
            let is_meant = *there == key && list.as_ref().is_some_and(|list| list.serial == serial);
            let stays = list.is_some() && !is_meant;
            if is_meant {
                woken = list;
            }
            stays
        });
        woken
    }
}

/// The lists of one group.
#[derive(Debug)]
pub(crate) struct ObjectLists {
    lists: RankedRwLock<Lists>,
}

impl ObjectLists {
    pub(crate) fn new() -> Self {
        Self { lists: RankedRwLock::new(Rank::ObjectLists, Lists::default()) }
    }

    /// Returns the list of this key made by the `ListLru` of this serial.
    pub(crate) fn find(&self, key: ListKey, serial: u64) -> Option<Arc<ObjectList>> {
        self.lists.read().by_key.get(&key).filter(|list| list.serial == serial).cloned()
    }

    /// Returns the number of objects on the list.
    pub(crate) fn len_of(&self, key: ListKey, serial: u64) -> u64 {
        self.lists.read().by_key.get(&key).filter(|list| list.serial == serial).map_or(0, |list| list.len())
    }

    /// Finds a list, and makes it when there is none.
    pub(crate) fn find_or_make(
        &self,
        group: &Group,
        key: ListKey,
        serial: u64,
        bit_place: impl FnOnce() -> Result<BitPlace, Closed>,
    ) -> Result<Arc<ObjectList>, Closed> {
        if let Some(list) = self.find(key, serial) {
            return Ok(list);
        }
        let place = bit_place()?;
        let fresh = ObjectList::new(group, place, serial);
        let mut lists = self.lists.write();
        if lists.closed {
            return Err(Closed);
        }
        let woken = lists.wake(key, serial);
        let list = lists.by_key.entry(key).or_insert_with(|| match woken {
            Some(woken) => {
                woken.lock().dead = false;
                woken
            }
            None => Arc::clone(&fresh),
        });
        if list.serial != serial {
            debug_assert_eq!(list.len(), 0, "a list outlived its objects' cache");
            *list = Arc::clone(&fresh);
        }
        let list = Arc::clone(list);
        drop(lists);
        Ok(list)
    }

    pub(crate) fn charge_unit(&self, group: &Group) {
        let charge = AccountedCharge::forced(group, Unit::bytes(), StatItem::SlabUnreclaimable);
        self.lists.write().unit_charges.push(charge);
    }

    /// Drops the empty lists of a shrinker. A list still referenced sleeps until an object is
    /// added.
    pub(crate) fn prune(&self, shrinker: u32) {
        let mut pruned = Vec::new();
        {
            let mut lists = self.lists.write();
            let keys: Vec<ListKey> = lists
                .by_key
                .range((shrinker, 0)..=(shrinker, u32::MAX))
                .filter(|(_, list)| list.len() == 0)
                .map(|(key, _)| *key)
                .collect();
            for key in keys {
                let Some(list) = lists.by_key.get(&key) else { continue };
                let mut objects = list.lock();
                if objects.chain.len() > 0 {
                    continue;
                }
                objects.dead = true;
                drop(objects);
                let list = lists.by_key.remove(&key);
                if let Some(known) = list.as_ref().filter(|list| Arc::strong_count(list) > 1) {
                    lists.asleep.push((key, Arc::downgrade(known)));
                }
                pruned.extend(list);
            }
        }
        // Uncharges their bytes, with no lock held.
        drop(pruned);
    }

    /// Moves every list of a dying group to its parent, in O(1) for each list.
    #[doc(alias = "memcg_reparent_list_lrus")]
    pub(crate) fn reparent(
        &self,
        slots: &ListSlots,
        find_or_make: impl Fn(ListKey, u64) -> Result<Arc<ObjectList>, Closed>,
    ) {
        let (by_key, unit_charges) = {
            let mut lists = self.lists.write();
            lists.closed = true;
            lists.asleep = Vec::new();
            (std::mem::take(&mut lists.by_key), std::mem::take(&mut lists.unit_charges))
        };
        for (key, from) in by_key {
            {
                let mut source = from.objects.lock();
                if source.chain.len() == 0 {
                    source.dead = true;
                    continue;
                }
            }
            // The parent cannot be removed before its children have handed over, but its empty list
            // may be pruned.
            loop {
                let Ok(to) = find_or_make(key, from.serial) else { break };
                // Parent before child.
                let mut target = to.lock();
                if target.dead {
                    continue;
                }
                let mut source = from.objects.lock_second();
                target.chain.splice_tail(slots, &mut source.chain);
                source.dead = true;
                from.note_len(&source);
                to.note_len(&target);
                // Set even if the list received no object, since all have left meanwhile: a walk
                // drops it.
                to.set_bit();
                break;
            }
        }
        drop(unit_charges);
    }
}
