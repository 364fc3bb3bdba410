//! A volume above an odd store, with random operations and faults, and a daemon that is killed:
//! acknowledged data is in the store in the end, no name is hidden or made up, other programs'
//! objects stay as they are, and what did not reach the store is kept and listed.
//!
//! `UMEMCG_ODD_STORE_ROUNDS` says how many rounds, `UMEMCG_ODD_STORE_SEED` from which seed on.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use umemcg::{Engine, EngineConfig};
use umemcg_vfs::bucket::StagedFile;
use umemcg_vfs::object::{Freshness, ObjectConfig, StagingConfig};
use umemcg_vfs::{
    Caller, Create, Lookup, Names, NodeId, OFlags, ObjectVolume, Open, RenameFlags, VfsError, Volume,
    VolumeError, VolumeFile, VolumeKind,
};

use super::death::Death;
use super::dice::Dice;
use super::s3::ELSEWHERE;
use super::{Asked, Listing, OddStore, Oddity};

const NR_ROUNDS: u64 = 20;
/// A round waits most of its time.
const NR_ROUNDS_AT_ONCE: usize = 4;
const NR_OPERATIONS: usize = 14;
/// The usual length of a part of an upload.
const PART_BYTES: usize = 8 << 20;
/// The usual length of a write of the kernel.
const WRITE_BYTES: usize = 128 << 10;
const PATHS: [&str; 7] = ["a", "b", "c", "d/a", "d/b", "e/f/a", "e/f/b"];
/// Stored by another program, and never changed here.
const OTHERS: [&str; 4] = ["other", "d/other", "e/f/other", "e/f/other2"];

/// Directories that another program has marked with an empty object, in half of the rounds.
const MARKED: [&str; 3] = ["d", "e", "e/f"];

/// Stored by another program under one of the paths, in half of the rounds, with metadata that
/// cannot be read here. No other file is as long.
const FOREIGN: [u8; 6000] = [b'f'; 6000];
const FOREIGN_LABELS: [(&str, &str); 2] = [("title", "Übersicht"), ("x.y", "z")];

/// The possible contents of a path: more than one after an operation that failed.
type May = BTreeSet<Option<Vec<u8>>>;

fn only(what: Option<Vec<u8>>) -> May {
    BTreeSet::from([what])
}

/// Returns bytes in which equal offsets of two parts differ.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    // The length of a part is no multiple of this period.
    let period: Vec<u8> = (0..7 * 256).map(|at| (at / 7 + seed) as u8).collect();
    let mut bytes = period.repeat(len / period.len() + 1);
    bytes.truncate(len);
    bytes
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    Staged,
    Streamed,
}

pub(super) struct Model {
    pub(super) store: OddStore,
    dice: Dice,
    writes: Writes,
    stores_attributes: bool,
    has_marks: bool,
    engine: Arc<Engine>,
    volume: Option<Arc<ObjectVolume>>,
    staging: tempfile::TempDir,
    pub(super) me: Caller,
    nr_written: usize,
    known: BTreeMap<&'static str, May>,
    /// What was written to each path: after a renaming that failed, the old name may show what the
    /// store had.
    written: BTreeMap<&'static str, May>,
    /// The operations so far, for the message of a failure.
    done: Vec<String>,
}

fn open_volume(engine: &Arc<Engine>, config: &ObjectConfig) -> Arc<ObjectVolume> {
    for _ in 0..1000 {
        match ObjectVolume::open(engine, config, 0) {
            // The last bytes of the one before are being written.
            Err(VolumeError::InUse { .. }) => std::thread::sleep(Duration::from_millis(5)),
            opened => return opened.unwrap(),
        }
    }
    panic!("the staging directory stays in use");
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let writes = dice.of(&[Writes::Staged, Writes::Streamed]);
        let stores_attributes = dice.below(4) > 0;
        let mut model = Self::with(dice, writes, stores_attributes);
        model.has_marks = model.dice.below(2) == 0;
        if model.has_marks {
            model
                .store
                .state(|state| MARKED.iter().for_each(|mark| state.put(&format!("p/{mark}"), b"", &[])));
            model.done.push("directories are marked".into());
        }
        if model.dice.below(2) == 0 {
            let path = model.dice.of(&PATHS);
            model.store.state(|state| state.put(&format!("p/{path}"), &FOREIGN, &FOREIGN_LABELS));
            let foreign = only(Some(FOREIGN.to_vec()));
            model.written.insert(path, foreign.clone());
            model.known.insert(path, foreign);
            model.done.push(format!("another program has stored {path}"));
        }
        model
    }

    pub(super) fn with(dice: Dice, writes: Writes, stores_attributes: bool) -> Self {
        let store = OddStore::start();
        store.state(|state| {
            OTHERS
                .iter()
                .for_each(|other| state.put(&format!("p/{other}"), other.as_bytes(), &[("x.y", "z")]));
        });
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let group = engine.create_group(engine.root(), OsStr::new("g")).unwrap();
        let me = Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0, thread: 1 };
        let known = PATHS.into_iter().map(|path| (path, only(None))).collect();
        let staging = tempfile::tempdir().unwrap();
        let mut model = Self {
            store,
            dice,
            writes,
            stores_attributes,
            has_marks: false,
            engine,
            volume: None,
            staging,
            me,
            nr_written: 0,
            known,
            written: BTreeMap::new(),
            done: vec![format!("{writes:?}, attributes are stored: {stores_attributes}")],
        };
        model.mount();
        model
    }

    fn mount(&mut self) {
        let staging = StagingConfig {
            retry_pause: Duration::from_millis(20),
            ..StagingConfig::new(self.staging.path().to_owned(), 256 << 20)
        };
        let config = ObjectConfig {
            bucket: self.store.bucket(),
            freshness: Freshness::CloseToOpen,
            stores_attributes: self.stores_attributes,
            uid: 0,
            gid: 0,
            staging: (self.writes != Writes::Streamed).then_some(staging),
            streams: self.writes == Writes::Streamed,
            notes: None,
        };
        self.volume = Some(open_volume(&self.engine, &config));
    }

    pub(super) fn volume(&self) -> &ObjectVolume {
        self.volume.as_ref().unwrap()
    }

    /// Calls `act` with the directory and the name of a path.
    pub(super) fn at<R>(
        &self,
        path: &str,
        act: impl FnOnce(NodeId, &OsStr) -> Result<R, VfsError>,
    ) -> Result<R, VfsError> {
        let (mut parts, volume) = (path.split('/').collect::<Vec<_>>(), self.volume());
        let (name, mut directory) = (parts.pop().unwrap(), NodeId::ROOT);
        let mut looked_up = Vec::new();
        let walk = || -> Result<R, VfsError> {
            for part in parts {
                directory = volume.lookup(&self.me, directory, OsStr::new(part))?.node;
                looked_up.push(directory);
            }
            act(directory, OsStr::new(name))
        };
        let result = walk();
        looked_up.into_iter().for_each(|node| volume.forget(node, 1));
        let errno = result.as_ref().err().map(|error| error.errno());
        assert_ne!(errno, Some(Errno::NOTDIR), "what is below a directory of {path} is hidden");
        result
    }

    pub(super) fn write(&self, path: &str, bytes: &[u8]) -> Result<(), VfsError> {
        self.write_once(path, bytes, || {})
    }

    /// As [`write`](Self::write), and calls `then` between the open and the first byte.
    pub(super) fn write_once(&self, path: &str, bytes: &[u8], then: impl FnOnce()) -> Result<(), VfsError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let (entry, file) =
            self.at(path, |parent, name| self.volume().create(&self.me, parent, name, 0o644, flags))?;
        then();
        let write = || {
            let mut done = 0;
            while done < bytes.len() {
                let part = &bytes[done..bytes.len().min(done + WRITE_BYTES)];
                done += file.write(&self.me.group, done as u64, part, false)?;
            }
            file.flush()
        };
        let written = write();
        file.closed();
        drop(file);
        self.volume().forget(entry.node, 1);
        written
    }

    fn open(&self, path: &str) -> Result<Arc<dyn VolumeFile>, VfsError> {
        self.at(path, |parent, name| {
            let node = self.volume().lookup(&self.me, parent, name)?.node;
            let opened = self.volume().open(&self.me, node, OFlags::RDONLY);
            self.volume().forget(node, 1);
            opened
        })
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, VfsError> {
        let file = match self.open(path) {
            // As the kernel does.
            Err(error) if error.errno() == Errno::STALE => self.open(path)?,
            opened => opened?,
        };
        let (mut bytes, len) = (Vec::new(), file.content().len());
        while (bytes.len() as u64) < len {
            let part = file.read(&self.me.group, bytes.len() as u64, 64 << 10)?.to_vec();
            if part.is_empty() {
                break;
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    pub(super) fn list(&self, directory: &str) -> Result<BTreeSet<String>, VfsError> {
        let (mut names, mut offset) = (BTreeSet::new(), 0);
        // Of the root, this is the root.
        let below = if directory == "." { "x".into() } else { format!("{directory}/x") };
        self.at(&below, |node, _| {
            let handle = self.volume().opendir(&self.me, node)?;
            loop {
                let before = offset;
                handle.readdir(offset, &mut |entry| {
                    offset = entry.next_offset;
                    names.insert(entry.name.to_str().unwrap().to_owned());
                    true
                })?;
                if offset == before {
                    return Ok(());
                }
            }
        })?;
        Ok(names)
    }

    /// Makes the store odd, and returns the kind of requests that it is odd for.
    fn make_odd(&mut self) -> Asked {
        let (nr, asked, oddity) = self.dice.oddity();
        self.done.push(format!("    {nr} of {asked:?}: {oddity:?}"));
        if matches!(oddity, Oddity::Listing(Listing::Endless | Listing::EmptyParts)) {
            // For as long as it is asked.
            self.store.always(asked, oddity);
        } else {
            self.store.next(nr, asked, oddity);
        }
        asked
    }

    fn step(&mut self) {
        self.store.be_calm();
        let asked = (self.dice.below(3) > 0).then(|| self.make_odd());
        let path = self.dice.of(&PATHS);
        if matches!(asked, Some(Asked::Begin | Asked::Complete)) {
            return self.write_some(path, true);
        }
        match self.dice.below(14) {
            0..=3 => {
                let is_large = self.dice.below(12) == 0;
                self.write_some(path, is_large);
            }
            4 | 5 => self.read_some(path),
            6 => self.unlink_some(path),
            7 | 8 => {
                let to = self.dice.of(&PATHS);
                self.rename_some(path, to);
            }
            9 => self.list_some(),
            10 => {
                let directory = self.dice.of(&["d", "e/f", "e"]);
                let removed = self.at(directory, |parent, name| self.volume().rmdir(&self.me, parent, name));
                self.done.push(format!("rmdir {directory}: {removed:?}"));
                assert!(removed.is_err(), "{directory} has files of another");
            }
            11 => self.sync_behind_a_page(),
            12 => self.kill_daemon(),
            _ => self.remount(),
        }
    }

    /// Tries to store what waits, while a page is in place of the store.
    fn sync_behind_a_page(&mut self) {
        self.store.be_calm();
        self.store.be_behind_a_page(self.dice.below(2) == 0);
        let synced = self.volume().syncfs();
        self.done.push(format!("sync behind a page: {synced:?}"));
        self.store.be_calm();
    }

    /// Writes a file; a large one is stored in two parts.
    fn write_some(&mut self, path: &'static str, is_large: bool) {
        self.nr_written += 1;
        // No two are as long: a store may have nothing else by which versions differ.
        let small = 100 + self.nr_written + NR_OPERATIONS * self.dice.below(340) as usize;
        let len = if is_large { PART_BYTES + small } else { small };
        let bytes = pattern(len, self.dice.below(251));
        let written = self.write(path, &bytes);
        self.done.push(format!("write {path}, {len} bytes: {written:?}"));
        let known = self.known.get_mut(path).unwrap();
        self.written.entry(path).or_default().insert(Some(bytes.clone()));
        match written {
            Ok(()) => {
                assert!(*known != only(Some(FOREIGN.to_vec())), "{path}: its metadata are lost");
                *known = only(Some(bytes));
            }
            // Its metadata would be lost, and nothing has changed.
            Err(error) if error.errno() == Errno::OPNOTSUPP => {}
            Err(_) => known.extend([Some(bytes), Some(Vec::new())]),
        }
    }

    fn read_some(&mut self, path: &'static str) {
        let read = self.read(path);
        let known = &self.known[path];
        let told = read.as_ref().map(Vec::len);
        self.done.push(format!("read {path}: {told:?}"));
        match read {
            Ok(bytes) => assert!(known.contains(&Some(bytes)), "{path} has other bytes"),
            Err(error) if error.errno() == Errno::NOENT => {
                assert!(known.contains(&None), "{path} is hidden");
            }
            Err(_) => {}
        }
    }

    fn unlink_some(&mut self, path: &'static str) {
        let removed = self.at(path, |parent, name| self.volume().unlink(&self.me, parent, name));
        self.done.push(format!("unlink {path}: {removed:?}"));
        let known = self.known.get_mut(path).unwrap();
        match removed {
            Ok(_) => {
                assert!(*known != only(None), "{path} was not there");
                *known = only(None);
            }
            Err(error) if error.errno() == Errno::NOENT => {
                assert!(known.contains(&None), "{path} is hidden");
            }
            Err(_) => _ = known.insert(None),
        }
    }

    fn rename_some(&mut self, from: &'static str, to: &'static str) {
        if from == to {
            return;
        }
        let flags = RenameFlags::empty();
        let renamed = self.at(from, |parent, name| {
            self.at(to, |new_parent, new_name| {
                self.volume().rename(&self.me, parent, name, new_parent, new_name, flags)
            })
        });
        self.done.push(format!("rename {from} {to}: {renamed:?}"));
        let there: May = self.known[from].iter().filter(|may| may.is_some()).cloned().collect();
        match renamed {
            Ok(_) => {
                assert!(!there.is_empty(), "{from} was not there");
                self.written.entry(to).or_default().extend(there.clone());
                self.known.insert(to, there);
                self.known.insert(from, only(None));
            }
            Err(error) if error.errno() == Errno::NOENT => {
                assert!(self.known[from].contains(&None), "{from} is hidden");
            }
            Err(_) => {
                self.written.entry(to).or_default().extend(there.clone());
                self.known.get_mut(to).unwrap().extend(there);
                let may = self.known.get_mut(from).unwrap();
                may.insert(None);
                may.extend(self.written.get(from).into_iter().flatten().cloned());
            }
        }
    }

    fn list_some(&mut self) {
        let directory = self.dice.of(&[".", "d", "e/f"]);
        let names = self.list(directory);
        self.done.push(format!("list {directory}: {names:?}"));
        let Ok(names) = names else { return };
        let below = |path: &&str| path.rsplit_once('/').map_or(".", |(parent, _)| parent) == directory;
        for path in PATHS.iter().filter(|path| below(path)) {
            let (is_listed, known) = (names.contains(path.rsplit('/').next().unwrap()), &self.known[path]);
            assert!(is_listed || known.contains(&None), "{path} is not listed");
            assert!(!is_listed || *known != only(None), "{path} is listed");
        }
        for other in OTHERS.iter().filter(|path| below(path)) {
            assert!(names.contains(other.rsplit('/').next().unwrap()), "{other} is not listed");
        }
    }

    fn remount(&mut self) {
        self.done.push("remount".into());
        self.store.be_calm();
        self.unmount();
        self.mount();
    }

    /// Kills the daemon, between two operations or at a change that one makes in the store, and
    /// starts another on what is left.
    fn kill_daemon(&mut self) {
        // Nothing else changes its disk while that is copied.
        self.volume().stop_retries();
        let staged = self.staged();
        let (nr_before, is_made) = (self.dice.below(2), self.dice.below(2) == 0);
        self.done.push(format!("kill, {nr_before} changes before, the last one made: {is_made}"));
        self.store.kill_at(Death::new(nr_before, is_made, self.staging.path()));
        let changed = self.change_some();
        let disk = self.store.kill();
        drop(self.volume.take());
        self.engine.sync_all(Duration::from_secs(60));
        self.staging = disk;
        self.store.be_calm();
        self.know_what_is_stored();
        self.mount();
        self.done.push("started again".into());
        if self.writes == Writes::Staged {
            self.check_left(&staged, &changed);
            self.know_what_is_left();
        }
        PATHS.into_iter().for_each(|path| self.read_some(path));
    }

    /// Does one operation that changes the store, or none; returns its paths.
    fn change_some(&mut self) -> Vec<&'static str> {
        let (path, to) = (self.dice.of(&PATHS), self.dice.of(&PATHS));
        match self.dice.below(5) {
            0 => return Vec::new(),
            1 | 2 => {
                let is_large = self.dice.below(6) == 0;
                self.write_some(path, is_large);
            }
            3 => self.unlink_some(path),
            _ => self.rename_some(path, to),
        }
        vec![path, to]
    }

    /// From now on the store's bytes of each path are the only possible ones.
    fn know_what_is_stored(&mut self) {
        let Self { store, known, .. } = self;
        store.state(|state| {
            for (path, known) in known {
                let there = state.objects.get(&format!("p/{path}")).map(|object| object.bytes.clone());
                let len = there.as_ref().map(Vec::len);
                assert!(known.contains(&there), "{path}: the store has {len:?} bytes after a kill");
                *known = only(there);
            }
        });
    }

    /// Returns the files that are not in the store, by their names on the disk.
    fn staged(&self) -> BTreeMap<OsString, StagedFile> {
        let VolumeKind::Objects(state) = self.volume().kind() else { unreachable!() };
        let named = |staged: StagedFile| (staged.path.file_name().unwrap().to_owned(), staged);
        state.staged.into_iter().map(named).collect()
    }

    /// Checks what a daemon that was killed has left on the disk: the files `before` that are of
    /// none of the `changed` paths are kept whole, and each file is listed.
    fn check_left(&self, before: &BTreeMap<OsString, StagedFile>, changed: &[&str]) {
        let left = self.staged();
        for (name, staged) in before {
            let is_changed = changed.contains(&staged.key.as_str());
            assert!(is_changed || left.contains_key(name), "{staged:?} is gone");
        }
        for staged in left.values() {
            let (key, bytes) = (staged.key.as_str(), std::fs::read(&staged.path).unwrap());
            assert!(staged.is_lost && PATHS.contains(&key), "{staged:?}");
            // A write that was under way may have left a part.
            let was_written = self
                .written
                .get(key)
                .is_some_and(|written| bytes.is_empty() || written.contains(&Some(bytes.clone())));
            assert!(was_written || changed.contains(&key), "{staged:?} has other bytes");
        }
        let mut of_volume = std::fs::read_dir(self.staging.path()).unwrap();
        let directory = of_volume.next().unwrap().unwrap().path();
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let entries: BTreeSet<OsString> = entries.collect();
        assert_eq!(entries, BTreeSet::from(["lost", "volume"].map(OsString::from)), "not listed");
    }

    /// From now on the bytes that were left are known, also those of a write that was under way:
    /// the next kill finds them again.
    fn know_what_is_left(&mut self) {
        for staged in self.staged().into_values() {
            let path = PATHS.into_iter().find(|path| *path == staged.key).expect("a path of the model");
            let bytes = std::fs::read(&staged.path).unwrap();
            self.written.entry(path).or_default().insert(Some(bytes));
        }
    }

    /// Ends the volume when all that is staged is in the store.
    pub(super) fn unmount(&mut self) {
        // The first may report an earlier failure, once.
        let synced = [self.volume().syncfs(), self.volume().syncfs()];
        self.done.push(format!("sync: {synced:?}"));
        assert!(synced[1].is_ok() || self.writes == Writes::Streamed, "{synced:?}");
        let Some(volume) = self.volume.take() else { return };
        volume.stop_retries();
        drop(volume);
        self.engine.sync_all(Duration::from_secs(60));
    }

    fn check_store(&mut self) {
        self.store.be_calm();
        self.unmount();
        self.store.state(|state| {
            for (path, known) in &self.known {
                let object = state.objects.get(&format!("p/{path}"));
                let there = object.map(|object| object.bytes.clone());
                let len = there.as_ref().map(Vec::len);
                assert!(known.contains(&there), "{path}: the store has {len:?} bytes");
                for foreign in object.into_iter().filter(|object| object.bytes == FOREIGN) {
                    for (name, value) in FOREIGN_LABELS {
                        assert_eq!(foreign.metadata.get(name).map(String::as_str), Some(value), "{path}");
                    }
                }
            }
            assert!(!state.objects.contains_key(ELSEWHERE), "a redirection was followed");
            for other in OTHERS {
                let there = state.objects.get(&format!("p/{other}"));
                let is_as_it_was = there.is_some_and(|object| {
                    object.bytes == other.as_bytes()
                        && object.metadata.get("x.y").is_some_and(|value| value == "z")
                });
                assert!(is_as_it_was, "{other} of another program: {there:?}");
            }
            let are_marked = MARKED.iter().all(|mark| state.objects.contains_key(&format!("p/{mark}")));
            assert_eq!(are_marked, self.has_marks);
        });
    }
}

/// Prints the operations if the round fails.
struct Told<'a>(&'a mut Model, u64);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("UMEMCG_ODD_STORE_SEED={}:\n{}", self.1, self.0.done.join("\n"));
        }
    }
}

fn round(seed: u64) {
    let mut model = Model::new(seed);
    let character = model.dice.character();
    model.store.set_character(character);
    model.done.push(format!("{character:?}"));
    let told = Told(&mut model, seed);
    (0..NR_OPERATIONS).for_each(|_| told.0.step());
    told.0.check_store();
}

#[test]
fn an_odd_store_loses_hides_and_makes_up_nothing() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let first = number("UMEMCG_ODD_STORE_SEED", 1);
    let nr = number("UMEMCG_ODD_STORE_ROUNDS", NR_ROUNDS);
    let (next, end) = (AtomicU64::new(first), first + nr);
    let rounds = || {
        let seeds = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        seeds.take_while(|seed| *seed < end).for_each(round);
    };
    std::thread::scope(|scope| (0..NR_ROUNDS_AT_ONCE).for_each(|_| _ = scope.spawn(rounds)));
}
