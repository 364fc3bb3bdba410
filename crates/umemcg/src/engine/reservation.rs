//! Reservations: accounts filled by a growth that may wait for memory.
//!
//! The time of a growth depends on the kind of memory to be reclaimed, never on the group using it:
//!
//! - clean pages and objects are reclaimed: 1 µs at most for each page by the target of
//!   `umemcg-bench guarantee`, so 1 GiB in less than 0.3 s;
//! - dirty data is written as fast as its store accepts it, and its amount is bounded by the dirty
//!   limit of the pool;
//! - bytes held by other accounts become free when these give them back.
//!
//! [`Engine::reserve`] waits for the second kind, at most [`DIRTY_WAIT_MAX`](super::DIRTY_WAIT_MAX)
//! without progress; [`Engine::reserve_until`] and [`Engine::reserve_async`] wait for the second
//! and the third.

use std::sync::Arc;

use umemcg_base::sync::Instant;
use umemcg_group::Group;

use super::waiting_growth::{Patience, WaitingGrowth};
use super::{Account, Engine, Refusal};

impl Engine {
    /// Opens an account of `bytes` in a group, for memory of your own. Reclaims missing memory from
    /// others: clean pages and objects immediately, dirty data after write-back. Sleeps as long as
    /// that takes, but gives up after [`DIRTY_WAIT_MAX`](super::DIRTY_WAIT_MAX) without progress,
    /// and immediately when nothing is dirty and nothing can be reclaimed, or when the room is
    /// guaranteed to other groups. No lock of this library may be held.
    ///
    /// # Errors
    /// [`Refusal`]; if its [`may_pass`](Refusal::may_pass) is true,
    /// [`reserve_until`](Self::reserve_until) could wait for the bytes. Counts one `max` event.
    pub fn reserve(self: &Arc<Self>, group: &Arc<Group>, bytes: u64) -> Result<Account, Refusal> {
        WaitingGrowth::new(self, group, bytes, Patience::ForWriteback).block(None)
    }

    /// Like [`reserve`](Self::reserve), but also waits for accounts to shrink and for limits to
    /// rise, until `deadline`. The waiters of a group are served in the order of their arrival; no
    /// group waits for the waiters of another. A large request is not starved: the first waiter for
    /// a limit keeps its bytes while it waits for the rest.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use umemcg::{Engine, EngineConfig};
    ///
    /// let engine = Engine::new(EngineConfig::new(64 << 20))?;
    /// let queries = engine.create_group(engine.root(), "queries".as_ref())?;
    /// engine.set_max(&queries, 8 << 20);
    /// let running = engine.reserve(&queries, 6 << 20)?;
    /// let (engine, queries) = (&engine, &queries);
    /// std::thread::scope(|threads| {
    ///     let deadline = Instant::now() + Duration::from_secs(10);
    ///     let next = threads.spawn(move || engine.reserve_until(queries, 4 << 20, deadline));
    ///     drop(running); // the first query ends, and the next one begins
    ///     assert_eq!(next.join().unwrap().unwrap().bytes(), 4 << 20);
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refusal::Never`] immediately; the last refusal at the deadline. Counts one `max` event.
    pub fn reserve_until(
        self: &Arc<Self>,
        group: &Arc<Group>,
        bytes: u64,
        deadline: Instant,
    ) -> Result<Account, Refusal> {
        WaitingGrowth::new(self, group, bytes, Patience::ForAnything).block(Some(deadline))
    }

    /// Like [`reserve_until`](Self::reserve_until), as a future without a deadline. It needs no
    /// particular runtime: it is woken when memory is given back or a limit rises. A poll reclaims
    /// a few megabytes at most and never sleeps. Dropping the future gives back its bytes and its
    /// place.
    ///
    /// # Errors
    /// [`Refusal::Never`], also when a limit falls meanwhile.
    pub fn reserve_async(
        self: &Arc<Self>,
        group: &Arc<Group>,
        bytes: u64,
    ) -> impl Future<Output = Result<Account, Refusal>> + Send + use<> {
        let mut growth = WaitingGrowth::new(self, group, bytes, Patience::ForAnything);
        std::future::poll_fn(move |context| {
            growth.advance(context.waker()).map(|result| result.map(|()| growth.take()))
        })
    }
}
