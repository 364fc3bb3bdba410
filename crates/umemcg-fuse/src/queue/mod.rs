//! The queue of requests that may sleep: which of them may run, for which groups on which stores,
//! and which wait.
//!
//! A *pair* is a group on a store. Three rules determine whether a request of a pair may start:
//!
//! 1. **The first of its pair may always start**, however many others run: it costs only a thread.
//!    So a store that hangs, or a group with many requests, blocks neither other stores nor other
//!    groups. It is bounded only by the number of threads (`all_max`), of which one group, and one
//!    store, has at most half of what the others leave.
//! 2. **Further ones share the places**: `running_max`, and one more for each request that sleeps,
//!    so that those that sleep take none from the others. A store may have one part of `1 + stores
//!    with requests`, and a group likewise. A pair may have one part of `1 + groups with requests
//!    for the store` of the store's share. The remaining part is for the next one.
//!
//! 3. **No further one starts while too many compute for the processors** (`computing.rs`);
//!    requests that wait for a store do not count.
//!
//! Other requests wait in the queue of their pair, first in first out, and pairs take turns. The
//! number of waiting requests is bounded, too: a group has at most half of what the others leave
//! ([`may_wait`](Queue::may_wait)).
//!
//! A request that waits for its store without a thread ([`parking`](crate::parking)) is counted
//! here, and waits among the others of its group. When it goes on it holds pages and claims that
//! running requests may be waiting for. So it gets keys of its own
//! ([`to_go_on`](Keys::to_go_on)), and the first of such a pair starts whatever runs.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use umemcg_base::Wait;

use crate::computing::{Computing, Run};

/// The group that pays for a request, and the store that it may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Keys {
    /// Serial number of the group.
    pub group: u64,
    /// Number of the store.
    pub store: u64,
}

/// Added to the keys of requests that go on.
const GOES_ON: u64 = 1 << 62;

impl Keys {
    /// Returns the keys under which a request with these keys goes on after it was parked.
    pub(crate) fn to_go_on(self) -> Self {
        Self { group: self.group | GOES_ON, store: self.store | GOES_ON }
    }

    fn goes_on(self) -> bool {
        self.group & self.store & GOES_ON != 0
    }
}

/// An item that waits.
pub(crate) trait Waiting {
    /// Returns whether the request has been answered, or its caller has gone.
    fn is_finished(&self) -> bool;
}

/// The numbers of requests that may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConcurrencyLimits {
    /// Shared among all, beside the places of those that sleep; half of them are the most that one
    /// group has, and one store.
    pub running_max: usize,
    /// This many start altogether, asleep or not.
    pub all_max: usize,
    /// This many of them may compute at the same time.
    pub computing_max: usize,
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
    /// The store, the group or the pair has its share.
    Store(u64),
    Group(u64),
    Pair(Keys),
    /// Not even a first request may start: too many run in all, for the store or for the group.
    FirstOfAll,
    FirstOfStore(u64),
    FirstOfGroup(u64),
}

/// The length from which a queue is swept.
const SWEEP_LEN_MIN: usize = 64;
/// Requests that may wait, of all groups together: most of what the kernel hands out at a time.
const NR_WAITING_MAX: usize = 48 << 10;

/// A group on a store.
#[derive(Debug)]
struct Pair<J> {
    nr_running: usize,
    waiting: VecDeque<J>,
    /// The pair is in `turn` or in `blocked`, at most once.
    is_listed: bool,
    /// The pair is in `idle`, at most once.
    is_idle: bool,
}

impl<J> Pair<J> {
    fn is_active(&self) -> bool {
        self.nr_running > 0 || !self.waiting.is_empty()
    }
}

/// A group, or a store, with an active pair.
#[derive(Debug, Default)]
struct LoadCounts {
    nr_pairs: usize,
    nr_running: usize,
    nr_waiting: usize,
}

/// Counts of what runs, and queues of what waits.
#[derive(Debug)]
pub(crate) struct Queue<J> {
    places: ConcurrencyLimits,
    computing: Computing,
    nr_running: usize,
    /// Of those, the ones that have said that they wait.
    nr_asleep: usize,
    nr_waiting: usize,
    pairs: HashMap<Keys, Pair<J>>,
    groups: HashMap<u64, LoadCounts>,
    stores: HashMap<u64, LoadCounts>,
    /// Pairs with waiting requests that may be able to start one, in turn.
    turn: VecDeque<Keys>,
    /// Pairs that cannot start one, by their obstacle, so that a thousand of them are not checked
    /// whenever a request ends.
    blocked: HashMap<Obstacle, VecDeque<Keys>>,
    /// Pairs with waiting and no running requests: rule 1 is checked for them, wherever they are
    /// listed.
    idle: VecDeque<Keys>,
    /// Requests that wait for their store without a thread, by group; only groups that have some.
    parked: HashMap<u64, usize>,
    nr_parked: usize,
}

impl<J: Waiting> Queue<J> {
    pub fn new(places: ConcurrencyLimits) -> Self {
        Self {
            places,
            computing: Computing::new(places.computing_max),
            nr_running: 0,
            nr_asleep: 0,
            nr_waiting: 0,
            pairs: HashMap::new(),
            groups: HashMap::new(),
            stores: HashMap::new(),
            turn: VecDeque::new(),
            blocked: HashMap::new(),
            idle: VecDeque::new(),
            parked: HashMap::new(),
            nr_parked: 0,
        }
    }

    fn running_of_group(&self, group: u64) -> usize {
        self.groups.get(&group).map_or(0, |side| side.nr_running)
    }

    fn running_of_store(&self, store: u64) -> usize {
        self.stores.get(&store).map_or(0, |side| side.nr_running)
    }

    fn running_of_pair(&self, keys: Keys) -> usize {
        self.pairs.get(&keys).map_or(0, |pair| pair.nr_running)
    }

    /// Returns how many more requests could start before `obstacle` is in the way.
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
            Obstacle::Group(group) => (part(&self.groups, group), self.running_of_group(group)),
            Obstacle::Pair(keys) => {
                let is_new = self.pairs.get(&keys).is_none_or(|pair| !pair.is_active());
                let others = self.stores.get(&keys.store).map_or(0, |store| store.nr_pairs);
                let nr_wanting = others + usize::from(is_new);
                ((part(&self.stores, keys.store) / (nr_wanting + 1)).max(1), self.running_of_pair(keys))
            }
            Obstacle::FirstOfAll => (self.places.all_max, self.nr_running),
            Obstacle::FirstOfStore(store) => (self.nr_left(), self.running_of_store(store)),
            Obstacle::FirstOfGroup(group) => (self.nr_left(), self.running_of_group(group)),
        };
        may.saturating_sub(has)
    }

    /// Returns how many more requests could run altogether.
    fn nr_left(&self) -> usize {
        self.places.all_max.saturating_sub(self.nr_running)
    }

    /// Returns the obstacle that keeps this pair from starting a request, if there is one.
    fn obstacle(&self, keys: Keys) -> Option<Obstacle> {
        let Keys { group, store } = keys;
        let obstacles = if self.running_of_pair(keys) == 0 && keys.goes_on() {
            &[][..]
        } else if self.running_of_pair(keys) == 0 {
            &[Obstacle::FirstOfAll, Obstacle::FirstOfGroup(group), Obstacle::FirstOfStore(store)][..]
        } else {
            &[
                Obstacle::All,
                Obstacle::Store(store),
                Obstacle::Group(group),
                Obstacle::Pair(keys),
                Obstacle::Processors,
            ]
        };
        obstacles.iter().copied().find(|&obstacle| self.room(obstacle) == 0)
    }

    /// Returns whether a request with these keys may start. It may not overtake others of its pair.
    pub fn may_start(&self, keys: Keys) -> bool {
        self.pairs.get(&keys).is_none_or(|pair| pair.waiting.is_empty()) && self.obstacle(keys).is_none()
    }

    /// Returns whether another request of this group may wait, here or for its store.
    pub fn may_wait(&self, keys: Keys) -> bool {
        let parked = self.parked.get(&keys.group).copied().unwrap_or(0);
        let waiting = parked + self.groups.get(&keys.group).map_or(0, |side| side.nr_waiting);
        waiting < NR_WAITING_MAX.saturating_sub(self.nr_waiting + self.nr_parked)
    }

    /// Counts a request that waits for its store without a thread, if it may.
    pub fn park(&mut self, keys: Keys) -> bool {
        let may = self.may_wait(keys);
        if may {
            self.nr_parked += 1;
            *self.parked.entry(keys.group).or_default() += 1;
        }
        may
    }

    /// Notes that it waits no more.
    pub fn unpark(&mut self, keys: Keys) {
        self.nr_parked -= 1;
        if let Some(parked) = self.parked.get_mut(&keys.group) {
            *parked -= 1;
            if *parked == 0 {
                self.parked.remove(&keys.group);
            }
        }
    }

    /// Returns the number of requests that wait for their store without a thread.
    pub fn nr_parked(&self) -> usize {
        self.nr_parked
    }

    /// Changes a pair, and updates the counts of its group and its store.
    fn change<R>(&mut self, keys: Keys, act: impl FnOnce(&mut Pair<J>) -> R) -> R {
        let fresh = || Pair { nr_running: 0, waiting: VecDeque::new(), is_listed: false, is_idle: false };
        let pair = self.pairs.entry(keys).or_insert_with(fresh);
        let before = (pair.is_active(), pair.nr_running, pair.waiting.len());
        let result = act(pair);
        let after = (pair.is_active(), pair.nr_running, pair.waiting.len());
        if !after.0 && !pair.is_listed && !pair.is_idle {
            self.pairs.remove(&keys);
        }
        self.nr_running = self.nr_running + after.1 - before.1;
        self.nr_waiting = self.nr_waiting + after.2 - before.2;
        for (sides, key) in [(&mut self.groups, keys.group), (&mut self.stores, keys.store)] {
            let side = sides.entry(key).or_default();
            side.nr_pairs = side.nr_pairs + usize::from(after.0) - usize::from(before.0);
            side.nr_running = side.nr_running + after.1 - before.1;
            side.nr_waiting = side.nr_waiting + after.2 - before.2;
            if side.nr_pairs == 0 {
                sides.remove(&key);
            }
        }
        result
    }

    /// Counts a request of these keys as running.
    pub fn started(&mut self, keys: Keys) -> Started {
        self.change(keys, |pair| pair.nr_running += 1);
        Started { keys, run: self.computing.begin() }
    }

    /// Notes that a running request waits and needs no processor meanwhile.
    pub fn waits(&mut self, run: Run, how: Wait) -> Run {
        self.nr_asleep += usize::from(!run.is_asleep());
        self.computing.waits(run, how)
    }

    /// Notes that it continues.
    pub fn goes_on(&mut self, run: Run) -> Run {
        self.nr_asleep -= usize::from(run.is_asleep());
        self.computing.goes_on(run)
    }

    /// Returns, if a request waits only for a processor, the time after which to check the
    /// computing requests again.
    pub fn wants_processor(&mut self) -> Option<Duration> {
        (self.nr_waiting > 0 && self.blocked.contains_key(&Obstacle::Processors))
            .then(|| self.computing.expire())
    }

    /// Notes that it has ended.
    pub fn finished(&mut self, started: &Started) {
        self.nr_asleep -= usize::from(started.run.is_asleep());
        self.computing.end(started.run);
        let keys = started.keys;
        let is_idle = self.change(keys, |pair| {
            pair.nr_running -= 1;
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
        let mut settled = Vec::new();
        let (is_new, is_idle) = self.change(keys, |pair| {
            // Requests that were killed while they waited are removed whenever the queue has
            // doubled, so they never make up most of it.
            if pair.waiting.len() >= SWEEP_LEN_MIN && pair.waiting.len().is_power_of_two() {
                let (out, stays): (Vec<J>, _) = pair.waiting.drain(..).partition(J::is_finished);
                (settled, pair.waiting) = (out, stays.into());
            }
            pair.waiting.push_back(job);
            // The pair may still be listed from a time when it had running requests.
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
        settled
    }

    /// Returns the next pair that may start a request, if any; it is at the front of its list.
    fn find(&mut self) -> Option<Keys> {
        // Every round finds a pair, moves one to `blocked` or drops one, so the loop ends.
        loop {
            let Some(&keys) = self.turn.front() else {
                if self.unblock() {
                    continue;
                }
                return self.find_idle();
            };
            let has_waiting = self.pairs.get(&keys).is_some_and(|pair| !pair.waiting.is_empty());
            match self.obstacle(keys) {
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

    /// Returns a pair that may start by rule 1 and is listed under an obstacle of rule 2.
    fn find_idle(&mut self) -> Option<Keys> {
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

    /// Returns whether something that waits may start.
    pub fn may_pick(&mut self) -> bool {
        self.nr_waiting > 0 && self.find().is_some()
    }

    /// Returns the next request that may start, if any; it counts as running.
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
        let (job, is_left) = self.change(keys, |pair| {
            let job = pair.waiting.pop_front();
            pair.nr_running += usize::from(job.is_some());
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
        let job = job?;
        Some((Started { keys, run: self.computing.begin() }, job))
    }

    /// Puts pairs whose obstacle is gone back into turn, as many as there is room for. Returns
    /// whether there were any.
    fn unblock(&mut self) -> bool {
        let mut any = false;
        // Each obstacle is caused by running requests, so there are not many more obstacles than
        // running requests.
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

    /// Returns the number of requests that run.
    pub fn nr_running(&self) -> usize {
        self.nr_running
    }

    /// Returns the number of requests that wait.
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
        let waiting: Vec<Keys> =
            self.pairs.iter().filter(|(_, pair)| !pair.waiting.is_empty()).map(|(&keys, _)| keys).collect();
        let mut taken = Vec::new();
        for keys in waiting {
            self.change(keys, |pair| {
                let (out, stays): (VecDeque<J>, _) = pair.waiting.drain(..).partition(&is_meant);
                pair.waiting = stays;
                taken.extend(out);
            });
        }
        taken
    }
}

#[cfg(test)]
mod tests;
