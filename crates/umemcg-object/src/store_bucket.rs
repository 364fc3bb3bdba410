//! A prefix of a bucket, asked through the library `object_store`.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::runtime::Handle;
use umemcg_vfs::Timestamp;
use umemcg_vfs::object::{
    Bucket, BucketError, BucketFigures, Expected, ListedName, ListedPart, Metadata, ObjectBody, ObjectInfo,
    ObjectSource,
};

use crate::http_layer::{HIDDEN, RequestCounts, chain};

/// Longest ETag, in bytes; what names are charged for has room for it.
const ETAG_BYTES_MAX: usize = 128;
/// Longest text of a failure, in bytes.
const TEXT_BYTES_MAX: usize = 1024;
/// How long a request for the facts about an object, or for a part of a listing, may take in all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// A store with the way in which it lists.
#[derive(Clone)]
pub(crate) struct Listing {
    store: Arc<dyn ObjectStore>,
    /// In parts; `None`: all at once.
    parts: Option<Arc<dyn PaginatedListStore>>,
}

impl Listing {
    pub(crate) fn paginated(store: impl ObjectStore + PaginatedListStore) -> Self {
        let store = Arc::new(store);
        Self { parts: Some(Arc::clone(&store) as _), store }
    }

    pub(crate) fn whole(store: impl ObjectStore) -> Self {
        Self { store: Arc::new(store), parts: None }
    }
}

/// See the module text.
pub struct StoreBucket {
    asked: Arc<AskedBucket>,
    runtime: Handle,
}

/// What requests under way share with the bucket.
struct AskedBucket {
    listing: Listing,
    /// Empty, or with a slash at its end.
    prefix: String,
    url: String,
    endpoint: Option<String>,
    counts: Arc<RequestCounts>,
}

impl fmt::Debug for StoreBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBucket")
            .field("url", &self.asked.url)
            .field("endpoint", &self.asked.endpoint)
            .finish()
    }
}

impl StoreBucket {
    pub(crate) fn new(
        listing: Listing,
        mut prefix: String,
        (url, endpoint): (String, Option<String>),
        counts: Arc<RequestCounts>,
        runtime: Handle,
    ) -> Self {
        if !prefix.is_empty() && !prefix.ends_with('/') {
            prefix.push('/');
        }
        Self { asked: Arc::new(AskedBucket { listing, prefix, url, endpoint, counts }), runtime }
    }

    /// Returns a bucket of a store that a program has made itself, for tests.
    ///
    /// # Errors
    /// The system's, when the threads for stores cannot be started.
    pub fn of_store(store: impl ObjectStore, url: &str, prefix: &str) -> std::io::Result<Self> {
        let runtime = crate::runtime::runtime()?;
        let listing = Listing::whole(store);
        Ok(Self::new(listing, prefix.into(), (url.into(), None), Arc::default(), runtime))
    }
}

impl StoreBucket {
    /// Waits for an answer, but not for one that never ends.
    fn in_time<T>(&self, what: &str, key: &str, answer: impl Future<Output = T>) -> Result<T, BucketError> {
        let timed = async { tokio::time::timeout(ANSWER_TIMEOUT, answer).await };
        self.runtime.block_on(timed).map_err(|_| {
            self.asked.counts.failures.fetch_add(1, Ordering::Relaxed);
            let seconds = ANSWER_TIMEOUT.as_secs();
            BucketError::Unavailable(format!(
                "{what} of {key:?} in {}: no answer in {seconds} s",
                self.asked.url
            ))
        })
    }
}

impl AskedBucket {
    fn key(&self, key: &str) -> Result<Path, BucketError> {
        let not_found = |error| BucketError::NotFound(format!("{}: {key:?}: {error}", self.url));
        Path::parse(format!("{}{key}", self.prefix)).map_err(not_found)
    }

    fn failed(&self, what: &str, key: &str, error: &Error) -> BucketError {
        let cause = chain(error);
        // Of a listing the library tells no more than the status in the text.
        let says = |status: &str| what == "LIST" && cause.contains(status);
        let mut text = format!("{} of {:?} in {}: {}", what, key, self.url, cause);
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        let error = match error {
            Error::NotFound { .. } => return BucketError::NotFound(text),
            Error::Precondition { .. } | Error::NotModified { .. } => return BucketError::Changed(text),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => BucketError::Denied(text),
            _ if says("404 Not Found") => return BucketError::NotFound(text),
            _ if says("403 Forbidden") || says("401 Unauthorized") => BucketError::Denied(text),
            _ => BucketError::Unavailable(text),
        };
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        error
    }

    fn not_yet(&self, what: &str, key: &str) -> BucketError {
        BucketError::Denied(format!("{what} of {key:?} in {}: not supported yet", self.url))
    }

    async fn part(
        &self,
        prefix: &str,
        from: Option<&str>,
        max: usize,
    ) -> Result<(ListResult, Option<String>), Error> {
        match &self.listing.parts {
            Some(store) => {
                let options = PaginatedListOptions {
                    delimiter: Some("/".into()),
                    max_keys: Some(max),
                    page_token: from.map(str::to_owned),
                    ..PaginatedListOptions::default()
                };
                let listed = store.list_paginated(Some(prefix).filter(|p| !p.is_empty()), options).await?;
                Ok((listed.result, listed.page_token))
            }
            None => {
                let directory = prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
                let directory = Path::parse(directory)?;
                let mut listed = self.listing.store.list_with_delimiter(Some(&directory)).await?;
                listed.objects.retain(|object| object.location.as_ref().starts_with(prefix));
                listed.common_prefixes.retain(|below| below.as_ref().starts_with(prefix));
                Ok((listed, None))
            }
        }
    }

    /// Reads a range of an object into `take`.
    async fn read(
        &self,
        key: &str,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), BucketError> {
        let path = self.key(key)?;
        let wanted = range.end - range.start;
        let read = self.read_range(&path, info, range, take).await;
        match read.map_err(|error| self.failed("GET", key, &error))? {
            Ok(len) if len == wanted => {
                self.counts.read_bytes.fetch_add(len, Ordering::Relaxed);
                Ok(())
            }
            Ok(len) => {
                self.counts.failures.fetch_add(1, Ordering::Relaxed);
                let url = &self.url;
                Err(BucketError::Corrupt(format!("GET of {key:?} in {url}: {len} bytes came of {wanted}")))
            }
            Err(what) => Err(BucketError::Changed(format!("GET of {key:?} in {}: {what}", self.url))),
        }
    }

    /// As [`read`](Self::read); returns how many bytes came, or how the store sent something else.
    async fn read_range(
        &self,
        path: &Path,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<Result<u64, String>, Error> {
        // A weak ETag never matches (RFC 9110, 13.1.1); what came is compared below.
        let if_match = info.etag.as_deref().filter(|etag| !etag.starts_with("W/")).map(str::to_owned);
        let wanted = range.end - range.start;
        let options = GetOptions { if_match, range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let answer = self.listing.store.get_opts(path, options).await?;
        let found = info_of(&answer.meta);
        if !found.is_same(info) {
            return Ok(Err(format!("the store sent {:?} in place of {:?}", found.etag, info.etag)));
        }
        let (mut body, mut len) = (answer.into_stream(), 0);
        // One that sends more than was asked for may never end.
        while len <= wanted
            && let Some(bytes) = body.next().await
        {
            let bytes = bytes?;
            len += bytes.len() as u64;
            take(&bytes);
        }
        Ok(Ok(len))
    }
}

/// Returns an ETag as headers have it: Azure lists it without quotes. One that is longer than any
/// has reason to be, or that no header can have, is none.
fn etag_of(text: &str) -> Option<Arc<str>> {
    if text.len() > ETAG_BYTES_MAX || !text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return None;
    }
    let is_quoted = text.starts_with('"') || text.starts_with("W/");
    Some(if is_quoted { text.into() } else { format!("\"{text}\"").into() })
}

fn info_of(meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo {
        size: meta.size,
        // Listings tell fractions of a second that headers do not.
        modified: Timestamp { seconds: meta.last_modified.timestamp(), nanoseconds: 0 },
        etag: meta.e_tag.as_deref().and_then(etag_of),
        metadata: None,
    }
}

impl Bucket for StoreBucket {
    fn url(&self) -> &str {
        &self.asked.url
    }

    fn endpoint(&self) -> Option<&str> {
        self.asked.endpoint.as_deref()
    }

    fn head(&self, key: &str) -> Result<ObjectInfo, BucketError> {
        let path = self.asked.key(key)?;
        let answer = self.in_time("HEAD", key, self.asked.listing.store.head(&path))?;
        answer.map(|meta| info_of(&meta)).map_err(|error| self.asked.failed("HEAD", key, &error))
    }

    fn list(&self, prefix: &str, from: Option<&str>, max: usize) -> Result<ListedPart, BucketError> {
        let whole = format!("{}{prefix}", self.asked.prefix);
        let directory_len = whole.rfind('/').map_or(0, |at| at + 1);
        let listing = async {
            let part = self.asked.part(&whole, from, max).await?;
            Ok((part, HIDDEN.with(RefCell::take)))
        };
        let listed = self.in_time("LIST", prefix, HIDDEN.scope(RefCell::default(), listing))?;
        let ((result, next), hidden) = listed.map_err(|error| self.asked.failed("LIST", prefix, &error))?;
        // Empty for the object that stands for the directory itself: the library leaves its slash
        // out.
        let name_of = |path: &Path| path.as_ref().get(directory_len..).unwrap_or_default().to_owned();
        let objects = result
            .objects
            .iter()
            .map(|meta| ListedName { name: name_of(&meta.location), object: Some(info_of(meta)) });
        let prefixes =
            result.common_prefixes.iter().map(|path| ListedName { name: name_of(path), object: None });
        let mut names: Vec<_> = objects.chain(prefixes).collect();
        // In the order of their keys; a directory's ends with a slash.
        let key = |listed: &ListedName| listed.name.clone() + if listed.object.is_none() { "/" } else { "" };
        names.sort_by_cached_key(key);
        let hidden = hidden.into_iter().map(|key| match key.strip_prefix(&self.asked.prefix) {
            Some(below) => below.to_owned(),
            None => key,
        });
        Ok(ListedPart { names, hidden: hidden.collect(), next })
    }

    fn read(
        &self,
        key: &str,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), BucketError> {
        self.runtime.block_on(self.asked.read(key, info, range, take))
    }

    fn begin_read(&self, key: &str, info: &ObjectInfo, range: Range<u64>, mut body: Box<dyn ObjectBody>) {
        let (asked, key, info) = (Arc::clone(&self.asked), key.to_owned(), info.clone());
        drop(self.runtime.spawn(async move {
            let result = asked.read(&key, &info, range, &mut |bytes| body.take(bytes)).await;
            body.end(result);
        }));
    }

    fn upload_bytes(&self, _: u64) -> u64 {
        0
    }

    fn upload(
        &self,
        key: &str,
        _: &dyn ObjectSource,
        _: &Metadata,
        _: &Expected,
    ) -> Result<ObjectInfo, BucketError> {
        Err(self.asked.not_yet("PUT", key))
    }

    fn abort_upload(&self, key: &str, _: &str) -> Result<(), BucketError> {
        Err(self.asked.not_yet("DELETE", key))
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        Err(self.asked.not_yet("DELETE", key))
    }

    fn copy(&self, from: &str, _: &ObjectInfo, _: &str, _: &Expected) -> Result<ObjectInfo, BucketError> {
        Err(self.asked.not_yet("COPY", from))
    }

    fn figures(&self) -> BucketFigures {
        self.asked.counts.figures()
    }

    fn trouble(&self) -> Option<String> {
        self.asked.counts.trouble()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_as_headers_have_them() {
        let etag = |text: &str| etag_of(text).map(|etag| etag.to_string());
        assert_eq!(etag("\"a\"").as_deref(), Some("\"a\""));
        assert_eq!(etag("0x8D").as_deref(), Some("\"0x8D\""), "as Azure lists them");
        assert_eq!(etag("W/\"a\"").as_deref(), Some("W/\"a\""));
        assert_eq!(etag("a\nb"), None);
        assert_eq!(etag(&"x".repeat(ETAG_BYTES_MAX + 1)), None);
    }
}
