//! Files that several users and another program change at the same time.
//!
//! - `swap/`: replaced as a whole, by renaming a file over it, and by the other program. A reader
//!   sees one version, whenever it looks.
//! - `lock/`: written in place by one user at a time, and replaced by the other program meanwhile.
//!   What is told to be stored was stored; what lost is told once, and is in `lost/`.
//! - `logs/`: appended to by all users at once. No record is lost or doubled.
//!   Not on a volume of streams, to which nothing is appended, and whose files in `lock/` are
//!   written as a whole: what is lost there is told, and not kept.
//! - `dirs/x` and `dirs/y`: one directory, renamed while files are made in it. No file is lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg_vfs::{Lookup, OFlags, RenameFlags, VfsError, VolumeFile};

use crate::common::object_world::World;
use crate::object_together::dice::Dice;
use crate::object_together::lock;
use crate::object_together::private::is_excused;
use crate::object_together::versions::{self, Parts, Stamp, describe, parse};
use crate::object_together::world::{Doing, NR_SHARED, Together, read_all};

const NR_FLUSHES_MAX: usize = 10_000;
/// Looks for a file that is moved forth and back.
const NR_LOOKS: usize = 100;
pub const LOG: &str = "logs/0";
pub const DIRECTORIES: [&str; 2] = ["dirs/x", "dirs/y"];

/// A user of shared files.
pub struct Sharer {
    together: Arc<Together>,
    thread: u32,
    dice: Dice,
    log: Option<Arc<dyn VolumeFile>>,
    /// Records that were written, and not acknowledged.
    appended: Vec<Stamp>,
    /// Records that must be in the log.
    logged: Vec<Stamp>,
    /// Files that must be in one of the directories.
    made: BTreeMap<String, Vec<u8>>,
}

/// Returns whether an object that other programs change may fail so.
fn is_overtaken(error: Errno) -> bool {
    is_excused(error) || matches!(error, Errno::STALE | Errno::NOENT | Errno::AGAIN | Errno::BUSY)
}

impl Sharer {
    pub fn new(together: &Arc<Together>, thread: u32, dice: Dice) -> Self {
        let together = Arc::clone(together);
        let (log, made) = (None, BTreeMap::new());
        Self { together, thread, dice, log, appended: vec![], logged: vec![], made }
    }

    fn w(&self) -> World {
        self.together.view(self.thread)
    }

    fn stamp(&self) -> Stamp {
        (self.thread, self.together.next_serial())
    }

    /// Has a file stored. Returns how often that was refused.
    fn flush(&self, file: &Arc<dyn VolumeFile>, by_fsync: bool) -> usize {
        for nr_refused in 0..NR_FLUSHES_MAX {
            let flushed = if by_fsync { file.fsync(false) } else { file.flush() };
            match flushed {
                Ok(()) => return nr_refused,
                Err(error) => assert!(is_excused(error.errno()), "a flush: {error:?}"),
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        panic!("a flush fails for ever");
    }

    /// Closes or syncs a file, and returns whether it is in the store. Where it is staged it is so
    /// after all, unless it is lost.
    fn is_stored(&self, file: &Arc<dyn VolumeFile>, bytes: &[u8], by_fsync: bool) -> bool {
        if !self.together.streams {
            return self.flush(file, by_fsync) == 0 || !self.together.has_lost(bytes);
        }
        let flushed = if by_fsync { file.fsync(false) } else { file.flush() };
        flushed.map_err(|error| assert!(is_excused(error.errno()), "a flush: {error:?}")).is_ok()
    }

    /// Removes a name, until nothing of this user is there.
    fn remove(&self, path: &str) {
        for _ in 0..NR_FLUSHES_MAX {
            match self.w().unlink(path).map_err(|error| error.errno()) {
                Ok(()) | Err(Errno::NOENT) => return,
                Err(errno) => assert!(is_overtaken(errno), "unlink of {path}: {errno}"),
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        panic!("unlink of {path} fails for ever");
    }

    fn swap_path(&mut self) -> String {
        format!("swap/{}", self.dice.below(NR_SHARED as u64))
    }

    /// Replaces a file by renaming another over it.
    fn swap(&mut self) {
        let (path, fresh) = (self.swap_path(), format!("swap/new-{}", self.thread));
        let bytes = versions::whole(self.stamp());
        let w = self.w();
        let written =
            w.create_with(&fresh, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC).and_then(|file| {
                w.write(&file, 0, &bytes)?;
                Ok(file)
            });
        let file = match written {
            Ok(file) => file,
            Err(error) => {
                assert!(is_overtaken(error.errno()), "{fresh}: {error:?}");
                return self.remove(&fresh);
            }
        };
        if self.together.streams && !self.is_stored(&file, &bytes, false) {
            // A sync may have stored it as it was begun.
            return self.remove(&fresh);
        }
        // Whether that is told or not, the renaming stores it.
        let told = (!self.together.streams && self.dice.one_in(2)).then(|| file.flush());
        match w.rename(&fresh, &path, RenameFlags::empty()) {
            Ok(()) => assert!(
                self.together.bucket.had(&path, &bytes),
                "{path}: renamed, and never there; {told:?} was told of {fresh}, in lost/: {}, stored: {}",
                self.together.has_lost(&bytes),
                self.together.bucket.had(&fresh, &bytes)
            ),
            Err(error) => {
                assert!(is_overtaken(error.errno()), "{fresh} to {path}: {error:?}");
                self.remove(&fresh);
            }
        }
    }

    fn see_whole(&self, path: &str, part: usize, in_steps: bool) -> Result<(), VfsError> {
        let w = self.w();
        let file = w.open(path, OFlags::RDONLY)?;
        let bytes = read_all(&w, &file, part, in_steps)?;
        let parts = parse(&bytes);
        let is_one = parts.is_some_and(|parts| parts.head == parts.tail);
        assert!(is_one, "{path} is no version: {}", describe(&bytes));
        Ok(())
    }

    fn look(&mut self) {
        let path = self.swap_path();
        let (part, in_steps) = (self.dice.of_these(&[4096, 30_000, 128 << 10]), self.dice.one_in(2));
        if let Err(error) = self.see_whole(&path, part, in_steps) {
            assert!(is_overtaken(error.errno()), "{path}: {error:?}");
        }
    }

    fn unlink(&mut self) {
        let path = self.swap_path();
        if let Err(error) = self.w().unlink(&path) {
            assert!(is_overtaken(error.errno()), "unlink of {path}: {error:?}");
        }
    }

    /// Looks a name up and has the kernel keep it.
    fn hold(&mut self) {
        let path = self.swap_path();
        if let Ok(entry) = self.w().find(&path) {
            match self.dice.one_in(2) {
                true => self.together.kernel().keep(entry.node),
                false => self.w().volume.forget(entry.node, 1),
            }
        }
    }

    /// Checks what became of a version that was written as a whole.
    fn settle(&self, path: &str, file: &Arc<dyn VolumeFile>, bytes: &[u8], by_fsync: bool) {
        if self.together.streams {
            let is_stored = self.is_stored(file, bytes, by_fsync);
            let is_lie = is_stored && !self.together.bucket.had(path, bytes);
            assert!(!is_lie, "{path}: told to be stored, and never was: {}", describe(bytes));
            if !is_stored {
                self.remove(path);
            }
            return;
        }
        let nr_refused = self.flush(file, by_fsync);
        let is_stored = self.together.bucket.had(path, bytes);
        if is_stored {
            return;
        }
        assert!(nr_refused > 0, "{path}: told to be stored, and never was: {}", describe(bytes));
        assert!(self.together.has_lost(bytes), "{path}: lost, and not in lost/: {}", describe(bytes));
        let again = file.write(self.w().group(), 0, b"x", false).map_err(|error| error.errno());
        assert_eq!(again, Err(Errno::IO), "{path}: a write to what lost");
        assert!(file.flush().is_ok(), "{path}: told twice");
    }

    /// Writes a whole version, by the one that has the turn.
    fn rewrite(&self, path: &str, by_fsync: bool) {
        let (w, bytes) = (self.w(), versions::whole(self.stamp()));
        let file = match w.create_with(path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC) {
            Ok(file) => file,
            Err(error) => {
                assert!(is_overtaken(error.errno()), "{path}: {error:?}");
                return self.remove(path);
            }
        };
        match w.write(&file, 0, &bytes) {
            Ok(()) => self.settle(path, &file, &bytes, by_fsync),
            Err(error) => {
                assert!(is_overtaken(error.errno()), "{path}: {error:?}");
                self.remove(path);
            }
        }
    }

    /// Replaces the tail of what is there, by the one that has the turn.
    fn edit(&self, path: &str, by_fsync: bool) -> Result<(), VfsError> {
        let w = self.w();
        let file = w.open(path, OFlags::RDWR)?;
        let mut bytes = read_all(&w, &file, 128 << 10, by_fsync)?;
        let Some(parts): Option<Parts> = parse(&bytes) else {
            // Empty, when a version that was begun was stored by a sync and could not be written.
            panic!("{path} is no version: {}", describe(&bytes));
        };
        if bytes.len() > 150_000 {
            return Ok(());
        }
        let tail = versions::tail_for(parts, self.stamp());
        bytes.truncate(parts.head_len);
        bytes.extend(&tail);
        match w.write(&file, parts.head_len as u64, &tail) {
            Ok(()) => self.settle(path, &file, &bytes, by_fsync),
            Err(error) => {
                assert!(is_overtaken(error.errno()), "{path}: {error:?}");
                self.remove(path);
            }
        }
        Ok(())
    }

    /// Does one thing with a file that no other user has meanwhile.
    fn write_alone(&mut self) {
        let nr = self.dice.below(NR_SHARED as u64) as usize;
        let path = format!("lock/{nr}");
        let together = Arc::clone(&self.together);
        let (kind, by_fsync) = (self.dice.below(8), self.dice.one_in(2));
        let _turn = lock(&together.turns[nr]);
        match kind {
            0..3 => self.rewrite(&path, by_fsync),
            3..6 if self.together.streams => self.rewrite(&path, by_fsync),
            3..6 => {
                if let Err(error) = self.edit(&path, by_fsync) {
                    assert!(is_overtaken(error.errno()), "{path}: {error:?}");
                }
            }
            6 => self.remove(&path),
            _ => {
                let w = self.w();
                let seen = w.open(&path, OFlags::RDONLY).and_then(|file| read_all(&w, &file, 9000, by_fsync));
                match seen {
                    Ok(bytes) => assert!(parse(&bytes).is_some(), "{path}: {}", describe(&bytes)),
                    Err(error) => assert!(is_overtaken(error.errno()), "{path}: {error:?}"),
                }
            }
        }
    }

    fn append(&mut self) {
        if self.together.streams {
            return;
        }
        let w = self.w();
        let file = match self.log.take() {
            Some(file) => file,
            None => match w.create_with(LOG, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND) {
                Ok(file) => file,
                Err(error) => return assert!(is_overtaken(error.errno()), "{LOG}: {error:?}"),
            },
        };
        for _ in 0..1 + self.dice.below(3) {
            let stamp = self.stamp();
            match file.write(w.group(), 0, &versions::record(stamp), false) {
                Ok(nr) => {
                    assert_eq!(nr, versions::RECORD);
                    self.appended.push(stamp);
                }
                // A lookup may have been told of the version before the latest, after whose store
                // no thread referred to the name any more.
                Err(error) => {
                    let is_stale = error.errno() == Errno::STALE;
                    assert!(is_stale || is_excused(error.errno()), "{LOG}: {error:?}");
                }
            }
        }
        if self.dice.one_in(2) && file.fsync(true).is_ok() {
            self.logged.append(&mut self.appended);
            self.check_log();
        }
        self.log = (!self.dice.one_in(3)).then_some(file);
    }

    /// Checks that the log in the bucket has the records of this user, once and in order.
    fn check_log(&self) {
        let bytes = self.together.bucket.stored(LOG).unwrap_or_default();
        let whole = &bytes[..bytes.len() / versions::RECORD * versions::RECORD];
        let records = versions::parse_log(whole);
        let Some(records) = records else { panic!("{LOG}: a record is torn") };
        let own: Vec<_> = records.into_iter().filter(|stamp| stamp.0 == self.thread).collect();
        assert!(own.is_sorted_by(|one, next| one < next), "{LOG}: doubled or out of order: {own:?}");
        for stamp in &self.logged {
            assert!(own.contains(stamp), "{LOG}: {stamp:?} was acknowledged, and is not there");
        }
    }

    /// Makes a file in a directory that is renamed meanwhile.
    fn make(&mut self) {
        let (directory, stamp) = (self.dice.of_these(&DIRECTORIES), self.stamp());
        let name = format!("{}-{}", stamp.0, stamp.1);
        let (w, bytes) = (self.w(), versions::whole(stamp));
        let place = format!("{directory}/{name}");
        let is_moved = self.dice.one_in(2);
        let path = if is_moved { format!("logs/{name}") } else { place.clone() };
        let written = w.create_with(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).and_then(|file| {
            w.write(&file, 0, &bytes)?;
            Ok(file)
        });
        match written {
            // Told at the first flush, and kept: its directory was replaced.
            Ok(file) if !is_moved && !self.is_stored(&file, &bytes, false) => return,
            Ok(_) if !is_moved => {}
            Ok(file) if self.together.streams && !self.is_stored(&file, &bytes, true) => return,
            Ok(_file) => match w.rename(&path, &place, RenameFlags::empty()) {
                Ok(()) => {}
                Err(error) => return assert!(is_overtaken(error.errno()), "{path} to {place}: {error:?}"),
            },
            Err(error) => return assert!(is_overtaken(error.errno()), "{path}: {error:?}"),
        }
        self.made.insert(name, bytes);
        self.check_made();
    }

    /// Checks that the files are there, in one directory or, while it is renamed, in both.
    fn check_made(&self) {
        // A renaming that failed may have left a copy of a file as it was then: of a stream, or of
        // one that a sync stored half written.
        for (name, bytes) in &self.made {
            // A copy comes before the original goes, but other threads are faster than a look.
            let is_there = (0..NR_LOOKS).any(|_| {
                let there = DIRECTORIES.map(|at| self.together.bucket.stored(&format!("{at}/{name}")));
                let is_copy = |there: &Vec<u8>| bytes.starts_with(there);
                assert!(there.iter().flatten().all(is_copy), "{name}: other bytes: {there:?}");
                there.iter().flatten().any(|there| there == bytes)
            });
            assert!(is_there, "{name}: acknowledged, and gone; in lost/: {}", self.together.has_lost(bytes));
        }
    }

    fn rename_directory(&mut self) {
        let (from, to) = if self.dice.one_in(2) { (0, 1) } else { (1, 0) };
        let renamed = self.w().rename(DIRECTORIES[from], DIRECTORIES[to], RenameFlags::empty());
        if let Err(error) = renamed {
            let is_there = matches!(error.errno(), Errno::NOTEMPTY | Errno::EXIST);
            assert!(is_there || is_overtaken(error.errno()), "a directory: {error:?}");
        }
    }

    pub fn step(&mut self, doing: &Doing) {
        let mut at = self.dice.below(OPERATIONS.iter().map(|(_, _, weight)| weight).sum());
        for (what, act, weight) in OPERATIONS {
            if at < weight {
                doing.begin(what);
                return act(self);
            }
            at -= weight;
        }
    }

    /// Closes the log, which has all records then.
    pub fn close_all(&mut self) {
        if let Some(file) = self.log.take() {
            self.flush(&file, false);
        }
        self.logged.append(&mut self.appended);
    }

    /// Closes the log without storing it.
    pub fn abandon(&mut self) {
        self.log = None;
        self.appended.clear();
    }

    /// Checks what is there while nothing changes.
    pub fn check_stored(&self) {
        self.check_log();
        self.check_made();
    }
}

type Operation = fn(&mut Sharer);

/// What a user does, and how often.
const OPERATIONS: [(&str, Operation, u64); 8] = [
    ("swaps a file", Sharer::swap, 4),
    ("reads what is swapped", Sharer::look, 5),
    ("unlinks what is swapped", Sharer::unlink, 1),
    ("looks up what is swapped", Sharer::hold, 1),
    ("writes alone", Sharer::write_alone, 6),
    ("appends", Sharer::append, 4),
    ("makes a file", Sharer::make, 3),
    ("renames the directory of all", Sharer::rename_directory, 2),
];
