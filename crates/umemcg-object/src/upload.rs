//! Uploads an object to the store.
//!
//! 1. A small object takes one PUT. A larger one takes a multipart upload: the upload is noted and
//!    created, its id is noted, a few parts at a time are read and sent, and the upload is
//!    completed. Only then the object appears.
//! 2. The precondition goes with the PUT, or with the completion of an upload. Before a completion
//!    it is also checked with a HEAD: some stores ignore it there.
//! 3. `object_store` retries a request with a lost response. A request that finally fails may have
//!    taken effect. So a failure is judged by a HEAD. An object with this upload's mark is ours:
//!    success. Another unexpected object is a lost race, if a listing has it, too. If the
//!    precondition still holds, the refused request is sent again.
//! 4. A failed multipart upload is aborted before this HEAD, and cannot take effect later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use object_store::multipart::{MultipartStore, PartId};
use object_store::{
    Attributes, Error, MultipartId, MultipartUpload, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    UpdateVersion,
};
use tokio::task::JoinHandle;
use umemcg_vfs::Timestamp;
use umemcg_vfs::bucket::{
    BucketError, Expected, Metadata, ObjectInfo, ObjectSource, PartBytes, UNKNOWN_UPLOAD,
};

use crate::asked_bucket::{AskedBucket, Found, Place, etag_of, strong_etag};
use crate::metadata::{attributes_of, mark_of, marked};
use crate::request_extensions::{Tenant, uncarried};
use crate::request_patch::RequestPatch;
use crate::store::PutCondition;

/// Usual length of a part, and longest object stored with one PUT.
pub(crate) const PART_BYTES: u64 = 8 << 20;
/// Most parts of an upload: S3's limit.
const NR_PARTS_MAX: u64 = 10_000;
/// Most parts in memory at once.
const NR_PARTS_UNDER_WAY: usize = 2;
/// Attempts to store an object refused although the precondition holds.
const NR_ROUNDS: usize = 3;
/// Half of the first pause between attempts; each pause is twice as long as the one before.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);

/// Returns the length of the parts of an upload.
fn part_len(size: u64, usual: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let least = size.div_ceil(NR_PARTS_MAX);
    if least <= usual { usual } else { least.next_multiple_of(MIB) }
}

/// Returns the memory held by an upload at once, in bytes.
pub(crate) fn upload_bytes(size: u64, usual: u64) -> u64 {
    if size <= usual { size } else { size.min(NR_PARTS_UNDER_WAY as u64 * part_len(size, usual)) }
}

/// See the module text.
pub(crate) struct Upload<'a> {
    asked: &'a Arc<AskedBucket>,
    key: &'a str,
    place: Place,
    source: &'a dyn ObjectSource,
    expected: &'a Expected,
    attributes: Attributes,
    /// With an upload mark.
    metadata: Metadata,
}

impl<'a> Upload<'a> {
    pub(crate) fn new(
        asked: &'a Arc<AskedBucket>,
        key: &'a str,
        source: &'a dyn ObjectSource,
        metadata: &'a Metadata,
        expected: &'a Expected,
    ) -> Result<Self, BucketError> {
        let place = asked.place(key)?;
        let metadata = if asked.store.keeps_metadata { marked(metadata) } else { Metadata::new() };
        let attributes = attributes_of(&metadata).ok_or_else(|| {
            let url = &asked.url;
            BucketError::Source(format!("PUT of {key:?} in {url}: no store takes the metadata {metadata:?}"))
        })?;
        Ok(Self { asked, key, place, source, expected, attributes, metadata })
    }

    pub(crate) fn run(&self) -> Result<ObjectInfo, BucketError> {
        let size = self.source.size();
        let stored = match &self.asked.store.parts {
            _ if size <= self.asked.part_bytes => self.at_once(),
            Some(store) => self.in_parts(store),
            None => self.as_stream(),
        };
        self.ended(stored)
    }

    /// Returns the outcome of the upload.
    pub(crate) fn ended(&self, stored: Result<ObjectInfo, BucketError>) -> Result<ObjectInfo, BucketError> {
        let stored = match stored {
            // Perhaps changed by the same upload, repeated by a caller unsure of its effect. The
            // caller gives up its bytes for another version.
            Err(BucketError::Changed(text)) => {
                let is_ours = |found: &Found| self.is_ours(found);
                match self.asked.find_for_sure((self.key, &self.place), is_ours)? {
                    Some(found) if self.is_ours(&found) => found.info,
                    found if self.expected.is_met_by(found.as_ref().map(|found| &found.info)) => {
                        return Err(BucketError::Unavailable(text));
                    }
                    _ => return Err(BucketError::Changed(text)),
                }
            }
            stored => stored?,
        };
        self.asked.counts.written_bytes.fetch_add(self.source.size(), Ordering::Relaxed);
        Ok(stored)
    }

    fn at_once(&self) -> Result<ObjectInfo, BucketError> {
        let payload = self.read(0, self.source.size())?;
        let mut round = 1;
        loop {
            let options = PutOptions {
                mode: self.mode()?,
                attributes: self.attributes.clone(),
                extensions: Tenant::current().extensions_with(self.place.patch()),
                ..PutOptions::default()
            };
            let sent = self.asked.store.objects.put_opts(&self.place.path, payload.clone(), options);
            let error = match self.wait(sent) {
                Ok(result) => return self.stored(result.e_tag),
                Err(error) => error,
            };
            match self.judge("PUT", &error)? {
                Some(info) => return Ok(info),
                None if round < NR_ROUNDS => {
                    // The store may be busy with another change at this moment.
                    let pause = CONFLICT_PAUSE * 2u32.pow(round as u32);
                    self.wait(async { tokio::time::sleep(pause).await });
                    round += 1;
                }
                None => return Err(self.refused("PUT", &error)),
            }
        }
    }

    /// Returns the precondition in the form of `object_store`.
    fn mode(&self) -> Result<PutMode, BucketError> {
        let found;
        let info = match self.expected {
            Expected::Absent => return Ok(PutMode::Create),
            // The precondition is on the present object: a PUT with a lost response may take effect
            // late, and must not replace a later version.
            Expected::Anything => match self.asked.find_any(self.key, &self.place)? {
                None => return Ok(PutMode::Create),
                Some(there) => {
                    found = there;
                    &found.info
                }
            },
            Expected::Same(info) => info,
        };
        let condition = self.asked.store.condition;
        if condition == PutCondition::Etag
            && let Some(etag) = strong_etag(info)
        {
            return Ok(PutMode::Update(UpdateVersion { e_tag: Some(etag.into()), version: None }));
        }
        let found = self.check("PUT")?;
        let version = found.filter(|_| condition == PutCondition::Generation).and_then(|found| found.version);
        Ok(version.map_or(PutMode::Overwrite, |version| {
            PutMode::Update(UpdateVersion { e_tag: None, version: Some(version) })
        }))
    }

    /// Checks the precondition with a HEAD.
    fn check(&self, what: &str) -> Result<Option<Found>, BucketError> {
        if *self.expected == Expected::Anything {
            return Ok(None);
        }
        let found = self.asked.find_any(self.key, &self.place)?;
        if self.expected.is_met_by(found.as_ref().map(|found| &found.info)) {
            Ok(found)
        } else {
            Err(self.asked.changed(what, self.key, found.as_ref()))
        }
    }

    fn is_ours(&self, found: &Found) -> bool {
        found.mark().is_some() && found.mark() == mark_of(&self.metadata)
    }

    /// Judges a failure. Returns the object's information if it is stored nevertheless, `None` if
    /// the request can be sent again, else the error.
    fn judge(&self, what: &str, error: &Error) -> Result<Option<ObjectInfo>, BucketError> {
        let is_refused = matches!(
            error,
            Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotModified { .. }
        );
        let is_denied = matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. });
        let Ok(found) = self.asked.find_any(self.key, &self.place) else {
            // Our own object, stored by an attempt with a lost response, may have caused the
            // refusal.
            return Err(self.refused(what, error));
        };
        match found {
            Some(found) if self.is_ours(&found) => Ok(Some(found.info)),
            _ if is_denied => Err(self.failed(what, error)),
            found if !self.expected.is_met_by(found.as_ref().map(|found| &found.info)) => {
                Err(self.asked.changed(what, self.key, found.as_ref()))
            }
            _ if is_refused => Ok(None),
            _ => Err(self.failed(what, error)),
        }
    }

    fn in_parts(&self, store: &Arc<dyn MultipartStore>) -> Result<ObjectInfo, BucketError> {
        let upload = self.begin_noted(store)?;
        let parts = self.send_parts(store, &upload);
        self.end_parts(store, &upload, parts)
    }

    /// Creates a multipart upload and notes its id.
    pub(crate) fn begin_noted(&self, store: &Arc<dyn MultipartStore>) -> Result<MultipartId, BucketError> {
        let upload = self.begin(store)?;
        match self.note(Some(&upload)) {
            Ok(()) => Ok(upload),
            Err(error) => {
                self.give_up_noted(store, &upload);
                Err(error)
            }
        }
    }

    /// Completes an upload with the sent parts, or aborts it.
    pub(crate) fn end_parts(
        &self,
        store: &Arc<dyn MultipartStore>,
        upload: &MultipartId,
        parts: Result<Vec<PartId>, BucketError>,
    ) -> Result<ObjectInfo, BucketError> {
        let checked = parts.and_then(|parts| self.check("POST").map(|_| parts));
        let error = match checked {
            Ok(parts) => {
                let ended = store.complete_multipart(&self.place.path, upload, parts);
                match self.wait(uncarried(Tenant::current().extensions_with(self.condition()), ended)) {
                    Ok(result) => {
                        // A note left behind names an upload already over; this is no error.
                        let _ = self.note(None);
                        return self.stored(result.e_tag);
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) => Ok(error),
        };
        self.give_up_noted(store, upload);
        self.unended(error)
    }

    /// Aborts an upload with no part in flight any more; returns whether it is over.
    pub(crate) fn give_up_noted(&self, store: &Arc<dyn MultipartStore>, upload: &MultipartId) -> bool {
        // Twice: a part in flight may have arrived after the first abort.
        let is_over = self.give_up(store, upload) && self.give_up(store, upload);
        if is_over {
            let _ = self.note(None);
        }
        is_over
    }

    /// Returns the outcome of an upload that failed before or at its completion.
    fn unended(&self, error: Result<BucketError, Error>) -> Result<ObjectInfo, BucketError> {
        match error {
            Ok(before) => Err(before),
            Err(at_end) => match self.judge("POST", &at_end) {
                Ok(Some(info)) => Ok(info),
                // The upload was not found, not the object.
                Ok(None) | Err(BucketError::NotFound(_)) => Err(self.refused("POST", &at_end)),
                Err(error) => Err(error),
            },
        }
    }

    /// Creates a multipart upload. It is noted before, since its id is known only afterwards.
    fn begin(&self, store: &Arc<dyn MultipartStore>) -> Result<MultipartId, BucketError> {
        if self.asked.store.takes_conditions {
            self.note(Some(UNKNOWN_UPLOAD))?;
        }
        let refusals = || self.asked.counts.figures().refusals;
        let before = refusals();
        let begun = self.wait(store.create_multipart_opts(&self.place.path, self.options()));
        let nr_refused = refusals() - before;
        if nr_refused > 0
            && let Ok(upload) = &begun
            && let Err(error) = self.end_others(store, upload)
        {
            // The note stays unchanged, and stands for all uploads of the key.
            self.give_up(store, upload);
            return Err(error);
        }
        begun.map_err(|error| {
            // If an upload may exist, created by a request with a lost response, the note stays.
            let is_none = match error {
                Error::NotFound { .. } => nr_refused == 0,
                Error::PermissionDenied { .. } => nr_refused <= 1,
                _ => false,
            };
            if is_none {
                let _ = self.note(None);
            }
            self.failed("POST", &error)
        })
    }

    /// Aborts all uploads of this key except one: `object_store` may have created another by a
    /// request with a lost response.
    fn end_others(&self, store: &Arc<dyn MultipartStore>, upload: &MultipartId) -> Result<(), BucketError> {
        let uploads = match self.asked.uploads(self.key, &self.place) {
            // A store that denies such lists still accepts files.
            Err(BucketError::Denied(_)) => return Ok(()),
            uploads => uploads?,
        };
        let are_over =
            uploads.iter().filter(|other| *other != upload).all(|other| self.give_up(store, other));
        let text = || format!("POST of {:?} in {}: an earlier upload of it stays", self.key, self.asked.url);
        if are_over { Ok(()) } else { Err(BucketError::Unavailable(text())) }
    }

    fn options(&self) -> PutMultipartOptions {
        PutMultipartOptions {
            attributes: self.attributes.clone(),
            extensions: Tenant::current().extensions(),
            ..PutMultipartOptions::default()
        }
    }

    /// Returns the precondition of completing a multipart upload, if the store supports it.
    fn condition(&self) -> RequestPatch {
        let headers = if self.asked.store.takes_conditions { headers_of(self.expected) } else { Vec::new() };
        RequestPatch { headers, ..RequestPatch::default() }
    }

    fn send_parts(
        &self,
        store: &Arc<dyn MultipartStore>,
        upload: &MultipartId,
    ) -> Result<Vec<PartId>, BucketError> {
        let mut under_way = VecDeque::new();
        let mut sent = Vec::new();
        let result = self.send_each(store, upload, &mut under_way, &mut sent);
        // No part may arrive after the upload is aborted.
        for part in under_way {
            part.abort();
            let _ = self.asked.runtime.block_on(part);
        }
        result.map(|()| sent)
    }

    fn send_each(
        &self,
        store: &Arc<dyn MultipartStore>,
        upload: &MultipartId,
        under_way: &mut VecDeque<JoinHandle<Result<PartId, Error>>>,
        sent: &mut Vec<PartId>,
    ) -> Result<(), BucketError> {
        let size = self.source.size();
        let len = part_len(size, self.asked.part_bytes);
        for nr in 0..size.div_ceil(len) {
            if under_way.len() == NR_PARTS_UNDER_WAY {
                sent.extend(self.first_of(under_way)?);
            }
            let payload = self.read(nr * len, len.min(size - nr * len))?;
            let (store, path, upload) = (Arc::clone(store), self.place.path.clone(), upload.clone());
            let part = async move { store.put_part(&path, &upload, nr as usize, payload).await };
            under_way.push_back(self.asked.runtime.spawn(uncarried(Tenant::current().extensions(), part)));
        }
        while !under_way.is_empty() {
            sent.extend(self.first_of(under_way)?);
        }
        Ok(())
    }

    fn first_of(
        &self,
        under_way: &mut VecDeque<JoinHandle<Result<PartId, Error>>>,
    ) -> Result<Option<PartId>, BucketError> {
        let Some(part) = under_way.pop_front() else { return Ok(None) };
        match self.asked.runtime.block_on(part) {
            Ok(part) => part.map(Some).map_err(|error| self.refused("PUT of a part", &error)),
            Err(error) => {
                let text = format!("PUT of a part of {:?} in {}: {error}", self.key, self.asked.url);
                Err(BucketError::Unavailable(text))
            }
        }
    }

    /// Aborts a multipart upload; returns whether it is over.
    fn give_up(&self, store: &Arc<dyn MultipartStore>, upload: &MultipartId) -> bool {
        match self.wait(self.asked.abort(Tenant::current(), store, &self.place.path, upload)) {
            Ok(()) => true,
            Err(error) => {
                let _ = self.refused("DELETE of an upload", &error);
                false
            }
        }
    }

    /// Stores a larger object where `object_store` hides the upload id.
    fn as_stream(&self) -> Result<ObjectInfo, BucketError> {
        let mut upload = self.begin_stream()?;
        let size = self.source.size();
        let len = part_len(size, self.asked.part_bytes);
        let sent = (0..size.div_ceil(len)).try_for_each(|nr| {
            let payload = self.read(nr * len, len.min(size - nr * len))?;
            let sent = uncarried(Tenant::current().extensions(), upload.put_part(payload));
            self.wait(sent).map_err(|error| self.refused("PUT of a part", &error))
        });
        self.end_stream(upload, sent)
    }

    pub(crate) fn begin_stream(&self) -> Result<Box<dyn MultipartUpload>, BucketError> {
        let begun = self.asked.store.objects.put_multipart_opts(&self.place.path, self.options());
        self.wait(begun).map_err(|error| self.failed("POST", &error))
    }

    /// As [`end_parts`](Self::end_parts).
    pub(crate) fn end_stream(
        &self,
        mut upload: Box<dyn MultipartUpload>,
        sent: Result<(), BucketError>,
    ) -> Result<ObjectInfo, BucketError> {
        let error = match sent.and_then(|()| self.check("POST")) {
            Ok(_) => match self.wait(uncarried(Tenant::current().extensions(), upload.complete())) {
                Ok(result) => return self.stored(result.e_tag),
                Err(error) => Err(error),
            },
            Err(error) => Ok(error),
        };
        let _ = self.wait(uncarried(Tenant::current().extensions(), upload.abort()));
        self.unended(error)
    }

    fn read(&self, offset: u64, len: u64) -> Result<PutPayload, BucketError> {
        if len == self.source.size()
            && let Some(bytes) = self.source.whole()
        {
            return Ok(payload_of(bytes));
        }
        let no_memory = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let bytes = usize::try_from(len).map_err(|_| no_memory()).and_then(|len| {
            let mut bytes = vec![0; len];
            self.source.read_at(offset, &mut bytes).map(|()| bytes)
        });
        bytes.map(PutPayload::from).map_err(|error| self.source_failed(&error))
    }

    fn note(&self, upload: Option<&str>) -> Result<(), BucketError> {
        // Azure discards uncommitted parts by itself.
        if upload.is_some_and(str::is_empty) {
            return Ok(());
        }
        self.source.note_upload(upload).map_err(|error| self.source_failed(&error))
    }

    fn source_failed(&self, error: &std::io::Error) -> BucketError {
        BucketError::Source(format!("PUT of {:?} in {}: {error}", self.key, self.asked.url))
    }

    fn stored(&self, e_tag: Option<String>) -> Result<ObjectInfo, BucketError> {
        let Some(etag) = e_tag.as_deref().and_then(etag_of) else {
            // The response has no ETag.
            let found = self.asked.find_stored("PUT", self.key, &self.place)?;
            return match self.is_ours(&found) || !self.asked.store.keeps_metadata {
                true => Ok(found.info),
                false => {
                    let text =
                        format!("PUT of {:?} in {}: another object is there", self.key, self.asked.url);
                    Err(BucketError::Unavailable(text))
                }
            };
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Ok(ObjectInfo {
            size: self.source.size(),
            // No store returns the time here, and its clock may differ.
            modified: Timestamp { seconds: i64::try_from(now).unwrap_or(i64::MAX), nanoseconds: 0 },
            etag: Some(etag),
            metadata: Some(Arc::new(self.metadata.clone())),
            attributes: None,
        })
    }

    fn failed(&self, what: &str, error: &Error) -> BucketError {
        match self.asked.failed(what, self.key, error) {
            // 404 for a PUT means a missing bucket, or a gateway without its route.
            BucketError::NotFound(text) => BucketError::Unavailable(text),
            failed => failed,
        }
    }

    fn refused(&self, what: &str, error: &Error) -> BucketError {
        self.asked.refused(what, self.key, error)
    }

    /// Waits for a request. The HTTP layer below bounds the time of each attempt.
    fn wait<T>(&self, request: impl Future<Output = T>) -> T {
        self.asked.runtime.block_on(request)
    }
}

/// Converts bytes to the type of `object_store` without a copy.
pub(crate) fn payload_of(bytes: PartBytes) -> PutPayload {
    bytes.into_chunks().into_iter().map(Bytes::from_owner).collect()
}

/// Returns the headers of a precondition, if one can be expressed.
pub(crate) fn headers_of(expected: &Expected) -> Vec<(HeaderName, HeaderValue)> {
    match expected {
        Expected::Absent => vec![(IF_NONE_MATCH, HeaderValue::from_static("*"))],
        Expected::Same(info) => {
            let etag = strong_etag(info).and_then(|etag| HeaderValue::from_str(etag).ok());
            etag.map(|etag| (IF_MATCH, etag)).into_iter().collect()
        }
        Expected::Anything => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_long_as_their_number_needs() {
        const MIB: u64 = 1 << 20;
        for (size, len) in [
            (9 * MIB, 8 * MIB),
            (256 * MIB, 8 * MIB),
            (80_000 * MIB, 8 * MIB),
            (80_000 * MIB + 1, 9 * MIB),
            (5 << 40, 525 * MIB),
        ] {
            assert_eq!(part_len(size, PART_BYTES), len, "{size}");
            assert!(size.div_ceil(len) <= NR_PARTS_MAX);
        }
        assert_eq!((256 * MIB).div_ceil(part_len(256 * MIB, PART_BYTES)), 32);
    }

    #[test]
    fn an_upload_holds_two_parts_at_most() {
        assert_eq!(upload_bytes(0, PART_BYTES), 0);
        assert_eq!(upload_bytes(PART_BYTES, PART_BYTES), PART_BYTES);
        assert_eq!(upload_bytes(PART_BYTES + 1, PART_BYTES), PART_BYTES + 1);
        assert_eq!(upload_bytes(1 << 30, PART_BYTES), 2 * PART_BYTES);
        assert_eq!(upload_bytes(5 << 40, PART_BYTES), (2 * 525) << 20);
    }
}
