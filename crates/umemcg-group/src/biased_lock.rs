//! A biased lock: nearly free for its one owning thread, and expensive for all others.
//!
//! The owner enters it up to a hundred million times a second, other threads occasionally. The
//! owner announces its presence inside and reads whether the gate is closed. An intruder (any other
//! thread) closes the gate and reads whether the owner is inside:
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
//! Each side stores a flag and then loads the other's, so there must be a full fence in between, or
//! each could miss the other. A full fence costs as much as a locked instruction, and avoiding that
//! cost is the purpose of this lock. So the owner's fence binds only the compiler, and the
//! intruder's makes every running thread of the process execute a full one (`membarrier`; measured:
//! 0.3 µs with no other thread running, 10 µs with one, on a virtual machine). Where the operating
//! system does not offer `membarrier`, both are ordinary fences. Models see two ordinary fences.

#[cfg(all(target_os = "linux", not(loom)))]
use std::sync::atomic::compiler_fence;

use umemcg_base::sync::atomic::{AtomicBool, Ordering, fence};
use umemcg_base::sync::thread;
use umemcg_base::{Rank, Waiting, assert_may_wait};

/// Most checks of a busy owner by an intruder before it yields the processor. Owners stay inside
/// for a few nanoseconds, unless they are preempted.
const SPINS_MAX: u32 = if cfg!(loom) { 0 } else { 200 };

/// True if [`heavy_fence`] includes the owners' fence. Set before the first owner exists.
#[cfg(all(target_os = "linux", not(loom)))]
static IS_ASYMMETRIC: AtomicBool = AtomicBool::new(false);

/// Prepares the process; must have returned once before a lock gets an owner.
pub(crate) fn prepare() {
    #[cfg(all(target_os = "linux", not(loom)))]
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
    #[cfg(all(target_os = "linux", not(loom)))]
    if IS_ASYMMETRIC.load(Ordering::Relaxed) {
        return compiler_fence(Ordering::SeqCst);
    }
    fence(Ordering::SeqCst);
}

/// Orders an intruder's store before its load. Pairs with [`light_fence`].
pub(crate) fn heavy_fence() {
    #[cfg(all(target_os = "linux", not(loom)))]
    if IS_ASYMMETRIC.load(Ordering::Relaxed) {
        use rustix::thread::{MembarrierCommand, membarrier};
        let all_fence = || membarrier(MembarrierCommand::PrivateExpedited);
        // A forked child has to register again.
        let again = |_| membarrier(MembarrierCommand::RegisterPrivateExpedited).and_then(|()| all_fence());
        return all_fence().or_else(again).expect("membarrier works for a thread that could register");
    }
    fence(Ordering::SeqCst);
}

/// A lock biased towards its owner; see the module. Intruders exclude each other by other means.
#[derive(Debug)]
pub struct BiasedLock {
    /// The owner is inside. Written by the owner.
    busy: AtomicBool,
    /// An intruder is inside or waiting to enter. Written by intruders.
    closed: AtomicBool,
}

impl BiasedLock {
    /// Creates an open lock with no thread inside.
    pub fn new() -> Self {
        Self { busy: AtomicBool::new(false), closed: AtomicBool::new(false) }
    }

    /// Enters as the owner, unless the gate is closed. Never waits. `FENCED` is false only in the
    /// model showing why the fence is needed.
    #[inline]
    pub fn enter<const FENCED: bool>(&self) -> Option<OwnerGuard<'_>> {
        debug_assert!(!self.busy.load(Ordering::Relaxed), "the owner came in twice");
        self.busy.store(true, Ordering::Relaxed);
        let inside = OwnerGuard { lock: self, _waited_for: Waiting::on(Rank::OwnStock) };
        if FENCED {
            light_fence(); // Pairs with the heavy fence that follows `close`.
        }
        // Acquire: pairs with `open`.
        (!self.closed.load(Ordering::Acquire)).then_some(inside)
    }

    /// Closes the gate, as an intruder. A [`heavy_fence`] must follow; one fence serves any number
    /// of locks.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Waits until the owner has left, as an intruder and after the fence. Then the intruder has
    /// exclusive access.
    pub fn wait_until_left(&self) {
        assert_may_wait(Rank::OwnStock, "a wait for a stock");
        let mut spins = 0;
        // Acquire: pairs with the release in `OwnerGuard::drop`. Ends when the owner runs: it never
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

    /// Opens the gate again, as an intruder.
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

/// Proof of the owner's presence inside; leaves when dropped.
#[derive(Debug)]
#[must_use = "dropping it is leaving"]
pub struct OwnerGuard<'a> {
    lock: &'a BiasedLock,
    _waited_for: Waiting,
}

impl Drop for OwnerGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `wait_until_left`.
        self.lock.busy.store(false, Ordering::Release);
    }
}
