//! A bucket in memory that counts, can be changed, and fails when it is told to.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use umemcg_vfs::Timestamp;
use umemcg_vfs::object::{
    Bucket, BucketError, BucketFigures, ListedName, ListedPart, ObjectBody, ObjectInfo,
};

#[derive(Clone)]
struct Object {
    bytes: Vec<u8>,
    version: u64,
}

#[derive(Default)]
pub struct MemoryBucket {
    objects: Mutex<BTreeMap<String, Object>>,
    next_version: AtomicU64,
    pub gets: AtomicU64,
    pub heads: AtomicU64,
    pub lists: AtomicU64,
    /// Every request fails with this.
    pub failure: Mutex<Option<BucketError>>,
}

impl std::fmt::Debug for MemoryBucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryBucket").finish_non_exhaustive()
    }
}

impl MemoryBucket {
    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        let version = self.next_version.fetch_add(1, Ordering::Relaxed);
        self.objects.lock().unwrap().insert(key.into(), Object { bytes: bytes.into(), version });
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

    fn count(&self, count: &AtomicU64) -> Result<(), BucketError> {
        count.fetch_add(1, Ordering::Relaxed);
        self.failure.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

fn info_of(object: &Object) -> ObjectInfo {
    ObjectInfo {
        size: object.bytes.len() as u64,
        modified: Timestamp { seconds: 1_000_000 + object.version as i64, nanoseconds: 0 },
        etag: Some(format!("\"{}\"", object.version).into()),
    }
}

impl Bucket for MemoryBucket {
    fn url(&self) -> &str {
        "memory://bucket"
    }

    fn endpoint(&self) -> Option<&str> {
        None
    }

    fn head(&self, key: &str) -> Result<ObjectInfo, BucketError> {
        self.count(&self.heads)?;
        let objects = self.objects.lock().unwrap();
        objects.get(key).map(info_of).ok_or_else(|| BucketError::NotFound(key.into()))
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
                None => (key.as_str(), Some(info_of(object))),
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
        let object = self.objects.lock().unwrap().get(key).cloned();
        let object = object.ok_or_else(|| BucketError::NotFound(key.into()))?;
        if !info_of(&object).is_same(info) {
            return Err(BucketError::Changed(key.into()));
        }
        object.bytes[range.start as usize..range.end as usize].chunks(7001).for_each(take);
        Ok(())
    }

    fn begin_read(&self, key: &str, info: &ObjectInfo, range: Range<u64>, mut body: Box<dyn ObjectBody>) {
        let result = self.read(key, info, range, &mut |bytes| body.take(bytes));
        body.end(result);
    }

    fn figures(&self) -> BucketFigures {
        let (gets, heads, lists) = self.asked();
        BucketFigures { gets, heads, lists, ..BucketFigures::default() }
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}
