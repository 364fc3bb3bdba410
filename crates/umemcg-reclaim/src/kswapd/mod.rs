//! Background reclaim: a small pool of workers for all groups that have marks (mail per-memcg-background-reclaim).
//!
//! A charge that reaches a group's low mark rings the group's bell; the bell's hook puts the group in the queue. A worker
//! reclaims a quantum of 32 pages and puts the group back at the tail, until its usage is below the high mark. So one
//! group cannot hold up another, there is no thread per group, and ancestors with marks are groups like any other. A group
//! from which nothing can be had *rests*: for a growing while, or until something of it is freed.
//!
//! A group may have a worker of its own instead, whose thread the operator can place into a cgroup of the kernel.

mod job;
mod queue;
mod step;
mod worker;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_base::Bell;
use umemcg_group::{Group, UNLIMITED};

use crate::lruvec::ReclaimPart;
use crate::reclaim::Reclaimer;
use crate::watermark::Watermarks;

pub(crate) use job::Job;
pub(crate) use queue::Queue;
pub use worker::Kswapd;

/// Pages of a quantum.
pub const QUANTUM_PAGES: u64 = 32;

/// What background reclaim keeps with a group.
#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) marks: Watermarks,
    /// `memory.high` in bytes. (A)
    high: AtomicU64,
    /// Made when the group first has a mark.
    job: OnceLock<Arc<Job>>,
}

impl Default for Background {
    fn default() -> Self {
        Self { marks: Watermarks::default(), high: AtomicU64::new(UNLIMITED), job: OnceLock::new() }
    }
}

impl Background {
    /// `memory.high` in bytes; [`UNLIMITED`] for none.
    pub(crate) fn high_limit(&self) -> u64 {
        self.high.load(Relaxed)
    }

    pub(crate) fn set_high_limit(&self, bytes: u64) {
        self.high.store(bytes, Relaxed);
    }

    pub(crate) fn job(&self) -> Option<&Arc<Job>> {
        self.job.get()
    }

    /// Usage at which a worker is to come.
    pub(crate) fn start(&self) -> u64 {
        self.marks.start().min(self.high_limit())
    }

    /// Usage below which it is done.
    pub(crate) fn stop(&self) -> u64 {
        self.marks.stop().min(self.high_limit())
    }
}

impl Reclaimer {
    /// Hangs the group's pressure bell, if that has not been done.
    pub(crate) fn listen_for_pressure(&self, group: &Arc<Group>) {
        let background = ReclaimPart::of(group, self.nr_nodes()).background();
        background.job.get_or_init(|| {
            let job = Arc::new(Job::new(group, self.nr_nodes()));
            let (weak, queue) = (Arc::downgrade(&job), Arc::downgrade(self.kswapd_queue()));
            let hook = move || {
                if let (Some(job), Some(queue)) = (weak.upgrade(), queue.upgrade()) {
                    queue.rung(&job);
                }
            };
            group.bells().pressure.set(Arc::new(Bell::with_hook(hook)));
            job
        });
    }

    /// Something of the group was freed: if it rests, it may be worth a try again.
    pub(crate) fn wake_resting(&self, group: &Arc<Group>) {
        for group in std::iter::successors(Some(group), |at| at.parent()) {
            if let Some(job) = ReclaimPart::if_present(group).and_then(|part| part.background().job()) {
                self.kswapd_queue().wake_resting(job);
            }
        }
    }
}
