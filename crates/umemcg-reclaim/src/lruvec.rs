//! The lists of one (group, node): inactive and active, one lock, links kept in the frame records.
//!
//! A page on a list carries [`Flag::ON_LRU`]; which list, [`Flag::ACTIVE`]. Both change only under the lock of the
//! list that the page's owner resolves to. When a group is removed its lists are spliced to the parent's tail in O(1)
//! (parent locked before child) and marked dead; whoever locks a dead list resolves the owner again.

use std::sync::{Arc, Weak};

use umemcg_arena::{Arena, FrameFlags as Flag, FrameId, FrameRecord};
use umemcg_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use umemcg_base::{Rank, RankedMutex, RankedMutexGuard};
use umemcg_group::presence::{self, Presence, Step};
use umemcg_group::{Group, OwnerId, PartSlot};

use crate::kswapd::Background;
use crate::list_slots::ListSlots;
use crate::object_lists::ObjectLists;
use crate::patience::Patience;
use crate::pressure_level::Window;
use crate::shrinker::bits::{BitPlace, Closed, ShrinkerBits};
use crate::walk::WalkPosition;

/// Which list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LruKind {
    /// Pages on trial; reclaim takes from its tail.
    Inactive,
    /// Pages used more than once.
    Active,
}

/// The neighbours of a frame, read under the list lock.
fn links(record: &FrameRecord) -> (FrameId, FrameId) {
    let load = |link: &AtomicU32| FrameId::from_raw(link.load(Ordering::Relaxed));
    (load(&record.lru_prev), load(&record.lru_next))
}

/// A doubly linked list through the frame records. Head is the youngest end.
#[derive(Debug)]
struct List {
    head: FrameId,
    tail: FrameId,
    len: u64,
}

impl List {
    const fn new() -> Self {
        Self { head: FrameId::NONE, tail: FrameId::NONE, len: 0 }
    }

    fn push_head(&mut self, arena: &Arena, frame: FrameId) {
        let record = arena.record(frame);
        record.lru_prev.store(FrameId::NONE.raw(), Ordering::Relaxed);
        record.lru_next.store(self.head.raw(), Ordering::Relaxed);
        if self.head.is_none() {
            self.tail = frame;
        } else {
            arena.record(self.head).lru_prev.store(frame.raw(), Ordering::Relaxed);
        }
        self.head = frame;
        self.len += 1;
    }

    fn push_tail(&mut self, arena: &Arena, frame: FrameId) {
        let record = arena.record(frame);
        record.lru_next.store(FrameId::NONE.raw(), Ordering::Relaxed);
        record.lru_prev.store(self.tail.raw(), Ordering::Relaxed);
        if self.tail.is_none() {
            self.head = frame;
        } else {
            arena.record(self.tail).lru_next.store(frame.raw(), Ordering::Relaxed);
        }
        self.tail = frame;
        self.len += 1;
    }

    fn unlink(&mut self, arena: &Arena, frame: FrameId) {
        let record = arena.record(frame);
        let (prev, next) = links(record);
        if prev.is_none() {
            debug_assert_eq!(self.head, frame, "a frame without a predecessor is the head");
            self.head = next;
        } else {
            arena.record(prev).lru_next.store(next.raw(), Ordering::Relaxed);
        }
        if next.is_none() {
            debug_assert_eq!(self.tail, frame, "a frame without a successor is the tail");
            self.tail = prev;
        } else {
            arena.record(next).lru_prev.store(prev.raw(), Ordering::Relaxed);
        }
        self.len -= 1;
    }

    /// Puts all of `other` behind our tail, in O(1).
    fn splice_tail(&mut self, arena: &Arena, other: &mut List) {
        if other.len == 0 {
            return;
        }
        if self.tail.is_none() {
            self.head = other.head;
        } else {
            arena.record(self.tail).lru_next.store(other.head.raw(), Ordering::Relaxed);
            arena.record(other.head).lru_prev.store(self.tail.raw(), Ordering::Relaxed);
        }
        self.tail = other.tail;
        self.len += other.len;
        *other = List::new();
    }
}

/// What the lock protects.
#[derive(Debug)]
pub struct Lists {
    inactive: List,
    active: List,
    /// Set when the group was removed; the lists are empty for good.
    dead: bool,
}

impl Lists {
    fn list(&mut self, kind: LruKind) -> &mut List {
        match kind {
            LruKind::Inactive => &mut self.inactive,
            LruKind::Active => &mut self.active,
        }
    }

    /// Pages on a list.
    pub fn len(&self, kind: LruKind) -> u64 {
        match kind {
            LruKind::Inactive => self.inactive.len,
            LruKind::Active => self.active.len,
        }
    }

    /// Whether both lists are empty.
    pub fn is_empty(&self) -> bool {
        self.inactive.len + self.active.len == 0
    }

    /// The oldest page.
    pub fn tail(&self, kind: LruKind) -> Option<FrameId> {
        let tail = match kind {
            LruKind::Inactive => self.inactive.tail,
            LruKind::Active => self.active.tail,
        };
        (!tail.is_none()).then_some(tail)
    }

    /// Puts a page that is on no list at the young end of a list, and sets its flags to match.
    pub fn add(&mut self, arena: &Arena, frame: FrameId, kind: LruKind) {
        self.add_with(arena, frame, kind, Flag::NONE);
    }

    /// The same, and sets `more` in the same step.
    pub(crate) fn add_with(&mut self, arena: &Arena, frame: FrameId, kind: LruKind, more: Flag) {
        let record = arena.record(frame);
        debug_assert!(!record.test(Flag::ON_LRU), "a page is on one list at most");
        match kind {
            LruKind::Active => record.set(Flag::ON_LRU | Flag::ACTIVE | more),
            LruKind::Inactive => {
                if record.test(Flag::ACTIVE) {
                    record.clear(Flag::ACTIVE);
                }
                record.set(Flag::ON_LRU | more);
            }
        }
        self.list(kind).push_head(arena, frame);
    }

    /// Moves a page that is on one of the lists to the young end of a list.
    ///
    /// It is marked as listed throughout: a thread that frees a page looks at the mark without the lock, and a page without the
    /// mark would be free, and on a list again a moment later.
    pub fn move_to_head(&mut self, arena: &Arena, frame: FrameId, kind: LruKind) {
        let record = arena.record(frame);
        debug_assert!(record.test(Flag::ON_LRU), "a page that moves is on a list");
        let from = if record.test(Flag::ACTIVE) { LruKind::Active } else { LruKind::Inactive };
        self.list(from).unlink(arena, frame);
        match kind {
            LruKind::Active => record.set(Flag::ACTIVE),
            LruKind::Inactive => record.clear(Flag::ACTIVE),
        }
        self.list(kind).push_head(arena, frame);
    }

    /// Moves a page of the inactive list to its old end: the next page to go. False when it is not there.
    pub fn rotate(&mut self, arena: &Arena, frame: FrameId) -> bool {
        let record = arena.record(frame);
        if !record.test(Flag::ON_LRU) || record.test(Flag::ACTIVE) {
            return false;
        }
        self.inactive.unlink(arena, frame);
        self.inactive.push_tail(arena, frame);
        true
    }

    /// Takes a page off its list, if it is on one. Returns which.
    pub fn remove(&mut self, arena: &Arena, frame: FrameId) -> Option<LruKind> {
        let record = arena.record(frame);
        if !record.test(Flag::ON_LRU) {
            return None;
        }
        let kind = if record.test(Flag::ACTIVE) { LruKind::Active } else { LruKind::Inactive };
        self.list(kind).unlink(arena, frame);
        record.clear(Flag::ON_LRU);
        Some(kind)
    }
}

/// The lists of one group on one node.
#[derive(Debug)]
pub struct Lruvec {
    lists: RankedMutex<Lists>,
    /// Pages scanned since one was last freed. (A)
    fruitless: AtomicU64,
}

/// Times that lists are scanned without success before they count as unreclaimable.
const FRUITLESS_ROUNDS: u64 = 6;

impl Lruvec {
    fn new() -> Self {
        Self {
            lists: RankedMutex::new(
                Rank::Lruvec,
                Lists { inactive: List::new(), active: List::new(), dead: false },
            ),
            fruitless: AtomicU64::new(0),
        }
    }

    /// Whether scanning these `reclaimable` pages again is futile.
    #[doc(alias = "all_unreclaimable")]
    pub(crate) fn is_unreclaimable(&self, reclaimable: u64) -> bool {
        self.fruitless.load(Ordering::Relaxed) >= reclaimable.saturating_mul(FRUITLESS_ROUNDS)
    }

    /// Pages were scanned and none was freed.
    pub(crate) fn note_fruitless(&self, scanned: u64) {
        self.fruitless.fetch_add(scanned, Ordering::Relaxed);
    }

    /// A page was freed: scanning makes sense again. True when it had not made much.
    pub(crate) fn note_freed(&self) -> bool {
        let was_fruitless = self.fruitless.load(Ordering::Relaxed) != 0;
        if was_fruitless {
            self.fruitless.store(0, Ordering::Relaxed);
        }
        was_fruitless
    }

    /// Locks the lists, dead or not.
    pub fn lock(&self) -> RankedMutexGuard<'_, Lists> {
        self.lists.lock()
    }
}

/// What reclaim keeps with every group.
#[derive(Debug)]
pub struct ReclaimPart {
    lruvecs: Box<[Lruvec]>,
    /// By node: which shrinkers may have objects of this group.
    shrinker_bits: Box<[ShrinkerBits]>,
    object_lists: ObjectLists,
    /// Whether there may be pages or objects here, and in which groups below.
    presence: Presence<Weak<Group>>,
    background: Background,
    /// For the level of pressure on this group and those below.
    level_window: Window,
    /// Evictions and activations on behalf of this group; see [`crate::shadow`]. (A)
    age: AtomicU64,
    /// With write-back, when this group is reclaimed from.
    pub(crate) patience: Patience,
    /// Where walks over this group's subtree stand; taken by concurrent reclaimers in turn.
    pub(crate) position: WalkPosition,
}

impl ReclaimPart {
    /// The part of `group`, made on first use.
    pub fn of(group: &Group, nr_nodes: usize) -> &Self {
        group.part(PartSlot::Reclaim, || Self {
            lruvecs: (0..nr_nodes).map(|_| Lruvec::new()).collect(),
            shrinker_bits: (0..nr_nodes).map(|_| ShrinkerBits::new()).collect(),
            object_lists: ObjectLists::new(),
            presence: Presence::default(),
            background: Background::default(),
            level_window: Window::default(),
            age: AtomicU64::new(0),
            patience: Patience::default(),
            position: WalkPosition::new(),
        })
    }

    /// The part of `group`, if the group ever had a page or was walked.
    pub fn if_present(group: &Group) -> Option<&Self> {
        group.part_if_present(PartSlot::Reclaim)
    }

    /// The lists of a node.
    pub fn lruvec(&self, node: usize) -> &Lruvec {
        &self.lruvecs[node]
    }

    /// All nodes' lists.
    pub fn lruvecs(&self) -> &[Lruvec] {
        &self.lruvecs
    }

    /// The group's age, for [`crate::Shadow`].
    pub fn age(&self) -> u64 {
        self.age.load(Ordering::Relaxed)
    }

    /// The shrinker bits of a node.
    pub(crate) fn shrinker_bits(&self, node: usize) -> &ShrinkerBits {
        &self.shrinker_bits[node]
    }

    pub(crate) fn object_lists(&self) -> &ObjectLists {
        &self.object_lists
    }

    /// What background reclaim keeps with the group; made when first needed.
    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    /// What reclaim of this group has looked at lately.
    pub(crate) fn level_window(&self) -> &Window {
        &self.level_window
    }

    pub(crate) fn presence(&self) -> &Presence<Weak<Group>> {
        &self.presence
    }

    /// Where a shrinker's bit is; charges the group for a unit that had to be appended.
    pub(crate) fn bit_place(&self, group: &Group, node: usize, shrinker: u32) -> Result<BitPlace, Closed> {
        let bits = self.shrinker_bits(node);
        // The first unit of a group is within what every group is charged for.
        let is_first = bits.units().next().is_none();
        let mut appended = false;
        let place = bits.find_or_append(shrinker, || appended = true)?;
        if appended && !is_first {
            self.object_lists.charge_unit(group);
        }
        Ok(place)
    }

    /// Something was added to the group: reclaim will come by.
    #[inline]
    pub(crate) fn note_present(&self, group: &Arc<Group>) {
        presence::note_present(chain(group, self.lruvecs.len()));
    }

    /// A walk was here: if it left nothing, walks pass the group by until something is added.
    pub(crate) fn note_absent_if_empty(&self, group: &Arc<Group>) {
        if !self.presence.is_here() || !self.is_empty() {
            return;
        }
        presence::note_absent::<true, _>(chain(group, self.lruvecs.len()), || !self.is_empty());
    }

    /// Whether the group has no page on a list and no shrinker that may have objects.
    pub(crate) fn is_empty(&self) -> bool {
        self.lruvecs.iter().all(|lruvec| lruvec.lock().is_empty())
            && self.shrinker_bits.iter().all(ShrinkerBits::are_clear)
    }
}

/// The presence of a group and of those above it, made where they have none yet.
fn chain(group: &Arc<Group>, nr_nodes: usize) -> impl Iterator<Item = Step<'_, Weak<Group>>> {
    std::iter::successors(Some(group), |at| at.parent()).map(move |at| Step {
        presence: &ReclaimPart::of(at, nr_nodes).presence,
        id: at.id(),
        child: Arc::downgrade(at),
    })
}

/// Makes `group` and all its ancestors older by `pages`.
#[doc(alias = "workingset_age_nonresident")]
pub fn advance_age(group: &Arc<Group>, nr_nodes: usize, pages: u64) {
    let mut next = Some(group);
    while let Some(group) = next {
        ReclaimPart::of(group, nr_nodes).age.fetch_add(pages, Ordering::Relaxed);
        next = group.parent();
    }
}

/// The owner handle that a frame record, a shadow or an index node names.
///
/// # Panics
/// When it names none: whatever is charged has an owner.
#[inline]
pub fn owner_from(raw: u32) -> OwnerId {
    OwnerId::from_raw(raw).expect("what is charged has an owner")
}

/// Runs `body` with the living lists that pages of `owner` on `node` belong to. `owner` must be kept alive by a charge.
pub fn with_lists<R>(
    owner: OwnerId,
    node: usize,
    nr_nodes: usize,
    body: impl FnOnce(&mut Lists, &Arc<Group>) -> R,
) -> R {
    loop {
        let group = owner.resolve();
        let mut lists = ReclaimPart::of(&group, nr_nodes).lruvec(node).lock();
        // A removal splices before it re-points the owner, so a living list here is the right one for as long as it is
        // locked; for a moment there may be none.
        if !lists.dead {
            return body(&mut lists, &group);
        }
        drop(lists);
        umemcg_base::sync::thread::yield_now();
    }
}

/// Moves everything of a dying group to its parent in O(1) per node and list. The owner is re-pointed afterwards.
#[doc(alias = "memcg_reparent_objcgs")]
pub(crate) fn splice_lists(
    (arena, slots): (&Arena, &ListSlots),
    (dying, parent): (&Arc<Group>, &Arc<Group>),
    nr_nodes: usize,
) -> Vec<u32> {
    let child_part = ReclaimPart::of(dying, nr_nodes);
    let parent_part = ReclaimPart::of(parent, nr_nodes);
    for node in 0..nr_nodes {
        // Parent before child. The parent cannot die meanwhile: it waits for the removal of its children.
        let mut to = parent_part.lruvec(node).lock();
        let mut from = child_part.lruvec(node).lists.lock_second();
        to.inactive.splice_tail(arena, &mut from.inactive);
        to.active.splice_tail(arena, &mut from.active);
        from.dead = true;
    }
    ObjectLists::reparent(slots, child_part, (parent, parent_part));
    let mut shrinkers = Vec::new();
    for node in 0..nr_nodes {
        child_part.shrinker_bits(node).close(|id, is_set, owed| {
            let Ok(place) = parent_part.bit_place(parent, node, id) else { return };
            place.unit.add_deferred(place.bit, owed);
            if is_set {
                let _ = place.unit.set(place.bit);
                shrinkers.push(id);
            }
        });
    }
    parent_part.note_present(parent);
    presence::note_removed(chain(dying, nr_nodes));
    shrinkers
}
