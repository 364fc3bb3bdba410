//! A volume of objects that is written to, beside a model: random operations on a few names, with
//! requests that fail, a group that is too small, syncs, and crashes in between. What a close, a
//! sync, a rename or a change of attributes acknowledged is in the bucket, byte for byte; what the
//! volume shows is what was written. Some buckets cannot replace metadata, so that a change of
//! attributes stores the object anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::labels::{Change, Labels};
use crate::common::memory_bucket::ChangeFault;
use crate::common::object_world::{World, errno};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{
    Attributes, Create, Lookup, NodeId, OFlags, RenameFlags, SetAttr, VfsError, Volume, VolumeFile,
};

const LINKS: [&str; 3] = ["l", "d/l", "d/e/l"];
const NAMES: [&str; 7] = ["a", "b", "c", "d/a", "d/b", "d/e/a", "d/e/b"];
const NR_OPS: usize = 180;
const LEN_MAX: u64 = 300_000;

/// Numbers that look random, the same for a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.below(NAMES.len() as u64) as usize]
    }
}

/// A file at one moment.
#[derive(Debug, Default, Clone)]
struct State {
    bytes: Vec<u8>,
    labels: Labels,
}

impl State {
    /// Returns whether this can be what the bucket has.
    fn allows(&self, stored: &Self) -> bool {
        self.bytes == stored.bytes && self.labels.allow(&stored.labels)
    }
}

/// A file as the model knows it.
#[derive(Debug, Default, Clone)]
struct Known {
    now: State,
    /// What the bucket may have under its name: what was acknowledged last, and what an attempt
    /// after that may have left.
    may_be_stored: Vec<Option<State>>,
    /// It has changed since.
    is_dirty: bool,
}

impl Known {
    fn change(&mut self, bytes: Vec<u8>) {
        let labels = self.now.labels.written();
        (self.now, self.is_dirty) = (State { bytes, labels }, true);
    }

    fn relabel(&mut self, labels: Labels) {
        (self.now.labels, self.is_dirty) = (labels, true);
    }

    /// Returns whether a store may have this while no daemon has the file.
    fn may_be(&self, stored: Option<&State>) -> bool {
        self.may_be_stored.iter().any(|may_be| match (may_be, stored) {
            (Some(may_be), Some(stored)) => may_be.allows(stored),
            (may_be, stored) => may_be.is_none() && stored.is_none(),
        })
    }
}

/// Returns what the bucket of a volume has.
fn stored_in(world: &World, name: &str) -> Option<State> {
    let (bytes, metadata) = world.bucket.object(name)?;
    Some(State { bytes, labels: Labels::of(&metadata) })
}

struct Model {
    dice: Dice,
    world: Option<World>,
    /// By number, since files outlive names.
    files: Vec<Known>,
    names: BTreeMap<&'static str, usize>,
    /// Targets of symbolic links.
    links: BTreeMap<&'static str, String>,
    open: Vec<(usize, Arc<dyn VolumeFile>)>,
    held: Vec<NodeId>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let world = World::with(8 << 20, 64 << 20);
        world.engine.set_max(world.group(), 1 << 20);
        for directory in ["d", "d/e"] {
            world.mkdir(directory).unwrap();
        }
        world.bucket.stores_anew.store(seed % 3 == 2, Ordering::Relaxed);
        let dice = Dice(seed);
        Self {
            dice,
            world: Some(world),
            files: vec![],
            names: BTreeMap::new(),
            links: BTreeMap::new(),
            open: vec![],
            held: vec![],
        }
    }

    fn w(&self) -> &World {
        self.world.as_ref().unwrap()
    }

    fn stored(&self, name: &str) -> Option<State> {
        stored_in(self.w(), name)
    }

    fn bytes(&mut self, len_max: u64) -> Vec<u8> {
        let (len, seed) = (self.dice.below(len_max), self.dice.below(251));
        (0..len).map(|at| (at / 7 + seed) as u8).collect()
    }

    /// Notes an attempt to store a file, and whether it was acknowledged.
    fn tried(&mut self, file: usize, result: &Result<(), VfsError>) {
        let name = self.names.iter().find(|(_, of)| **of == file).map(|(name, _)| *name);
        let Some(name) = name else { return };
        let stored = self.stored(name);
        let known = &mut self.files[file];
        match result {
            Ok(()) => {
                let is_it = stored.as_ref().is_some_and(|stored| known.now.allows(stored));
                assert!(is_it, "{name}: acknowledged, and {:?}", stored.map(|stored| stored.labels));
                known.is_dirty = false;
                known.may_be_stored = vec![stored];
            }
            Err(error) => {
                assert_eq!(error.errno(), Errno::IO);
                known.may_be_stored.push(Some(known.now.clone()));
            }
        }
    }

    fn fail_some(&mut self) {
        let fault = match self.dice.below(6) {
            0 => ChangeFault::AnswerLost,
            1 => ChangeFault::Refused(BucketError::Unavailable("503".into())),
            _ => return,
        };
        self.w().bucket.fail_changes([fault]);
    }

    fn open_or_create(&mut self, name: &'static str, flags: OFlags) -> (usize, Arc<dyn VolumeFile>) {
        let file = self.w().create_with(name, flags | OFlags::CREATE).unwrap();
        let number = *self.names.entry(name).or_insert_with(|| {
            self.files.push(Known { may_be_stored: vec![None], is_dirty: true, ..Known::default() });
            self.files.len() - 1
        });
        if flags.contains(OFlags::TRUNC) {
            self.files[number].change(Vec::new());
        }
        (number, file)
    }

    fn write(&mut self) {
        let name = self.dice.name();
        let flags = [OFlags::RDWR, OFlags::RDWR | OFlags::TRUNC, OFlags::WRONLY | OFlags::APPEND];
        let flags = flags[self.dice.below(3) as usize];
        let (number, file) = self.open_or_create(name, flags);
        let (at, bytes) = (self.dice.below(LEN_MAX), self.bytes(LEN_MAX / 2));
        let len = self.files[number].now.bytes.len();
        let at = if flags.contains(OFlags::APPEND) { len } else { at as usize };
        self.w().write(&file, at as u64, &bytes).unwrap();
        let known = &mut self.files[number];
        if !bytes.is_empty() {
            let mut changed = known.now.bytes.clone();
            changed.resize(len.max(at + bytes.len()), 0);
            changed[at..at + bytes.len()].copy_from_slice(&bytes);
            known.change(changed);
        }
        self.open.push((number, file));
    }

    fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.dice.below(self.open.len() as u64) as usize;
        self.fail_some();
        let (number, file) = match self.dice.below(3) {
            0 => self.open[at].clone(),
            _ => self.open.swap_remove(at),
        };
        let result = if self.dice.below(2) == 0 { file.flush() } else { file.fsync(false) };
        self.tried(number, &result);
        self.w().bucket.fail_no_changes();
        drop(file);
    }

    fn truncate(&mut self) {
        let name = self.dice.name();
        let Some(&number) = self.names.get(name) else { return };
        let size = self.dice.below(LEN_MAX);
        let result = self.w().set(name, &SetAttr { size: Some(size), ..SetAttr::default() });
        let mut changed = self.files[number].now.bytes.clone();
        changed.resize(size as usize, 0);
        self.files[number].change(changed);
        self.tried(number, &result.map(drop));
    }

    /// Changes attributes: at once in the store, unless the file is being written.
    fn relabel(&mut self) {
        let (name, dice) = (self.dice.name(), &mut self.dice);
        let change = Change::any(|end| dice.below(end));
        // What replaces metadata and loses the answer leaves either, and tells nothing apart.
        let is_refused = self.dice.below(4) == 0;
        if is_refused {
            let refused = BucketError::Unavailable("503".into());
            self.w().bucket.fail_changes([ChangeFault::Refused(refused)]);
        }
        let result = change.run(self.w(), name);
        self.w().bucket.fail_no_changes();
        let Some(&number) = self.names.get(name) else {
            return assert_eq!(errno(result), Some(Errno::NOENT), "{name}");
        };
        let Some(labels) = self.files[number].now.labels.with(&change) else {
            return assert_eq!(errno(result), Some(Errno::NODATA), "{name}");
        };
        let is_anew = self.w().bucket.stores_anew.load(Ordering::Relaxed);
        let is_open = self.open.iter().any(|(open, _)| *open == number);
        let was_dirty = self.files[number].is_dirty;
        // What was closed, and could not be stored then, is stored with them.
        let is_written = is_open && was_dirty;
        match result {
            Ok(()) => {
                self.files[number].relabel(labels);
                if !is_written {
                    self.tried(number, &Ok(()));
                }
            }
            Err(error) => {
                assert!(is_refused && error.errno() == Errno::IO, "{name}: {error:?}");
                // The model takes what a failed sync has stored for dirty, too.
                if is_anew || was_dirty && self.shows(name, &labels) {
                    // It stays to be stored.
                    self.files[number].relabel(labels);
                    self.tried(number, &Err(error));
                }
            }
        }
    }

    fn shows(&self, name: &str, labels: &Labels) -> bool {
        let attr = self.w().attr(name).unwrap();
        labels.allow_shown(&attr) && labels.allow_xattrs(self.w(), name).unwrap()
    }

    /// Makes, removes or gives away a symbolic link.
    fn link(&mut self) {
        let link = LINKS[self.dice.below(LINKS.len() as u64) as usize];
        let is_there = self.links.contains_key(link);
        match self.dice.below(3) {
            0 => {
                let removed = self.w().unlink(link);
                assert_eq!(removed.is_ok(), self.links.remove(link).is_some(), "{link}");
            }
            1 if is_there => Change::Owner(5, 6).run(self.w(), link).unwrap(),
            _ => {
                let target = "x".repeat(1 + self.dice.below(200) as usize);
                let w = self.w();
                let made = w.at(link, |parent, name| w.volume.symlink(&w.me, parent, name, target.as_ref()));
                match made.unwrap() {
                    Ok(entry) => {
                        w.volume.forget(entry.node, 1);
                        assert!(!is_there && w.stored(link) == Some(target.clone().into()), "{link}");
                        self.links.insert(link, target);
                    }
                    Err(error) => assert!(is_there && error.errno() == Errno::EXIST, "{link}: {error:?}"),
                }
            }
        }
    }

    fn unlink(&mut self) {
        let name = self.dice.name();
        let result = self.w().unlink(name);
        match self.names.remove(name) {
            Some(_) => result.unwrap(),
            None => assert_eq!(errno(result), Some(Errno::NOENT)),
        }
        assert_eq!(self.w().stored(name), None);
    }

    fn rename(&mut self) {
        let (from, to) = (self.dice.name(), self.dice.name());
        let must_be_new = self.dice.below(3) == 0;
        let flags = if must_be_new { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let result = self.w().rename(from, to, flags);
        match (self.names.get(from).copied(), self.names.contains_key(to)) {
            (None, _) => assert_eq!(errno(result), Some(Errno::NOENT)),
            (_, true) if must_be_new => assert_eq!(errno(result), Some(Errno::EXIST)),
            (Some(_), _) if from == to => result.unwrap(),
            (Some(number), _) => {
                result.unwrap();
                self.names.remove(from);
                self.names.insert(to, number);
                assert_eq!(self.w().stored(from), None);
                self.tried(number, &Ok(()));
            }
        }
    }

    /// Renames a directory forth and back.
    fn rename_directory(&mut self) {
        self.w().rename("d", "f", RenameFlags::empty()).unwrap();
        assert!(self.w().bucket.keys().iter().all(|key| !key.starts_with("d/")));
        self.w().rename("f", "d", RenameFlags::empty()).unwrap();
        let below: Vec<_> = self.names.iter().filter(|(name, _)| name.starts_with("d/")).collect();
        for number in below.into_iter().map(|(_, number)| *number).collect::<Vec<_>>() {
            self.tried(number, &Ok(()));
        }
    }

    fn check(&mut self) {
        for name in NAMES {
            match self.names.get(name) {
                Some(&number) => {
                    let known = &self.files[number].now;
                    assert!(self.w().get(name).unwrap() == known.bytes, "{name}");
                    let attr = self.w().attr(name).unwrap();
                    assert!(known.labels.allow_shown(&attr), "{name}: {attr:?} for {:?}", known.labels);
                    assert!(known.labels.allow_xattrs(self.w(), name).unwrap(), "{name}: {:?}", known.labels);
                }
                None => assert_eq!(errno(self.w().attr(name)), Some(Errno::NOENT), "{name}"),
            }
        }
        for link in LINKS {
            let shown = self.w().find(link).map(|entry| {
                let target = self.w().volume.readlink(entry.node).unwrap();
                self.w().volume.forget(entry.node, 1);
                target.into_string().unwrap()
            });
            assert_eq!(shown.ok().as_ref(), self.links.get(link), "{link}");
        }
        for (number, file) in &self.open {
            assert!(self.w().read(file).unwrap() == self.files[*number].now.bytes, "open");
        }
        for directory in ["", "d", "d/e"] {
            let in_it = |name: &str| name.rsplit_once('/').map_or("", |(above, _)| above) == directory;
            let mut expected: Vec<_> = self.names.iter().filter(|(name, _)| in_it(name)).collect();
            expected.sort();
            let listed = self.w().names(directory);
            let is_file = |name: &str| !matches!(name, "d" | "e" | "l");
            let files: Vec<_> = listed.iter().filter(|(name, _)| is_file(name)).collect();
            let link = if directory.is_empty() { "l".to_owned() } else { format!("{directory}/l") };
            let has_link = listed.iter().any(|(name, _)| name == "l");
            assert_eq!(has_link, self.links.contains_key(&*link), "{link}");
            assert_eq!(files.len(), expected.len(), "{directory}: {listed:?}");
            for ((name, len), (path, number)) in files.into_iter().zip(expected) {
                assert!(path.ends_with(name.as_str()));
                assert_eq!(*len, self.files[*number].now.bytes.len() as u64, "{path}");
            }
        }
    }

    fn hold(&mut self) {
        let name = self.dice.name();
        if let Ok(entry) = self.w().find(name) {
            self.held.push(entry.node);
        }
        if self.held.len() > 4 {
            let node = self.held.remove(0);
            self.w().volume.forget(node, 1);
        }
    }

    fn sync(&mut self) {
        self.fail_some();
        let result = self.w().volume.syncfs();
        let numbers: Vec<_> = self.names.values().copied().collect();
        for number in numbers {
            if self.files[number].is_dirty {
                self.tried(number, &result.as_ref().copied().map_err(|error| error.errno().into()));
            }
        }
        self.w().bucket.fail_no_changes();
    }

    /// Ends the volume without a word. What the bucket has then is what there is.
    fn crash(&mut self) {
        self.open.iter().for_each(|(_, file)| std::mem::forget(Arc::clone(file)));
        self.open.clear();
        let world = self.world.take().unwrap();
        let names: Vec<_> = self.names.iter().map(|(name, number)| (*name, *number)).collect();
        for (name, number) in names {
            let (stored, known) = (stored_in(&world, name), &mut self.files[number]);
            let may_be = match known.is_dirty {
                true => known.may_be(stored.as_ref()),
                false => stored.as_ref().is_some_and(|stored| known.now.allows(stored)),
            };
            let labels = stored.as_ref().map(|stored| &stored.labels);
            assert!(may_be, "{name}: {labels:?} for {:?}", known.now.labels);
            match stored {
                Some(stored) => {
                    (known.now, known.is_dirty) = (stored, false);
                    known.may_be_stored = vec![Some(known.now.clone())];
                }
                None => drop(self.names.remove(name)),
            }
        }
        let is_known = |key: &str| self.names.contains_key(key) || self.links.contains_key(key);
        assert!(world.bucket.keys().iter().all(|key| key.ends_with('/') || is_known(key)));
        assert!(self.links.keys().all(|link| world.stored(link).is_some()), "a link is gone");
        self.held.clear();
        self.world = Some(world.restart_elsewhere());
        self.w().engine.set_max(self.w().group(), 1 << 20);
    }

    fn step(&mut self) {
        match self.dice.below(30) {
            0..8 => self.write(),
            8..13 => self.close(),
            13 => self.truncate(),
            14 | 15 => self.unlink(),
            16 | 17 => self.rename(),
            18 if self.dice.below(3) == 0 => self.rename_directory(),
            19 => self.hold(),
            20 => self.sync(),
            21 if self.dice.below(4) == 0 => self.crash(),
            22..27 => self.relabel(),
            27 => self.link(),
            _ => self.check(),
        }
    }
}

#[test]
fn what_was_acknowledged_is_in_the_bucket() {
    let nr_seeds = std::env::var("OBJECT_MODEL_SEEDS").ok().and_then(|nr| nr.parse().ok()).unwrap_or(12);
    for seed in 0..nr_seeds {
        println!("seed {seed}");
        let mut model = Model::new(seed);
        for nr in 0..NR_OPS {
            if std::env::var_os("OBJECT_MODEL_TRACE").is_some() {
                println!("step {nr}");
            }
            model.step();
        }
        model.check();
        model.crash();
        model.check();
    }
}
