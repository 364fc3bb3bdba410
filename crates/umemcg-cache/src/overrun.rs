//! Pages in flight beyond a limit: data I/O continues with these when its group has no room for a
//! page.
//!
//! Data I/O never fails for lack of memory. A request whose group refuses its pages, and has
//! nothing left to reclaim, takes them all the same: they are charged to the group, beyond its
//! limit, and are in the index like all other pages, but only while they are locked. A read takes
//! its pages out of the file again before it answers; a write puts them into the store first. So a
//! group exceeds its limit only by the pages that its requests have in flight, at most
//! [`OVERRUN_PAGES_PER_REQUEST`] for each request.
//!
//! All requests together have [`OVERRUN_PAGES_MAX`] such pages. The arena has frames for these
//! beyond the pool, so a charge in flight always finds a frame. A tenant may have a quarter of
//! these pages, and a group at most half of its parent's part, so a group whose store hangs leaves
//! room for others. A request claims all pages that it will need at once, and holds nothing else
//! awaited by others, so requests never wait for each other in a cycle.

use std::sync::Arc;

use umemcg_base::{Condvar, Idle, LeafMutex, PAGE_SIZE_U64, Rank, Wait, Waiting, assert_may_wait};
use umemcg_group::Group;

use crate::shared_room::{Claim, Claimant, LEAST_SHARE, SharedRoom};

/// Most pages of one request beyond the limit of its group: 1 MiB, the largest read served by a
/// mount.
pub const OVERRUN_PAGES_PER_REQUEST: u64 = 256;
/// Most pages of all requests together beyond limits: 64 MiB.
pub const OVERRUN_PAGES_MAX: u64 = 64 * OVERRUN_PAGES_PER_REQUEST;
/// Size of the frames needed in an arena beyond the pool, in bytes. A frame returns with its last
/// pin, perhaps a moment after the claim of its request. So there is room for twice as many pages.
pub const OVERRUN_ARENA_BYTES: u64 = 2 * OVERRUN_PAGES_MAX * PAGE_SIZE_U64;

/// However deep its group is, a request may have all its pages at once.
const _: () = assert!(OVERRUN_PAGES_MAX / LEAST_SHARE >= OVERRUN_PAGES_PER_REQUEST);

/// Callback that receives an awaited claim.
pub(crate) type TakeClaim = Box<dyn FnOnce(OverrunClaim) + Send>;

/// A thread waiting for a claim.
#[derive(Debug)]
struct ThreadWait {
    claim: LeafMutex<Option<OverrunClaim>>,
    made: Condvar,
}

impl ThreadWait {
    fn put(&self, claim: OverrunClaim) {
        *self.claim.lock() = Some(claim);
        self.made.notify_one();
    }

    fn take(&self) -> OverrunClaim {
        let made = self.claim.lock().take();
        if let Some(claim) = made {
            return claim;
        }
        let _idle = Idle::begin(Wait::Sure);
        let mut claim = self.claim.lock();
        loop {
            if let Some(claim) = claim.take() {
                return claim;
            }
            self.made.wait(&mut claim);
        }
    }
}

/// The room for pages in flight beyond limits, and the claims on it.
#[derive(Debug)]
pub(crate) struct Overrun(Arc<SharedRoom>);

impl Default for Overrun {
    fn default() -> Self {
        Self(SharedRoom::new(OVERRUN_PAGES_MAX))
    }
}

impl Overrun {
    /// Claims `nr_pages` if they are available immediately.
    pub(crate) fn try_claim(&self, group: &Arc<Group>, nr_pages: u64) -> Option<OverrunClaim> {
        let claim = self.0.try_claim(Claimant::of_group(group), nr_pages)?;
        Some(OverrunClaim::new(group, claim))
    }

    /// Claims up to `nr_pages` for a request of `group`, at most [`OVERRUN_PAGES_PER_REQUEST`];
    /// waits until they are available.
    pub(crate) fn claim(&self, group: &Arc<Group>, nr_pages: u64) -> OverrunClaim {
        assert_may_wait(Rank::Overrun, "pages beyond a limit");
        let wait = Arc::new(ThreadWait { claim: LeafMutex::default(), made: Condvar::new(Rank::Overrun) });
        let waits = Arc::clone(&wait);
        self.when_room(group, nr_pages, Box::new(move |claim| waits.put(claim)));
        wait.take()
    }

    /// Hands a claim to `take`, immediately or on the thread that makes room. `take` must not wait.
    /// Requests of a group get their claims in order of arrival.
    pub(crate) fn when_room(&self, group: &Arc<Group>, nr_pages: u64, take: TakeClaim) {
        let of = Arc::clone(group);
        let take = Box::new(move |claim| take(OverrunClaim::new(&of, claim)));
        self.0.when_room(Claimant::of_group(group), nr_pages.min(OVERRUN_PAGES_PER_REQUEST), take);
    }
}

/// Pages of a request beyond its group's limit. The claim is returned when dropped, after the
/// pages.
#[derive(Debug)]
pub(crate) struct OverrunClaim {
    group: Arc<Group>,
    nr_left: u64,
    _claim: Claim,
}

impl OverrunClaim {
    fn new(group: &Arc<Group>, claim: Claim) -> Self {
        Self { group: Arc::clone(group), nr_left: claim.nr(), _claim: claim }
    }

    /// Takes up to `want` of the pages left.
    pub(crate) fn take(&mut self, want: u64) -> u64 {
        let nr = want.min(self.nr_left);
        self.nr_left -= nr;
        nr
    }

    /// Puts back pages not needed, or free again.
    pub(crate) fn put_back(&mut self, nr: u64) {
        self.nr_left += nr;
    }
}

impl Drop for OverrunClaim {
    fn drop(&mut self) {
        self.group.drain_own_stock();
    }
}

/// One request's allowance beyond the limit of its group; claimed when the group refuses a page for
/// the first time.
#[derive(Debug)]
pub(crate) struct RequestClaim {
    /// Pages of the request.
    nr_pages: u64,
    claim: Option<OverrunClaim>,
    /// While the request has a claim it makes no other.
    has_claim: Option<Waiting>,
}

impl RequestClaim {
    pub(crate) fn new(nr_pages: u64) -> Self {
        Self { nr_pages, claim: None, has_claim: None }
    }

    /// Resumes a request from another thread, with its claim.
    pub(crate) fn resume(nr_pages: u64, claim: Option<OverrunClaim>) -> Self {
        let has_claim = claim.is_some().then(|| Waiting::on(Rank::Overrun));
        Self { nr_pages, claim, has_claim }
    }

    /// Makes the claim if its pages are available immediately. Returns whether the claim is made.
    pub(crate) fn try_make(&mut self, overrun: &Arc<Overrun>, group: &Arc<Group>) -> bool {
        if self.claim.is_none() {
            self.claim = overrun.try_claim(group, self.nr_pages.min(OVERRUN_PAGES_PER_REQUEST));
            self.has_claim = self.claim.is_some().then(|| Waiting::on(Rank::Overrun));
        }
        self.claim.is_some()
    }

    /// Returns whether the group has refused a page.
    pub(crate) fn is_made(&self) -> bool {
        self.claim.is_some()
    }

    /// Takes up to `want` pages of the claim. Makes the claim first if there is none, and waits for
    /// it.
    pub(crate) fn take(&mut self, overrun: &Arc<Overrun>, group: &Arc<Group>, want: u64) -> u64 {
        let claim = self.claim.get_or_insert_with(|| {
            let claim = overrun.claim(group, self.nr_pages);
            self.has_claim = Some(Waiting::on(Rank::Overrun));
            claim
        });
        claim.take(want)
    }

    /// Puts back pages not needed, or free again.
    pub(crate) fn put_back(&mut self, nr: u64) {
        if let Some(claim) = &mut self.claim {
            claim.put_back(nr);
        }
    }

    /// Returns the claim, for pages that outlive the request's call.
    pub(crate) fn into_inner(self) -> Option<OverrunClaim> {
        self.claim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_group::GroupTree;

    const GROUP_SHARE: u64 = 4;

    #[test]
    fn a_group_has_a_quarter_and_waits_for_its_own_alone() {
        let tree = GroupTree::new(1 << 30);
        let [a, b] = ["a", "b"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let overrun: Arc<Overrun> = Arc::default();
        let nr = OVERRUN_PAGES_MAX / GROUP_SHARE / OVERRUN_PAGES_PER_REQUEST;
        let mut all: Vec<_> = (0..nr).map(|_| overrun.claim(&a, u64::MAX)).collect();
        assert_eq!(
            all.iter_mut().map(|claim| claim.take(u64::MAX)).sum::<u64>(),
            OVERRUN_PAGES_MAX / GROUP_SHARE
        );
        drop(overrun.claim(&b, 1));
        let next = std::thread::spawn({
            let (overrun, a) = (Arc::clone(&overrun), Arc::clone(&a));
            move || overrun.claim(&a, 7).take(u64::MAX)
        });
        while overrun.0.nr_claimed_and_waiting().1 == 0 {
            std::thread::yield_now();
        }
        all.pop();
        assert_eq!(next.join().unwrap(), 7);
        drop(all);
        assert_eq!(overrun.0.nr_claimed_and_waiting(), (0, 0));
    }

    #[test]
    fn a_group_gets_room_in_the_order_of_its_requests() {
        let tree = GroupTree::new(1 << 30);
        let [a, b] = ["a", "b"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let overrun: Arc<Overrun> = Arc::default();
        let nr = OVERRUN_PAGES_MAX / GROUP_SHARE / OVERRUN_PAGES_PER_REQUEST;
        let mut all: Vec<_> = (0..nr).map(|_| overrun.claim(&a, u64::MAX)).collect();
        let (sent, received) = std::sync::mpsc::channel();
        for (name, nr_pages) in [("large", 200), ("small", 1), ("next", 60)] {
            let sent = sent.clone();
            let take = move |claim| drop(sent.send((name, claim)));
            overrun.when_room(&a, nr_pages, Box::new(take));
        }
        let names = || -> Vec<(&str, OverrunClaim)> { received.try_iter().collect() };
        assert!(names().is_empty() && overrun.try_claim(&b, 1).is_some());
        all.pop();
        let mut got = names();
        assert_eq!(got.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["large", "small"]);
        assert!(overrun.try_claim(&a, 1).is_none(), "it would overtake");
        got.pop();
        assert!(names().is_empty(), "one page more is not enough");
        got.pop();
        assert_eq!(names().len(), 1);
        drop(all);
        assert_eq!(overrun.0.nr_claimed_and_waiting(), (0, 0));
    }
}
