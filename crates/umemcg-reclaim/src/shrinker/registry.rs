//! The shrinkers that exist, by id. A walk reads the table without any lock that registering takes, so it never skips
//! a shrinker because somebody registers.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::{Condvar, Mutex};
use umemcg_base::Table;

use super::Shrinker;

#[cfg(feature = "baseline")]
static CHANGES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

fn note_change() {
    #[cfg(feature = "baseline")]
    CHANGES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

thread_local! {
    /// Shrinkers that this thread is asking.
    static ASKING: Cell<u32> = const { Cell::new(0) };
}

/// A registered shrinker. The last one to hold it says that it is gone.
struct Entry {
    shrinker: Arc<dyn Shrinker>,
    gone: Arc<Gone>,
}

#[derive(Default)]
struct Gone {
    is: Mutex<bool>,
    changed: Condvar,
}

impl Drop for Entry {
    fn drop(&mut self) {
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
    table: Table<ArcSwapOption<Entry>>,
    /// Innermost: held for a few instructions, and nothing is taken under it.
    ids: Mutex<Ids>,
    /// Comings and goings, of all reclaimers of this process.
    #[cfg(feature = "baseline")]
    changes: &'static std::sync::atomic::AtomicU64,
}

impl Default for Shrinkers {
    fn default() -> Self {
        Self {
            table: Table::new(),
            ids: Mutex::default(),
            #[cfg(feature = "baseline")]
            changes: &CHANGES,
        }
    }
}

impl fmt::Debug for Shrinkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shrinkers").field("nr", &self.nr()).finish_non_exhaustive()
    }
}

/// A number for a shrinker that is being made. The number is free again when the last clone is dropped.
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
    /// The number: small, and used again.
    pub fn get(&self) -> u32 {
        self.0.id
    }
}

/// Keeps a shrinker registered. Dropping it waits until no walk uses the shrinker any more; from inside a walk, which would
/// wait for itself, it does not wait.
#[must_use = "the shrinker is unregistered when this is dropped"]
#[derive(Debug)]
pub struct Registration {
    id: ShrinkerId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(slot) = self.id.0.home.table.get(self.id.get()) else { return };
        let Some(entry) = slot.swap(None) else { return };
        note_change();
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

    /// Registers a shrinker under a number reserved here. Walks that start from now on ask it.
    #[doc(alias = "register_shrinker")]
    pub fn register(self: &Arc<Self>, id: ShrinkerId, shrinker: Arc<dyn Shrinker>) -> Registration {
        debug_assert!(Arc::ptr_eq(self, &id.0.home), "a number belongs to one reclaimer");
        let entry = Entry { shrinker, gone: Arc::default() };
        self.table.get_or_grow(id.get(), ArcSwapOption::empty).store(Some(Arc::new(entry)));
        note_change();
        Registration { id }
    }

    /// Lends the shrinker of a number.
    pub(crate) fn with<R>(&self, id: u32, ask: impl FnOnce(&Arc<dyn Shrinker>) -> R) -> Option<R> {
        // The guard holds the entry, so that the end of a registration waits for us.
        let guard = self.table.get(id)?.load();
        let entry = guard.as_ref()?;
        ASKING.set(ASKING.get() + 1);
        let answer = ask(&entry.shrinker);
        ASKING.set(ASKING.get() - 1);
        Some(answer)
    }

    /// Numbers from 0 that have been in use.
    pub(crate) fn high(&self) -> u32 {
        self.ids.lock().high
    }

    /// Every shrinker that is registered, from a list that this thread keeps until one comes or goes.
    #[cfg(feature = "baseline")]
    pub(crate) fn with_all<R>(&self, ask: impl FnOnce(&[Arc<dyn Shrinker>]) -> R) -> R {
        use std::cell::RefCell;
        thread_local! {
            static KNOWN: RefCell<(u64, Vec<Arc<dyn Shrinker>>)> = const { RefCell::new((0, Vec::new())) };
        }
        KNOWN.with_borrow_mut(|(changes, known)| {
            let now = self.changes.load(std::sync::atomic::Ordering::Relaxed);
            if *changes != now {
                *changes = now;
                known.clear();
                known.extend((0..self.high()).filter_map(|id| self.with(id, Arc::clone)));
            }
            ask(known)
        })
    }

    /// Shrinkers that are registered.
    pub fn nr(&self) -> usize {
        (0..self.high()).filter(|&id| self.with(id, |_| ()).is_some()).count()
    }
}
