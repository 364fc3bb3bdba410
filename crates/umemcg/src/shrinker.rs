//! Caches of your own under the groups' limits.
//!
//! A [`Shrinker`] counts and frees objects of one group. Reclaim calls it in proportion to the
//! pressure on pages, with no lock held.
//! [`Engine::register_shrinker`](crate::Engine::register_shrinker) registers it. Objects are
//! usually kept in a [`ListLru`], which does the bookkeeping. For a cache that can only be resized
//! as a whole there is [`Engine::lease`](crate::Engine::lease).

pub use umemcg_reclaim::shrinker::{
    Count, DEFAULT_BATCH, DEFAULT_SEEKS, Registration, Scan, Scanned, ShrinkTarget, Shrinker, ShrinkerId,
    SlabUsage, Usage,
};
pub use umemcg_reclaim::{
    AccountedCharge, ListHandle, ListLru, ListSlot, ListsFull, Shadow, Verdict, WalkedList,
};
