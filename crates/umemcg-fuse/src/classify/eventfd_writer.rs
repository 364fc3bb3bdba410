//! Writes to eventfds of other processes so that none of them can hold up the rest.
//!
//! A copied descriptor shares its description with the process, so it cannot be made non-blocking
//! here, and an eventfd is not written with `RWF_NOWAIT`. A writer that looks for room first may
//! still wait: the process can fill its eventfd in between, and room for one event is not room for
//! two. So threads of their own write, and other threads only queue events. They write one eventfd
//! after the other; a write that does not return soon is left to its thread, the next thread goes
//! on with what is queued, and what comes for that eventfd meanwhile is added up and written by the
//! first.
//!
//! So there is at most one thread for each eventfd that a process keeps full, beside two, and it
//! ends when its process reads. When the registration ends first, we read.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::ReadWriteFlags;
use umemcg_base::clock::spawn_detached;
use umemcg_base::{Condvar, LeafMutex};

/// The time after which another thread continues with the next write. A short time costs an extra
/// thread now and then; a long time delays other events by that much for each full eventfd.
const WRITE_TIMEOUT: Duration = Duration::from_millis(2);
/// A thread ends after this time without events.
const IDLE: Duration = Duration::from_secs(2);
/// The time that a write may take after its listener has ended before it counts as stuck.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(50);
/// Times that a full eventfd is read for a write that is stuck there.
const NR_RELEASES_MAX: u32 = 100;
/// Looks whether the write has ended, within `RELEASE_TIMEOUT`.
const NR_LOOKS: u32 = 50;
/// Counts in eventfds up to here make no writer wait.
const ROOMY: u64 = u64::MAX / 2;

/// An eventfd that is written to.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) copy: OwnedFd,
    unwritten: LeafMutex<Unwritten>,
}

#[derive(Debug, Default)]
struct Unwritten {
    nr_events: u64,
    /// It is queued, or a thread has it, which looks for more before it lets go.
    is_taken: bool,
}

impl Target {
    pub(super) fn new(copy: OwnedFd) -> Self {
        Self { copy, unwritten: LeafMutex::default() }
    }

    /// Adds events; returns true when a thread has to come and write them.
    fn add(&self, nr_events: u64) -> bool {
        let mut unwritten = self.unwritten.lock();
        unwritten.nr_events = unwritten.nr_events.saturating_add(nr_events);
        !std::mem::replace(&mut unwritten.is_taken, true)
    }

    /// Returns what is to be written next; lets go when there is nothing.
    fn take(&self) -> Option<u64> {
        let mut unwritten = self.unwritten.lock();
        let nr_events = std::mem::take(&mut unwritten.nr_events);
        unwritten.is_taken = nr_events > 0;
        unwritten.is_taken.then_some(nr_events)
    }

    /// Writes what there is. May wait for the process.
    fn write_all(&self) {
        while let Some(nr_events) = self.take() {
            let _ = rustix::io::write(&self.copy, &nr_events.to_ne_bytes());
        }
    }

    fn is_taken(&self) -> bool {
        self.unwritten.lock().is_taken
    }

    /// Returns whether what there is gets written within `RELEASE_TIMEOUT`.
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

/// The threads that write; made when first needed.
#[derive(Debug, Default)]
pub(super) struct EventfdWriter {
    state: LeafMutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Arc<Target>>,
    /// Writes that have begun.
    nr_begun: u64,
    /// The write that others wait for, by its number, and until when.
    current: Option<(u64, Instant)>,
    /// Threads that have nothing to write.
    nr_idle: u32,
}

impl EventfdWriter {
    /// Adds events to an eventfd. Waits for nothing.
    pub(super) fn signal(self: &Arc<Self>, target: &Arc<Target>, nr_events: u64) {
        if !target.add(nr_events) {
            return;
        }
        let mut state = self.state.lock();
        state.queue.push_back(Arc::clone(target));
        if state.nr_idle > 0 {
            self.wake.notify_one();
        } else if self.start_thread(&mut state).is_err() {
            // None to be had: the next event tries again.
            state.queue.pop_back();
            target.unwritten.lock().is_taken = false;
        }
    }

    /// Starts a thread, which is idle.
    fn start_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let writer = Arc::clone(self);
        spawn_detached("umemcg-eventfd", move || writer.run())?;
        state.nr_idle += 1;
        Ok(())
    }

    /// Runs a thread, which begins idle. Apart from stuck threads, one thread writes and one
    /// watches that it does not get stuck.
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
                // Without one, those behind wait for the end of this write, or for the next event.
                let _ = self.start_thread(&mut state);
            }
            drop(state);
            target.write_all();
            drop(target);
            state = self.state.lock();
            if state.current.is_some_and(|(current, _)| current == mine) {
                state.current = None;
            } else if state.nr_idle > 0 {
                // Another has taken its place.
                return;
            }
            state.nr_idle += 1;
        }
    }

    /// Makes room for a write that is stuck, once it is certain that it is, when no process waits
    /// for its events any more. What there was to be written before is written. May take long when
    /// its process fills it again and again.
    pub(super) fn release(self: &Arc<Self>, target: &Arc<Target>) {
        for _ in 0..NR_RELEASES_MAX {
            if target.is_soon_written() {
                return;
            }
            let mut count = [0; 8];
            // No offset: an eventfd has no places.
            let buffer = &mut [IoSliceMut::new(&mut count)];
            let read = rustix::io::preadv2(&target.copy, buffer, u64::MAX, ReadWriteFlags::NOWAIT);
            let count = u64::from_ne_bytes(count);
            if read.is_ok() && count <= ROOMY {
                // The write has been slow, not stuck: this is for the process.
                self.signal(target, count);
            }
        }
    }

    /// Does the work of `release`, by a thread of its own.
    pub(super) fn start_release(self: &Arc<Self>, target: &Arc<Target>) {
        if target.is_taken() {
            let (writer, target) = (Arc::clone(self), Arc::clone(target));
            let _ = spawn_detached("umemcg-eventfd", move || writer.release(&target));
        }
    }
}
