//! State shared by the volumes of one store (a bucket of a server): the rate limiter, the response
//! times, and the numbers of waiting and current requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use umemcg_base::LeafMutex;
use umemcg_vfs::bucket::{LATENCY_BOUNDS_MS, LatencyFigures, StoreTraffic};
use umemcg_vfs::volume::{StoreId, next_store_id};

use crate::pace::{Lane, Pace};
use crate::request_kind::RequestKind;

/// See the module text. Relaxed: the numbers stand alone.
#[derive(Debug)]
pub(crate) struct Traffic {
    name: String,
    id: StoreId,
    pace: Pace,
    nr_waiting: AtomicU64,
    nr_under_way: AtomicU64,
    latencies: [Latencies; RequestKind::NR],
}

/// Response times of one kind of request.
#[derive(Debug, Default)]
struct Latencies {
    nr_within: [AtomicU64; LATENCY_BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
}

/// Adds one to a counter for its lifetime.
pub(crate) struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn one(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Traffic {
    /// Returns the state of a store without a name, shared with no other volume.
    fn default() -> Self {
        Self {
            name: String::new(),
            id: next_store_id(),
            pace: Pace::default(),
            nr_waiting: AtomicU64::new(0),
            nr_under_way: AtomicU64::new(0),
            latencies: Default::default(),
        }
    }
}

impl Traffic {
    /// Returns the state of a store, created by its first volume and dropped by its last.
    pub(crate) fn of_store(name: &str) -> Arc<Self> {
        static STORES: LeafMutex<Option<HashMap<String, Weak<Traffic>>>> = LeafMutex::new(None);
        let mut stores = STORES.lock();
        let stores = stores.get_or_insert_default();
        if let Some(known) = stores.get(name).and_then(Weak::upgrade) {
            return known;
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let new = Arc::new(Self { name: name.to_owned(), ..Self::default() });
        stores.insert(name.to_owned(), Arc::downgrade(&new));
        new
    }

    /// Returns the store id shared by its volumes.
    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// Waits until a request of a tenant may begin. Returns the time waited.
    pub(crate) async fn turn(&self, lane: &Lane, tenant: usize) -> Duration {
        let _waiting = Counted::one(&self.nr_waiting);
        self.pace.turn(lane, tenant).await
    }

    /// Counts a request as under way until the guard is dropped.
    pub(crate) fn begin(&self) -> Counted<'_> {
        Counted::one(&self.nr_under_way)
    }

    /// Records the response to a request sent at `sent` for a key, given by its hash, and whether
    /// the store throttled it.
    pub(crate) fn answered(&self, (kind, key): (RequestKind, u64), sent: Instant, is_throttled: bool) {
        self.latencies[kind as usize].note(sent.elapsed());
        self.pace.answered(key, sent, is_throttled);
    }

    pub(crate) fn figures(&self) -> StoreTraffic {
        let latencies = RequestKind::ALL.into_iter().zip(&self.latencies);
        StoreTraffic {
            store: self.name.clone(),
            nr_waiting: self.nr_waiting.load(Ordering::Relaxed),
            nr_under_way: self.nr_under_way.load(Ordering::Relaxed),
            latencies: latencies.filter_map(|(kind, latencies)| latencies.figures(kind)).collect(),
        }
    }
}

impl Latencies {
    fn note(&self, took: Duration) {
        let at = LATENCY_BOUNDS_MS.partition_point(|&bound| Duration::from_millis(bound) < took);
        self.nr_within[at].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns `None` if there was no request.
    fn figures(&self, kind: RequestKind) -> Option<LatencyFigures> {
        let nr_within = self.nr_within.each_ref().map(|nr| nr.load(Ordering::Relaxed));
        let figures =
            LatencyFigures { kind: kind.name(), nr_within, sum_us: self.sum_us.load(Ordering::Relaxed) };
        nr_within.iter().any(|&nr| nr > 0).then_some(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_a_store_share_its_traffic() {
        let one = Traffic::of_store("http://a s3://x");
        assert!(Arc::ptr_eq(&one, &Traffic::of_store("http://a s3://x")));
        assert!(!Arc::ptr_eq(&one, &Traffic::of_store("http://a s3://y")));
        let gone = Arc::downgrade(&one);
        drop(one);
        assert!(gone.upgrade().is_none(), "none is kept for volumes that are gone");
        let _ = Traffic::of_store("http://a s3://x");
    }

    #[test]
    fn a_latency_is_counted_at_the_first_bound_that_holds_it() {
        let latencies = Latencies::default();
        assert_eq!(latencies.figures(RequestKind::Get), None);
        for ms in [0, 5, 6, 10_000, 10_001] {
            latencies.note(Duration::from_millis(ms));
        }
        let figures = latencies.figures(RequestKind::Get).unwrap();
        assert_eq!((figures.kind, figures.sum_us), ("get", 20_012_000));
        assert_eq!(figures.nr_within, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn what_is_under_way_is_counted_until_it_ends() {
        let traffic = Traffic::of_store("http://a s3://under-way");
        let first = traffic.begin();
        let second = traffic.begin();
        assert_eq!(traffic.figures().nr_under_way, 2);
        drop((first, second));
        assert_eq!(traffic.figures().nr_under_way, 0);
    }
}
