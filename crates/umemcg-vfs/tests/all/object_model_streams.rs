//! A volume whose files are written as streams, beside a model: random operations on a few names,
//! with requests and parts that fail, a group that is too small, groups that are removed, syncs,
//! writers that are killed, and crashes in between. What a close, an fsync, a sync, a renaming or a
//! change of attributes acknowledged is in the bucket, byte for byte; what it did not is there as a
//! whole or not at all; and no second writer comes to a file that is being written.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::labels::{Change, Labels};
use crate::common::memory_bucket::{ChangeFault, MemoryBucket};
use crate::common::object_world::{World, errno};
use rustix::io::Errno;
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::{OFlags, RenameFlags, SetAttr, VfsError, Volume, VolumeFile};

const NAMES: [&str; 5] = ["a", "b", "c", "d/a", "d/b"];
const NR_OPS: usize = 250;
const PART: usize = 32 << 10;
const POOL: u64 = 32 << 20;
const LIMIT: u64 = 160 << 10;
/// What threads have of a group's charge in stock.
const SLACK: u64 = 1 << 20;
const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE);
const WHOLE: OFlags = NEW.union(OFlags::TRUNC);

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

/// What the bucket has of a name.
#[derive(Debug, Clone, Default)]
struct Object {
    bytes: Vec<u8>,
    labels: Labels,
}

impl Object {
    fn allows(&self, stored: &Self) -> bool {
        self.bytes == stored.bytes && self.labels.allow(&stored.labels)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Whole,
    Failed,
}

/// An open file.
struct Writer {
    file: Arc<dyn VolumeFile>,
    /// None once it was removed or replaced.
    name: Option<&'static str>,
    now: Object,
    /// What an upload in parts was begun with.
    begun_with: Labels,
    fate: Fate,
    /// It stands for its name.
    is_unsaved: bool,
    /// The store has had a version before it, or of it.
    has_base: bool,
    /// The store was asked to take what it has now, in vain.
    is_tried: bool,
    was_tried: bool,
    was_closed_empty: bool,
    /// A part of it may fail.
    may_fail: bool,
}

impl Writer {
    fn is_in_parts(&self) -> bool {
        self.is_unsaved && self.now.bytes.len() > PART
    }

    /// Returns what a store that fails may leave in the bucket.
    fn wanted(&self) -> Vec<Object> {
        let begun = Object { labels: self.begun_with.clone(), ..self.now.clone() };
        std::iter::once(self.now.clone()).chain(self.is_in_parts().then_some(begun)).collect()
    }

    fn is_closed_empty(&self) -> bool {
        self.was_closed_empty && self.now.bytes.is_empty()
    }

    fn change(&mut self) {
        (self.is_unsaved, self.is_tried) = (true, false);
    }

    fn saved(&mut self) {
        if self.now.bytes.len() > PART {
            self.fate = Fate::Whole;
        }
        (self.is_unsaved, self.has_base, self.is_tried) = (false, true, false);
    }

    fn fail(&mut self) {
        (self.is_unsaved, self.fate) = (false, Fate::Failed);
    }
}

struct Model {
    dice: Dice,
    world: Option<World>,
    objects: BTreeMap<&'static str, Object>,
    writers: Vec<Writer>,
    readers: Vec<(Vec<u8>, Arc<dyn VolumeFile>)>,
    nr_groups: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let bucket = MemoryBucket::for_streams_of(PART as u64);
        bucket.stores_anew.store(seed % 4 == 3, Ordering::Relaxed);
        let world = World::streamed_on(bucket, POOL);
        world.mkdir("d").unwrap();
        let (objects, writers, readers) = (BTreeMap::new(), vec![], vec![]);
        let model = Self { dice: Dice(seed), world: Some(world), objects, writers, readers, nr_groups: 0 };
        model.limit();
        model
    }

    fn w(&self) -> &World {
        self.world.as_ref().unwrap()
    }

    fn limit(&self) {
        self.w().engine.set_max(self.w().group(), LIMIT);
        self.w().group().reset_peak();
    }

    fn is_anew(&self) -> bool {
        self.w().bucket.stores_anew.load(Ordering::Relaxed)
    }

    fn stored(&self, name: &str) -> Option<Object> {
        let (bytes, metadata) = self.w().bucket.object(name)?;
        Some(Object { bytes, labels: Labels::of(&metadata) })
    }

    fn bytes(&mut self, len_max: usize) -> Vec<u8> {
        let (len, seed) = (1 + self.dice.below(len_max as u64), self.dice.below(251));
        (0..len).map(|at| (at / 7 + seed) as u8).collect()
    }

    /// Returns the writer that stands for a name.
    fn attached(&self, name: &str) -> Option<usize> {
        self.writers.iter().position(|writer| writer.name == Some(name) && writer.is_unsaved)
    }

    fn exists(&self, name: &str) -> bool {
        self.objects.contains_key(name) || self.attached(name).is_some()
    }

    /// Closes the writers of a name that do not stand for it: another one is to.
    fn drop_idle(&mut self, name: &str) {
        self.writers.retain(|writer| writer.name != Some(name) || writer.is_unsaved);
    }

    fn any_writer(&mut self) -> Option<usize> {
        let nr = self.writers.len() as u64;
        (nr > 0).then(|| self.dice.below(nr) as usize)
    }

    /// Has the next change fail, or not. Returns whether it does.
    fn fail_some(&mut self) -> bool {
        let fault = match self.dice.below(6) {
            0 => ChangeFault::AnswerLost,
            1 => ChangeFault::Refused(BucketError::Unavailable("503".into())),
            _ => return false,
        };
        self.w().bucket.fail_changes([fault]);
        true
    }

    fn fail_no_more(&self) {
        self.w().bucket.fail_no_changes();
        self.w().bucket.parts.faults.lock().unwrap().clear();
    }

    /// Takes over what the bucket has of a name, which is what it had or what was to be there.
    fn adopt(&mut self, name: &'static str, wanted: &[Object]) {
        let (before, stored) = (self.objects.get(name), self.stored(name));
        let is = |object: Option<&Object>| match (object, &stored) {
            (Some(object), Some(stored)) => object.allows(stored),
            (object, stored) => object.is_none() && stored.is_none(),
        };
        let is_wanted = wanted.iter().any(|wanted| is(Some(wanted)));
        assert!(is(before) || is_wanted, "{name}: neither what was there nor the new one");
        match stored {
            Some(stored) => drop(self.objects.insert(name, stored)),
            None => drop(self.objects.remove(name)),
        }
    }

    /// Notes that the bucket has what a writer has.
    fn note_saved(&mut self, at: usize) {
        let writer = &mut self.writers[at];
        writer.saved();
        let Some(name) = writer.name else { return };
        let now = writer.now.clone();
        let stored = self.stored(name);
        let is_it = stored.as_ref().is_some_and(|stored| now.allows(stored));
        assert!(is_it, "{name}: acknowledged, and {:?}", stored.map(|stored| stored.labels));
        self.objects.insert(name, now);
    }

    /// Notes that a store of a writer has failed.
    fn note_failed(&mut self, at: usize, (error, is_excused): (&VfsError, bool)) {
        let writer = &self.writers[at];
        let may_fail = is_excused || writer.may_fail;
        assert!(may_fail && error.errno() == Errno::IO, "{:?}: {error:?}", writer.name);
        let (name, wanted) = (writer.name.unwrap(), writer.wanted());
        let writer = &mut self.writers[at];
        match writer.is_in_parts() {
            true => writer.fail(),
            false => (writer.is_tried, writer.was_tried) = (true, true),
        }
        self.adopt(name, &wanted);
    }

    fn open(&mut self) {
        let name = self.dice.name();
        let flags = if self.dice.below(4) == 0 { NEW } else { WHOLE };
        if let Some(at) = self.attached(name) {
            if !self.writers[at].is_closed_empty() {
                for opened in [self.w().create_with(name, flags), self.w().open(name, OFlags::RDONLY)] {
                    assert_eq!(errno(opened), Some(Errno::BUSY), "{name}");
                }
                return;
            }
            let before = self.w().open(name, OFlags::RDONLY).unwrap();
            assert_eq!(before.getattr().unwrap().size, 0, "{name}");
            self.note_saved(at);
        }
        self.drop_idle(name);
        let (there, is_cut) = (self.objects.get(name).cloned(), flags == WHOLE);
        let opened = self.w().create_with(name, flags);
        if !is_cut && there.as_ref().is_some_and(|there| !there.bytes.is_empty()) {
            return assert_eq!(errno(opened), Some(Errno::OPNOTSUPP), "{name}");
        }
        let labels = there.as_ref().map(|there| match is_cut {
            true => there.labels.written(),
            false => there.labels.clone(),
        });
        self.writers.push(Writer {
            file: opened.unwrap(),
            name: Some(name),
            now: Object { bytes: vec![], labels: labels.unwrap_or_default() },
            begun_with: Labels::default(),
            fate: Fate::Open,
            is_unsaved: is_cut || there.is_none(),
            has_base: there.is_some(),
            is_tried: false,
            was_tried: false,
            was_closed_empty: false,
            may_fail: false,
        });
    }

    fn write(&mut self) {
        let Some(at) = self.any_writer() else { return self.open() };
        let len = self.dice.below(5) as usize * PART / 2;
        let bytes = self.bytes(len + 100);
        let writer = &self.writers[at];
        let (file, size, fate) = (Arc::clone(&writer.file), writer.now.bytes.len(), writer.fate);
        // A file whose name is gone takes all, once it knows.
        let is_elsewhere = self.dice.below(8) == 0 && writer.name.is_some();
        let offset = if is_elsewhere { size + 1 } else { size };
        if self.dice.below(12) == 0 {
            self.w().bucket.parts.faults.lock().unwrap().extend([false, true]);
            self.writers[at].may_fail = true;
        }
        let written = self.w().write(&file, offset as u64, &bytes);
        self.fail_no_more();
        if self.writers[at].name.is_none() {
            self.writers[at].now.bytes.extend(bytes);
            return written.unwrap();
        }
        match (fate, written) {
            (Fate::Open, Ok(())) if !is_elsewhere => {
                let writer = &mut self.writers[at];
                let was_in_parts = writer.is_in_parts();
                writer.now.bytes.extend(bytes);
                writer.change();
                match writer.is_in_parts() {
                    true if !was_in_parts => writer.begun_with = writer.now.labels.clone(),
                    true => {}
                    false => writer.now.labels = writer.now.labels.written(),
                }
            }
            (Fate::Open, Err(error)) if is_elsewhere => assert_eq!(error.errno(), Errno::OPNOTSUPP),
            (Fate::Open, Err(error)) => {
                let writer = &mut self.writers[at];
                assert!(writer.may_fail && error.errno() == Errno::IO, "{:?}: {error:?}", writer.name);
                writer.fail();
                let name = writer.name.unwrap();
                self.adopt(name, &[]);
            }
            (Fate::Whole, written) => assert_eq!(errno(written), Some(Errno::OPNOTSUPP)),
            (Fate::Failed, written) => assert_eq!(errno(written), Some(Errno::IO)),
            (_, written) => panic!("{written:?}"),
        }
    }

    fn store(&mut self) {
        let Some(at) = self.any_writer() else { return };
        let is_excused = self.fail_some();
        let is_close = self.dice.below(2) == 0;
        let file = Arc::clone(&self.writers[at].file);
        let result = if is_close { file.flush() } else { file.fsync(false) };
        self.fail_no_more();
        let writer = &mut self.writers[at];
        let is_empty = writer.now.bytes.is_empty() && writer.has_base && writer.name.is_some();
        if is_close && is_empty {
            writer.was_closed_empty = true;
            return result.unwrap();
        }
        match result {
            _ if !writer.is_unsaved || writer.name.is_none() => result.unwrap(),
            Ok(()) => self.note_saved(at),
            Err(error) => self.note_failed(at, (&error, is_excused)),
        }
    }

    /// The kernel lets go of a file, after a close or, of a program that was killed in between,
    /// without.
    fn release(&mut self) {
        let Some(at) = self.any_writer() else { return };
        let writer = &mut self.writers[at];
        let is_news = writer.is_in_parts() || !writer.is_tried;
        let is_stored = writer.is_unsaved && writer.name.is_some() && is_news;
        let (name, wanted, may_fail) = (writer.name, writer.wanted(), writer.may_fail);
        writer.file.closed();
        match name {
            Some(_) if is_stored && !may_fail => self.note_saved(at),
            Some(name) if is_stored => self.adopt(name, &wanted),
            _ => {}
        }
        drop(self.writers.remove(at));
    }

    /// A writer ends without a word.
    fn kill(&mut self) {
        let Some(at) = self.any_writer() else { return };
        drop(self.writers.remove(at));
    }

    fn sync(&mut self) {
        self.w().volume.syncfs().unwrap();
        for at in 0..self.writers.len() {
            let writer = &self.writers[at];
            let may_have_object = writer.has_base || writer.was_tried;
            let is_left = writer.now.bytes.is_empty() && may_have_object && !writer.was_closed_empty;
            if writer.is_unsaved && writer.name.is_some() && !writer.is_in_parts() && !is_left {
                self.note_saved(at);
            }
        }
    }

    fn lose_name(&mut self, name: &str) {
        self.objects.remove(name);
        for writer in self.writers.iter_mut().filter(|writer| writer.name == Some(name)) {
            (writer.name, writer.is_unsaved) = (None, false);
        }
        // What was ended before takes no more all the same.
        self.writers.retain(|writer| writer.name.is_some() || writer.fate == Fate::Open);
    }

    fn unlink(&mut self) {
        let name = self.dice.name();
        let result = self.w().unlink(name);
        match self.exists(name) {
            true => result.unwrap(),
            false => return assert_eq!(errno(result), Some(Errno::NOENT)),
        }
        self.lose_name(name);
        assert!(self.stored(name).is_none(), "{name}");
    }

    fn rename(&mut self) {
        let (from, to) = (self.dice.name(), self.dice.name());
        let (there, attached) = (self.exists(from), self.attached(from));
        let result = self.w().rename(from, to, RenameFlags::empty());
        if !there {
            return assert_eq!(errno(result), Some(Errno::NOENT));
        }
        if from == to {
            return result.unwrap();
        }
        if attached.is_some_and(|at| self.writers[at].is_in_parts()) {
            return assert_eq!(errno(result), Some(Errno::BUSY), "{from}");
        }
        result.unwrap();
        self.lose_name(to);
        for writer in self.writers.iter_mut().filter(|writer| writer.name == Some(from)) {
            writer.name = Some(to);
        }
        let object = self.objects.remove(from);
        match attached {
            // It is another place if one was dropped.
            Some(_) => {
                let at = self.attached(to).unwrap();
                self.note_saved(at);
            }
            None => drop(self.objects.insert(to, object.unwrap())),
        }
        assert!(self.stored(from).is_none(), "{from}");
    }

    fn relabel(&mut self) {
        let (name, dice) = (self.dice.name(), &mut self.dice);
        let change = Change::any(|end| dice.below(end));
        let (attached, is_anew) = (self.attached(name), self.is_anew());
        let result = change.run(self.w(), name);
        if !self.exists(name) {
            return assert_eq!(errno(result), Some(Errno::NOENT), "{name}");
        }
        let labels = match attached {
            Some(at) => self.writers[at].now.labels.with(&change),
            None => self.objects[name].labels.with(&change),
        };
        let is_refused = is_anew && attached.is_none_or(|at| self.writers[at].is_in_parts());
        match labels {
            _ if is_refused => assert_eq!(errno(result), Some(Errno::OPNOTSUPP), "{name}"),
            None => assert_eq!(errno(result), Some(Errno::NODATA), "{name}"),
            Some(labels) => {
                result.unwrap();
                for writer in self.writers.iter_mut().filter(|writer| writer.name == Some(name)) {
                    writer.now.labels = labels.clone();
                }
                match attached {
                    Some(at) => self.writers[at].change(),
                    None => self.objects.get_mut(name).unwrap().labels = labels,
                }
            }
        }
    }

    fn cut(&mut self) {
        let name = self.dice.name();
        if !self.exists(name) {
            return;
        }
        let attached = self.attached(name);
        let len = attached.map_or_else(|| &self.objects[name], |at| &self.writers[at].now).bytes.len();
        let size = [0, 0, len, len + 1][self.dice.below(4) as usize];
        let change = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        if attached.is_none() && size == 0 {
            self.drop_idle(name);
        }
        let result = self.w().set(name, &change);
        match attached {
            Some(_) if size == len => {
                result.unwrap();
            }
            Some(at) if size == 0 && !self.writers[at].is_in_parts() => {
                result.unwrap();
                let writer = &mut self.writers[at];
                writer.now = Object { bytes: vec![], labels: writer.now.labels.written() };
                writer.change();
            }
            None if size == 0 => {
                result.unwrap();
                let labels = self.objects[name].labels.written();
                self.objects.insert(name, Object { bytes: vec![], labels });
            }
            _ => assert_eq!(errno(result), Some(Errno::OPNOTSUPP), "{name} to {size} of {len}"),
        }
    }

    fn read(&mut self) {
        let name = self.dice.name();
        if let (None, Some(object)) = (self.attached(name), self.objects.get(name)) {
            let file = self.w().open(name, OFlags::RDONLY).unwrap();
            assert!(self.w().read(&file).unwrap() == object.bytes, "{name}");
            self.readers.push((object.bytes.clone(), file));
        }
        for (bytes, file) in &self.readers {
            match self.w().read(file) {
                Ok(read) => assert!(read == *bytes, "another version"),
                Err(error) => assert!(matches!(error.errno(), Errno::STALE), "{error:?}"),
            }
        }
        if self.readers.len() > 3 {
            self.readers.remove(0);
        }
    }

    fn check(&self) {
        for name in NAMES {
            let (stored, object) = (self.stored(name), self.objects.get(name));
            assert_eq!(stored.is_some(), object.is_some(), "{name} is in the store");
            if let (Some(object), Some(stored)) = (object, &stored) {
                assert!(object.allows(stored), "{name}: {:?} for {:?}", stored.labels, object.labels);
            }
            let shown = self.attached(name).map(|at| &self.writers[at].now).or(object);
            let Some(shown) = shown else {
                assert_eq!(errno(self.w().attr(name)), Some(Errno::NOENT), "{name}");
                continue;
            };
            let attr = self.w().attr(name).unwrap();
            assert_eq!(attr.size, shown.bytes.len() as u64, "{name}");
            assert!(shown.labels.allow_shown(&attr), "{name}: {attr:?} for {:?}", shown.labels);
            assert!(shown.labels.allow_xattrs(self.w(), name).unwrap(), "{name}: {:?}", shown.labels);
        }
        let peak = self.w().group().peak_bytes();
        assert!(peak <= LIMIT + SLACK, "a group of {LIMIT} has had {peak}");
        assert_eq!(self.w().bucket.uploads().len(), self.nr_in_parts(), "uploads of streams");
    }

    fn nr_in_parts(&self) -> usize {
        self.writers.iter().filter(|writer| writer.is_in_parts()).count()
    }

    /// Goes on in another group; that of the open files is removed.
    fn replace_group(&mut self) {
        self.nr_groups += 1;
        let name = format!("g{}", self.nr_groups);
        let world = self.world.as_mut().unwrap();
        let new = world.engine.create_group(world.engine.root(), OsStr::new(&name)).unwrap();
        let old = std::mem::replace(&mut world.me.group, new);
        world.engine.remove_group(&old).unwrap();
        self.limit();
    }

    /// Ends the volume: without a word, or by force.
    fn end(&mut self) {
        if self.dice.below(2) == 0 {
            self.w().volume.abandon();
            for writer in &self.writers {
                let told = errno(writer.file.flush());
                let is_lost = writer.is_unsaved && writer.name.is_some();
                assert!(told.is_none() || is_lost, "told of nothing: {told:?}");
                writer.file.flush().unwrap();
            }
            assert!(self.w().bucket.uploads().is_empty(), "uploads are left");
        }
        self.writers.drain(..).for_each(std::mem::forget);
        self.readers.drain(..).for_each(std::mem::forget);
        self.world = self.world.take().map(World::streamed_elsewhere);
        self.w().bucket.forget_uploads();
        self.limit();
        self.check();
    }

    fn step(&mut self) {
        match self.dice.below(34) {
            0..4 => self.open(),
            4..12 => self.write(),
            12..16 => self.store(),
            16 | 17 => self.release(),
            18 => self.kill(),
            19 => self.sync(),
            20 | 21 => self.unlink(),
            22 | 23 => self.rename(),
            24..27 => self.relabel(),
            27 => self.cut(),
            28 | 29 => self.read(),
            30 if self.dice.below(3) == 0 => self.replace_group(),
            31 if self.dice.below(6) == 0 => self.end(),
            _ => self.check(),
        }
    }
}

#[test]
fn what_a_stream_acknowledged_is_in_the_bucket() {
    let nr_seeds = std::env::var("OBJECT_MODEL_SEEDS").ok().and_then(|nr| nr.parse().ok()).unwrap_or(24);
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
        model.end();
    }
}
