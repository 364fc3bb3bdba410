//! The bucket of the tests with a layer above it: requests take their time, fail, or lose their
//! answers, reads end on threads of their own, and what was ever stored is remembered.

use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use umemcg_vfs::bucket::{
    Bucket, BucketError, BucketFigures, Expected, ListedPart, Metadata, ObjectBody, ObjectInfo, ObjectSource,
    PartedUpload, UploadNote,
};

use crate::common::memory_bucket::MemoryBucket;
use crate::object_together::lock;
use crate::object_together::parted::FaultyUpload;

/// Length of a part of a stream.
pub const PART_BYTES: u64 = 16 << 10;
/// Threads that end what reads have begun.
const NR_ANSWERERS: usize = 2;

type Answer = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The requests of this thread do not fail.
    static IS_CALM: Cell<bool> = const { Cell::new(false) };
}

/// Threads whose requests do not fail.
static NR_CALM: AtomicU64 = AtomicU64::new(0);

/// Calls `act`, whose requests do not fail.
pub fn calmly<R>(act: impl FnOnce() -> R) -> R {
    IS_CALM.set(true);
    NR_CALM.fetch_add(1, Ordering::Relaxed);
    let result = act();
    NR_CALM.fetch_sub(1, Ordering::Relaxed);
    IS_CALM.set(false);
    result
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Refused,
    AnswerLost,
    /// The condition is said not to hold, although it may.
    Contradicted,
}

/// See the module text.
pub struct FaultyBucket {
    pub memory: Arc<MemoryBucket>,
    /// Of a thousand requests so many fail.
    pub nr_faults: AtomicU64,
    /// No change succeeds.
    pub is_down: AtomicBool,
    /// Longest pause of a request.
    pub pause_us: AtomicU64,
    random: AtomicU64,
    history: Mutex<HashSet<(String, u64)>>,
    /// Versions that the volume was told of, by their ETags.
    seen: Mutex<HashSet<Arc<str>>>,
    /// Objects in `lock/` that the volume replaced although it was never told of them.
    pub overwritten: Mutex<Vec<String>>,
    /// Held by a change that looks before.
    changing: Mutex<()>,
    answers: Mutex<Sender<Answer>>,
    /// For uploads in parts.
    me: Weak<FaultyBucket>,
}

impl std::fmt::Debug for FaultyBucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyBucket").finish_non_exhaustive()
    }
}

fn hash(bytes: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(bytes)
}

/// Returns whether only this volume changes the object of a key.
fn is_own(key: &str) -> bool {
    !key.starts_with("swap/") && !key.starts_with("lock/")
}

impl FaultyBucket {
    pub fn new(seed: u64) -> Arc<Self> {
        let (answers, to_end) = channel::<Answer>();
        let to_end = Arc::new(Mutex::new(to_end));
        for _ in 0..NR_ANSWERERS {
            let to_end = Arc::<Mutex<Receiver<Answer>>>::clone(&to_end);
            std::thread::spawn(move || {
                loop {
                    let next = lock(&to_end).recv();
                    let Ok(answer) = next else { return };
                    answer();
                }
            });
        }
        Arc::new_cyclic(|me| Self {
            memory: MemoryBucket::for_streams_of(PART_BYTES),
            nr_faults: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            pause_us: AtomicU64::new(0),
            random: AtomicU64::new(seed),
            history: Mutex::default(),
            seen: Mutex::default(),
            overwritten: Mutex::default(),
            changing: Mutex::default(),
            answers: Mutex::new(answers),
            me: Weak::clone(me),
        })
    }

    fn below(&self, end: u64) -> u64 {
        let mixed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed >> 33) % end
    }

    /// Another program stores an object.
    pub fn put(&self, key: &str, bytes: Vec<u8>) {
        let _alone = lock(&self.changing);
        self.note(key, &bytes);
        self.memory.put(key, bytes);
    }

    /// Another program removes an object.
    pub fn remove(&self, key: &str) {
        let _alone = lock(&self.changing);
        self.memory.delete(key);
    }

    fn note(&self, key: &str, bytes: &[u8]) {
        lock(&self.history).insert((key.to_owned(), hash(bytes)));
    }

    /// Returns whether these bytes ever were the object of a key.
    pub fn had(&self, key: &str, bytes: &[u8]) -> bool {
        lock(&self.history).contains(&(key.to_owned(), hash(bytes)))
    }

    fn note_seen(&self, info: &ObjectInfo) {
        lock(&self.seen).extend(info.etag.clone());
    }

    /// Notes that an upload replaced an object, which the volume must have been told of.
    fn note_replaced(&self, key: &str, replaced: &ObjectInfo) {
        let was_seen = replaced.etag.as_ref().is_some_and(|etag| lock(&self.seen).contains(etag));
        if key.starts_with("lock/") && !was_seen {
            lock(&self.overwritten).push(format!("{key}: {replaced:?}"));
        }
    }

    pub fn stored(&self, key: &str) -> Option<Vec<u8>> {
        self.memory.object(key).map(|(bytes, _)| bytes)
    }

    fn pause(&self) {
        match (self.pause_us.load(Ordering::Relaxed), self.below(4)) {
            (0, _) | (_, 0) => {}
            (_, 1) => std::thread::yield_now(),
            (longest, _) => std::thread::sleep(Duration::from_micros(self.below(longest))),
        }
    }

    fn fate(&self, key: &str, is_change: bool) -> Fate {
        self.pause();
        // Perhaps it helps a calm thread to rename a directory.
        let is_helping = std::thread::current().name() == Some("umemcg-requests");
        if IS_CALM.get() || is_helping && NR_CALM.load(Ordering::Relaxed) > 0 {
            return Fate::Done;
        }
        if is_change && self.is_down.load(Ordering::Relaxed) {
            return Fate::Refused;
        }
        if self.below(1000) >= self.nr_faults.load(Ordering::Relaxed) {
            return Fate::Done;
        }
        match self.below(3) {
            0 if is_change => Fate::AnswerLost,
            1 if is_change && !is_own(key) => Fate::Contradicted,
            _ => Fate::Refused,
        }
    }

    /// Returns why a part of an upload fails, if it does.
    pub fn refuses_part(&self, key: &str) -> Option<BucketError> {
        let is_refused = self.fate(key, true) != Fate::Done;
        is_refused.then(|| BucketError::Unavailable(format!("{key}: a part was refused")))
    }

    /// Makes an object of bytes, under a condition or without, with what becomes of that.
    pub fn store(
        &self,
        key: &str,
        (is_conditional, bytes): (bool, &[u8]),
        make: impl FnOnce() -> Result<ObjectInfo, BucketError>,
    ) -> Result<ObjectInfo, BucketError> {
        self.change(key, is_conditional, || {
            let _alone = lock(&self.changing);
            let there = self.memory.head(key).ok();
            let info = make()?;
            // Under a condition it still was that one.
            there.inspect(|there| self.note_replaced(key, there));
            self.note_seen(&info);
            self.note(key, bytes);
            Ok(info)
        })
    }

    /// Makes a change with what becomes of it.
    pub fn change<R>(
        &self,
        key: &str,
        conditional: bool,
        make: impl FnOnce() -> Result<R, BucketError>,
    ) -> Result<R, BucketError> {
        let failed = |what: &str| BucketError::Unavailable(format!("{key}: {what}"));
        let fate = self.fate(key, true);
        let made = match fate {
            Fate::Refused => return Err(failed("503")),
            Fate::Contradicted if conditional => return Err(BucketError::Changed(format!("{key}: 409"))),
            _ => make(),
        };
        self.pause();
        match (fate, made) {
            (Fate::AnswerLost, Ok(_)) => Err(failed("no answer")),
            (_, made) => made,
        }
    }

    fn look<R>(&self, key: &str, ask: impl FnOnce() -> Result<R, BucketError>) -> Result<R, BucketError> {
        match self.fate(key, false) {
            Fate::Done => ask().inspect(|_| self.pause()),
            _ => Err(BucketError::Unavailable(format!("{key}: 503"))),
        }
    }
}

/// The bytes of an upload, read once.
#[derive(Debug)]
struct Bytes<'s> {
    of: &'s dyn ObjectSource,
    bytes: Vec<u8>,
}

impl ObjectSource for Bytes<'_> {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }
    fn note_upload(&self, upload: Option<&str>) -> io::Result<()> {
        self.of.note_upload(upload)
    }
}

impl Bucket for FaultyBucket {
    fn url(&self) -> &str {
        self.memory.url()
    }
    fn endpoint(&self) -> Option<&str> {
        None
    }
    fn head(&self, key: &str) -> Result<ObjectInfo, BucketError> {
        self.look(key, || self.memory.head(key).inspect(|info| self.note_seen(info)))
    }
    fn list(&self, prefix: &str, from: Option<&str>, max: usize) -> Result<ListedPart, BucketError> {
        let listed = self.look(prefix, || self.memory.list(prefix, from, max))?;
        listed.names.iter().filter_map(|listed| listed.object.as_ref()).for_each(|info| self.note_seen(info));
        Ok(listed)
    }
    fn read(
        &self,
        key: &str,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), BucketError> {
        self.look(key, || self.memory.read(key, info, range, take))
    }
    fn begin_read(&self, key: &str, info: &ObjectInfo, range: Range<u64>, mut body: Box<dyn ObjectBody>) {
        let (memory, key, info) = (Arc::clone(&self.memory), key.to_owned(), info.clone());
        let (fate, is_given_up) = (self.fate(&key, false), self.below(2) == 0);
        let pause = Duration::from_micros(self.below(1 + self.pause_us.load(Ordering::Relaxed)));
        let answer = move || {
            std::thread::sleep(pause);
            match fate {
                Fate::Done => {
                    let result = memory.read(&key, &info, range, &mut |bytes| body.take(bytes));
                    body.end(result);
                }
                _ if is_given_up => drop(body),
                _ => body.end(Err(BucketError::Unavailable(format!("{key}: 503")))),
            }
        };
        let _ = lock(&self.answers).send(Box::new(answer));
    }
    fn upload_bytes(&self, size: u64) -> u64 {
        self.memory.upload_bytes(size)
    }
    fn upload(
        &self,
        key: &str,
        source: &dyn ObjectSource,
        metadata: &Metadata,
        expected: &Expected,
    ) -> Result<ObjectInfo, BucketError> {
        let mut bytes = vec![0; source.size() as usize];
        source.read_at(0, &mut bytes).map_err(|error| BucketError::Source(format!("{key}: {error}")))?;
        let source = Bytes { of: source, bytes };
        let is_conditional = !matches!(expected, Expected::Anything);
        self.store(key, (is_conditional, &source.bytes), || {
            self.memory.upload(key, &source, metadata, expected)
        })
    }
    fn part_bytes(&self) -> u64 {
        self.memory.part_bytes()
    }

    fn begin_upload(
        &self,
        key: &str,
        metadata: &Metadata,
        expected: &Expected,
        note: Arc<dyn UploadNote>,
    ) -> Result<Arc<dyn PartedUpload>, BucketError> {
        let is_conditional = !matches!(expected, Expected::Anything);
        let begin = || self.memory.begin_upload(key, metadata, expected, Arc::clone(&note));
        let upload = self.change(key, false, begin)?;
        let me = self.me.upgrade().expect("it is in use");
        Ok(Arc::new(FaultyUpload::new(me, (key, is_conditional), upload)))
    }

    fn abort_upload(&self, key: &str, upload: &str) -> Result<(), BucketError> {
        self.change(key, false, || self.memory.abort_upload(key, upload))
    }
    fn delete(&self, key: &str) -> Result<(), BucketError> {
        self.change(key, false, || Bucket::delete(&*self.memory, key))
    }
    fn copy(
        &self,
        from: &str,
        info: &ObjectInfo,
        to: &str,
        expected: &Expected,
    ) -> Result<ObjectInfo, BucketError> {
        let bytes = self.stored(from);
        self.change(to, !matches!(expected, Expected::Anything), || {
            let copied = self.memory.copy(from, info, to, expected)?;
            bytes.inspect(|bytes| self.note(to, bytes));
            Ok(copied)
        })
    }
    fn keeps_metadata(&self) -> bool {
        true
    }
    fn replaces_metadata(&self, size: u64) -> bool {
        // Of some lengths only, as real stores do.
        !size.is_multiple_of(3)
    }
    fn replace_metadata(
        &self,
        key: &str,
        info: &ObjectInfo,
        metadata: &Metadata,
    ) -> Result<ObjectInfo, BucketError> {
        self.change(key, true, || self.memory.replace_metadata(key, info, metadata))
    }
    fn figures(&self) -> BucketFigures {
        self.memory.figures()
    }
    fn trouble(&self) -> Option<String> {
        None
    }
}
