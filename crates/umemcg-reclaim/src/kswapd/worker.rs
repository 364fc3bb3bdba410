//! The threads: the pool, and workers of single groups.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use umemcg_base::clock::Worker;
use umemcg_base::{Rank, RankedMutex, assert_may_wait, contained};
use umemcg_group::Group;

use super::quantum::{Next, backoff_of, run_quantum};
use super::queue::{Job, JobPlace, Queue};
use super::wake_signal::listen_for_pressure;
use crate::group_reclaim::GroupReclaim;
use crate::reclaimer::Reclaimer;

/// Quanta of a group alone in its queue, before its worker checks whether it should end and whether
/// other groups' back-offs are over.
const QUANTA_ALONE_MAX: u32 = 32;

/// Quanta after which a worker offers its processor to waiting threads: about twenty microseconds
/// of work.
const QUANTA_PER_OFFER: u32 = 4;

/// Most workers of single groups: no group pays for a thread.
const NR_DEDICATED_MAX: usize = 64;
/// Most workers of single groups within one top-level group.
const NR_DEDICATED_OF_TENANT_MAX: usize = 8;

/// The workers of a reclaimer. Dropping it ends them.
#[derive(Debug)]
pub struct Kswapd {
    reclaimer: Weak<Reclaimer>,
    queue: Arc<Queue>,
    pool: RankedMutex<Vec<Pooled>>,
    dedicated: RankedMutex<Vec<Dedicated>>,
}

/// A worker of the pool.
#[derive(Debug)]
struct Pooled {
    /// Set when the worker should end because the pool shrinks.
    is_surplus: Arc<AtomicBool>,
    _worker: Worker,
}

/// A group's own worker.
#[derive(Debug)]
struct Dedicated {
    job: Arc<Job>,
    /// The number of its top-level group.
    tenant: u64,
    queue: Arc<Queue>,
    tid: u32,
    _worker: Worker,
}

impl Kswapd {
    /// Starts `nr_workers` threads, one at least.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(reclaimer: &Arc<Reclaimer>, nr_workers: usize) -> io::Result<Self> {
        let kswapd = Self {
            reclaimer: Arc::downgrade(reclaimer),
            queue: Arc::clone(reclaimer.kswapd_queue()),
            pool: RankedMutex::new(Rank::Workers, Vec::new()),
            dedicated: RankedMutex::new(Rank::Workers, Vec::new()),
        };
        kswapd.set_nr_workers(nr_workers)?;
        Ok(kswapd)
    }

    /// Changes the number of threads of the pool; one at least.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn set_nr_workers(&self, nr_workers: usize) -> io::Result<()> {
        let nr_workers = nr_workers.max(1);
        let mut pool = self.pool.lock();
        let nr_kept = nr_workers.min(pool.len());
        let surplus = pool.split_off(nr_kept);
        surplus.iter().for_each(|worker| worker.is_surplus.store(true, Relaxed));
        self.queue.wake_all();
        while pool.len() < nr_workers {
            let (reclaimer, queue) = (self.reclaimer.clone(), Arc::clone(&self.queue));
            let is_surplus = Arc::new(AtomicBool::new(false));
            let ends = Arc::clone(&is_surplus);
            let name = format!("kswapd/{}", pool.len());
            let _worker = Worker::spawn(&name, move || run(&reclaimer, &queue, &ends))?;
            pool.push(Pooled { is_surplus, _worker });
        }
        drop(pool);
        // Waits until they have finished their quantum.
        drop(surplus);
        Ok(())
    }

    /// Returns the number of threads in the pool.
    pub fn nr_workers(&self) -> usize {
        self.pool.lock().len()
    }

    /// Gives a group a worker of its own, named `memcg_` and the group's number, or takes it away.
    ///
    /// # Errors
    /// When the operating system refuses a thread; `QuotaExceeded` when the top-level group, or all
    /// groups together, have reached their limit of workers.
    pub fn set_dedicated(&self, group: &Arc<Group>, dedicated: bool) -> io::Result<()> {
        let Some(reclaimer) = self.reclaimer.upgrade() else { return Ok(()) };
        listen_for_pressure(reclaimer.kswapd_queue(), group);
        let part = GroupReclaim::of(group);
        let Some(job) = part.background().job() else { return Ok(()) };
        let mut all = self.dedicated.lock();
        let known = all.iter().position(|own| Arc::ptr_eq(&own.job, job));
        match (known, dedicated) {
            (None, true) if !group.is_dead() => {
                let tenant = tenant_of(group);
                let nr_of_tenant = all.iter().filter(|own| own.tenant == tenant).count();
                if all.len() >= NR_DEDICATED_MAX || nr_of_tenant >= NR_DEDICATED_OF_TENANT_MAX {
                    return Err(io::ErrorKind::QuotaExceeded.into());
                }
                let queue = Arc::new(Queue::default());
                let (weak, own) = (self.reclaimer.clone(), Arc::clone(&queue));
                let (told, heard) = std::sync::mpsc::sync_channel(1);
                let name = format!("memcg_{}", group.id());
                let _worker = Worker::spawn(&name[..name.len().min(15)], move || {
                    let _ = told.send(umemcg_arena::sys::thread_id());
                    run(&weak, &own, &AtomicBool::new(false));
                })?;
                assert_may_wait(Rank::Peer, "a wait for the start of a thread");
                let tid = heard.recv().unwrap_or(0);
                job.state.lock().own_queue = Some(Arc::clone(&queue));
                all.push(Dedicated { job: Arc::clone(job), tenant, queue, tid, _worker });
                // If the job is in the pool's queue now, it is served there once more, and then by
                // its own worker.
            }
            (Some(at), false) => {
                let own = all.swap_remove(at);
                job.state.lock().own_queue = None;
                own.queue.hand_over_to(&self.queue);
                drop(all);
                // Waits for the end of its quantum.
                drop(own);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the thread id of a group's own worker.
    pub fn dedicated_tid(&self, group: &Arc<Group>) -> Option<u32> {
        let job = GroupReclaim::if_present(group)?.background().job()?;
        self.dedicated.lock().iter().find(|own| Arc::ptr_eq(&own.job, job)).map(|own| own.tid)
    }

    /// Ends the worker of a removed group.
    pub fn group_removed(&self, group: &Arc<Group>) {
        // Without a worker of its own there is nothing to do: a queued job of a dead group ends by
        // itself.
        let _ = self.set_dedicated(group, false);
    }
}

/// Returns the number of a group's top-level group.
fn tenant_of(group: &Group) -> u64 {
    group.ancestors().take_while(|level| !level.is_root()).last().unwrap_or(group).id()
}

impl Drop for Kswapd {
    fn drop(&mut self) {
        self.queue.stop();
        for own in self.dedicated.lock().drain(..) {
            own.queue.stop();
        }
    }
}

/// Runs a worker to its end.
///
/// The waking thread is in the middle of a request. The scheduler likes to run a woken thread on
/// the waker's processor, and immediately; a worker's burst of a few hundred microseconds would
/// then delay the request.
fn run(reclaimer: &Weak<Reclaimer>, queue: &Queue, ends: &AtomicBool) {
    // A sandbox may forbid it; then the worker runs with the ordinary policy.
    let _ = umemcg_arena::sys::yield_to_wakers();
    while let Some(job) = queue.next(ends) {
        let Some(reclaimer) = reclaimer.upgrade() else { return };
        serve(&reclaimer, queue, &job);
    }
}

/// Runs one quantum, and puts the job in its next place. `mine` is the queue served by this worker.
fn serve(reclaimer: &Reclaimer, mine: &Queue, job: &Arc<Job>) {
    {
        let mut state = job.state.lock();
        state.place = JobPlace::Running;
    }
    // Even if it panics, the worker survives, and the job comes back to a queue.
    let next = contained(|| run_quanta(reclaimer, mine, job)).unwrap_or_else(|panic| {
        tracing::error!(%panic, "background reclaim of a group panicked; it is tried again after a back-off");
        Next::BackOff
    });
    let wake_at = job.progress.lock().requested.wake_at();
    let mut state = job.state.lock();
    // Releases ended since the worker's last look woke no job, since the job was running.
    let next = if next == Next::BackOff && state.ended_bytes >= wake_at { Next::Again } else { next };
    state.wake_at = wake_at;
    let own = state.own_queue.clone();
    let pool = reclaimer.kswapd_queue();
    let home = own.as_deref().unwrap_or(pool);
    match next {
        Next::Done => {
            state.place = JobPlace::Idle;
            drop(state);
            // A signal since the last check found the job running, and left the next check to this
            // worker.
            if take_signal(job) {
                pool.enqueue_signalled(job);
            }
        }
        Next::Again => {
            state.place = JobPlace::Queued;
            drop(state);
            let is_queued = if std::ptr::eq(home, mine) { home.put_back(job) } else { home.put(job) };
            // The group has lost its own worker since.
            if !is_queued {
                pool.put(job);
            }
        }
        Next::BackOff => {
            state.place = JobPlace::BackedOff;
            state.backoff_serial += 1;
            let serial = state.backoff_serial;
            job.is_backed_off.store(true, Relaxed);
            drop(state);
            let how_long = backoff_of(job);
            if !home.back_off(job, serial, how_long) {
                pool.back_off(job, serial, how_long);
            }
        }
    }
}

/// Runs a quantum, and more while no other group waits.
fn run_quanta(reclaimer: &Reclaimer, mine: &Queue, job: &Job) -> Next {
    // The signal first, the look at the usage afterwards.
    take_signal(job);
    let mut next = run_quantum(reclaimer, job);
    // With no other group in the queue, the tail is the head.
    let mut nr_left = QUANTA_ALONE_MAX;
    while next == Next::Again && nr_left > 0 && mine.is_empty() {
        if nr_left.is_multiple_of(QUANTA_PER_OFFER) && has_time(job) {
            std::thread::yield_now();
        }
        next = run_quantum(reclaimer, job);
        nr_left -= 1;
    }
    next
}

/// Returns whether the group has most of its room left between the mark and the limit: then its
/// worker runs only when no other thread wants the processor. Otherwise it takes its fair share.
fn has_time(job: &Job) -> bool {
    job.group.upgrade().is_some_and(|group| {
        let (usage, max) = (group.usage_bytes(), group.max_bytes());
        let start = GroupReclaim::if_present(&group).map_or(max, |part| part.background().start()).min(max);
        usage < start + (max - start) / 2
    })
}

fn take_signal(job: &Job) -> bool {
    let wake_signal = job.group.upgrade().and_then(|group| group.wake_signals().pressure.get());
    wake_signal.is_some_and(|wake_signal| wake_signal.take())
}
