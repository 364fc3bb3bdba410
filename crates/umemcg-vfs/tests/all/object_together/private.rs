//! Files of one user, in a directory of its own, beside a sequential model: what was acknowledged
//! is in the bucket byte for byte at once, and reads see what was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg_vfs::{FallocateFlags, Lookup, OFlags, RenameFlags, SetAttr, VfsError, VolumeFile};

use crate::common::labels::{Change, Labels};
use crate::common::object_world::{World, errno};
use crate::object_together::bucket::calmly;
use crate::object_together::dice::Dice;
use crate::object_together::world::{Doing, Together, list, read, read_all};

const NAMES: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "d/c"];
const LEN_MAX: u64 = 100_000;
const NR_ATTEMPTS_MAX: usize = 10_000;

/// A file as the model knows it.
#[derive(Debug, Default, Clone)]
struct Known {
    bytes: Vec<u8>,
    /// None if it was not changed, or may or may not have been.
    mode: Option<u32>,
    /// All that it may have been since it was acknowledged last, that included.
    may_be_stored: Vec<Vec<u8>>,
    /// It was never acknowledged.
    may_be_absent: bool,
    is_dirty: bool,
}

impl Known {
    fn change(&mut self, bytes: Vec<u8>) {
        self.may_be_stored.push(bytes.clone());
        (self.bytes, self.is_dirty) = (bytes, true);
    }

    fn acknowledge(&mut self) {
        self.may_be_stored = vec![self.bytes.clone()];
        (self.may_be_absent, self.is_dirty) = (false, false);
    }

    /// Returns whether the store may have this: each byte from one of the states, since `syncfs`
    /// may store a write that is half done.
    fn allows(&self, stored: &[u8]) -> bool {
        let is_from_one =
            |at: usize, byte: u8| self.may_be_stored.iter().any(|b| b.get(at).copied().unwrap_or(0) == byte);
        let lens = self.may_be_stored.iter().map(Vec::len);
        stored.len() <= lens.max().unwrap_or(0)
            && stored.iter().enumerate().all(|(at, &byte)| is_from_one(at, byte))
    }
}

/// The files of one user.
pub struct Private {
    together: Arc<Together>,
    thread: u32,
    dice: Dice,
    /// By number, since files outlive names.
    files: Vec<Known>,
    names: BTreeMap<&'static str, usize>,
    open: Vec<(usize, Arc<dyn VolumeFile>)>,
    has_extra_directory: bool,
}

fn errno_is<T>(result: &Result<T, VfsError>, errno: Errno) -> bool {
    result.as_ref().is_err_and(|error| error.errno() == errno)
}

/// Returns whether an operation may fail so while the store does, or with little memory or room.
pub fn is_excused(error: Errno) -> bool {
    matches!(error, Errno::IO | Errno::NOMEM | Errno::NOSPC | Errno::TIMEDOUT)
}

impl Private {
    pub fn new(together: &Arc<Together>, thread: u32, dice: Dice) -> Self {
        Self {
            together: Arc::clone(together),
            thread,
            dice,
            files: vec![],
            names: BTreeMap::new(),
            open: vec![],
            has_extra_directory: false,
        }
    }

    fn w(&self) -> World {
        self.together.view(self.thread)
    }

    fn path(&self, name: &str) -> String {
        format!("p{}/{name}", self.thread)
    }

    fn stored(&self, name: &str) -> Option<Vec<u8>> {
        self.together.bucket.stored(&self.path(name))
    }

    fn name(&mut self) -> &'static str {
        self.dice.of_these(&NAMES)
    }

    fn name_of(&self, file: usize) -> Option<&'static str> {
        self.names.iter().find(|(_, of)| **of == file).map(|(name, _)| *name)
    }

    /// Repeats what fails for an excused reason.
    fn insist<R>(&self, what: &str, act: impl Fn(&World) -> Result<R, VfsError>) -> Result<R, Errno> {
        for _ in 0..NR_ATTEMPTS_MAX {
            match act(&self.w()) {
                Err(error) if is_excused(error.errno()) => {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                result => return result.map_err(|error| error.errno()),
            }
        }
        panic!("{what} of {} fails for ever", self.thread);
    }

    /// Makes the directories.
    pub fn begin(&mut self) {
        for path in [format!("p{}", self.thread), self.path("d")] {
            let made = self.insist("mkdir", |w| w.mkdir(&path));
            assert!(matches!(made, Ok(()) | Err(Errno::EXIST)), "{made:?}");
        }
    }

    fn bytes(&mut self, len_max: u64) -> Vec<u8> {
        let (len, seed) = (1 + self.dice.below(len_max), self.dice.below(251));
        (0..len).map(|at| (at / 7 + seed) as u8).collect()
    }

    /// Notes an attempt to store a file, and whether it was acknowledged.
    fn tried(&mut self, file: usize, result: &Result<(), VfsError>) {
        let Some(name) = self.name_of(file) else { return };
        match result {
            Ok(()) => {
                let stored = self.stored(name);
                let known = &mut self.files[file];
                assert!(stored.as_ref() == Some(&known.bytes), "{name}: acknowledged, and not stored");
                known.acknowledge();
                self.check_mode(name, file);
            }
            Err(error) => assert!(is_excused(error.errno()), "{name}: {error:?}"),
        }
    }

    /// Checks the mode that the bucket has of a file that is acknowledged.
    fn check_mode(&self, name: &str, file: usize) {
        let stored = self.stored_mode(name);
        let is_it = self.files[file].mode.is_none_or(|mode| stored == Some(mode));
        assert!(is_it, "{name}: stored with {stored:?} for {:?}", self.files[file].mode);
    }

    fn stored_mode(&self, name: &str) -> Option<u32> {
        let (_, metadata) = self.together.bucket.memory.object(&self.path(name))?;
        Some(Labels::of(&metadata).mode)
    }

    /// Changes the mode of a file, which is in the store at once unless it is being written.
    fn change_mode(&mut self) {
        let (name, mode) = (self.name(), 0o400 | self.dice.below(0o400) as u32);
        // A lost answer leaves another version than the volume knows.
        let result = calmly(|| Change::Mode(mode).run(&self.w(), &self.path(name)));
        match (self.names.get(name).copied(), result) {
            (None, result) => assert_eq!(errno(result), Some(Errno::NOENT), "{name}"),
            (Some(number), Ok(())) => {
                self.files[number].mode = Some(mode);
                let shown = self.insist("getattr", |w| w.attr(&self.path(name))).unwrap();
                assert_eq!(shown.mode & 0o7777, mode, "{name}");
                if !self.files[number].is_dirty {
                    self.check_mode(name, number);
                }
            }
            (Some(number), Err(error)) => {
                assert!(is_excused(error.errno()), "{name}: {error:?}");
                self.files[number].mode = None;
            }
        }
    }

    /// Reads what a file has become after an operation that failed: each byte from before or from
    /// what was to be.
    fn adopt(&mut self, number: usize, wanted: Vec<u8>) {
        let Some(name) = self.name_of(number) else { return };
        self.files[number].may_be_stored.push(wanted);
        let path = self.path(name);
        let found = self.insist("a read", |w| read_all(w, &w.open(&path, OFlags::RDONLY)?, 128 << 10, false));
        let known = &mut self.files[number];
        let found = found.unwrap_or_else(|errno| panic!("{path}: {errno}"));
        assert!(known.allows(&found), "{path}: neither from before nor from what failed");
        known.change(found);
    }

    fn open_or_create(&mut self, name: &'static str, flags: OFlags) -> Option<(usize, Arc<dyn VolumeFile>)> {
        let opened = self.w().create_with(&self.path(name), flags | OFlags::CREATE);
        let cut = flags.contains(OFlags::TRUNC);
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                assert!(is_excused(error.errno()), "{name}: {error:?}");
                match self.names.get(name).copied() {
                    Some(number) if cut => self.adopt(number, Vec::new()),
                    Some(_) => {}
                    // It may have been made.
                    None => self.remove(name),
                }
                return None;
            }
        };
        let number = *self.names.entry(name).or_insert_with(|| {
            let known = Known {
                may_be_stored: vec![vec![]],
                is_dirty: true,
                may_be_absent: true,
                ..Known::default()
            };
            self.files.push(known);
            self.files.len() - 1
        });
        if cut {
            self.files[number].change(Vec::new());
        }
        Some((number, file))
    }

    fn write(&mut self) {
        let name = self.name();
        let flags = [OFlags::RDWR, OFlags::RDWR | OFlags::TRUNC, OFlags::WRONLY | OFlags::APPEND];
        let flags = self.dice.of_these(&flags);
        let Some((number, file)) = self.open_or_create(name, flags) else { return };
        let (at, bytes) = (self.dice.below(LEN_MAX), self.bytes(LEN_MAX / 2));
        let mut wanted = self.files[number].bytes.clone();
        let at = if flags.contains(OFlags::APPEND) { wanted.len() } else { at as usize };
        wanted.resize(wanted.len().max(at + bytes.len()), 0);
        wanted[at..at + bytes.len()].copy_from_slice(&bytes);
        match self.w().write(&file, at as u64, &bytes) {
            Ok(()) => self.files[number].change(wanted),
            Err(error) => {
                assert!(is_excused(error.errno()), "{name}: {error:?}");
                self.adopt(number, wanted);
            }
        }
        self.open.push((number, file));
        if self.open.len() > 6 {
            self.open.remove(0);
        }
    }

    fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.dice.below(self.open.len() as u64) as usize;
        let (number, file) = match self.dice.below(3) {
            0 => self.open[at].clone(),
            _ => self.open.swap_remove(at),
        };
        let result = if self.dice.one_in(2) { file.flush() } else { file.fsync(false) };
        let is_read_only = !file.is_writable();
        if !is_read_only {
            self.tried(number, &result);
        }
        if self.dice.one_in(4) {
            file.closed();
        }
    }

    fn truncate(&mut self) {
        let name = self.name();
        let Some(&number) = self.names.get(name) else { return };
        let size = self.dice.below(LEN_MAX);
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        let result = self.w().set(&self.path(name), &change);
        let mut wanted = self.files[number].bytes.clone();
        wanted.resize(size as usize, 0);
        match result {
            Ok(attr) => {
                assert_eq!(attr.size, size, "{name}");
                self.files[number].change(wanted);
                self.tried(number, &Ok(()));
            }
            Err(error) => {
                assert!(is_excused(error.errno()), "{name}: {error:?}");
                self.adopt(number, wanted);
            }
        }
    }

    fn allocate(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.dice.below(self.open.len() as u64) as usize;
        let (number, file) = self.open[at].clone();
        if self.name_of(number).is_none() || !file.is_writable() {
            return;
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let mode = self.dice.of_these(&[punch, FallocateFlags::ZERO_RANGE, FallocateFlags::empty()]);
        let (offset, len) = (self.dice.below(LEN_MAX), 1 + self.dice.below(20_000));
        let mut wanted = self.files[number].bytes.clone();
        let end = (offset + len) as usize;
        if mode != punch {
            wanted.resize(wanted.len().max(end), 0);
        }
        if mode != FallocateFlags::empty() {
            let end = end.min(wanted.len());
            wanted[(offset as usize).min(end)..end].fill(0);
        }
        match file.fallocate(self.w().group(), mode, offset, len, false) {
            Ok(()) => self.files[number].change(wanted),
            Err(error) => {
                assert!(is_excused(error.errno()), "{mode:?}: {error:?}");
                self.adopt(number, wanted);
            }
        }
    }

    /// Removes a name and all that is known of it, until nothing is there.
    fn remove(&mut self, name: &'static str) {
        let path = self.path(name);
        let removed = self.insist("unlink", |w| match w.unlink(&path) {
            // A renaming over it whose answer was lost is another version to a thread that stores
            // it.
            Err(error) if error.errno() == Errno::STALE => Err(Errno::IO.into()),
            removed => removed,
        });
        assert!(matches!(removed, Ok(()) | Err(Errno::NOENT)), "{path}: {removed:?}");
        assert!(self.stored(name).is_none(), "{path}: removed, and there: {removed:?}");
        if let Some(number) = self.names.remove(name) {
            self.open.retain(|(of, _)| *of != number);
        }
    }

    fn unlink(&mut self) {
        let name = self.name();
        let result = self.w().unlink(&self.path(name));
        match result {
            Err(error) if is_excused(error.errno()) => self.remove(name),
            result => match self.names.remove(name) {
                Some(_) => result.unwrap(),
                None => assert_eq!(errno(result), Some(Errno::NOENT), "{name}"),
            },
        }
        assert!(self.stored(name).is_none(), "{name}: removed, and there");
    }

    fn rename(&mut self) {
        let (from, to) = (self.name(), self.name());
        let must_be_new = self.dice.one_in(3);
        let flags = if must_be_new { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let stored = self.stored(from);
        let result = self.w().rename(&self.path(from), &self.path(to), flags);
        let known = (self.names.get(from).copied(), self.names.contains_key(to));
        match (known, result) {
            (_, Err(error)) if is_excused(error.errno()) => {
                self.check_both(from, to, stored);
                self.remove(from);
                self.remove(to);
            }
            ((None, _), result) => assert_eq!(errno(result), Some(Errno::NOENT), "{from} to {to}"),
            ((_, true), result) if must_be_new => {
                assert_eq!(errno(result), Some(Errno::EXIST), "{from} to {to}");
            }
            (_, result) if from == to => result.unwrap(),
            ((Some(number), _), result) => {
                result.unwrap();
                self.names.remove(from);
                self.names.insert(to, number);
                assert!(self.stored(from).is_none(), "{from} to {to}: still there");
                self.tried(number, &Ok(()));
            }
        }
    }

    /// Each name has what it had; or the new one what it was to get, and the old what was `stored`.
    fn check_both(&mut self, from: &'static str, to: &'static str, stored: Option<Vec<u8>>) {
        let found = [from, to].map(|name| {
            let path = self.path(name);
            self.insist("a read", |w| {
                let read = w.open(&path, OFlags::RDONLY).and_then(|f| read_all(w, &f, 128 << 10, true));
                // What it left was stored over meanwhile.
                let is_stale = errno_is(&read, Errno::STALE);
                if is_stale { Err(Errno::IO.into()) } else { read }
            })
        });
        let known = |name| self.names.get(name).map(|number: &usize| &self.files[*number]);
        let (source, target) = (known(from), known(to));
        let is = |of: Option<&Known>, bytes: &[u8]| of.is_some_and(|known| known.allows(bytes));
        let is_new = |bytes: &[u8]| is(target, bytes) || source.is_some_and(|known| known.bytes == bytes);
        match &found[1] {
            Ok(bytes) => assert!(is_new(bytes), "{from} to {to}: neither"),
            Err(errno) => {
                assert!(*errno == Errno::NOENT && target.is_none(), "{from} to {to}: {errno}, lost");
            }
        }
        let is_moved = source.is_some_and(|known| found[1].as_ref() == Ok(&known.bytes));
        let is_old = |bytes: &Vec<u8>| is_moved && stored.as_ref() == Some(bytes);
        match &found[0] {
            Ok(bytes) => assert!(is(source, bytes) || is_old(bytes), "{from} to {to}: another source"),
            Err(errno) => {
                let is_gone = *errno == Errno::NOENT && (is_moved || source.is_none());
                assert!(is_gone, "{from} to {to}: {errno}, lost");
            }
        }
    }

    /// Renames a directory forth and back.
    fn rename_directory(&mut self) {
        let (here, there) = (self.path("d"), self.path("e"));
        for (from, to) in [(&here, &there), (&there, &here)] {
            let renamed = calmly(|| self.insist("rename", |w| w.rename(from, to, RenameFlags::empty())));
            assert_eq!(renamed, Ok(()), "{from} to {to}");
            let left: Vec<_> = self.together.bucket.memory.keys();
            let left: Vec<_> = left.iter().filter(|key| key.starts_with(&format!("{from}/"))).collect();
            assert!(left.is_empty(), "{from} to {to}: {left:?} stayed");
        }
        let below: Vec<_> = self.names.iter().filter(|(name, _)| name.starts_with("d/")).collect();
        for number in below.into_iter().map(|(_, number)| *number).collect::<Vec<_>>() {
            self.tried(number, &Ok(()));
        }
    }

    fn toggle_directory(&mut self) {
        let path = self.path("t");
        let has = self.has_extra_directory;
        if has {
            let removed = self.insist("rmdir", |w| w.rmdir(&path));
            assert!(matches!(removed, Ok(()) | Err(Errno::NOENT)), "{removed:?}");
        } else {
            let made = self.insist("mkdir", |w| w.mkdir(&path));
            assert!(matches!(made, Ok(()) | Err(Errno::EXIST)), "{made:?}");
        }
        self.has_extra_directory = !has;
    }

    fn read(&mut self) {
        if self.open.is_empty() || self.dice.one_in(2) {
            let name = self.name();
            let opened = self.w().open(&self.path(name), OFlags::RDONLY);
            match (self.names.get(name).copied(), opened) {
                (_, Err(error)) if is_excused(error.errno()) => return,
                (None, opened) => return assert_eq!(errno(opened), Some(Errno::NOENT), "{name}"),
                (Some(number), opened) => {
                    let file = opened.unwrap_or_else(|error| panic!("{name}: {error:?}"));
                    self.open.push((number, file));
                }
            }
        }
        let at = self.dice.below(self.open.len() as u64) as usize;
        let (number, file) = self.open[at].clone();
        let (offset, len) = (self.dice.below(LEN_MAX), 1 + self.dice.below(60_000) as usize);
        let has_name = self.name_of(number).is_some();
        match read(&self.w(), &file, (offset, len), self.dice.one_in(2)) {
            Ok(bytes) => {
                let known = &self.files[number].bytes;
                let from = known.len().min(offset as usize);
                let expected = &known[from..known.len().min(from + len)];
                // A short read is none of the end only.
                let is_it = bytes.len() <= expected.len() && bytes[..] == expected[..bytes.len()];
                assert!(is_it && bytes.is_empty() == expected.is_empty(), "{number} at {offset}");
            }
            Err(error) if !has_name => assert!(is_excused(error.errno()) || error.errno() == Errno::STALE),
            Err(error) => assert!(is_excused(error.errno()), "{number}: {error:?}"),
        }
    }

    fn list(&mut self) {
        for (directory, begin) in [("", ""), ("d", "d/")] {
            let path = self.path(directory);
            let Ok(listed) = self.insist("a listing", |w| list(w, path.trim_end_matches('/'))) else {
                panic!("{path} cannot be listed")
            };
            let expected = |name: &str| self.names.get(&*format!("{begin}{name}"));
            for (name, len) in &listed {
                let is_directory = directory.is_empty() && matches!(&**name, "d" | "t" | "e");
                let known = expected(name);
                assert!(is_directory || known.is_some(), "{path}: {name} is not there");
                let known = known.map(|number| self.files[*number].bytes.len() as u64);
                assert!(len.is_none() || is_directory || *len == known, "{path}: {name} has {len:?}");
            }
            for name in self.names.keys().filter_map(|name| name.strip_prefix(begin)) {
                let is_listed = name.contains('/') || listed.iter().any(|(listed, _)| listed == name);
                assert!(is_listed, "{path}: {name} is missing in {listed:?}");
            }
        }
    }

    fn hold(&mut self) {
        let name = self.name();
        if let Ok(entry) = self.w().find(&self.path(name)) {
            match self.dice.one_in(3) {
                true => self.w().volume.forget(entry.node, 1),
                false => self.together.kernel().keep(entry.node),
            }
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

    /// Closes all files, whose bytes are in the store then.
    pub fn close_all(&mut self) {
        for (number, file) in std::mem::take(&mut self.open) {
            let flushed = self.insist("a flush", |_| file.flush());
            if let Some(name) = self.name_of(number).filter(|_| file.is_writable()) {
                assert_eq!(flushed, Ok(()), "{name}");
                self.tried(number, &Ok(()));
            }
        }
    }

    /// Closes files without storing them.
    pub fn abandon(&mut self) {
        self.open.clear();
    }

    /// Checks the bucket while all that is there is acknowledged.
    pub fn check_stored(&mut self) {
        let numbers: Vec<_> = self.names.values().copied().collect();
        numbers.into_iter().for_each(|number| self.tried(number, &Ok(())));
        let prefix = self.path("");
        for key in self.together.bucket.memory.keys().iter().filter_map(|key| key.strip_prefix(&prefix)) {
            assert!(key.is_empty() || key.ends_with('/') || self.names.contains_key(key), "{prefix}{key}");
        }
    }

    /// Goes on with what the bucket has after a volume was left. With `is_kept` all else that was
    /// written is in `lost/`.
    pub fn adopt_stored(&mut self, is_kept: bool) {
        let names: Vec<_> = self.names.iter().map(|(name, number)| (*name, *number)).collect();
        for (name, number) in names {
            let (stored, path, known) = (self.stored(name), self.path(name), &self.files[number]);
            match &stored {
                Some(bytes) if known.is_dirty => assert!(known.allows(bytes), "{path}: never so"),
                Some(bytes) => assert!(*bytes == known.bytes, "{path}: acknowledged, and changed"),
                None => assert!(known.may_be_absent, "{path}: acknowledged, and gone"),
            }
            if is_kept && stored.as_ref() != Some(&known.bytes) {
                assert!(self.together.has_lost(&known.bytes), "{path}: neither stored nor in lost/");
            }
            match stored {
                Some(bytes) => {
                    match known.is_dirty {
                        true => self.files[number].mode = self.stored_mode(name),
                        false => self.check_mode(name, number),
                    }
                    self.files[number].bytes = bytes;
                    self.files[number].acknowledge();
                }
                None => drop(self.names.remove(name)),
            }
        }
        self.begin();
        self.has_extra_directory = true;
        self.toggle_directory();
    }
}

type Operation = fn(&mut Private);

/// What a user does, and how often.
const OPERATIONS: [(&str, Operation, u64); 12] = [
    ("writes", Private::write, 8),
    ("closes", Private::close, 6),
    ("truncates", Private::truncate, 2),
    ("changes a mode", Private::change_mode, 2),
    ("allocates", Private::allocate, 2),
    ("unlinks", Private::unlink, 2),
    ("renames", Private::rename, 2),
    ("renames a directory", Private::rename_directory, 1),
    ("makes or removes a directory", Private::toggle_directory, 1),
    ("reads", Private::read, 5),
    ("lists", Private::list, 1),
    ("looks up", Private::hold, 2),
];
