//! Growth of a [`Holding`]: charge, or reclaim from the refusing group and try again, without ever
//! waiting.
//!
//! It differs from a [charge](super::charge) in the meaning of a refusal. A refused holder does
//! with less (a query spills), so refusals are ordinary. Each counts one `max` event and never an
//! `oom`. If nothing can be reclaimed, the refusal comes without a reclaim.

use std::sync::Arc;

use umemcg_base::{PAGE_SIZE_U64, assert_no_locks_held};
use umemcg_group::{EventKind, Group, Holding, Refused};

use super::Reclaimer;
use crate::group_reclaim::GroupReclaim;
use crate::stall::StalledHere;

/// Most reclaims of one growth; each must have freed something for the next to follow.
const ROUNDS_MAX: u32 = 16;

impl Reclaimer {
    /// Grows a holding by `bytes`, after a group has refused to: reclaims the missing bytes from
    /// *that* group, and tries again. Never waits: dirty pages stay. No lock may be held.
    ///
    /// # Errors
    /// [`Refused`] names the group refusing the last attempt; nothing is changed then. Counts one
    /// `max` event there, unless `bytes` is more than its limit, or `is_counted` is set: the caller
    /// was refused before and tries again.
    pub fn grow_after_refusal(
        &self,
        held: &Holding,
        bytes: u64,
        refused: Refused,
        is_counted: bool,
    ) -> Result<(), Refused> {
        assert_no_locks_held("a growth that may reclaim");
        let mut refused = refused;
        let mut is_counted = is_counted;
        let mut stalled = None;
        for _ in 0..ROUNDS_MAX {
            let full = Arc::clone(&refused.group);
            if bytes > full.max_bytes() {
                return Err(refused);
            }
            if !std::mem::replace(&mut is_counted, true) {
                full.event(EventKind::Max);
            }
            if !self.may_reclaim(&full) {
                return Err(refused);
            }
            stalled.get_or_insert_with(|| StalledHere::begin(held.group()));
            let missing = full.usage_bytes().saturating_add(bytes).saturating_sub(full.max_bytes());
            let reclaimed = self.reclaim_promptly(&full, missing.div_ceil(PAGE_SIZE_U64)).pages();
            refused = match held.try_grow(bytes) {
                Ok(()) => return Ok(()),
                Err(again) => again,
            };
            if reclaimed == 0 && Arc::ptr_eq(&full, &refused.group) {
                break;
            }
        }
        Err(refused)
    }

    /// Returns whether a group or a descendant may have reclaimable pages or objects. Costs two
    /// loads; `true` may be wrong, `false` is right.
    #[inline]
    pub fn may_reclaim(&self, group: &Group) -> bool {
        GroupReclaim::if_present(group).is_some_and(|part| part.subtree_marks().is_any_marked())
    }
}
