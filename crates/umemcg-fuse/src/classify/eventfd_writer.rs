//! Writes to eventfds of other processes. No eventfd can delay the others.
//!
//! A copied descriptor shares its file description with the process, so it cannot be made
//! non-blocking here, and `RWF_NOWAIT` does not work on an eventfd. A writer may block even after a
//! check for room, because the process can fill its eventfd in between. So dedicated threads write,
//! and other threads only queue events. One thread writes one eventfd after another. If a write
//! does not return soon, another thread continues with the queue. Events that arrive meanwhile for
//! the blocked eventfd are added up and written by the blocked thread afterwards.
//!
//! So there are at most two threads, and one more for each eventfd kept full by its process. That
//! thread ends when the process reads. If the registration ends first, the daemon reads the eventfd
//! itself.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::ReadWriteFlags;
use umemcg_base::clock::spawn_detached;
use umemcg_base::{Condvar, LeafMutex};

/// The time until another thread continues with the next write. A short time costs an extra thread
/// now and then; each full eventfd delays other events by this time.
const WRITE_TIMEOUT: Duration = Duration::from_millis(2);
/// A thread ends after this time without events.
const IDLE: Duration = Duration::from_secs(2);
/// The time until a write counts as stuck after the end of its listener.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(50);
/// The most reads of a full eventfd to unblock a write.
const NR_RELEASES_MAX: u32 = 100;
/// The number of checks for the end of the write within `RELEASE_TIMEOUT`.
const NR_LOOKS: u32 = 50;
/// An eventfd with a count up to this one does not block writers.
const ROOMY: u64 = u64::MAX / 2;

/// An eventfd of another process.
#[derive(Debug)]
pub(super) struct Eventfd {
    pub(super) copy: OwnedFd,
    unwritten: LeafMutex<Unwritten>,
}

#[derive(Debug, Default)]
struct Unwritten {
    nr_events: u64,
    /// The eventfd is queued, or a thread is writing it and will check for more events afterwards.
    is_taken: bool,
}

impl Eventfd {
    pub(super) fn new(copy: OwnedFd) -> Self {
        Self { copy, unwritten: LeafMutex::default() }
    }

    /// Adds events. Returns `true` if the eventfd must be queued for a thread.
    fn add(&self, nr_events: u64) -> bool {
        let mut unwritten = self.unwritten.lock();
        unwritten.nr_events = unwritten.nr_events.saturating_add(nr_events);
        !std::mem::replace(&mut unwritten.is_taken, true)
    }

    /// Returns the number of events to write next. If there are none, the thread is done with the
    /// eventfd.
    fn take(&self) -> Option<u64> {
        let mut unwritten = self.unwritten.lock();
        let nr_events = std::mem::take(&mut unwritten.nr_events);
        unwritten.is_taken = nr_events > 0;
        unwritten.is_taken.then_some(nr_events)
    }

    /// Writes all events. May wait for the process.
    fn write_all(&self) {
        while let Some(nr_events) = self.take() {
            let _ = rustix::io::write(&self.copy, &nr_events.to_ne_bytes());
        }
    }

    fn is_taken(&self) -> bool {
        self.unwritten.lock().is_taken
    }

    /// Returns whether all events are written within `RELEASE_TIMEOUT`.
    fn is_soon_written(&self) -> bool {
        for _ in 0..NR_LOOKS {
            if !self.is_taken() {
                return true;
            }
            std::thread::sleep(RELEASE_TIMEOUT / NR_LOOKS);
        }
        !self.is_taken()
    }
}

/// The writing threads; started when first needed.
#[derive(Debug, Default)]
pub(super) struct EventfdWriter {
    state: LeafMutex<WriteQueue>,
    wake: Condvar,
}

/// The eventfds to be written, and the writing threads.
#[derive(Debug, Default)]
struct WriteQueue {
    queue: VecDeque<Arc<Eventfd>>,
    /// Writes that have begun.
    nr_begun: u64,
    /// The number of the write that the others wait for, and the end of their wait.
    current: Option<(u64, Instant)>,
    /// Threads with nothing to write.
    nr_idle: u32,
}

impl EventfdWriter {
    /// Adds events to an eventfd. Does not wait.
    pub(super) fn signal(self: &Arc<Self>, target: &Arc<Eventfd>, nr_events: u64) {
        if !target.add(nr_events) {
            return;
        }
        let mut state = self.state.lock();
        state.queue.push_back(Arc::clone(target));
        if state.nr_idle > 0 {
            self.wake.notify_one();
        } else if self.start_thread(&mut state).is_err() {
            // No thread could be started: the next event tries again.
            state.queue.pop_back();
            target.unwritten.lock().is_taken = false;
        }
    }

    /// Starts a thread, which is idle.
    fn start_thread(self: &Arc<Self>, state: &mut WriteQueue) -> io::Result<()> {
        let writer = Arc::clone(self);
        spawn_detached("umemcg-eventfd", move || writer.run())?;
        state.nr_idle += 1;
        Ok(())
    }

    /// Runs a thread, which begins idle. Apart from stuck threads, one thread writes and one
    /// watches it for a stuck write.
    fn run(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            if state.queue.is_empty() {
                let is_over = self.wake.wait_for(&mut state, IDLE).timed_out();
                if is_over && state.queue.is_empty() {
                    state.nr_idle -= 1;
                    return;
                }
                continue;
            }
            if let Some((nr, until)) = state.current {
                let is_over = self.wake.wait_until(&mut state, until).timed_out();
                if is_over && state.current.is_some_and(|(current, _)| current == nr) {
                    state.current = None;
                }
                continue;
            }
            let Some(target) = state.queue.pop_front() else { continue };
            let mine = state.nr_begun;
            state.nr_begun += 1;
            state.current = Some((mine, Instant::now() + WRITE_TIMEOUT));
            state.nr_idle -= 1;
            if state.nr_idle == 0 && !state.queue.is_empty() {
                // If no thread can be started, the queue waits for the end of this write or for the
                // next event.
                let _ = self.start_thread(&mut state);
            }
            drop(state);
            target.write_all();
            drop(target);
            state = self.state.lock();
            if state.current.is_some_and(|(current, _)| current == mine) {
                state.current = None;
            } else if state.nr_idle > 0 {
                // Another thread has continued with the queue.
                return;
            }
            state.nr_idle += 1;
        }
    }

    /// Unblocks a stuck write after the end of its listener. Earlier events are written first. May
    /// take long if the process fills the eventfd again and again.
    pub(super) fn release(self: &Arc<Self>, target: &Arc<Eventfd>) {
        for _ in 0..NR_RELEASES_MAX {
            if target.is_soon_written() {
                return;
            }
            let mut count = [0; 8];
            // No offset: an eventfd is not seekable.
            let buffer = &mut [IoSliceMut::new(&mut count)];
            let read = rustix::io::preadv2(&target.copy, buffer, u64::MAX, ReadWriteFlags::NOWAIT);
            let count = u64::from_ne_bytes(count);
            if read.is_ok() && count <= ROOMY {
                // The write was slow, not stuck: the events belong to the process.
                self.signal(target, count);
            }
        }
    }

    /// Runs `release` on a separate thread.
    pub(super) fn start_release(self: &Arc<Self>, target: &Arc<Eventfd>) {
        if target.is_taken() {
            let (writer, target) = (Arc::clone(self), Arc::clone(target));
            let _ = spawn_detached("umemcg-eventfd", move || writer.release(&target));
        }
    }
}
