//! The mechanisms in use, switched by benchmarks.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use umemcg_group::{Group, OwnerId};

static EVERY_SHRINKER: AtomicBool = AtomicBool::new(false);
static EVERY_GROUP: AtomicBool = AtomicBool::new(false);
static PAGES_ONLY: AtomicBool = AtomicBool::new(false);
static ONE_LIST: AtomicBool = AtomicBool::new(false);
static WITHOUT_CONTROLLER: AtomicBool = AtomicBool::new(false);

/// The treatment of soft limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SoftLimits {
    /// As shipped: two rounds, the first over groups in excess only (the mail's patches 1 to 8).
    TwoRounds,
    /// Two rounds; the first checks every group, and is always made (patches 1 to 3).
    NoSkipping,
    /// Two rounds with subtrees skipped, to the letter of patches 1 to 8: a list gives its share of
    /// the priority, however little; the second round follows only when the first has scanned no
    /// page; reclaim does not wait for dirty pages.
    AsMailed,
    /// Before the round over all groups, the group with the largest excess at priority 0 (before
    /// the mail; `kernel-semantics` §3.1).
    LargestFirst,
}

static SOFT_LIMITS: AtomicU8 = AtomicU8::new(SoftLimits::TwoRounds as u8);

/// Sets the treatment of soft limits from now on.
pub fn honour_soft_limits(how: SoftLimits) {
    SOFT_LIMITS.store(how as u8, Relaxed);
}

pub(crate) fn skips_no_subtree() -> bool {
    SOFT_LIMITS.load(Relaxed) == SoftLimits::NoSkipping as u8
}

pub(super) fn is_as_mailed() -> bool {
    matches!(SOFT_LIMITS.load(Relaxed), how if how == SoftLimits::AsMailed as u8 || how == SoftLimits::NoSkipping as u8)
}

pub(super) fn takes_largest_excess_first() -> bool {
    SOFT_LIMITS.load(Relaxed) == SoftLimits::LargestFirst as u8
}

/// Switches the map off: every shrinker is asked for every group.
pub fn ask_every_shrinker(on: bool) {
    EVERY_SHRINKER.store(on, Relaxed);
    EVERY_GROUP.store(on, Relaxed);
}

/// Walks visit empty groups, too; but only shrinkers whose bit is set are asked.
pub fn visit_every_group(on: bool) {
    EVERY_GROUP.store(on, Relaxed);
}

/// Makes reclaim take pages only, and leave objects alone.
pub fn pages_only(on: bool) {
    PAGES_ONLY.store(on, Relaxed);
}

/// Switches to one list of each kind for all groups: objects are on the root's list, whichever
/// group is charged for them, and reclaim of any group takes the oldest from there. Must be set
/// before the first object.
pub fn one_global_list(on: bool) {
    ONE_LIST.store(on, Relaxed);
}

/// Returns the owner on whose list an object of `owner` is put.
pub(crate) fn list_owner(owner: OwnerId) -> OwnerId {
    if !ONE_LIST.load(Relaxed) {
        return owner;
    }
    let group = owner.resolve();
    group.ancestors().last().map_or(owner, Group::owner)
}

/// Counts dirty pages for no group, only in their file and store. Must be changed while nothing is
/// dirty.
pub fn without_controller(on: bool) {
    WITHOUT_CONTROLLER.store(on, Relaxed);
}

/// Returns whether dirty pages are counted for groups.
pub fn counts_dirty_for_groups() -> bool {
    !WITHOUT_CONTROLLER.load(Relaxed)
}

pub(super) fn asks_every_shrinker() -> bool {
    EVERY_SHRINKER.load(Relaxed)
}

pub(super) fn is_every_group_visited() -> bool {
    EVERY_GROUP.load(Relaxed)
}

pub(super) fn is_pages_only() -> bool {
    PAGES_ONLY.load(Relaxed)
}

thread_local! {
    static OF_LARGEST_EXCESS: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as shrinking the group with the largest excess: lists only, and as many pages
/// of each kind at a time.
pub(super) fn in_largest_excess<R>(act: impl FnOnce() -> R) -> R {
    OF_LARGEST_EXCESS.set(true);
    let result = act();
    OF_LARGEST_EXCESS.set(false);
    result
}

pub(super) fn is_of_largest_excess() -> bool {
    OF_LARGEST_EXCESS.get()
}
