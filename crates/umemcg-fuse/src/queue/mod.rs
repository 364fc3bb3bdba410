//! The queue of requests that may sleep: which of them may run, for which groups on which stores,
//! and which wait.
//!
//! A *pair* is a group on a store. Two rules say whether a request of a pair may start:
//!
//! 1. **The first of its pair may always start**, however many others run: it only costs a thread.
//!    So a store that hangs, or a group with many requests, blocks neither other stores nor other
//!    groups. Only the number of running requests of one group, one store or all together bounds it
//!    (`first_max`).
//! 2. **Further ones share `running_max` places.** A store may have one part of `1 + stores that
//!    want some`, a group likewise, and a pair one part of `1 + groups that want the store` of what
//!    the store may have. The remaining part is for the next one.
//!
//! 3. **No further one starts while too many compute for the processors** (`computing.rs`);
//!    requests that wait for a store do not count.
//!
//! Other requests wait in the queue of their pair, first in first out, and pairs take turns. The
//! number of waiting requests is bounded, too: a group has at most half of what the others leave
//! ([`may_wait`](Queue::may_wait)).

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

/// An item that waits.
pub(crate) trait Waiting {
    /// Returns whether the request has been answered, or its caller has gone.
    fn is_finished(&self) -> bool;
}

/// The numbers of requests that may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConcurrencyLimits {
    /// Shared among all; half of them are the most that one group has, and one store.
    pub running_max: usize,
    /// Beyond that only requests that are the first of their pair start, up to this many
    /// altogether.
    pub first_max: usize,
    /// This many of them may compute at the same time.
    pub computing_max: usize,
}

/// A running request: whose, and which of the runs that compute it is.
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
    /// As many compute as there are processors for.
    Processors,
    /// The store has its part, the group, the pair.
    Store(u64),
    Group(u64),
    Pair(Keys),
    /// Not even the first may start: too many run of all, the store, the group.
    FirstOfAll,
    FirstOfStore(u64),
    FirstOfGroup(u64),
}

/// Sweeps of a queue begin at this length.
const SWEEP_LEN_MIN: usize = 64;
/// Requests that may wait, of all groups together: most of what the kernel hands out at a time.
const NR_WAITING_MAX: usize = 48 << 10;

/// A group on a store.
#[derive(Debug)]
struct Pair<J> {
    nr_running: usize,
    waiting: VecDeque<J>,
    /// It stands in `turn` or in `blocked`; once at most.
    is_listed: bool,
    /// It stands in `idle`; once at most.
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
    nr_waiting: usize,
    pairs: HashMap<Keys, Pair<J>>,
    groups: HashMap<u64, LoadCounts>,
    stores: HashMap<u64, LoadCounts>,
    /// Pairs with something waiting that may be able to start it, in turn.
    turn: VecDeque<Keys>,
    /// Those that are not, by what keeps them, so that a thousand of them are not asked whenever a
    /// request ends.
    blocked: HashMap<Obstacle, VecDeque<Keys>>,
    /// Pairs with something waiting and nothing running: rule 1 is to be looked at, wherever they
    /// are listed.
    idle: VecDeque<Keys>,
}

impl<J: Waiting> Queue<J> {
    pub fn new(places: ConcurrencyLimits) -> Self {
        Self {
            places,
            computing: Computing::new(places.computing_max),
            nr_running: 0,
            nr_waiting: 0,
            pairs: HashMap::new(),
            groups: HashMap::new(),
            stores: HashMap::new(),
            turn: VecDeque::new(),
            blocked: HashMap::new(),
            idle: VecDeque::new(),
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
        let max = self.places.running_max;
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
            Obstacle::FirstOfAll => (self.places.first_max, self.nr_running),
            Obstacle::FirstOfStore(store) => (max, self.running_of_store(store)),
            Obstacle::FirstOfGroup(group) => (max / 2, self.running_of_group(group)),
        };
        may.saturating_sub(has)
    }

    /// Returns what keeps this pair from starting anything, if something does.
    fn obstacle(&self, keys: Keys) -> Option<Obstacle> {
        let Keys { group, store } = keys;
        let obstacles = if self.running_of_pair(keys) == 0 {
            &[Obstacle::FirstOfGroup(group), Obstacle::FirstOfStore(store), Obstacle::FirstOfAll][..]
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

    /// Returns whether a request of these keys may start. It may not pass others of the same pair.
    pub fn may_start(&self, keys: Keys) -> bool {
        self.pairs.get(&keys).is_none_or(|pair| pair.waiting.is_empty()) && self.obstacle(keys).is_none()
    }

    /// Returns whether another request of this group may wait.
    pub fn may_wait(&self, keys: Keys) -> bool {
        let waiting = self.groups.get(&keys.group).map_or(0, |side| side.nr_waiting);
        waiting < NR_WAITING_MAX.saturating_sub(self.nr_waiting)
    }

    /// Changes a pair, and with it what is known of its group and its store.
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

    /// Notes that a running request waits, and needs no processor for as long.
    pub fn waits(&mut self, run: Run, how: Wait) -> Run {
        self.computing.waits(run, how)
    }

    /// Notes that it goes on.
    pub fn goes_on(&mut self, run: Run) -> Run {
        self.computing.goes_on(run)
    }

    /// Returns whether something waits for nothing but a processor; then after what time to look
    /// again at the requests that have them.
    pub fn wants_processor(&mut self) -> Option<Duration> {
        (self.nr_waiting > 0 && self.blocked.contains_key(&Obstacle::Processors))
            .then(|| self.computing.expire())
    }

    /// Notes that it has ended.
    pub fn finished(&mut self, started: &Started) {
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

    /// Lets a request wait. Returns what is no longer wanted, to be dropped with no lock held.
    pub fn push(&mut self, keys: Keys, job: J) -> Vec<J> {
        let mut settled = Vec::new();
        let (is_new, is_idle) = self.change(keys, |pair| {
            // Requests that were killed while they waited are removed whenever the queue has
            // doubled, so that they never are the bulk of it.
            if pair.waiting.len() >= SWEEP_LEN_MIN && pair.waiting.len().is_power_of_two() {
                let (out, stays): (Vec<J>, _) = pair.waiting.drain(..).partition(J::is_finished);
                (settled, pair.waiting) = (out, stays.into());
            }
            pair.waiting.push_back(job);
            // It may still be listed from a time when it had something running.
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

    /// Returns the next pair that may start a request, if any; it stands at the front of its list.
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

    /// Puts pairs back into turn whose obstacle has gone, as many as there is room for. Whether
    /// there were any.
    fn unblock(&mut self) -> bool {
        let mut any = false;
        // An obstacle is something running, so there are never many more of these than running
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

    /// Returns the number of requests that run.
    pub fn nr_running(&self) -> usize {
        self.nr_running
    }

    /// Returns the number of requests that wait.
    pub fn len(&self) -> usize {
        self.nr_waiting
    }

    /// Takes out what is no longer wanted.
    pub fn sweep(&mut self) -> Vec<J> {
        self.take_out(|job| job.is_finished())
    }

    /// Takes out all that waits.
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
