//! The event file of a group, followed by polls.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::ground::Ground;
use crate::options::Failure;

/// More than the text of an event file.
const TEXT_BYTES_MAX: usize = 4096;

/// See the module text. The set of polled files makes the daemon report each change by itself.
pub struct EventFile {
    file: File,
    polled: OwnedFd,
}

impl EventFile {
    /// Follows the events of the group with this path.
    pub fn open(ground: &Ground, group: &str) -> Result<Self, Failure> {
        let failed = "cannot poll an event file";
        let file = File::open(ground.control(&format!("{group}/memory.events")));
        let file = file.map_err(Failure::at(failed))?;
        let polled = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Failure::at(failed))?;
        let events = Self { file, polled };
        events.take()?;
        epoll::add(&events.polled, &events.file, epoll::EventData::new_u64(0), epoll::EventFlags::PRI)
            .map_err(Failure::at(failed))?;
        Ok(events)
    }

    /// Reads the file: no earlier event counts from now on.
    pub fn take(&self) -> Result<(), Failure> {
        let read = self.file.read_at(&mut [0; TEXT_BYTES_MAX], 0);
        read.map(drop).map_err(Failure::at("cannot read an event file"))
    }

    /// Waits for an event since the file was last read; returns whether one came in time.
    pub fn wait(&self, timeout: &Timespec) -> Result<bool, Failure> {
        let nr = poll(&mut [PollFd::new(&self.polled, PollFlags::IN)], Some(timeout));
        nr.map(|nr| nr > 0).map_err(Failure::at("cannot wait for an event"))
    }
}
