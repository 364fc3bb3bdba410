//! The state shared by all requests to a bucket: the store, the key prefix, and counters. Also maps
//! errors of `object_store` to `BucketError`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Attributes, Error, GetOptions, GetRange, ListResult, MultipartId, ObjectMeta};
use tokio::runtime::Handle;
use umemcg_vfs::Timestamp;
use umemcg_vfs::bucket::{BucketError, ObjectInfo};

use crate::checksum::{ASKS_SUM, ExpectedChecksum, RunningSum};
use crate::http_layer::{RequestCounts, chain};
use crate::listing_filter::{HiddenKeys, ListingPrefix};
use crate::metadata::{mark_of, metadata_of};
use crate::pace::{PATIENCE, RETRY_TIMEOUT};
use crate::refusal::{Refusal, says_no_upload};
use crate::request_extensions::{Tenant, filtered_of, uncarried};
use crate::request_patch::RequestPatch;
use crate::store::Store;
use crate::upload_list::uploads_of;

/// Longest ETag, in bytes; the charge for a name leaves room for it.
const ETAG_BYTES_MAX: usize = 128;
/// Longest error text, in bytes.
const TEXT_BYTES_MAX: usize = 1024;
/// Addresses of the metadata services that give cloud machines their credentials.
const MACHINE_SERVICES: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];
/// Lookups of an object while HEAD and LIST contradict each other.
const NR_ROUNDS: u32 = 10;
/// The first pause between two lookups; each pause is longer by as much.
const ROUND_PAUSE: Duration = Duration::from_millis(5);
/// Most empty listing pages in a row.
const NR_EMPTY_PARTS_MAX: usize = 100;
/// Total time limit of a HEAD request or of a listing page: the time of all retries, with the last
/// wait for a turn and for the response.
const ANSWER_TIMEOUT: Duration =
    RETRY_TIMEOUT.saturating_add(PATIENCE).saturating_add(Duration::from_secs(30));
/// Total time limit for reading a range of an object, all retries together: the silence timeout
/// does not stop a store sending a byte now and then.
const READ_TIMEOUT: Duration = Duration::from_secs(900);

/// See the module text.
pub(crate) struct AskedBucket {
    pub(crate) store: Store,
    /// Empty, or ends with a slash.
    pub(crate) prefix: String,
    pub(crate) url: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) counts: Arc<RequestCounts>,
    pub(crate) runtime: Handle,
    /// Part length of a multipart upload, unless that makes too many parts.
    pub(crate) part_bytes: u64,
    /// The store has refused a conditional deletion. Relaxed: it stands alone.
    pub(crate) has_plain_deletes: AtomicBool,
}

/// A key in the form of `object_store`.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Without the trailing slash.
    pub(crate) path: Path,
    /// The text of that slash in a request.
    pub(crate) last_slash: &'static str,
}

impl Place {
    pub(crate) fn patch(&self) -> RequestPatch {
        RequestPatch { after_key: self.last_slash, ..RequestPatch::default() }
    }
}

/// An existing object.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) info: ObjectInfo,
    /// The store's generation of the object.
    pub(crate) version: Option<String>,
    /// All attributes, including the headers that say how to read its bytes.
    pub(crate) attributes: Attributes,
}

impl AskedBucket {
    /// Returns a key with the prefix, without a trailing slash.
    pub(crate) fn path(&self, key: &str) -> Result<Path, BucketError> {
        let not_found = |error| BucketError::NotFound(format!("{}: {key:?}: {error}", self.url));
        Path::parse(format!("{}{key}", self.prefix)).map_err(not_found)
    }

    pub(crate) fn place(&self, key: &str) -> Result<Place, BucketError> {
        let path = self.path(key)?;
        let last_slash = match (key.ends_with('/'), self.store.last_slash) {
            (false, _) => "",
            (true, Some(slash)) => slash,
            (true, None) => {
                let text = format!("{}: {key:?}: this store has no keys that end with a slash", self.url);
                return Err(BucketError::Denied(text));
            }
        };
        Ok(Place { path, last_slash })
    }

    /// Waits for a response, at most `ANSWER_TIMEOUT`.
    pub(crate) fn in_time<T>(
        &self,
        what: &str,
        key: &str,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, BucketError> {
        Ok(self.answer(what, key, answer)?)
    }

    /// As [`in_time`](Self::in_time), with the HTTP status of a failure.
    pub(crate) fn answer<T>(
        &self,
        what: &str,
        key: &str,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Refusal> {
        self.runtime.block_on(self.awaited(what, key, answer))
    }

    async fn awaited<T>(
        &self,
        what: &str,
        key: &str,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Refusal> {
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(answer) => answer.map_err(|error| Refusal::new(self.failed(what, key, &error), &error)),
            Err(_) => {
                self.counts.failures.fetch_add(1, Ordering::Relaxed);
                let seconds = ANSWER_TIMEOUT.as_secs();
                let text = format!("{what} of {key:?} in {}: no answer in {seconds} s", self.url);
                Err(BucketError::Unavailable(text).into())
            }
        }
    }

    /// Sends a HEAD for an object; [`BucketError::NotFound`] if there is none.
    pub(crate) fn find(&self, key: &str, place: &Place) -> Result<Found, BucketError> {
        let extensions = Tenant::current().extensions_with(place.patch());
        let options = GetOptions { head: true, extensions, ..GetOptions::default() };
        let answer = self.in_time("HEAD", key, self.store.objects.get_opts(&place.path, options))?;
        Ok(found_of(&answer.meta, &answer.attributes))
    }

    /// Like [`find`](Self::find), with `None` for a missing object.
    pub(crate) fn find_any(&self, key: &str, place: &Place) -> Result<Option<Found>, BucketError> {
        match self.find(key, place) {
            Ok(found) => Ok(Some(found)),
            Err(BucketError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Like [`find`](Self::find), after the store reported success of the request `what`: a missing
    /// object is a failure of the store.
    pub(crate) fn find_stored(&self, what: &str, key: &str, place: &Place) -> Result<Found, BucketError> {
        self.find_any(key, place)?.ok_or_else(|| {
            BucketError::Unavailable(format!("{what} of {key:?} in {}: it is not there", self.url))
        })
    }

    /// Confirms the result of a HEAD with a listing: a gateway that has lost its route answers 404,
    /// and a page in place of the store may have an ETag.
    pub(crate) fn confirm(
        &self,
        (key, place): (&str, &Place),
        found: Option<&Found>,
    ) -> Result<(), BucketError> {
        let is_confirmed = self.is_listed_as(found, (key, place), true)?;
        if is_confirmed { Ok(()) } else { Err(self.contradiction("HEAD", key)) }
    }

    fn contradiction(&self, what: &str, key: &str) -> BucketError {
        BucketError::Unavailable(format!("{what} of {key:?} in {}: the listing contradicts it", self.url))
    }

    /// Returns whether a listing has this version of an object, or for `None` no object. A version
    /// of the same size is enough if it `may_differ`: some gateways list other ETags. Always `true`
    /// for a local directory, which has no gateway in between.
    pub(crate) fn is_listed_as(
        &self,
        found: Option<&Found>,
        (key, place): (&str, &Place),
        may_differ: bool,
    ) -> Result<bool, BucketError> {
        self.runtime.block_on(self.look_in_listing(Tenant::current(), found, (key, place), may_differ))
    }

    /// As [`is_listed_as`](Self::is_listed_as), for a task.
    async fn look_in_listing(
        &self,
        tenant: Tenant,
        found: Option<&Found>,
        (key, place): (&str, &Place),
        may_differ: bool,
    ) -> Result<bool, BucketError> {
        if self.store.lists.is_none() {
            return Ok(true);
        }
        // The key sorts first among all keys with this prefix.
        let (whole, mut next) = (format!("{}{key}", self.prefix), None);
        for _ in 0..NR_EMPTY_PARTS_MAX {
            let part = self.part(tenant, &whole, next.as_deref(), 1);
            let part = self.awaited("LIST", key, part).await;
            let (listed, goes_on, hidden) = part.map_err(|refusal| match refusal.error {
                BucketError::NotFound(what) => BucketError::Unavailable(what),
                error => error,
            })?;
            if let Some(meta) = listed.objects.iter().find(|meta| meta.location == place.path) {
                let is_same = |found: &Found| found.info.is_same(&info_of(meta));
                let is_as_long = |found: &Found| may_differ && found.info.size == meta.size;
                return Ok(found.is_some_and(|found| is_same(found) || is_as_long(found)));
            }
            // Without its version.
            if hidden.contains(&whole) {
                return Ok(found.is_some());
            }
            next = goes_on;
            let is_empty =
                listed.objects.is_empty() && listed.common_prefixes.is_empty() && hidden.is_empty();
            if next.is_none() || !is_empty {
                return Ok(found.is_none());
            }
        }
        let url = &self.url;
        Err(BucketError::Unavailable(format!("HEAD of {key:?} in {url}: its listing has no end")))
    }

    /// As [`find_any`](Self::find_any), confirmed by a listing, except for an object that
    /// `is_believed` without.
    pub(crate) fn find_for_sure(
        &self,
        (key, place): (&str, &Place),
        is_believed: impl Fn(&Found) -> bool,
    ) -> Result<Option<Found>, BucketError> {
        for round in 1..=NR_ROUNDS {
            let found = self.find_any(key, place)?;
            let may_differ = round == NR_ROUNDS;
            if found.as_ref().is_some_and(&is_believed)
                || self.is_listed_as(found.as_ref(), (key, place), may_differ)?
            {
                return Ok(found);
            }
            // Other programs may create, replace and remove it repeatedly.
            self.runtime.block_on(async { tokio::time::sleep(ROUND_PAUSE * round).await });
        }
        Err(self.contradiction("HEAD", key))
    }

    /// As [`changed`](Self::changed), unless a listing contradicts it.
    pub(crate) fn changed_for_sure(
        &self,
        what: &str,
        (key, place): (&str, &Place),
        found: Option<&Found>,
    ) -> BucketError {
        let confirmed = self.confirm((key, place), found);
        confirmed.map_or_else(|error| error, |()| self.changed(what, key, found))
    }

    /// Returns a listing page, the token of the next page, and the hidden keys: keys unusable as
    /// paths, and keys left out by `object_store`.
    pub(crate) async fn part(
        &self,
        tenant: Tenant,
        prefix: &str,
        from: Option<&str>,
        max: usize,
    ) -> Result<(ListResult, Option<String>, Vec<String>), Error> {
        match &self.store.lists {
            Some(store) => {
                let options = PaginatedListOptions {
                    delimiter: Some("/".into()),
                    max_keys: Some(max),
                    page_token: from.map(str::to_owned),
                    extensions: tenant.extensions_with(ListingPrefix(prefix.to_owned())),
                    ..PaginatedListOptions::default()
                };
                let asked = Some(prefix).filter(|prefix| !prefix.is_empty());
                let mut listed = store.list_paginated(asked, options).await?;
                let HiddenKeys(hidden) = filtered_of(&mut listed.result.extensions)?;
                check_prefix(prefix, &listed.result, &hidden)?;
                Ok((listed.result, listed.page_token, hidden))
            }
            None => {
                let directory = prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
                let directory = Path::parse(directory)?;
                let mut listed = self.store.objects.list_with_delimiter(Some(&directory)).await?;
                listed.objects.retain(|object| object.location.as_ref().starts_with(prefix));
                listed.common_prefixes.retain(|below| below.as_ref().starts_with(prefix));
                Ok((listed, None, Vec::new()))
            }
        }
    }

    /// Returns the unfinished multipart uploads of a key; none for a store without such lists.
    pub(crate) fn uploads(&self, key: &str, place: &Place) -> Result<Vec<String>, BucketError> {
        let Some(lists) = self.upload_lists() else { return Ok(Vec::new()) };
        self.in_time("LIST", key, uploads_of(Tenant::current(), lists, place.path.as_ref()))
    }

    fn upload_lists(&self) -> Option<&dyn PaginatedListStore> {
        self.store.lists.as_deref().filter(|_| self.store.takes_conditions)
    }

    /// Aborts a multipart upload. An upload already ended is no error. A 404 alone does not prove
    /// its end: it may come from a gateway without a route to the store.
    pub(crate) async fn abort(
        &self,
        tenant: Tenant,
        store: &Arc<dyn MultipartStore>,
        path: &Path,
        upload: &MultipartId,
    ) -> Result<(), Error> {
        let aborted = uncarried(tenant.extensions(), store.abort_multipart(path, upload));
        let error = match aborted.await {
            Err(error @ Error::NotFound { .. }) => error,
            ended => return ended,
        };
        let is_over = match self.upload_lists() {
            _ if says_no_upload(&error) => true,
            Some(lists) => !uploads_of(tenant, lists, path.as_ref()).await?.contains(upload),
            None => false,
        };
        if is_over { Ok(()) } else { Err(error) }
    }

    /// Reads a range of an object into `take`. A read of the whole object fails on a checksum
    /// mismatch if the store reports a checksum.
    pub(crate) async fn read(
        &self,
        tenant: Tenant,
        key: &str,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), BucketError> {
        let place = self.place(key)?;
        let wanted = range.end - range.start;
        let read = self.read_range(tenant, &place.path, info, range, take);
        let read = tokio::time::timeout(READ_TIMEOUT, read).await;
        let read =
            read.unwrap_or_else(|elapsed| Err(Error::Generic { store: "GET", source: Box::new(elapsed) }));
        let what = match read.map_err(|error| self.failed("GET", key, &error))? {
            Ok((len, Ok(()))) if len == wanted => {
                self.counts.read_bytes.fetch_add(len, Ordering::Relaxed);
                return Ok(());
            }
            Ok((len, Err(what))) if len == wanted => what,
            Ok((len, _)) => format!("{len} bytes came of {wanted}"),
            // A page in place of the store may have an ETag.
            Err(other) => {
                let is_listed = self.look_in_listing(tenant, Some(&other), (key, &place), true).await?;
                return Err(match is_listed {
                    true => self.changed("GET", key, Some(&other)),
                    false => self.contradiction("GET", key),
                });
            }
        };
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        Err(BucketError::Corrupt(format!("GET of {key:?} in {}: {what}", self.url)))
    }

    /// As [`read`](Self::read); returns the number of bytes received and the result of the
    /// checksum, or the other version that the store sent.
    async fn read_range(
        &self,
        tenant: Tenant,
        path: &Path,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<Result<(u64, Result<(), String>), Found>, Error> {
        // The ETag of the response is compared below, too.
        let if_match = strong_etag(info).map(str::to_owned);
        let wanted = range.end - range.start;
        // A range has no checksum. S3 also sends none for a range that covers the whole object.
        let is_whole = wanted == info.size;
        let range = (!is_whole).then_some(GetRange::Bounded(range));
        let headers = Vec::from_iter((is_whole && self.store.takes_conditions).then_some(ASKS_SUM));
        let extensions = tenant.extensions_with(RequestPatch { headers, ..RequestPatch::default() });
        let options = GetOptions { if_match, range, extensions, ..GetOptions::default() };
        let mut answer = self.store.objects.get_opts(path, options).await?;
        if !info_of(&answer.meta).is_same(info) {
            return Ok(Err(found_of(&answer.meta, &answer.attributes)));
        }
        let expected = answer.extensions.remove::<ExpectedChecksum>();
        let mut sum = expected.filter(|_| is_whole).map(RunningSum::new);
        let (mut body, mut len) = (answer.into_stream(), 0);
        // A store sending more than was requested may never end.
        while len <= wanted
            && let Some(bytes) = body.next().await
        {
            let bytes = bytes?;
            len += bytes.len() as u64;
            sum.iter_mut().for_each(|sum| sum.take(&bytes));
            take(&bytes);
        }
        Ok(Ok((len, sum.map_or(Ok(()), RunningSum::end))))
    }

    pub(crate) fn failed(&self, what: &str, key: &str, error: &Error) -> BucketError {
        let cause = chain(error);
        // For a listing, `object_store` reports the status only in the error text.
        let says = |status: &str| what == "LIST" && cause.contains(status);
        let advice = advice_on(&self.url, &cause);
        let mut text = format!("{what} of {key:?} in {}: {advice}{cause}", self.url);
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        let error = match error {
            Error::NotFound { .. } => return BucketError::NotFound(text),
            Error::Precondition { .. } | Error::NotModified { .. } | Error::AlreadyExists { .. } => {
                return BucketError::Changed(text);
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => BucketError::Denied(text),
            _ if says("404 Not Found") => return BucketError::NotFound(text),
            _ if says("403 Forbidden") || says("401 Unauthorized") => BucketError::Denied(text),
            _ => BucketError::Unavailable(text),
        };
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        error
    }

    /// As [`failed`](Self::failed), for a refusal whose stated reason is wrong or cannot be
    /// checked.
    pub(crate) fn refused(&self, what: &str, key: &str, error: &Error) -> BucketError {
        match self.failed(what, key, error) {
            BucketError::Changed(text) | BucketError::NotFound(text) => {
                self.counts.failures.fetch_add(1, Ordering::Relaxed);
                BucketError::Unavailable(text)
            }
            failed => failed,
        }
    }

    /// Returns the error for an object whose version is not the expected one.
    pub(crate) fn changed(&self, what: &str, key: &str, found: Option<&Found>) -> BucketError {
        let is = match found.map(|found| &found.info) {
            None => "it is not there any more".to_owned(),
            Some(ObjectInfo { etag: Some(etag), .. }) => format!("the store has {etag}"),
            Some(ObjectInfo { size, .. }) => format!("the store has another one, of {size} bytes"),
        };
        BucketError::Changed(format!("{what} of {key:?} in {}: {is}", self.url))
    }
}

impl Found {
    /// Returns the mark of the upload of this object, if umemcg stored it.
    pub(crate) fn mark(&self) -> Option<&str> {
        self.info.metadata.as_deref().and_then(mark_of)
    }
}

/// Refuses a listing with keys that were not requested: names cut from them would be made up.
fn check_prefix(prefix: &str, listed: &ListResult, hidden: &[String]) -> Result<(), Error> {
    // The directory's own object has lost its slash.
    let is_own = |path: &str| prefix.strip_suffix('/') == Some(path);
    let objects = listed.objects.iter().map(|object| object.location.as_ref());
    let others = listed.common_prefixes.iter().map(Path::as_ref).chain(hidden.iter().map(String::as_str));
    if objects.filter(|path| !is_own(path)).chain(others).all(|key| key.starts_with(prefix)) {
        return Ok(());
    }
    let what = format!("the store's listing of {prefix:?} has other keys");
    Err(Error::Generic { store: "LIST", source: what.into() })
}

/// Returns advice for missing credentials; `object_store` looks for them last at the metadata
/// service of the cloud machine.
fn advice_on(url: &str, cause: &str) -> &'static str {
    if !MACHINE_SERVICES.iter().any(|service| cause.contains(service)) {
        return "";
    }
    match url.split(':').next() {
        Some("s3" | "s3a") => {
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give --anonymous; "
        }
        Some("gs") => "no credentials: set GOOGLE_APPLICATION_CREDENTIALS, or give --anonymous; ",
        _ => {
            "no credentials: set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give --anonymous; "
        }
    }
}

/// Returns an ETag usable in a precondition: a weak one never matches (RFC 9110, 13.1.1).
pub(crate) fn strong_etag(info: &ObjectInfo) -> Option<&str> {
    info.etag.as_deref().filter(|etag| !etag.starts_with("W/"))
}

/// Returns an ETag in header form; Azure lists it without quotes. Returns `None` if it is too long
/// or not valid in a header. Also for an empty ETag, which gateways without checksums send for
/// every version.
pub(crate) fn etag_of(text: &str) -> Option<Arc<str>> {
    if text.len() > ETAG_BYTES_MAX || !text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return None;
    }
    let bare = text.strip_prefix("W/").unwrap_or(text);
    if bare.trim_matches('"').trim().is_empty() {
        return None;
    }
    let is_quoted = text.starts_with('"') || text.starts_with("W/");
    Some(if is_quoted { text.into() } else { format!("\"{text}\"").into() })
}

/// Returns the object information available from both HEAD and LIST.
pub(crate) fn info_of(meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo {
        size: meta.size,
        // Listings have fractions of a second, headers do not.
        modified: Timestamp { seconds: meta.last_modified.timestamp(), nanoseconds: 0 },
        etag: meta.e_tag.as_deref().and_then(etag_of),
        metadata: None,
        attributes: None,
    }
}

fn found_of(meta: &ObjectMeta, attributes: &Attributes) -> Found {
    let info = ObjectInfo { metadata: Some(Arc::new(metadata_of(attributes))), ..info_of(meta) };
    Found { info, version: meta.version.clone(), attributes: attributes.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_credentials_come_with_advice() {
        let cause = "error sending PUT http://169.254.169.254/latest/api/token";
        assert!(advice_on("s3://b/p", cause).contains("AWS_ACCESS_KEY_ID"));
        assert!(advice_on("gs://b", cause).contains("GOOGLE_APPLICATION_CREDENTIALS"));
        assert!(advice_on("az://b", cause).contains("AZURE_STORAGE_ACCOUNT_KEY"));
        assert_eq!(advice_on("s3://b/p", "error sending PUT http://127.0.0.1/b/p"), "");
    }

    #[test]
    fn etags_are_as_headers_have_them() {
        let etag = |text: &str| etag_of(text).map(|etag| etag.to_string());
        assert_eq!(etag("\"a\"").as_deref(), Some("\"a\""));
        assert_eq!(etag("0x8D").as_deref(), Some("\"0x8D\""), "as Azure lists them");
        assert_eq!(etag("W/\"a\"").as_deref(), Some("W/\"a\""));
        for none in ["a\nb", "", "\"\"", "W/\"\"", "\" \""] {
            assert_eq!(etag(none), None, "{none:?}");
        }
        assert_eq!(etag(&"x".repeat(ETAG_BYTES_MAX + 1)), None);
    }
}
