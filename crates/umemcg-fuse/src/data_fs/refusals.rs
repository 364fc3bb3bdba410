//! Requests refused because too many of their tenant wait.
//!
//! The refusal is sent late, as long as the tenant does not have too many late ones: a caller
//! refused at once would retry at once. Each late refusal occupies one of the kernel's places for
//! requests.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use umemcg::Group;
use umemcg::internal::{GroupPath, ShareByPath};
use umemcg_base::clock::{Clock, SystemClock};
use umemcg_base::{LeafMutex, RateLimit};

use crate::classify::Payer;
use crate::delayed_replies::DelayQueue;
use crate::reply::{Answer, Delay, Reply};
use crate::request::Request;
use crate::wait_charge::charge_held;

/// The delay of a refusal.
const REFUSED_AFTER: Duration = Duration::from_millis(100);
/// The most late refusals at a time.
const NR_LATE_MAX: u64 = 4096;

/// See the module text.
#[derive(Debug)]
pub(super) struct Refusals {
    /// Late refusals not yet sent.
    late: Arc<LeafMutex<ShareByPath>>,
    /// Limits the warnings.
    rate: RateLimit,
    clock: SystemClock,
}

impl Default for Refusals {
    fn default() -> Self {
        let late = Arc::new(LeafMutex::new(ShareByPath::new(NR_LATE_MAX)));
        Self { late, rate: RateLimit::default(), clock: SystemClock::new() }
    }
}

impl Refusals {
    /// Counts a late refusal; `None` if there are too many.
    fn begin(&self, group: &Group) -> Option<LateRefusal> {
        let path = GroupPath::of(group);
        let may = self.late.lock().take(&path, 1);
        may.then(|| LateRefusal { late: Arc::clone(&self.late), path })
    }

    /// Answers EAGAIN, late if possible.
    pub(super) fn refuse(&self, request: &Request<'_>, reply: &mut Reply, delays: &DelayQueue) {
        if let Some(nr_left_out) = self.rate.ask(self.clock.now()) {
            let tid = request.header.pid;
            tracing::warn!(tid, nr_left_out, "too many requests of a group wait");
        }
        let group = request.payer.map(Payer::group_for_now);
        let Some((group, late)) = group.and_then(|group| Some((group, self.begin(group)?))) else {
            return reply.error(Errno::AGAIN).ignore();
        };
        let charge = charge_held(group);
        let again = Box::new(move || {
            let _until_it_goes = (&charge, &late);
            None
        });
        let answer = Answer::Any { error: -Errno::AGAIN.raw_os_error(), bytes: Vec::new(), undo: None };
        delays.delay(reply.take(), answer, REFUSED_AFTER, again);
    }
}

/// The count of a late refusal; released when dropped.
struct LateRefusal {
    late: Arc<LeafMutex<ShareByPath>>,
    path: GroupPath,
}

impl Drop for LateRefusal {
    fn drop(&mut self) {
        self.late.lock().give(&self.path, 1);
    }
}
