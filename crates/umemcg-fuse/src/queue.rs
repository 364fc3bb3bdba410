//! Requests that may sleep and may not start yet, because their group or their store has enough of them running.
//!
//! They wait in a queue for each pair of group and store, first in first out, and the pairs take turns.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

/// Who pays for a request and which store it may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Keys {
    /// Serial number of the group.
    pub group: u64,
    /// Number of the store.
    pub store: u64,
}

/// What waits.
pub(crate) trait Waiting {
    /// Nobody wants it any more.
    fn is_settled(&self) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Group(u64),
    Store(u64),
}

impl Keys {
    fn each(self) -> [Key; 2] {
        [Key::Group(self.group), Key::Store(self.store)]
    }
}

/// Sweeps of a queue begin at this length.
const SWEEP_LEN_MIN: usize = 64;

/// Counts of what runs, and queues of what waits.
#[derive(Debug)]
pub(crate) struct Queue<J> {
    running_max: usize,
    nr_running: usize,
    running: HashMap<Key, usize>,
    queues: HashMap<Keys, VecDeque<J>>,
    /// Pairs with a queue, in turn. Every pair in `queues` is here or in `blocked`, once.
    turn: VecDeque<Keys>,
    /// Pairs with a queue that wait until this key may start something, so that a thousand of them are not asked
    /// whenever a request ends.
    blocked: HashMap<Key, VecDeque<Keys>>,
}

impl<J: Waiting> Queue<J> {
    /// Of `running_max` places.
    pub fn new(running_max: usize) -> Self {
        Self {
            running_max,
            nr_running: 0,
            running: HashMap::new(),
            queues: HashMap::new(),
            turn: VecDeque::new(),
            blocked: HashMap::new(),
        }
    }

    /// How many more requests of `key` may start now.
    fn room(&self, key: Key) -> usize {
        let free = self.running_max.saturating_sub(self.nr_running);
        free.saturating_sub(self.running.get(&key).copied().unwrap_or(0))
    }

    /// The key that keeps this pair from starting anything, if one does.
    fn obstacle(&self, keys: Keys) -> Option<Key> {
        keys.each().into_iter().find(|&key| self.room(key) == 0)
    }

    /// Whether a request of these keys may start. It may not pass others of the same pair.
    pub fn may_start(&self, keys: Keys) -> bool {
        !self.queues.contains_key(&keys) && self.obstacle(keys).is_none()
    }

    /// A request of these keys runs.
    pub fn started(&mut self, keys: Keys) {
        self.nr_running += 1;
        for key in keys.each() {
            *self.running.entry(key).or_insert(0) += 1;
        }
    }

    /// It runs no more.
    pub fn finished(&mut self, keys: Keys) {
        self.nr_running -= 1;
        for key in keys.each() {
            if let Entry::Occupied(mut running) = self.running.entry(key) {
                *running.get_mut() -= 1;
                if *running.get() == 0 {
                    running.remove();
                }
            }
        }
    }

    /// Lets a request wait.
    pub fn push(&mut self, keys: Keys, job: J) {
        match self.queues.entry(keys) {
            Entry::Vacant(place) => {
                place.insert(VecDeque::from([job]));
                self.turn.push_back(keys);
            }
            Entry::Occupied(mut place) => {
                let queue = place.get_mut();
                // What was killed while it waited goes whenever the queue has doubled, so that it never is the bulk of it.
                if queue.len() >= SWEEP_LEN_MIN && queue.len().is_power_of_two() {
                    queue.retain(|job| !job.is_settled());
                }
                queue.push_back(job);
            }
        }
    }

    /// The next request that may start, if any; it counts as running.
    pub fn pick(&mut self) -> Option<(Keys, J)> {
        // Every round starts a request, moves a pair to `blocked` or removes it, so the loop ends.
        loop {
            let Some(keys) = self.turn.pop_front() else {
                if self.unblock() {
                    continue;
                }
                return None;
            };
            if let Some(key) = self.obstacle(keys) {
                self.blocked.entry(key).or_default().push_back(keys);
                continue;
            }
            let Some(queue) = self.queues.get_mut(&keys) else { continue };
            let job = queue.pop_front();
            if queue.is_empty() {
                self.queues.remove(&keys);
            } else {
                self.turn.push_back(keys);
            }
            if let Some(job) = job {
                self.started(keys);
                return Some((keys, job));
            }
        }
    }

    /// Whether [`pick`](Self::pick) may find something.
    pub fn may_pick(&self) -> bool {
        !self.turn.is_empty()
    }

    /// Puts pairs back into turn whose key has room again, as many as there is room for. Whether there were any.
    fn unblock(&mut self) -> bool {
        if self.blocked.is_empty() {
            return false;
        }
        let mut any = false;
        // A blocked key has something running, so there are never more of them than running requests.
        let keys: Vec<Key> = self.blocked.keys().copied().collect();
        for key in keys {
            let room = self.room(key);
            if let Some(pairs) = self.blocked.get_mut(&key) {
                let nr = room.min(pairs.len());
                self.turn.extend(pairs.drain(..nr));
                any |= nr > 0;
                if pairs.is_empty() {
                    self.blocked.remove(&key);
                }
            }
        }
        any
    }

    /// Requests that run.
    pub fn nr_running(&self) -> usize {
        self.nr_running
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// Takes out all that waits.
    pub fn clear(&mut self) -> Vec<J> {
        self.turn.clear();
        self.blocked.clear();
        self.queues.drain().flat_map(|(_, queue)| queue).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Job(u32);

    impl Waiting for Job {
        fn is_settled(&self) -> bool {
            self.0 == u32::MAX
        }
    }

    /// Whether it was started; else it waits.
    fn ask(queue: &mut Queue<Job>, group: u64, store: u64, job: u32) -> bool {
        let keys = Keys { group, store };
        let may_start = queue.may_start(keys);
        match may_start {
            true => queue.started(keys),
            false => queue.push(keys, Job(job)),
        }
        may_start
    }

    /// Finishes one and starts the next until nothing waits; the order.
    fn drain(queue: &mut Queue<Job>, first: Keys) -> Vec<u32> {
        let mut order = Vec::new();
        let mut keys = first;
        loop {
            queue.finished(keys);
            let Some((next, Job(job))) = queue.pick() else { return order };
            order.push(job);
            keys = next;
        }
    }

    #[test]
    fn one_key_holds_at_most_half_of_the_places() {
        let mut queue = Queue::new(16);
        let started = (0..100).filter(|&n| ask(&mut queue, n.into(), 7, n)).count();
        assert_eq!((started, queue.len()), (8, 92));
        assert!(ask(&mut queue, 1000, 8, 0));
    }

    #[test]
    fn many_greedy_keys_leave_room_for_a_newcomer() {
        let mut queue = Queue::new(16);
        for store in 0..4 {
            for n in 0..100 {
                ask(&mut queue, 100 + store, store, n);
            }
        }
        assert!(ask(&mut queue, 1, 1000, 0));
    }

    #[test]
    fn what_waits_starts_in_order_and_pairs_take_turns() {
        let mut queue = Queue::new(2);
        assert!(ask(&mut queue, 1, 1, 0));
        for job in 1..4 {
            assert!(!ask(&mut queue, 1, 1, job));
        }
        for job in 10..12 {
            assert!(!ask(&mut queue, 2, 1, job));
        }
        assert_eq!(drain(&mut queue, Keys { group: 1, store: 1 }), [1, 10, 2, 11, 3]);
        assert_eq!((queue.len(), queue.nr_running()), (0, 0));
    }

    #[test]
    fn killed_requests_do_not_pile_up() {
        let mut queue = Queue::new(2);
        ask(&mut queue, 1, 1, 0);
        for _ in 0..10_000 {
            assert!(!ask(&mut queue, 1, 1, u32::MAX));
        }
        assert!(queue.len() <= SWEEP_LEN_MIN);
    }

    #[test]
    fn many_pairs_that_wait_for_one_store_are_all_served() {
        let mut queue = Queue::new(2);
        ask(&mut queue, 1, 1, 0);
        for group in 2..50 {
            ask(&mut queue, group, 1, 5);
        }
        assert_eq!(drain(&mut queue, Keys { group: 1, store: 1 }).len(), 48);
    }
}
