//! Making all dirty data durable, at all stores at the same time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::clock;
use umemcg_base::sync::Instant;
use umemcg_base::{Condvar, LeafMutex, PAGE_SIZE_U64};

use super::PageCache;
use crate::file::{Durability, File, PAGES_END};
use crate::store::StoreId;

/// Files that are not durable yet, by number, with the store's error if it refused.
type Unsynced = HashMap<u32, Option<String>>;

/// Most stores served at the same time by one sync of everything. If this many hang, the others are
/// not synced.
const NR_SYNC_THREADS_MAX: usize = 64;

/// A file not written in time.
#[derive(Debug, Clone)]
pub struct LostData {
    /// Its cache; the layer above knows its name.
    pub file: Arc<File>,
    /// Bytes not yet durable.
    pub bytes: u64,
    /// The store's last error, if there was one.
    pub error: Option<String>,
}

impl PageCache {
    /// Makes all data durable that is dirty now. Stores are served at the same time; sleeps until
    /// all are done or the timeout has passed. Where the system refuses threads, stores are served
    /// one after the other, until each has answered. Returns the files not durable then. A file
    /// clean by then is kept by its users alone.
    pub fn sync_all(self: &Arc<Self>, timeout: Duration) -> Vec<LostData> {
        self.sync_where(timeout, |_| true)
    }

    /// Like [`sync_all`](Self::sync_all), for the files of one store.
    pub fn sync_store(self: &Arc<Self>, store: StoreId, timeout: Duration) -> Vec<LostData> {
        self.sync_where(timeout, |id| id == store)
    }

    /// Releases clean files. They must not stay with their store until the next round of the
    /// flusher.
    fn forget_clean(&self, is_meant: impl Fn(StoreId) -> bool) {
        for store in self.core().stores().into_iter().filter(|store| is_meant(store.id())) {
            store.forget_clean();
        }
    }

    fn sync_where(self: &Arc<Self>, timeout: Duration, is_meant: impl Fn(StoreId) -> bool) -> Vec<LostData> {
        let deadline = Instant::now() + timeout;
        let outcome: Arc<(LeafMutex<Unsynced>, Condvar)> = Arc::default();
        let mut by_store: BTreeMap<StoreId, Vec<Arc<File>>> = BTreeMap::new();
        for file in self.unclean_files().into_iter().filter(|file| is_meant(file.store_id())) {
            outcome.0.lock().insert(file.id, None);
            by_store.entry(file.store_id()).or_default().push(file);
        }
        let asked: Vec<Arc<File>> = by_store.values().flatten().cloned().collect();
        let nr_threads = by_store.len().min(NR_SYNC_THREADS_MAX);
        let stores = Arc::new(LeafMutex::new(by_store.into_values().collect::<Vec<_>>()));
        for nr_started in 0..nr_threads {
            let (outcome, stores) = (Arc::clone(&outcome), Arc::clone(&stores));
            let serve = move || {
                while let Some(files) = { stores.lock().pop() } {
                    for file in files {
                        let (id, result) = (file.id, file.flush_range(0, PAGES_END, Durability::Full));
                        // The caller of the sync may count on this thread to keep no file.
                        drop(file);
                        let mut open = outcome.0.lock();
                        match result {
                            Ok(()) => drop(open.remove(&id)),
                            Err(error) => drop(open.insert(id, Some(error.to_string()))),
                        }
                        drop(open);
                        outcome.1.notify_all();
                    }
                }
            };
            // A thread of a hanging store is left behind: the caller must not wait longer than the
            // timeout.
            if clock::spawn_detached("umemcg-sync", serve.clone()).is_err() {
                // The threads started so far serve all stores. Without any, this thread does, and
                // waits for a hanging store: accepted data is written if there is a way.
                if nr_started == 0 {
                    serve();
                }
                break;
            }
        }
        let mut open = outcome.0.lock();
        while open.values().any(Option::is_none) {
            if outcome.1.wait_until(&mut open, deadline).timed_out() {
                break;
            }
        }
        let left = std::mem::take(&mut *open);
        // This may be the last reference to some of the files, which are freed with it.
        drop(open);
        self.forget_clean(is_meant);
        asked
            .into_iter()
            .filter_map(|file| {
                let error = left.get(&file.id)?.clone();
                let pages = file.nr_unclean();
                Some(LostData { file, bytes: pages * PAGE_SIZE_U64, error })
            })
            .collect()
    }
}
