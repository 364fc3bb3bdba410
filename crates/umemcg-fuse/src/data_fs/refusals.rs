//! Requests that are refused, because too many of their tenant wait.
//!
//! The answer comes late, as long as not too many of the tenant's do: what is refused at once is
//! asked for again at once. Each late one holds one of the kernel's places for requests meanwhile.

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

/// How late a request is refused.
const REFUSED_AFTER: Duration = Duration::from_millis(100);
/// Most refusals that are late at a time.
const NR_LATE_MAX: u64 = 4096;

/// See the module text.
#[derive(Debug)]
pub(super) struct Refusals {
    /// Those that are not sent yet.
    late: Arc<LeafMutex<ShareByPath>>,
    /// How often it is told.
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
    /// Counts one that is to be late; `None` if it may not be.
    fn begin(&self, group: &Group) -> Option<LateRefusal> {
        let path = GroupPath::of(group);
        let may = self.late.lock().take(&path, 1);
        may.then(|| LateRefusal { late: Arc::clone(&self.late), path })
    }

    /// Answers EAGAIN, late if it may.
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

/// One that is not sent yet, as it is counted.
struct LateRefusal {
    late: Arc<LeafMutex<ShareByPath>>,
    path: GroupPath,
}

impl Drop for LateRefusal {
    fn drop(&mut self) {
        self.late.lock().give(&self.path, 1);
    }
}
