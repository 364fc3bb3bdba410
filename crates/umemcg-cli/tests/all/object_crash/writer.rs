//! One thread that has programs write files of its own in every way, and notes what was
//! acknowledged: by `fsync`, or by `close` in programs that report its error.
//!
//! The thread opens no file of the mount itself: a child that another thread forks meanwhile would
//! close it when it runs its program, and wait there for the store. That child may be the server.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::crash::record::Random;
use crate::object_crash::known::{Bytes, Known, State, with_write, written};
use crate::object_crash::world::Writes;

/// Names of one thread; the last is in a directory.
pub const NR_NAMES: u64 = 4;
/// Longest object that is stored with one request.
const WHOLE_BYTES_MAX: u64 = 8 << 20;

/// What a thread shares with the one that kills.
#[derive(Debug, Default)]
pub struct Shared {
    /// The thread is to end.
    pub is_over: AtomicBool,
    pub nr_acknowledged: AtomicU64,
    /// Errors while the daemon lives.
    pub nr_errors: AtomicU64,
}

/// See the module text.
pub struct Writer {
    pub files: BTreeMap<String, Known>,
    /// Renamings that may have happened in part: from, to, and what was there.
    pub renames: Vec<(String, String, Bytes)>,
    pub writes: Writes,
    mnt: PathBuf,
    /// What programs read what they write from.
    scratch: PathBuf,
    random: Random,
    version: u32,
    shared: Arc<Shared>,
}

/// A change that failed.
enum Failed {
    /// With the daemon.
    Dead,
    /// With this error, while the daemon goes on.
    Refused(String),
}

impl Writer {
    pub fn new(
        (nr, writes): (u32, Writes),
        (mnt, scratch): (PathBuf, PathBuf),
        seed: u64,
        shared: &Arc<Shared>,
    ) -> Self {
        let names = (0..NR_NAMES).map(|name| {
            let directory = if name == NR_NAMES - 1 { "d/" } else { "" };
            (format!("{directory}w{nr}-{name}"), Known::absent())
        });
        let (files, random) = (names.collect(), Random(seed));
        let scratch = scratch.join(format!("scratch{nr}"));
        let shared = Arc::clone(shared);
        Self { files, renames: Vec::new(), writes, mnt, scratch, random, version: nr << 24, shared }
    }

    /// Writes until it is over, or the daemon is dead.
    ///
    /// # Panics
    /// When a file is what it cannot be.
    pub fn work(&mut self) {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            match self.step() {
                Ok(()) => drop(self.shared.nr_acknowledged.fetch_add(1, Ordering::Relaxed)),
                Err(Failed::Dead) => return,
                Err(Failed::Refused(what)) => {
                    eprintln!("while the daemon lives: {what}");
                    self.shared.nr_errors.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Takes what is in the store for what was acknowledged.
    pub fn settle(&mut self, name: &str, found: Option<Vec<u8>>) {
        self.known(name).is_now(found.map(Arc::new).as_ref());
        self.renames.clear();
    }

    fn known(&mut self, name: &str) -> &mut Known {
        self.files.get_mut(name).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mnt.join(name)
    }

    fn any_name(&mut self) -> String {
        let nr = self.random.below(NR_NAMES) as usize;
        self.files.keys().nth(nr).unwrap().clone()
    }

    /// New bytes: none, a few, those of one request, or those of an upload in parts.
    fn some_bytes(&mut self) -> Bytes {
        let len = match self.random.below(8) {
            0 => 0,
            1 | 2 => 1 + self.random.below(100_000),
            3 => 1 + self.random.below(WHOLE_BYTES_MAX),
            4 => WHOLE_BYTES_MAX + self.random.below(2),
            5 | 6 => WHOLE_BYTES_MAX + 1 + self.random.below(8 << 20),
            _ => (16 << 20) + self.random.below(14 << 20),
        };
        self.version += 1;
        Arc::new(written(self.version, len as usize))
    }

    /// What a renaming left of a name does not matter once the name changes again.
    fn forget_renames(&mut self, name: &str) {
        self.renames.retain(|(from, to, _)| from != name && to != name);
    }

    /// Changes one name.
    fn step(&mut self) -> Result<(), Failed> {
        let name = &*self.any_name();
        self.forget_renames(name);
        let which = match self.random.below(16) {
            // A stream begins with the first byte, and is open to nothing else until it ends.
            6..=12 if self.writes == Writes::Streamed => 0,
            which => which,
        };
        if which > 7 && !self.known(name).is_sure() {
            self.look(name)?;
        }
        let there = self.known(name).bytes().cloned();
        match (which, there) {
            (8 | 9, there) => self.append(name, there),
            (10 | 11, Some(base)) => self.overwrite(name, &base),
            (12, Some(base)) => self.cut(name, &base),
            (13, Some(_)) => self.unlink(name),
            (14 | 15, Some(base)) => self.rename(name, &base),
            (6 | 7, _) => self.replace_with_fsync(name),
            _ => self.replace(name),
        }
    }

    /// Tells a failure with the daemon from one of the store.
    fn failed(&self, what: &str, name: &str, error: &str) -> Failed {
        const NO_DAEMON: [&str; 2] =
            ["Transport endpoint is not connected", "Software caused connection abort"];
        // What the daemon was about to do when it was killed may have another error.
        match NO_DAEMON.iter().any(|no| error.contains(no)) || fs::read_dir(&self.mnt).is_err() {
            true => Failed::Dead,
            false => Failed::Refused(format!("{what} of {name}: {}", error.trim())),
        }
    }

    fn during<T>(&self, what: &str, name: &str, result: io::Result<T>) -> Result<T, Failed> {
        result.map_err(|error| self.failed(what, name, &error.to_string()))
    }

    /// Runs a program that reports errors of its close.
    fn run(&self, name: &str, command: &mut Command) -> Result<(), Failed> {
        let ended =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
        if ended.status.success() {
            return Ok(());
        }
        Err(self.failed("a program", name, &String::from_utf8_lossy(&ended.stderr)))
    }

    /// Writes bytes with dd. It closes a duplicate of its descriptor before it writes, which stores
    /// a file that is new or was cut as an empty one.
    fn dd(&mut self, name: &str, data: &[u8], more: &[&str]) -> Result<(), Failed> {
        fs::write(&self.scratch, data).unwrap();
        let mut command = Command::new("dd");
        command
            .arg(format!("if={}", self.scratch.display()))
            .arg(format!("of={}", self.path(name).display()));
        command.args(["bs=256k", "status=none"]).args(more);
        self.run(name, &mut command)
    }

    fn replace(&mut self, name: &str) -> Result<(), Failed> {
        let (data, empty) = (self.some_bytes(), Bytes::default());
        let is_synced = self.random.below(4) == 0;
        let known = self.known(name);
        known.may_be_whole(&empty);
        known.may_be_whole(&data);
        let options: &[&str] = if is_synced { &["conv=fsync"] } else { &[] };
        if let Err(error) = self.dd(name, &data, options) {
            return self.came_part_of_the_way(name, error, (&empty, 0, &data));
        }
        // The close of a file that was cut and not written to acknowledges nothing: it is empty in
        // the store shortly after.
        if !data.is_empty() || is_synced || self.writes != Writes::Streamed {
            self.known(name).is_now(Some(&data));
        }
        Ok(())
    }

    fn append(&mut self, name: &str, there: Option<Bytes>) -> Result<(), Failed> {
        let (data, base) = (self.some_bytes(), there.clone().unwrap_or_default());
        let whole = Arc::new([&base[..], &data[..]].concat());
        if there.is_none() {
            self.known(name).may_be_whole(&base);
        }
        self.known(name).may_be_whole(&whole);
        if let Err(error) = self.dd(name, &data, &["oflag=append", "conv=notrunc"]) {
            return self.came_part_of_the_way(name, error, (&base, base.len(), &data));
        }
        self.known(name).is_now(Some(&whole));
        Ok(())
    }

    /// Notes how far a write can have come that failed while the daemon lives.
    fn came_part_of_the_way(
        &mut self,
        name: &str,
        error: Failed,
        (base, at, data): (&Bytes, usize, &Bytes),
    ) -> Result<(), Failed> {
        if let Failed::Refused(_) = error {
            self.known(name).may_be(State::Part { base: Arc::clone(base), at, data: Arc::clone(data) });
        }
        Err(error)
    }

    /// Two parts of a file, the first acknowledged by fsync; the second perhaps by nothing.
    fn replace_with_fsync(&mut self, name: &str) -> Result<(), Failed> {
        let (first, second, empty) = (self.some_bytes(), self.some_bytes(), Bytes::default());
        let whole = Arc::new([&first[..], &second[..]].concat());
        for state in [&empty, &first, &whole] {
            self.known(name).may_be_whole(state);
        }
        let is_synced = self.random.below(2) == 0;
        let others = self.scratch.with_extension("second");
        fs::write(&self.scratch, &first[..]).unwrap();
        fs::write(&others, &second[..]).unwrap();
        let script = "exec 3> \"$1\"; cat \"$2\" >&3; sync \"$1\"; echo first; cat \"$3\" >&3; [ $4 = false ] || sync \"$1\"";
        let mut command = Command::new("bash");
        command.args(["-ec", script, "bash"]).args([&self.path(name), &self.scratch, &others]);
        command.env("LC_ALL", "C").arg(is_synced.to_string());
        let ended = command.stdin(Stdio::null()).output().unwrap();
        let is_first_stored = ended.stdout == b"first\n";
        if is_first_stored {
            self.known(name).is_now(Some(&first));
            self.known(name).may_be_whole(&whole);
        }
        if !ended.status.success() {
            let error = self.failed("write and fsync", name, &String::from_utf8_lossy(&ended.stderr));
            return match is_first_stored {
                true => self.came_part_of_the_way(name, error, (&first, first.len(), &second)),
                false => self.came_part_of_the_way(name, error, (&empty, 0, &first)),
            };
        }
        if is_synced {
            self.known(name).is_now(Some(&whole));
        }
        Ok(())
    }

    fn overwrite(&mut self, name: &str, base: &Bytes) -> Result<(), Failed> {
        let data = self.some_bytes();
        let at = self.random.below(base.len() as u64 + 1) as usize;
        let changed = Arc::new(with_write(base, at, &data));
        self.known(name).may_be_whole(&changed);
        let seek = format!("seek={at}");
        if let Err(error) = self.dd(name, &data, &["oflag=seek_bytes", "conv=notrunc,fsync", &seek]) {
            return self.came_part_of_the_way(name, error, (base, at, &data));
        }
        self.known(name).is_now(Some(&changed));
        Ok(())
    }

    /// Cuts or extends it.
    fn cut(&mut self, name: &str, base: &Bytes) -> Result<(), Failed> {
        let len = self.random.below(base.len() as u64 * 5 / 4 + 2) as usize;
        let mut changed = base.to_vec();
        changed.resize(len, 0);
        let changed = Arc::new(changed);
        self.known(name).may_be_whole(&changed);
        let mut command = Command::new("truncate");
        self.run(name, command.args(["-s", &len.to_string()]).arg(self.path(name)))?;
        self.known(name).is_now(Some(&changed));
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> Result<(), Failed> {
        self.known(name).may_be(State::Absent);
        self.during("unlink", name, fs::remove_file(self.path(name)))?;
        self.known(name).is_now(None);
        Ok(())
    }

    fn rename(&mut self, from: &str, base: &Bytes) -> Result<(), Failed> {
        let to = self.any_name();
        if to == from {
            return Ok(());
        }
        self.forget_renames(&to);
        self.known(from).may_be(State::Absent);
        self.known(&to).may_be_whole(base);
        self.renames.push((from.to_owned(), to.clone(), Arc::clone(base)));
        self.during("rename", from, fs::rename(self.path(from), self.path(&to)))?;
        self.known(from).is_now(None);
        self.known(&to).is_now(Some(base));
        self.renames.pop();
        Ok(())
    }

    /// Finds out which state a name is in, after an error or a close without an answer. From then
    /// on that is acknowledged.
    fn look(&mut self, name: &str) -> Result<(), Failed> {
        let path = self.path(name);
        let found = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            _ => {
                self.run(name, Command::new("sync").arg(&path))?;
                self.run(name, Command::new("cp").arg(&path).arg(&self.scratch))?;
                Some(fs::read(&self.scratch).unwrap())
            }
        };
        let known = &self.files[name];
        assert!(
            known.holds(found.as_deref()),
            "{name} is {:?}, and may be {known:?}",
            found.as_deref().map(crate::object_crash::known::shown)
        );
        self.known(name).is_now(found.map(Arc::new).as_ref());
        Ok(())
    }
}
