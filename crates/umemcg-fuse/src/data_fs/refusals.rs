//! Requests refused because too many of their tenant wait.
//!
//! Every refusal is sent late: a caller refused at once would retry at once. Beyond the tenant's
//! share of late refusals, they are sent later still, so that tens of thousands of them cost the
//! daemon and the kernel no more than as many requests a second. The kernel's bound on requests
//! bounds their number: a request occupies its place there until it has been answered. In the
//! daemon each one is charged to its group ([`charge_held`]).

use std::time::Duration;

use rustix::io::Errno;
use umemcg::Group;
use umemcg_base::RateLimit;
use umemcg_base::clock::{Clock, SystemClock};

use crate::classify::Payer;
use crate::delayed_replies::DelayQueue;
use crate::reply::{Answer, RecheckFn, Reply, holding};
use crate::request::Request;
use crate::wait_charge::{SharedBound, charge_held};

/// The delay of a refusal within the share of its tenant.
const REFUSED_AFTER: Duration = Duration::from_millis(100);
/// The delay of a refusal beyond that share.
const REFUSED_LATER_AFTER: Duration = Duration::from_secs(1);
/// The late refusals that tenants share.
const NR_LATE_SHARED: u64 = 4096;

/// See the module text.
#[derive(Debug)]
pub(super) struct Refusals {
    /// Late refusals not yet sent, within the shares of their tenants.
    late: SharedBound,
    /// Limits the warnings.
    rate: RateLimit,
    clock: SystemClock,
}

impl Default for Refusals {
    fn default() -> Self {
        let late = SharedBound::new(NR_LATE_SHARED);
        Self { late, rate: RateLimit::default(), clock: SystemClock::new() }
    }
}

impl Refusals {
    /// Returns the delay of a refusal, and the check that keeps its charge and its count until it
    /// is sent.
    fn hold(&self, group: &Group) -> (Duration, RecheckFn) {
        let late = self.late.take(group, 1);
        let delay = if late.is_some() { REFUSED_AFTER } else { REFUSED_LATER_AFTER };
        (delay, holding((charge_held(group), late)))
    }

    /// Answers EAGAIN, late. Only a request without a payer is answered at once; reads and writes
    /// have one.
    pub(super) fn refuse(&self, request: &Request<'_>, reply: &mut Reply, delays: &DelayQueue) {
        if let Some(nr_left_out) = self.rate.ask(self.clock.now()) {
            let tid = request.header.pid;
            tracing::warn!(tid, nr_left_out, "too many requests of a group wait");
        }
        let Some(group) = request.payer.map(Payer::group_for_now) else {
            return reply.error(Errno::AGAIN).ignore();
        };
        let (delay, again) = self.hold(group);
        let answer = Answer { error: -Errno::AGAIN.raw_os_error(), bytes: Vec::new(), undo: None };
        delays.delay(reply.take(), answer, delay, again);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use umemcg::internal::testing::hundred_below;
    use umemcg::{Engine, EngineConfig};

    use super::*;

    #[test]
    fn no_refusal_is_sent_at_once_and_one_of_many_is_sent_later() {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let [greedy, other] =
            ["greedy", "other"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap());
        let refusals = Refusals::default();
        let of_greedy: Vec<_> = (0..NR_LATE_SHARED).map(|_| refusals.hold(&greedy)).collect();
        let nr_after = |delay| of_greedy.iter().filter(|(of, _)| *of == delay).count() as u64;
        assert_eq!(nr_after(REFUSED_AFTER), NR_LATE_SHARED / 2);
        assert_eq!(nr_after(REFUSED_LATER_AFTER), NR_LATE_SHARED / 2);
        assert_eq!(refusals.hold(&other).0, REFUSED_AFTER, "it has a share of its own");
    }

    #[test]
    fn a_hundred_groups_of_a_tenant_have_the_share_of_one() {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let [many, one] =
            ["many", "one"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap());
        let refusals = Refusals::default();
        let all =
            |group: &Arc<Group>| std::iter::from_fn(|| refusals.late.take(group, 1)).collect::<Vec<_>>();
        let of_many: Vec<_> = hundred_below(engine.tree(), &many).iter().flat_map(all).collect();
        let nr = [&of_many, &all(&one)].map(|late| late.len() as u64);
        assert_eq!(nr, [NR_LATE_SHARED / 2 - 1, NR_LATE_SHARED / 4]);
    }
}
