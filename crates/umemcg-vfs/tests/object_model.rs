//! A volume of objects that is written to, beside a model: random operations on a few names, with
//! requests that fail, a group that is too small, syncs, and crashes in between. What a close, a
//! sync or a rename acknowledged is in the bucket, byte for byte; what the volume shows is what was
//! written.
//!
//! Every other volume writes back: what a close acknowledged is in the bucket when the next volume
//! has replayed it. What was changed after that may be there in any part, and no removed file comes
//! back.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::memory_bucket::ChangeFault;
use common::object_world::{World, errno};
use rustix::io::Errno;
use umemcg_vfs::object::BucketError;
use umemcg_vfs::{Lookup, NodeId, OFlags, RenameFlags, SetAttr, VfsError, Volume, VolumeFile};

const NAMES: [&str; 7] = ["a", "b", "c", "d/a", "d/b", "d/e/a", "d/e/b"];
const NR_OPS: usize = 150;
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

/// A file as the model knows it.
#[derive(Debug, Default, Clone)]
struct Known {
    bytes: Vec<u8>,
    /// What the bucket may have under its name: what was acknowledged last, and what an attempt
    /// after that may have left.
    may_be_stored: Vec<Option<Vec<u8>>>,
    /// It has changed since.
    is_dirty: bool,
    /// All that it has been since it was acknowledged last, that included.
    states: Vec<Vec<u8>>,
    was_acknowledged: bool,
}

impl Known {
    fn acknowledge(&mut self) {
        self.states = vec![self.bytes.clone()];
        (self.is_dirty, self.was_acknowledged) = (false, true);
    }

    fn change(&mut self, bytes: Vec<u8>) {
        self.states.push(bytes.clone());
        (self.bytes, self.is_dirty) = (bytes, true);
    }

    /// Returns whether a crash may have made this of it where closes do not wait for the store.
    fn may_have_become(&self, stored: Option<&[u8]>) -> bool {
        let Some(stored) = stored else { return !self.was_acknowledged };
        let byte_at = |state: &Vec<u8>, at: usize| state.get(at).copied().unwrap_or(0);
        let is_from_one = |(at, byte): (usize, &u8)| {
            *byte == 0 || self.states.iter().any(|state| byte_at(state, at) == *byte)
        };
        let len_max = self.states.iter().map(Vec::len).max().unwrap_or(0);
        match self.is_dirty {
            false => stored == self.bytes,
            true => stored.len() <= len_max && stored.iter().enumerate().all(is_from_one),
        }
    }
}

struct Model {
    dice: Dice,
    writes_back: bool,
    world: Option<World>,
    /// By number, since files outlive names.
    files: Vec<Known>,
    names: BTreeMap<&'static str, usize>,
    open: Vec<(usize, Arc<dyn VolumeFile>)>,
    held: Vec<NodeId>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let writes_back = seed % 2 == 1;
        let world =
            if writes_back { World::writing_back_with(8 << 20) } else { World::with(8 << 20, 64 << 20) };
        world.engine.set_max(world.group(), 1 << 20, &|| false);
        for directory in ["d", "d/e"] {
            world.mkdir(directory).unwrap();
        }
        let dice = Dice(seed);
        Self {
            dice,
            writes_back,
            world: Some(world),
            files: vec![],
            names: BTreeMap::new(),
            open: vec![],
            held: vec![],
        }
    }

    fn w(&self) -> &World {
        self.world.as_ref().unwrap()
    }

    fn bytes(&mut self, len_max: u64) -> Vec<u8> {
        let (len, seed) = (self.dice.below(len_max), self.dice.below(251));
        (0..len).map(|at| (at / 7 + seed) as u8).collect()
    }

    /// Notes an attempt to save a file, and whether it was acknowledged.
    fn saved(&mut self, file: usize, result: &Result<(), VfsError>) {
        if !self.writes_back {
            return self.tried(file, result);
        }
        result.as_ref().unwrap();
        if self.names.values().any(|of| *of == file) {
            self.files[file].acknowledge();
        }
    }

    /// Notes an attempt to store a file, and whether it was acknowledged.
    fn tried(&mut self, file: usize, result: &Result<(), VfsError>) {
        let name = self.names.iter().find(|(_, of)| **of == file).map(|(name, _)| *name);
        let Some(name) = name else { return };
        let stored = self.w().stored(name);
        let known = &mut self.files[file];
        match result {
            Ok(()) => {
                assert!(stored.as_ref() == Some(&known.bytes), "{name}: acknowledged");
                known.acknowledge();
                known.may_be_stored = vec![stored];
            }
            Err(error) => {
                assert_eq!(error.errno(), Errno::IO);
                known.may_be_stored.push(Some(known.bytes.clone()));
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
            let states = vec![Vec::new()];
            self.files.push(Known { may_be_stored: vec![None], states, is_dirty: true, ..Known::default() });
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
        let len = self.files[number].bytes.len();
        let at = if flags.contains(OFlags::APPEND) { len } else { at as usize };
        self.w().write(&file, at as u64, &bytes).unwrap();
        let known = &mut self.files[number];
        if !bytes.is_empty() {
            let mut changed = known.bytes.clone();
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
        self.saved(number, &result);
        self.w().bucket.fail_no_changes();
        drop(file);
    }

    fn truncate(&mut self) {
        let name = self.dice.name();
        let Some(&number) = self.names.get(name) else { return };
        let size = self.dice.below(LEN_MAX);
        let result = self.w().set(name, &SetAttr { size: Some(size), ..SetAttr::default() });
        let mut changed = self.files[number].bytes.clone();
        changed.resize(size as usize, 0);
        self.files[number].change(changed);
        self.saved(number, &result.map(drop));
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
                    assert!(self.w().get(name).unwrap() == self.files[number].bytes, "{name}");
                }
                None => assert_eq!(errno(self.w().attr(name)), Some(Errno::NOENT), "{name}"),
            }
        }
        for (number, file) in &self.open {
            assert!(self.w().read(file).unwrap() == self.files[*number].bytes, "open");
        }
        for directory in ["", "d", "d/e"] {
            let in_it = |name: &str| name.rsplit_once('/').map_or("", |(above, _)| above) == directory;
            let mut expected: Vec<_> = self.names.iter().filter(|(name, _)| in_it(name)).collect();
            expected.sort();
            let listed = self.w().names(directory);
            let files: Vec<_> = listed.iter().filter(|(name, _)| !matches!(&**name, "d" | "e")).collect();
            assert_eq!(files.len(), expected.len(), "{directory}: {listed:?}");
            for ((name, len), (path, number)) in files.into_iter().zip(expected) {
                assert!(path.ends_with(name.as_str()));
                assert_eq!(*len, self.files[*number].bytes.len() as u64, "{path}");
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
        let mut world = self.world.take().unwrap();
        if self.writes_back {
            world = world.restart_elsewhere();
            world.wait_until_all_stored();
        }
        let names: Vec<_> = self.names.iter().map(|(name, number)| (*name, *number)).collect();
        for (name, number) in names {
            let (stored, known) = (world.stored(name), &mut self.files[number]);
            match known.is_dirty {
                _ if self.writes_back => {
                    assert!(known.may_have_become(stored.as_deref()), "{name}: replayed")
                }
                true => assert!(known.may_be_stored.contains(&stored), "{name}"),
                false => assert!(stored.as_ref() == Some(&known.bytes), "{name}"),
            }
            match stored {
                Some(bytes) => {
                    known.bytes = bytes;
                    known.acknowledge();
                    known.may_be_stored = vec![Some(known.bytes.clone())];
                }
                None => drop(self.names.remove(name)),
            }
        }
        assert!(world.bucket.keys().iter().all(|key| key.ends_with('/') || self.names.contains_key(&**key)));
        self.held.clear();
        self.world = Some(world.restart_elsewhere());
        self.w().engine.set_max(self.w().group(), 1 << 20, &|| false);
    }

    fn step(&mut self) {
        match self.dice.below(24) {
            0..8 => self.write(),
            8..13 => self.close(),
            13 => self.truncate(),
            14 | 15 => self.unlink(),
            16 | 17 => self.rename(),
            18 if self.dice.below(3) == 0 => self.rename_directory(),
            19 => self.hold(),
            20 => self.sync(),
            21 if self.dice.below(4) == 0 => self.crash(),
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
