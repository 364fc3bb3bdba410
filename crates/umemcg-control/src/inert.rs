//! Stored values of files without effect here, for files that Linux shows on a read.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::numbers::UNLIMITED;

/// Their values in one group. (A) throughout: no value depends on another.
#[derive(Debug)]
pub(crate) struct Inert {
    /// Of memory and swap together.
    pub(crate) memsw_limit: AtomicU64,
    pub(crate) tcp_limit: AtomicU64,
    pub(crate) swap_max: AtomicU64,
    pub(crate) swap_high: AtomicU64,
    pub(crate) swappiness: AtomicU8,
    pub(crate) notify_on_release: AtomicBool,
    pub(crate) clone_children: AtomicBool,
    pub(crate) oom_group: AtomicBool,
}

/// The default of Linux.
const SWAPPINESS: u8 = 60;

impl Inert {
    /// Returns the values of a new child of a group with the values `parent`.
    pub(crate) fn below(parent: Option<&Inert>) -> Self {
        let inherited = |of: fn(&Inert) -> &AtomicBool| {
            AtomicBool::new(parent.is_some_and(|parent| of(parent).load(Relaxed)))
        };
        Self {
            memsw_limit: AtomicU64::new(UNLIMITED),
            tcp_limit: AtomicU64::new(UNLIMITED),
            swap_max: AtomicU64::new(UNLIMITED),
            swap_high: AtomicU64::new(UNLIMITED),
            swappiness: AtomicU8::new(parent.map_or(SWAPPINESS, |parent| parent.swappiness.load(Relaxed))),
            notify_on_release: inherited(|inert| &inert.notify_on_release),
            clone_children: inherited(|inert| &inert.clone_children),
            oom_group: AtomicBool::new(false),
        }
    }

    /// Returns the limit of memory and swap. The limit of memory may not exceed it.
    pub(crate) fn memsw_limit(&self) -> u64 {
        self.memsw_limit.load(Relaxed)
    }
}
