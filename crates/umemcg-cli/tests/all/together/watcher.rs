//! A program that watches the event files of the groups through a whole life, as inotify lets it:
//! what they count has to be heard of.

use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::together::world::GROUPS;

/// Longest that an event takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Watched {
    watch: i32,
    path: PathBuf,
    /// Its text when the watch had begun.
    before: String,
}

/// See the module text.
#[derive(Debug)]
pub struct Watcher {
    inotify: OwnedFd,
    files: Vec<Watched>,
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Watcher {
    /// Watches the files of all groups below the control mount.
    pub fn start(cg: &Path) -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        let watch = |group: &&str| {
            let path = cg.join(group).join("memory.events");
            let watch = inotify::add_watch(&inotify, &path, WatchFlags::MODIFY).unwrap();
            Watched { watch, before: read(&path).unwrap(), path }
        };
        let files = GROUPS.iter().map(watch).collect();
        Self { inotify, files }
    }

    /// Waits until there was an event for each file that says something else than before.
    pub fn check(&self) -> Result<(), String> {
        let (mut heard, deadline) = (BTreeSet::new(), Instant::now() + TIMEOUT);
        for file in &self.files {
            let now = read(&file.path)?;
            while now != file.before && !heard.contains(&file.watch) {
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
    fn hear(&self, heard: &mut BTreeSet<i32>) -> Result<(), String> {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.inotify, PollFlags::IN)], Some(&second)).map_err(|e| e.to_string())?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                // Too many to keep: any of them may have been among those.
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    heard.extend(self.files.iter().map(|file| file.watch));
                }
                Ok(event) => drop(heard.insert(event.wd())),
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(format!("inotify: {errno}")),
            }
        }
    }
}
