//! Reclaim's state of a group: its lists of pages, its shrinkers' bits, its lists of objects, its
//! marks, and the positions of walks over its subtree. Created with the group's first page.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use umemcg_arena::Arena;
use umemcg_group::subtree_marks::{self, PathNode, SubtreeMarks};
use umemcg_group::{ExtensionSlot, Group, OwnerId};

use crate::arrival_balance::ArrivalBalance;
use crate::kswapd::Background;
use crate::leaving_bytes::LeavingBytes;
use crate::list_slots::ListSlots;
use crate::lruvec::{Lists, Lruvec};
use crate::object_lists::{ListKey, ObjectList, ObjectLists};
use crate::shrinker::bits::{BitPlace, Closed, ShrinkerBits};
use crate::walk_position::WalkPosition;
use crate::writeback_backoff::WritebackBackoff;

/// Reclaim's state of a group.
#[derive(Debug)]
pub struct GroupReclaim {
    lruvec: Lruvec,
    /// Bits of the shrinkers with possible objects of this group.
    shrinker_bits: ShrinkerBits,
    object_lists: ObjectLists,
    /// Marks of the groups in this subtree with possible pages or objects.
    subtree_marks: SubtreeMarks<Weak<Group>>,
    background: Background,
    /// Of this group and its descendants.
    leaving_bytes: LeavingBytes,
    /// Evictions and activations on behalf of this group; see [`crate::shadow`]. (A)
    age: AtomicU64,
    arrival_balance: ArrivalBalance,
    /// Charged over `memory.high` by requests answered at once; the next delayable request pays for
    /// it. (A)
    deferred_bytes: AtomicU64,
    /// Waits for write-back by reclaims of this group.
    pub(crate) backoff: WritebackBackoff,
    /// The positions of the walks over this group's subtree; taken by concurrent reclaimers in
    /// turn.
    pub(crate) position: WalkPosition,
}

impl GroupReclaim {
    /// Returns the part of `group`, made on first use.
    pub fn of(group: &Group) -> &Self {
        group.extension(ExtensionSlot::Reclaim, || Self {
            lruvec: Lruvec::new(),
            shrinker_bits: ShrinkerBits::new(),
            object_lists: ObjectLists::new(),
            subtree_marks: SubtreeMarks::default(),
            background: Background::default(),
            leaving_bytes: LeavingBytes::default(),
            age: AtomicU64::new(0),
            arrival_balance: ArrivalBalance::default(),
            deferred_bytes: AtomicU64::new(0),
            backoff: WritebackBackoff::default(),
            position: WalkPosition::new(),
        })
    }

    /// Returns the part of `group`, if the group ever had a page or was walked.
    pub fn if_present(group: &Group) -> Option<&Self> {
        group.extension_if_present(ExtensionSlot::Reclaim)
    }

    /// Returns the lists of pages.
    pub fn lruvec(&self) -> &Lruvec {
        &self.lruvec
    }

    /// Returns the counts of bytes leaving this group and its descendants, and of bytes freed after
    /// leaving.
    pub(crate) fn leaving_bytes(&self) -> &LeavingBytes {
        &self.leaving_bytes
    }

    /// Returns the group's age, for [`crate::Shadow`].
    pub fn age(&self) -> u64 {
        self.age.load(Ordering::Relaxed)
    }

    /// Returns the balance of objects kept in the order of arrival.
    pub(crate) fn arrival_balance(&self) -> &ArrivalBalance {
        &self.arrival_balance
    }

    pub(crate) fn defer(&self, bytes: u64) {
        self.deferred_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes the bytes deferred since the last call.
    pub(crate) fn take_deferred(&self) -> u64 {
        match self.deferred_bytes.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.deferred_bytes.swap(0, Ordering::Relaxed),
        }
    }

    pub(crate) fn shrinker_bits(&self) -> &ShrinkerBits {
        &self.shrinker_bits
    }

    pub(crate) fn object_lists(&self) -> &ObjectLists {
        &self.object_lists
    }

    /// Returns the group's state of background reclaim, created on first use.
    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    pub(crate) fn subtree_marks(&self) -> &SubtreeMarks<Weak<Group>> {
        &self.subtree_marks
    }

    /// Returns the place of a shrinker's bit; charges the group for an appended unit.
    pub(crate) fn bit_place(&self, group: &Group, shrinker: u32) -> Result<BitPlace, Closed> {
        let bits = &self.shrinker_bits;
        // The charge of every group includes its first unit.
        let is_first = bits.units().next().is_none();
        let mut appended = false;
        let place = bits.find_or_append(shrinker, || appended = true)?;
        if appended && !is_first {
            self.object_lists.charge_unit(group);
        }
        Ok(place)
    }

    /// Returns the list of objects with this key; creates it if there is none.
    pub(crate) fn find_or_make_list(
        &self,
        group: &Group,
        key: ListKey,
        serial: u64,
    ) -> Result<Arc<ObjectList>, Closed> {
        let bit_place = || self.bit_place(group, key.0);
        self.object_lists.find_or_make(group, key, serial, bit_place)
    }

    /// Notes pages or objects added to the group: reclaim will visit it.
    #[inline]
    pub(crate) fn note_present(&self, group: &Arc<Group>) {
        subtree_marks::note_present(chain(group));
    }

    /// Notes that a walk has visited the group. If the group is empty now, walks skip it until
    /// something is added.
    pub(crate) fn note_absent_if_empty(&self, group: &Arc<Group>) {
        if !self.subtree_marks.is_marked() || !self.is_empty() {
            return;
        }
        subtree_marks::note_absent::<true, _>(chain(group), || !self.is_empty());
    }

    /// Returns whether the group has no page on a list and no shrinker with possible objects.
    pub(crate) fn is_empty(&self) -> bool {
        self.lruvec.lock().is_empty() && self.shrinker_bits.are_clear()
    }
}

/// Returns the marks of a group and of its ancestors, creating missing ones.
fn chain(group: &Arc<Group>) -> impl Iterator<Item = PathNode<'_, Weak<Group>>> {
    std::iter::successors(Some(group), |at| at.parent()).map(|at| PathNode {
        subtree_marks: &GroupReclaim::of(at).subtree_marks,
        id: at.id(),
        child: Arc::downgrade(at),
    })
}

/// Returns the bytes leaving a group and its descendants.
pub fn leaving_bytes(group: &Group) -> u64 {
    GroupReclaim::if_present(group).map_or(0, |part| part.leaving_bytes().now())
}

/// Makes `group` and all its ancestors older by `pages`.
#[doc(alias = "workingset_age_nonresident")]
pub fn advance_age(group: &Arc<Group>, pages: u64) {
    let mut next = Some(group);
    while let Some(group) = next {
        GroupReclaim::of(group).age.fetch_add(pages, Ordering::Relaxed);
        next = group.parent();
    }
}

/// Returns the owner handle with this number, as stored in a frame record, a shadow or an index
/// node.
///
/// # Panics
/// When the number names no owner; a charged object always has one.
#[inline]
pub fn owner_from(raw: u32) -> OwnerId {
    OwnerId::from_raw(raw).expect("what is charged has an owner")
}

/// Runs `body` with the living lists of pages of `owner`. `owner` must be kept alive by a charge.
pub fn with_lists<R>(owner: OwnerId, body: impl FnOnce(&mut Lists, &Arc<Group>) -> R) -> R {
    loop {
        let group = owner.resolve();
        let mut lists = GroupReclaim::of(&group).lruvec().lock();
        // A removal splices before it re-points the owner, so a living list here is the right one
        // for as long as it is locked; for a moment there may be none.
        if !lists.dead {
            return body(&mut lists, &group);
        }
        drop(lists);
        umemcg_base::sync::thread::yield_now();
    }
}

/// Moves everything of a dying group to its parent in O(1) per list. The owner is re-pointed
/// afterwards.
#[doc(alias = "memcg_reparent_objcgs")]
pub(crate) fn splice_lists(
    (arena, slots): (&Arena, &ListSlots),
    (dying, parent): (&Arc<Group>, &Arc<Group>),
) {
    let child_part = GroupReclaim::of(dying);
    let parent_part = GroupReclaim::of(parent);
    {
        // Parent before child. The parent cannot die meanwhile: it waits for the removal of its
        // children.
        let mut to = parent_part.lruvec.lock();
        let mut from = child_part.lruvec.lists.lock_second();
        to.inactive.splice_tail(arena, &mut from.inactive);
        to.active.splice_tail(arena, &mut from.active);
        from.dead = true;
    }
    child_part.object_lists.reparent(slots, |key, serial| parent_part.find_or_make_list(parent, key, serial));
    child_part.shrinker_bits.close(|id, is_set, owed| {
        let Ok(place) = parent_part.bit_place(parent, id) else { return };
        place.unit.add_deferred(place.bit, owed);
        if is_set {
            let _ = place.unit.set(place.bit);
        }
    });
    parent_part.note_present(parent);
    subtree_marks::note_removed(chain(dying));
}
