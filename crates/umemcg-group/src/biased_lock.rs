//! A lock that is nearly free for the one thread that owns it, and expensive for all others.
//!
//! The owner takes it a hundred million times a second, others once in a while. The owner says that
//! it is in and looks whether the gate is closed; an intruder closes the gate and looks whether the
//! owner is in:
//!
//! ```text
//! owner                          intruder
//! busy := true                   closed := true
//! light fence                    heavy fence
//! closed?  -> stay out           busy?  -> wait until the owner has left
//! ...                            ...
//! busy := false                  closed := false
//! ```
//!
//! Each side stores and then loads what the other stores, so a full fence must stand between, or
//! both could miss each other. A full fence costs as much as a locked instruction, which is what
//! the owner came here to avoid. So the owner's fence binds only the compiler, and the intruder's
//! makes every running thread of the process execute a full one (`membarrier`; measured: 0.3 µs
//! with no other thread running, 10 µs with one, on a virtual machine). Where the operating system
//! cannot, both are ordinary fences. Models see two ordinary fences.

#[cfg(not(loom))]
use std::sync::atomic::compiler_fence;

use umemcg_base::sync::atomic::{AtomicBool, Ordering, fence};
use umemcg_base::sync::thread;
use umemcg_base::{Rank, Waiting, assert_may_wait};

/// Looks at a busy owner before the processor is given away. Owners are in for some nanoseconds,
/// unless preempted.
const SPINS_MAX: u32 = if cfg!(loom) { 0 } else { 200 };

/// Whether [`heavy_fence`] does the owners' part. Set before the first owner exists.
#[cfg(not(loom))]
static IS_ASYMMETRIC: AtomicBool = AtomicBool::new(false);

/// Prepares the process; must have returned once before a lock gets an owner.
pub(crate) fn prepare() {
    #[cfg(not(loom))]
    {
        use rustix::thread::{MembarrierCommand, membarrier};
        static PREPARED: std::sync::OnceLock<()> = std::sync::OnceLock::new();
        PREPARED.get_or_init(|| {
            let is_offered = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
            IS_ASYMMETRIC.store(is_offered, Ordering::Relaxed);
        });
    }
}

/// Orders an owner's store before its load. Pairs with [`heavy_fence`].
#[inline]
pub(crate) fn light_fence() {
    #[cfg(not(loom))]
    if IS_ASYMMETRIC.load(Ordering::Relaxed) {
        return compiler_fence(Ordering::SeqCst);
    }
    fence(Ordering::SeqCst);
}

/// Orders an intruder's store before its load. Pairs with [`light_fence`].
pub(crate) fn heavy_fence() {
    #[cfg(not(loom))]
    if IS_ASYMMETRIC.load(Ordering::Relaxed) {
        use rustix::thread::{MembarrierCommand, membarrier};
        let all_fence = || membarrier(MembarrierCommand::PrivateExpedited);
        // A forked child has to register again.
        let again = |_| membarrier(MembarrierCommand::RegisterPrivateExpedited).and_then(|()| all_fence());
        return all_fence().or_else(again).expect("membarrier works for a thread that could register");
    }
    fence(Ordering::SeqCst);
}

/// See the module text. Intruders keep each other out by other means.
#[derive(Debug)]
pub struct BiasedLock {
    /// The owner is in. Written by the owner.
    busy: AtomicBool,
    /// An intruder is in or wants to be. Written by intruders.
    closed: AtomicBool,
}

impl BiasedLock {
    /// Creates an open lock with no thread inside.
    pub fn new() -> Self {
        Self { busy: AtomicBool::new(false), closed: AtomicBool::new(false) }
    }

    /// For the owner: goes in, unless the gate is closed. Never waits. `FENCED` is false only in
    /// the model that shows why the fence is there.
    #[inline]
    pub fn enter<const FENCED: bool>(&self) -> Option<Inside<'_>> {
        debug_assert!(!self.busy.load(Ordering::Relaxed), "the owner came in twice");
        self.busy.store(true, Ordering::Relaxed);
        let inside = Inside { lock: self, _waited_for: Waiting::on(Rank::OwnStock) };
        if FENCED {
            light_fence(); // Pairs with the heavy fence that follows `close`.
        }
        // Acquire: pairs with `open`.
        (!self.closed.load(Ordering::Acquire)).then_some(inside)
    }

    /// For an intruder: closes the gate. A [`heavy_fence`] must follow; one serves any number of
    /// locks.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// For an intruder, after the fence: waits until the owner is out. Then what the lock guards is
    /// the intruder's.
    pub fn wait_until_left(&self) {
        assert_may_wait(Rank::OwnStock, "a wait for a stock");
        let mut spins = 0;
        // Acquire: pairs with the release in `Inside::drop`. Ends when the owner runs: it never
        // blocks inside.
        while self.busy.load(Ordering::Acquire) {
            if spins < SPINS_MAX {
                spins += 1;
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// For an intruder: opens the gate again.
    pub fn open(&self) {
        // Release: pairs with the acquire in `enter`.
        self.closed.store(false, Ordering::Release);
    }
}

impl Default for BiasedLock {
    fn default() -> Self {
        Self::new()
    }
}

/// The owner is in.
#[derive(Debug)]
#[must_use = "dropping it is leaving"]
pub struct Inside<'a> {
    lock: &'a BiasedLock,
    _waited_for: Waiting,
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `wait_until_left`.
        self.lock.busy.store(false, Ordering::Release);
    }
}
