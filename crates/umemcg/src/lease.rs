//! [`Lease`]: a third-party cache under a group's limit.
//!
//! The engine cannot see inside such a cache. It can only read the bytes in use, and set the
//! *capacity*. So the capacity is charged, and a cache within its capacity never holds more than
//! the bytes charged to its group:
//!
//! ```text
//!   0        used       capacity = charged                bytes_max
//!   ├──────────┼──────────────┼──────────────────────────────┤
//!              └── headroom ──┘ an eighth of what is used, 256 KiB at least
//! ```
//!
//! - **Growth.** Ten times a second, and by [`Lease::adjust`], the charge follows the bytes in use,
//!   up or down. To grow, reclaim takes other memory of the group.
//! - **Pressure.** Reclaim calls the lease like any [`Shrinker`]; the capacity falls by the
//!   requested bytes, and the bytes given up by the cache are uncharged.
//!
//! Callbacks run with no lock held, one at a time for each lease, in a worker of the group or in a
//! reclaiming thread. They may panic: then the charge stays unchanged.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use umemcg_base::clock::Worker;
use umemcg_base::{LeafMutex, PAGE_SIZE_U64, WakeSignal, contained};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::shrinker::{Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg_reclaim::{AccountedCharge, ChargeEffort, Reclaimer};

use crate::group_workers::GroupWorkers;

/// The headroom between usage and capacity is this part of the usage,
const HEADROOM_SHARE: u64 = 8;
/// … and at least this many bytes.
const HEADROOM_MIN: u64 = 256 << 10;
/// Leases moved from the front to the end at each adjustment.
const NR_ROTATED: usize = 8;
/// The time between two adjustments.
const INTERVAL: Duration = Duration::from_millis(100);
/// The time between two checks without leases.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Attempts to get the turn of a lease; the thread yields after each.
const TURN_TRIES_MAX: u32 = 10_000;

thread_local! {
    /// The lease this thread is reclaiming for.
    static GROWING: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A cache with readable usage and settable capacity.
pub trait Resizable: Send + Sync {
    /// Returns the bytes in use by the cache.
    fn used_bytes(&self) -> u64;

    /// Sets the capacity in bytes, and frees the excess. May be called by a reclaiming thread, so
    /// it must not charge to a group, nor wait for a thread that charges.
    fn set_capacity(&self, bytes: u64);
}

/// Keeps a [`Resizable`] cache under a group's limit; see [`Engine::lease`](crate::Engine::lease).
/// When it is dropped, the capacity becomes 0 and nothing stays charged: at once, or when a call of
/// the cache by a worker returns.
#[must_use = "a dropped lease ends immediately"]
#[derive(Debug)]
pub struct Lease {
    leased: Arc<Leased>,
    /// `None` only while being dropped.
    registration: Option<Registration>,
    leases: Arc<Leases>,
}

/// The state of a lease, shared by reclaim and the ticker.
struct Leased {
    name: String,
    group: Arc<Group>,
    cache: Arc<dyn Resizable>,
    bytes_max: u64,
    reclaimer: Arc<Reclaimer>,
    shrinker_id: u32,
    charged: LeafMutex<Charged>,
    /// Handed to a worker, and the worker has not begun. (A)
    is_queued: AtomicBool,
}

#[derive(Debug, Default)]
struct Charged {
    /// One charge for each owner: more than one only if the group was removed meanwhile.
    held: Vec<AccountedCharge>,
    /// A thread is calling the cache; only that thread changes `held`.
    is_busy: bool,
    /// The lease was dropped.
    is_ended: bool,
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Charged {
    fn bytes(&self) -> u64 {
        self.held.iter().map(AccountedCharge::bytes).sum()
    }

    fn take_in(&mut self, charge: AccountedCharge) {
        let apart = match self.held.last_mut() {
            Some(last) => last.absorb(charge).err(),
            None => Some(charge),
        };
        self.held.extend(apart);
    }

    /// Takes out `bytes`, the youngest charge first. The caller drops them after unlocking.
    fn take_out(&mut self, bytes: u64) -> Vec<AccountedCharge> {
        let (mut taken, mut left) = (Vec::new(), bytes);
        while let Some(last) = self.held.last_mut().filter(|_| left > 0) {
            if last.bytes() > left {
                taken.push(last.split(left));
                break;
            }
            left -= last.bytes();
            taken.extend(self.held.pop());
        }
        taken
    }
}

/// The right to call the cache; given back when dropped.
struct Turn<'a>(&'a Leased);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut charged = self.0.charged.lock();
        charged.is_busy = false;
        if charged.is_ended {
            drop(charged);
            self.0.end();
        }
    }
}

impl Leased {
    /// Takes the turn to call the cache, after the call of another thread with the turn. `None` if
    /// the wait takes too long, or the lease has ended.
    fn turn(&self) -> Option<Turn<'_>> {
        for _ in 0..TURN_TRIES_MAX {
            let mut charged = self.charged.lock();
            if charged.is_ended {
                return None;
            }
            if !std::mem::replace(&mut charged.is_busy, true) {
                return Some(Turn(self));
            }
            drop(charged);
            umemcg_base::sync::thread::yield_now();
        }
        None
    }

    fn used_bytes(&self) -> Option<u64> {
        let used = contained(|| self.cache.used_bytes());
        used.inspect_err(|panic| tracing::error!(%panic, cache = self.name, "a leased cache panicked")).ok()
    }

    /// Returns `false` when the cache panics: it may have kept its old capacity.
    fn set_capacity(&self, bytes: u64) -> bool {
        let set = contained(|| self.cache.set_capacity(bytes));
        set.inspect_err(|panic| tracing::error!(%panic, cache = self.name, "a leased cache panicked")).is_ok()
    }

    fn charged_bytes(&self) -> u64 {
        self.charged.lock().bytes()
    }

    /// Adjusts the charge, and with it the capacity, to the bytes in use. May reclaim; no lock may
    /// be held.
    fn adjust(&self) {
        let Some(turn) = self.turn() else { return };
        let (Some(used), capacity) = (self.used_bytes(), self.charged_bytes()) else { return };
        let headroom = (used / HEADROOM_SHARE).max(HEADROOM_MIN);
        let wanted = used.saturating_add(headroom).min(self.bytes_max.max(used));
        if wanted < capacity.saturating_sub(headroom) {
            self.shrink_to(wanted);
            return;
        }
        if used > capacity {
            // The cache exceeds its capacity. Its usage is charged nevertheless.
            self.take_in(self.group.charge_forced(used - capacity));
        }
        let missing = wanted.saturating_sub(self.charged_bytes());
        // Without the turn: other reclaiming threads must not wait for this one.
        drop(turn);
        let charge = match missing {
            0 => None,
            _ => {
                // Reclaiming from this cache itself would be no growth.
                GROWING.set(Some(self.shrinker_id));
                let charge = self.reclaimer.charge(&self.group, missing, ChargeEffort::Opportunistic);
                GROWING.set(None);
                charge.ok()
            }
        };
        let Some(_turn) = self.turn() else { return };
        charge.into_iter().for_each(|charge| self.take_in(charge));
        self.set_capacity(self.charged_bytes().min(self.bytes_max));
        self.reclaimer.note_objects(&self.living(), self.shrinker_id);
    }

    fn take_in(&self, charge: umemcg_group::Charge) {
        let charge = AccountedCharge::new(charge, StatItem::SlabReclaimable);
        self.charged.lock().take_in(charge);
    }

    /// Lowers the capacity, and uncharges the bytes given up by the cache. Returns these bytes. The
    /// caller has the turn.
    fn shrink_to(&self, capacity: u64) -> u64 {
        if !self.set_capacity(capacity) {
            return 0;
        }
        let Some(used) = self.used_bytes() else { return 0 };
        let mut charged = self.charged.lock();
        let freed = charged.bytes().saturating_sub(capacity.max(used));
        // The rest stays in `held`: a count of nothing would end the lease's part in reclaim.
        let taken = charged.take_out(freed);
        drop(charged);
        drop(taken);
        freed
    }

    /// Ends the lease: now, or after the running call of the cache.
    fn end(&self) {
        let mut charged = self.charged.lock();
        charged.is_ended = true;
        if charged.is_busy {
            return;
        }
        let held = std::mem::take(&mut charged.held);
        drop(charged);
        self.set_capacity(0);
        drop(held);
    }

    /// Returns the charged group: the group of the lease, or its nearest remaining ancestor.
    fn living(&self) -> Arc<Group> {
        self.group.owner().resolve()
    }

    fn is_asked(&self, target: &ShrinkTarget<'_>) -> bool {
        Arc::ptr_eq(target.group, &self.living())
    }
}

impl Shrinker for Leased {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        let pages = self.charged_bytes() / PAGE_SIZE_U64;
        if pages == 0 {
            return Count::Empty;
        }
        let payer = self.living();
        if Arc::ptr_eq(target.group, &payer) {
            return Count::Objects(pages);
        }
        // Charges of a group being removed reach its parent a moment after the shrinkers' bits.
        let is_next = payer.is_dead() && payer.parent().is_some_and(|next| Arc::ptr_eq(target.group, next));
        if is_next { Count::NothingNow } else { Count::Empty }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        if GROWING.get() == Some(self.shrinker_id) || !self.is_asked(target) {
            return Scan::Stop;
        }
        let Some(_turn) = self.turn() else { return Scan::Stop };
        let wanted = target.wanted_bytes.min(nr.saturating_mul(PAGE_SIZE_U64));
        let freed_bytes = self.shrink_to(self.charged_bytes().saturating_sub(wanted));
        Scan::Done(Scanned { scanned: nr, freed_bytes, ..Scanned::default() })
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        if !self.is_asked(target) {
            return Usage::default();
        }
        let bytes = self.charged_bytes();
        Usage { objects: bytes / PAGE_SIZE_U64, reclaimable: bytes / PAGE_SIZE_U64, bytes }
    }
}

impl Lease {
    pub(crate) fn new(
        leases: &Arc<Leases>,
        reclaimer: &Arc<Reclaimer>,
        (group, name): (&Arc<Group>, &str),
        cache: Arc<dyn Resizable>,
        bytes_max: u64,
    ) -> Self {
        let id = reclaimer.reserve_shrinker();
        let leased = Arc::new(Leased {
            name: name.split_whitespace().collect::<Vec<_>>().join("-"),
            group: Arc::clone(group),
            cache,
            bytes_max,
            reclaimer: Arc::clone(reclaimer),
            shrinker_id: id.get(),
            charged: LeafMutex::default(),
            is_queued: AtomicBool::new(false),
        });
        let registration = reclaimer.register_shrinker(id, Arc::<Leased>::clone(&leased));
        leased.set_capacity(0);
        leased.adjust();
        leases.add(&leased);
        Self { leased, registration: Some(registration), leases: Arc::clone(leases) }
    }

    /// Returns the group of the lease.
    pub fn group(&self) -> &Arc<Group> {
        &self.leased.group
    }

    /// Returns the charged bytes: the capacity of the cache, or its usage if higher.
    pub fn charged_bytes(&self) -> u64 {
        self.leased.charged_bytes()
    }

    /// Adjusts the charge and the capacity to the cache's usage now, in this thread. May reclaim;
    /// no lock of this library may be held.
    pub fn adjust(&self) {
        self.leased.adjust();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.remove(&self.leased);
        // Waits for a running call by reclaim.
        drop(self.registration.take());
        self.leased.end();
    }
}

/// All leases of an engine, and the thread queueing their adjustments.
#[derive(Debug)]
pub(crate) struct Leases {
    shared: Arc<Ticking>,
    workers: Arc<GroupWorkers>,
    /// The thread is started with the first lease. (A)
    is_started: AtomicBool,
    ticker: LeafMutex<Option<Worker>>,
}

#[derive(Debug, Default)]
struct Ticking {
    leases: LeafMutex<Vec<Arc<Leased>>>,
    is_over: AtomicBool,
    wake_signal: WakeSignal,
}

impl Leases {
    pub(crate) fn new(workers: &Arc<GroupWorkers>) -> Arc<Self> {
        let (shared, is_started, ticker) = Default::default();
        Arc::new(Self { shared, workers: Arc::clone(workers), is_started, ticker })
    }

    fn add(&self, leased: &Arc<Leased>) {
        self.shared.leases.lock().push(Arc::clone(leased));
        if self.is_started.swap(true, Ordering::Relaxed) {
            return self.shared.wake_signal.raise();
        }
        let (shared, workers) = (Arc::clone(&self.shared), Arc::clone(&self.workers));
        match Worker::spawn("umemcg-leases", move || shared.tick(&workers)) {
            Ok(ticker) => *self.ticker.lock() = Some(ticker),
            Err(error) => tracing::error!(%error, "leases are adjusted by their owners only"),
        }
    }

    fn remove(&self, leased: &Arc<Leased>) {
        let mut leases = self.shared.leases.lock();
        let at = leases.iter().position(|there| Arc::ptr_eq(there, leased));
        let gone = at.map(|at| leases.swap_remove(at));
        drop(leases);
        drop(gone);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        // Release: pairs with the Acquire load in `tick`.
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.wake_signal.raise();
        let ticker = self.ticker.lock().take();
        drop(ticker);
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Marks a lease as queued, until a worker begins or refuses.
struct Queued(Arc<Leased>);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.is_queued.store(false, Ordering::Relaxed);
    }
}

impl Ticking {
    fn tick(&self, workers: &GroupWorkers) {
        // Acquire: pairs with the Release store in `stop`.
        while !self.is_over.load(Ordering::Acquire) {
            let leases = {
                let mut all = self.leases.lock();
                // So leases refused for want of a worker move forward.
                let nr = NR_ROTATED.min(all.len());
                all.rotate_left(nr);
                all.clone()
            };
            let interval = if leases.is_empty() { IDLE_INTERVAL } else { INTERVAL };
            for leased in leases {
                if !leased.is_queued.swap(true, Ordering::Relaxed) {
                    let group = Arc::clone(&leased.group);
                    let queued = Queued(leased);
                    workers.run(&group, move || {
                        let leased = Arc::clone(&queued.0);
                        drop(queued);
                        leased.adjust();
                    });
                }
            }
            self.wake_signal.wait(interval);
        }
    }
}
