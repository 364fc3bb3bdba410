//! The page of zeroes behind every hole of a file in memory.

use std::sync::Arc;

use umemcg_arena::FrameId;
use umemcg_base::{PAGE_SIZE, PAGE_SIZE_U64};
use umemcg_group::StatItem;
use umemcg_reclaim::{AccountedCharge, ChargeEffort, Reclaimer};

/// The page behind all holes. It is part of no file, so nothing writes to it, and is never freed
/// while the cache lives.
#[derive(Debug)]
pub(crate) struct ZeroPage {
    pub(crate) frame: FrameId,
    _charge: AccountedCharge,
}

impl ZeroPage {
    pub(crate) fn new(reclaimer: &Reclaimer) -> Option<Self> {
        let root = Arc::clone(reclaimer.tree().root());
        let charge = reclaimer.charge(&root, PAGE_SIZE_U64, ChargeEffort::Full).ok()?;
        let charge = AccountedCharge::new(charge, StatItem::SlabUnreclaimable);
        let mut frames = Vec::with_capacity(1);
        reclaimer.arena().alloc(&mut frames, 1);
        let frame = frames.pop()?;
        reclaimer.arena().zero(frame, 0, PAGE_SIZE);
        reclaimer.arena().record(frame).unfreeze_to(1);
        Some(Self { frame, _charge: charge })
    }
}
