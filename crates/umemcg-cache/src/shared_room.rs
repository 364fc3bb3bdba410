//! Room shared by requests: each claims a part of it, and waits in a queue while it is full.
//!
//! A claim counts against its group and the groups above, down to the third level; a claim on a
//! store also counts against the store, and against these groups on this store. Each of these
//! parties has a limited part of the room; the part of a group is at most half of the part of the
//! group above it. A request without room waits in the queue of its group and store. Tenants take
//! turns, and so do the groups in a tenant, level by level, and the stores of a group
//! ([`TurnQueue`]). So a tenant gains no turns by having many groups, and a claim costs the same
//! however many requests of a group wait.
//!
//! The first claim of a tenant on a store needs no room, so hanging stores take none from the
//! others. There are at most as many first claims as the room is large. Of these, a group or a
//! store has at most half of the number left by the others.
//!
//! A thread that returns room hands it to the waiters itself. A waiter may return its room at once:
//! that adds to the loop of the first thread, and does not recurse.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use umemcg_base::{LeafMutex, contained};
use umemcg_group::{Group, GroupPath, TurnQueue};

use crate::store::StoreId;

/// Callback that receives an awaited claim.
pub(crate) type TakeClaim = Box<dyn FnOnce(Claim) + Send>;

/// The maker of a claim: a group, and the store of its file where stores matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Claimant {
    path: GroupPath,
    store: Option<StoreId>,
}

/// A party whose claims are added up: a group, a store, or a group on one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Party {
    Group(u64),
    Store(StoreId),
    GroupOnStore(u64, StoreId),
}

/// A group may have one part in this many of the room on one store, or where stores do not matter.
const SHARE: u64 = 4;
/// The same for a group on all stores together, and for a store with all groups together.
const WIDE_SHARE: u64 = 2;
/// Levels at which groups are parties. Groups further down share the part of their ancestor at the
/// last one: a part of that may be too small for a single request.
const NR_LEVELS: usize = 3;
/// The same for a group at the last of these levels.
pub(crate) const LEAST_SHARE: u64 = SHARE << (NR_LEVELS - 1);
/// Spare claims may fill one part in this many of each part.
const SPARE_PART: u64 = 2;
/// All claims together, first claims included, are at most this many times the room.
pub(crate) const WITH_FIRST: u64 = 2;

impl Claimant {
    pub(crate) fn of_group(group: &Group) -> Self {
        Self { path: GroupPath::of(group), store: None }
    }

    pub(crate) fn on_store(group: &Group, store: StoreId) -> Self {
        Self { path: GroupPath::of(group), store: Some(store) }
    }

    /// Returns the parties against which its claims count, each with its part of the room.
    fn parties(&self) -> impl Iterator<Item = (Party, u64)> {
        let levels = self.path.levels().iter().take(NR_LEVELS).enumerate();
        let share = if self.store.is_some() { WIDE_SHARE } else { SHARE };
        let groups = levels.clone().map(move |(depth, &group)| (Party::Group(group), share << depth));
        let on_store = self.store.into_iter().flat_map(move |store| {
            let on =
                move |(depth, &group): (usize, &u64)| (Party::GroupOnStore(group, store), SHARE << depth);
            levels.clone().map(on).chain([(Party::Store(store), WIDE_SHARE)])
        });
        groups.chain(on_store)
    }
}

/// A request waiting for a claim.
struct Waiter {
    nr: u64,
    take: TakeClaim,
}

#[derive(Default)]
struct Claims {
    nr: u64,
    /// Only parties with claims.
    by_party: HashMap<Party, u64>,
    /// Only claimants with waiting requests.
    waiting: HashMap<Claimant, VecDeque<Waiter>>,
    /// The number of waiting requests on each store; only stores with any.
    waiting_on: HashMap<StoreId, usize>,
    /// The keys of `waiting`.
    turns: TurnQueue<Claimant>,
    /// Claims made for waiters and not handed over yet.
    made: VecDeque<(TakeClaim, Claim)>,
    /// A thread is handing over the claims in `made`.
    is_handing_over: bool,
}

impl Claims {
    fn of_party(&self, party: Party) -> u64 {
        self.by_party.get(&party).copied().unwrap_or(0)
    }

    fn waits_no_more(&mut self, claimant: Claimant) {
        let Some(store) = claimant.store else { return };
        match self.waiting_on.get_mut(&store) {
            Some(nr) if *nr > 1 => *nr -= 1,
            _ => drop(self.waiting_on.remove(&store)),
        }
    }

    fn give_back(&mut self, claimant: Claimant, nr: u64) {
        self.nr -= nr;
        for (party, _) in claimant.parties() {
            if let Some(of_party) = self.by_party.get_mut(&party) {
                *of_party -= nr;
                if *of_party == 0 {
                    self.by_party.remove(&party);
                }
            }
        }
    }
}

/// See the module text.
pub(crate) struct SharedRoom {
    max: u64,
    claims: LeafMutex<Claims>,
}

impl SharedRoom {
    pub(crate) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, claims: LeafMutex::default() })
    }

    /// Claims `nr` if there is room and no earlier request of the same group and store waits.
    pub(crate) fn try_claim(self: &Arc<Self>, claimant: Claimant, nr: u64) -> Option<Claim> {
        let mut claims = self.claims.lock();
        let is_next = !claims.waiting.contains_key(&claimant);
        (is_next && self.has_room(&claims, claimant, nr)).then(|| self.make(&mut claims, claimant, nr))
    }

    /// Claims `nr` for work that can be left undone: only if no request waits, and neither the room
    /// nor the part of any party is then more than half claimed.
    pub(crate) fn try_claim_spare(self: &Arc<Self>, claimant: Claimant, nr: u64) -> Option<Claim> {
        let mut claims = self.claims.lock();
        let has_room = claims.turns.is_empty()
            && claims.nr + nr <= self.max / SPARE_PART
            && claimant
                .parties()
                .all(|(party, part)| claims.of_party(party) + nr <= self.max / part / SPARE_PART);
        has_room.then(|| self.make(&mut claims, claimant, nr))
    }

    /// Hands a claim to `take`, immediately or on a thread that makes room. `take` must not wait.
    pub(crate) fn when_room(self: &Arc<Self>, claimant: Claimant, nr: u64, take: TakeClaim) {
        let claim = {
            let mut claims = self.claims.lock();
            let is_next = !claims.waiting.contains_key(&claimant);
            if !is_next || !self.has_room(&claims, claimant, nr) {
                if is_next {
                    claims.turns.push(claimant.path, claimant);
                }
                if let Some(store) = claimant.store {
                    *claims.waiting_on.entry(store).or_default() += 1;
                }
                return claims.waiting.entry(claimant).or_default().push_back(Waiter { nr, take });
            }
            self.make(&mut claims, claimant, nr)
        };
        take(claim);
    }

    fn has_room(&self, claims: &Claims, claimant: Claimant, nr: u64) -> bool {
        let has_room = claims.nr + nr <= self.max
            && claimant.parties().all(|(party, part)| claims.of_party(party) + nr <= self.max / part);
        has_room || self.may_be_first(claims, claimant, nr)
    }

    /// Returns whether this is the first claim of the group on the store, and may exceed the room.
    fn may_be_first(&self, claims: &Claims, claimant: Claimant, nr: u64) -> bool {
        let left = (WITH_FIRST * self.max).saturating_sub(claims.nr);
        let mut sums = claimant.parties().map(|(party, _)| (party, claims.of_party(party)));
        claimant.store.is_some()
            && sums.all(|(party, sum)| match party {
                Party::GroupOnStore(..) => sum == 0,
                Party::Group(_) | Party::Store(_) => sum + nr <= left,
            })
    }

    fn make(self: &Arc<Self>, claims: &mut Claims, claimant: Claimant, nr: u64) -> Claim {
        claims.nr += nr;
        for (party, _) in claimant.parties() {
            *claims.by_party.entry(party).or_default() += nr;
        }
        Claim { room: Arc::clone(self), claimant, nr }
    }

    /// Returns whether the next waiting request of a claimant has room.
    fn next_has_room(&self, claims: &Claims, claimant: Claimant) -> bool {
        let next = claims.waiting.get(&claimant).and_then(VecDeque::front);
        next.is_some_and(|waiter| self.has_room(claims, claimant, waiter.nr))
    }

    /// Makes the claims of waiting requests as long as there is room, one from each queue in turn.
    fn make_awaited(self: &Arc<Self>, claims: &mut Claims) {
        let mut turns = std::mem::take(&mut claims.turns);
        loop {
            let next = turns.pop_fitting(&|&claimant| self.next_has_room(claims, claimant));
            let Some((path, claimant)) = next else { break };
            let Some(queue) = claims.waiting.get_mut(&claimant) else { continue };
            let waiter = queue.pop_front();
            if queue.is_empty() {
                claims.waiting.remove(&claimant);
            } else {
                turns.push(path, claimant);
            }
            if let Some(Waiter { nr, take }) = waiter {
                claims.waits_no_more(claimant);
                let claim = self.make(claims, claimant, nr);
                claims.made.push_back((take, claim));
            }
        }
        claims.turns = turns;
    }

    fn give_back(self: &Arc<Self>, claimant: Claimant, nr: u64) {
        let mut claims = self.claims.lock();
        claims.give_back(claimant, nr);
        self.make_awaited(&mut claims);
        if claims.made.is_empty() || std::mem::replace(&mut claims.is_handing_over, true) {
            return;
        }
        while let Some((take, claim)) = claims.made.pop_front() {
            drop(claims);
            if let Err(panic) = contained(|| take(claim)) {
                tracing::error!(%panic, "a callback of a read panicked");
            }
            claims = self.claims.lock();
        }
        claims.is_handing_over = false;
    }

    /// Returns the amount claimed on a store, and the number of requests waiting for more.
    pub(crate) fn on_store(&self, store: StoreId) -> (u64, u64) {
        let claims = self.claims.lock();
        let nr_waiting = claims.waiting_on.get(&store).copied().unwrap_or(0);
        (claims.of_party(Party::Store(store)), nr_waiting as u64)
    }

    /// Returns how much is claimed, and how many queues wait.
    #[cfg(test)]
    pub(crate) fn nr_claimed_and_waiting(&self) -> (u64, usize) {
        let claims = self.claims.lock();
        (claims.nr, claims.turns.len())
    }
}

impl fmt::Debug for SharedRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRoom").field("max", &self.max).finish_non_exhaustive()
    }
}

/// A part of the room; returned when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    room: Arc<SharedRoom>,
    claimant: Claimant,
    nr: u64,
}

impl Claim {
    /// Returns the amount claimed.
    pub(crate) fn nr(&self) -> u64 {
        self.nr
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.room.give_back(self.claimant, self.nr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    const MAX: u64 = 64;

    fn on(group: u64, store: u64) -> Claimant {
        Claimant { path: GroupPath::new(&[group]), store: Some(StoreId(store)) }
    }

    fn all(room: &Arc<SharedRoom>, claimant: Claimant) -> Vec<Claim> {
        std::iter::from_fn(|| room.try_claim(claimant, 1)).collect()
    }

    /// Has claimants wait for one each; the claims come with their places in the list.
    fn wait(room: &Arc<SharedRoom>, claimants: &[Claimant]) -> Receiver<(usize, Claim)> {
        let (sender, receiver) = channel();
        for (at, claimant) in claimants.iter().enumerate() {
            let sender = sender.clone();
            room.when_room(*claimant, 1, Box::new(move |claim| drop(sender.send((at, claim)))));
        }
        receiver
    }

    fn check_empty(room: &SharedRoom) {
        let claims = room.claims.lock();
        assert_eq!(claims.nr, 0);
        assert!(claims.by_party.is_empty() && claims.waiting.is_empty() && claims.turns.is_empty());
        assert!(claims.waiting_on.is_empty());
    }

    #[test]
    fn neither_a_group_nor_a_store_takes_all_room() {
        let room = SharedRoom::new(MAX);
        let of_a_store = all(&room, on(1, 1));
        assert_eq!(of_a_store.len() as u64, MAX / SHARE);
        // Behind the first of them, each has its first claim alone.
        let most = (MAX / WIDE_SHARE + 7) as usize;
        let of_others: Vec<_> = (2..10).flat_map(|store| all(&room, on(1, store))).collect();
        assert_eq!(of_a_store.len() + of_others.len(), most, "of one group");
        assert!(all(&room, on(2, 1)).len() > 1, "another group has room on the store");
        drop(of_others);
        let of_others: Vec<_> = (2..10).flat_map(|group| all(&room, on(group, 1))).collect();
        assert_eq!(of_a_store.len() + of_others.len(), most, "of one store");
        assert!(all(&room, on(1, 2)).len() > 1, "the group has room on another store");
        drop((of_a_store, of_others));
        check_empty(&room);
    }

    #[test]
    fn a_hundred_groups_of_a_tenant_have_no_more_than_one() {
        let room = SharedRoom::new(MAX);
        let below = |nr: u64| Claimant { path: GroupPath::new(&[1, 100 + nr]), store: Some(StoreId(1)) };
        let one = all(&room, below(0));
        assert_eq!(one.len() as u64, MAX / SHARE / 2, "which leaves a part for another below");
        let of_others: Vec<_> = (1..100).flat_map(|nr| all(&room, below(nr))).collect();
        assert_eq!((one.len() + of_others.len()) as u64, MAX / SHARE);
        assert_eq!(all(&room, on(2, 1)).len() as u64, MAX / SHARE, "another tenant has its part");
        drop((one, of_others));
        let at_fourth = |nr: u64| Claimant { path: GroupPath::new(&[1, 2, 3, nr]), store: Some(StoreId(1)) };
        let of_many: Vec<_> = (0..100).flat_map(|nr| all(&room, at_fourth(nr))).collect();
        assert_eq!(of_many.len() as u64, MAX / LEAST_SHARE, "as their parent, at the third level");
        drop(of_many);
        check_empty(&room);
    }

    #[test]
    fn what_can_be_done_without_leaves_half_of_each_part() {
        let room = SharedRoom::new(MAX);
        let spare = |of| std::iter::from_fn(|| room.try_claim_spare(of, 1)).collect::<Vec<_>>();
        let ahead = spare(on(1, 1));
        assert_eq!(ahead.len() as u64, MAX / SHARE / SPARE_PART);
        assert_eq!(all(&room, on(1, 1)).len(), ahead.len(), "the other half");
        drop(ahead);
        // Room for one claim, and another request waits for it.
        let mut full: Vec<_> = [on(1, 1), on(1, 2), on(2, 1)].map(|of| all(&room, of)).into();
        let waiting = wait(&room, &[on(1, 1)]);
        full.truncate(1);
        assert!(spare(on(3, 3)).is_empty());
        drop((full, waiting));
        check_empty(&room);
    }

    #[test]
    fn the_first_of_a_group_on_a_store_needs_no_room() {
        let room = SharedRoom::new(MAX);
        let mut hanging: Vec<_> =
            [on(1, 1), on(1, 2), on(2, 1), on(2, 2)].iter().flat_map(|&of| all(&room, of)).collect();
        assert_eq!(hanging.len() as u64, MAX);
        let first = all(&room, on(1, 3));
        assert_eq!(first.len(), 1);
        let waiting = wait(&room, &[on(1, 3)]);
        assert!(waiting.try_recv().is_err(), "a second one does");
        drop(first);
        assert!(waiting.try_recv().is_ok());
        // However many groups have one there.
        hanging.extend((3..1000).flat_map(|group| all(&room, on(group, 1))));
        hanging.extend((3..1000).flat_map(|group| all(&room, on(group, 2))));
        assert!((hanging.len() as u64) < WITH_FIRST * MAX);
        assert_eq!(all(&room, on(1000, 3)).len(), 1);
        drop(hanging);
        check_empty(&room);
    }

    #[test]
    fn those_that_wait_take_turns() {
        let room = SharedRoom::new(MAX);
        let firsts = [on(3, 3), on(4, 4)].map(|of| room.try_claim(of, 1));
        let mut full: Vec<_> = [on(1, 1), on(1, 2), on(2, 1), on(2, 2)].map(|of| all(&room, of)).into();
        let waiting = wait(&room, &[on(1, 1), on(1, 1), on(1, 1), on(3, 3), on(3, 3), on(4, 4)]);
        assert!(waiting.try_recv().is_err());
        let on_stores = || [1, 2, 3, 4].map(|store| room.on_store(StoreId(store)));
        assert_eq!(on_stores(), [(32, 3), (30, 0), (1, 2), (1, 1)]);
        let mut next = || {
            drop(full[0].pop());
            let (at, claim) = waiting.try_recv().unwrap();
            assert!(waiting.try_recv().is_err());
            full[3].push(claim);
            at
        };
        assert_eq!([(); 6].map(|()| next()), [0, 3, 5, 1, 4, 2]);
        assert_eq!(on_stores(), [(29, 0), (30, 0), (3, 0), (2, 0)]);
        drop((full, firsts, waiting));
        check_empty(&room);
    }

    #[test]
    fn a_tenant_with_many_groups_has_every_second_turn() {
        let room = SharedRoom::new(MAX);
        let of = |path: &[u64]| Claimant { path: GroupPath::new(path), store: None };
        let mut full: Vec<_> = (10..14).flat_map(|group| all(&room, of(&[group]))).collect();
        assert_eq!(full.len() as u64, MAX);
        let of_many = (100..110).map(|below| of(&[1, below]));
        let waiting = wait(&room, &of_many.chain([of(&[2]); 4]).collect::<Vec<_>>());
        let mut given = Vec::new();
        let mut next = || {
            drop(full.pop());
            let (at, claim) = waiting.try_recv().unwrap();
            given.push(claim);
            at
        };
        assert_eq!([(); 8].map(|()| next()), [0, 10, 1, 11, 2, 12, 3, 13]);
        drop((full, given, waiting));
        check_empty(&room);
    }

    #[test]
    fn room_that_is_given_back_at_once_nests_nothing() {
        let room = SharedRoom::new(MAX);
        let full = all(&room, on(1, 1));
        for _ in 0..100_000 {
            room.when_room(on(1, 1), 1, Box::new(drop));
        }
        let waiting = wait(&room, &[on(1, 1)]);
        room.when_room(on(1, 1), 1, Box::new(|_| panic!("so much for it")));
        drop(full);
        drop(waiting.try_recv().unwrap());
        check_empty(&room);
    }
}
