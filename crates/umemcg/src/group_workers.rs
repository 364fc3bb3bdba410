//! Worker threads for jobs of groups; no caller may wait for such a job. A group has at most one
//! thread at a time. So code of one group (a slow listener) delays no other group.
//!
//! A thread is started when a group has work and every thread is busy, and stays until the engine
//! ends. The number of groups with jobs at the same time is bounded, and divided among tenants and
//! the groups in them ([`ShareByPath`]). Jobs of another group are refused.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use hashbrown::HashMap;
use umemcg_base::clock::Worker;
use umemcg_base::{Condvar, LeafMutex, contained};
use umemcg_group::{Group, GroupPath, ShareByPath};

/// Most threads, and most groups with jobs at the same time.
const NR_THREADS_MAX: u64 = 32;

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is one of the workers.
pub(crate) fn is_worker() -> bool {
    IS_WORKER.get()
}

/// See the module text.
#[derive(Default)]
pub(crate) struct GroupWorkers {
    shared: Arc<Shared>,
    threads: LeafMutex<Vec<Worker>>,
}

#[derive(Default)]
struct Shared {
    state: LeafMutex<State>,
    has_work: Condvar,
}

struct State {
    /// The queued jobs of groups, without the running one.
    jobs: HashMap<GroupPath, VecDeque<Job>>,
    /// One for each group in `jobs`.
    shares: ShareByPath,
    /// Groups with jobs and without a thread.
    ready: VecDeque<GroupPath>,
    nr_threads: usize,
    is_over: bool,
}

impl Default for State {
    fn default() -> Self {
        let (jobs, ready) = Default::default();
        // A group counts itself once more: the last one still fits.
        let shares = ShareByPath::new(NR_THREADS_MAX + 1);
        Self { jobs, shares, ready, nr_threads: 0, is_over: false }
    }
}

impl std::fmt::Debug for GroupWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nr_threads = self.shared.state.lock().nr_threads;
        f.debug_struct("GroupWorkers").field("nr_threads", &nr_threads).finish_non_exhaustive()
    }
}

impl State {
    fn admits(&self, group: &GroupPath) -> bool {
        !self.is_over && (self.jobs.contains_key(group) || self.shares.fits(group, 1))
    }
}

impl GroupWorkers {
    /// Returns whether a job of a group would be accepted.
    pub(crate) fn admits(&self, group: &Group) -> bool {
        let group = GroupPath::of(group);
        self.shared.state.lock().admits(&group)
    }

    /// Queues a job for a worker, after the group's earlier jobs. A refused job, a job left when
    /// the engine ends, and a job without any thread are dropped. Never blocks for longer than the
    /// start of a thread.
    pub(crate) fn run(&self, group: &Group, job: impl FnOnce() + Send + 'static) {
        self.run_at(GroupPath::of(group), job);
    }

    fn run_at(&self, group: GroupPath, job: impl FnOnce() + Send + 'static) {
        self.run_with(group, Box::new(job), |body| Worker::spawn("umemcg-group", body));
    }

    fn run_with(&self, group: GroupPath, job: Job, spawn: impl FnOnce(Job) -> io::Result<Worker>) {
        let mut state = self.shared.state.lock();
        if !state.admits(&group) {
            drop(state);
            return drop(job);
        }
        let is_new = !state.jobs.contains_key(&group);
        state.jobs.entry(group).or_default().push_back(job);
        if is_new {
            state.shares.add(&group, 1);
            state.ready.push_back(group);
        }
        // A thread for each group with jobs.
        let starts = state.nr_threads < state.jobs.len();
        state.nr_threads += usize::from(starts);
        drop(state);
        self.shared.has_work.notify_one();
        if starts {
            self.start_thread(spawn);
        }
    }

    fn start_thread(&self, spawn: impl FnOnce(Job) -> io::Result<Worker>) {
        let shared = Arc::clone(&self.shared);
        match spawn(Box::new(move || shared.work())) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => {
                tracing::error!(%error, "cannot start a thread for work of a group");
                let mut state = self.shared.state.lock();
                state.nr_threads -= 1;
                let left = if state.nr_threads == 0 { state.take_jobs() } else { Vec::new() };
                drop(state);
                drop(left);
            }
        }
    }

    /// Drops the queued jobs, and waits for the running ones.
    pub(crate) fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.is_over = true;
        let left = state.take_jobs();
        drop(state);
        self.shared.has_work.notify_all();
        drop(left);
        let threads = std::mem::take(&mut *self.threads.lock());
        drop(threads);
    }
}

impl Drop for GroupWorkers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    fn take_jobs(&mut self) -> Vec<VecDeque<Job>> {
        self.ready.clear();
        for group in self.jobs.keys() {
            self.shares.give(group, 1);
        }
        std::mem::take(&mut self.jobs).into_values().collect()
    }

    /// Notes the end of a group's job.
    fn end(&mut self, group: GroupPath) {
        if self.jobs.get(&group).is_some_and(|left| !left.is_empty()) {
            self.ready.push_back(group);
        } else if self.jobs.remove(&group).is_some() {
            self.shares.give(&group, 1);
        }
    }
}

impl Shared {
    /// Runs one job after another until the engine ends.
    fn work(&self) {
        IS_WORKER.set(true);
        let mut state = self.state.lock();
        loop {
            if state.is_over {
                return;
            }
            let Some(group) = state.ready.pop_front() else {
                self.has_work.wait(&mut state);
                continue;
            };
            let job = state.jobs.get_mut(&group).and_then(VecDeque::pop_front);
            drop(state);
            if let Some(job) = job
                && let Err(panic) = contained(job)
            {
                tracing::error!(%panic, "work for a group panicked");
            }
            state = self.state.lock();
            state.end(group);
        }
    }
}

#[cfg(all(test, not(schedule)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use umemcg_group::GroupTree;
    use umemcg_group::testing::hundred_below;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn top(group: u64) -> GroupPath {
        GroupPath::new(&[group])
    }

    #[test]
    fn a_group_that_hangs_delays_no_other_and_its_jobs_keep_order() {
        let workers = GroupWorkers::default();
        let (go_on, may_go_on) = channel::<()>();
        let (done, is_done) = channel();
        let say = |what: u32| {
            let done = done.clone();
            move || done.send(what).unwrap()
        };
        workers.run_at(top(1), move || may_go_on.recv_timeout(LONG).unwrap());
        workers.run_at(top(1), say(11));
        workers.run_at(top(1), || panic!("one job of several"));
        workers.run_at(top(1), say(12));
        for group in 2..=NR_THREADS_MAX {
            workers.run_at(top(group), say(group as u32));
        }
        let mut others: Vec<_> =
            (2..=NR_THREADS_MAX).map(|_| is_done.recv_timeout(LONG).expect("other groups go on")).collect();
        others.sort_unstable();
        assert_eq!(others, (2..=NR_THREADS_MAX as u32).collect::<Vec<_>>());
        go_on.send(()).unwrap();
        assert_eq!([is_done.recv_timeout(LONG), is_done.recv_timeout(LONG)], [Ok(11), Ok(12)]);
    }

    #[test]
    fn work_goes_on_after_a_thread_that_could_not_be_started() {
        let workers = GroupWorkers::default();
        let kept = Arc::new(());
        let held = Arc::clone(&kept);
        workers.run_with(top(1), Box::new(move || drop(held)), |_| Err(io::Error::other("as a test wants")));
        assert_eq!(Arc::strong_count(&kept), 1, "a job without a thread is dropped");
        let (done, is_done) = channel();
        workers.run_at(top(1), move || done.send(()).unwrap());
        assert_eq!(is_done.recv_timeout(LONG), Ok(()));
    }

    #[test]
    fn work_is_refused_when_every_thread_has_a_group() {
        let workers = GroupWorkers::default();
        let (go_on, may_go_on) = channel::<()>();
        let may_go_on = Arc::new(LeafMutex::new(may_go_on));
        for group in 0..NR_THREADS_MAX {
            let may_go_on = Arc::clone(&may_go_on);
            workers.run_at(top(group), move || _ = may_go_on.lock().recv_timeout(LONG));
        }
        assert_eq!([0, 99].map(|group| workers.shared.state.lock().admits(&top(group))), [true, false]);
        let kept = Arc::new(());
        let held = Arc::clone(&kept);
        workers.run_at(top(99), move || drop(held));
        assert_eq!(Arc::strong_count(&kept), 1, "a refused job is dropped");
        drop(go_on);
    }

    #[test]
    fn a_tenant_with_many_groups_leaves_threads_to_another() {
        let tree = GroupTree::new(1 << 30);
        let [many, one] = ["many", "one"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let workers = GroupWorkers::default();
        let (go_on, may_go_on) = channel::<()>();
        let may_go_on = Arc::new(LeafMutex::new(may_go_on));
        for group in hundred_below(&tree, &many) {
            let may_go_on = Arc::clone(&may_go_on);
            workers.run(&group, move || _ = may_go_on.lock().recv_timeout(LONG));
        }
        assert_eq!(workers.shared.state.lock().shares.nr(), NR_THREADS_MAX / 2);
        let (done, is_done) = channel();
        workers.run(&one, move || done.send(()).unwrap());
        assert_eq!(is_done.recv_timeout(LONG), Ok(()));
        drop(go_on);
    }
}
