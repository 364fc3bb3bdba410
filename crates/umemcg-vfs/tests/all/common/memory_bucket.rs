//! A bucket in memory that counts, can be changed, and fails when it is told to.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use umemcg_vfs::Timestamp;
use umemcg_vfs::bucket::{
    Bucket, BucketError, BucketFigures, Expected, ListedName, ListedPart, Metadata, ObjectBody, ObjectInfo,
    ObjectSource, PartBytes, PartEnd, PartedUpload, UNKNOWN_UPLOAD, UploadNote,
};
use umemcg_vfs::volume::StoreId;

use super::gate::Gate;

#[path = "change_fault.rs"]
mod change_fault;
#[path = "memory_parts.rs"]
mod memory_parts;
pub use change_fault::ChangeFault;
pub use memory_parts::Parts;

#[derive(Clone)]
struct Object {
    bytes: Vec<u8>,
    version: u64,
    /// Seconds after that of its version.
    nr_touched: i64,
    metadata: Metadata,
}

/// Longest object that is stored at once, and length of a part, unless a test wants another.
pub const PART_BYTES: u64 = 8 << 20;

/// Gets the method and the key.
pub type Hook = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The URL of a bucket, another one for each: uploads of one store wait for each other.
struct Url(String);

impl Default for Url {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(format!("memory://bucket{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

#[derive(Default)]
pub struct MemoryBucket {
    url: Url,
    objects: Mutex<BTreeMap<String, Object>>,
    next_version: AtomicU64,
    pub gets: AtomicU64,
    pub heads: AtomicU64,
    pub lists: AtomicU64,
    pub puts: AtomicU64,
    pub copies: AtomicU64,
    pub deletes: AtomicU64,
    written_bytes: AtomicU64,
    /// Uploads in parts that are under way, with their keys.
    uploads: Arc<Mutex<BTreeMap<String, String>>>,
    /// What becomes of the parts of uploads whose bytes come while they go on.
    pub parts: Arc<Parts>,
    /// For those uploads.
    me: Mutex<Weak<MemoryBucket>>,
    /// Of the next changes, one after another.
    change_faults: Mutex<VecDeque<ChangeFault>>,
    /// Metadata cannot be replaced.
    pub stores_anew: AtomicBool,
    /// Length of a part; [`PART_BYTES`] if it is 0.
    part_bytes: AtomicU64,
    /// Called at requests for a key, with no lock held: before COPY, GET and PUT, after
    /// DELETE and HEAD.
    pub hook: Mutex<Option<Hook>>,
    /// Uploads wait while it is closed.
    pub gate: Gate,
    /// What other buckets share with it.
    pub source: Mutex<Option<StoreId>>,
    /// Reads that were begun and wait; `None` while they do not wait.
    begun: Mutex<Option<Vec<BegunRead>>>,
    /// Called once after the next deletion, before its answer.
    pub after_delete: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Why the last change was refused, if it was.
    trouble: Mutex<Option<String>>,
    /// So many of the next reads give other bytes, and tell so at their end.
    pub damages: AtomicU64,
    /// Every request fails with this.
    pub failure: Mutex<Option<BucketError>>,
    /// Uploads in parts cannot be ended, for this reason.
    pub abort_failure: Mutex<Option<BucketError>>,
}

/// A read that waits for its answer.
type BegunRead = (String, ObjectInfo, Range<u64>, Box<dyn ObjectBody>);

impl std::fmt::Debug for MemoryBucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryBucket").finish_non_exhaustive()
    }
}

/// An upload whose bytes come while it goes on.
#[derive(Debug)]
struct MemoryUpload {
    bucket: Arc<MemoryBucket>,
    key: String,
    metadata: Metadata,
    expected: Expected,
    id: String,
    note: Arc<dyn UploadNote>,
    parts: Mutex<Vec<Vec<u8>>>,
}

impl PartedUpload for MemoryUpload {
    fn begin_part(&self, bytes: PartBytes, end: PartEnd) {
        let (bucket, key) = (Arc::clone(&self.bucket), self.key.clone());
        let mut copy = vec![0; bytes.len()];
        assert!(bytes.copy_to(0, &mut copy));
        self.parts.lock().unwrap().push(copy);
        let nr = bucket.parts.nr_under_way.fetch_add(1, Ordering::Relaxed) + 1;
        bucket.parts.nr_under_way_max.fetch_max(nr, Ordering::Relaxed);
        let is_failing = bucket.parts.faults.lock().unwrap().pop_front().unwrap_or(false);
        std::thread::spawn(move || {
            let parts = &bucket.parts;
            let held = parts.held_key.lock().unwrap().clone();
            if held.is_none_or(|held| held == key) {
                parts.gate.pass();
            }
            let sent = bucket.count(&bucket.puts);
            parts.came.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            parts.nr_under_way.fetch_sub(1, Ordering::Relaxed);
            drop(bytes);
            let failed = BucketError::Unavailable(format!("{key}: a part was refused"));
            end.tell(if is_failing { Err(failed) } else { sent });
        });
    }

    fn complete(&self) -> Result<ObjectInfo, BucketError> {
        self.bucket.count(&self.bucket.puts)?;
        self.bucket.call_hook("COMPLETE", &self.key);
        let bytes = self.parts.lock().unwrap().concat();
        self.bucket.uploads.lock().unwrap().remove(&self.id);
        self.note.note(None).unwrap();
        let fault = self.bucket.next_fault();
        let len = bytes.len() as u64;
        let stored = self.bucket.change(&self.key, &self.expected, fault.as_ref(), |objects| {
            let object = self.bucket.new_object(bytes, self.metadata.clone());
            let info = info_of(&object);
            objects.insert(self.key.clone(), object);
            Ok(Some(info))
        })?;
        self.bucket.written_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(stored.unwrap())
    }

    fn abort(&self) -> Result<(), BucketError> {
        self.bucket.abort_upload(&self.key, &self.id)
    }
}

impl Drop for MemoryUpload {
    fn drop(&mut self) {
        self.bucket.uploads.lock().unwrap().remove(&self.id);
        self.note.note(None).unwrap();
    }
}

impl MemoryBucket {
    /// Returns one whose uploads can have their bytes come while they go on.
    pub fn for_streams() -> Arc<Self> {
        let bucket = Arc::<Self>::default();
        *bucket.me.lock().unwrap() = Arc::downgrade(&bucket);
        bucket
    }

    /// As [`for_streams`](Self::for_streams), with parts of this length.
    pub fn for_streams_of(part_bytes: u64) -> Arc<Self> {
        let bucket = Self::for_streams();
        bucket.part_bytes.store(part_bytes, Ordering::Relaxed);
        bucket
    }

    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.put_with(key, bytes, Metadata::new());
    }

    pub fn put_with(&self, key: &str, bytes: impl Into<Vec<u8>>, metadata: Metadata) {
        let version = self.next_version.fetch_add(1, Ordering::Relaxed);
        self.objects
            .lock()
            .unwrap()
            .insert(key.into(), Object { bytes: bytes.into(), version, nr_touched: 0, metadata });
    }

    /// Returns the bytes and the metadata of an object.
    pub fn object(&self, key: &str) -> Option<(Vec<u8>, Metadata)> {
        let object = self.objects.lock().unwrap().get(key).cloned()?;
        Some((object.bytes, object.metadata))
    }

    pub fn keys(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }

    /// Returns the uploads in parts that are not over, with their keys.
    pub fn uploads(&self) -> Vec<(String, String)> {
        let uploads = self.uploads.lock().unwrap();
        uploads.iter().map(|(upload, key)| (upload.clone(), key.clone())).collect()
    }

    /// Ends uploads that a killed daemon has left, as a rule of the bucket does.
    pub fn forget_uploads(&self) {
        self.uploads.lock().unwrap().clear();
    }

    /// Has the next changes (uploads, copies, deletions) fail, one after another.
    pub fn fail_changes(&self, faults: impl IntoIterator<Item = ChangeFault>) {
        self.change_faults.lock().unwrap().extend(faults);
    }

    /// Ends what [`fail_changes`](Self::fail_changes) began.
    pub fn fail_no_changes(&self) {
        self.change_faults.lock().unwrap().clear();
    }

    /// Makes a change under its condition, and with the fault that is due.
    fn change(
        &self,
        key: &str,
        expected: &Expected,
        fault: Option<&ChangeFault>,
        make: impl FnOnce(&mut BTreeMap<String, Object>) -> Result<Option<ObjectInfo>, BucketError>,
    ) -> Result<Option<ObjectInfo>, BucketError> {
        *self.trouble.lock().unwrap() = None;
        if let Some(ChangeFault::Refused(error)) = fault {
            *self.trouble.lock().unwrap() = Some(error.to_string());
            return Err(error.clone());
        }
        let mut objects = self.objects.lock().unwrap();
        let there = objects.get(key).map(info_of);
        let holds = match expected {
            Expected::Absent => there.is_none(),
            Expected::Same(info) => there.is_some_and(|there| there.is_same(info)),
            Expected::Anything => true,
        };
        if !holds {
            return Err(BucketError::Changed(key.into()));
        }
        let made = make(&mut objects)?;
        match fault {
            Some(ChangeFault::AnswerLost) => Err(BucketError::Unavailable(format!("{key}: no answer"))),
            _ => Ok(made),
        }
    }

    fn delete_expected(&self, key: &str, expected: &Expected) -> Result<(), BucketError> {
        self.count(&self.deletes)?;
        let removed = self.change(key, expected, self.next_fault().as_ref(), |objects| {
            objects.remove(key);
            Ok(None)
        });
        self.call_hook("DELETE", key);
        let after = self.after_delete.lock().unwrap().take();
        after.into_iter().for_each(|after| after());
        removed.map(|_| ())
    }

    fn next_fault(&self) -> Option<ChangeFault> {
        self.change_faults.lock().unwrap().pop_front()
    }

    fn new_object(&self, bytes: Vec<u8>, metadata: Metadata) -> Object {
        Object { bytes, version: self.next_version.fetch_add(1, Ordering::Relaxed), nr_touched: 0, metadata }
    }

    /// Has reads wait, from now on, for [`answer_reads`](Self::answer_reads).
    pub fn hold_reads(&self) {
        *self.begun.lock().unwrap() = Some(Vec::new());
    }

    /// Returns how many reads wait.
    pub fn nr_begun(&self) -> usize {
        self.begun.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    /// Answers the reads that wait; no more wait from then on.
    pub fn answer_reads(&self) {
        let begun = self.begun.lock().unwrap().take();
        begun.into_iter().flatten().for_each(|read| self.answer(read));
    }

    fn answer(&self, (key, info, range, mut body): BegunRead) {
        let result = self.read(&key, &info, range, &mut |bytes| body.take(bytes));
        body.end(result);
    }

    /// Has another program replace the metadata of an object by the same.
    pub fn touch(&self, key: &str) {
        self.objects.lock().unwrap().get_mut(key).unwrap().nr_touched += 1000;
    }

    pub fn delete(&self, key: &str) {
        self.objects.lock().unwrap().remove(key);
    }

    pub fn fail_with(&self, failure: Option<BucketError>) {
        *self.failure.lock().unwrap() = failure;
    }

    /// Returns the requests so far: for bytes, for attributes, for listings.
    pub fn asked(&self) -> (u64, u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.gets), load(&self.heads), load(&self.lists))
    }

    /// Calls a function at requests.
    pub fn on_request(&self, hook: impl Fn(&str, &str) + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    fn call_hook(&self, method: &str, key: &str) {
        let hook = self.hook.lock().unwrap().clone();
        hook.into_iter().for_each(|hook| hook(method, key));
    }

    fn count(&self, count: &AtomicU64) -> Result<(), BucketError> {
        count.fetch_add(1, Ordering::Relaxed);
        self.failure.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

fn info_of(object: &Object) -> ObjectInfo {
    ObjectInfo {
        size: object.bytes.len() as u64,
        modified: Timestamp {
            seconds: 1_000_000 + object.version as i64 + object.nr_touched,
            nanoseconds: 0,
        },
        etag: Some(format!("\"{}\"", object.version).into()),
        metadata: Some(Arc::new(object.metadata.clone())),
        attributes: None,
    }
}

/// A listing does not tell metadata.
fn listed_info_of(object: &Object) -> ObjectInfo {
    ObjectInfo { metadata: None, ..info_of(object) }
}

impl Bucket for MemoryBucket {
    fn url(&self) -> &str {
        &self.url.0
    }

    fn source_id(&self) -> Option<StoreId> {
        *self.source.lock().unwrap()
    }

    fn endpoint(&self) -> Option<&str> {
        None
    }

    fn head(&self, key: &str) -> Result<ObjectInfo, BucketError> {
        self.count(&self.heads)?;
        let found = self.objects.lock().unwrap().get(key).map(info_of);
        self.call_hook("HEAD", key);
        found.ok_or_else(|| BucketError::NotFound(key.into()))
    }

    fn list(&self, prefix: &str, from: Option<&str>, max: usize) -> Result<ListedPart, BucketError> {
        self.count(&self.lists)?;
        let directory_len = prefix.rfind('/').map_or(0, |at| at + 1);
        let mut part = ListedPart::default();
        let mut last = from.unwrap_or("").to_owned();
        for (key, object) in self.objects.lock().unwrap().iter().filter(|(key, _)| key.starts_with(prefix)) {
            // As S3 does: a delimiter that follows the prefix makes a name of all that it begins.
            let below = &key[prefix.len()..];
            let (shown, info) = match below.find('/') {
                Some(at) => (&key[..=prefix.len() + at], None),
                None => (key.as_str(), Some(listed_info_of(object))),
            };
            if from.is_some_and(|from| shown <= from) || shown == last && !part.names.is_empty() {
                continue;
            }
            if part.names.len() + part.hidden.len() == max {
                part.next = Some(last);
                return Ok(part);
            }
            last = shown.to_owned();
            let name = shown[directory_len..].trim_end_matches('/').to_owned();
            if shown.contains("//") {
                part.hidden.push(shown.to_owned());
            } else {
                part.names.push(ListedName { name, object: info });
            }
        }
        Ok(part)
    }

    fn read(
        &self,
        key: &str,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), BucketError> {
        self.count(&self.gets)?;
        self.call_hook("GET", key);
        let object = self.objects.lock().unwrap().get(key).cloned();
        let object = object.ok_or_else(|| BucketError::NotFound(key.into()))?;
        if !info_of(&object).is_same(info) {
            return Err(BucketError::Changed(key.into()));
        }
        let mut bytes = object.bytes[range.start as usize..range.end as usize].to_vec();
        let less = |nr: u64| nr.checked_sub(1);
        let is_damaged = self.damages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if is_damaged && let Some(byte) = bytes.last_mut() {
            *byte ^= 1;
        }
        bytes.chunks(7001).for_each(take);
        if is_damaged { Err(BucketError::Corrupt(format!("{key}: damaged"))) } else { Ok(()) }
    }

    fn begin_read(&self, key: &str, info: &ObjectInfo, range: Range<u64>, body: Box<dyn ObjectBody>) {
        let read = (key.to_owned(), info.clone(), range, body);
        {
            let mut begun = self.begun.lock().unwrap();
            if let Some(begun) = &mut *begun {
                return begun.push(read);
            }
        }
        self.answer(read);
    }

    fn upload_bytes(&self, size: u64) -> u64 {
        size.min(2 * PART_BYTES)
    }

    fn upload(
        &self,
        key: &str,
        source: &dyn ObjectSource,
        metadata: &Metadata,
        expected: &Expected,
    ) -> Result<ObjectInfo, BucketError> {
        self.count(&self.puts)?;
        self.call_hook("PUT", key);
        self.gate.pass();
        let fault = self.next_fault();
        let failed = |error: std::io::Error| BucketError::Source(format!("{key}: {error}"));
        let upload = (source.size() > PART_BYTES).then(|| {
            let upload = format!("upload-{}", self.next_version.fetch_add(1, Ordering::Relaxed));
            self.uploads.lock().unwrap().insert(upload.clone(), key.to_owned());
            upload
        });
        let stored = (|| {
            upload.as_deref().map_or(Ok(()), |upload| source.note_upload(Some(upload))).map_err(failed)?;
            let mut bytes = vec![0; source.size() as usize];
            for (nr, part) in bytes.chunks_mut(PART_BYTES as usize).enumerate() {
                source.read_at(nr as u64 * PART_BYTES, part).map_err(failed)?;
                if upload.is_some() {
                    self.count(&self.puts)?;
                }
            }
            if matches!(fault, Some(ChangeFault::Crash)) {
                return Err(BucketError::Unavailable(format!("{key}: killed")));
            }
            if upload.is_some() {
                self.count(&self.puts)?;
            }
            let len = bytes.len() as u64;
            let stored = self.change(key, expected, fault.as_ref(), |objects| {
                let object = self.new_object(bytes, metadata.clone());
                let info = info_of(&object);
                objects.insert(key.into(), object);
                Ok(Some(info))
            })?;
            self.written_bytes.fetch_add(len, Ordering::Relaxed);
            Ok(stored.unwrap())
        })();
        if let Some(upload) = &upload
            && !matches!(fault, Some(ChangeFault::Crash))
        {
            self.uploads.lock().unwrap().remove(upload);
            source.note_upload(None).map_err(failed)?;
        }
        stored
    }

    fn part_bytes(&self) -> u64 {
        match self.part_bytes.load(Ordering::Relaxed) {
            0 => PART_BYTES,
            bytes => bytes,
        }
    }

    fn begin_upload(
        &self,
        key: &str,
        metadata: &Metadata,
        expected: &Expected,
        note: Arc<dyn UploadNote>,
    ) -> Result<Arc<dyn PartedUpload>, BucketError> {
        self.count(&self.puts)?;
        note.note(Some(UNKNOWN_UPLOAD)).unwrap();
        let id = format!("upload-{}", self.next_version.fetch_add(1, Ordering::Relaxed));
        self.uploads.lock().unwrap().insert(id.clone(), key.to_owned());
        note.note(Some(&id)).unwrap();
        let bucket = self.me.lock().unwrap().upgrade().expect("a bucket for streams");
        let (key, metadata, expected) = (key.to_owned(), metadata.clone(), expected.clone());
        Ok(Arc::new(MemoryUpload { bucket, key, metadata, expected, id, note, parts: Mutex::default() }))
    }

    fn abort_upload(&self, key: &str, upload: &str) -> Result<(), BucketError> {
        self.count(&self.deletes)?;
        self.abort_failure.lock().unwrap().clone().map_or(Ok(()), Err)?;
        let of = self.uploads.lock().unwrap().remove(upload);
        assert!(of.is_none_or(|of| of == key), "the upload of another key");
        Ok(())
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        self.delete_expected(key, &Expected::Anything)
    }

    fn delete_version(&self, key: &str, info: &ObjectInfo) -> Result<(), BucketError> {
        match self.object(key) {
            Some(_) => self.delete_expected(key, &Expected::Same(info.clone())),
            None => self.delete_expected(key, &Expected::Anything),
        }
    }

    fn copy(
        &self,
        from: &str,
        info: &ObjectInfo,
        to: &str,
        expected: &Expected,
    ) -> Result<ObjectInfo, BucketError> {
        self.count(&self.copies)?;
        self.call_hook("COPY", from);
        let made = self.change(to, expected, self.next_fault().as_ref(), |objects| {
            let object = objects.get(from).cloned().ok_or_else(|| BucketError::NotFound(from.into()))?;
            if !info_of(&object).is_same(info) {
                return Err(BucketError::Changed(from.into()));
            }
            let copy = self.new_object(object.bytes, object.metadata);
            let info = info_of(&copy);
            objects.insert(to.into(), copy);
            Ok(Some(info))
        });
        made.map(Option::unwrap)
    }

    fn keeps_metadata(&self) -> bool {
        true
    }

    fn replaces_metadata(&self, _: u64) -> bool {
        !self.stores_anew.load(Ordering::Relaxed)
    }

    fn replace_metadata(
        &self,
        key: &str,
        info: &ObjectInfo,
        metadata: &Metadata,
    ) -> Result<ObjectInfo, BucketError> {
        self.count(&self.copies)?;
        let expected = Expected::Same(info.clone());
        let made = self.change(key, &expected, self.next_fault().as_ref(), |objects| {
            let object = objects.get_mut(key).ok_or_else(|| BucketError::NotFound(key.into()))?;
            object.metadata = metadata.clone();
            object.nr_touched += 1000;
            Ok(Some(info_of(object)))
        });
        made.map(Option::unwrap)
    }

    fn figures(&self) -> BucketFigures {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (gets, heads, lists) = self.asked();
        BucketFigures {
            gets,
            heads,
            lists,
            puts: load(&self.puts),
            copies: load(&self.copies),
            deletes: load(&self.deletes),
            written_bytes: load(&self.written_bytes),
            ..BucketFigures::default()
        }
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap().clone()
    }
}
