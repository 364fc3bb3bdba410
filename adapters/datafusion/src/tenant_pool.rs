//! [`TenantPool`]: DataFusion's memory pool of one query, a child group of its tenant.
//!
//! Each consumer has an [`Account`] in the query's group. A spillable consumer is refused beyond
//! its fair share, and any consumer may be refused while one without memory waits
//! ([`Shares`](crate::shares)). Otherwise the limits of the groups and the engine's guarantees to
//! other groups decide. Before an account refuses, it empties the tenant's caches down to their
//! guarantee. When the last reservation and the last handle of the pool are gone, the query's group
//! is removed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;

use datafusion_common::DataFusionError;
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use umemcg::{Account, CreateError, Group, Refusal};

use crate::budget::Budget;
use crate::shares::{BeyondShare, Growth};

/// Tries of a growth while caches owe it room. Other threads use the caches meanwhile, so room
/// freed by one try may be gone at the next.
const TRIES_MAX: u32 = 64;

/// The memory of one query of a tenant; created by
/// [`Tenant::start_query`](crate::Tenant::start_query).
///
/// Give it to one [`RuntimeEnv`](datafusion_execution::runtime_env::RuntimeEnv) and run one query,
/// or the queries of one session, with that.
///
/// `try_grow` never blocks for other queries. It may reclaim objects of the tenant's caches, about
/// a microsecond for each. DataFusion calls `grow` to record memory already taken; `grow` exceeds
/// limits if it must.
pub struct TenantPool {
    budget: Arc<Budget>,
    group: Arc<Group>,
    /// By consumer id. Held for lookups only: never while an account grows or is dropped.
    consumers: RwLock<HashMap<usize, Arc<Consumer>>>,
    /// Zero if no query is running, as in an idle session.
    nr_consumers: AtomicUsize,
    reserved_bytes: AtomicU64,
    /// Refused requests.
    nr_refused: AtomicU64,
}

struct Consumer {
    account: Account,
    can_spill: bool,
    /// Whether it is counted as holding nothing; for an unspillable consumer, as never having held
    /// memory.
    is_empty: AtomicBool,
}

impl TenantPool {
    pub(crate) fn new(budget: &Arc<Budget>, name: OsString) -> Result<Arc<Self>, CreateError> {
        let group = budget.engine.create_group(&budget.group, &name)?;
        Ok(Arc::new(Self {
            budget: Arc::clone(budget),
            group,
            consumers: RwLock::default(),
            nr_consumers: AtomicUsize::new(0),
            reserved_bytes: AtomicU64::new(0),
            nr_refused: AtomicU64::new(0),
        }))
    }

    /// Returns the query's group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the number of refused requests. Most of them made a consumer spill.
    pub fn nr_refused(&self) -> u64 {
        self.nr_refused.load(Relaxed)
    }

    /// Returns the consumer of a reservation.
    ///
    /// # Panics
    /// When the consumer is not registered; DataFusion rules this out: a reservation holds its
    /// registration.
    fn consumer(&self, reservation: &MemoryReservation) -> Arc<Consumer> {
        let consumers = self.consumers.read().unwrap_or_else(PoisonError::into_inner);
        let consumer = consumers.get(&reservation.consumer().id());
        Arc::clone(consumer.expect("a reservation's consumer is registered"))
    }

    fn note_grown(&self, consumer: &Consumer, bytes: u64) {
        self.reserved_bytes.fetch_add(bytes, Relaxed);
        self.budget.reserved_bytes.fetch_add(bytes, Relaxed);
        if !consumer.can_spill {
            self.budget.shares.unspillable_grew(bytes);
        }
        if bytes > 0 {
            self.note_not_empty(consumer);
        }
    }

    fn note_not_empty(&self, consumer: &Consumer) {
        if consumer.is_empty.load(Relaxed) && consumer.is_empty.swap(false, Relaxed) {
            match consumer.can_spill {
                true => self.budget.shares.no_more_empty(),
                false => self.budget.shares.no_more_expecting(),
            }
        }
    }

    fn check_shares(&self, consumer: &Consumer, bytes: u64) -> Result<(), BeyondShare> {
        let Consumer { can_spill, account, .. } = consumer;
        let held_bytes = account.bytes();
        let all_held_bytes = self.budget.reserved_bytes.load(Relaxed);
        let growth = Growth { can_spill: *can_spill, held_bytes, all_held_bytes, bytes };
        self.budget.shares.check(self.budget.room_bytes(*can_spill && held_bytes > 0), growth)
    }

    /// Grows an account. Retries while a cache owes it the room; guarantees to other groups are not
    /// owed.
    fn grow_account(&self, account: &Account, bytes: u64) -> Result<(), Refusal> {
        for _ in 1..TRIES_MAX {
            match account.try_grow(bytes) {
                Err(Refusal::NotNow { .. }) if self.budget.caches_owe(bytes) => thread::yield_now(),
                result => return result,
            }
        }
        account.try_grow(bytes)
    }

    fn refused(
        &self,
        reservation: &MemoryReservation,
        bytes: usize,
        why: &dyn fmt::Display,
    ) -> DataFusionError {
        self.nr_refused.fetch_add(1, Relaxed);
        DataFusionError::ResourcesExhausted(format!(
            "{} of {} cannot have {} more than its {}: {why}",
            reservation.consumer().name(),
            self.group.path().display(),
            human_readable_size(bytes),
            human_readable_size(reservation.size()),
        ))
    }
}

impl fmt::Display for BeyondShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |bytes| human_readable_size(usize::try_from(bytes).unwrap_or(usize::MAX));
        match *self {
            Self::Fair { share_bytes } => {
                let share = told(share_bytes);
                write!(f, "its fair share among the tenant's consumers that can spill is {share}")
            }
            Self::Entry { entry_bytes } => {
                write!(f, "{} are left to consumers that hold nothing yet", told(entry_bytes))
            }
        }
    }
}

impl MemoryPool for TenantPool {
    fn name(&self) -> &str {
        "tenant"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        if self.nr_consumers.fetch_add(1, Relaxed) == 0 {
            self.budget.shares.query_started();
        }
        let can_spill = consumer.can_spill();
        if can_spill {
            self.budget.shares.spillable_came();
            self.budget.shares.empty();
        } else {
            self.budget.shares.expecting();
        }
        let account = self.budget.engine.account(&self.group);
        let added = Arc::new(Consumer { account, can_spill, is_empty: AtomicBool::new(true) });
        self.consumers.write().unwrap_or_else(PoisonError::into_inner).insert(consumer.id(), added);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        let removed = self.consumers.write().unwrap_or_else(PoisonError::into_inner).remove(&consumer.id());
        let Some(removed) = removed else { return };
        self.note_not_empty(&removed);
        if removed.can_spill {
            self.budget.shares.spillable_left();
        }
        if self.nr_consumers.fetch_sub(1, Relaxed) == 1 {
            self.budget.shares.query_ended();
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        let consumer = self.consumer(reservation);
        consumer.account.grow(additional as u64);
        self.note_grown(&consumer, additional as u64);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        let consumer = self.consumer(reservation);
        consumer.account.shrink(shrink as u64);
        self.reserved_bytes.fetch_sub(shrink as u64, Relaxed);
        self.budget.reserved_bytes.fetch_sub(shrink as u64, Relaxed);
        if !consumer.can_spill {
            self.budget.shares.unspillable_shrank(shrink as u64);
        } else if consumer.account.bytes() == 0 && !consumer.is_empty.swap(true, Relaxed) {
            self.budget.shares.empty();
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<(), DataFusionError> {
        let consumer = self.consumer(reservation);
        let bytes = additional as u64;
        let checked = self.check_shares(&consumer, bytes);
        checked.map_err(|beyond| self.refused(reservation, additional, &beyond))?;
        let grown = self.grow_account(&consumer.account, bytes);
        grown.map_err(|refusal| self.refused(reservation, additional, &refusal))?;
        self.note_grown(&consumer, bytes);
        Ok(())
    }

    fn reserved(&self) -> usize {
        usize::try_from(self.reserved_bytes.load(Relaxed)).unwrap_or(usize::MAX)
    }

    fn memory_limit(&self) -> MemoryLimit {
        usize::try_from(self.budget.limit_bytes()).map_or(MemoryLimit::Infinite, MemoryLimit::Finite)
    }
}

impl Drop for TenantPool {
    fn drop(&mut self) {
        // Fails only if the embedder has created groups below it or removed it; the group is theirs
        // then.
        let _ = self.budget.engine.remove_group(&self.group);
    }
}

impl fmt::Display for TenantPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = usize::try_from(self.budget.limit_bytes()).unwrap_or(usize::MAX);
        write!(
            f,
            "tenant(group: {}, reserved: {}, limit: {})",
            self.group.path().display(),
            human_readable_size(self.reserved()),
            human_readable_size(limit)
        )
    }
}

impl fmt::Debug for TenantPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantPool")
            .field("group", &self.group.path())
            .field("reserved_bytes", &self.reserved())
            .finish_non_exhaustive()
    }
}
