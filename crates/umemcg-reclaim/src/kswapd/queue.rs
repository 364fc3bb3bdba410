//! The queue of background reclaim: one job for each group, either waiting for a worker or backed
//! off.
//!
//! Tenants take turns, and so do the groups in a tenant, level by level ([`TurnQueue`]): a tenant
//! gains nothing by having many. A served group goes behind the others of its level.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::{Condvar, LeafMutex, LeafMutexGuard, Rank, RankedMutex};
use umemcg_group::{Group, GroupPath, TurnQueue};

use super::job_progress::JobProgress;

/// The place of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobPlace {
    /// In no queue: its group is below its marks.
    Idle,
    /// In a queue.
    Queued,
    /// With a worker.
    Running,
    /// In a queue, backed off.
    BackedOff,
}

/// The place of a job, and the queue of its group.
#[derive(Debug)]
pub(super) struct JobState {
    pub(super) place: JobPlace,
    /// Distinguishes the queue entry of this back-off from entries of earlier ones.
    pub(super) backoff_serial: u64,
    /// Bytes of the group and its descendants with an ended release request, released or not.
    pub(super) ended_bytes: u64,
    /// A backed-off job is tried again when `ended_bytes` reaches this.
    pub(super) wake_at: u64,
    /// The queue of the group's own worker; `None` if the pool serves the group.
    pub(super) own_queue: Option<Arc<Queue>>,
}

/// One group's background reclaim.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) group: Weak<Group>,
    /// (C)
    path: GroupPath,
    /// Only the queues' locks are taken under it.
    pub(super) state: LeafMutex<JobState>,
    pub(super) progress: RankedMutex<JobProgress>,
    /// A hint: it has backed off. (A)
    pub(super) is_backed_off: AtomicBool,
}

impl Job {
    pub(super) fn new(group: &Arc<Group>) -> Self {
        Self {
            group: Arc::downgrade(group),
            path: GroupPath::of(group),
            state: LeafMutex::new(JobState {
                place: JobPlace::Idle,
                backoff_serial: 0,
                ended_bytes: 0,
                wake_at: u64::MAX,
                own_queue: None,
            }),
            progress: RankedMutex::new(Rank::Quantum, JobProgress::new()),
            is_backed_off: AtomicBool::new(false),
        }
    }

    pub(super) fn is_backed_off(&self) -> bool {
        self.is_backed_off.load(Relaxed)
    }
}

/// Until when, which back-off, which job.
#[derive(Debug)]
struct BackedOff(Reverse<Instant>, u64, Arc<Job>);

impl PartialEq for BackedOff {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl Eq for BackedOff {}
impl PartialOrd for BackedOff {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for BackedOff {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// The jobs in a queue.
#[derive(Debug, Default)]
struct QueuedJobs {
    waiting: TurnQueue<Arc<Job>>,
    backed_off: BinaryHeap<BackedOff>,
    stopped: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    jobs: LeafMutex<QueuedJobs>,
    /// The number of waiting jobs, readable without the lock. (A)
    nr_waiting: AtomicUsize,
    wake: Condvar,
}

impl Default for Queue {
    fn default() -> Self {
        let jobs = LeafMutex::with_rank(Rank::ReclaimQueue, QueuedJobs::default());
        Self { jobs, nr_waiting: AtomicUsize::new(0), wake: Condvar::default() }
    }
}

impl Queue {
    /// Queues a group after a charge reached its mark.
    pub(crate) fn enqueue_signalled(&self, job: &Arc<Job>) {
        let mut state = job.state.lock();
        // A running job checks the usage again after taking the signal, and a backed-off job waits
        // for its time.
        if state.place == JobPlace::Idle {
            state.place = JobPlace::Queued;
            let own = state.own_queue.clone();
            drop(state);
            self.put_home(own.as_deref(), job);
        }
    }

    /// Tries a backed-off group again, since something was freed.
    pub(crate) fn wake_backed_off(&self, job: &Arc<Job>) {
        if !job.is_backed_off() {
            return;
        }
        self.try_again(job, job.state.lock());
    }

    /// Notes bytes of ended release requests, and tries a group again if it backed off for them.
    pub(super) fn note_ended(&self, job: &Arc<Job>, bytes: u64) {
        let mut state = job.state.lock();
        state.ended_bytes += bytes;
        if state.ended_bytes >= state.wake_at {
            self.try_again(job, state);
        }
    }

    fn try_again(&self, job: &Arc<Job>, mut state: LeafMutexGuard<'_, JobState>) {
        if state.place == JobPlace::BackedOff {
            state.place = JobPlace::Queued;
            job.is_backed_off.store(false, Relaxed);
            let own = state.own_queue.clone();
            drop(state);
            self.put_home(own.as_deref(), job);
        }
    }

    /// Queues a job in its group's own queue; or in this one, the pool's, if the group has no own
    /// queue or has lost it since the caller looked.
    fn put_home(&self, own: Option<&Queue>, job: &Arc<Job>) {
        if !own.is_some_and(|own| own.put(job)) {
            self.put(job);
        }
    }

    /// Queues a job, and wakes a sleeping worker. Returns `false` if this queue has been stopped:
    /// the job then belongs in the pool's queue.
    pub(super) fn put(&self, job: &Arc<Job>) -> bool {
        let is_queued = self.put_back(job);
        self.wake.notify_one();
        is_queued
    }

    /// Like `put`, for a worker of this queue about to ask for its next job, so no thread has to
    /// wake up. A worker ending instead wakes another, see [`next`](Self::next).
    pub(super) fn put_back(&self, job: &Arc<Job>) -> bool {
        let mut jobs = self.jobs.lock();
        if jobs.stopped {
            return false;
        }
        jobs.waiting.push(job.path, Arc::clone(job));
        self.nr_waiting.store(jobs.waiting.len(), Relaxed);
        true
    }

    /// Returns whether no group waits here. May be out of date immediately.
    pub(super) fn is_empty(&self) -> bool {
        self.nr_waiting.load(Relaxed) == 0
    }

    /// Queues a job marked by its worker as backed off. Returns `false` as [`put`](Self::put) does.
    pub(super) fn back_off(&self, job: &Arc<Job>, serial: u64, how_long: Duration) -> bool {
        let mut jobs = self.jobs.lock();
        if jobs.stopped {
            return false;
        }
        jobs.backed_off.push(BackedOff(Reverse(Instant::now() + how_long), serial, Arc::clone(job)));
        drop(jobs);
        // One of the workers has to wait for the time.
        self.wake.notify_one();
        true
    }

    /// Waits for the next job. Returns `None` if the worker should end.
    pub(super) fn next(&self, ends: &AtomicBool) -> Option<Arc<Job>> {
        let mut jobs = self.jobs.lock();
        loop {
            if jobs.stopped || ends.load(Relaxed) {
                // Pass on a notification meant for a continuing thread.
                self.wake.notify_one();
                return None;
            }
            let now = Instant::now();
            while jobs.backed_off.peek().is_some_and(|first| first.0.0 <= now) {
                let Some(BackedOff(_, serial, job)) = jobs.backed_off.pop() else { break };
                let mut state = job.state.lock();
                if state.place == JobPlace::BackedOff && state.backoff_serial == serial {
                    state.place = JobPlace::Queued;
                    job.is_backed_off.store(false, Relaxed);
                    drop(state);
                    jobs.waiting.push(job.path, job);
                }
            }
            let first = jobs.waiting.pop();
            self.nr_waiting.store(jobs.waiting.len(), Relaxed);
            if let Some((_, job)) = first {
                return Some(job);
            }
            match jobs.backed_off.peek().map(|first| first.0.0) {
                Some(until) => drop(self.wake.wait_until(&mut jobs, until)),
                None => self.wake.wait(&mut jobs),
            }
        }
    }

    /// Stops this queue and hands its jobs to another queue; for a group's own worker about to end.
    pub(super) fn hand_over_to(&self, other: &Queue) {
        let mut jobs = self.jobs.lock();
        jobs.stopped = true;
        let (mut waiting, backed_off) =
            (std::mem::take(&mut jobs.waiting), std::mem::take(&mut jobs.backed_off));
        self.nr_waiting.store(0, Relaxed);
        drop(jobs);
        self.wake.notify_all();
        while let Some((_, job)) = waiting.pop() {
            other.put(&job);
        }
        for BackedOff(Reverse(until), serial, job) in backed_off {
            other.back_off(&job, serial, until.saturating_duration_since(Instant::now()));
        }
    }

    /// Ends every worker.
    pub(super) fn stop(&self) {
        self.jobs.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Makes every worker check whether it should end.
    pub(super) fn wake_all(&self) {
        // Take the lock first: a worker that has already checked is asleep by then.
        drop(self.jobs.lock());
        self.wake.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use umemcg_group::GroupTree;

    use super::*;

    #[test]
    fn a_job_for_a_queue_that_has_just_been_stopped_is_not_lost() {
        let tree = GroupTree::new(1 << 30);
        let (pool, own) = (Queue::default(), Arc::new(Queue::default()));
        let job = Arc::new(Job::new(tree.root()));
        own.hand_over_to(&pool);
        // As read by a thread a moment before.
        job.state.lock().own_queue = Some(Arc::clone(&own));
        pool.enqueue_signalled(&job);
        assert!(!pool.is_empty());
        assert!(Arc::ptr_eq(&pool.next(&AtomicBool::new(false)).unwrap(), &job));
        assert!(!own.put_back(&job) && !own.back_off(&job, 1, Duration::ZERO));
    }

    #[test]
    fn a_job_is_tried_again_when_half_of_its_request_has_ended() {
        let tree = GroupTree::new(1 << 30);
        let queue = Queue::default();
        let job = Arc::new(Job::new(tree.root()));
        {
            let mut state = job.state.lock();
            (state.place, state.backoff_serial, state.wake_at) = (JobPlace::BackedOff, 1, 50);
        }
        job.is_backed_off.store(true, Relaxed);
        queue.back_off(&job, 1, Duration::from_secs(3600));
        queue.note_ended(&job, 49);
        assert!(queue.is_empty() && job.is_backed_off());
        queue.note_ended(&job, 1);
        let next = queue.next(&AtomicBool::new(false)).unwrap();
        assert!(Arc::ptr_eq(&next, &job) && !job.is_backed_off());
        queue.note_ended(&job, 100);
        assert!(queue.is_empty(), "it does not back off any more");
    }

    #[test]
    fn a_tenant_with_a_hundred_groups_has_every_second_turn() {
        let tree = GroupTree::new(1 << 30);
        let [many, one] = ["many", "one"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let (queue, ends) = (Queue::default(), AtomicBool::new(false));
        for nr in 0..100 {
            let group = tree.create(&many, nr.to_string().as_ref()).unwrap();
            queue.put(&Arc::new(Job::new(&group)));
        }
        queue.put(&Arc::new(Job::new(&one)));
        let mut nr_of_one = 0;
        for _ in 0..20 {
            let job = queue.next(&ends).unwrap();
            nr_of_one += usize::from(job.path == GroupPath::of(&one));
            queue.put_back(&job);
        }
        assert_eq!(nr_of_one, 10);
    }
}
