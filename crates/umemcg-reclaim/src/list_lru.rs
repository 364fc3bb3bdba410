//! Lists of objects by group, each with its own lock, least recently added first.
//!
//! An object is a caller's token (a number to find the object again) in a place reserved once
//! ([`ListSlot`]). The object goes on the list of its charged group. When the group is removed its
//! lists are spliced to its parent's; the object's owner handle then resolves to the parent.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_base::RankedMutexGuard;
use umemcg_group::{Group, OwnerId};

use crate::group_reclaim::{GroupReclaim, owner_from};
use crate::list_slots::{ListSlot, ListSlots, ListsFull};
use crate::mechanism;
use crate::object_lists::{ListKey, ObjectList, Objects};
use crate::reclaimer::Reclaimer;
use crate::shrinker::ShrinkerId;

/// The action on a visited object, chosen by the visitor under the list's lock.
#[doc(alias = "lru_status")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Take it off the list and continue.
    #[doc(alias = "LRU_REMOVED")]
    Removed,
    /// The visitor took it off ([`WalkedList::isolate`]) and then released the lock: start again at
    /// the old end.
    #[doc(alias = "LRU_REMOVED_RETRY")]
    RemovedRetry,
    /// Move it to the young end.
    #[doc(alias = "LRU_ROTATE")]
    Rotate,
    /// Leave it where it is.
    #[doc(alias = "LRU_SKIP")]
    Skip,
    /// The visitor has released the lock: start again at the old end.
    #[doc(alias = "LRU_RETRY")]
    Retry,
    /// Leave it and end the walk.
    #[doc(alias = "LRU_STOP")]
    Stop,
}

/// Lists of objects of one shrinker.
#[derive(Debug)]
pub struct ListLru {
    slots: Arc<ListSlots>,
    id: ShrinkerId,
    sub: u32,
    /// Distinguishes it from an earlier one whose shrinker had the same number.
    serial: u64,
}

impl ListLru {
    /// Creates lists for the shrinker with number `id`. A shrinker with several kinds of lists
    /// numbers them by `sub`.
    #[doc(alias = "list_lru_init")]
    #[doc(hidden)]
    pub fn new(reclaimer: &Reclaimer, id: &ShrinkerId, sub: u32) -> Self {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
        Self {
            slots: Arc::clone(reclaimer.list_slots()),
            id: id.clone(),
            sub,
            serial: NEXT_SERIAL.fetch_add(1, Relaxed),
        }
    }

    fn key(&self) -> ListKey {
        (self.id.get(), self.sub)
    }

    /// Takes a place for an object; on no list yet. Its memory,
    /// [`LIST_SLOT_BYTES`](crate::LIST_SLOT_BYTES), is the caller's to charge.
    ///
    /// # Errors
    /// [`ListsFull`].
    pub fn reserve(&self, token: u64) -> Result<ListSlot, ListsFull> {
        self.slots.take(token)
    }

    /// Replaces the token of an object. The caller prevents concurrent replacements; a walk sees
    /// the old token or the new one.
    pub fn set_token(&self, slot: ListSlot, token: u64) {
        self.slots.set_token(slot, token);
    }

    /// Returns the token of an object.
    pub fn token(&self, slot: ListSlot) -> u64 {
        self.slots.token(slot)
    }

    /// Gives a place back. The object must be off its list, and no other thread may use the place
    /// any more.
    pub fn release(&self, slot: ListSlot) {
        self.slots.give_back(slot);
    }

    /// Returns whether the object is on a list. Out of date immediately unless the caller prevents
    /// other threads from moving it.
    pub fn is_linked(&self, slot: ListSlot) -> bool {
        self.slots.is_linked(slot)
    }

    /// Puts an object at the young end of the list of `owner`; a charge of the caller keeps `owner`
    /// alive. Returns `false` if the object is on a list already. The caller prevents other threads
    /// from adding or removing the same object meanwhile.
    #[doc(alias = "list_lru_add")]
    pub fn add(&self, owner: OwnerId, slot: ListSlot) -> bool {
        self.add_with_handle(owner, slot).is_some()
    }

    /// Like [`add`](Self::add), but returns a handle of the list for [`add_to`](Self::add_to).
    /// `None` when the object is on a list already.
    pub fn add_with_handle(&self, owner: OwnerId, slot: ListSlot) -> Option<ListHandle> {
        let owner = mechanism::list_owner(owner);
        loop {
            let group = owner.resolve();
            let part = GroupReclaim::of(&group);
            // The list is closed: its group is being removed, and in a moment its owner leads to
            // the parent.
            let Ok(list) = part.find_or_make_list(&group, self.key(), self.serial) else {
                umemcg_base::sync::thread::yield_now();
                continue;
            };
            let mut objects = list.lock();
            if objects.dead {
                continue;
            }
            if self.slots.is_linked(slot) {
                // If the list was made just now, set its bit, so a walk finds the empty list and
                // drops it.
                if objects.chain.len() == 0 {
                    list.set_bit();
                }
                return None;
            }
            objects.chain.push_tail(&self.slots, slot, owner.into_raw());
            list.note_len(&objects);
            let is_first = objects.chain.len() == 1;
            if is_first {
                list.set_bit();
            }
            drop(objects);
            if is_first {
                part.note_present(&group);
            }
            return Some(ListHandle(list));
        }
    }

    /// Like [`add`](Self::add), on a list found before, without another look-up. Returns `false`,
    /// without effect, if the list is gone or empty, or the object is on a list already.
    pub fn add_to(&self, known: &ListHandle, owner: OwnerId, slot: ListSlot) -> bool {
        let owner = mechanism::list_owner(owner);
        let list = &*known.0;
        debug_assert_eq!(list.serial(), self.serial, "a list is known to the thread that found it");
        let mut objects = list.lock();
        // The first object on a list has to be announced, and this needs the group.
        if objects.dead || objects.chain.len() == 0 || self.slots.is_linked(slot) {
            return false;
        }
        objects.chain.push_tail(&self.slots, slot, owner.into_raw());
        list.note_len(&objects);
        true
    }

    /// Prefetches the next slot's cache line. Returns the token in this slot, if there ever was
    /// one, and the next slot's number. Takes no lock; the answer is only a hint.
    #[inline]
    pub fn look_ahead(&self, slot: u32) -> Option<(u64, u32)> {
        self.slots.look_ahead(slot)
    }

    /// Takes an object off its list. Returns `false` if it is on none. The caller prevents other
    /// threads from adding it meanwhile. A walk may remove it at the same time; only one of the two
    /// reports the removal.
    #[doc(alias = "list_lru_del")]
    pub fn remove(&self, slot: ListSlot) -> bool {
        self.with_list_of(slot, |list, objects| {
            objects.chain.unlink(&self.slots, slot);
            list.note_len(objects);
        })
    }

    /// Moves an object to the young end of its list. Returns `false` if it is on none.
    pub fn touch(&self, slot: ListSlot) -> bool {
        self.with_list_of(slot, |_, objects| objects.chain.rotate(&self.slots, slot))
    }

    fn with_list_of(&self, slot: ListSlot, act: impl Fn(&ObjectList, &mut Objects)) -> bool {
        loop {
            if !self.slots.is_linked(slot) {
                return false;
            }
            let group = owner_from(self.slots.owner(slot)).resolve();
            let Some(list) = self.list(&group) else {
                umemcg_base::sync::thread::yield_now();
                continue;
            };
            let mut objects = list.lock();
            if objects.dead {
                continue;
            }
            // Under the lock of the owner's living list, this answer is exact.
            if !self.slots.is_linked(slot) {
                return false;
            }
            act(&list, &mut objects);
            return true;
        }
    }

    fn list(&self, group: &Group) -> Option<Arc<ObjectList>> {
        GroupReclaim::if_present(group)?.object_lists().find(self.key(), self.serial)
    }

    /// Returns the list of a group, if it has one.
    pub fn known(&self, group: &Group) -> Option<ListHandle> {
        self.list(group).map(ListHandle)
    }

    /// Returns the number of objects on the list of a group, without its lock.
    #[doc(alias = "list_lru_count_one")]
    pub fn count(&self, group: &Group) -> u64 {
        let part = GroupReclaim::if_present(group);
        part.map_or(0, |part| part.object_lists().len_of(self.key(), self.serial))
    }

    /// Calls `visit` for up to `nr` objects of a group, oldest first, under the list's lock;
    /// returns the number of objects taken off the list. `visit` gets the object's token and place,
    /// and returns a verdict. It may only try-lock the locks ranked before lists.
    #[doc(alias = "list_lru_walk_one")]
    pub fn walk(
        &self,
        group: &Group,
        nr: u64,
        visit: impl FnMut(&mut WalkedList<'_>, u64, ListSlot) -> Verdict,
    ) -> u64 {
        self.known(group).map_or(0, |known| self.walk_handle(&known, nr, visit))
    }

    /// Like [`walk`](Self::walk), on a list found before.
    pub fn walk_handle(
        &self,
        known: &ListHandle,
        nr: u64,
        mut visit: impl FnMut(&mut WalkedList<'_>, u64, ListSlot) -> Verdict,
    ) -> u64 {
        let list = &*known.0;
        let mut walked = WalkedList { slots: &self.slots, list, objects: list.lock(), isolated: 0 };
        let (mut removed, mut left) = (0, nr);
        let mut at = walked.objects.chain.first();
        while let Some(slot) = at
            && left > 0
        {
            // Before the visit, so that retries end.
            left -= 1;
            let next = walked.objects.chain.after(&self.slots, slot);
            let step = match visit(&mut walked, self.slots.token(slot), slot) {
                Verdict::Removed => {
                    walked.isolate(slot);
                    ControlFlow::Continue(next)
                }
                Verdict::Rotate => {
                    walked.objects.chain.rotate(&self.slots, slot);
                    list.note_len(&walked.objects);
                    ControlFlow::Continue(next)
                }
                Verdict::Skip => ControlFlow::Continue(next),
                Verdict::RemovedRetry | Verdict::Retry => ControlFlow::Continue(walked.objects.chain.first()),
                Verdict::Stop => ControlFlow::Break(()),
            };
            removed += std::mem::take(&mut walked.isolated);
            match step {
                // If the list died while unlocked, it is empty.
                ControlFlow::Continue(next) => at = next,
                ControlFlow::Break(()) => break,
            }
        }
        removed
    }
}

/// A list found before. A pruned list comes back with the next object; the list of a removed group
/// does not.
#[derive(Debug)]
pub struct ListHandle(Arc<ObjectList>);

impl ListHandle {
    /// Returns the number of the place at the old end, for [`ListLru::look_ahead`]: out of date
    /// immediately.
    #[inline]
    pub fn oldest(&self) -> u32 {
        self.0.oldest()
    }

    /// Returns the number of objects on it, without its lock; 0 when it is gone.
    pub fn nr_objects(&self) -> u64 {
        self.0.len()
    }
}

/// A list under a walk, locked.
#[derive(Debug)]
pub struct WalkedList<'a> {
    slots: &'a ListSlots,
    list: &'a ObjectList,
    objects: RankedMutexGuard<'a, Objects>,
    isolated: u64,
}

impl WalkedList<'_> {
    /// Takes the visited object off the list.
    #[doc(alias = "list_lru_isolate")]
    pub fn isolate(&mut self, slot: ListSlot) {
        self.objects.chain.unlink(self.slots, slot);
        self.list.note_len(&self.objects);
        self.isolated += 1;
    }

    /// Releases the lock during `act`. The visitor must then return [`Verdict::Retry`] or
    /// [`Verdict::RemovedRetry`].
    pub fn unlocked<R>(&mut self, act: impl FnOnce() -> R) -> R {
        self.objects.unlocked(act)
    }
}
