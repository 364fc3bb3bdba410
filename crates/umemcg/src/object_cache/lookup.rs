//! The result of a lookup that may load: the value, the duty to load it, or a future to wait for.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hashbrown::DefaultHashBuilder;
use umemcg_group::Group;

use super::cached_objects::{CachedObjects, Role};
use super::flight::{Flight, Outcome, Ticket};

/// The result of [`ObjectCache::lookup`](super::ObjectCache::lookup).
#[must_use = "a load that is dropped is another caller's"]
pub enum Lookup<K, V, S = DefaultHashBuilder>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// The value is cached.
    Value(V),
    /// The value is missing, and no other caller of the group is loading it: the guard's holder
    /// loads it.
    Load(LoadGuard<K, V, S>),
    /// Another caller of the group is loading it.
    Wait(LoadWait<K, V, S>),
}

impl<K, V, S> fmt::Debug for Lookup<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value(_) => "Value",
            Self::Load(_) => "Load",
            Self::Wait(_) => "Wait",
        })
    }
}

/// The duty to load a key; other callers of the group wait for it. Its holder obtains the value and
/// hands it over with [`insert_soon`](Self::insert_soon) or [`insert`](Self::insert). When the
/// guard is dropped instead, a waiting caller loads; so it may be dropped at any time, by an error,
/// a panic, or a cancelled task.
///
/// A leaked guard (`mem::forget`) keeps the callers of its key and group waiting.
#[must_use = "a load that is dropped is another caller's"]
pub struct LoadGuard<K, V, S = DefaultHashBuilder>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    objects: Arc<CachedObjects<K, V, S>>,
    hash: u64,
    /// `None` only while being dropped.
    key: Option<K>,
    flight: Arc<Flight<V>>,
    stage: Stage,
}

/// The progress of a guard's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Loading,
    /// The waiters have the value; the embedder's code may still panic.
    HandedOut,
    /// Stored, declined, or handed to a worker.
    Done,
}

impl<K, V, S> fmt::Debug for LoadGuard<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadGuard").field("cache", &self.objects.name).finish_non_exhaustive()
    }
}

impl<K, V, S> LoadGuard<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the loading group; the value will be charged to it.
    pub fn group(&self) -> &Arc<Group> {
        self.flight.group()
    }

    /// Hands the value to all waiters, stores it, and returns it; a declined value, too. May sleep
    /// for reclaim, after the waiters have the value; no lock of this library may be held.
    pub fn insert(mut self, value: V) -> V {
        let Some(key) = self.hand_out(&value) else { return value };
        let (group, flight) = (self.flight.group(), Some(&self.flight));
        // Even if it is declined, the callers get the value.
        let _ = self.objects.store(group, self.hash, key, value.clone(), flight);
        self.stage = Stage::Done;
        value
    }

    /// Like [`insert`](Self::insert), but never sleeps for memory: a worker of the group reclaims
    /// if necessary. Until then the value is charged and found by lookups. It is declined when an
    /// eighth of the group's limit, or one larger object, already waits for the worker.
    pub fn insert_soon(mut self, value: V) -> V {
        let Some(key) = self.hand_out(&value) else { return value };
        self.objects.store_loaded_soon(self.hash, key, value.clone(), &self.flight);
        self.stage = Stage::Done;
        value
    }

    /// Hands the value to all waiters, and returns the key.
    fn hand_out(&mut self, value: &V) -> Option<K> {
        let value = value.clone();
        self.flight.finish(value);
        self.stage = Stage::HandedOut;
        self.key.take()
    }
}

impl<K, V, S> Drop for LoadGuard<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        match self.stage {
            Stage::Loading => self.objects.abandon_load(self.hash, &self.flight),
            Stage::HandedOut => self.objects.end_load(self.hash, &self.flight),
            Stage::Done => {}
        }
    }
}

/// A wait for the load of another caller; see [`Lookup::Wait`]. Resolves to the value, or, when the
/// other caller has given up, to the load. It may be dropped at any time.
#[must_use = "futures do nothing unless they are polled"]
pub struct LoadWait<K, V, S = DefaultHashBuilder>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    objects: Arc<CachedObjects<K, V, S>>,
    hash: u64,
    /// `None` once the wait is over.
    key: Option<K>,
    flight: Arc<Flight<V>>,
    /// `None` once the wait is over.
    ticket: Option<Ticket>,
}

/// Keys are moved, never pinned.
impl<K, V, S> Unpin for LoadWait<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
}

impl<K, V, S> fmt::Debug for LoadWait<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadWait").field("cache", &self.objects.name).finish_non_exhaustive()
    }
}

/// Looks a key up, and joins its load or starts one. Counts no miss.
fn find_or_join<K, V, S>(
    objects: &Arc<CachedObjects<K, V, S>>,
    group: &Arc<Group>,
    hash: u64,
    key: K,
) -> Lookup<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    loop {
        if let Some(value) = objects.find_for(group, hash, &key) {
            return Lookup::Value(value);
        }
        let objects = Arc::clone(objects);
        match objects.join_load(group, hash, &key) {
            Role::Resident => {}
            Role::Value(value) => {
                objects.payers.of(group.owner()).note_hit();
                return Lookup::Value(value);
            }
            Role::Loader(flight) => {
                return Lookup::Load(LoadGuard {
                    objects,
                    hash,
                    key: Some(key),
                    flight,
                    stage: Stage::Loading,
                });
            }
            Role::Waiter(flight, ticket) => {
                let (key, ticket) = (Some(key), Some(ticket));
                return Lookup::Wait(LoadWait { objects, hash, key, flight, ticket });
            }
        }
    }
}

/// Looks a key up for a group, and counts a hit or a miss.
pub(super) fn look_up<K, V, S>(
    objects: &Arc<CachedObjects<K, V, S>>,
    group: &Arc<Group>,
    key: K,
) -> Lookup<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    let hash = objects.hash(&key);
    let found = find_or_join(objects, group, hash, key);
    if !matches!(found, Lookup::Value(_)) {
        objects.note_miss(group);
    }
    found
}

impl<K, V, S> LoadWait<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn leave(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.objects.leave_load(self.hash, &self.flight, ticket);
        }
    }
}

impl<K, V, S> Future for LoadWait<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Output = Result<V, LoadGuard<K, V, S>>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let ticket = this.ticket.as_ref().expect("polled after it was ready");
            let Poll::Ready(outcome) = this.flight.poll(ticket, context.waker()) else {
                return Poll::Pending;
            };
            let (flight, objects) = (Arc::clone(&this.flight), Arc::clone(&this.objects));
            match outcome {
                Outcome::Value(value) => {
                    this.leave();
                    return Poll::Ready(Ok(value));
                }
                Outcome::TakenOver => {
                    let (hash, key) = (this.hash, this.key.take());
                    let guard = LoadGuard { objects, hash, key, flight, stage: Stage::Loading };
                    this.leave();
                    return Poll::Ready(Err(guard));
                }
                Outcome::LookAgain => {
                    this.leave();
                    let key = this.key.clone().expect("there until the wait is over");
                    match find_or_join(&objects, flight.group(), this.hash, key) {
                        Lookup::Value(value) => return Poll::Ready(Ok(value)),
                        Lookup::Load(guard) => return Poll::Ready(Err(guard)),
                        Lookup::Wait(mut next) => {
                            this.flight = Arc::clone(&next.flight);
                            this.ticket = next.ticket.take();
                        }
                    }
                }
            }
        }
    }
}

impl<K, V, S> Drop for LoadWait<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.leave();
    }
}
