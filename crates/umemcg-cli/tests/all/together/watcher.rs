//! A program that polls the event files of the groups through a whole life: what they count has to
//! be reported.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::together::world::GROUPS;

/// Longest that an event takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    /// Read before the polls began.
    _open: File,
    /// Its text then.
    before: String,
}

/// See the module text.
#[derive(Debug)]
pub struct Watcher {
    polled: OwnedFd,
    files: Vec<Watched>,
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Watcher {
    /// Polls the files of all groups below the control mount.
    pub fn start(cg: &Path) -> Self {
        let polled = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let watch = |(at, group): (usize, &&str)| {
            let path = cg.join(group).join("memory.events");
            let (mut open, mut before) = (File::open(&path).unwrap(), String::new());
            open.read_to_string(&mut before).unwrap();
            epoll::add(&polled, &open, epoll::EventData::new_u64(at as u64), epoll::EventFlags::PRI).unwrap();
            Watched { path, _open: open, before }
        };
        let files = GROUPS.iter().enumerate().map(watch).collect();
        Self { polled, files }
    }

    /// Waits until there was an event for each file that says something else than before.
    pub fn check(&self) -> Result<(), String> {
        let (mut heard, deadline) = (BTreeSet::new(), Instant::now() + TIMEOUT);
        for (at, file) in self.files.iter().enumerate() {
            let now = read(&file.path)?;
            while now != file.before && !heard.contains(&(at as u64)) {
                if Instant::now() > deadline {
                    let (path, before) = (file.path.display(), &file.before);
                    return Err(format!("no event for {path}, which said {before:?} and says {now:?}"));
                }
                self.hear(&mut heard)?;
            }
        }
        Ok(())
    }

    /// Takes the events that there are, and waits a second for one if there are none.
    fn hear(&self, heard: &mut BTreeSet<u64>) -> Result<(), String> {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut events = Vec::with_capacity(self.files.len());
        epoll::wait(&self.polled, spare_capacity(&mut events), Some(&second))
            .map_err(|errno| format!("epoll: {errno}"))?;
        heard.extend(events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}
