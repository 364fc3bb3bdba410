//! Several requests to a store at a time, for one operation.
//!
//! The calling thread makes requests, and so do helping threads, as many as the process and the
//! operating system have left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use umemcg::Group;
use umemcg_base::LeafMutex;

use crate::bucket::TenantScope;

/// Most helping threads of an operation.
const NR_HELPERS_MAX: usize = 7;
/// Most helping threads of the process. With none left, an operation uses only its own thread.
const NR_OF_PROCESS_MAX: usize = 56;

/// (A) The helping threads of the process. Relaxed: only their number matters.
static NR_HELPERS: AtomicUsize = AtomicUsize::new(0);

/// A helping thread, counted until dropped.
struct Helper;

impl Helper {
    fn take() -> Option<Self> {
        let one_more = |nr| (nr < NR_OF_PROCESS_MAX).then_some(nr + 1);
        let taken = NR_HELPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Self)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        NR_HELPERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls `act`, which asks a store for a group, with each item, for several at a time. No call
/// begins after one has failed. No lock may be held.
///
/// # Errors
/// The error of the first failed call.
pub(super) fn side_by_side<T: Sync, E: Send>(
    group: &Arc<Group>,
    items: &[T],
    act: impl Fn(&T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    // Relaxed: each item is taken once; the end of the threads orders their results.
    let (next, failure) = (AtomicUsize::new(0), LeafMutex::new(None));
    let work = || {
        let _scope = TenantScope::of(group);
        while failure.lock().is_none() {
            let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            if let Err(error) = act(item) {
                failure.lock().get_or_insert(error);
            }
        }
    };
    let work = &work;
    thread::scope(|scope| {
        for _ in 1..items.len().min(1 + NR_HELPERS_MAX) {
            let Some(helper) = Helper::take() else { break };
            let help = move || {
                let _counted = helper;
                work();
            };
            if thread::Builder::new().name("umemcg-requests".into()).spawn_scoped(scope, help).is_err() {
                break;
            }
        }
        work();
    });
    failure.lock().take().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use umemcg::{Engine, EngineConfig};

    use super::*;

    #[test]
    fn each_item_has_its_turn_until_one_fails() {
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let items: Vec<usize> = (0..1000).collect();
        let nr_calls: Vec<AtomicUsize> = items.iter().map(|_| AtomicUsize::new(0)).collect();
        let count = |&item: &usize| {
            nr_calls[item].fetch_add(1, Ordering::Relaxed);
            Ok::<(), ()>(())
        };
        side_by_side(engine.root(), &items, count).unwrap();
        assert!(nr_calls.iter().all(|nr| nr.load(Ordering::Relaxed) == 1));
        side_by_side(engine.root(), &[], count).unwrap();
        let nr_begun = AtomicUsize::new(0);
        let fail = |_: &usize| {
            nr_begun.fetch_add(1, Ordering::Relaxed);
            Err("refused")
        };
        assert_eq!(side_by_side(engine.root(), &items, fail), Err("refused"));
        assert!(nr_begun.into_inner() <= 1 + NR_HELPERS_MAX);
    }

    #[test]
    fn the_process_has_a_bound_of_helping_threads() {
        let all: Vec<Helper> = std::iter::from_fn(Helper::take).collect();
        assert!(all.len() <= NR_OF_PROCESS_MAX && Helper::take().is_none());
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let me = thread::current().id();
        let alone = |_: &usize| if thread::current().id() == me { Ok(()) } else { Err(()) };
        assert_eq!(side_by_side(engine.root(), &[1, 2, 3, 4], alone), Ok(()));
    }
}
