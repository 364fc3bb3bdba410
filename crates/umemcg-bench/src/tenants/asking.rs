//! Tenant B of `tenants`: one call of each of its kinds after another, timed and checked.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::event_file::EventFile;
use super::ground::{COLD_FILE, Ground, MIB, PAGE, Random, SHARED_FILE};
use crate::options::Failure;

/// The longest wait for an event.
const HEARD_WITHIN: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// The work of B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// It asks for attributes, and reads a page that is not cached.
    Attributes,
    /// It walks a tree whose names have mostly left the cache.
    Walk,
    /// It moves a file from one directory to another.
    Moves,
    /// It looks for a missing name in a directory that it shares, and makes a file there.
    Names,
    /// It meets its limit, and waits for the event.
    Hears,
    /// It writes a page of a file of its own. It has read a file that others write.
    Writes,
}

impl Ask {
    /// Returns the names of its calls.
    pub fn calls(self) -> &'static [&'static str] {
        match self {
            Self::Attributes => &["attributes", "cold read"],
            Self::Walk => &["name of a walk"],
            Self::Moves => &["mv"],
            Self::Names => &["missing name", "create"],
            Self::Hears => &["event"],
            Self::Writes => &["write"],
        }
    }

    /// Returns the group of the thread that makes them.
    pub fn group(self) -> &'static str {
        match self {
            Self::Attributes | Self::Moves | Self::Names => "b",
            Self::Walk => "b/walks",
            Self::Hears => "b/hears",
            Self::Writes => "b/writes",
        }
    }
}

/// The calls of a sample. The thread that makes it is in B's group.
pub struct Asker<'a> {
    ground: &'a Ground,
    ask: Ask,
    cold: File,
    own: File,
    /// Set if events are waited for.
    events: Option<EventFile>,
    nr: usize,
    random: Random,
}

impl<'a> Asker<'a> {
    pub fn new(ground: &'a Ground, ask: Ask) -> Result<Self, Failure> {
        let open = |path: &str| {
            let file = File::options().read(true).write(path == "local/own").open(ground.at(path));
            file.map_err(Failure::at("B cannot open a file"))
        };
        let (cold, own) = (open("local/cold")?, open("local/own")?);
        let mut events = None;
        match ask {
            Ask::Walk => (0..ground.nr_pinned).try_for_each(|nr| look(ground, nr))?,
            Ask::Writes => {
                let mut pages = vec![0; SHARED_FILE as usize];
                let read = open("local/pages")?.read_exact_at(&mut pages, 0);
                read.map_err(Failure::at("B cannot read"))?;
            }
            Ask::Hears => events = Some(EventFile::open(ground, ask.group())?),
            Ask::Attributes | Ask::Moves | Ask::Names => {}
        }
        // The file is where an earlier sample has left it.
        let nr = usize::from(ask == Ask::Moves && ground.at("local/two/f").exists());
        Ok(Self { ground, ask, cold, own, events, nr, random: Random(12_345) })
    }

    /// Makes each call once; `note` gets its number and its time.
    pub fn turn(&mut self, note: &mut dyn FnMut(usize, Duration)) -> Result<(), Failure> {
        self.nr += 1;
        match self.ask {
            Ask::Attributes => {
                let before = Instant::now();
                self.attributes()?;
                note(0, before.elapsed());
                let before = Instant::now();
                self.read_cold(&mut [1; PAGE as usize])?;
                note(1, before.elapsed());
            }
            Ask::Walk => {
                let before = Instant::now();
                look(self.ground, self.ground.nr_pinned + self.nr % self.ground.nr_walked)?;
                note(0, before.elapsed());
            }
            Ask::Moves => {
                let [from, to] = if self.nr % 2 == 1 { ["one", "two"] } else { ["two", "one"] };
                let path = |directory: &str| self.ground.at("local").join(directory).join("f");
                let (from, to, before) = (path(from), path(to), Instant::now());
                fs::rename(from, to).map_err(Failure::at("B cannot move a file"))?;
                note(0, before.elapsed());
            }
            Ask::Names => self.use_names(note)?,
            Ask::Hears => self.hear(note)?,
            Ask::Writes => {
                let (page, offset) = ([3; PAGE as usize], self.random.below(SHARED_FILE / PAGE) * PAGE);
                let before = Instant::now();
                self.own.write_all_at(&page, offset).map_err(Failure::at("B cannot write"))?;
                note(0, before.elapsed());
                let mut found = [0; PAGE as usize];
                self.own.read_exact_at(&mut found, offset).map_err(Failure::at("B cannot read"))?;
                if found != page {
                    return Err(Failure::Wrong("B does not read what it wrote".into()));
                }
            }
        }
        Ok(())
    }

    fn attributes(&self) -> Result<(), Failure> {
        // The kernel is to ask the daemon each time.
        let path = self.ground.at("local/cold");
        let found = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        let found = found.map_err(Failure::at("B cannot look at a file"))?;
        if found.stx_size != COLD_FILE {
            return Err(Failure::Wrong("a length that is not the file's".into()));
        }
        Ok(())
    }

    fn read_cold(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        let offset = self.random.below(COLD_FILE / MIB - 1) * MIB;
        self.cold.read_exact_at(buffer, offset).map_err(Failure::at("B cannot read"))?;
        if buffer.iter().any(|&byte| byte != 0) {
            return Err(Failure::Wrong("a hole that is not empty".into()));
        }
        Ok(())
    }

    fn use_names(&self, note: &mut dyn FnMut(usize, Duration)) -> Result<(), Failure> {
        let path = |what: &str| self.ground.at("local/shared").join(format!("{what}{}", self.nr));
        let (missing, made, before) = (path("missing"), path("b"), Instant::now());
        let found = fs::symlink_metadata(missing);
        note(0, before.elapsed());
        if !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Err(Failure::Wrong("a missing name is not missing".into()));
        }
        let before = Instant::now();
        let file = File::create_new(&made).map_err(Failure::at("B cannot make a file"))?;
        note(1, before.elapsed());
        drop(file);
        fs::remove_file(made).map_err(Failure::at("B cannot remove a file"))
    }

    fn hear(&mut self, note: &mut dyn FnMut(usize, Duration)) -> Result<(), Failure> {
        self.events.as_ref().map_or(Ok(()), EventFile::take)?;
        let before = Instant::now();
        // Twice as much as it may have.
        let mut buffer = vec![1; MIB as usize];
        self.read_cold(&mut buffer)?;
        self.read_cold(&mut buffer)?;
        let heard = self.events.as_ref().map_or(Ok(true), |events| events.wait(&HEARD_WITHIN))?;
        if !heard {
            return Err(Failure::Wrong("B does not hear of an event within a minute".into()));
        }
        note(0, before.elapsed());
        Ok(())
    }
}

fn look(ground: &Ground, nr: usize) -> Result<(), Failure> {
    let found = fs::symlink_metadata(ground.name(nr)).map_err(Failure::at("B cannot look at a name"))?;
    if found.is_file() { Ok(()) } else { Err(Failure::Wrong("a name that is no file's".into())) }
}
