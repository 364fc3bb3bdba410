//! Files of one user on a volume of streams, in a directory of its own. What was acknowledged is in
//! the bucket byte for byte at once; what was not is there as it was at some time, or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg_vfs::{OFlags, RenameFlags, VfsError, VolumeFile};

use crate::common::labels::{Change, Labels};
use crate::common::object_world::{World, errno};
use crate::object_together::bucket::{PART_BYTES, calmly};
use crate::object_together::dice::Dice;
use crate::object_together::private::is_excused;
use crate::object_together::user::User;
use crate::object_together::world::{Doing, Together, list, read_all};

const NAMES: [&str; 4] = ["a", "b", "d/a", "d/b"];
const WHOLE: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::TRUNC);
/// Files that are being written at once, and old versions that are read.
const NR_OPEN_MAX: usize = 2;
const NR_ATTEMPTS_MAX: usize = 10_000;
const PART: usize = PART_BYTES as usize;

/// What the bucket may have of a name.
type State = Option<Vec<u8>>;

/// A file that is being written.
struct Writer {
    /// None once that was removed, or given to another.
    name: Option<&'static str>,
    file: Arc<dyn VolumeFile>,
    bytes: Vec<u8>,
    /// It has more than a part, and was completed.
    is_whole: bool,
    /// It was given attributes while it went in parts.
    is_relabelled: bool,
}

impl Writer {
    fn is_in_parts(&self) -> bool {
        self.bytes.len() > PART && !self.is_whole
    }
}

/// See the module text.
pub struct Streamer {
    together: Arc<Together>,
    thread: u32,
    dice: Dice,
    /// One state of what was acknowledged last.
    states: BTreeMap<&'static str, Vec<State>>,
    writers: Vec<Writer>,
    readers: Vec<(Vec<u8>, Arc<dyn VolumeFile>)>,
}

impl Streamer {
    pub fn new(together: &Arc<Together>, thread: u32, dice: Dice) -> Self {
        let states = NAMES.map(|name| (name, vec![None])).into();
        Self { together: Arc::clone(together), thread, dice, states, writers: vec![], readers: vec![] }
    }

    fn w(&self) -> World {
        self.together.view(self.thread)
    }

    fn path(&self, name: &str) -> String {
        format!("p{}/{name}", self.thread)
    }

    fn stored(&self, name: &str) -> State {
        self.together.bucket.stored(&self.path(name))
    }

    fn name(&mut self) -> &'static str {
        self.dice.of_these(&NAMES)
    }

    fn any_writer(&mut self) -> Option<usize> {
        let nr = self.writers.len() as u64;
        (nr > 0).then(|| self.dice.below(nr) as usize)
    }

    fn writer_of(&self, name: &str) -> Option<usize> {
        self.writers.iter().position(|writer| writer.name == Some(name))
    }

    fn may_be(&mut self, name: &'static str, state: State) {
        self.states.get_mut(name).unwrap().push(state);
    }

    fn is_now(&mut self, name: &'static str, state: State) {
        self.states.insert(name, vec![state]);
    }

    /// Takes what the bucket has for what is acknowledged; nothing writes it meanwhile.
    fn settle(&mut self, name: &'static str) {
        let stored = self.stored(name);
        assert!(self.states[name].contains(&stored), "{name}: {}", self.told(name, &stored));
        self.is_now(name, stored);
    }

    fn told(&self, name: &str, found: &State) -> String {
        let len = |state: &State| state.as_ref().map(Vec::len);
        let may_be: Vec<_> = self.states[name].iter().map(len).collect();
        format!("has {:?}, and may have {may_be:?}", len(found))
    }

    /// Ends a file as the kernel does.
    fn release(&mut self, at: usize) {
        let writer = self.writers.remove(at);
        writer.file.closed();
        drop(writer.file);
        if let Some(name) = writer.name {
            self.settle(name);
        }
    }

    fn release_all_of(&mut self, name: &str) {
        while let Some(at) = self.writer_of(name) {
            self.release(at);
        }
    }

    /// Repeats what fails for an excused reason.
    fn insist<R>(&self, what: &str, act: impl Fn(&World) -> Result<R, VfsError>) -> Result<R, Errno> {
        for _ in 0..NR_ATTEMPTS_MAX {
            match act(&self.w()) {
                Err(error) if is_excused(error.errno()) || error.errno() == Errno::STALE => {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                result => return result.map_err(|error| error.errno()),
            }
        }
        panic!("{what} of {} fails for ever", self.thread);
    }

    fn open(&mut self) {
        let name = self.name();
        if self.writer_of(name).is_some() || self.writers.len() == NR_OPEN_MAX {
            return self.write();
        }
        match self.w().create_with(&self.path(name), WHOLE) {
            Ok(file) => {
                self.may_be(name, Some(vec![]));
                let bytes = vec![];
                let writer = Writer { name: Some(name), file, bytes, is_whole: false, is_relabelled: false };
                self.writers.push(writer);
            }
            Err(error) => {
                let is_excused = is_excused(error.errno()) || error.errno() == Errno::STALE;
                assert!(is_excused, "{name}: {error:?}");
                self.settle(name);
            }
        }
    }

    fn write(&mut self) {
        let Some(at) = self.any_writer() else { return };
        let len = 1 + self.dice.below(3 * PART_BYTES);
        let data: Vec<u8> = (0..len).map(|at| (at / 7 + len) as u8).collect();
        let group = Arc::clone(self.w().group());
        let writer = &mut self.writers[at];
        match writer.file.write(&group, writer.bytes.len() as u64, &data, false) {
            Ok(nr) => {
                writer.bytes.extend_from_slice(&data[..nr]);
                if let Some(name) = writer.name {
                    let bytes = writer.bytes.clone();
                    self.may_be(name, Some(bytes));
                }
            }
            Err(error) if writer.is_whole => {
                assert!(error.errno() == Errno::OPNOTSUPP || is_excused(error.errno()), "{error:?}");
            }
            Err(error) => {
                assert!(is_excused(error.errno()), "{:?}: {error:?}", writer.name);
                // Where it is given up it stays so.
                self.release(at);
            }
        }
    }

    fn close(&mut self) {
        let Some(at) = self.any_writer() else { return };
        let by_fsync = self.dice.one_in(2);
        self.flush(at, by_fsync);
    }

    /// Closes or syncs a file; one that cannot be stored is given up.
    fn flush(&mut self, at: usize, by_fsync: bool) {
        let writer = &self.writers[at];
        let result = if by_fsync { writer.file.fsync(false) } else { writer.file.flush() };
        let Some(name) = writer.name else {
            return assert!(result.is_ok(), "told of what has no name: {result:?}");
        };
        match result {
            // It may be of a shell, which goes on.
            Ok(()) if writer.bytes.is_empty() && !by_fsync => {}
            Ok(()) => self.acknowledge(at, name),
            Err(error) if error.errno() == Errno::OPNOTSUPP && writer.is_relabelled => {
                self.acknowledge(at, name);
            }
            Err(error) => {
                assert!(is_excused(error.errno()), "{name}: {error:?}");
                self.release(at);
            }
        }
    }

    fn acknowledge(&mut self, at: usize, name: &'static str) {
        let stored = self.stored(name);
        let writer = &mut self.writers[at];
        let is_it = stored.as_ref() == Some(&writer.bytes);
        writer.is_whole |= writer.bytes.len() > PART;
        let text = format!("{name}: {} bytes acknowledged, the bucket ", writer.bytes.len());
        assert!(is_it, "{text}{}", self.told(name, &stored));
        self.is_now(name, stored);
    }

    fn end_file(&mut self) {
        if let Some(at) = self.any_writer() {
            self.release(at);
        }
    }

    fn read(&mut self) {
        let name = self.name();
        let opened = self.w().open(&self.path(name), OFlags::RDONLY);
        let is_written = self.writer_of(name).is_some();
        match opened {
            Ok(file) => match read_all(&self.w(), &file, 9000, self.dice.one_in(2)) {
                Ok(bytes) => {
                    let found = Some(bytes);
                    assert!(self.states[name].contains(&found), "{name}: {}", self.told(name, &found));
                    self.readers.extend(found.map(|bytes| (bytes, file)));
                }
                Err(error) => {
                    let is_excused = is_excused(error.errno()) || error.errno() == Errno::STALE && is_written;
                    assert!(is_excused, "{name}: {error:?}");
                }
            },
            Err(error) => match error.errno() {
                Errno::BUSY | Errno::STALE => assert!(is_written, "{name}: {error:?}"),
                Errno::NOENT => assert!(self.states[name].contains(&None), "{name} is gone"),
                errno => assert!(is_excused(errno), "{name}: {error:?}"),
            },
        }
        for (bytes, file) in &self.readers {
            match read_all(&self.w(), file, 20_000, self.dice.one_in(2)) {
                Ok(again) => assert!(again == *bytes, "{name}: another version"),
                Err(error) => {
                    assert!(is_excused(error.errno()) || error.errno() == Errno::STALE, "{error:?}");
                }
            }
        }
        if self.readers.len() > NR_OPEN_MAX {
            self.readers.remove(0);
        }
    }

    /// Notes that nothing is there, and what was written there has no name.
    fn lose_name(&mut self, name: &'static str) {
        self.is_now(name, None);
        for writer in self.writers.iter_mut().filter(|writer| writer.name == Some(name)) {
            writer.name = None;
        }
        // What was completed takes no more all the same.
        self.writers.retain(|writer| writer.name.is_some() || !writer.is_whole);
    }

    /// Removes a name, until nothing is there.
    fn remove(&mut self, name: &'static str) {
        self.release_all_of(name);
        let path = self.path(name);
        let removed = self.insist("unlink", |w| w.unlink(&path));
        assert!(matches!(removed, Ok(()) | Err(Errno::NOENT)), "{path}: {removed:?}");
        assert!(self.stored(name).is_none(), "{path}: removed, and there: {removed:?}");
        self.is_now(name, None);
    }

    fn unlink(&mut self) {
        let name = self.name();
        match self.w().unlink(&self.path(name)).map_err(|error| error.errno()) {
            Ok(()) => self.lose_name(name),
            Err(Errno::NOENT) => {
                let is_absent = self.states[name].contains(&None) && self.writer_of(name).is_none();
                assert!(is_absent, "{name} is gone");
            }
            Err(errno) => {
                assert!(is_excused(errno) || errno == Errno::STALE, "{name}: {errno}");
                // An answer may have been lost.
                self.may_be(name, None);
                self.remove(name);
            }
        }
        assert!(self.writer_of(name).is_some() || self.stored(name).is_none(), "{name}: removed, and there");
    }

    fn rename(&mut self) {
        let (from, to) = (self.name(), self.name());
        let writer = self.writer_of(from);
        let result = self.w().rename(&self.path(from), &self.path(to), RenameFlags::empty());
        match result.map_err(|error| error.errno()) {
            Ok(()) if from == to => {}
            Ok(()) => {
                let (left, moved) = (self.stored(from), self.stored(to));
                let is_moved = match writer {
                    Some(at) => moved.as_ref() == Some(&self.writers[at].bytes),
                    None => self.states[from].contains(&moved),
                };
                assert!(left.is_none() && is_moved, "{from} to {to}: {}", self.told(from, &moved));
                self.lose_name(to);
                if let Some(at) = self.writer_of(from) {
                    self.writers[at].name = Some(to);
                }
                self.is_now(from, None);
                self.is_now(to, moved);
            }
            Err(Errno::NOENT) => {
                assert!(self.states[from].contains(&None) && writer.is_none(), "{from} is gone");
            }
            Err(Errno::BUSY) => {
                assert!(writer.is_some_and(|at| self.writers[at].is_in_parts()), "{from} to {to} is busy");
            }
            Err(errno) => {
                assert!(is_excused(errno) || errno == Errno::STALE, "{from} to {to}: {errno}");
                self.settle_both(from, to);
            }
        }
    }

    /// After a renaming that failed each name has what it had, or the new one what it was to get.
    fn settle_both(&mut self, from: &'static str, to: &'static str) {
        for name in [from, to] {
            while let Some(at) = self.writer_of(name) {
                let writer = self.writers.remove(at);
                writer.file.closed();
            }
        }
        let (left, moved) = (self.stored(from), self.stored(to));
        let is_moved = moved.is_some() && self.states[from].contains(&moved);
        let is_left = self.states[from].contains(&left) || left.is_none() && is_moved;
        assert!(is_left, "{from} to {to}: {}", self.told(from, &left));
        assert!(is_moved || self.states[to].contains(&moved), "{from} to {to}: {}", self.told(to, &moved));
        self.remove(from);
        self.remove(to);
    }

    /// Renames a directory forth and back, unless something in it goes in parts.
    fn rename_directory(&mut self) {
        for name in NAMES {
            self.release_all_of(name);
        }
        let (here, there) = (self.path("d"), self.path("e"));
        for (from, to) in [(&here, &there), (&there, &here)] {
            let renamed = calmly(|| self.insist("rename", |w| w.rename(from, to, RenameFlags::empty())));
            assert_eq!(renamed, Ok(()), "{from} to {to}");
        }
        NAMES.into_iter().for_each(|name| self.settle(name));
    }

    fn change_mode(&mut self) {
        let (name, mode) = (self.name(), 0o400 | self.dice.below(0o400) as u32);
        // A lost answer leaves another version than the volume knows.
        let result = calmly(|| Change::Mode(mode).run(&self.w(), &self.path(name)));
        let writer = self.writer_of(name);
        match result.map_err(|error| error.errno()) {
            Ok(()) => match writer {
                Some(at) => self.writers[at].is_relabelled |= self.writers[at].is_in_parts(),
                None => {
                    self.settle(name);
                    let (_, metadata) = self.together.bucket.memory.object(&self.path(name)).unwrap();
                    assert_eq!(Labels::of(&metadata).mode, mode, "{name}");
                }
            },
            // Of some lengths only the metadata can be replaced.
            Err(Errno::OPNOTSUPP) => {}
            Err(Errno::NOENT) => {
                assert!(self.states[name].contains(&None) && writer.is_none(), "{name} is gone");
            }
            Err(errno) => assert!(is_excused(errno) || errno == Errno::STALE, "{name}: {errno}"),
        }
    }

    fn list(&mut self) {
        let path = self.path("d");
        let listed = self.insist("a listing", |w| list(w, &path));
        let listed = listed.unwrap_or_else(|errno| panic!("{path} cannot be listed: {errno}"));
        for name in NAMES.into_iter().filter(|name| name.starts_with("d/")) {
            let found = listed.iter().find(|(listed, _)| *listed == name[2..]);
            match (self.writer_of(name), &self.states[name][..]) {
                (Some(_), _) => assert!(found.is_some(), "{name} is missing"),
                (None, [Some(bytes)]) => {
                    let len = found.unwrap_or_else(|| panic!("{name} is missing")).1;
                    assert!(len.is_none_or(|len| len == bytes.len() as u64), "{name} has {len:?}");
                }
                (None, [None]) => assert!(found.is_none(), "{name} is listed"),
                _ => {}
            }
        }
    }
}

impl User for Streamer {
    fn begin(&mut self) {
        for path in [format!("p{}", self.thread), self.path("d")] {
            let made = self.insist("mkdir", |w| w.mkdir(&path));
            assert!(matches!(made, Ok(()) | Err(Errno::EXIST)), "{made:?}");
        }
    }

    fn step(&mut self, doing: &Doing) {
        let mut at = self.dice.below(OPERATIONS.iter().map(|(_, _, weight)| weight).sum());
        for (what, act, weight) in OPERATIONS {
            if at < weight {
                doing.begin(what);
                return act(self);
            }
            at -= weight;
        }
    }

    fn close_all(&mut self) {
        self.readers.clear();
        while !self.writers.is_empty() {
            self.flush(0, true);
            if !self.writers.is_empty() {
                self.release(0);
            }
        }
    }

    fn abandon(&mut self) {
        self.writers.clear();
        self.readers.clear();
    }

    fn check_closed(&mut self) {
        NAMES.into_iter().for_each(|name| self.settle(name));
    }

    fn adopt_stored(&mut self, _: bool) {
        NAMES.into_iter().for_each(|name| self.settle(name));
        self.begin();
        for name in NAMES {
            let attr = self.w().attr(&self.path(name));
            assert_eq!(errno(attr), self.states[name][0].is_none().then_some(Errno::NOENT), "{name}");
        }
    }
}

type Operation = fn(&mut Streamer);

/// What a user does, and how often.
const OPERATIONS: [(&str, Operation, u64); 10] = [
    ("opens a stream", Streamer::open, 5),
    ("writes a stream", Streamer::write, 8),
    ("closes a stream", Streamer::close, 5),
    ("ends a stream", Streamer::end_file, 2),
    ("reads", Streamer::read, 4),
    ("unlinks", Streamer::unlink, 1),
    ("renames", Streamer::rename, 2),
    ("renames a directory", Streamer::rename_directory, 1),
    ("changes a mode", Streamer::change_mode, 2),
    ("lists", Streamer::list, 1),
];
