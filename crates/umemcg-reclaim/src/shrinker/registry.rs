//! The registered shrinkers, by id. A walk reads the table without the lock taken to register, so
//! it never skips a shrinker because another one registers.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use umemcg_base::{Condvar, LeafMutex, Table, contained};
use umemcg_group::Group;

use super::contract::{Count, Scan, ShrinkTarget, Shrinker, Usage};
use super::pressure::{DEFAULT_BATCH, DEFAULT_SEEKS};

thread_local! {
    /// Shrinkers being asked by this thread.
    static ASKING: Cell<u32> = const { Cell::new(0) };
}

/// This thread asks a shrinker as long as this lives.
struct Asking;

impl Asking {
    fn begin() -> Self {
        ASKING.set(ASKING.get() + 1);
        Self
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.set(ASKING.get() - 1);
    }
}

/// A registered shrinker as reclaim calls it. The calling thread is seldom the embedder's own, so a
/// panic is logged and counts as "nothing now".
#[derive(Clone, Copy)]
pub(crate) struct BorrowedShrinker<'a> {
    shrinker: &'a Arc<dyn Shrinker>,
    id: u32,
}

impl BorrowedShrinker<'_> {
    fn ask<R>(self, what: &str, call: impl FnOnce(&dyn Shrinker) -> R) -> Option<R> {
        let answer = contained(|| call(&**self.shrinker));
        answer
            .inspect_err(|panic| tracing::error!(%panic, shrinker = self.id, what, "a shrinker panicked"))
            .ok()
    }

    /// As [`Shrinker::count`].
    pub(crate) fn count(self, target: &ShrinkTarget<'_>) -> Count {
        self.ask("count", |shrinker| shrinker.count(target)).unwrap_or(Count::NothingNow)
    }

    /// As [`Shrinker::scan`].
    pub(crate) fn scan(self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        self.ask("scan", |shrinker| shrinker.scan(target, nr)).unwrap_or(Scan::Stop)
    }

    /// Returns the cost of recreating an object in seeks, and the number of objects in a batch.
    pub(crate) fn measures(self) -> (u32, u64) {
        let measures = self.ask("seeks or batch", |shrinker| (shrinker.seeks(), shrinker.batch()));
        measures.unwrap_or((DEFAULT_SEEKS, DEFAULT_BATCH))
    }

    /// Returns its name, and its objects.
    pub(crate) fn usage(self, target: &ShrinkTarget<'_>) -> Option<(String, Usage)> {
        self.ask("usage", |shrinker| (shrinker.name(), shrinker.usage(target)))
    }

    /// As [`Shrinker::reparent`].
    pub(crate) fn reparent(self, dying: &Arc<Group>, parent: &Arc<Group>) {
        let _ = self.ask("reparent", |shrinker| shrinker.reparent(dying, parent));
    }
}

/// A registered shrinker. The drop of the last reference sets `gone`.
struct Registered {
    /// `None` only while being dropped.
    shrinker: Option<Arc<dyn Shrinker>>,
    gone: Arc<Gone>,
}

#[derive(Default)]
struct Gone {
    is: LeafMutex<bool>,
    changed: Condvar,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A walk may be the last to hold it.
        if let Err(panic) = contained(|| drop(self.shrinker.take())) {
            tracing::error!(%panic, "the end of a shrinker panicked");
        }
        *self.gone.is.lock() = true;
        self.gone.changed.notify_all();
    }
}

#[derive(Debug, Default)]
struct Ids {
    free: BTreeSet<u32>,
    /// Ids below have been in use.
    high: u32,
}

/// The shrinkers of one reclaimer.
pub struct Shrinkers {
    table: Table<ArcSwapOption<Registered>>,
    /// Innermost: held for a few instructions, and nothing is taken under it.
    ids: LeafMutex<Ids>,
}

impl Default for Shrinkers {
    fn default() -> Self {
        Self { table: Table::new(), ids: LeafMutex::default() }
    }
}

impl fmt::Debug for Shrinkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shrinkers").field("nr", &self.nr()).finish_non_exhaustive()
    }
}

/// A number reserved for a shrinker. The number is free again when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct ShrinkerId(Arc<Reserved>);

#[derive(Debug)]
struct Reserved {
    id: u32,
    home: Arc<Shrinkers>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.home.ids.lock().free.insert(self.id);
    }
}

impl ShrinkerId {
    /// Returns the number: small, and used again.
    pub fn get(&self) -> u32 {
        self.0.id
    }
}

/// Keeps a shrinker registered. Dropping it waits until no walk uses the shrinker any more. Inside
/// a walk, dropping does not wait, since the walk would wait for itself.
#[must_use = "the shrinker is unregistered when this is dropped"]
#[derive(Debug)]
pub struct Registration {
    id: ShrinkerId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(slot) = self.id.0.home.table.get(self.id.get()) else { return };
        let Some(entry) = slot.swap(None) else { return };
        let gone = Arc::clone(&entry.gone);
        drop(entry);
        if ASKING.get() > 0 {
            return;
        }
        let mut is_gone = gone.is.lock();
        while !*is_gone {
            gone.changed.wait(&mut is_gone);
        }
    }
}

impl Shrinkers {
    /// Takes the lowest free number.
    pub fn reserve(self: &Arc<Self>) -> ShrinkerId {
        let mut ids = self.ids.lock();
        let id = ids.free.pop_first().unwrap_or_else(|| {
            ids.high += 1;
            ids.high - 1
        });
        ShrinkerId(Arc::new(Reserved { id, home: Arc::clone(self) }))
    }

    /// Registers a shrinker under a number reserved here. Walks started from now on ask it.
    #[doc(alias = "register_shrinker")]
    pub fn register(self: &Arc<Self>, id: ShrinkerId, shrinker: Arc<dyn Shrinker>) -> Registration {
        debug_assert!(Arc::ptr_eq(self, &id.0.home), "a number belongs to one reclaimer");
        let entry = Registered { shrinker: Some(shrinker), gone: Arc::default() };
        self.table.get_or_grow(id.get(), ArcSwapOption::empty).store(Some(Arc::new(entry)));
        Registration { id }
    }

    /// Calls `ask` with the shrinker of a number.
    pub(crate) fn with<R>(&self, id: u32, ask: impl FnOnce(BorrowedShrinker<'_>) -> R) -> Option<R> {
        // The guard holds the entry, so the end of a registration waits for this call.
        let guard = self.table.get(id)?.load();
        let shrinker = guard.as_ref()?.shrinker.as_ref()?;
        let _asking = Asking::begin();
        Some(ask(BorrowedShrinker { shrinker, id }))
    }

    /// Returns the exclusive upper bound of all numbers used so far.
    pub(crate) fn high(&self) -> u32 {
        self.ids.lock().high
    }

    /// Number of registered shrinkers.
    pub fn nr(&self) -> usize {
        (0..self.high()).filter(|&id| self.with(id, |_| ()).is_some()).count()
    }
}
