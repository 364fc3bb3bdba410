//! Writes to eventfds of other processes so that none of them can hold up the rest.
//!
//! A copied descriptor shares its description with the process, so it cannot be made non-blocking here, and an eventfd is not written with
//! `RWF_NOWAIT`. Whoever looks for room first may still wait: the process can fill its eventfd in between, and room for one event is not
//! room for two. So a thread of its own writes, and is waited for, but not for long: one that does not return is left to its eventfd, another
//! takes its place, and what comes for that eventfd meanwhile is added up and written by the first.
//!
//! So there is at most one thread for each eventfd that somebody keeps full, and it ends when its process reads. When the registration
//! goes first, we read.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::ReadWriteFlags;
use umemcg_base::clock::spawn_detached;

/// How long a write may take before it counts as stuck. Others wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(50);
/// Times that a full eventfd is read for a write that is stuck there.
const NR_RELEASES_MAX: u32 = 3;
/// Looks whether that has helped, within `PATIENCE`, before it is read again: what was stuck is for the process.
const NR_LOOKS: u32 = 50;

/// An eventfd that is written to.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) copy: OwnedFd,
    unwritten: Mutex<Unwritten>,
}

#[derive(Debug, Default)]
struct Unwritten {
    nr_events: u64,
    /// A thread has it, and looks for more before it lets go.
    is_taken: bool,
}

impl Target {
    pub(super) fn new(copy: OwnedFd) -> Self {
        Self { copy, unwritten: Mutex::default() }
    }

    /// Adds events; true when somebody has to come and write them.
    fn add(&self, nr_events: u64) -> bool {
        let mut unwritten = self.unwritten.lock();
        unwritten.nr_events = unwritten.nr_events.saturating_add(nr_events);
        !std::mem::replace(&mut unwritten.is_taken, true)
    }

    /// What is to be written next; lets go when there is nothing.
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

    /// Nobody waits for its events any more: makes room for a write that is stuck.
    pub(super) fn release(&self) {
        let mut count = [0; 8];
        for _ in 0..NR_RELEASES_MAX {
            if !self.is_taken() {
                return;
            }
            // No offset: an eventfd has no places.
            let buffer = &mut [IoSliceMut::new(&mut count)];
            let _ = rustix::io::preadv2(&self.copy, buffer, u64::MAX, ReadWriteFlags::NOWAIT);
            for _ in 0..NR_LOOKS {
                if !self.is_taken() {
                    return;
                }
                std::thread::sleep(PATIENCE / NR_LOOKS);
            }
        }
    }
}

/// A write that is to be made, and whom to tell.
type Job = (Arc<Target>, SyncSender<()>);

/// The thread that writes; made when first needed.
#[derive(Debug, Default)]
pub(super) struct EventfdWriter(Mutex<Option<Sender<Job>>>);

impl EventfdWriter {
    /// Adds events to an eventfd. Waits for other writes, never for a process: `PATIENCE` at most.
    pub(super) fn signal(&self, target: &Arc<Target>, nr_events: u64) {
        if !target.add(nr_events) {
            return;
        }
        let (told, heard) = sync_channel(1);
        let mut writer = self.0.lock();
        let job = (Arc::clone(target), told);
        let refused = match &*writer {
            Some(jobs) => jobs.send(job).err().map(|refused| refused.0),
            None => Some(job),
        };
        if let Some(job) = refused {
            let Ok(jobs) = start() else {
                // No thread to be had: the next event tries again.
                target.unwritten.lock().is_taken = false;
                return;
            };
            let _ = jobs.send(job);
            *writer = Some(jobs);
        }
        if heard.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            // It ends with this write.
            *writer = None;
        }
    }
}

fn start() -> io::Result<Sender<Job>> {
    let (jobs, next) = channel::<Job>();
    spawn_detached("umemcg-eventfd", move || {
        for (target, told) in next {
            target.write_all();
            drop(target);
            let _ = told.try_send(());
        }
    })?;
    Ok(jobs)
}
