//! Parts of the engine for the mount and the control files, not for embedders. Nothing here is
//! stable.

pub use umemcg_cache::node_pool::NODE_BYTES as INDEX_NODE_BYTES;
pub use umemcg_cache::{PageCache, WritePause, dirty};
pub use umemcg_group::apply_pending;
pub use umemcg_group::hit_counters::{collect_hits, count_hits};
pub use umemcg_group::testing;
pub use umemcg_group::{
    CLAIMS_EXACT, CONTENT_BYTES, EffectiveProtection, ExtensionSlot, GROUP_STATE_BYTES, GroupPath, GroupTree,
    NAME_BYTES, ShareByPath, TurnQueue,
};
pub use umemcg_reclaim::stall::pressure;
pub use umemcg_reclaim::{
    AccountedCharge, ChargeMeter, CurrentRequest, HoldsUp, Kswapd, LIST_SLOT_BYTES, Leaving, ListLru,
    ListSlot, ListsFull, Pressure, PressureLine, Progress, Reason, Reclaimer, Shadow, Stalled, Verdict,
    WalkedList, Working, arrival_order, leaving_bytes,
};

pub use crate::engine::DIRTY_WAIT_MAX;
