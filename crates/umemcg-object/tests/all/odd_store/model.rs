//! A volume above an odd store, with random operations and faults: acknowledged data is in the
//! store in the end, no name is hidden or made up, and other programs' objects stay as they are.
//!
//! `UMEMCG_ODD_STORE_ROUNDS` says how many rounds, `UMEMCG_ODD_STORE_SEED` from which seed on.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use umemcg::{Engine, EngineConfig};
use umemcg_vfs::object::{Freshness, ObjectConfig, StagingConfig};
use umemcg_vfs::{
    Caller, Create, Lookup, Names, NodeId, OFlags, ObjectVolume, Open, RenameFlags, VfsError, Volume,
    VolumeError, VolumeFile,
};

use super::http::Form;
use super::s3::TYPE;
use super::{Asked, Character, Etags, Instead, Listing, OddStore, Oddity};

const NR_ROUNDS: u64 = 20;
const NR_OPERATIONS: usize = 14;
const PATHS: [&str; 7] = ["a", "b", "c", "d/a", "d/b", "e/f/a", "e/f/b"];
/// Stored by another program, and never changed here.
const OTHERS: [&str; 4] = ["other", "d/other", "e/f/other", "e/f/other2"];

/// Directories that another program has marked with an empty object, in half of the rounds.
const MARKED: [&str; 3] = ["d", "e", "e/f"];

/// Numbers as good as random (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len() as u64) as usize]
    }
}

/// The possible contents of a path: more than one after an operation that failed.
type May = BTreeSet<Option<Vec<u8>>>;

fn only(what: Option<Vec<u8>>) -> May {
    BTreeSet::from([what])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    Staged,
    Late,
    Streamed,
}

struct Model {
    store: OddStore,
    dice: Dice,
    writes: Writes,
    stores_attributes: bool,
    has_marks: bool,
    engine: Arc<Engine>,
    volume: Option<Arc<ObjectVolume>>,
    staging: tempfile::TempDir,
    me: Caller,
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
        let writes = dice.of(&[Writes::Staged, Writes::Late, Writes::Streamed]);
        let stores_attributes = dice.below(4) > 0;
        let mut model = Self::with(dice, writes, stores_attributes);
        model.has_marks = model.dice.below(2) == 0;
        if model.has_marks {
            model
                .store
                .state(|state| MARKED.iter().for_each(|mark| state.put(&format!("p/{mark}"), b"", &[])));
            model.done.push("directories are marked".into());
        }
        model
    }

    fn with(dice: Dice, writes: Writes, stores_attributes: bool) -> Self {
        let store = OddStore::start();
        store.state(|state| {
            OTHERS
                .iter()
                .for_each(|other| state.put(&format!("p/{other}"), other.as_bytes(), &[("x.y", "z")]));
        });
        let engine = Engine::new(EngineConfig::new(32 << 20)).unwrap();
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
            known,
            written: BTreeMap::new(),
            done: vec![format!("{writes:?}, attributes are stored: {stores_attributes}")],
        };
        model.mount();
        model
    }

    fn mount(&mut self) {
        let staging = StagingConfig {
            writes_back: self.writes == Writes::Late,
            retry_pause: Duration::from_millis(20),
            ..StagingConfig::new(self.staging.path().to_owned(), 16 << 20)
        };
        let config = ObjectConfig {
            bucket: self.store.bucket(),
            freshness: Freshness::CloseToOpen,
            stores_attributes: self.stores_attributes,
            uid: 0,
            gid: 0,
            staging: (self.writes != Writes::Streamed).then_some(staging),
            streams: self.writes == Writes::Streamed,
            upload_notes: None,
        };
        self.volume = Some(open_volume(&self.engine, &config));
    }

    fn volume(&self) -> &ObjectVolume {
        self.volume.as_ref().unwrap()
    }

    /// Calls `act` with the directory and the name of a path.
    fn at<R>(
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

    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), VfsError> {
        self.write_once(path, bytes, || {})
    }

    /// As [`write`](Self::write), and calls `opened` between the open and the first byte.
    fn write_once(&self, path: &str, bytes: &[u8], opened: impl FnOnce()) -> Result<(), VfsError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let (entry, file) =
            self.at(path, |parent, name| self.volume().create(&self.me, parent, name, 0o644, flags))?;
        opened();
        let write = || {
            let mut done = 0;
            while done < bytes.len() {
                done += file.write(&self.me.group, done as u64, &bytes[done..], false)?;
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

    fn list(&self, directory: &str) -> Result<BTreeSet<String>, VfsError> {
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

    fn make_odd(&mut self) {
        let dice = &mut self.dice;
        let instead =
            [Instead::Error, Instead::ErrorWithNamespace, Instead::Html, Instead::Nothing, Instead::CutShort];
        let forms =
            [Form::Chunked, Form::Cut, Form::Gzip, Form::Long, Form::Old, Form::LastOfConnection, Form::Lost];
        let listings = [
            Listing::NoToken,
            Listing::OldToken,
            Listing::Twice,
            Listing::Unsorted,
            Listing::NoEtags,
            Listing::EmptyFirst,
            Listing::Endless,
            Listing::EmptyParts,
            Listing::AnyPrefix,
        ];
        let all =
            [Asked::Head, Asked::Get, Asked::List, Asked::Put, Asked::Copy, Asked::Delete, Asked::Complete];
        let asked = dice.of(&all);
        let oddity = match dice.below(6) {
            0 => Oddity::Form(dice.of(&forms)),
            1 => Oddity::Status(dice.of(&[404, 500, 503, 400, 412, 409, 301, 307])),
            2 => Oddity::StatusAfter(dice.of(&[500, 503])),
            3 if asked == Asked::List => Oddity::Listing(dice.of(&listings)),
            4 if asked == Asked::Get => Oddity::WholeObject,
            _ => Oddity::Instead(dice.of(&instead)),
        };
        // What says nothing is what many servers answer to a deletion; whether it was one cannot
        // be seen.
        let is_silent = matches!(oddity, Oddity::Instead(Instead::Nothing | Instead::CutShort));
        if asked == Asked::Delete && is_silent {
            return;
        }
        let nr = 1 + dice.below(3) as usize;
        self.done.push(format!("    {nr} of {asked:?}: {oddity:?}"));
        if matches!(oddity, Oddity::Listing(Listing::Endless | Listing::EmptyParts)) {
            // For as long as it is asked.
            self.store.always(asked, oddity);
        } else {
            self.store.next(nr, asked, oddity);
        }
    }

    fn step(&mut self) {
        self.store.be_calm();
        if self.dice.below(3) > 0 {
            self.make_odd();
        }
        let path = self.dice.of(&PATHS);
        match self.dice.below(13) {
            0..=3 => self.write_some(path),
            4 | 5 => self.read_some(path),
            6 => self.unlink_some(path),
            7 | 8 => {
                let to = self.dice.of(&PATHS);
                self.rename_some(path, to);
            }
            9 => self.list_some(),
            10 => {
                let directory = self.dice.of(&["d", "e/f", "e"]);
                let removed = self.at(directory, |parent, name| self.volume().rmdir(parent, name));
                self.done.push(format!("rmdir {directory}: {removed:?}"));
                assert!(removed.is_err(), "{directory} has files of another");
            }
            11 => self.sync_behind_a_page(),
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

    fn write_some(&mut self, path: &'static str) {
        let (len, seed) = (self.dice.below(5000), self.dice.below(251));
        let bytes: Vec<u8> = (0..len).map(|at| (at / 7 + seed) as u8).collect();
        let written = self.write(path, &bytes);
        self.done.push(format!("write {path}, {len} bytes: {written:?}"));
        let known = self.known.get_mut(path).unwrap();
        self.written.entry(path).or_default().insert(Some(bytes.clone()));
        match written {
            Ok(()) => *known = only(Some(bytes)),
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

    /// Ends the volume when all that was accepted is in the store.
    fn unmount(&mut self) {
        // The first may report an earlier failure, once.
        let synced = [self.volume().syncfs(), self.volume().syncfs()];
        self.done.push(format!("sync: {synced:?}"));
        assert!(synced[1].is_ok() || self.writes == Writes::Streamed, "{synced:?}");
        let Some(volume) = self.volume.take() else { return };
        volume.stop_uploads();
        drop(volume);
        self.engine.sync_all(Duration::from_secs(60));
    }

    fn check_store(&mut self) {
        self.store.be_calm();
        self.unmount();
        self.store.state(|state| {
            for (path, known) in &self.known {
                let there = state.objects.get(&format!("p/{path}")).map(|object| object.bytes.clone());
                let len = there.as_ref().map(Vec::len);
                assert!(known.contains(&there), "{path}: the store has {len:?} bytes");
            }
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
    let etags = [Etags::Digest, Etags::Digest, Etags::Digest, Etags::Empty, Etags::Weak, Etags::Missing];
    let character = Character {
        etags: model.dice.of(&etags),
        takes_conditions: model.dice.below(5) > 0,
        page: model.dice.of(&[1, 2, 3, 1000]),
        seconds_ahead: model.dice.of(&[0, 0, 30, -30, 7200]),
    };
    model.store.set_character(character);
    model.done.push(format!("{character:?}"));
    let told = Told(&mut model, seed);
    (0..NR_OPERATIONS).for_each(|_| told.0.step());
    told.0.check_store();
}

#[test]
fn a_change_in_place_keeps_what_others_stored_with_the_object() {
    for writes in [Writes::Staged, Writes::Late, Writes::Streamed] {
        for stores_attributes in [true, false] {
            let mut model = Model::with(Dice(1), writes, stores_attributes);
            let told = [("x.y", "z"), ("mode", "33261"), (TYPE, "text/html")];
            model.store.state(|state| state.put("p/a", b"old", &told));
            model.write("a", b"changed").unwrap();
            model.unmount();
            model.store.state(|state| {
                let stored = &state.objects["p/a"];
                let case = format!("{writes:?} {stores_attributes} {:?}", stored.metadata);
                assert_eq!(stored.bytes, b"changed", "{case}");
                for (name, value) in told {
                    assert_eq!(stored.metadata.get(name).map(String::as_str), Some(value), "{case}");
                }
            });
        }
    }
}

#[test]
fn a_listing_of_empty_parts_has_an_end() {
    let model = Model::with(Dice(1), Writes::Staged, false);
    model.store.always(Asked::List, Oddity::Listing(Listing::EmptyParts));
    let listed = model.list(".");
    assert!(listed.as_ref().is_err_and(|error| error.errno() == Errno::IO), "{listed:?}");
}

#[test]
fn an_open_file_outlives_a_listing_without_etags() {
    for seconds_ahead in [30, -30] {
        let model = Model::with(Dice(1), Writes::Staged, false);
        model.store.set_character(Character { seconds_ahead, ..Character::default() });
        model.store.always(Asked::List, Oddity::Listing(Listing::NoEtags));
        let (me, volume, flags) = (&model.me, model.volume(), OFlags::WRONLY | OFlags::CREATE);
        let create = |parent, name: &OsStr| volume.create(me, parent, name, 0o644, flags);
        let (entry, file) = model.at("d/a", create).unwrap();
        let write = |at| {
            file.write(&me.group, at, b"x", false).unwrap();
            file.flush().unwrap();
        };
        write(0);
        let listed = model.at("d/a", |parent, _| {
            volume.opendir(me, parent)?.readdirplus(me, 0, &mut |entry| {
                entry.entry.into_iter().for_each(|found| volume.forget(found.node, 1));
                true
            })
        });
        listed.unwrap();
        write(1);
        let (root, no_flags) = (NodeId::ROOT, RenameFlags::empty());
        volume.rename(me, root, OsStr::new("d"), root, OsStr::new("g"), no_flags).unwrap();
        write(2);
        let there = model.store.state(|state| state.objects.get("p/g/a").map(|object| object.bytes.clone()));
        assert_eq!(there.as_deref(), Some(&b"xxx"[..]), "{seconds_ahead}");
        file.closed();
        drop(file);
        volume.forget(entry.node, 1);
    }
}

#[test]
fn a_page_in_place_of_the_store_loses_no_accepted_write() {
    for hides_listings in [true, false] {
        let mut model = Model::with(Dice(1), Writes::Late, true);
        let page = || model.store.be_behind_a_page(hides_listings);
        model.write_once("a", b"accepted", page).unwrap();
        let synced = model.volume().syncfs();
        assert!(synced.is_err(), "it is stored behind the page");
        model.store.be_calm();
        model.unmount();
        let there = model.store.state(|state| state.objects.get("p/a").map(|object| object.bytes.clone()));
        assert_eq!(there.as_deref(), Some(&b"accepted"[..]), "{hides_listings}");
    }
}

#[test]
fn an_odd_store_loses_hides_and_makes_up_nothing() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let first = number("UMEMCG_ODD_STORE_SEED", 1);
    let nr = number("UMEMCG_ODD_STORE_ROUNDS", NR_ROUNDS);
    (first..first + nr).for_each(round);
}
