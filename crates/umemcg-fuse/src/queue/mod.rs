//! The queue of requests that may sleep. It decides, by group and store, whether a request may run
//! or must wait.
//!
//! A *pair* is a tenant on a store. A tenant is a group just below the root, with all groups in it.
//! The groups in a tenant take turns, level by level ([`TurnQueue`]), so that a tenant gains
//! nothing by having many. Three rules determine whether a request of a pair may start:
//!
//! 1. **The first of its pair may always start**, however many others run: it costs only a thread.
//!    So a hanging store, or a tenant with many requests, blocks neither other stores nor other
//!    tenants. The only bound is the number of threads (`all_max`). One tenant, and one store, has
//!    at most half of the threads left by the others.
//! 2. **Further ones share the places**: `running_max`, and one more for each sleeping request, so
//!    that sleeping requests take no place from the others. A store may have one part of
//!    `1 + stores with requests`, and a tenant likewise. A pair may have one part of
//!    `1 + tenants with requests for the store` of the store's share. The remaining part is for the
//!    next store, tenant or pair.
//!
//! 3. **No further one starts while too many compute for the processors** (`computing.rs`);
//!    requests waiting for a store do not count.
//!
//! The last place of a pair is reserved for a group in the tenant without a running request, so
//! that a group with hanging requests leaves one place to the others.
//!
//! Other requests wait in the queue of their pair. Requests of one group start first in, first out,
//! and pairs take turns. The number of waiting requests is bounded, too: tenants, and groups in
//! them, have [shares](ShareByPath) of it ([`may_wait`](Queue::may_wait)).
//!
//! A parked request, which waits for its store without a thread ([`parking`](crate::parking)),
//! counts here as one of its group's waiting requests. When it is resumed, running requests may be
//! waiting for its pages and claims. So it gets keys of its own ([`to_go_on`](Keys::to_go_on)), and
//! the first of such a pair starts regardless of the running ones, even above `all_max`. One of a
//! tenant is enough: it waits on its thread for no parked request, but [parks](Queue::park) again.
//! So it ends, and the next one starts.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use umemcg::Group;
use umemcg::internal::{GroupPath, ShareByPath, TurnQueue};
use umemcg_base::Wait;

use crate::computing::{Computing, Run};
use crate::pool_limits::PoolLimits;

/// The group that pays for a request, and the store where it may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Keys {
    /// The group, and the groups above it.
    pub path: GroupPath,
    /// Number of the store.
    pub store: u64,
}

/// Added to the keys of resumed requests.
const GOES_ON: u64 = 1 << 62;

/// Returns the path under which a queued request counts as waiting, resumed or not.
fn path_of_wait(path: GroupPath) -> GroupPath {
    path.map(|level| level & !GOES_ON)
}

impl Keys {
    /// Returns the keys of a request of a group on a store.
    pub fn of(group: &Group, store: u64) -> Self {
        Self { path: GroupPath::of(group), store }
    }

    /// Returns the keys of a request without a group, by a number.
    pub fn single(number: u64, store: u64) -> Self {
        Self { path: GroupPath::new(&[number]), store }
    }

    /// Returns the keys for a parked request with these keys when it is resumed: of a pair of its
    /// own, so that it waits for no other request of its tenant.
    pub(crate) fn to_go_on(self) -> Self {
        Self { path: self.path.map(|level| level | GOES_ON), store: self.store | GOES_ON }
    }

    /// Returns the group just below the tenant, if it is not the tenant itself.
    fn below(self) -> Option<u64> {
        self.path.levels().get(1).copied()
    }

    fn pair(self) -> PairKeys {
        PairKeys { tenant: self.path.tenant(), store: self.store }
    }
}

/// A tenant on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PairKeys {
    tenant: u64,
    store: u64,
}

impl PairKeys {
    fn goes_on(self) -> bool {
        self.tenant & self.store & GOES_ON != 0
    }
}

/// A waiting item.
pub(crate) trait Waiting {
    /// Returns whether the request has been answered, or its caller has gone.
    fn is_finished(&self) -> bool;
}

/// A running request: its keys, and its entry among the computing requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub keys: Keys,
    pub run: Run,
}

/// The reason why a pair cannot start a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Obstacle {
    /// All shared places are taken.
    All,
    /// As many requests compute as the processors allow.
    Processors,
    /// The store, the tenant or the pair has its share.
    Store(u64),
    Tenant(u64),
    Pair(PairKeys),
    /// The pair has one place left, for a group in the tenant without a running request.
    LastOfPair(PairKeys),
    /// Not even a first request may start: too many run in all, for the store or for the tenant.
    FirstOfAll,
    FirstOfStore(u64),
    FirstOfTenant(u64),
}

/// The length of a queue at which it is first swept.
const SWEEP_LEN_MIN: usize = 64;
/// The most waiting requests, of all groups together: most of the requests that the kernel hands
/// out at a time.
const NR_WAITING_MAX: usize = 48 << 10;

/// A tenant on a store.
#[derive(Debug)]
struct Pair<J> {
    nr_running: usize,
    /// Running requests by group just below the tenant; no entry for the tenant itself.
    running_below: HashMap<u64, usize>,
    waiting: TurnQueue<J>,
    /// The pair is in `turn` or in `blocked`, at most once.
    is_listed: bool,
    /// The pair is in `idle`, at most once.
    is_idle: bool,
}

impl<J> Pair<J> {
    fn new() -> Self {
        Self {
            nr_running: 0,
            running_below: HashMap::new(),
            waiting: TurnQueue::default(),
            is_listed: false,
            is_idle: false,
        }
    }

    fn is_active(&self) -> bool {
        self.nr_running > 0 || !self.waiting.is_empty()
    }

    fn begin(&mut self, below: Option<u64>) {
        self.nr_running += 1;
        below.into_iter().for_each(|below| *self.running_below.entry(below).or_default() += 1);
    }

    fn end(&mut self, below: Option<u64>) {
        self.nr_running -= 1;
        if let Some(below) = below
            && let Some(nr) = self.running_below.get_mut(&below)
        {
            *nr -= 1;
            if *nr == 0 {
                self.running_below.remove(&below);
            }
        }
    }
}

/// A tenant, or a store, with an active pair.
#[derive(Debug, Default)]
struct LoadCounts {
    nr_pairs: usize,
    nr_running: usize,
}

/// The counts of running requests, and the queues of waiting ones.
#[derive(Debug)]
pub(crate) struct Queue<J> {
    places: PoolLimits,
    computing: Computing,
    nr_running: usize,
    /// Running requests that have reported a wait.
    nr_asleep: usize,
    nr_waiting: usize,
    pairs: HashMap<PairKeys, Pair<J>>,
    tenants: HashMap<u64, LoadCounts>,
    stores: HashMap<u64, LoadCounts>,
    /// Pairs with waiting requests and no known obstacle, in turn.
    turn: VecDeque<PairKeys>,
    /// Pairs unable to start a request, by their obstacle, so that a thousand of them are not
    /// checked whenever a request ends.
    blocked: HashMap<Obstacle, VecDeque<PairKeys>>,
    /// Pairs with waiting and no running requests: rule 1 is checked for them, wherever they are
    /// listed.
    idle: VecDeque<PairKeys>,
    /// Queued and parked requests.
    waits: ShareByPath,
    nr_parked: usize,
}

impl<J: Waiting> Queue<J> {
    pub fn new(places: PoolLimits) -> Self {
        Self {
            places,
            computing: Computing::new(places.computing_max),
            nr_running: 0,
            nr_asleep: 0,
            nr_waiting: 0,
            pairs: HashMap::new(),
            tenants: HashMap::new(),
            stores: HashMap::new(),
            turn: VecDeque::new(),
            blocked: HashMap::new(),
            idle: VecDeque::new(),
            waits: ShareByPath::new(NR_WAITING_MAX as u64),
            nr_parked: 0,
        }
    }

    fn running_of_tenant(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |side| side.nr_running)
    }

    fn running_of_store(&self, store: u64) -> usize {
        self.stores.get(&store).map_or(0, |side| side.nr_running)
    }

    fn running_of_pair(&self, keys: PairKeys) -> usize {
        self.pairs.get(&keys).map_or(0, |pair| pair.nr_running)
    }

    /// Returns the number of requests that could start before `obstacle` is in the way.
    fn room(&self, obstacle: Obstacle) -> usize {
        let max = (self.places.running_max + self.nr_asleep).min(self.places.all_max);
        let part = |sides: &HashMap<u64, LoadCounts>, of: u64| {
            let nr_wanting = sides.len() + usize::from(!sides.contains_key(&of));
            (max / (nr_wanting + 1)).max(1)
        };
        let (may, has) = match obstacle {
            Obstacle::Processors => (self.computing.room(), 0),
            Obstacle::All => (max, self.nr_running),
            Obstacle::Store(store) => (part(&self.stores, store), self.running_of_store(store)),
            Obstacle::Tenant(tenant) => (part(&self.tenants, tenant), self.running_of_tenant(tenant)),
            Obstacle::Pair(keys) => {
                let is_new = self.pairs.get(&keys).is_none_or(|pair| !pair.is_active());
                let others = self.stores.get(&keys.store).map_or(0, |store| store.nr_pairs);
                let nr_wanting = others + usize::from(is_new);
                ((part(&self.stores, keys.store) / (nr_wanting + 1)).max(1), self.running_of_pair(keys))
            }
            Obstacle::LastOfPair(keys) => (usize::from(self.has_for_last(keys)), 0),
            Obstacle::FirstOfAll => (self.places.all_max, self.nr_running),
            Obstacle::FirstOfStore(store) => (self.nr_left(), self.running_of_store(store)),
            Obstacle::FirstOfTenant(tenant) => (self.nr_left(), self.running_of_tenant(tenant)),
        };
        may.saturating_sub(has)
    }

    /// Returns the number of further requests that could run altogether.
    fn nr_left(&self) -> usize {
        self.places.all_max.saturating_sub(self.nr_running)
    }

    /// Returns the obstacle to the start of a request of this pair, if there is one.
    fn obstacle(&self, keys: PairKeys) -> Option<Obstacle> {
        let PairKeys { tenant, store } = keys;
        let obstacles = if self.running_of_pair(keys) == 0 && keys.goes_on() {
            &[][..]
        } else if self.running_of_pair(keys) == 0 {
            &[Obstacle::FirstOfAll, Obstacle::FirstOfTenant(tenant), Obstacle::FirstOfStore(store)][..]
        } else {
            &[
                Obstacle::All,
                Obstacle::Store(store),
                Obstacle::Tenant(tenant),
                Obstacle::Pair(keys),
                Obstacle::Processors,
            ]
        };
        obstacles.iter().copied().find(|&obstacle| self.room(obstacle) == 0)
    }

    /// Returns whether a pair has more than its last place left.
    fn has_more_than_last(&self, keys: PairKeys) -> bool {
        self.room(Obstacle::Pair(keys)) > 1
    }

    /// Returns whether a waiting request of the pair may take its last place, or the pair has more
    /// places. Also true if nothing waits.
    fn has_for_last(&self, keys: PairKeys) -> bool {
        let Some(pair) = self.pairs.get(&keys).filter(|pair| !pair.waiting.is_empty()) else { return true };
        let has_more = self.has_more_than_last(keys);
        pair.waiting.has_of(&|below| has_more || !pair.running_below.contains_key(&below))
    }

    /// Returns whether a request with these keys may start. It may neither overtake others of its
    /// pair, nor take the pair's last place from the other groups of its tenant.
    pub fn may_start(&self, keys: Keys) -> bool {
        let (below, keys) = (keys.below(), keys.pair());
        let may = self.pairs.get(&keys).is_none_or(|pair| {
            let runs = below.is_some_and(|below| pair.running_below.contains_key(&below));
            pair.waiting.is_empty() && (!runs || self.has_more_than_last(keys))
        });
        may && self.obstacle(keys).is_none()
    }

    /// Returns whether another request of this group may wait, here or for its store.
    pub fn may_wait(&self, keys: Keys) -> bool {
        self.waits.fits(&keys.path, 1)
    }

    /// Counts a parked request. Returns `false` if too many of its group wait already. A resumed
    /// request is always counted: others may wait for it, so it must not wait for them on its
    /// thread.
    pub fn park(&mut self, keys: Keys, is_resumed: bool) -> bool {
        let may = is_resumed || self.waits.fits(&keys.path, 1);
        if may {
            self.waits.add(&keys.path, 1);
            self.nr_parked += 1;
        }
        may
    }

    /// Notes the end of a parked request's wait.
    pub fn unpark(&mut self, keys: Keys) {
        self.nr_parked -= 1;
        self.waits.give(&keys.path, 1);
    }

    /// Returns the number of parked requests.
    pub fn nr_parked(&self) -> usize {
        self.nr_parked
    }

    /// Changes a pair, and updates the counts of its tenant and its store.
    fn change<R>(&mut self, keys: PairKeys, act: impl FnOnce(&mut Pair<J>) -> R) -> R {
        let pair = self.pairs.entry(keys).or_insert_with(Pair::new);
        let before = (pair.is_active(), pair.nr_running, pair.waiting.len());
        let result = act(pair);
        let after = (pair.is_active(), pair.nr_running, pair.waiting.len());
        if !after.0 && !pair.is_listed && !pair.is_idle {
            self.pairs.remove(&keys);
        }
        self.nr_running = self.nr_running + after.1 - before.1;
        self.nr_waiting = self.nr_waiting + after.2 - before.2;
        // Resumed requests take no part from others: their tenant would count twice.
        if keys.goes_on() {
            return result;
        }
        for (sides, key) in [(&mut self.tenants, keys.tenant), (&mut self.stores, keys.store)] {
            let side = sides.entry(key).or_default();
            side.nr_pairs = side.nr_pairs + usize::from(after.0) - usize::from(before.0);
            side.nr_running = side.nr_running + after.1 - before.1;
            if side.nr_pairs == 0 {
                sides.remove(&key);
            }
        }
        result
    }

    /// Counts a request with these keys as running.
    pub fn started(&mut self, keys: Keys) -> Started {
        self.change(keys.pair(), |pair| pair.begin(keys.below()));
        Started { keys, run: self.computing.begin() }
    }

    /// Notes that a running request waits and needs no processor meanwhile.
    pub fn waits(&mut self, run: Run, how: Wait) -> Run {
        self.nr_asleep += usize::from(!run.is_asleep());
        self.computing.waits(run, how)
    }

    /// Notes that a waiting request continues.
    pub fn goes_on(&mut self, run: Run) -> Run {
        self.nr_asleep -= usize::from(run.is_asleep());
        self.computing.goes_on(run)
    }

    /// Returns the time until the next check of the computing requests, if a request waits only for
    /// a processor.
    pub fn wants_processor(&mut self) -> Option<Duration> {
        (self.nr_waiting > 0 && self.blocked.contains_key(&Obstacle::Processors))
            .then(|| self.computing.expire())
    }

    /// Notes the end of a running request.
    pub fn finished(&mut self, started: &Started) {
        self.nr_asleep -= usize::from(started.run.is_asleep());
        self.computing.end(started.run);
        let (below, keys) = (started.keys.below(), started.keys.pair());
        let is_idle = self.change(keys, |pair| {
            pair.end(below);
            let is_idle = pair.nr_running == 0 && !pair.waiting.is_empty() && !pair.is_idle;
            pair.is_idle |= is_idle;
            is_idle
        });
        if is_idle {
            self.idle.push_back(keys);
        }
    }

    /// Queues a request. Returns finished requests, to be dropped with no lock held.
    pub fn push(&mut self, keys: Keys, job: J) -> Vec<J> {
        let (path, keys) = (keys.path, keys.pair());
        let mut settled = Vec::new();
        let (is_new, is_idle) = self.change(keys, |pair| {
            // Killed requests are removed whenever the queue has doubled, so they never make up
            // most of it.
            if pair.waiting.len() >= SWEEP_LEN_MIN && pair.waiting.len().is_power_of_two() {
                settled = pair.waiting.take_out(|job| job.is_finished());
            }
            pair.waiting.push(path, job);
            // The pair may still be listed from an earlier time with running requests.
            let is_idle = pair.is_listed && pair.nr_running == 0 && !pair.is_idle;
            pair.is_idle |= is_idle;
            (!std::mem::replace(&mut pair.is_listed, true), is_idle)
        });
        if is_new {
            self.turn.push_back(keys);
        }
        if is_idle {
            self.idle.push_back(keys);
        }
        self.waits.add(&path_of_wait(path), 1);
        self.given_up(settled)
    }

    /// Releases the counts of requests taken out of the queue.
    fn given_up(&mut self, requests: Vec<(GroupPath, J)>) -> Vec<J> {
        requests.iter().for_each(|(path, _)| self.waits.give(&path_of_wait(*path), 1));
        requests.into_iter().map(|(_, job)| job).collect()
    }

    /// Returns the next pair able to start a request, if any; it is at the front of its list.
    fn find(&mut self) -> Option<PairKeys> {
        // Every round finds a pair, moves one to `blocked` or drops one, so the loop ends.
        loop {
            let Some(&keys) = self.turn.front() else {
                if self.unblock() {
                    continue;
                }
                return self.find_idle();
            };
            let has_waiting = self.pairs.get(&keys).is_some_and(|pair| !pair.waiting.is_empty());
            let of_groups = || (!self.has_for_last(keys)).then_some(Obstacle::LastOfPair(keys));
            match self.obstacle(keys).or_else(of_groups) {
                None if has_waiting => return Some(keys),
                Some(obstacle) if has_waiting => {
                    self.turn.pop_front();
                    self.blocked.entry(obstacle).or_default().push_back(keys);
                }
                _ => {
                    self.turn.pop_front();
                    self.change(keys, |pair| pair.is_listed = false);
                }
            }
        }
    }

    /// Returns a pair able to start by rule 1, listed under an obstacle of rule 2.
    fn find_idle(&mut self) -> Option<PairKeys> {
        for _ in 0..self.idle.len() {
            let keys = self.idle.pop_front()?;
            let still = self.pairs.get(&keys).is_some_and(|p| p.nr_running == 0 && !p.waiting.is_empty());
            if still && self.obstacle(keys).is_none() {
                self.idle.push_front(keys);
                return Some(keys);
            }
            match still {
                true => self.idle.push_back(keys),
                false => self.change(keys, |pair| pair.is_idle = false),
            }
        }
        None
    }

    /// Returns whether a waiting request may start.
    pub fn may_pick(&mut self) -> bool {
        self.nr_waiting > 0 && self.find().is_some()
    }

    /// Takes out the next request that may start, if any, and counts it as running.
    pub fn pick(&mut self) -> Option<(Started, J)> {
        if self.nr_waiting == 0 {
            return None;
        }
        let keys = self.find()?;
        let was_idle = self.turn.front() != Some(&keys);
        if was_idle {
            self.idle.pop_front();
        } else {
            self.turn.pop_front();
        }
        let has_more = self.has_more_than_last(keys);
        let (job, is_left) = self.change(keys, |pair| {
            let Pair { waiting, running_below, .. } = pair;
            let job = waiting.pop_of(&|below| has_more || !running_below.contains_key(&below));
            if let Some((path, _)) = &job {
                pair.begin(Keys { path: *path, store: keys.store }.below());
            }
            if was_idle {
                pair.is_idle = false;
            } else {
                pair.is_listed = !pair.waiting.is_empty();
            }
            (job, pair.is_listed)
        });
        if is_left && !was_idle {
            self.turn.push_back(keys);
        }
        let (path, job) = job?;
        self.waits.give(&path_of_wait(path), 1);
        let keys = Keys { path, store: keys.store };
        Some((Started { keys, run: self.computing.begin() }, job))
    }

    /// Puts pairs whose obstacle is gone back into turn, as many as have room. Returns whether
    /// there were any.
    fn unblock(&mut self) -> bool {
        let mut any = false;
        // Running requests cause the obstacles, so there are not many more obstacles than running
        // requests.
        let obstacles: Vec<Obstacle> = self.blocked.keys().copied().collect();
        for obstacle in obstacles {
            let room = self.room(obstacle);
            if let Some(pairs) = self.blocked.get_mut(&obstacle) {
                let nr = room.min(pairs.len());
                self.turn.extend(pairs.drain(..nr));
                any |= nr > 0;
                if pairs.is_empty() {
                    self.blocked.remove(&obstacle);
                }
            }
        }
        any
    }

    /// Returns the number of running requests.
    pub fn nr_running(&self) -> usize {
        self.nr_running
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.nr_waiting
    }

    /// Removes finished requests.
    pub fn sweep(&mut self) -> Vec<J> {
        self.take_out(|job| job.is_finished())
    }

    /// Removes all waiting requests.
    pub fn clear(&mut self) -> Vec<J> {
        self.take_out(|_| true)
    }

    fn take_out(&mut self, is_meant: impl Fn(&J) -> bool) -> Vec<J> {
        let is_waiting = |(&keys, pair): (&PairKeys, &Pair<J>)| (!pair.waiting.is_empty()).then_some(keys);
        let waiting: Vec<PairKeys> = self.pairs.iter().filter_map(is_waiting).collect();
        let mut taken = Vec::new();
        for keys in waiting {
            taken.extend(self.change(keys, |pair| pair.waiting.take_out(&is_meant)));
        }
        self.given_up(taken)
    }
}

#[cfg(test)]
mod tests;
